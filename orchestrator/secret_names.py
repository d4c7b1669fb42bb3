"""Names of secrets (`HF_TOKEN`, `db_password`, `--api-key`), and values that are no secret under any name."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Names are read as words, also `apiKey` and `HFToken`. TOKENIZERS, KEYBOARD and AUTHOR are other words.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
HINTS = ("token", "secret", "pass", "cred", "auth", "key", "pwd", "pat", "psw", "sig", "jwt", "bearer", "cookie")
"""Each name of a secret contains one of these. They are searched first, because that is fast."""

_SECRET_WORDS = frozenset(
    {"TOKEN", "SECRET", "SECRETS", "CREDENTIAL", "CREDENTIALS", "CREDS", "CRED", "APIKEY", "PASSKEY", "SSHPASS"}
    | {"AUTH", "AUTHORIZATION", "AUTHTOKEN", "AUTHKEY", "JWT", "BEARER", "COOKIE", "PSW"}
)
_PASSWORD_ENDS = ("PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASSCODE", "PASSWRD", "PASSWORT")  # PGPASSWORD too
_SECRET_KEYS = frozenset(
    {"API", "ACCESS", "PRIVATE", "SECRET", "SIGNING", "ENCRYPTION", "ACCOUNT", "MASTER", "DEPLOY", "LICENSE", "SHARED"}
    | {"STORAGE", "SESSION", "CONSUMER", "CLIENT", "SUBSCRIPTION", "HMAC", "AES", "RSA", "JWT"}
)
_OTHER_KEYS = frozenset(
    {"PUBLIC", "PUB", "SORT", "PRIMARY", "FOREIGN", "CACHE", "PARTITION", "HASH", "GROUP", "DICT", "MAP", "STATE"}
    | {"HOST", "KNOWN", "QUERY", "OUTPUT", "INPUT", "CONFIG", "INDEX", "LOOKUP", "METRIC", "DATA", "FEATURE", "RANDOM"}
    | {"EXPECTED", "MISSING", "UNEXPECTED", "BUCKET", "ROUTING"}
)
_WEAK_WORDS = frozenset({"KEY", "PASS", "PAT", "SIG", "SIGNATURE"})
_LONGEST_WEAK_NAME = 100
# What comes before PASS where it is a step of a computation or a result, and before PAT where it is a pattern.
_OTHER_PASSES = frozenset(
    {"FORWARD", "BACKWARD", "FIRST", "SECOND", "LAST", "ONE", "TWO", "SINGLE", "MULTI", "PER", "EACH", "NUM", "BY", "N"}
    | {"TEST", "TESTS", "NO", "ALL", "SKIP", "OPTIMIZATION", "COMPILER", "FUSION"}
)
_OTHER_PATTERNS = frozenset({"FILE", "GLOB", "NAME", "LOG", "RE", "REGEX", "PATH", "MATCH", "INCLUDE", "EXCLUDE"})
# A name whose last word is one of these describes a secret, and holds none.
_ABOUT_ONE = frozenset(
    {"FILE", "PATH", "DIR", "FOLDER", "SOCK", "URL", "URI", "HOST", "SERVER", "PORT", "ENDPOINT", "USER", "NAME"}
    | {"TYPE", "METHOD", "MODE", "PLUGIN", "PROVIDER", "POLICY", "LENGTH", "SIZE", "COUNT", "LIMIT", "TTL", "TIMEOUT"}
    | {"DROP", "DROPPING", "LOSS"}  # Megatron's --moe-token-drop-policy, --calculate-per-token-loss
    | {"IDS", "EMBEDDING", "EMBEDDINGS", "DIM", "SHAPE", "LEN", "DTYPE", "FORMAT", "PROB", "PROBS", "DISPATCHER"}
)
# The tokens of a language model.
_OF_A_VOCABULARY = frozenset(
    {"EOS", "BOS", "EOD", "PAD", "UNK", "MASK", "CLS", "SEP", "SPECIAL", "IMAGE", "PER", "MOE", "CLASS", "MULTI"}
)

# Fifteen digits are a number; a longer row of them may be a key.
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,3})?")
_SWITCH = frozenset({"", "true", "false", "yes", "no", "on", "off", "none", "null"})
_PATH = re.compile(r"(?:~|\.{1,2}|\$\{?[A-Za-z_]\w*\}?)?/[\w./@,~-]*", re.ASCII)
_REFERENCE = re.compile(r"\$\{?[A-Za-z_]\w*\}?", re.ASCII)
# A path with a random part may be a secret: an AWS key may begin with / too.
_RANDOM_PART = re.compile(r"(?=[^/]{0,99}[0-9])(?=[^/]{0,99}[a-z])(?=[^/]{0,99}[A-Z])[A-Za-z0-9]{16}")
_AWS_KEY = re.compile(r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9/]{40}")
_RANDOM = re.compile(r"[A-Za-z0-9_+/=.~%-]{20,}")
_THREE_DIGITS = re.compile(r"(?:[^0-9]*[0-9]){3}")
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_CODE = re.compile(r"[A-Za-z_][\w.]*[(\[]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[(\[{<]|[|>][+-]?(?!.)", re.ASCII)
_TYPES = frozenset({"str", "bytes", "int", "float", "bool", "Any", "Tensor", "Optional", "Callable", "object", "self"})


def is_secrets_name(name: str) -> bool:
    """Return whether a variable, field or option of this name holds a secret."""
    if not any(hint in name.lower() for hint in HINTS):
        return False
    words = [word.upper() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_ONE:
        return False
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if word == "TOKEN" and (before in _OF_A_VOCABULARY or after in ("ID", "INDEX", "TYPE")):
            continue
        if word in _SECRET_WORDS or word.endswith(_PASSWORD_ENDS):
            return True
        if word in ("KEY", "KEYS") and before in _SECRET_KEYS:
            return True
        if word == "PASS" and before and before not in _OTHER_PASSES and not after:
            return True
        if word == "PWD" and (before or name.strip("-") != "PWD"):
            return True  # and PWD alone is a shell's folder
    return _is_secret_variable(name, words)


def is_sometimes_secret(name: str) -> bool:
    """Return whether a name (`key`, `pass`, `sig`) holds a secret where its value looks random."""
    words = [word.upper() for word in _WORD.findall(name[-_LONGEST_WEAK_NAME:])]
    return bool(words) and words[-1] in _WEAK_WORDS and not set(words) & _OTHER_KEYS


def holds_secret(name: str, value: str) -> bool:
    """Return whether nobody should see the value that this name is given."""
    if is_plain(value):
        return False
    return is_secrets_name(name) or (looks_random(value) and is_sometimes_secret(name))


def _is_secret_variable(name: str, words: list[str]) -> bool:
    """Return whether the name is an environment variable's such as OPENAI_KEY or GH_PAT: in other places these are
    keys of a dictionary, and patterns.
    """
    if len(words) < 2 or name != name.upper():
        return False
    return (words[-1] == "KEY" and words[-2] not in _OTHER_KEYS) or (
        words[-1] == "PAT" and words[-2] not in _OTHER_PATTERNS
    )


def is_password_name(name: str) -> bool:
    """Return whether the name is a word for a password: a person may choose any text for its value."""
    words = [word.upper() for word in _WORD.findall(name)]
    return bool(words) and (words[-1].endswith(_PASSWORD_ENDS) or words[-1] in ("PSW", "PWD"))


def is_plain(value: str) -> bool:
    """Return whether the value is a number, a switch, a path, another variable's name, or a mask."""
    if value.lower() in _SWITCH or not value.strip("*"):
        return True
    if _NUMBER.fullmatch(value) or _REFERENCE.fullmatch(value):
        return True
    return bool(_PATH.fullmatch(value)) and not _RANDOM_PART.search(value) and not _AWS_KEY.fullmatch(value)


def is_code(value: str) -> bool:
    """Return whether the value is an expression or a type of a program: `self.token`, `get(x)`, `str`, `<|pad|>`."""
    return value.rstrip(",;)]:") in _TYPES or bool(_CODE.match(value))


def looks_random(value: str) -> bool:
    """Return whether the value is long and mixes letters with digits."""
    return bool(
        _RANDOM.fullmatch(value) and _THREE_DIGITS.match(value) and _LETTER.search(value) and not is_plain(value)
    )


def looks_chosen(value: str) -> bool:
    """Return whether the value is no word of a sentence: it has six characters or more, with letters and digits."""
    return len(value) >= 6 and bool(_DIGIT.search(value) and _LETTER.search(value))


def secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose name is a secret's and whose value is not plain."""
    return {name: value for name, value in environment.items() if holds_secret(name, value)}
