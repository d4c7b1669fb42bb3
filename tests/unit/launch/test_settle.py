"""A crash at the worst moment: the next command finds out what became of it. Nothing twice, nothing lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.errors import ReproError, Unreachable
from orchestrator.launch import refresh as refreshing
from orchestrator.launch.executors import LocalScriptExecutor
from orchestrator.launch.refresh import refresh
from orchestrator.launch.submit import submit
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.jobs import job_rows
from orchestrator.ledger.submissions import record_run
from orchestrator.ledger.tables import NEVER_SUBMITTED, OPEN, SUBMITTING, WAITING, Attempt
from orchestrator.slurm.query import QueryAnswer
from orchestrator.slurm.records import JobRecord
from tests.unit.launch.stand_in import CHECKOUT, Site, wait_until
from tests.unit.ledger.making import attempts_under, new_job, new_ledger, new_run, record

# Submits three jobs and is killed outright where PLACE is called.
DIES = """
import os, signal, sys
from pathlib import Path
import orchestrator.launch.submit as submitting
from tests.unit.launch.stand_in import Site
from tests.unit.ledger.making import new_ledger
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
PLACE = die
site = Site(Path(sys.argv[1]))
submitting.submit(site.plans("gbs=4"), site.cluster(), new_ledger(site.folder), site.folders, [])
"""
BEFORE_THE_START = "submitting.LocalScriptExecutor.submit_queue"
AFTER_THE_START = "submitting.record_submission"


def killed(site: Site, place: str) -> Ledger:
    command = [sys.executable, "-c", DIES.replace("PLACE", place), str(site.folder)]
    assert subprocess.run(command, cwd=CHECKOUT, check=False).returncode == -signal.SIGKILL
    ledger = new_ledger(site.folder)
    assert [row.phase for row in job_rows(ledger)] == [SUBMITTING] * 3
    return ledger


def all_ended(ledger: Ledger) -> bool:
    refresh(ledger)
    return all(row.phase not in OPEN for row in job_rows(ledger))


def test_killed_before_the_queue_was_started_the_jobs_were_never_submitted_and_can_be(site: Site) -> None:
    ledger = killed(site, BEFORE_THE_START)
    assert refresh(ledger).complaints == ()
    rows = job_rows(ledger)
    assert [(row.state, row.verdict) for row in rows] == [(NEVER_SUBMITTED, "failed")] * 3
    assert "submit again" in str(rows[0].verdict_reason)
    submit(site.plans("gbs=4"), site.cluster(), ledger, site.folders, [])
    wait_until(lambda: all_ended(ledger))
    assert [(row.number, row.state) for row in job_rows(ledger)] == [(2, "COMPLETED")] * 3
    assert len(site.started()) == 3


@pytest.mark.parametrize("when", ["while they run", "when all is over"])
def test_killed_before_the_queue_was_recorded_the_jobs_are_found_and_not_run_again(site: Site, when: str) -> None:
    site.behave("slow")
    ledger = killed(site, AFTER_THE_START)
    if when == "when all is over":
        ended = site.folder / "ended"
        wait_until(lambda: ended.exists() and len(ended.read_text().splitlines()) == 3)
    refresh(ledger)
    assert submit(site.plans("gbs=4"), site.cluster(), ledger, site.folders, []).recorded.to_submit == {}
    wait_until(lambda: all_ended(ledger))
    assert [(row.number, row.state) for row in job_rows(ledger)] == [(1, "COMPLETED")] * 3
    assert len(site.started()) == 3


def slurm_submission(ledger: Ledger, host: str = "", pid: int = 2**22 + 1) -> None:
    """Three jobs of which the ledger does not know whether Slurm has them."""
    run = new_run(host=host or socket.gethostname(), pid=pid)
    record_run(ledger, run, [new_job(name, "slurm") for name in "abc"], attempts_under("feed"))


def slurm_answers(monkeypatch: pytest.MonkeyPatch, *job_ids: str, complaint: str | None = None) -> list[str]:
    """What Slurm is asked, answered with these jobs."""
    asked: list[str] = []

    def find_by_comment(comment: str) -> QueryAnswer:
        asked.append(comment)
        records = {job_id: JobRecord.__new__(JobRecord) for job_id in job_ids}
        return QueryAnswer(records, (complaint,) if complaint else ())

    monkeypatch.setattr(refreshing, "find_by_comment", find_by_comment)
    monkeypatch.setattr(refreshing, "_observe_slurm", lambda _rows: ({}, []))
    return asked


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def test_a_submission_that_slurm_has_is_found_by_its_token(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_submission(ledger)
    asked = slurm_answers(monkeypatch, "17_0", "17_1", "17_2")
    refresh(ledger)
    assert asked == ["repro:feed"]
    assert [(row.scheduler_id, row.phase) for row in job_rows(ledger)] == [(f"17_{n}", WAITING) for n in range(3)]
    refresh(ledger)
    assert asked == ["repro:feed"]


def test_a_submission_that_slurm_surely_does_not_have_can_be_made_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_answers(monkeypatch)
    refresh(ledger)
    assert {row.state for row in job_rows(ledger)} == {NEVER_SUBMITTED}


def test_nothing_is_concluded_where_slurm_could_not_be_asked_for_everything(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_answers(monkeypatch, complaint="accounting is away")
    assert any("feed" in complaint for complaint in refresh(ledger).complaints)
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}


def test_nothing_is_concluded_from_a_scheduler_that_does_not_answer(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)

    def away(_comment: str) -> QueryAnswer:
        raise Unreachable("squeue: no answer")

    monkeypatch.setattr(refreshing, "find_by_comment", away)
    assert refresh(ledger).complaints == ("squeue: no answer",)
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}


def test_a_submission_that_is_being_made_is_left_alone(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = slurm_answers(monkeypatch)
    with subprocess.Popen(["bash", "-c", "read -r _; : repro"], stdin=subprocess.PIPE) as submitter:
        wait_until(lambda: b"repro" in Path(f"/proc/{submitter.pid}/cmdline").read_bytes())
        slurm_submission(ledger, pid=submitter.pid)
        assert refresh(ledger).complaints == ()
        assert (asked, {row.phase for row in job_rows(ledger)}) == ([], {SUBMITTING})
        submitter.communicate(b"\n")
    refresh(ledger)
    assert asked == ["repro:feed"]


def test_a_submission_from_another_login_node_is_given_time(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_submission(ledger, host="another", pid=os.getpid())
    asked = slurm_answers(monkeypatch)
    refresh(ledger)
    assert asked == []
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(created_at=now() - 2 * refreshing.ANOTHER_HOST_GRACE))
    refresh(ledger)
    assert asked == ["repro:feed"]


def test_a_job_id_that_slurm_gave_out_again_is_not_taken_for_ours(ledger: Ledger) -> None:
    record(ledger, "a", scheduler="slurm")
    (row,) = job_rows(ledger)
    theirs = JobRecord.__new__(JobRecord)
    for comment, ours in (("repro:token", True), ("", True), ("repro:another", False), ("their own", False)):
        object.__setattr__(theirs, "comment", comment)
        assert refreshing._is_ours(theirs, row) is ours


def test_the_end_record_of_another_job_in_the_same_folder_says_nothing(ledger: Ledger, tmp_path: Path) -> None:
    record(ledger, "a", scheduler="slurm")
    row = replace(job_rows(ledger)[0], folder=str(tmp_path), scheduler_id="17_0")
    assert refreshing._from_end_record(row) is None
    for scheduler_id, known in (("16_0", False), ("17_0", True)):
        end = f"exit_code=3\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id={scheduler_id}\npid=1\n"
        (tmp_path / "end").write_text(end)
        assert (refreshing._from_end_record(row) is not None) is known
    seen = refreshing._from_end_record(row)
    assert seen is not None and (seen.state, seen.exit_code, seen.nodes) == ("FAILED", 3, "n1")


def test_submissions_behind_a_refused_one_are_known_not_to_have_been_made(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = site.plans("gbs=4")
    plans = [replace(p, resources=replace(p.resources, time_limit=f"0:0{n}:00")) for n, p in enumerate(plans, 1)]
    sent: list[object] = []

    def second_is_out_of_reach(*words: object) -> str:
        sent.append(words)
        if len(sent) == 2:
            raise Unreachable("slurmctld is away")
        return "17"

    monkeypatch.setattr(LocalScriptExecutor, "submit_queue", second_is_out_of_reach)
    ledger = new_ledger(site.folder)
    with pytest.raises(ReproError, match="slurmctld is away"):
        submit(plans, site.cluster(), ledger, site.folders, [])
    assert [row.state for row in job_rows(ledger)] == ["PENDING", "SUBMITTING", NEVER_SUBMITTED]
