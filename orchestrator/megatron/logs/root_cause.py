"""Which line of a log says best why a job failed, and which rank it came from.

Of all kinds of lines (`log_cause_kinds`) the most telling; of its lines that of the rank which the launcher or NCCL
names as the first, else the first in the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from orchestrator.megatron.logs.launcher_reports import ContainerReport, Report
from orchestrator.megatron.logs.root_cause_kinds import (
    ASSERTION,
    CONTAINER,
    ECHO,
    ERROR,
    FAULTS,
    FOLLOWS_AN_END,
    GPU_IN_USE,
    KINDS,
    NAN_ITERATIONS,
    NCCL_TIMEOUT,
    NO_GPU_MEMORY,
    NOT_A_NUMBER,
    OF_A_RANK,
    OF_THE_JOB,
    SLURM_ENDS,
    TOKENS,
    memory_short,
)
from orchestrator.megatron.logs.scan import Labelled, Origin, labelled, line_around, lines_with

LONGEST_LINE = 300
"""Characters that are kept of a deciding line."""

_MOST_RANKS = 4096

_ORDER = {kind: order for order, (kind, _) in reversed(list(enumerate(KINDS)))}
_ASSERTION, _ERROR, _NCCL_TIMEOUT = _ORDER[ASSERTION], _ORDER[ERROR], _ORDER[NCCL_TIMEOUT]
_GPU_IN_USE, _NO_GPU_MEMORY, _CONTAINER = _ORDER[GPU_IN_USE], _ORDER[NO_GPU_MEMORY], _ORDER[CONTAINER]
_LEAST_ERROR = max(order for order, (kind, _) in enumerate(KINDS) if kind == ERROR)

_DIGITS = str.maketrans("12345678", "9" * 8)
_TRAINED = b"elapsed time per iteration"
_CULPRIT = re.compile(r"collective timeout from +rank ([0-9]{1,9})")
_WORLD = b"using world size: "


@dataclass(frozen=True, slots=True)
class Cause:
    """A line that decides: `line` without what launchers put before it, printable, of at most `LONGEST_LINE`
    characters; `rank` is None where nothing tells it. `others` are the best lines of other kinds, in their order.
    `origins` are the sources of the failure: of the line, or of each container that failed by itself.
    """

    kind: str
    line: str
    rank: int | None
    others: tuple[Cause, ...] = field(default=(), compare=False, repr=False)
    origins: tuple[Origin, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.line}"

    @property
    def is_fault(self) -> bool:
        """False for what is no reason to fail: which world ran, or numbers that are none."""
        return self.kind in FAULTS

    def of(self, *kinds: str) -> Cause | None:
        """The best line of these kinds."""
        return next((one for one in (self, *self.others) if one.kind in kinds), None)


def cause(log: bytes) -> Cause | None:
    """The line of a whole log that says best why a job failed; None where nothing in it is a fault."""
    finder = CauseFinder()
    finder.feed(log)
    found = finder.cause()
    return found if found and found.is_fault else None


@dataclass(frozen=True, slots=True)
class _Hit:
    """A line, `at` so many bytes from the beginning of the log."""

    at: int
    line: Labelled


class _Kept:
    """Of the lines of one kind the first, and the first of each rank."""

    def __init__(self, hit: _Hit) -> None:
        self.first = hit
        self._of_rank: dict[int, _Hit] = {}

    def add(self, hit: _Hit) -> None:
        if hit.at < self.first.at:
            self.first = hit
        rank = hit.line.rank
        known = self._of_rank.get(rank) if rank is not None else None
        if rank is not None and (hit.at < known.at if known else len(self._of_rank) < _MOST_RANKS):
            self._of_rank[rank] = hit

    def of_rank(self, rank: int | None) -> _Hit | None:
        return None if rank is None else self._of_rank.get(rank)


class CauseFinder:
    """Reads a log part by part, each of whole lines; what it keeps does not grow with the log.

    Where the program was started more than once in one log (`requeue: true`), the last start decides, unless nothing
    went wrong in it.
    """

    def __init__(self) -> None:
        self._start = _Start()
        self._earlier: Cause | None = None
        self._at = 0

    def feed(self, part: bytes) -> None:
        """Read on."""
        begins = 0
        for start, _ in lines_with(part, _WORLD):
            if self._start.has_world:
                self._read(part[begins:start])
                self._begin_anew()
                begins = start
            self._start.has_world = True
        self._read(part[begins:] if begins else part)

    def cause(self) -> Cause | None:
        """What decides, of all that was fed. Where there is no fault: a number that is none, or the world that ran."""
        found = self._start.cause()
        return self._earlier if self._earlier and not (found and found.is_fault) else found

    def _read(self, piece: bytes) -> None:
        self._start.read(piece, self._at)
        self._at += len(piece)

    def _begin_anew(self) -> None:
        found = self._start.cause()
        if found is not None and found.is_fault and found.kind not in OF_THE_JOB:  # those are over with it
            self._earlier = found
        self._start = _Start()


class _Start:
    """What went wrong since one start of the program."""

    def __init__(self) -> None:
        self.has_world = False
        self._kept: dict[int, _Kept] = {}
        self._containers = ContainerReport()
        self._report = Report()
        self._culprit: _Hit | None = None  # of a time-out, by NCCL's own word
        self._trained_at: int | None = None
        self._ended_at: int | None = None
        self._filled_by_itself = False  # a GPU: by the numbers of one rank at least

    def read(self, part: bytes, begins: int) -> None:
        """Read on, at so many bytes from the beginning of the log."""
        if self._trained_at is None and (trained := part.find(_TRAINED)) >= 0:
            self._trained_at = begins + trained
        if self._ended_at is None and (ended := SLURM_ENDS.search(part)) is not None:
            self._ended_at = begins + ended.start()
        for start, line in self._report.read(part):
            self._take(begins + start, line)
        for token in TOKENS:
            for start, end in lines_with(part, token):
                self._take(begins + start, labelled(part[start:end]))
        found = NAN_ITERATIONS.search(part) if _ORDER[NOT_A_NUMBER] not in self._kept else None
        if found is not None:
            start, end = line_around(part, found.start())
            self._take(begins + start, labelled(part[start:end]))

    def cause(self) -> Cause | None:
        """The best line of the best kind, and of the others."""
        best: dict[str, Cause] = {}
        for order in sorted(self._kept):
            if order == _GPU_IN_USE and self._filled_by_itself:  # it would have run out of memory without them
                continue
            if order == _CONTAINER and not self._containers.failed:  # Slurm ended all of them
                continue
            best.setdefault(KINDS[order][0], self._best_of(order))
        if not best:
            return None
        first, *others = best.values()
        return replace(first, others=tuple(others))

    def _take(self, at: int, line: Labelled) -> None:
        order = _kind_of(line.text)
        if order is None:
            return
        shown = KINDS[order][1].search(line.text)
        if shown is not None and shown.groupdict().get("shown"):
            line = replace(line, text=shown["shown"])
        if order == _ASSERTION and self._trained_at is not None and self._trained_at < at:
            order = _ERROR  # before the first iteration it is the arguments that it refuses
        if self._ended_at is not None and self._ended_at < at and KINDS[order][0] in FOLLOWS_AN_END:
            order = _LEAST_ERROR
        if order == _NO_GPU_MEMORY and (short := memory_short(line.text)) is not None:
            order = _GPU_IN_USE if short.is_of_others else order
            self._filled_by_itself |= not short.is_of_others
        if order == _CONTAINER:
            self._containers.take(line)
        named = _CULPRIT.search(line.text) if order == _NCCL_TIMEOUT else None
        if named is not None:
            line = replace(line, rank=int(named[1]), is_task=False)
            if self._culprit is None or at < self._culprit.at:
                self._culprit = _Hit(at, line)
        self._keep(order, _Hit(at, line))

    def _keep(self, order: int, hit: _Hit) -> None:
        hit = replace(hit, line=replace(hit.line, text=hit.line.text.strip()[:LONGEST_LINE]))
        self._kept.setdefault(order, _Kept(hit)).add(hit)

    def _best_of(self, order: int) -> Cause:
        kind, kept = KINDS[order][0], self._kept[order]
        culprit = self._report.rank
        if order == _NCCL_TIMEOUT and self._culprit is not None:
            culprit = self._culprit.line.rank
        hit = kept.of_rank(culprit)
        if hit is None or self._is_of_node(hit):
            hit = kept.first
        text, rank = hit.line.text, hit.line.rank
        origins: tuple[Origin, ...] = (hit.line.origin,)
        if order == _CONTAINER:
            text, origins = self._containers.text(), self._containers.failed
            rank = origins[0].task
        elif kind in OF_THE_JOB:
            rank = None
        elif self._is_of_node(hit) or (rank is None and kind in OF_A_RANK):
            rank = culprit if kind in OF_A_RANK else None
        return Cause(kind, text[:LONGEST_LINE], rank, origins=origins)

    def _is_of_node(self, hit: _Hit) -> bool:
        """Whether its rank is only a node's number: torchrun is one task of srun for all the ranks of its node."""
        return hit.line.is_task and self._report.is_torchruns


def _kind_of(text: str) -> int | None:
    """The first kind that this line is of, by its place among `KINDS`."""
    return _kind_of_all_like(text.translate(_DIGITS))


@lru_cache(maxsize=1024)
def _kind_of_all_like(text: str) -> int | None:
    """A log that repeats itself differs in its numbers."""
    for order, (_, pattern) in enumerate(KINDS):
        if pattern.search(text) and not (order in (_ASSERTION, _ERROR) and ECHO.search(text)):
            return order
    return None
