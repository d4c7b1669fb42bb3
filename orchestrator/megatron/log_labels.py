"""Lines of a log: where they begin, what launchers and torch put before them, and which rank that names.

`3: ` is srun's --label (right-aligned; `P1  3: ` in a heterogeneous job), `[1,3]<stderr>: ` Open MPI's --tag-output,
`[default3]:` torchrun's --tee, `[rank3]:` torch's own since 2.2. Inside a line NCCL's watchdog says `[Rank 3]` or
`Rank 3]`, srun `error: n1: task 3: `, and Open MPI `process rank 3 with PID`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Bytes of a line that are looked at, on either side of what it was found by.
BEFORE, BEHIND = 1024, 2048

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
class Labelled:
    """A line without its labels, and the rank and origin that the labels name.

    `is_task`: the rank is only the number of a task of srun, which is a node's where a launcher starts its ranks.
    """

    text: str
    rank: int | None
    is_task: bool
    origin: Origin = Origin()


def labelled(line: bytes) -> Labelled:
    """Read one line, whatever bytes it has: escape sequences of terminals go, what is not UTF-8 becomes U+FFFD."""
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
        said = torch or within or process
        assert said is not None
        return Labelled(text, int(next(group for group in said.groups() if group)), is_task=False, origin=origin)
    return Labelled(text, origin.task, is_task=task is not None, origin=origin)


def lines_with(part: bytes, token: bytes) -> Iterator[tuple[int, int]]:
    """Where the lines begin and end that hold it."""
    found = part.find(token)
    while found >= 0:
        start, end = line_around(part, found)
        yield start, end
        found = part.find(token, max(end, found + len(token)))


def line_around(part: bytes, at: int) -> tuple[int, int]:
    """The line that has this place in it, or what of it is near: a progress bar's ends are \\r alone."""
    low, high = max(0, at - BEFORE), min(len(part), at + BEHIND)
    start = max(part.rfind(b"\n", low, at), part.rfind(b"\r", low, at)) + 1 or low
    ends = [end for end in (part.find(b"\n", at, high), part.find(b"\r", at, high)) if end >= 0]
    return start, min(ends, default=high)
