"""Cancelling: only jobs that carry the attempt's token, and every attempt that the scheduler still has."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.identity import this_machine_identity, user_name
from orchestrator.launch import cancel as cancelling
from orchestrator.launch.cancel import cancel, may_have_jobs
from orchestrator.ledger.attempts import asked_to_end, job_rows
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.runs import record_submission
from orchestrator.ledger.tables import ENDED, FAILED, LOST, QUEUED, SUBMITTING, Attempt
from orchestrator.slurm.command import QueryAnswer
from orchestrator.slurm.notation import JobRecord
from tests.recorded_jobs import new_attempts, new_job, new_ledger, new_run, record_jobs, record_run, unless_verified

CLUSTER = "tests@c1:6817"


class Slurm:
    """A cluster whose queue has jobs by id, each with its comment; `cancelled` are the ids that scancel was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue: dict[str, str] = {}
        self.cancelled: list[str] = []
        monkeypatch.setattr(cancelling, "cluster_identity", lambda: CLUSTER)
        monkeypatch.setattr(cancelling, "query_jobs", self.query)
        monkeypatch.setattr(cancelling, "find_by_comments", self.find)
        monkeypatch.setattr(cancelling, "cancel_jobs", self.cancel)
        monkeypatch.setattr(
            cancelling, "why_not_the_attempts_job", lambda *_: None
        )  # tests/unit/launch/test_cancel_own_jobs.py

    def records(self) -> list[JobRecord]:
        return [
            JobRecord(job_id, "RUNNING", "", "n1", None, None, comment, None, None, "squeue")
            for job_id, comment in self.queue.items()
        ]

    def query(self, job_ids: Collection[str], is_ours: Callable[[JobRecord], bool | None]) -> QueryAnswer:
        asked = {one.job_id: one for one in self.records() if one.job_id in job_ids}
        ours, unclear = ({id_: one for id_, one in asked.items() if is_ours(one) is kind} for kind in (True, None))
        return QueryAnswer(ours, unclear=unclear)

    def find(self, comments: Collection[str]) -> QueryAnswer:
        return QueryAnswer({one.job_id: one for one in self.records() if one.comment in comments})

    def cancel(self, job_ids: Collection[str]) -> dict[str, str]:
        self.cancelled += job_ids
        return {}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def begin(ledger: Ledger, token: str, user: str | None = None) -> None:
    run = replace(new_run(), user=user or user_name())
    record_jobs(ledger, "a", token=token, run=run, scheduler="slurm", array=False)
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.token == token).values(slurm_cluster=CLUSTER))


def submitted(ledger: Ledger, token: str, job_id: str, user: str | None = None) -> None:
    begin(ledger, token, user)
    record_submission(ledger, token, job_id)


def test_the_job_with_the_attempts_token_is_cancelled(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger, "feed", "17")
    slurm.queue = {"17": "repro:feed"}
    done = cancel(ledger, job_rows(ledger))
    assert slurm.cancelled == ["17"] and len(done.asked) == 1 and done.refused == []


@pytest.mark.fault(
    section="Job states",
    fault="A job id in the ledger belongs to another job",
    promise="That job is not cancelled.",
)
@pytest.mark.parametrize("comment", ["", "repro:another", "their own"])
def test_a_job_id_in_the_ledger_that_is_another_jobs_is_never_cancelled(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, comment: str
) -> None:
    """Who may write to a shared ledger may write any job id into it."""
    submitted(ledger, "feed", "17")
    slurm.queue = {"17": comment}
    monkeypatch.setattr(cancelling, "why_not_the_attempts_job", lambda *_: "another job")
    done = cancel(ledger, job_rows(ledger))
    assert slurm.cancelled == [] and done.asked == [], "nothing is said to be cancelled"
    assert [str(problem) for problem in done.refused] == ["a (17): another job"]


