"""Identity of a Slurm job: whether a record of Slurm is the job of an attempt.

The job id selects the record, and Slurm may give an id out again. Users, plug-ins of a site and reapers of idle GPUs
change comments, so a comment without a token proves nothing. User, submission time, name and output file decide then,
and the job's own `start` record. The token of another attempt is a proof against the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePath

from orchestrator.errors import ReproError
from orchestrator.files import read_record
from orchestrator.launch.run_record import COMMENT, SUBMISSIONS
from orchestrator.ledger.database import now
from orchestrator.ledger.rows import JobSummary
from orchestrator.ledger.submissions import first_folder
from orchestrator.slurm.notation import base_id
from orchestrator.slurm.records import JobRecord

_TOKEN = re.compile(rf"(?<![\w-]){COMMENT}([\w-]+)")
_BEFORE, _AFTER = timedelta(minutes=5), timedelta(minutes=10)
"""Difference of the clocks of a login node and the controller, and time that the answer of sbatch may take."""


def is_job_of(record: JobRecord, row: JobSummary) -> bool | None:
    """Return whether a record with the id of the row is the row's job; None if that cannot be known."""
    if is_proven(record, row):
        return True
    if _is_of_another_user(record, row) or _TOKEN.search(record.comment):
        return False
    submitted = utc(record.submitted_at)
    began, ended = row.created_at - _BEFORE, (row.submitted_at or now()) + _AFTER
    is_in_time = submitted is not None and began <= submitted <= ended
    if record.source == "sacct":  # which has no output file here
        return is_in_time or submitted is None
    if not (is_in_time and record.name.endswith((f"-{PurePath(row.folder).name}", f"-{row.scale}"))):
        return False
    return None if record.output else True


def is_proven(record: JobRecord, row: JobSummary) -> bool:
    """Return whether the comment, the output file or the `start` record proves that this is the row's job."""
    tokens = _TOKEN.findall(record.comment)
    if tokens:
        return row.token in tokens
    if _is_of_another_user(record, row):
        return False
    folder = PurePath(first_folder(row.folder))
    is_in_array = row.array_index is not None and writes_into(record, folder.parent / SUBMISSIONS)
    return is_in_array or writes_into(record, folder) or _has_started(record, row)


def _is_of_another_user(record: JobRecord, row: JobSummary) -> bool:
    """Return whether the users differ. A number is that of a user for whom this machine has no name."""
    return bool(record.user and row.user) and not record.user.isdecimal() and record.user != row.user


def writes_into(record: JobRecord, folder: PurePath) -> bool:
    """Return whether the output of the job is a file in this folder of a run, whose name no other run has."""
    return PurePath(record.output).parts[-3:-1] == folder.parts[-2:]


def _has_started(record: JobRecord, row: JobSummary) -> bool:
    """Return whether the job with this id started in the row's folder when Slurm started this job."""
    try:
        start = read_record(Path(row.folder) / "start")
    except ReproError:
        return False
    started = utc(record.started_at)
    is_of_row = start is not None and started is not None and start.scheduler_id == row.scheduler_id == record.job_id
    return is_of_row and start is not None and started is not None and abs(start.at - started) <= _AFTER


def owner_check(rows: Mapping[str, JobSummary]) -> Callable[[JobRecord], bool | None]:
    """Return the check whether a record is the job of the row with its id. `rows` are by job id."""
    by_base = {base_id(job_id): row for job_id, row in rows.items()}

    def check(record: JobRecord) -> bool | None:
        row = rows.get(record.job_id) or by_base.get(base_id(record.job_id))
        return row is not None and is_job_of(record, row)

    return check


def utc(moment: datetime | None) -> datetime | None:
    """Return a time in UTC without a zone, as the ledger stores it."""
    return None if moment is None else moment.astimezone(timezone.utc).replace(tzinfo=None)
