"""Masking of secrets in texts: for the ledger, for reports, exports and bundles.

A secret is recognized by its name (`HF_TOKEN`, `--api-key`), by its own shape (a token of a known service, a key in
PEM, a password in a URL), or by its value where the caller knows it. Masking errs towards hiding too much, but numbers,
switches and paths are no secrets under any name.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from orchestrator.secret_names import (
    HINTS,
    holds_secret,
    is_code,
    is_password_name,
    is_plain,
    is_secrets_name,
    is_sometimes_secret,
    looks_chosen,
    looks_random,
    secret_variables,
)

MASK = "***"

_SHORTEST_KNOWN = 4
"""Characters; a shorter value occurs everywhere by chance."""
_SHORTEST_ANYWHERE = 8
"""Characters; a known value that is shorter is masked only where it is a whole word."""

# Each takes in all that it has looked at: linear in any text. Of the last two only what has a digit is one.
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
_SHAPES_HAVE = (
    *(
        "hf_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "glptt-",
        "gldt-",
        "glrt-",
        "AKIA",
        "ASIA",
        "nvapi-",
        "xox",
        "xapp-",
        "eyJ",
        "sk-",
        "earer ",
        "AIza",
    ),
    *("ya29.", "npm_", "pypi-AgE", "dckr_pat_", "k_live_", "k_test_", "gsk_", "r8_", "hvs.", "hvb.", "hvr.", "SG."),
    *(
        "_v1_",
        "lin_api_",
        "tskey-",
        "ATATT3",
        "AGE-SECRET-KEY-1",
        ":AA",
        "hooks.slack",
        "/webhooks/",
        "$1$",
        "$2",
        "$5$",
    ),
    *("$6$", "$y$"),
)
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# Without its end (a log that was cut) as far as its letters go.
_PEM = re.compile(rf"{_BEGIN}(?:[^-]*(?:-[^-]+)*{_END}|[A-Za-z0-9+/=\s\\]*)")
_URL = re.compile(r"(?<=://)[^\s'\"`<>\\]+")
_URL_ALONE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_DIGIT = re.compile(r"[0-9]")
_PORT = re.compile(r"[0-9]{1,5}[/?#]")
_NOT_SECRET_USERS = frozenset({"git", "***", ""})

_WORD = r"""(?P<value>(?:'[^'\n]*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[^\s'"])+)"""
# Commands and files that give a secret without a sign between it and its name, or without a name.
_COMMANDS = tuple(
    (hints, re.compile(pattern, re.ASCII | re.MULTILINE))
    for hints, pattern in {
        (
            "setenv",
            "ENV ",
            "set -",
        ): rf"(?<![\w.-])(?:setenv|ENV|set[ \t]+-[A-Za-z]+)[ \t]+(?P<name>[\w.-]+)[ \t]+{_WORD}",
        ("login",): rf"(?<![\w-])login[ \t]+\S+[ \t\r\n]+password[ \t]+{_WORD}",
        (":5432:", ":*:"): r"^[\w.*-]{1,253}:(?:5432|\*):[\w*-]{1,64}:[\w.*-]{1,64}:(?P<value>[^\s:]+)$",
        ("-u", "--user"): rf"(?<![\w-])(?P<user>-u|--user|--proxy-user)[ \t=]+['\"]?\w[\w.@-]{{0,64}}:{_WORD}",
        ("sshpass",): rf"(?<![\w-])sshpass[ \t]+-p[ \t]*{_WORD}",
        ("login ",): rf"(?<![\w-])login [^\n]{{0,200}}?(?<=[ \t])-p[ \t]+{_WORD}",
        ("mysql",): rf"(?<![\w-])mysql(?:dump|admin)?[ \t][^\n]{{0,200}}?(?<=[ \t])-p(?=[^\s-]){_WORD}",
        ("redis-cli",): rf"(?<![\w-])redis-cli[ \t][^\n]{{0,200}}?(?<=[ \t])-a[ \t]+{_WORD}",
        ("wandb",): r"(?<![\w-])wandb[ \t]+login[ \t]+(?P<value>[\w-]{30,})",
        ("value",): r"(?<![\w-])(?:name|key)[\"']?[ \t]*[:=][ \t]*[\"']?(?P<name>[\w.-]+)[\"']?,?\s*"
        rf"[\"']?value[\"']?[ \t]*[:=][ \t]*{_WORD}",
        ("pass", "Pass", "PASS"): r"(?<![\w.-])[\w.-]*(?i:passw(?:or)?d|passphrase|passcode)[ \t]+(?:is[ \t]+)?"
        r"(?P<chosen>(?P<value>[^\s'\",;]+))",
    }.items()
)

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
# What stands between a name and its value: `NAME=`, `"name": "value"`, `env["NAME"] = "value"`, `name = value`,
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
_OPTION = re.compile(r"-[A-Za-z]|--[\w.-]+", re.ASCII)
_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]+)=", re.ASCII)
_SCHEME = re.compile(r"(?:Bearer|Basic|token)[ \t]+", re.IGNORECASE)
_YAML_TAG = re.compile(r"![\w/.-]*[ \t]+")
_HEADERS_VALUE = re.compile(r"[^\n'\"]*")
# What stands between quotes: as JSON and Python write it, and as a shell, which is told of a ' in four ways.
_WRITTEN = {
    '"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL),
    "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*", re.DOTALL),
}
_IN_SHELL = {'"': _WRITTEN['"'], "'": re.compile(r"""[^']*(?:'"'"'[^']*|'\\''"'\\''"'\\''[^']*)*""")}
_IN_ESCAPED = re.compile(r"[^\"'\\\n]*")
# A shell's word that begins with a quote; first as it stands in a script that is itself in single quotes.
_QUOTED = re.compile(
    r"""(?:'\\''[^']*(?:'\\''"'\\''"'\\''[^']*)*'\\''"""
    r"""|'[^']*'|"[^"\\]*(?:\\.[^"\\]*)*"|\\.?|[^\s'"\\]+)+""",
    re.DOTALL,
)
_QUOTED_IN_LINE = re.compile(r"""'[^'\n]*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*\"""")
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
"""Names, each with = behind it, that a quoted word begins with: `'--env=NAME=value'` has two."""


