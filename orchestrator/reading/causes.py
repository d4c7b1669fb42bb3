"""Search for the line of a log that states why a job failed, and for the rank that printed it.

The most specific kind of line (`cause_kinds`) decides. Among its lines, the line of the first failed rank decides,
as named in a report of the launcher or of NCCL. Without a report, the first line in the log decides.

Formats of reports: torch/distributed/elastic/multiprocessing/errors/__init__.py, Open MPI's help-orterun.txt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from orchestrator.reading import cause_kinds as kinds
from orchestrator.reading.logs import BYTES_AFTER, LogLine, Origin, line_around, lines_with, parse_line

# Lines of pyxis 0.8 to 0.24 (pyxis_slurmstepd.c, enroot.c). One line names the error, and an indented line of enroot's
# log names the reason. The other lines follow from the error and may come first.
_PYXIS = re.compile(r"error: pyxis: (.*)")
_FOLLOWS = re.compile(
    r" |child [0-9]|printing |container was not started|a previous task terminated|if the image has an unusual"
)
# Lines of a container that Slurm ended. 137 and 143 are the exit codes of a shell that a signal ended.
_ENDED = re.compile(r"child [0-9]+ (?:terminated with signal|failed with error code: (?:137|143)$)")
_FAILED = re.compile(r"child [0-9]")
_EXITED = re.compile(r"container exited too soon")
# Reasons in enroot's log, the most specific first: a full disk, a marked line, a program's message.
_REASONS = (
    re.compile(r" +(.*No space left on device.*)"),
    re.compile(r" +((?:\[ERROR\](?! [\w./-]{1,200} exited with )|curl:|FATAL ERROR:) .*)"),
    re.compile(r" +((?:/[\w./-]{1,200}|[\w.-]{1,64}(?: \(child\))?): [^ ].*)"),
    re.compile(r" +(\[ERROR\] .*)"),
)
_MOST_ORIGINS = 4096


class _Container:
    """Lines that pyxis printed about one task's container. `error` names the error, `reasons` are those of enroot."""

    def __init__(self) -> None:
        self.first = self.error = ""
        self.reasons: dict[int, str] = {}
        self.has_failed = False
        self.was_ended = False
        self.has_exited = False

    def add(self, message: str) -> None:
        """Add the next message."""
        self.first = self.first or message
        follows = _FOLLOWS.match(message) is not None
        if not self.has_failed and _ENDED.match(message):
            self.was_ended = True
        elif _EXITED.match(message):
            self.has_exited = True
        elif not follows or _FAILED.match(message):
            self.has_failed = True
        if not follows:
            self.error = self.error or message
            return
        for order, pattern in enumerate(_REASONS):
            if match := pattern.match(message):
                self.reasons.setdefault(order, match[1].strip())

    def text(self) -> str:
        """Return the error and its reason in one line."""
        error = (self.error or self.first).strip()
        reason = self.reasons[min(self.reasons)] if self.reasons else ""
        if "/" in (image := error.rpartition(": ")[2]):
            reason = reason.removesuffix(f": {image}")  # the same path again
        if "Invalid image format" in reason:  # unsquashfs fails in the same way without permission
            reason += " (or this user may not read it)"
        return f"pyxis: {error}" + (f"; {reason}" if reason else "")


class ContainerReport:
    """Lines that pyxis printed about containers that did not start, by origin."""

    def __init__(self) -> None:
        self._containers: dict[Origin, _Container] = {}

    def add(self, line: LogLine) -> None:
        """Add the next line of pyxis."""
        match = _PYXIS.search(line.text)
        container = self._containers.get(line.origin)
        if container is None and len(self._containers) < _MOST_ORIGINS:
            container = self._containers[line.origin] = _Container()
        if container is not None and match is not None:
            container.add(match[1])

    @property
    def failed(self) -> tuple[Origin, ...]:
        """Origins of the containers that failed by themselves; not those that Slurm ended because of another task.

        Containers with a reason come first, because srun can lose the first lines of a task. Lines without an origin
        may be of several containers: an ended container does not exclude the others. If tasks share a container, one
        task prints the error, and any task may print that the removal failed.
        """
        own = {origin: c for origin, c in self._containers.items() if origin == Origin() or not c.was_ended}
        failed = sorted((item for item in own.items() if item[1].has_failed), key=lambda item: not item[1].reasons)
        named = tuple(origin for origin, container in failed if container.error)
        unnamed = tuple(origin for origin, _ in failed)
        return named or unnamed or tuple(origin for origin, container in own.items() if container.has_exited)

    def text(self) -> str:
        """Return error and reason of the first container that failed by itself."""
        return self._containers[self.failed[0]].text()


