"""Patterns of output lines: regular expressions with `{name}` for a number.

The engine stops if a line takes too long, because a bundle of another user contains patterns, too.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

import regex

from orchestrator.text import ESCAPE_SEQUENCE

LONGEST_LINE = 10_000
"""Characters of a line that patterns see."""

SLOWEST_S = 1.0
"""Time in seconds after which the search of a line is stopped."""

_SLOW_S, _MOST_SLOW_S = 0.02, 30.0
"""Time in seconds of the search of a slow line, and of all slow lines together."""

_CAPTURE = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
_NUMBER = (
    r"(?<![\d.])(?P<{name}>[-+]?(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf))"
    r"(?!\d|\.\d|,\d{{3}})"
)


class TooSlow(Exception):
    """The search of a line was stopped."""


@dataclass(frozen=True)
class Pattern:
    """Pattern of a line. `names` are its captures; each line that matches contains `literal`."""

    text: str
    names: tuple[str, ...]
    literal: str
    _compiled: regex.Pattern[str]

    def find(self, line: str) -> dict[str, float] | None:
        """Return the numbers of the first match in a line; None without a match. TooSlow if it takes too long."""
        try:
            match = self._compiled.search(line, timeout=SLOWEST_S)
        except TimeoutError:
            raise TooSlow from None
        return None if match is None else {name: number(match[name]) for name in self.names}


class PatternSearch:
    """Search of a pattern in the lines of an output. It stops for good at a line that takes too long: `problem`."""

    def __init__(self, name: str, pattern: Pattern) -> None:
        self.pattern = pattern
        self.problem: str | None = None
        self.stopped_at = 0
        self._name, self._slow_s = name, 0.0

    def find(self, line: int, text: str) -> dict[str, float] | None:
        """Return the numbers of the first match in a line; None without a match."""
        if self.problem is not None:
            return None
        if self.pattern.literal not in text:
            return None
        begin = time.perf_counter()
        try:
            numbers = self.pattern.find(text)
        except TooSlow:
            self.problem = f"{self._name}: took more than {SLOWEST_S:g} s for line {line}, and was stopped"
            self.stopped_at = line
            return None
        if (took_s := time.perf_counter() - begin) > _SLOW_S:
            self._slow_s += took_s
            if self._slow_s > _MOST_SLOW_S:
                self.problem = f"{self._name}: took more than {_MOST_SLOW_S:g} s for slow lines, and was stopped"
        return numbers


def pattern_of(text: str, *, of_numbers: bool = True) -> Pattern:
    """Compile a pattern. ValueError if it is not a regular expression, or has a capture twice or none.

    Without `of_numbers` it is a plain regular expression.
    """
    names = _CAPTURE.findall(text) if of_numbers else []
    if of_numbers and not names:
        raise ValueError("has no {name} for the number to read")
    if len(set(names)) != len(names):
        raise ValueError("has a name twice")
    try:
        whole = _CAPTURE.sub(lambda match: _NUMBER.format(name=match[1]), text) if of_numbers else text
        compiled = regex.compile(whole)
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return Pattern(text, tuple(names), _literal(_CAPTURE.sub("$", text) if of_numbers else text), compiled)


def _literal(text: str) -> str:
    """Return the longest text that each match of a regular expression contains; none if groups or choices decide."""
    if re.search(r"[(|\[]|\\(?![dDwWsSbB\W])", text):
        return ""
    required = re.sub(r"(?:\\.|[^\\])(?:[*?]|\{[^}]*\}?)", "$", text, flags=re.DOTALL)
    return max(re.split(r"\\.|[.^$+*?{}\\]", required, flags=re.DOTALL), key=len)


def number(text: str) -> float:
    """Return the number that a program printed, as 12, 1,234.5, .5, 2e-5 or nan. ValueError for other text."""
    plain = text.replace(",", "")
    if "_" in plain or plain.strip() != plain:
        raise ValueError(f"not a number: {text!r}")
    return float(plain)


def line_text(raw: bytes) -> str:
    """Return a line as patterns see it: without colours, shortened, and the last state of a progress bar."""
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    text = text[:LONGEST_LINE]
    return ESCAPE_SEQUENCE.sub("", text) if "\x1b" in text else text


def nearest_line(text: str, lines: Iterable[tuple[int, str]]) -> tuple[int, str] | None:
    """Return the line, with its number, that has most in common with the words of a pattern; None without a word."""
    words = set(re.findall(r"[A-Za-z]{3,}", _CAPTURE.sub(" ", text)))
    best, most = None, 0.0
    for place, line in lines:
        common = len(words & set(re.findall(r"[A-Za-z]{3,}", line))) / max(len(words), 1)
        score = common + difflib.SequenceMatcher(None, text, line[:200], autojunk=False).quick_ratio() / 100
        if common and score > most:
            best, most = (place, line), score
    return best
