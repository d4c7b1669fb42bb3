"""Records of submissions in the run folders: `submissions/TOKEN.sent` names each job, its element and its folder.

The record is written before the scheduler is called and outlives the ledger.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.job_dir import private_folder, read_job_file
from orchestrator.ledger.rows import PendingAttempt

COMMENT = "repro:"
"""Start of the comment of a Slurm job; the token follows."""

_FOLDER, _SUFFIX = "submissions", ".sent"


@dataclass(frozen=True, slots=True)
class SentJob:
    """A job of a submission; `element` is its index in the array or queue, None for a lone script."""

    job_id: str
    element: int | None
    folder: Path


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A submission: its token, the host it was made on, and the name of the file that the scheduler was given."""

    token: str
    scheduler: str
    host: str
    file: str
    jobs: tuple[SentJob, ...]


def write_sent(run: Path, turns: Sequence[PendingAttempt], token: str) -> None:
    """Write down that these attempts are about to be given to a scheduler; ReproError if that is not possible."""
    lines = [
        f"token={token}",
        f"scheduler={turns[0].scheduler}",
        f"host={socket.gethostname()}",
        f"file={Path(turns[0].file).name}",
    ]
    lines += [
        f"job={turn.job_id} {'-' if turn.array_index is None else turn.array_index} {Path(turn.folder).name}"
        for turn in turns
    ]
    path = run / _FOLDER / f"{token}{_SUFFIX}"
    try:
        private_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o640)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise ReproError(Problem(f"cannot be written ({error.strerror})", f"{path}:")) from None


def read_sent(run: Path, token: str) -> SentRecord | None:
    """Return the record of the submission with this token; None if the run has none, or none that can be read."""
    try:
        text = (read_job_file(run / _FOLDER, f"{token}{_SUFFIX}") or b"").decode()
    except (ReproError, UnicodeDecodeError):
        return None
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line]
    fields = {name: value for name, value in pairs if name != "job"}
    try:
        jobs = tuple(_job(run, value) for name, value in pairs if name == "job")
        return SentRecord(fields["token"], fields["scheduler"], fields["host"], fields["file"], jobs)
    except (KeyError, ValueError):
        return None


def sent_of_run(run: Path) -> Iterator[SentRecord]:
    """Every record of submissions in a run folder; none where it cannot be read."""
    try:
        names = sorted(path.name for path in (run / _FOLDER).iterdir() if path.name.endswith(_SUFFIX))
    except OSError:
        return
    for name in names:
        record = read_sent(run, name.removesuffix(_SUFFIX))
        if record is not None:
            yield record


def _job(run: Path, text: str) -> SentJob:
    job_id, element, folder = text.split(" ", 2)
    if "/" in folder or folder in ("", ".", ".."):
        raise ValueError(folder)
    return SentJob(job_id, None if element == "-" else int(element), run / folder)