LONGEST_LINE = 300
"""Limit of characters of a deciding line."""

_MOST_LINES = 16384

_ORDER = {kind: order for order, (kind, _) in reversed(list(enumerate(kinds.KINDS)))}
_ASSERTION, _ERROR, _NCCL_TIMEOUT = _ORDER[kinds.ASSERTION], _ORDER[kinds.ERROR], _ORDER[kinds.NCCL_TIMEOUT]
_GPU_IN_USE, _NO_GPU_MEMORY, _CONTAINER = _ORDER[kinds.GPU_IN_USE], _ORDER[kinds.NO_GPU_MEMORY], _ORDER[kinds.CONTAINER]
_LEAST_ERROR = max(order for order, (kind, _) in enumerate(kinds.KINDS) if kind == kinds.ERROR)

_DIGITS = str.maketrans("12345678", "9" * 8)
_TIMED_OUT_RANK = re.compile(r"collective timeout from +rank ([0-9]{1,9})")
_EXITED_WITH = re.compile(r": tasks? [0-9,\- ]{1,80}: Exited with exit code (?!1(?:37|43)\b)([0-9]{1,3})")


@dataclass(frozen=True, slots=True, eq=False)
class ProgramLines:
    """Lines of one program, in addition to the errors of every program.

    `kinds` are (kind, pattern) of lines that are no errors, and `tokens` their literals; `rare` are lines of the first
    of these kinds that contain no literal. `starts` is the text of the line that each start prints, `works` that of the
    lines after the start-up: an assertion that fails before them refuses the arguments.
    """

    kinds: tuple[tuple[str, re.Pattern[str]], ...] = ()
    tokens: tuple[bytes, ...] = ()
    rare: re.Pattern[bytes] | None = None
    starts: bytes | None = None
    works: bytes | None = None


ANY_PROGRAM = ProgramLines()


@dataclass(frozen=True, slots=True)
class Cause:
    """A line that states why a job failed.

    `line` has no launcher labels, is printable, and has at most `LONGEST_LINE` characters. `rank` is None if the log
    does not name it. `others` are the best lines of other kinds, in order of precedence. `origins` are the sources of
    the line, or of each container that failed by itself. `exit_code` is that of the first task that no signal ended.
    """

    kind: str
    line: str
    rank: int | None
    others: tuple[Cause, ...] = field(default=(), compare=False, repr=False)
    origins: tuple[Origin, ...] = field(default=(), compare=False, repr=False)
    exit_code: int | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.line}"

    @property
    def is_fault(self) -> bool:
        """Return whether the line is an error: not the world size, nor a NaN."""
        return self.kind not in (kinds.NOT_A_NUMBER, kinds.WHAT_RAN)

    def of(self, *kinds: str) -> Cause | None:
        """Return the best line of these kinds."""
        return next((cause for cause in (self, *self.others) if cause.kind in kinds), None)


def cause(log: bytes, program: ProgramLines = ANY_PROGRAM) -> Cause | None:
    """Return the line of a whole log that states why a job failed; None if the log has no error."""
    finder = CauseFinder(program)
    finder.feed(log)
    best = finder.cause()
    return best if best and best.is_fault else None


@dataclass(frozen=True, slots=True)
class _LineAt:
    """A line and its position in the log in bytes."""

    at: int
    line: LogLine


