"""Finding the few lines that matter in a log of any size.

A long word is searched for by `bytes.find`, which looks at one byte in ten or twenty of the text; only where it
stands is a pattern tried. The lines themselves are never split off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

NUMBER = rb"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][-+]?[0-9]{1,9})?|nan|inf)"
"""A number as Python prints it, of bounded length."""

WIDTH = 2000
"""Bytes of a line that are looked at on either side of the word that was found."""


_WINDOW_BYTES = 1024 * 1024
_SAMPLE_BYTES = 16 * 1024
_BYTES_PER_BAR = 250
"""With more bars than that it is quicker to search for words."""


def occurrences(log: bytes, word: bytes, start: int, end: int) -> Iterator[int]:
    """Where the word stands in that part of the log."""
    at = log.find(word, start, end)
    while at >= 0:
        yield at
        at = log.find(word, at + len(word), end)


def line_end(log: bytes, at: int, end: int) -> int:
    """Where the line ends that `at` is in, `WIDTH` bytes further at most."""
    end = min(end, at + WIDTH)
    newline = log.find(b"\n", at, end)
    return end if newline < 0 else newline


def last_match(log: bytes, word: bytes, pattern: re.Pattern[bytes], start: int, end: int) -> re.Match[bytes] | None:
    """The last place where the pattern, which begins with the word, stands wholly in that part of the log."""
    at = log.find(word, start, end)  # backwards it takes longer, and mostly there is none
    at = log.rfind(word, at, end) if at >= 0 else -1
    while at >= 0:
        match = pattern.match(log, at, line_end(log, at, end))
        if match is not None:
            return match
        at = log.rfind(word, start, at)
    return None


def telling(log: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """A part of a log that begins with a line, window by window, without the lines that have no bar in them where that
    is most of them: each a text, and where in it to look.

    A single character is found fastest of all, and what Megatron-LM reports again and again has bars.
    """
    while start < end:
        stop = log.find(b"\n", min(end, start + _WINDOW_BYTES), end) + 1 or end
        few = _barred_lines(log, start, stop)
        yield (log, start, stop) if few is None else (few, 0, len(few))
        start = stop


def _barred_lines(log: bytes, start: int, end: int) -> bytes | None:
    """The lines with a bar; None where there are many."""
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
