"""Masking of secrets in texts that the ledger stores, and in files of a bundle.

A secret is recognized by its name (`HF_TOKEN`, `--api-key`), by its shape (a token of a known service, a key in PEM, a
password in a URL), or by its value if the caller passes it. Masking prefers to hide too much, but numbers, switches and
paths are never secrets.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote

# Names are split into words, also `apiKey` and `HFToken`. TOKENIZERS, KEYBOARD and AUTHOR are other words.
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
# Words before PASS as a step of a computation or a result, and before PAT as a pattern.
_OTHER_PASSES = frozenset(
    {"FORWARD", "BACKWARD", "FIRST", "SECOND", "LAST", "ONE", "TWO", "SINGLE", "MULTI", "PER", "EACH", "NUM", "BY", "N"}
    | {"TEST", "TESTS", "NO", "ALL", "SKIP", "OPTIMIZATION", "COMPILER", "FUSION"}
)
_OTHER_PATTERNS = frozenset({"FILE", "GLOB", "NAME", "LOG", "RE", "REGEX", "PATH", "MATCH", "INCLUDE", "EXCLUDE"})
# A name whose last word is one of these describes a secret, but its value is not secret.
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

# Up to fifteen digits are a number; more may be a key.
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


@functools.lru_cache(maxsize=1024)
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
            return True  # PWD alone is the shell's folder
    return _is_secret_variable(name, words)


def is_sometimes_secret(name: str) -> bool:
    """Return whether the name (`key`, `pass`, `sig`) is a secret's if its value looks random."""
    words = [word.upper() for word in _WORD.findall(name[-_LONGEST_WEAK_NAME:])]
    return bool(words) and words[-1] in _WEAK_WORDS and not set(words) & _OTHER_KEYS


def holds_secret(name: str, value: str) -> bool:
    """Return whether the value of this name is secret."""
    if is_plain(value):
        return False
    return is_secrets_name(name) or (looks_random(value) and is_sometimes_secret(name))


def _is_secret_variable(name: str, words: list[str]) -> bool:
    """Return whether the name is an environment variable such as OPENAI_KEY or GH_PAT.

    In lower case such names are keys of a dictionary, or patterns.
    """
    if len(words) < 2 or name != name.upper():
        return False
    return (words[-1] == "KEY" and words[-2] not in _OTHER_KEYS) or (
        words[-1] == "PAT" and words[-2] not in _OTHER_PATTERNS
    )


def is_password_name(name: str) -> bool:
    """Return whether the name is a word for a password. A person may choose any text as its value."""
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
    """Return whether the value has six characters or more, with letters and digits, unlike a word of a sentence."""
    return len(value) >= 6 and bool(_DIGIT.search(value) and _LETTER.search(value))


Span = tuple[int, int]
"""Start and end of a value."""

