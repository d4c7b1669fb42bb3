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
    holds_secret,
    is_plain,
    is_secrets_name,
    looks_random,
    secret_variables,
)
from orchestrator.secret_spans import Span, commands_in, spans_of_command, spans_of_names

MASK = "***"

_MOST_PASSES = 4
"""A mask may close a quote that was left open, so that what is behind it reads as another value."""
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
_OPTION = re.compile(r"-[A-Za-z]|--[\w.-]+", re.ASCII)
_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]+)=", re.ASCII)
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# Without its end (a log that was cut) as far as its letters go.
_PEM = re.compile(rf"{_BEGIN}(?:[^-]*(?:-[^-]+)*{_END}|[A-Za-z0-9+/=\s\\]*)")
_URL = re.compile(r"(?<=://)[^\s'\"`<>\\]+")
_URL_ALONE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_DIGIT = re.compile(r"[0-9]")
_PORT = re.compile(r"[0-9]{1,5}[/?#]")
_NOT_SECRET_USERS = frozenset({"git", "***", ""})


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
    for _ in range(_MOST_PASSES):
        before, text = text, _masked_once(text)
        if text == before:
            break
    return text


def _masked_once(text: str) -> str:
    text = _PEM.sub(MASK, text)
    if _has(text, _SHAPES_HAVE):
        text = _SHAPE.sub(lambda found: found[0] if found["vague"] and not _DIGIT.search(found[0]) else MASK, text)
    for pattern in commands_in(text):
        text = _replaced(text, spans_of_command(text, pattern))
    text = _replaced(text, spans_of_names(text))
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
    for start, end in spans_of_names(text):
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


def _replaced(text: str, spans: Iterator[Span]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in spans:
        parts += [text[done:start], MASK]
        done = end
    return "".join([*parts, text[done:]])
