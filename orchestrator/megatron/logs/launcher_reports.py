"""Reports of several lines: launchers' reports of the first failed rank, and pyxis' reports of failed containers.

Formats: torch/distributed/elastic/multiprocessing/errors/__init__.py, Open MPI's help-orterun.txt, pyxis 0.24's
pyxis_slurmstepd.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.megatron.logs.scan import BEHIND, Labelled, Origin, labelled, lines_with

_LINES_OF_REPORT = 10
"""Lines after the heading of torchrun's report: number, time, host, rank, exit code, file, traceback."""

_REPORT = b"Root Cause (first"
_OF_REPORT = re.compile(
    rb"\b(?:time +: ([0-9:_T.-]{8,40})|rank +: ([0-9]{1,9}) \(local_rank|traceback : (Signal [0-9]{1,3} .{1,200}))"
)
_PROCESS = re.compile(rb"Process name: \[\[[0-9]{1,9},[0-9]{1,9}\],([0-9]{1,9})\]")
_NO_TIME = b"~"  # sorts after every time

# Lines of pyxis 0.8 to 0.24 (pyxis_slurmstepd.c, enroot.c). One line names the error, an indented line of enroot's log
# names the reason, the others follow from the error and may come first.
_PYXIS = re.compile(r"error: pyxis: (.*)")
_FOLLOWS = re.compile(
    r" |child [0-9]|printing |container was not started|a previous task terminated|if the image has an unusual"
)
# Lines of a container that Slurm ended; 137 and 143 are the exit codes of a shell that a signal ended.
_ENDED = re.compile(r"child [0-9]+ (?:terminated with signal|failed with error code: (?:137|143)$)")
_FAILED = re.compile(r"child [0-9]")
_EXITED = re.compile(r"container exited too soon")
# Reasons in enroot's log, the most specific first: a full disk, a marked line, a program's message.
_REASONS = (
    re.compile(r" +(.*No space left on device.*)"),
    re.compile(r" +((?:\[ERROR\]|curl:|FATAL ERROR:) .*)"),
    re.compile(r" +((?:/[\w./-]{1,200}|[\w.-]{1,64}): [^ ].*)"),
)
_MOST_ORIGINS = 4096


class LauncherReport:
    """Launchers' reports of the first failed rank: torchrun's earliest report of several nodes, or Open MPI's."""

    def __init__(self) -> None:
        self.is_torchruns = False
        self._first: tuple[bytes, int] | None = None
        self._left = 0  # lines of a report that are still to be read
        self._time = _NO_TIME
        self._rank: int | None = None

    @property
    def rank(self) -> int | None:
        """The first failed rank."""
        return self._first[1] if self._first else None

    def read(self, part: bytes) -> Iterator[tuple[int, Labelled]]:
        """Yield position and text of each line of a report that names the signal that ended the rank."""
        if self._left:
            yield from self._read_report(part, 0)
        for _, end in lines_with(part, _REPORT):
            below = part.find(b"\n", end, end + BEHIND) + 1  # 0: not a launcher's report
            self.is_torchruns, self._left = True, _LINES_OF_REPORT if below else 0
            self._time, self._rank = _NO_TIME, None
            yield from self._read_report(part, below)
        for match in _PROCESS.finditer(part):
            self._note(_NO_TIME, int(match[1]))

    def _read_report(self, part: bytes, start: int) -> Iterator[tuple[int, Labelled]]:
        while self._left and start < len(part):
            end = part.find(b"\n", start, start + BEHIND)
            line = part[start : end if end >= 0 else start + BEHIND]
            if _REPORT in line:  # the next one
                return
            self._left -= 1
            match = _OF_REPORT.search(line)
            if match is not None and match[1]:
                self._time = match[1]
            elif match is not None and match[2]:
                self._rank = rank = int(match[2])
                self._note(self._time, rank)
            elif match is not None:
                yield start, Labelled(labelled(match[3]).text, self._rank, is_task=False)
            if end < 0:
                return
            start = end + 1

    def _note(self, time: bytes, rank: int) -> None:
        if self._first is None or time < self._first[0]:
            self._first = time, rank


class _Container:
    """Lines that pyxis printed about one task's container."""

    def __init__(self) -> None:
        self.first = ""
        self._error = ""
        self._reasons: dict[int, str] = {}
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
            self._error = self._error or message
            return
        for order, pattern in enumerate(_REASONS):
            if match := pattern.match(message):
                self._reasons.setdefault(order, match[1].strip())

    @property
    def names_error(self) -> bool:
        """Whether a message names the error."""
        return bool(self._error)

    def text(self) -> str:
        """Return the error and its reason in one line."""
        error = (self._error or self.first).strip()
        reason = self._reasons[min(self._reasons)] if self._reasons else ""
        reason = reason.removesuffix(": " + error.rpartition(": ")[2])  # the same path again
        return f"pyxis: {error}" + (f"; {reason}" if reason else "")


class ContainerReport:
    """Lines that pyxis printed about containers that did not start, by origin."""

    def __init__(self) -> None:
        self._containers: dict[Origin, _Container] = {}

    def add(self, line: Labelled) -> None:
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

        Lines without an origin may be of several containers, so that an ended one proves nothing about the others. Of
        several tasks that share a container one names the error, and any of them may print that its removal failed.
        """
        own = {origin: c for origin, c in self._containers.items() if origin == Origin() or not c.was_ended}
        named = tuple(origin for origin, container in own.items() if container.has_failed and container.names_error)
        unnamed = tuple(origin for origin, container in own.items() if container.has_failed)
        return named or unnamed or tuple(origin for origin, container in own.items() if container.has_exited)

    def text(self) -> str:
        """Return error and reason of the first container that failed by itself."""
        return self._containers[self.failed[0]].text()