_SHELL_WORD = r"""(?P<value>(?:'[^'\n]*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[^\s'"])+)"""
# Commands and files that contain a secret without a sign between name and value, or without a name.
_COMMANDS = tuple(
    (hints, re.compile(pattern, re.ASCII | re.MULTILINE))
    for hints, pattern in {
        (
            "setenv",
            "ENV ",
            "set -",
        ): rf"(?<![\w.-])(?:setenv|ENV|set[ \t]+-[A-Za-z]+)[ \t]+(?P<name>[\w.-]+)[ \t]+{_SHELL_WORD}",
        ("login",): rf"(?<![\w-])login[ \t]+\S+[ \t\r\n]+password[ \t]+{_SHELL_WORD}",
        (":5432:", ":*:"): r"^[\w.*-]{1,253}:(?:5432|\*):[\w*-]{1,64}:[\w.*-]{1,64}:(?P<value>[^\s:]+)$",
        ("-u", "--user"): rf"(?<![\w-])(?P<user>-u|--user|--proxy-user)[ \t=]+['\"]?\w[\w.@-]{{0,64}}:{_SHELL_WORD}",
        ("sshpass",): rf"(?<![\w-])sshpass[ \t]+-p[ \t]*{_SHELL_WORD}",
        ("login ",): rf"(?<![\w-])login [^\n]{{0,200}}?(?<=[ \t])-p[ \t]+{_SHELL_WORD}",
        ("mysql",): rf"(?<![\w-])mysql(?:dump|admin)?[ \t][^\n]{{0,200}}?(?<=[ \t])-p(?=[^\s-]){_SHELL_WORD}",
        ("redis-cli",): rf"(?<![\w-])redis-cli[ \t][^\n]{{0,200}}?(?<=[ \t])-a[ \t]+{_SHELL_WORD}",
        ("wandb",): r"(?<![\w-])wandb[ \t]+login[ \t]+(?P<value>[\w-]{30,})",
        ("value",): r"(?<![\w-])(?:name|key)[\"']?[ \t]*[:=][ \t]*[\"']?(?P<name>[\w.-]+)[\"']?,?\s*"
        rf"[\"']?value[\"']?[ \t]*[:=][ \t]*{_SHELL_WORD}",
        ("pass", "Pass", "PASS"): r"(?<![\w.-])[\w.-]*(?i:passw(?:or)?d|passphrase|passcode)[ \t]+(?:is[ \t]+)?"
        r"(?P<chosen>(?P<value>[^\s'\",;]+))",
    }.items()
)

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
# Text between a name and its value: `NAME=`, `"name": "value"`, `env["NAME"] = "value"`, `name = value`,
# `name ..... value`, `A-Header: x`, `<name>value</name>`.
_GIVEN = re.compile(
    r"(?P<assign>=)"
    r"|(?P<json>\\*[\"'][ \t]*:[ \t]*(?=\\*[\"']))"
    r"|(?P<item>[\"'](?:\]?[ \t]*(?:=>|:?=)|,)[ \t]*(?=[\"']))"
    r"|(?P<dump>[ \t]+\.{3,}[ \t]+)"
    r"|(?P<spaced>[ \t]*(?::=|=>)[ \t]*|[ \t]+(?:=|->|\|)[ \t]+)"
    r"|(?P<colon>[ \t]?:(?=[ \t]))"
    r"|(?P<tight>:(?=[^\s:/=]))"
    r"|(?P<tag>>(?=[^<\s]))"
)
_OPTIONS_VALUE = re.compile(r"[ \t]+(?:\\\n[ \t]*)?(?=[^\s-])")
_SCHEME = re.compile(r"(?:Bearer|Basic|token)[ \t]+", re.IGNORECASE)
_YAML_TAG = re.compile(r"![\w/.-]*[ \t]+")
_HEADERS_VALUE = re.compile(r"[^\n'\"]*")
# Text between quotes: as JSON and Python write it, and as a shell does, which has four spellings of a single quote.
_WRITTEN = {
    '"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL),
    "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*", re.DOTALL),
}
_IN_SHELL = {'"': _WRITTEN['"'], "'": re.compile(r"""[^']*(?:'"'"'[^']*|'\\''"'\\''"'\\''[^']*)*""")}
_IN_ESCAPED = re.compile(r"[^\"'\\\n]*")
# A shell's word that begins with a quote. The first alternative is for a script that is itself in single quotes.
_QUOTED = re.compile(
    r"""(?:'\\''[^']*(?:'\\''"'\\''"'\\''[^']*)*'\\''"""
    r"""|'[^']*'|"[^"\\]*(?:\\.[^"\\]*)*"|\\.?|[^\s'"\\]+)+""",
    re.DOTALL,
)
_QUOTED_IN_LINE = re.compile(r"""(?:'[^'\n]*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")[^\s,;'"]*""")
_BARE = re.compile(r"""(?:[^\s'"]+|'[^'\n]*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")+""")
_ONE_WORD = re.compile(r"[^\s'\",;]+")
_WORDS_BEGINNING = re.compile(r"[^\s'\",;]{1,512}")
_RANDOM_VALUE = re.compile(r"\\*[\"']?(?P<value>[A-Za-z0-9_+/=.~%-]{20,512})(?![A-Za-z0-9_+/=.~%-])")
_TAGS_VALUE = re.compile(r"[^<\n]*")
_CELL = re.compile(r"[^|\n]*")
_REST_OF_LINE = re.compile(r"[^\n]*")
_CLOSING = re.compile(r"[,;)\]}`]+$")
_ENDS_VALUE = re.compile(r"[)\]}]*(?:[,;}\])]|[ \t]*(?:#|\r?\n|$)|\\n)")
_LONGEST_CHAIN = 8
"""Names with = at the start of a quoted word: `'--env=NAME=value'` has two."""


def commands_in(text: str) -> Iterator[re.Pattern[str]]:
    """Yield the patterns of the commands and files that the text may contain."""
    return (pattern for hints, pattern in _COMMANDS if any(hint in text for hint in hints))