def looks_secret(name: str, value: str) -> bool:
    """Return whether nobody should see the value of a variable, a field or an option."""
    return holds_secret(name, value) or masked(value) != value


def masked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without secrets; of a URL only the login is masked."""
    return {name: _masked_value(name, value) for name, value in environment.items()}


def masked(text: str, known: Collection[str] = ()) -> str:
    """Return a script, a log or a command line without secrets; masking it again changes nothing.

    The time is linear in the length of the text. `known` are values that are secret whatever they look like: they are
    masked also as a shell, JSON or a URL writes them, unless they have fewer than four characters.
    """
    text = _known_masked(text, known)
    text = _PEM.sub(MASK, text)
    if _has(text, _SHAPES_HAVE):
        text = _SHAPE.sub(lambda found: found[0] if found["vague"] and not _DIGIT.search(found[0]) else MASK, text)
    lowered = _lowered(text)
    for hints, pattern in _COMMANDS:
        if _has(text, hints):
            text = _replaced(text, _spans_of_command(text, pattern))
    if _has(lowered, HINTS):
        text = _replaced(text, _spans_of_names(text))
    return _URL.sub(lambda found: _without_logins(found[0], _is_web(found.string, found.start() - 3)), text)


def masked_words(argv: Sequence[str], known: Collection[str] = ()) -> list[str]:
    """Return a command line without secrets: `--database postgresql://u:***@h/db`, `--some-token ***`."""
    words: list[str] = []
    option = ""
    for word in argv:
        is_option = bool(_OPTION.fullmatch(word))
        words.append(_masked_word(word, known) if is_option or not option else _masked_value(option, word, known))
        option = word if is_option else ""
    return words


def masked_tree(value: Any, name: str = "", known: Collection[str] = ()) -> Any:
    """Return JSON-like data without secrets; a key is the name of everything below it."""
    if isinstance(value, str):
        return _masked_value(name, value, known)
    if isinstance(value, Mapping):
        # `when` is a condition on jobs, whatever the variable is called.
        return {key: masked_tree(part, _below(name, str(key)), known) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        made = list if isinstance(value, list) else tuple
        if not is_secrets_name(name) and all(isinstance(part, str) for part in value):
            return made(masked_words(value, known))
        return made(masked_tree(part, name, known) for part in value)
    return value


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets that an environment holds: values of secret names, and logins and tokens in other values."""
    found = set(secret_variables(environment).values())
    for value in environment.values():
        found |= hidden_values(value)
    return frozenset(found)


