"""`repro logs`: what a job printed, byte for byte; a rank's lines alone, an earlier attempt, or as it is written."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Optional

import typer

from orchestrator.cli.options import Database, JobName
from orchestrator.cli.output import next_command, say
from orchestrator.cli.session import ASK_EVERY_S
from orchestrator.errors import Problem, ReproError
from orchestrator.job_dir import open_job_file, read_job_file
from orchestrator.paths import short_name

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.rows import JobRow
    from orchestrator.paths import Folders

READ_EVERY_S = 0.5
LOOK_EVERY_S = 3.0
"""How often it is looked up in the ledger whether a job of Slurm has ended."""
BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 20

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]
Rank = Annotated[Optional[int], typer.Option("--rank", min=0, help="Only the lines that this rank has printed.")]  # noqa: UP045
AttemptNumber = Annotated[Optional[int], typer.Option("--attempt", min=1, help="An earlier attempt's log.")]  # noqa: UP045


def logs(
    job: JobName, follow: Follow = False, rank: Rank = None, attempt: AttemptNumber = None, database: Database = None
) -> None:
    """Print a job's log as it is."""
    from orchestrator.cli.selection import submitted_ledger
    from orchestrator.launch.refresh import refresh
    from orchestrator.ledger.tables import OPEN
    from orchestrator.paths import find_folders

    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    row = one_job(ledger, folders, job, "logs are shown of one")
    if rank is not None and rank >= row.gpus:
        raise ReproError(Problem(f"--rank {rank}: the job has {row.gpus} ranks", hint=f"0 to {row.gpus - 1}"))
    shown = attempt if attempt is not None else row.number
    folder = _folder_of(ledger, row, shown)
    lines = None if rank is None else RankLines(rank, _ranks_per_task(folder, row))
    written = _Written(lines.feed if lines else None)
    log = _Log(folder)
    next_look, said = 0.0, set[str]()
    while True:
        if follow and time.monotonic() >= next_look:
            for complaint in refresh(ledger, ASK_EVERY_S).complaints:
                if complaint not in said:
                    said.add(complaint)
                    say(f"note: {complaint}")
            row = _now(ledger, row)
            next_look = time.monotonic() + (LOOK_EVERY_S if row.scheduler == "slurm" else 0.0)
        log.copy_to(written)
        if follow and attempt is None and row.number != shown:
            shown = row.number
            say(f"attempt {shown} of {row.job_id}: {row.scheduler_id or row.state}")
            log = _Log(Path(row.folder))
            continue
        if not follow or row.phase not in OPEN or row.number != shown:
            break
        time.sleep(READ_EVERY_S)
    if lines is not None:
        written.last(lines.end())
        _require_labels(lines, row, written)
    else:
        _print_batch(log.folder, written)
        if not written.bytes:
            _say_empty(row, log.folder)
    next_command(f"repro status {short_name(row.experiment)}", "how it stands among the others")


def one_job(ledger: Ledger, folders: Folders, word: str, of_one: str) -> JobRow:
    """The one job that `word` means; ReproError where it means several, or none."""
    from orchestrator.cli.selection import chosen_rows

    rows = chosen_rows(ledger, folders, [word])
    if len(rows) != 1:
        raise ReproError(Problem(f"{word}: {len(rows)} jobs; {of_one}", hint="repro status shows the jobs"))
    return rows[0]


class RankLines:
    """Of a log, in pieces of any size, the whole lines that one rank printed, with the labels they have.

    `srun --label` puts the number of the task before each line, which is the rank where every rank is a task of its
    own. Where one task per node starts the node's `ranks_per_task` ranks, a line says itself whose it is: torch's
    `[rank3]` is the rank, torchrun's `[default3]` the rank on its node. A line of more than 1 MiB is cut into lines.
    """

    _TASK = re.compile(rb" *([0-9]{1,6}): ")
    _RANK = re.compile(rb"\[rank([0-9]{1,6})\]")
    _LOCAL = re.compile(rb"\[default ?([0-9]{1,4})\]")

    def __init__(self, rank: int, ranks_per_task: int = 1) -> None:
        self.labels_seen = False
        self.rank, self._ranks_per_task = rank, ranks_per_task
        self._pending = b""

    def feed(self, piece: bytes) -> bytes:
        """The lines of the rank that are complete with this piece."""
        text = self._pending + piece
        end = text.rfind(b"\n") + 1
        if not end and len(text) > LONGEST_LINE_BYTES:
            end = len(text)
        self._pending = text[end:]
        return b"".join(line for line in io.BytesIO(text[:end]) if self._is_ours(line))

    def end(self) -> bytes:
        """What is left: a last line without its end."""
        left, self._pending = self._pending, b""
        return left if left and self._is_ours(left) else b""

    def _is_ours(self, line: bytes) -> bool:
        task = self._TASK.match(line)
        start = line[task.end() if task else 0 :][:64]
        rank, local = self._RANK.match(start), self._LOCAL.match(start)
        if rank is not None:
            whose: int | None = int(rank[1])
        elif local is not None:
            whose = (int(task[1]) if task else 0) * self._ranks_per_task + int(local[1])
        elif task is not None and self._ranks_per_task == 1:
            whose = int(task[1])
        else:
            return False
        self.labels_seen = True
        return whose == self.rank