def spans_of_command(text: str, pattern: re.Pattern[str]) -> Iterator[Span]:
    """Yield the secret values in one kind of command or file."""
    for match in pattern.finditer(text):
        groups = match.groupdict()
        start, end = match.span("value")
        value = _unquoted(match["value"])
        if is_plain(value) or value.startswith(("$(", "`", "***")):
            continue
        if "name" in groups and not holds_secret(match["name"], value):
            continue
        if ("chosen" in groups and not looks_chosen(value)) or is_code(value):
            continue
        if "user" in groups:
            is_curls = text.rfind("curl", max(0, start - 200), start) >= 0
            end -= value != match["value"][: len(value)] or match["value"][-1:] in "'\""
            if not (is_curls or looks_chosen(value)):
                continue
        yield start, end


def spans_of_names(text: str) -> Iterator[Span]:
    """Yield the values of names of secrets, in one walk from name to name."""
    done = 0  # everything before this position has been read
    for start, end in _names(text):
        if start < done:
            continue
        name = text[start:end]
        given = _GIVEN.match(text, end)
        kind, at = (str(given.lastgroup), given.end()) if given else ("", end)
        if given is None and name.startswith("--") and (option := _OPTIONS_VALUE.match(text, end)):
            kind, at = "option", option.end()
        if not kind:
            continue
        if name.lower() in ("key", "keys") and kind in ("colon", "spaced"):
            name = f"{_word_before(text, start)}_{name}"
        if is_secrets_name(name):
            value_at, value_end = _value(text, kind, name, start, at, done)
        elif is_sometimes_secret(name) and (random := _RANDOM_VALUE.match(text, at)):
            value_at, value_end = random.span("value")
        else:
            continue
        if value_end > value_at and holds_secret(name, _unquoted(text[value_at:value_end])):
            yield value_at, value_end
            done = value_end


def _names(text: str) -> Iterator[Span]:
    """Yield each name that contains a hint. `str.find` for every hint is faster than a pattern for all names."""
    lowered = _lowered(text)
    following = {hint: at for hint in HINTS if (at := lowered.find(hint)) >= 0}
    done = 0
    while following:
        for hint in [hint for hint, at in following.items() if at < done]:
            following[hint] = lowered.find(hint, done)
            if following[hint] < 0:
                del following[hint]
        if not following:
            return
        start = min(following.values())
        while start > done and text[start - 1] in _NAME_CHARACTERS:
            start -= 1
        name = _NAME.match(text, start)
        done = name.end() if name else start + 1
        yield start, done


def _word_before(text: str, start: int) -> str:
    """Return the word before a name and a blank or dash: the `API` of `API key`."""
    match = re.search(r"([A-Za-z]{1,20})[ -]$", text[max(0, start - 24) : start])
    return match[1] if match else ""


def _value(text: str, kind: str, name: str, start: int, at: int, done: int) -> Span:
    """Return the value at `at` of the name at `start`; an empty span if there is none."""
    if kind == "json":
        bare = at + len(text[at : at + 8]) - len(text[at : at + 8].lstrip("\\"))
        pattern = _IN_ESCAPED if bare > at else _WRITTEN[text[bare]]
        return bare + 1, _end(pattern, text, bare + 1)
    if kind == "item":
        is_pair = text[start - 2 : start - 1] == "(" or name.startswith("--")
        return at + 1, _end(_WRITTEN[text[at]], text, at + 1) if is_pair or "," not in text[start:at][-4:] else at
    if kind == "tag":
        return at, _end(_TAGS_VALUE, text, at) if text[start - 1 : start] == "<" else at
    if kind == "dump":
        return _stripped(text, at, _end(_REST_OF_LINE, text, at))
    if kind == "spaced":
        return _spaced(text, name, start, at)
    if kind == "colon":
        return _after_colon(text, name, start, at)
    if kind == "tight":
        word = text[at : _end(_WORDS_BEGINNING, text, at)]
        is_value = (is_password_name(name) or looks_chosen(word)) and not is_code(word)
        return _closed(text, at, _end(_ONE_WORD, text, at)) if is_value else (at, at)
    opened = _opened(text, start, done) if kind == "assign" else ""
    if opened:
        return at, _end(_IN_SHELL[opened], text, at)
    if text[at : at + 1] in ("'", '"'):
        return _closed(text, at, _end(_QUOTED, text, at) or _end(_REST_OF_LINE, text, at))
    return _closed(text, at, _end(_BARE, text, at))