def hidden_values(text: str) -> frozenset[str]:
    """Return the values that a script or a variable gives to secret names and in URLs, without their quotes."""
    found: set[str] = set()
    if _has(_lowered(text), HINTS):
        for start, end in _spans_of_names(text):
            found |= _meanings(text[start:end])
    for url in _URL.finditer(text):
        for place in url[0].split("://"):
            found |= set(_login(place, _is_web(text, url.start() - 3))[1])
    return frozenset(value for value in found | {unquote(value) for value in found} if not is_plain(value))


def _meanings(word: str) -> set[str]:
    """Return what a shell makes of a word, read as it stands and as a part of a text in single quotes."""
    meanings = {word}
    for form in (word, word.replace("'\\''", "'")):
        with contextlib.suppress(ValueError):  # a quote that nothing closes
            meanings |= set(shlex.split(form)[:1])
    return {meaning for meaning in meanings if "'" not in meaning or meaning == word}


def _below(name: str, key: str) -> str:
    return name if is_secrets_name(name) and key != "when" else key


def _masked_value(name: str, value: str, known: Collection[str] = ()) -> str:
    """Mask all of it where its name is a secret's, else the secrets in it."""
    return MASK if holds_secret(name, value) else _masked_word(value, known)


def _masked_word(word: str, known: Collection[str] = ()) -> str:
    """Mask one word of a command line: behind `NAME=` everything is the value, whatever a shell makes of it."""
    start = 0
    while found := _ASSIGNED.match(word, start):
        start = found.end()
        if holds_secret(found[1], word[start:]):
            return masked(word[:start] + MASK, known)
    alone = _URL_ALONE.match(word, start)  # then its end is known, whatever its password has
    if alone:
        word = word[: alone.end()] + _without_logins(word[alone.end() :], _is_web(word, alone.end() - 3))
    return masked(word, known)


def _has(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)


def _lowered(text: str) -> str:
    """Return the text in lower case, each character in its place."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if c.isascii() else c for c in text)


def without_known(value: Any, known: Collection[str]) -> Any:
    """Return JSON-like data in which only these values are masked, whatever they are called."""
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
    found: set[str] = set()
    for value in known:
        if len(value) >= _SHORTEST_KNOWN and value.strip("*"):
            in_shell = shlex.quote(value)
            found |= {value, in_shell, in_shell.replace("'", "'\\''"), quote(value, ""), quote_plus(value)}
            found |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    return found


def _is_web(text: str, end: int) -> bool:
    """Return whether the URL whose scheme ends here is one of HTTP: a user name in it is often a token."""
    return text[max(0, end - 5) : end].lower().endswith(("http", "https"))


def _without_logins(places: str, is_web: bool) -> str:
    """Mask what stands behind the first `://`; there may be others in it."""
    return "://".join(_login(place, is_web)[0] for place in places.split("://"))


def _login(place: str, is_web: bool) -> tuple[str, tuple[str, ...]]:
    """Return the place without the secrets of its login, and these. A port, and an image's digest, are no passwords."""
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