@pytest.mark.fault(
    section="Job states",
    fault="`repro cancel` of a job that Slurm does not have",
    promise="It is not counted as being cancelled. The request is recorded.",
)
def test_a_job_that_slurm_does_not_have_is_not_said_to_be_cancelled(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger, "feed", "17")
    rows = job_rows(ledger)
    done = cancel(ledger, rows)
    assert (done.asked, done.refused, done.unlisted) == ([], [], rows) and slurm.cancelled == []
    assert asked_to_end(ledger, [rows[0].attempt_id])


def test_a_job_that_slurm_does_not_show_to_this_user_is_refused(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(ledger, "feed", "17", user="ann")
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    done = cancel(ledger, job_rows(ledger))
    assert done.asked == [] and slurm.cancelled == []
    assert "does not list this job of ann" in str(done.refused[0])


def test_a_job_of_another_cluster_is_refused(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger, "feed", "17")
    slurm.queue = {"17": "repro:feed"}
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(slurm_cluster="tests@c2:6817"))
    done = cancel(ledger, job_rows(ledger))
    assert done.asked == [] and slurm.cancelled == [] and "set SLURM_CONF" in str(done.refused[0])


@pytest.mark.fault(
    section="Job states",
    fault="A job that was `LOST` runs beside its next attempt",
    promise="`repro cancel` ends both.",
)
def test_every_attempt_of_a_case_that_the_scheduler_has_is_cancelled(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger, "first", "17")
    with ledger.writing() as session:
        lost = {"state": LOST, "phase": ENDED, "ended_at": now(), "verdict": FAILED, "failure": "lost"}
        session.execute(sa.update(Attempt).values(**lost))
    submitted(ledger, "second", "18")
    slurm.queue = {"17": "repro:first", "18": "repro:second"}
    done = cancel(ledger, may_have_jobs(ledger, job_rows(ledger)))
    assert sorted(slurm.cancelled) == ["17", "18"] and len(done.asked) == 2


def test_a_lost_attempt_that_is_gone_is_not_said_to_be_cancelled(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger, "first", "17")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(state=LOST, phase=ENDED, ended_at=now(), verdict=FAILED))
    done = cancel(ledger, may_have_jobs(ledger, job_rows(ledger)))
    assert (done.asked, done.refused, slurm.cancelled) == ([], [], [])


@pytest.mark.fault(
    section="Job states",
    fault="An interrupted submission, in the queue or not",
    promise="`repro cancel` ends it, and a late copy does not start.",
)
@pytest.mark.parametrize("queue", [{"17": "repro:feed"}, {}], ids=["in the queue", "never arrived"])
def test_a_submission_that_was_cut_off_is_cancelled_whether_slurm_has_it_or_not(
    ledger: Ledger, slurm: Slurm, queue: dict[str, str]
) -> None:
    begin(ledger, "feed")
    folder = ledger.runs[0] / "run" / "job"
    folder.mkdir(parents=True)
    with ledger.writing() as session:
        here = {"host": "here", "machine": str(this_machine_identity()), "pid": 2**22 + 1}
        session.execute(sa.update(Attempt).values(folder=str(folder), **here))
    slurm.queue = queue
    done = cancel(ledger, job_rows(ledger))
    assert slurm.cancelled == list(queue) and len(done.asked) == 1
    (row,) = job_rows(ledger)
    assert (row.state, row.failure) == ("NEVER_SUBMITTED", "cancelled")
    assert (folder / "cancelled").exists(), "a copy that arrives late does not start"


@pytest.mark.fault(
    section="Job states",
    fault="Accounting keeps no comments, and the folder in the ledger has the claim of another job",
    promise="That job is not cancelled.",
)
def test_an_id_in_the_folder_of_a_submission_that_was_cut_off_is_no_proof_for_cancelling_that_job(
    ledger: Ledger, slurm: Slurm
) -> None:
    """The folder of a row may have been edited into that of another job."""
    begin(ledger, "feed")
    folder = ledger.runs[0] / "run" / "job"
    folder.mkdir(parents=True)
    (folder / "claimed").write_text("18\n")
    with ledger.writing() as session:
        here = {"host": "here", "machine": str(this_machine_identity()), "pid": 2**22 + 1}
        session.execute(sa.update(Attempt).values(folder=str(folder), **here))
    slurm.queue = {"18": "repro:another"}
    cancel(ledger, job_rows(ledger))
    assert slurm.cancelled == []


