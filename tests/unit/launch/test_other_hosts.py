"""Local jobs of another machine that shares the file system: they cannot be seen from here, so nothing is concluded."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.identity import MachineIdentity, this_machine_identity, user_name
from orchestrator.launch.cancel import cancel
from orchestrator.launch.refresh import refresh
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.runs import record_submission
from orchestrator.ledger.tables import ENDED, SUBMITTING, WAITING, Attempt
from tests.recorded_jobs import new_ledger, new_run, record_jobs

ELSEWHERE = "another-host"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = new_ledger(tmp_path)
    record_jobs(made, "a", run=replace(new_run(host=ELSEWHERE), user=user_name()))
    return made


@pytest.mark.fault(
    section="Job states",
    fault="Jobs of another machine in a shared ledger",
    promise="Only that machine can see them. `status` shows the last states and prints a note.",
)
def test_a_job_that_another_host_runs_keeps_its_state_and_is_said(ledger: Ledger) -> None:
    record_submission(ledger, "token", "77")
    assert refresh(ledger).complaints == (
        f"jobs run on {ELSEWHERE}, which alone can see them; states are as last seen",
    )
    assert [(row.phase, row.state, row.refreshed_at) for row in job_rows(ledger)] == [(WAITING, "PENDING", None)]


def test_a_submission_that_another_host_began_is_never_given_up_from_here(ledger: Ledger) -> None:
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(created_at=now() - timedelta(days=1)))
    assert refresh(ledger).complaints == (f"jobs were being started on {ELSEWHERE}, which alone can see them",)
    assert [row.phase for row in job_rows(ledger)] == [SUBMITTING]


def test_a_job_of_another_host_is_cancelled_there(ledger: Ledger) -> None:
    record_submission(ledger, "token", "77")
    done = cancel(ledger, job_rows(ledger))
    assert (done.asked, list(map(str, done.refused))) == (
        [],
        [f"a runs on {ELSEWHERE}. Hint: cancel it from {ELSEWHERE}"],
    )


def of_machine(ledger: Ledger, machine: MachineIdentity, host: str) -> None:
    record_submission(ledger, "token", "77")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(machine=str(machine), host=host))


@pytest.mark.fault(
    section="Job states",
    fault="A local job runs in another container of this host",
    promise="It does not count as dead.",
)
def test_a_job_in_another_container_of_this_host_is_not_taken_for_one_that_has_died(ledger: Ledger) -> None:
    of_machine(ledger, replace(this_machine_identity(), pid_namespace="1"), socket.gethostname())
    (complaint,) = refresh(ledger).complaints
    assert "in another container" in complaint
    assert [(row.phase, row.state) for row in job_rows(ledger)] == [(WAITING, "PENDING")]


@pytest.mark.fault(
    section="Job states",
    fault="The host name changes while a local job runs",
    promise="The job is still found.",
)
def test_a_job_is_seen_after_the_host_was_given_another_name(ledger: Ledger) -> None:
    of_machine(ledger, this_machine_identity(), ELSEWHERE)
    assert refresh(ledger).complaints == ()
    (row,) = job_rows(ledger)
    assert (row.phase, row.state) == (ENDED, "NODE_FAIL"), "its queue is gone"


@pytest.mark.fault(
    section="Job states",
    fault="The machine is rebooted",
    promise="Its local jobs have ended.",
)
def test_a_job_that_ran_before_the_machine_was_booted_again_has_ended(ledger: Ledger) -> None:
    of_machine(ledger, replace(this_machine_identity(), machine_id="id", boot_id="earlier"), socket.gethostname())
    here = replace(this_machine_identity(), machine_id="id")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.identity.this_machine_identity", lambda: here)
        assert refresh(ledger).complaints == ()
    assert [row.state for row in job_rows(ledger)] == ["NODE_FAIL"]