class _Written:
    """stdout: bytes as they are to a pipe or a file, visible ones to a terminal; counts what it was given."""

    def __init__(self, chosen: Callable[[bytes], bytes] | None) -> None:
        self.bytes = 0
        self._chosen = chosen
        self._shown: Callable[[bytes], bytes] = bytes
        if sys.stdout.isatty():
            from orchestrator.cli.output import VisibleLog

            self._shown = VisibleLog().feed

    def add(self, piece: bytes) -> None:
        self.last(self._chosen(piece) if self._chosen else piece)

    def last(self, piece: bytes) -> None:
        """What is to be printed whatever is chosen."""
        self.bytes += len(piece)
        sys.stdout.buffer.write(self._shown(piece))
        sys.stdout.buffer.flush()


class _Log:
    """A log that may not be there yet, grow, begin anew or be replaced while it is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: BinaryIO | None = None

    def copy_to(self, written: _Written) -> None:
        """Everything that is new since the last call."""
        while True:
            if self._file is None:
                self._file = open_job_file(self.folder, "log.txt")
            if self._file is None:
                return
            if self._is_shorter():
                say("the log was cut off and begins anew")
                self._file.seek(0)
            while block := self._file.read(BLOCK_BYTES):
                written.add(block)
            if not self._is_replaced():
                return
            say("the log was replaced by another")
            self._file.close()
            self._file = None

    def _is_shorter(self) -> bool:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size < self._file.tell()

    def _is_replaced(self) -> bool:
        """Whether another file stands in its place; none at all is a moment of its being replaced."""
        assert self._file is not None
        try:
            there = (self.folder / "log.txt").lstat()
        except OSError:
            return False
        ours = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)


def _now(ledger: Ledger, row: JobRow) -> JobRow:
    from orchestrator.ledger.attempts import job_rows

    return next((one for one in job_rows(ledger, job_prefix=row.job_id) if one.job_id == row.job_id), row)


def _folder_of(ledger: Ledger, row: JobRow, number: int) -> Path:
    if number == row.number:
        return Path(row.folder)
    from orchestrator.ledger.reports import job_history

    attempts = {one.number: one.folder for one in job_history(ledger, row.job_id)}
    if number not in attempts:
        there = f"1 to {row.number}" if row.number > 1 else "there is only the first"
        raise ReproError(Problem(f"--attempt {number}: {row.job_id} has no such attempt", hint=there))
    return Path(attempts[number])


def _ranks_per_task(folder: Path, row: JobRow) -> int:
    """How many ranks share a label of srun: all of a node where its script has one task for each node."""
    per_node = row.spec.resources.tasks_per_node if row.spec.resources else 1
    script = read_job_file(folder, "job.sh") or b""
    asked = re.search(rb"^#SBATCH --ntasks-per-node=([0-9]{1,4})", script, re.MULTILINE)
    return max(1, per_node // max(1, int(asked[1]))) if asked else 1


def _require_labels(lines: RankLines, row: JobRow, written: _Written) -> None:
    if written.bytes:
        return
    if not lines.labels_seen:
        what = f"{row.job_id} ({row.label}): no line of its log says which rank printed it"
        raise ReproError(Problem(what, hint=f"repro logs {row.job_id} shows all of it"))
    say(f"rank {lines.rank} of {row.job_id} ({row.label}) has printed nothing that has its label")


def _print_batch(folder: Path, written: _Written) -> None:
    """What the script itself printed: empty unless something went wrong around the program."""
    file = open_job_file(folder, "batch.txt")
    if file is not None:
        with file:
            while block := file.read(BLOCK_BYTES):
                written.add(block)


def _say_empty(row: JobRow, folder: Path) -> None:
    say(f"{row.job_id} ({row.label}) has written nothing yet; it is {row.state}")
    for log in sorted(folder.parent.glob("warm-up-*/log.txt")):
        say(f"it waits, or waited, for kernels that another job compiles: {log}")