class CauseFinder:
    """Search of a log in parts of whole lines, in constant memory.

    If the program was started several times in one log (`requeue: true`), the last start with an error decides.
    """

    def __init__(self, program: ProgramLines = ANY_PROGRAM) -> None:
        self._program = program
        self._start = _StartErrors(program)
        self._earlier: Cause | None = None
        self._at = 0

    def feed(self, part: bytes) -> None:
        """Read the next part."""
        begins = 0
        for start, _ in lines_with(part, self._program.starts) if self._program.starts else ():
            if self._start.has_begun:
                self._read(part[begins:start])
                self._restart()
                begins = start
            self._start.has_begun = True
        self._read(part[begins:] if begins else part)

    def cause(self) -> Cause | None:
        """Return the deciding line so far. Without an error it is a line with a NaN or with the world size."""
        best = self._start.cause()
        return self._earlier if self._earlier and not (best and best.is_fault) else best

    def _read(self, piece: bytes) -> None:
        self._start.read(piece, self._at)
        self._at += len(piece)

    def _restart(self) -> None:
        best = self._start.cause()
        if best is not None and best.is_fault and best.kind not in kinds.OF_JOB:  # not after a restart
            self._earlier = best
        self._start = _StartErrors(self._program)


class _StartErrors:
    """Errors since one start of the program."""

    def __init__(self, program: ProgramLines) -> None:
        self.has_begun = False
        self._program, self._kinds = program, (*kinds.KINDS, *program.kinds)
        self._first: dict[tuple[int, int | None], _LineAt] = {}  # of each kind and rank; None: of all ranks
        self._containers = ContainerReport()
        self._report = LauncherReport()
        self._timed_out: _LineAt | None = None  # line of the rank that NCCL names for a time-out
        self._works_at: int | None = None
        self._ended_at: int | None = None
        self._filled_by_job = False  # a rank used too much GPU memory by itself
        self._exit_code: int | None = None

    def read(self, part: bytes, begins: int) -> None:
        """Read the next part, which begins at this position in the log."""
        works = self._program.works
        if works is not None and self._works_at is None and (at := part.find(works)) >= 0:
            self._works_at = begins + at
        if self._ended_at is None and (ended := kinds.SLURM_ENDS.search(part)) is not None:
            self._ended_at = begins + ended.start()
        for start, line in self._report.read(part):
            self._add(begins + start, line)
        for token in (*kinds.TOKENS, *self._program.tokens):
            for start, end in lines_with(part, token):
                self._add(begins + start, parse_line(part[start:end]))
        rare = self._program.rare
        found = rare.search(part) if rare is not None and (len(kinds.KINDS), None) not in self._first else None
        if found is not None:
            start, end = line_around(part, found.start())
            self._add(begins + start, parse_line(part[start:end]))

    def cause(self) -> Cause | None:
        """Return the best line of the best kind, with the best lines of the other kinds."""
        best: dict[str, Cause] = {}
        for order in sorted({order for order, _ in self._first}):
            if order == _GPU_IN_USE and self._filled_by_job:  # out of memory even without other processes
                continue
            if order == _CONTAINER and not self._containers.failed:  # Slurm ended all containers
                continue
            best.setdefault(self._kinds[order][0], self._best_of(order))
        if not best:
            return None
        first, *others = best.values()
        return replace(first, others=tuple(others), exit_code=self._exit_code)

    def _add(self, at: int, line: LogLine) -> None:
        order = _kind_of_similar(line.text.translate(_DIGITS), self._program)
        if order is None:
            return
        shown = self._kinds[order][1].search(line.text)
        if shown is not None and shown.groupdict().get("shown"):
            line = replace(line, text=shown["shown"])
        if order == _ASSERTION and self._works_at is not None and self._works_at < at:
            order = _ERROR  # before the first iteration an assertion refuses the arguments
        if self._ended_at is not None and self._ended_at < at and self._kinds[order][0] in kinds.FOLLOW_AN_END:
            order = _LEAST_ERROR
        if order == _NO_GPU_MEMORY and (short := kinds.memory_short(line.text)) is not None:
            order = _GPU_IN_USE if short.is_of_others else order
            self._filled_by_job |= not short.is_of_others
        if order == _CONTAINER:
            self._containers.add(line)
        if self._exit_code is None and (exited := _EXITED_WITH.search(line.text)) is not None:
            self._exit_code = int(exited[1])
        named = _TIMED_OUT_RANK.search(line.text) if order == _NCCL_TIMEOUT else None
        if named is not None:
            line = replace(line, rank=int(named[1]), is_task=False)
            if self._timed_out is None or at < self._timed_out.at:
                self._timed_out = _LineAt(at, line)
        hit = _LineAt(at, replace(line, text=line.text.strip()[:LONGEST_LINE]))
        for key in ((order, None), (order, line.rank)):
            first = self._first.get(key)
            if hit.at < first.at if first else key[1] is None or len(self._first) < _MOST_LINES:
                self._first[key] = hit

    def _best_of(self, order: int) -> Cause:
        kind, first = self._kinds[order][0], self._first[order, None]
        first_failed = self._report.rank
        if order == _NCCL_TIMEOUT and self._timed_out is not None:
            first_failed = self._timed_out.line.rank
        hit = self._first.get((order, first_failed), first)
        if self._is_of_node(hit):
            hit = first
        text, rank = hit.line.text, hit.line.rank
        origins: tuple[Origin, ...] = (hit.line.origin,)
        if order == _CONTAINER:
            text, origins = self._containers.text(), self._containers.failed
            rank = origins[0].task
        elif kind in kinds.OF_JOB:
            rank = None
        elif self._is_of_node(hit) or (rank is None and kind in kinds.OF_RANK):
            rank = first_failed if kind in kinds.OF_RANK else None
        return Cause(kind, text[:LONGEST_LINE], rank, origins=origins)

    def _is_of_node(self, hit: _LineAt) -> bool:
        """Return whether the rank is only a node's number: torchrun is one task of srun for all ranks of a node."""
        return hit.line.is_task and self._report.is_torchruns