def _opened(text: str, start: int, done: int) -> str:
    """Return the quote at the start of a word such as '--env=NAME=two words' if only names precede `start`."""
    for _ in range(_LONGEST_CHAIN):
        before = text[start - 1 : start] if start > done else ""
        if before in ("'", '"'):
            return before
        if before != "=":
            return ""
        start -= 1
        while start > done and text[start - 1] in _NAME_CHARACTERS:
            start -= 1
    return ""


def _spaced(text: str, name: str, start: int, at: int) -> Span:
    """Return the value of `name = value`, `name -> value` or of the next cell of a table."""
    if "|" in text[at - 3 : at]:
        return _stripped(text, at, _end(_CELL, text, at))
    if text[at : at + 1] in ("'", '"'):
        return _closed(text, at, _end(_QUOTED_IN_LINE, text, at))
    if is_code(text[at : at + 200].partition("\n")[0]):
        return at, at
    line_before = text[max(0, start - 16) : start]
    if is_password_name(name) and not line_before[line_before.rfind("\n") + 1 :].strip():
        return _stripped(text, at, _end(_REST_OF_LINE, text, at))
    return _closed(text, at, _end(_ONE_WORD, text, at))


def _after_colon(text: str, name: str, start: int, at: int) -> Span:
    """Return the value of a header or of a YAML key. Prose after a colon is not a value."""
    at += len(text[at : at + 9]) - len(text[at : at + 9].lstrip(" \t"))
    if tag := _YAML_TAG.match(text, at):
        at = tag.end()
    scheme = _SCHEME.match(text, at)
    if scheme or "-" in name or name.lower() == "cookie":
        at = scheme.end() if scheme else at
        return at, _end(_HEADERS_VALUE, text, at)
    if text[at : at + 1] in ("'", '"'):
        return _closed(text, at, _end(_QUOTED_IN_LINE, text, at))
    end = _end(_ONE_WORD, text, at)
    word = text[at:end]
    if is_code(word) or "***" in word:  # a part of it is already masked
        return at, at
    is_alone = bool(_ENDS_VALUE.match(text, end))
    is_in_prose = text[max(0, start - 2) : start].strip(" \t")[-1:].isalnum()
    if looks_chosen(word) or (is_alone and (is_password_name(name) or not is_in_prose)):
        return _closed(text, at, end)
    return at, at


def _stripped(text: str, start: int, end: int) -> Span:
    """Return the span without blanks at its end."""
    return start, start + len(text[start:end].rstrip())


def _closed(text: str, start: int, end: int) -> Span:
    """Return the span without the brackets and commas at its end, which belong to the text around it."""
    closing = _CLOSING.search(text, max(start, end - 8), end)
    return start, closing.start() if closing and closing.start() > start else end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of the pattern's match at `start`, or 0."""
    match = pattern.match(text, start)
    return match.end() if match else 0


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def _lowered(text: str) -> str:
    """Return the text in lower case, with the same length."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(c.lower() if c.isascii() else c for c in text)


MASK = "***"

ADDRESS_OPTION = "--notify"
"""Option whose value is the URL of a message service. Any part of such a URL may be a secret."""

_MOST_PASSES = 4
"""A mask may close an open quote. Then the text behind it reads as another value, so several passes are needed."""
_SHORTEST_KNOWN = 4
"""Characters. A shorter value occurs everywhere by chance."""
_SHORTEST_ANYWHERE = 8
"""Characters. A shorter known value is masked only as a whole word."""

# Every alternative consumes what it has read, so the time is linear. The last two count only if they contain a digit.
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|gl(?:pat|ptt|dt|rt)-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|nvapi-[A-Za-z0-9_-]{20,}|(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}"
    r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-AgE[A-Za-z0-9_-]{20,}"
    r"|dckr_pat_[A-Za-z0-9_-]{20,}|[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{30,}|r8_[A-Za-z0-9]{30,}"
    r"|hv[sbr]\.[A-Za-z0-9_-]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|do[opr]_v1_[A-Za-z0-9]{40,}"
    r"|lin_api_[A-Za-z0-9]{30,}|tskey-[a-z]{1,20}-[A-Za-z0-9-]{16,}|ATATT3[A-Za-z0-9_=-]{30,}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{50,}|[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}"
    r"|hooks\.slack\.com/services/[A-Za-z0-9/]{20,}|discord(?:app)?\.com/api/webhooks/[0-9]{10,}/[A-Za-z0-9_-]{20,})"
    r"|\$(?:1|2[aby]|5|6|y)\$[A-Za-z0-9./$=,]{20,}"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"
    r"|(?P<vague>(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,})"
)
_SHAPE_PARTS = (  # noqa: SIM905
    "hf_|ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|glptt-|gldt-|glrt-|AKIA|ASIA|nvapi-|xox|xapp-|eyJ|sk-|earer |AIza"
    "|ya29.|npm_|pypi-AgE|dckr_pat_|k_live_|k_test_|gsk_|r8_|hvs.|hvb.|hvr.|SG.|_v1_|lin_api_|tskey-|ATATT3"
    "|AGE-SECRET-KEY-1|:AA|hooks.slack|/webhooks/|$1$|$2|$5$|$6$|$y$"
).split("|")
"""Each secret's shape contains one of these. They are searched first, because that is fast."""

