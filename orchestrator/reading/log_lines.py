"""Lines of a log by a text that they contain, and parser of the rank labels in front of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
