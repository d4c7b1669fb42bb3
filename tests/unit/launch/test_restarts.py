"""Runs of a job that Slurm has started again after its end."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.launch.refresh import refresh
from orchestrator.ledger.attempts import anything_to_refresh, job_rows
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.runs import (
    BY_SLURM,
    first_folder,
    may_start_again,
    next_folder,
    record_restart,
    record_submission,
)
from orchestrator.ledger.tables import ENDED, RUNNING, VERIFIED, Attempt, Event
from tests.recorded_jobs import new_ledger, record_jobs


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Job 17 with `requeue: true`, which has ended and left its records in the folder `job`."""
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a", scheduler="slurm", array=False)
    record_submission(ledger, "token", "17")
    folder = tmp_path / "runs/r/job"
    write_records(folder, "start", "end")
    with ledger.writing() as session:
        ended = {"state": "FAILED", "phase": ENDED, "ended_at": now(), "verdict": VERIFIED}
        session.execute(sa.update(Attempt).values(folder=str(folder), is_requeued=True, **ended))
    return ledger


def write_records(folder: Path, *names: str, job_id: str = "17") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"exit_code=7\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id={job_id}\npid=1\n")


def attempts(ledger: Ledger) -> list[Attempt]:
    with ledger.reading() as session:
        found = list(session.scalars(sa.select(Attempt).order_by(Attempt.number)))
        session.expunge_all()
    return found


def test_each_run_after_the_end_is_an_attempt_of_its_own(ledger: Ledger, tmp_path: Path) -> None:
    assert [attempt.phase for attempt in attempts(ledger)] == [ENDED] and anything_to_refresh(ledger)
    write_records(tmp_path / "runs/r/job.run2", "start")
    for _ in range(2):
        refresh(ledger)
    first, second = attempts(ledger)
    assert (first.state, first.verdict, first.origin) == ("FAILED", VERIFIED, None)
    assert (second.number, second.phase, second.verdict, second.origin) == (2, RUNNING, None, BY_SLURM)
    assert (second.scheduler_id, second.token, second.folder) == ("17", first.token, f"{first.folder}.run2")
    write_records(tmp_path / "runs/r/job.run2", "end")
    write_records(tmp_path / "runs/r/job.run3", "start")
    refresh(ledger)
    assert [(attempt.number, attempt.phase) for attempt in attempts(ledger)] == [(1, ENDED), (2, ENDED), (3, RUNNING)]
    assert [row.number for row in job_rows(ledger)] == [3]


@pytest.mark.parametrize("job_id", ["18", "none"])
def test_a_folder_of_another_job_is_no_attempt(ledger: Ledger, tmp_path: Path, job_id: str) -> None:
    write_records(tmp_path / "runs/r/job.run2", "start", job_id=job_id)
    refresh(ledger)
    assert len(attempts(ledger)) == 1


def test_a_job_that_lost_its_node_before_its_end_stays_one_attempt(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "runs/r/job/end").unlink()
    write_records(tmp_path / "runs/r/job.run2", "start")
    refresh(ledger)
    assert len(attempts(ledger)) == 1


def test_two_terminals_that_see_a_run_record_one_attempt(ledger: Ledger) -> None:
    (row,) = may_start_again(ledger)
    at = now()
    for _ in range(2):
        record_restart(ledger, row, at)
    first, second = attempts(ledger)
    assert [(attempt.number, attempt.phase) for attempt in (first, second)] == [(1, ENDED), (2, RUNNING)]
    assert (second.created_at, second.submitted_at, second.started_at) == (at, at, at)
    with ledger.reading() as session:
        events = session.execute(sa.select(Event.attempt_id, Event.detail).where(Event.kind == "started again")).all()
    assert events == [(second.id, "by Slurm, job 17, in job.run2")]


@pytest.mark.parametrize(
    "columns",
    [
        {"is_requeued": False},
        {"scheduler": "local"},
        {"scheduler_id": None},
        {"ended_at": now() - timedelta(days=31)},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_a_job_that_slurm_does_not_start_again_is_not_looked_for(ledger: Ledger, columns: dict[str, Any]) -> None:
    assert len(may_start_again(ledger)) == 1
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**columns))
    assert may_start_again(ledger) == []


def test_runs_are_counted_in_the_names_of_their_folders() -> None:
    names = ["a/job", "a/job.run2", "a/job.run3", "a/job.run10", "a/job.run11"]
    assert [next_folder(name) for name in ("a/job", "a/job.run2", "a/job.run10")] == [names[1], names[2], names[4]]
    assert {first_folder(name) for name in names} == {"a/job"}