_OPTION = re.compile(r"-[A-Za-z]|--[\w.-]+", re.ASCII)
_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]+)=", re.ASCII)
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# Without an end line (a truncated log) the key ends at the first character that no key contains.
_PEM = re.compile(rf"{_BEGIN}(?:[^-]*(?:-[^-]+)*{_END}|[A-Za-z0-9+/=\s\\]*)")
_URL = re.compile(r"(?<=://)[^\s'\"`<>\\]+")
_URL_ALONE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PORT = re.compile(r"[0-9]{1,5}[/?#]")
_NOT_SECRET_USERS = frozenset({"git", "***", ""})


def masked(text: str, known: Collection[str] = ()) -> str:
    """Return a script, log or command line without secrets. Masking the result again changes nothing.

    The time is linear in the length of the text. `known` are secret values of any shape. They are also masked in the
    spellings of shell, JSON and URLs, unless they have fewer than four characters.
    """
    text = _known_masked(text, known)
    for _ in range(_MOST_PASSES):
        before, text = text, _masked_once(text)
        if text == before:
            break
    return text


def _masked_once(text: str) -> str:
    text = _PEM.sub(MASK, text)
    if any(part in text for part in _SHAPE_PARTS):
        text = _SHAPE.sub(lambda match: match[0] if match["vague"] and not _DIGIT.search(match[0]) else MASK, text)
    for pattern in commands_in(text):
        text = _replaced(text, spans_of_command(text, pattern))
    text = _replaced(text, spans_of_names(text))
    return _URL.sub(lambda match: _without_logins(match[0], _is_web(match.string, match.start() - 3)), text)


def masked_words(argv: Sequence[str]) -> list[str]:
    """Return a command line without secrets: `--database postgresql://u:***@h/db`, `--some-token ***`."""
    words: list[str] = []
    option = ""
    for given in argv:
        word = _without_address(option, given)
        is_option = bool(_OPTION.fullmatch(word))
        words.append(_masked_word(word) if is_option or not option else _masked_value(option, word))
        option = word if is_option else ""
    return words


def _without_address(option: str, word: str) -> str:
    """Return a word of a command line with the URL of a message service masked. `option` is the word before it."""
    if option == ADDRESS_OPTION:
        return masked_address(word)
    name, equals, url = word.partition("=")
    return f"{name}={masked_address(url)}" if name == ADDRESS_OPTION and equals else word


def masked_address(url: str) -> str:
    """Return the scheme of a message service's URL, and a mask: a token may be anywhere behind it."""
    scheme, colon, _ = url.partition(":")
    return f"{scheme}://{MASK}" if colon and scheme.isascii() and scheme.isalnum() else MASK


