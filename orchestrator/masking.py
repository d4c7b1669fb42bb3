"""What looks like a secret, and texts without it: for the ledger, for reports and for exports.

Seen by its name (`HF_TOKEN`, `--api-key`) or by its own shape (a token of a known service, a key in PEM, a password in
a URL). Rather too much is masked than too little; numbers, switches and paths are none, whatever they are called.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"

_SHORTEST_KNOWN = 4
"""Characters; what is shorter stands everywhere by chance."""

# Names are read as words, also `apiKey` and `HFToken`. TOKENIZERS, KEYBOARD and AUTHOR are other words.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAMES_HAVE = ("token", "secret", "pass", "credential", "auth", "key", "pwd")  # asked first: quicker
_SECRET_WORDS = frozenset(
    {"TOKEN", "SECRET", "SECRETS", "CREDENTIAL", "CREDENTIALS", "APIKEY", "SSHPASS"}
    | {"AUTH", "AUTHORIZATION", "AUTHTOKEN", "AUTHKEY"}
)
_SECRET_ENDS = ("PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE")  # also PGPASSWORD
_SECRET_KEYS = frozenset({"API", "ACCESS", "PRIVATE", "SECRET", "SIGNING", "ENCRYPTION", "ACCOUNT"})
# What says with its last word that it names, measures or chooses a secret, and holds none.
_ABOUT_ONE = frozenset(
    {"FILE", "PATH", "DIR", "FOLDER", "SOCK", "URL", "URI", "HOST", "SERVER", "PORT", "ENDPOINT", "USER", "NAME"}
    | {"TYPE", "METHOD", "MODE", "PLUGIN", "PROVIDER", "POLICY", "LENGTH", "SIZE", "COUNT", "LIMIT", "TTL", "TIMEOUT"}
    | {"DROP", "DROPPING", "LOSS"}  # Megatron's --moe-token-drop-policy, --calculate-per-token-loss
)
# The tokens of a language model.
_OF_A_VOCABULARY = frozenset(
    {"EOS", "BOS", "EOD", "PAD", "UNK", "MASK", "CLS", "SEP", "SPECIAL", "IMAGE", "PER", "MOE"}
)

# Fifteen digits are a number; a longer row of them may be a key.
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][-+]?[0-9]{1,3})?")
_SWITCH = frozenset({"", "true", "false", "yes", "no", "on", "off", "none", "null"})
_PATH = re.compile(r"(?:~|\.{1,2}|\$\{?[A-Za-z_]\w*\}?)?/[\w./@,~-]*", re.ASCII)
_REFERENCE = re.compile(r"\$\{?[A-Za-z_]\w*\}?", re.ASCII)
# Of a path whose part is drawn by lot nobody can say that it is a path: an AWS key may begin with / too.
_RANDOM = re.compile(r"(?=[^/]{0,99}[0-9])(?=[^/]{0,99}[a-z])(?=[^/]{0,99}[A-Z])[A-Za-z0-9]{16}")
_AWS_KEY = re.compile(r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9/]{40}")

# Each takes in all that it has looked at: linear in any text. Of the last two only what has a digit is one.
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|nvapi-[A-Za-z0-9_-]{20,}|(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,})"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"
    r"|(?P<vague>(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,})"
)
_SHAPES_HAVE = ("hf_", "gh", "github_pat_", "glpat-", "AKIA", "ASIA", "nvapi-", "xox", "xapp-", "eyJ", "sk-", "earer ")
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# Without its end (a log that was cut) as far as its letters go.
_PEM = re.compile(rf"{_BEGIN}(?:[^-]*(?:-[^-]+)*{_END}|[A-Za-z0-9+/=\s\\]*)")
_URL = re.compile(r"(?<=://)[^\s'\"`<>\\]+")
_URL_ALONE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DIGIT = re.compile(r"[0-9]")
_PORT = re.compile(r"[0-9]{1,5}[/?#]")

# A name with what makes it one that is given a value: `NAME=`, `"name": "value"`, `A-Header: x`, `--name value`.
_NAMED = re.compile(
    r"(?<![\w.-])(?:([\w.-]+)(=|[\"'][ \t]*:[ \t]*(?=[\"'])|:(?=[ \t]))|(--[\w.-]+)[ \t]+(?=[^\s-]))", re.ASCII
)
_OPTION = re.compile(r"-[A-Za-z]|--[\w.-]+", re.ASCII)
_SCHEME = re.compile(r"(?:Bearer|Basic|token)[ \t]+", re.IGNORECASE)
_HEADERS_VALUE = re.compile(r"[^\n'\"]*")
# What stands between quotes: as JSON and Python write it, and as a shell, which is told of a ' in four ways.
_WRITTEN = {
    '"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL),
    "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*", re.DOTALL),
}
_IN_SHELL = {'"': _WRITTEN['"'], "'": re.compile(r"""[^']*(?:'"'"'[^']*|'\\''"'\\''"'\\''[^']*)*""")}
# A shell's word that begins with a quote; first as it stands in a script that is itself in single quotes.
_QUOTED = re.compile(
    r"""(?:'\\''[^']*(?:'\\''"'\\''"'\\''[^']*)*'\\''"""
    r"""|'[^']*'|"[^"\\]*(?:\\.[^"\\]*)*"|\\.?|[^\s'"\\]+)+""",
    re.DOTALL,
)
_BARE = re.compile(r"""(?:[^\s'"]+|'[^'\n]*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")+""")
_REST_OF_LINE = re.compile(r"[^\n]*")
_CLOSING = re.compile(r"[,;)\]}]+$")


