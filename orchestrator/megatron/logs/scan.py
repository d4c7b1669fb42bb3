"""Search for the few relevant lines of a large log, and parser of the rank labels in front of lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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


BYTES_BEFORE, BYTES_AFTER = 1024, 2048
"""Longest parts of a line before and after the token of a search."""

_TERMINAL = re.compile(r"\x1b(?:\[[0-9;:?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
_SRUN = re.compile(r"(?:P[0-9]{1,9} )? *([0-9]{1,9}): ")
_MPI = re.compile(r"\[(?:[\w.-]{1,100}@)?[0-9]{1,9},([0-9]{1,9})\]<std(?:out|err|diag)>:? ?")
_TEE = re.compile(r"\[[a-z_]{1,20}[0-9]{1,9}\]: ?")
_TORCH = re.compile(r"\[rank([0-9]{1,9})\]: ?")
_WITHIN = re.compile(
    r"\bRank ([0-9]{1,9})\]|error: [\w.-]{1,64}: task ([0-9]{1,9}): |process rank ([0-9]{1,9}) with PID|"
    r"was aborted on rank ([0-9]{1,9})"
)
_NODE = re.compile(r"slurmstepd-([\w.-]{1,64}): |srun: error: ([\w.-]{1,64}): tasks? [0-9]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a line: the task number of srun's label, and the node name that slurmstepd or srun prints.

    slurmstepd prints its node name only in some builds of Slurm; in the others its prefix is `slurmstepd: `.
    """

    task: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its labels, and the rank and origin that the labels name.

    `is_task`: the rank is only srun's number of a task. That is a node's number if a launcher starts the ranks.
    """

    text: str
    rank: int | None
    is_task: bool
    origin: Origin = Origin()


def parse_line(line: bytes) -> LogLine:
    """Parse one line of any bytes. Remove terminal escape sequences, and replace bytes that are not UTF-8 by U+FFFD."""
    text = line.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _TERMINAL.sub("", text)
    text = text.rstrip()
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    task = _SRUN.match(text)
    text = text[task.end() :] if task else text
    process = _MPI.match(text)
    text = text[process.end() :] if process else text
    torch = _TORCH.match(text)
    tee = None if torch else _TEE.match(text)
    text = text[tee.end() :] if tee else text
    torch = torch or _TORCH.match(text)
    text = text[torch.end() :] if torch else text
    within = None if torch else _WITHIN.search(text)
    node = _NODE.match(text)
    origin = Origin(int(task[1]) if task else None, (node[1] or node[2]) if node else None)
    if torch or within or process:
        label = torch or within or process
        assert label is not None
        return LogLine(text, int(next(group for group in label.groups() if group)), is_task=False, origin=origin)
    return LogLine(text, origin.task, is_task=task is not None, origin=origin)


def lines_with(part: bytes, token: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each line that contains the token."""
    at = part.find(token)
    while at >= 0:
        start, end = line_around(part, at)
        yield start, end
        at = part.find(token, max(end, at + len(token)))


def line_around(part: bytes, at: int) -> tuple[int, int]:
    r"""Return start and end of the line at this position, or of its part near it. Progress bars end lines by \r."""
    low, high = max(0, at - BYTES_BEFORE), min(len(part), at + BYTES_AFTER)
    start = max(part.rfind(b"\n", low, at), part.rfind(b"\r", low, at)) + 1 or low
    ends = [end for end in (part.find(b"\n", at, high), part.find(b"\r", at, high)) if end >= 0]
    return start, min(ends, default=high)
