"""What waits its turn is sent by whoever waits for it, as there is room; a full queue is not asked all the time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from orchestrator.launch import supervise
from orchestrator.launch.submit import submit
from orchestrator.launch.supervise import FULL_QUEUE_RETRY_S, Backlog
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import ENDED, QUEUED, Attempt
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Room for one job."""
    slurm = Slurm.on_path(tmp_path / "bin", monkeypatch)
    slurm.has_room_for(1)
    return slurm


@pytest.fixture
def ledger(site: Site, slurm: Slurm) -> Ledger:
    """One job in the queue, and two in turn."""
    assert slurm.calls() == []
    (site.folder / "clusters" / "there.yaml").write_text(PROFILE)
    cluster = site.cluster("there")
    ledger = new_ledger(site.folder)
    submit(site.plans("gbs=4"), cluster, ledger, site.folders, [])
    assert states(ledger) == ["PENDING", QUEUED, QUEUED]
    return ledger


def states(ledger: Ledger) -> list[str]:
    return [row.state for row in job_rows(ledger)]


def ends(ledger: Ledger) -> None:
    """The job in the queue."""
    change = {"phase": ENDED, "state": "COMPLETED", "verdict": "verified"}
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.scheduler_id.is_not(None)).values(**change))


def test_a_full_queue_is_asked_at_first_then_when_a_job_has_left_it_or_a_minute_has_passed(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("orchestrator.launch.supervise.time", SimpleNamespace(monotonic=lambda: clock[0]))
    backlog = Backlog(ledger, lambda _: None)

    def look() -> int:
        before = len(slurm.calls())
        backlog.submit_what_fits(job_rows(ledger))
        return len(slurm.calls()) - before

    assert look() > 0 and look() == 0
    clock[0] += FULL_QUEUE_RETRY_S - 1
    assert look() == 0
    clock[0] += 2
    assert look() > 0 and look() == 0
    ends(ledger)
    slurm.has_room_for(5)
    assert look() == 1 and states(ledger) == ["COMPLETED", "PENDING", "PENDING"]
    assert look() == 0


def test_what_another_process_is_sending_is_left_to_it(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.has_room_for(5)
    asked = len(slurm.calls())
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(pid=1))
    monkeypatch.setattr(supervise, "sender_is_alive", lambda _: True)
    Backlog(ledger, lambda _: None).submit_what_fits(job_rows(ledger))
    assert len(slurm.calls()) == asked
    monkeypatch.setattr(supervise, "sender_is_alive", lambda _: False)
    Backlog(ledger, lambda _: None).submit_what_fits(job_rows(ledger))
    assert states(ledger) == ["PENDING"] * 3


def test_only_what_is_waited_for_is_sent(ledger: Ledger, slurm: Slurm) -> None:
    slurm.has_room_for(5)
    Backlog(ledger, lambda _: None).submit_what_fits(job_rows(ledger)[:1])
    assert states(ledger) == ["PENDING", QUEUED, QUEUED]


def test_a_refusal_is_said_and_ends_nothing_else(ledger: Ledger, slurm: Slurm) -> None:
    said: list[str] = []
    slurm.has_room_for(5)
    slurm.then("refuse")
    Backlog(ledger, said.append).submit_what_fits(job_rows(ledger))
    assert len(said) == 1 and said[0].startswith("note: Invalid partition name specified")


@pytest.mark.fault(
    section="Submissions",
    fault="Another user's jobs are queued",
    promise="Only commands of that user submit them.",
)
def test_what_another_user_has_written_down_is_that_users_to_send(ledger: Ledger, slurm: Slurm) -> None:
    """Its folder is not ours to write in."""
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(user="somebody-else", pid=2**22 + 1))
    slurm.has_room_for(5)
    Backlog(ledger, lambda _: None).submit_what_fits(job_rows(ledger))
    assert states(ledger) == ["PENDING", QUEUED, QUEUED]
