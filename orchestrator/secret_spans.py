"""Places of secrets in a text: values that are given to names of secrets, in any of the usual notations.

Every function takes a time in proportion to the length of its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.secret_names import (
    HINTS,
    holds_secret,
    is_code,
    is_password_name,
    is_plain,
    is_secrets_name,
    is_sometimes_secret,
    looks_chosen,
)

Span = tuple[int, int]
"""Where a value begins and ends."""

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
"""Names, each with = behind it, that a quoted word begins with: `'--env=NAME=value'` has two."""


def commands_in(text: str) -> Iterator[re.Pattern[str]]:
    """Yield the patterns of the commands and files that the text may contain."""
    return (pattern for hints, pattern in _COMMANDS if any(hint in text for hint in hints))


def spans_of_command(text: str, pattern: re.Pattern[str]) -> Iterator[Span]:
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


def spans_of_names(text: str) -> Iterator[Span]:
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


def _names(text: str) -> Iterator[Span]:
    """Yield each name that has a hint in it. `str.find` for every hint is faster than a pattern for all names."""
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
    """Return the word before a name, with a blank or a dash between: the `API` of `API key`."""
    found = re.search(r"([A-Za-z]{1,20})[ -]$", text[max(0, start - 24) : start])
    return found[1] if found else ""


def _value(text: str, kind: str, name: str, start: int, at: int, done: int) -> Span:
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
    """Return the value of a header or of a YAML key. Prose after a colon is no value."""
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
    if is_code(word) or "***" in word:  # a part of it is masked already
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
    """Return where what stands at `start` ends; 0 where it is not of that kind."""
    found = pattern.match(text, start)
    return found.end() if found else 0


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def _lowered(text: str) -> str:
    """Return the text in lower case, each character in its place."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if c.isascii() else c for c in text)
