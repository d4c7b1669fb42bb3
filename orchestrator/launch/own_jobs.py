"""Whether a job of a scheduler is the attempt that the ledger takes it for: asked before the job is cancelled.

Another user who can write to the ledger can replace the id of an attempt by that of any other job.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.launch.sending import comment_of
from orchestrator.launch.sent_records import sent_of_run
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow
from orchestrator.ownership import NotOwn, require_own_folder, user_name
from orchestrator.slurm.records import JobRecord


def why_not_the_attempts_job(ledger: Ledger, row: JobRow, record: JobRecord | None) -> str | None:
    """Return why the job with `row.scheduler_id` is not the job of this attempt; None if it is.

    `record` is what Slurm has under that id. The comment must contain the token, and the user must be the attempt's.
    For an attempt of the current user its run folder must agree: only this user can write there.
    """
    if record is None:
        return "Slurm does not have this job"
    if not row.token or record.comment != comment_of(row.token):
        return "the job has another comment, so it is not the job of this attempt"
    user = row.user or user_name()
    if record.user and record.user != user:
        return f"the job belongs to {record.user}, and the attempt to {user}"
    return why_not_in_run_folder(ledger, row) if user == user_name() else None


def why_not_in_run_folder(ledger: Ledger, row: JobRow) -> str | None:
    """Return what contradicts the row in the run folder of an attempt of the current user; None if nothing does.

    Runs of older releases have no record of their submissions.
    """
    folder = Path(row.folder)
    try:
        require_own_folder(folder, ledger.runs)
    except NotOwn as error:
        return str(error.problems[0])
    records = list(sent_of_run(folder.parent))
    submitted = {(record.token, job.job_id, job.element, job.folder.name) for record in records for job in record.jobs}
    if not records or (row.token, row.job_id, row.array_index, folder.name) in submitted:
        return None
    return f"{folder.parent}: contains no submission of this job under that id"