def _replaced(text: str, spans: Iterator[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in spans:
        parts += [text[done:start], MASK]
        done = end
    return "".join([*parts, text[done:]])


def _spans_of_command(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield where the values of one kind of command or file begin and end."""
    for found in pattern.finditer(text):
        groups = found.groupdict()
        start, end = found.span("value")
        value = _unquoted(found["value"])
        if is_plain(value) or value.startswith(("$(", "`", "***")):
            continue
        if "name" in groups and not holds_secret(found["name"], value):
            continue
        if ("chosen" in groups and not looks_chosen(value)) or is_code(value):
            continue
        if "user" in groups:
            is_curls = text.rfind("curl", max(0, start - 200), start) >= 0
            end -= value != found["value"][: len(value)] or found["value"][-1:] in "'\""
            if not (is_curls or looks_chosen(value)):
                continue
        yield start, end


def _spans_of_names(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the values begin and end that are given to names of secrets; one walk from name to name."""
    done = 0  # no name begins, and no value, before this
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


def _names(text: str) -> Iterator[tuple[int, int]]:
    """Yield each name that has a hint in it. `str.find` for every hint is faster than a pattern for all names."""
    lowered = _lowered(text)
    following = {hint: lowered.find(hint) for hint in HINTS}
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
    """Return the word before a name, with a blank or a dash between: the `API` of `API key`."""
    found = re.search(r"([A-Za-z]{1,20})[ -]$", text[max(0, start - 24) : start])
    return found[1] if found else ""


def _value(text: str, kind: str, name: str, start: int, at: int, done: int) -> tuple[int, int]:
    """Return where the value begins and ends that the name at `start` is given at `at`; an empty one for none."""
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
    """Return the quote that a word such as '--env=NAME=two words' began with, where it has only names before this."""
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


def _spaced(text: str, name: str, start: int, at: int) -> tuple[int, int]:
    """Return the value of `name = value`, `name -> value` or of the next cell of a table."""
    if "|" in text[at - 3 : at]:
        return _stripped(text, at, _end(_CELL, text, at))
    if text[at : at + 1] in ("'", '"'):
        return at, _end(_QUOTED_IN_LINE, text, at)
    if is_code(text[at : at + 200].partition("\n")[0]):
        return at, at
    line_before = text[max(0, start - 16) : start]
    if is_password_name(name) and not line_before[line_before.rfind("\n") + 1 :].strip():
        return _stripped(text, at, _end(_REST_OF_LINE, text, at))
    return _closed(text, at, _end(_ONE_WORD, text, at))


def _after_colon(text: str, name: str, start: int, at: int) -> tuple[int, int]:
    """Return the value of a header or of a YAML key. Prose after a colon is no value."""
    at += len(text[at : at + 9]) - len(text[at : at + 9].lstrip(" \t"))
    if tag := _YAML_TAG.match(text, at):
        at = tag.end()
    scheme = _SCHEME.match(text, at)
    if scheme or "-" in name or name.lower() == "cookie":
        at = scheme.end() if scheme else at
        return at, _end(_HEADERS_VALUE, text, at)
    if text[at : at + 1] in ("'", '"'):
        return at, _end(_QUOTED_IN_LINE, text, at)
    end = _end(_ONE_WORD, text, at)
    word = text[at:end]
    if is_code(word):
        return at, at
    is_alone = bool(_ENDS_VALUE.match(text, end))
    is_in_prose = text[max(0, start - 2) : start].strip(" \t")[-1:].isalnum()
    if looks_chosen(word) or (is_alone and (is_password_name(name) or not is_in_prose)):
        return _closed(text, at, end)
    return at, at


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without blanks at its end."""
    return start, start + len(text[start:end].rstrip())


def _closed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without the brackets and commas at its end, which belong to the text around it."""
    closing = _CLOSING.search(text, max(start, end - 8), end)
    return start, closing.start() if closing and closing.start() > start else end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return where what stands at `start` ends; 0 where it is not of that kind."""
    found = pattern.match(text, start)
    return found.end() if found else 0


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
