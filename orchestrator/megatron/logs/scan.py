"""Search for the few relevant lines of a large log."""

from __future__ import annotations

import re
from collections.abc import Iterator

NUMBER = rb"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][-+]?[0-9]{1,9})?|nan|inf)"
"""A number as Python prints it, of bounded length."""

WIDTH = 2000
"""Bytes of a line that are searched before and after a token."""


_WINDOW_BYTES = 1024 * 1024
_SAMPLE_BYTES = 16 * 1024
_BYTES_PER_BAR = 250
"""With more bars than one in this number of bytes it is faster to search for tokens."""


def occurrences(log: bytes, token: bytes, start: int, end: int) -> Iterator[int]:
    """Yield the positions of a token in a part of the log."""
    at = log.find(token, start, end)
    while at >= 0:
        yield at
        at = log.find(token, at + len(token), end)


def line_end(log: bytes, at: int, end: int) -> int:
    """Return the end of the line that contains `at`, at most `WIDTH` bytes after it."""
    end = min(end, at + WIDTH)
    newline = log.find(b"\n", at, end)
    return end if newline < 0 else newline


def matches(log: bytes, token: bytes, pattern: re.Pattern[bytes], start: int, end: int) -> Iterator[re.Match[bytes]]:
    """Yield each match of a pattern, which begins with the token, within a line of a part of the log."""
    for at in occurrences(log, token, start, end):
        match = pattern.match(log, at, line_end(log, at, end))
        if match is not None:
            yield match


def last_match(log: bytes, token: bytes, pattern: re.Pattern[bytes], start: int, end: int) -> re.Match[bytes] | None:
    """Return the last match of a pattern, which begins with the token, within a line of a part of the log."""
    at = log.find(token, start, end)  # a search backwards is slower, and usually there is no match
    at = log.rfind(token, at, end) if at >= 0 else -1
    while at >= 0:
        match = pattern.match(log, at, line_end(log, at, end))
        if match is not None:
            return match
        at = log.rfind(token, start, at)
    return None


def candidate_lines(log: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield windows of a part of a log as (text, start, end). The part begins at the beginning of a line.

    If few lines of a window contain a bar, the window has only those lines: all lines that Megatron-LM repeats contain
    bars, and the search for a single character is the fastest.
    """
    while start < end:
        stop = log.find(b"\n", min(end, start + _WINDOW_BYTES), end) + 1 or end
        few = _barred_lines(log, start, stop)
        yield (log, start, stop) if few is None else (few, 0, len(few))
        start = stop


def _barred_lines(log: bytes, start: int, end: int) -> bytes | None:
    """Return the lines with a bar; None if there are many."""
    if log.count(b"|", start, min(end, start + _SAMPLE_BYTES)) > _SAMPLE_BYTES // _BYTES_PER_BAR:
        return None
    lines: list[bytes] = []
    most = (end - start) // _BYTES_PER_BAR
    at = log.find(b"|", start, end)
    while at >= 0:
        if len(lines) > most:
            return None
        stop = log.find(b"\n", at, end) + 1 or end
        lines.append(log[log.rfind(b"\n", start, at) + 1 or start : stop])
        at = log.find(b"|", stop, end)
    return b"".join(lines)