@pytest.mark.fault(
    section="Job states",
    fault="Accounting keeps no comments, and the folder in the ledger is not a run folder of this user",
    promise="The command refuses it and writes nothing there.",
)
def test_the_folder_of_a_row_is_marked_only_if_it_is_a_run_folder_of_this_user(
    ledger: Ledger, slurm: Slurm, tmp_path: Path
) -> None:
    begin(ledger, "feed")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with ledger.writing() as session:
        here = {"host": "here", "machine": str(this_machine_identity()), "pid": 2**22 + 1}
        session.execute(sa.update(Attempt).values(folder=str(folder), **here))
    done = cancel(ledger, job_rows(ledger))
    assert done.asked == [] and len(done.refused) == 1 and list(folder.iterdir()) == [] and slurm.cancelled == []


ENDED_SUBMITTER = {"host": "here", "machine": str(this_machine_identity()), "pid": 2**22 + 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (ENDED_SUBMITTER | {"user": "ann"}, "ann submits it, and only that user can cancel it"),
        ({}, "it is being submitted on here. Hint: press Ctrl-C there, or try again in 5 minutes"),
        (
            ENDED_SUBMITTER | {"slurm_cluster": "tests@c2:6817"},
            f"it is a job of Slurm cluster tests@c2:6817, not of {CLUSTER}. "
            "Hint: set SLURM_CONF to that cluster's file",
        ),
    ],
    ids=["another user", "in another process", "to another cluster"],
)
def test_a_submission_that_may_be_recorded_elsewhere_is_not_cancelled(
    ledger: Ledger, slurm: Slurm, values: dict[str, object], message: str
) -> None:
    begin(ledger, "feed")
    folder = ledger.runs[0] / "run" / "job"
    folder.mkdir(parents=True)
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(folder=str(folder), **values))
    slurm.queue = {"17": "repro:feed"}
    (row,) = job_rows(ledger)
    done = cancel(ledger, [row])
    assert (done.asked, [str(problem) for problem in done.refused]) == ([], [f"{row.label}: {message}"])
    assert slurm.cancelled == [] and list(folder.iterdir()) == []
    assert job_rows(ledger)[0].phase == SUBMITTING


def test_a_queued_attempt_of_another_user_stays_queued(ledger: Ledger, slurm: Slurm) -> None:
    run = replace(new_run(), user="ann")
    record_run(ledger, run, [new_job("a", "slurm")], unless_verified, new_attempts())
    (row,) = job_rows(ledger)
    done = cancel(ledger, [row])
    message = f"{row.label}: ann queued this attempt, and only that user can cancel it"
    assert (done.asked, [str(problem) for problem in done.refused], slurm.cancelled) == ([], [message], [])
    assert job_rows(ledger)[0].state == QUEUED


def test_a_local_job_that_may_not_be_ended_is_refused_and_the_others_are_cancelled(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def end(folder: Path) -> None:
        if folder.name == "b-id":
            raise PermissionError
        ended.append(folder.name)

    monkeypatch.setattr(cancelling, "cancel_local", end)
    monkeypatch.setattr(cancelling, "require_own_folder", lambda *_: None)
    record_jobs(ledger, *"abc", run=replace(new_run(host=socket.gethostname()), user="ann"))
    record_submission(ledger, "token", "4")
    first, second, third = job_rows(ledger)
    done = cancel(ledger, [first, second, third])
    assert done.asked == [first, third] and ended == ["c-id", "a-id"], "the last one first"
    assert [str(problem) for problem in done.refused] == [
        f"{second.label}: it belongs to ann, and only that user can cancel it"
    ]
