"""Jobs that were submitted by hand are read into the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.api import DEFAULT, Session
from orchestrator.api.jobs import update
from orchestrator.launch.by_hand import RenderedJob, read_rendered, runs_of, started_jobs
from orchestrator.launch.refresh import observe_end_records
from orchestrator.ledger.attempts import rows_of_attempts
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import adopted_ids, record_adopted


@dataclass(frozen=True, slots=True)
class Adopted:
    """Jobs of rendered scripts: adopted now, adopted by an earlier command, and never submitted."""

    jobs: tuple[JobRow, ...]
    known: tuple[RenderedJob, ...]
    not_submitted: tuple[RenderedJob, ...]


def adopt(folder: Path | str, *, session: Session = DEFAULT) -> Adopted:
    """Read the jobs of rendered scripts into the ledger: script, Slurm job id, records and log.

    `folder` is that of `render(output=folder)`. A job that still runs is adopted as running. A second call adds only
    jobs that were submitted since. The verdict comes from the log, as for every job. ReproError for a folder without
    records and for a record of another version; then nothing is adopted.
    """
    rendered = read_rendered(Path(folder))
    submitted = started_jobs(rendered)
    session.note(submitted.complaints)
    ledger = session.existing_ledger(create=True)
    assert ledger is not None
    recorded = adopted_ids(ledger, [job.job.id for job in rendered])
    new = {
        job.file: (job, attempt)
        for job, attempt in submitted.attempts
        if (attempt.folder, attempt.scheduler_id) not in recorded
    }
    ids: list[int] = []
    for run, jobs in runs_of([job for job, _ in new.values()], session.folders):
        attempts = {job.job.id: new[job.file][1] for job in jobs}
        ids += record_adopted(ledger, run, [job.job for job in jobs], attempts)
    session.note(update(ledger).complaints)
    if observe_end_records(ledger, ids):
        session.note(update(ledger).complaints)
    started = {job.file for job, _ in submitted.attempts}
    return Adopted(
        tuple(rows_of_attempts(ledger, ids)),
        tuple(job for job in rendered if job.file in started and job.file not in new),
        tuple(job for job in rendered if job.file not in started),
    )