def looks_secret(name: str, value: str) -> bool:
    """Whether the value of a variable, a field or an option should be seen by nobody."""
    return (_is_secrets_name(name) and not _is_plain(value)) or masked(value) != value


def masked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same names; of a URL only the password is masked."""
    return {name: _masked_value(name, value) for name, value in environment.items()}


def masked(text: str, known: Collection[str] = ()) -> str:
    """A script, a log or a command line without secrets, twice masked as once; linear in the text.

    `known` are values that are secret whatever they look like: masked also as a shell, JSON or a URL writes them,
    unless they are of fewer than four characters.
    """
    for value in sorted(_spellings(known), key=len, reverse=True):
        text = text.replace(value, MASK)
    text = _PEM.sub(MASK, text)
    if _has(text, _SHAPES_HAVE):
        text = _SHAPE.sub(lambda found: found[0] if found["vague"] and not _DIGIT.search(found[0]) else MASK, text)
    if _has(text.lower(), _NAMES_HAVE):
        text = _without_values(text)
    return _URL.sub(lambda found: _without_passwords(found[0]), text)


def masked_words(argv: Sequence[str]) -> list[str]:
    """A command line for the record: `--database postgresql://u:***@h/db`, `--some-token ***`."""
    words: list[str] = []
    option = ""
    for word in argv:
        is_option = bool(_OPTION.fullmatch(word))
        words.append(_masked_word(word) if is_option or not option else _masked_value(option, word))
        option = word if is_option else ""
    return words


def masked_tree(value: Any, name: str = "") -> Any:
    """A profile, or whatever JSON can hold: the keys are names, which hold for all that stands below them."""
    if isinstance(value, str):
        return _masked_value(name, value)
    if isinstance(value, Mapping):
        # `when` says for which jobs a variable is set, whatever the variable is called.
        return {key: masked_tree(one, _below(name, str(key))) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        made = list if isinstance(value, list) else tuple
        if not _is_secrets_name(name) and all(isinstance(one, str) for one in value):
            return made(masked_words(value))
        return made(masked_tree(one, name) for one in value)
    return value


def _below(name: str, key: str) -> str:
    return name if _is_secrets_name(name) and key != "when" else key


def _is_secrets_name(name: str) -> bool:
    if not _has(name.lower(), _NAMES_HAVE):
        return False
    words = [word.upper() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_ONE:
        return False
    for before, word in zip(["", *words], words, strict=False):
        if word == "TOKEN" and before in _OF_A_VOCABULARY:
            continue
        if word in _SECRET_WORDS or word.endswith(_SECRET_ENDS):
            return True
        if (word in ("KEY", "KEYS") and before in _SECRET_KEYS) or (word == "PWD" and before):
            return True  # and PWD alone is a shell's folder
    return False


def _is_plain(value: str) -> bool:
    """A number, a switch, a path, another variable's name, or a mask."""
    if value.lower() in _SWITCH or not value.strip("*"):
        return True
    if _NUMBER.fullmatch(value) or _REFERENCE.fullmatch(value):
        return True
    return bool(_PATH.fullmatch(value)) and not _RANDOM.search(value) and not _AWS_KEY.fullmatch(value)


