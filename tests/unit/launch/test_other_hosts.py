"""Local jobs of another machine that shares the file system: they cannot be seen from here, so nothing is concluded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.launch.cancel import cancel
from orchestrator.launch.provenance import user_name
from orchestrator.launch.refresh import refresh
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import job_rows
from orchestrator.ledger.submissions import record_submission
from orchestrator.ledger.tables import SUBMITTING, WAITING, Attempt
from tests.unit.ledger.making import new_ledger, new_run, record

ELSEWHERE = "another-host"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = new_ledger(tmp_path)
    record(made, "a", run=replace(new_run(host=ELSEWHERE), user=user_name()))
    return made


def test_a_job_that_another_host_runs_keeps_its_state_and_is_said(ledger: Ledger) -> None:
    record_submission(ledger, "token", "77")
    assert refresh(ledger).complaints == (
        f"jobs run on {ELSEWHERE}, which alone can see them; states are as last seen",
    )
    assert [(row.phase, row.state, row.refreshed_at) for row in job_rows(ledger)] == [(WAITING, "PENDING", None)]


def test_a_submission_that_another_host_began_is_never_given_up_from_here(ledger: Ledger) -> None:
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(created_at=sa.func.datetime("now", "-1 day")))
    assert refresh(ledger).complaints == (f"jobs were being started on {ELSEWHERE}, which alone can see them",)
    assert [row.phase for row in job_rows(ledger)] == [SUBMITTING]


def test_a_job_of_another_host_is_cancelled_there(ledger: Ledger) -> None:
    record_submission(ledger, "token", "77")
    done = cancel(ledger, job_rows(ledger))
    assert (done.asked, list(map(str, done.refused))) == ([], [f"a runs on {ELSEWHERE}; cancel it from {ELSEWHERE}"])
