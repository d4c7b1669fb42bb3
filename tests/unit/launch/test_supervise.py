"""While somebody waits for a run: what was nobody's fault is run again, and no more often than it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.launch.run_options import RunOptions
from orchestrator.launch.submit import submit
from orchestrator.launch.supervise import FollowedJobs, RunSupervisor, wait_for
from orchestrator.ledger.attempts import RefreshResult, job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import ENDED, FAILED, QUEUED, Attempt, Run
from tests.recorded_jobs import SimulatedSlurm, new_ledger
from tests.stand_in_site import Site
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

pytestmark = pytest.mark.slow


def supervised(site: Site, profile: str, request: RunOptions, where: str = "gbs=4") -> tuple[Ledger, RunSupervisor]:
    (site.folder / "clusters" / "there.yaml").write_text(profile)
    cluster = site.cluster("there")
    ledger, plans = new_ledger(site.folder), site.plans(where)
    run_id = submit(plans, cluster, ledger, site.folders, [], request).run_id
    return ledger, RunSupervisor(plans, cluster, ledger, site.folders, run_id, request, [], print)


def fails(ledger: Ledger, failure: str, **columns: Any) -> None:
    """The first job's latest attempt."""
    change = {"phase": ENDED, "state": "FAILED", "verdict": FAILED, "failure": failure, **columns}
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.id == job_rows(ledger)[0].attempt_id).values(**change))


def runs(ledger: Ledger) -> int:
    with ledger.reading() as session:
        return session.execute(sa.select(sa.func.count()).select_from(Run)).scalar_one()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm.on_path(tmp_path / "bin", monkeypatch)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A node is lost while a command waits",
    promise="The job is submitted again, once for each loss.",
)
def test_a_job_that_lost_its_node_is_submitted_again_once_for_each_time(
    site: Site, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, supervisor = supervised(site, PROFILE, RunOptions())
    fails(ledger, "node-fail", nodes="n7")
    for _ in range(3):
        supervisor.supervise()
    assert slurm.options() == ["--array=0-2%4", "--exclude=n7"] and runs(ledger) == 2
    assert [row.number for row in supervisor.rows()] == [2, 1, 1]
    said = capsys.readouterr().out
    assert said == "pp=1,tp=4,gbs=4 failed (node-fail) and is submitted again\n"


def test_a_retry_excludes_the_failed_nodes_and_those_of_the_profile(site: Site, slurm: Slurm) -> None:
    ledger, supervisor = supervised(site, PROFILE.replace("max_running: 4", "exclude: [n1, 'n[3-4]']"), RunOptions())
    fails(ledger, "node-fail", nodes="n7")
    supervisor.supervise()
    assert slurm.options() == ["--array=0-2%4", "--exclude=n1,n3,n4,n7"]


@pytest.mark.parametrize("failure", ["gpu-oom", "program", "timeout", "cancelled", "refused", "stopped"])
def test_what_would_fail_again_or_never_began_is_left(site: Site, slurm: Slurm, failure: str) -> None:
    ledger, supervisor = supervised(site, PROFILE, RunOptions())
    fails(ledger, failure)
    supervisor.supervise()
    assert len(slurm.calls()) == runs(ledger) == 1


@pytest.mark.fault(
    section="Submissions",
    fault="The queue stays full for a while",
    promise="The rest is submitted once, by the next `repro submit` or by a command that waits.",
    count=0,
)
def test_what_there_was_no_room_for_is_sent_when_there_is(site: Site, slurm: Slurm) -> None:
    slurm.has_room_for(1)
    ledger, supervisor = supervised(site, PROFILE, RunOptions())
    assert [row.state for row in supervisor.rows()] == ["PENDING", QUEUED, QUEUED]
    supervisor.supervise()
    assert [row.state for row in supervisor.rows()] == ["PENDING", QUEUED, QUEUED]
    slurm.has_room_for(5)
    fails(ledger, "program")
    supervisor.supervise()
    assert [row.state for row in supervisor.rows()] == ["FAILED", "PENDING", "PENDING"]


def test_a_second_attempt_that_has_to_wait_its_turn_is_sent_too(site: Site, slurm: Slurm) -> None:
    """It belongs to a run of its own."""
    ledger, supervisor = supervised(site, PROFILE, RunOptions())
    slurm.has_room_for(0)
    fails(ledger, "node-fail")
    supervisor.supervise()
    assert supervisor.rows()[0].state == QUEUED
    slurm.has_room_for(5)
    with ledger.writing() as session:
        other = sa.update(Attempt).where(Attempt.id == job_rows(ledger)[2].attempt_id)
        session.execute(other.values(phase=ENDED, state="COMPLETED", verdict="verified"))
    supervisor.supervise()
    assert supervisor.rows()[0].state == "PENDING"


def test_after_so_many_failures_what_waits_is_cancelled_and_nothing_is_run_again(site: Site, slurm: Slurm) -> None:
    ledger, supervisor = supervised(site, PROFILE, RunOptions(stop_after=1))
    fails(ledger, "program")
    end = "exit_code=1\nat=2026-01-01T00:00:00Z\nhost=h\nscheduler_id=100_0\npid=1\n"
    (Path(job_rows(ledger)[0].folder) / "end").write_text(end)
    supervisor.supervise()
    assert sorted(slurm.cancelled()) == ["100_1", "100_2"] and len(slurm.calls()) == 1


def test_what_slurm_runs_again_itself_is_left_to_it_without_a_trace(site: Site, slurm: Slurm) -> None:
    ledger, supervisor = supervised(site, PROFILE.replace("max_running: 4", "requeue: true"), RunOptions())
    fails(ledger, "node-fail")
    for _ in range(3):
        supervisor.supervise()
    assert len(slurm.calls()) == runs(ledger) == 1


def test_queued_attempts_are_submitted_before_the_end_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.launch.supervise.SLURM_WAIT_S", 0.0)
    slurm = SimulatedSlurm.install(tmp_path, monkeypatch)
    slurm.submit("a")
    slurm.end("a-id", "NODE_FAIL", "failed")
    calls: list[int] = []

    def again() -> None:
        calls.append(1)
        if len(calls) == 1:
            slurm.submit("a", token="18")
        elif len(calls) == 3:
            slurm.end("a-id")

    wait_for(RefreshResult, lambda: job_rows(slurm.ledger), again, lambda _: None, lambda _: None)
    assert (len(calls), slurm.row("a-id").number, slurm.row("a-id").verdict) == (3, 2, "verified")


def test_ended_jobs_are_not_read_again_and_a_new_attempt_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = SimulatedSlurm.install(tmp_path, monkeypatch)
    slurm.submit("a", "b")
    followed = FollowedJobs(slurm.ledger, job_rows(slurm.ledger))
    slurm.end("a-id")
    assert {row.job_id: row.verdict for row in followed.rows()} == {"a-id": "verified", "b-id": None}
    asked: list[dict[str, Any]] = []

    def counting(ledger: Any, **chosen: Any) -> list[Any]:
        asked.append(chosen)
        return job_rows(ledger, **chosen)

    monkeypatch.setattr("orchestrator.launch.supervise.job_rows", counting)
    followed.rows()
    assert asked == [{"only_open": True}]
    slurm.end("b-id", "FAILED", "failed")
    followed.rows()
    slurm.submit("b", token="18")
    assert {row.job_id: row.number for row in followed.rows()} == {"a-id": 1, "b-id": 2}
