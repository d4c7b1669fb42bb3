"""What is said in several lines: launchers' reports of who failed first, and pyxis' of a container that did not start.

Formats: torch/distributed/elastic/multiprocessing/errors/__init__.py, Open MPI's help-orterun.txt, pyxis 0.24's
pyxis_slurmstepd.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.megatron.log_labels import BEHIND, Labelled, labelled, lines_with

_LINES_OF_REPORT = 10
"""What can follow the heading of torchrun's report: number, time, host, rank, exit code, file, traceback."""

_REPORT = b"Root Cause (first"
_OF_REPORT = re.compile(
    rb"\b(?:time +: ([0-9:_T.-]{8,40})|rank +: ([0-9]{1,9}) \(local_rank|traceback : (Signal [0-9]{1,3} .{1,200}))"
)
_PROCESS = re.compile(rb"Process name: \[\[[0-9]{1,9},[0-9]{1,9}\],([0-9]{1,9})\]")
_NO_TIME = b"~"  # behind every time

# Of pyxis' lines one says what went wrong, an indented one of enroot's log why; the others follow from it, and may come
# first (pyxis 0.24's pyxis_slurmstepd.c).
_PYXIS = re.compile(r"error: pyxis: (.*)")
_FOLLOWS = re.compile(r" |child [0-9]|printing |container was not started|a previous task terminated")
_ENROOT_WHY = re.compile(r" +(?:\[ERROR\] |curl: |FATAL ERROR: )")


class Report:
    """What launchers say of who failed first: torchrun's report, of several nodes' the earliest, or Open MPI's."""

    def __init__(self) -> None:
        self.is_torchruns = False
        self._first: tuple[bytes, int] | None = None
        self._left = 0  # lines of a report that are still to be read
        self._time = _NO_TIME
        self._rank: int | None = None

    @property
    def rank(self) -> int | None:
        return self._first[1] if self._first else None

    def read(self, part: bytes) -> Iterator[tuple[int, Labelled]]:
        """Where in this part a report says which signal ended the rank, and the line that says it."""
        if self._left:
            yield from self._read_on(part, 0)
        for _, end in lines_with(part, _REPORT):
            below = part.find(b"\n", end, end + BEHIND) + 1  # 0: nothing that a launcher prints
            self.is_torchruns, self._left = True, _LINES_OF_REPORT if below else 0
            self._time, self._rank = _NO_TIME, None
            yield from self._read_on(part, below)
        for match in _PROCESS.finditer(part):
            self._note(_NO_TIME, int(match[1]))

    def _read_on(self, part: bytes, start: int) -> Iterator[tuple[int, Labelled]]:
        while self._left and start < len(part):
            end = part.find(b"\n", start, start + BEHIND)
            line = part[start : end if end >= 0 else start + BEHIND]
            if _REPORT in line:  # the next one
                return
            self._left -= 1
            found = _OF_REPORT.search(line)
            if found is not None and found[1]:
                self._time = found[1]
            elif found is not None and found[2]:
                self._rank = rank = int(found[2])
                self._note(self._time, rank)
            elif found is not None:
                yield start, Labelled(labelled(found[3]).text, self._rank, is_task=False)
            if end < 0:
                return
            start = end + 1

    def _note(self, time: bytes, rank: int) -> None:
        if self._first is None or time < self._first[0]:
            self._first = time, rank


class PyxisSays:
    """What went wrong and why, of all that pyxis says."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def take(self, text: str) -> None:
        """The next of its lines."""
        found = _PYXIS.search(text)
        said = found[1] if found else ""
        self._first.setdefault("any", said)
        if not _FOLLOWS.match(said):
            self._first.setdefault("telling", said)
        elif _ENROOT_WHY.match(said):
            self._first.setdefault("why", said.strip())

    def text(self) -> str:
        """Both in one."""
        telling = self._first.get("telling", self._first["any"]).strip()
        why = self._first.get("why", "").removesuffix(": " + telling.rpartition(": ")[2])  # the same path again
        return f"pyxis: {telling}" + (f"; {why}" if why else "")