def masked_tree(value: object, name: str = "") -> Any:
    """Return JSON-like data without secrets. A key is the name of everything below it."""
    if isinstance(value, str):
        return _masked_value(name, value)
    if isinstance(value, Mapping):
        # `when` is a condition on jobs, not a value.
        return {key: masked_tree(part, _below(name, str(key))) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        sequence = list if isinstance(value, list) else tuple
        if not is_secrets_name(name) and all(isinstance(part, str) for part in value):
            return sequence(masked_words(value))
        return sequence(masked_tree(part, name) for part in value)
    return value


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets in an environment: values of secret names, and logins and tokens in other values."""
    secrets = {value for name, value in environment.items() if holds_secret(name, value)}
    return frozenset(secrets.union(*map(hidden_values, environment.values())))


def hidden_values(text: str) -> frozenset[str]:
    """Return the values that a script or a variable gives to secret names and in URLs, without their quotes."""
    values: set[str] = set()
    for start, end in spans_of_names(text):
        values |= _meanings(text[start:end])
    for url in _URL.finditer(text):
        for place in url[0].split("://"):
            values |= set(_login(place, _is_web(text, url.start() - 3))[1])
    return frozenset(value for value in values | {unquote(value) for value in values} if not is_plain(value))


def _meanings(word: str) -> set[str]:
    """Return the values that a shell reads from a word, outside and inside of single quotes."""
    meanings = {word}
    for form in (word, word.replace("'\\''", "'")):
        with contextlib.suppress(ValueError):  # a quote that nothing closes
            meanings |= set(shlex.split(form)[:1])
    return {meaning for meaning in meanings if "'" not in meaning or meaning == word}


def _below(name: str, key: str) -> str:
    return name if is_secrets_name(name) and key != "when" else key


def _masked_value(name: str, value: str) -> str:
    """Mask the whole value if its name is a secret's, else the secrets in it."""
    return MASK if holds_secret(name, value) else _masked_word(value)


@functools.lru_cache(maxsize=1024)  # the jobs of a run have the same words
def _masked_word(word: str) -> str:
    """Mask one word of a command line. Everything after `NAME=` is the value."""
    start = 0
    while assigned := _ASSIGNED.match(word, start):
        start = assigned.end()
        if holds_secret(assigned[1], word[start:]):
            return masked(word[:start] + MASK)
    alone = _URL_ALONE.match(word, start)  # the URL ends with the word, whatever characters its password contains
    if alone:
        word = word[: alone.end()] + _without_logins(word[alone.end() :], _is_web(word, alone.end() - 3))
    return masked(word)


def without_known(value: object, known: Collection[str]) -> Any:
    """Return JSON-like data in which only the known values are masked."""
    if not known:
        return value
    if isinstance(value, str):
        return _known_masked(value, known)
    if isinstance(value, Mapping):
        return {key: without_known(part, known) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_known(part, known) for part in value]
    return value


def _known_masked(text: str, known: Collection[str]) -> str:
    for value in sorted(_spellings(known), key=len, reverse=True):
        if value not in text:
            continue
        if len(value) >= _SHORTEST_ANYWHERE or not value.isalnum():
            text = text.replace(value, MASK)
        else:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", MASK, text)
    return text


def _spellings(known: Collection[str]) -> set[str]:
    spellings: set[str] = set()
    for value in known:
        if len(value) >= _SHORTEST_KNOWN and value.strip("*"):
            in_shell = shlex.quote(value)
            spellings |= {value, in_shell, in_shell.replace("'", "'\\''"), quote(value, ""), quote_plus(value)}
            spellings |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    return spellings


def _is_web(text: str, end: int) -> bool:
    """Return whether the URL scheme that ends here is HTTP. A user name in such a URL is often a token."""
    return text[max(0, end - 5) : end].lower().endswith(("http", "https"))


def _without_logins(places: str, is_web: bool) -> str:
    """Mask the logins behind a `://`. The text may contain further URLs."""
    return "://".join(_login(place, is_web)[0] for place in places.split("://"))


def _login(place: str, is_web: bool) -> tuple[str, tuple[str, ...]]:
    """Return the place without the secrets of its login, and the secrets. Ports and image digests are not passwords."""
    user, colon, rest = place.partition(":")
    password, at, host = rest.rpartition("@")
    if colon and at and not any(c in user for c in "/?#") and not user.startswith("["):
        if _PORT.match(password) or host.startswith("sha256:"):
            return place, ()
        shown, secrets = user, tuple[str, ...]()
        if is_web and looks_random(user):
            shown, secrets = MASK, (user,)
        if not password.strip("*"):
            return f"{shown}:{password}@{host}", secrets
        return f"{shown}:{MASK}@{host}", (*secrets, password)
    authority = re.split("[/?#]", place, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if not at or ":" in user or user in _NOT_SECRET_USERS or not (is_web or looks_random(user)):
        return place, ()
    return f"{MASK}{place[len(user) :]}", (user,)


def _replaced(text: str, spans: Iterator[Span]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in spans:
        parts += [text[done:start], MASK]
        done = end
    return "".join([*parts, text[done:]])
