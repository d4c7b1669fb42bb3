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

from orchestrator.secret_patterns import (
    Span,
    commands_in,
    holds_secret,
    is_plain,
    is_secrets_name,
    looks_random,
    spans_of_command,
    spans_of_names,
)

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
_DIGIT = re.compile(r"[0-9]")
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
