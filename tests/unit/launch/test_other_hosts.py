"""Local jobs of another machine that shares the file system: they cannot be seen from here, so nothing is concluded."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.errors import ReproError
from orchestrator.launch.refresh import cancel, refresh
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import job_rows
from orchestrator.ledger.submissions import record_submission
from orchestrator.ledger.tables import SUBMITTING, WAITING, Attempt
from tests.unit.ledger.making import new_ledger, new_run, record

ELSEWHERE = "another-host"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = new_ledger(tmp_path)
    record(made, "a", run=new_run(host=ELSEWHERE))
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
    assert "is not known yet" in refresh(ledger).complaints[0]
    assert [row.phase for row in job_rows(ledger)] == [SUBMITTING]


def test_a_job_of_another_host_is_cancelled_there(ledger: Ledger) -> None:
    record_submission(ledger, "token", "77")
    with pytest.raises(ReproError, match=f"a runs on {ELSEWHERE}; cancel it from {ELSEWHERE}"):
        cancel(job_rows(ledger))