@lru_cache(maxsize=1024)
def _kind_of_similar(text: str, program: ProgramLines) -> int | None:
    """Return the index of the kind of all lines that differ only in their digits. The cache serves repeated lines."""
    for order, (_, pattern) in enumerate((*kinds.KINDS, *program.kinds)):
        if pattern.search(text) and not (order in (_ASSERTION, _ERROR) and kinds.CONSEQUENCE.search(text)):
            return order
    return None


_LINES_OF_REPORT = 10
"""Lines after the heading of torchrun's report: number, time, host, rank, exit code, file, traceback."""

_REPORT = b"Root Cause (first"
_OF_REPORT = re.compile(
    rb"\b(?:time +: ([0-9:_T.-]{8,40})|rank +: ([0-9]{1,9}) \(local_rank|traceback : (Signal [0-9]{1,3} .{1,200}))"
)
_PROCESS = re.compile(rb"Process name: \[\[[0-9]{1,9},[0-9]{1,9}\],([0-9]{1,9})\]")
_NO_TIME = b"~"  # sorts after every time


class LauncherReport:
    """Launchers' reports of the first failed rank: the earliest of torchrun's reports, or Open MPI's."""

    def __init__(self) -> None:
        self.is_torchruns = False
        self._first: tuple[bytes, int] | None = None
        self._left = 0  # lines of a report that are not read yet
        self._time = _NO_TIME
        self._rank: int | None = None

    @property
    def rank(self) -> int | None:
        """The first failed rank."""
        return self._first[1] if self._first else None

    def read(self, part: bytes) -> Iterator[tuple[int, LogLine]]:
        """Yield position and text of each line of a report that names the signal that ended the rank."""
        if self._left:
            yield from self._read_report(part, 0)
        for _, end in lines_with(part, _REPORT):
            below = part.find(b"\n", end, end + BYTES_AFTER) + 1  # 0: not a launcher's report
            self.is_torchruns, self._left = True, _LINES_OF_REPORT if below else 0
            self._time, self._rank = _NO_TIME, None
            yield from self._read_report(part, below)
        for match in _PROCESS.finditer(part):
            self._add_rank(_NO_TIME, int(match[1]))

    def _read_report(self, part: bytes, start: int) -> Iterator[tuple[int, LogLine]]:
        while self._left and start < len(part):
            end = part.find(b"\n", start, start + BYTES_AFTER)
            line = part[start : end if end >= 0 else start + BYTES_AFTER]
            if _REPORT in line:  # the next report
                return
            self._left -= 1
            match = _OF_REPORT.search(line)
            if match is not None and match[1]:
                self._time = match[1]
            elif match is not None and match[2]:
                self._rank = rank = int(match[2])
                self._add_rank(self._time, rank)
            elif match is not None:
                yield start, LogLine(parse_line(match[3]).text, self._rank, is_task=False)
            if end < 0:
                return
            start = end + 1

    def _add_rank(self, time: bytes, rank: int) -> None:
        if self._first is None or time < self._first[0]:
            self._first = time, rank