def _masked_value(name: str, value: str) -> str:
    """Wholly where its name says so, else what of it can be seen to be secret."""
    return MASK if _is_secrets_name(name) and not _is_plain(value) else _masked_word(value)


def _masked_word(word: str) -> str:
    """A word that a program is given whole: behind `NAME=` everything is the value, whatever a shell makes of it."""
    start = 0
    while (found := _NAMED.match(word, start)) and found[2] == "=":
        start = found.end()
        if _is_secrets_name(found[1]) and not _is_plain(word[start:]):
            return masked(word[:start] + MASK)
    alone = _URL_ALONE.match(word, start)  # then its end is known, whatever its password has
    if alone:
        word = word[: alone.end()] + _without_passwords(word[alone.end() :])
    return masked(word)


def _has(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)


def _spellings(known: Collection[str]) -> set[str]:
    found: set[str] = set()
    for value in known:
        if len(value) >= _SHORTEST_KNOWN and value.strip("*"):
            in_shell = shlex.quote(value)
            found |= {value, in_shell, in_shell.replace("'", "'\\''"), quote(value, ""), quote_plus(value)}
            found |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    return found


def _without_passwords(places: str) -> str:
    """What stands behind the first `://`; there may be others in it."""
    return "://".join(map(_without_password, places.split("://")))


def _without_password(place: str) -> str:
    """A port, and the digest of an image, are no passwords."""
    user, colon, rest = place.partition(":")
    password, at, host = rest.rpartition("@")
    if not (colon and at and password.strip("*")) or user.startswith("[") or any(one in user for one in "/?#"):
        return place
    if _PORT.match(password) or host.startswith("sha256:"):
        return place
    return f"{user}:{MASK}@{host}"


def _without_values(text: str) -> str:
    """Masks what is given to a secret's name; one walk from name to name."""
    parts: list[str] = []
    done, at = 0, 0
    opened = ""  # the quote that a word such as '--env=NAME=two words' began with, as long as it is names only
    while found := _NAMED.search(text, at):
        if found.start() != at:
            opened = ""
        before = text[max(0, found.start() - 1) : found.start()]
        opened = before if before in ("'", '"') else opened
        at = found.end()
        if not _is_secrets_name(found[1] or found[3]):
            continue
        start, end = _value(text, found, opened)
        if end > start and not _is_plain(_unquoted(text[start:end])):
            parts += [text[done:start], MASK]
            done = at = end
    return "".join([*parts, text[done:]])


def _value(text: str, found: re.Match[str], opened: str) -> tuple[int, int]:
    """Where the value begins and ends that this name is given; an empty one where none is."""
    name, how, start = found[1], found[2], found.end()
    if how and how[0] in "'\"":  # "name": "value"
        return start + 1, _end(_WRITTEN[text[start]], text, start + 1)
    if how == ":":  # of a header only: a message may begin with a variable's name as well
        start += len(text[start : start + 9]) - len(text[start : start + 9].lstrip(" \t"))
        scheme = _SCHEME.match(text, start)
        start = scheme.end() if scheme else start
        return start, _end(_HEADERS_VALUE, text, start) if scheme or "-" in name else start
    if how == "=" and opened:
        return start, _end(_IN_SHELL[opened], text, start)
    if text[start : start + 1] in ("'", '"'):
        end = _end(_QUOTED, text, start) or _end(_REST_OF_LINE, text, start)
    else:
        end = _end(_BARE, text, start)
    closing = _CLOSING.search(text, max(start, end - 8), end)
    return start, closing.start() if closing and closing.start() > start else end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where what stands at `start` ends; 0 where it is not of that kind."""
    found = pattern.match(text, start)
    return found.end() if found else 0


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
