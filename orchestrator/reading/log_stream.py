"""Copy of a job's log while it grows, and selection of the lines of one rank."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.job_dir import open_job_file, read_job_file
from orchestrator.ledger.rows import JobRow

BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 20


class RankLines:
    """Filter that keeps the whole lines of one rank, with their labels, from a log in pieces of any size.

    `srun --label` puts the task number before each line. It is the rank if every rank is a task. Where one task per
    node starts the `ranks_per_task` ranks of the node, torch's `[rank3]` is the rank, and torchrun's `[default3]` is
    the rank on its node. Lines of more than 1 MiB are split.
    """

    _TASK = re.compile(rb" *([0-9]{1,6}): ")
    _RANK = re.compile(rb"\[rank([0-9]{1,6})\]")
    _LOCAL = re.compile(rb"\[default ?([0-9]{1,4})\]")

    def __init__(self, rank: int, ranks_per_task: int = 1) -> None:
        self.labels_seen = False
        self.rank, self._ranks_per_task = rank, ranks_per_task
        self._pending = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the lines of the rank that this piece completes."""
        text = self._pending + piece
        end = text.rfind(b"\n") + 1
        if not end and len(text) > LONGEST_LINE_BYTES:
            end = len(text)
        self._pending = text[end:]
        return b"".join(line for line in io.BytesIO(text[:end]) if self._is_of_rank(line))

    def end(self) -> bytes:
        """Return the last line if it has no line end and is of the rank."""
        line, self._pending = self._pending, b""
        return line if line and self._is_of_rank(line) else b""

    def _is_of_rank(self, line: bytes) -> bool:
        task = self._TASK.match(line)
        start = line[task.end() if task else 0 :][:64]
        rank, local = self._RANK.match(start), self._LOCAL.match(start)
        if rank is not None:
            line_rank = int(rank[1])
        elif local is not None:
            line_rank = (int(task[1]) if task else 0) * self._ranks_per_task + int(local[1])
        elif task is not None and self._ranks_per_task == 1:
            line_rank = int(task[1])
        else:
            return False
        self.labels_seen = True
        return line_rank == self.rank


class GrowingLog:
    """A log that may be absent, grow, be cut off or be replaced while it is read. `notify` gets a line about that."""

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self._notify = notify
        self._file: BinaryIO | None = None

    def new_blocks(self) -> Iterator[bytes]:
        """Yield everything that was written since the last call."""
        while True:
            if self._file is None:
                self._file = open_job_file(self.folder, "log.txt")
            if self._file is None:
                return
            if self._is_shorter():
                self._notify("the log was cut off and is printed from its new start")
                self._file.seek(0)
            yield from blocks(self._file)
            if not self._is_replaced():
                return
            self._notify("the log was replaced by another file")
            self._file.close()
            self._file = None

    def _is_shorter(self) -> bool:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size < self._file.tell()

    def _is_replaced(self) -> bool:
        """Return whether another file is in its place. While a file is replaced there may be none."""
        assert self._file is not None
        try:
            current = (self.folder / "log.txt").lstat()
        except OSError:
            return False
        opened = os.fstat(self._file.fileno())
        return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino)


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in blocks."""
    while block := file.read(BLOCK_BYTES):
        yield block


def ranks_per_task(folder: Path, row: JobRow) -> int:
    """Return how many ranks share a label of srun: all of a node if its script has one task for each node."""
    per_node = row.spec.resources.tasks_per_node if row.spec.resources else 1
    script = read_job_file(folder, "job.sh") or b""
    tasks = re.search(rb"^#SBATCH --ntasks-per-node=([0-9]{1,4})", script, re.MULTILINE)
    return max(1, per_node // max(1, int(tasks[1]))) if tasks else 1
