"""Stopping an experiment that fails again and again in one way: what waits is cancelled, what runs goes on."""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.identity import user_name
from orchestrator.launch.cancel import cancel
from orchestrator.launch.run_options import RunPlan
from orchestrator.launch.supervise import Backlog, stop_if_due
from orchestrator.ledger.attempts import asked_to_end, job_rows, record_observations
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.runs import record_run_options, record_submission
from orchestrator.ledger.tables import (
    ENDED,
    FAILED,
    NEVER_SUBMITTED,
    PARTIAL,
    QUEUED,
    RUNNING,
    VERIFIED,
    WAITING,
    Attempt,
)
from orchestrator.megatron.logs.parse import read_log
from orchestrator.megatron.logs.verdict import Expected, judge
from orchestrator.reading.causes import Cause
from orchestrator.reading.failure import POLICIES, Ending, Failure, failure_of
from tests.recorded_jobs import new_ledger, new_run, record_jobs

pytestmark = pytest.mark.slow


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Six jobs in Slurm's queue: 17_0 to 17_5."""
    made = new_ledger(tmp_path)
    run = replace(new_run(host=socket.gethostname()), user=user_name())
    record_jobs(made, *"abcdef", run=run, scheduler="slurm")
    record_submission(made, "token", "17")
    for name in "abcdef":
        update(made, name, folder=str(job_folder(made, name)))
    return made


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that scancel was given."""
    ids: list[str] = []

    def cancel_jobs(job_ids: Collection[str]) -> dict[str, str]:
        ids.extend(job_ids)
        return {}

    monkeypatch.setattr("orchestrator.launch.cancel.cancel_jobs", cancel_jobs)
    monkeypatch.setattr("orchestrator.launch.cancel.cluster_identity", lambda: "tests@c1:6817")
    monkeypatch.setattr("orchestrator.launch.cancel._live", lambda by_id: by_id)
    monkeypatch.setattr("orchestrator.launch.cancel.why_not_the_attempts_job", lambda *_: None)
    return ids


def update(ledger: Ledger, name: str, **columns: Any) -> None:
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.job_id == f"{name}-id").values(**columns))


ENDS = {
    Failure.GPU_OOM: (1, "torch.OutOfMemoryError: CUDA out of memory."),
    Failure.TIMEOUT: (143, "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***"),
    Failure.PROGRAM: (1, "ValueError: x"),
    Failure.STOPPED: (95, ""),
    Failure.CANCELLED: (143, "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-01-01 ***"),
}
"""Exit code and log of a job that failed so. A lost node leaves no end record."""


def job_folder(ledger: Ledger, name: str) -> Path:
    return ledger.runs[0] / "the-run" / name


def fails(ledger: Ledger, names: str, failure: Failure) -> None:
    for name in names:
        update(ledger, name, phase=ENDED, state="FAILED", verdict=FAILED, failure=str(failure))
        if failure in ENDS:
            leave(job_folder(ledger, name), *ENDS[failure])


def leave(folder: Path, code: int, log: str) -> None:
    """Leave the end record and the log of a job."""
    folder.mkdir(parents=True)
    (folder / "end").write_text(f"exit_code={code}\nat=2026-01-01T00:00:00Z\nhost=h\nscheduler_id=17\npid=1\n")
    (folder / "log.txt").write_text(log)


def stop(ledger: Ledger, after: int) -> str | None:
    return stop_if_due(ledger, job_rows(ledger), after)


def test_after_so_many_failures_of_a_class_what_waits_is_cancelled_and_what_runs_is_not(
    ledger: Ledger, cancelled: list[str]
) -> None:
    fails(ledger, "ab", Failure.GPU_OOM)
    update(ledger, "c", phase=RUNNING, state="RUNNING")
    assert stop(ledger, 2) == "2 jobs failed (gpu-oom): 3 that had not started are cancelled"
    assert sorted(cancelled) == ["17_3", "17_4", "17_5"]
    asked = asked_to_end(ledger, [row.attempt_id for row in job_rows(ledger)])
    assert {row.case_name for row in job_rows(ledger) if row.attempt_id in asked} == set("def")
    assert {row.phase for row in job_rows(ledger)[3:]} == {WAITING}, "that they have ended is the scheduler's to say"


def test_fewer_failures_or_failures_of_several_classes_stop_nothing(ledger: Ledger, cancelled: list[str]) -> None:
    assert stop(ledger, 1) is None
    fails(ledger, "a", Failure.GPU_OOM)
    assert stop(ledger, 2) is None
    fails(ledger, "b", Failure.TIMEOUT)
    fails(ledger, "c", Failure.NODE_FAIL)
    assert stop(ledger, 2) is None and cancelled == []


def test_a_job_that_failed_after_the_last_poll_is_not_counted_and_not_cancelled(
    ledger: Ledger, cancelled: list[str]
) -> None:
    """The ledger has it as WAITING until the next poll. If it were cancelled, its failure would be recorded as that."""
    fails(ledger, "a", Failure.GPU_OOM)
    leave(job_folder(ledger, "b"), *ENDS[Failure.GPU_OOM])
    assert stop(ledger, 2) is None and cancelled == []
    update(ledger, "b", phase=ENDED, state="FAILED", verdict=FAILED, failure=str(Failure.GPU_OOM))
    assert stop(ledger, 2) == "2 jobs failed (gpu-oom): 4 that had not started are cancelled"
    assert sorted(cancelled) == ["17_2", "17_3", "17_4", "17_5"]


def test_the_class_that_is_met_most_decides(ledger: Ledger, cancelled: list[str]) -> None:
    fails(ledger, "a", Failure.TIMEOUT)
    fails(ledger, "bcd", Failure.PROGRAM)
    assert stop(ledger, 3) == "3 jobs failed (exit code 1): 2 that had not started are cancelled"
    assert len(cancelled) == 2


@pytest.mark.parametrize("failure", [Failure.STOPPED, Failure.CANCELLED])
def test_what_was_kept_from_running_is_no_failure_of_the_experiment(
    ledger: Ledger, cancelled: list[str], failure: Failure
) -> None:
    fails(ledger, "abcde", failure)
    assert stop(ledger, 2) is None and cancelled == []


def test_what_is_verified_does_not_count(ledger: Ledger, cancelled: list[str]) -> None:
    for name in "abc":
        update(ledger, name, phase=ENDED, state="COMPLETED", verdict=VERIFIED)
    assert stop(ledger, 2) is None and cancelled == []


def test_where_nothing_waits_nothing_is_said(ledger: Ledger, cancelled: list[str]) -> None:
    fails(ledger, "abcde", Failure.PROGRAM)
    update(ledger, "f", phase=RUNNING, state="RUNNING")
    assert stop(ledger, 2) is None and cancelled == []


def test_what_waits_its_turn_is_withdrawn_without_a_word_to_the_scheduler(ledger: Ledger, cancelled: list[str]) -> None:
    fails(ledger, "abcd", Failure.PROGRAM)
    for name in "ef":
        update(ledger, name, state=QUEUED, token="", scheduler_id=None)
    assert stop(ledger, 2) == "4 jobs failed (exit code 1): 2 that had not started are cancelled"
    assert cancelled == []
    assert [(row.state, row.failure) for row in job_rows(ledger)[4:]] == [(NEVER_SUBMITTED, "stopped")] * 2
    assert stop(ledger, 2) is None, "said once"


# ---- jobs that wait for a canary -----------------------------------------------------------------------------


def with_canary(ledger: Ledger) -> None:
    """Job `a` is the canary of the run."""
    record_run_options(ledger, job_rows(ledger)[0].run_id, RunPlan(canary="a-id").as_json())


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The canary failed, also for a reason that only its verdict shows",
    promise="The jobs that wait for it are cancelled while a command waits. They are `stopped`, not `cancelled`.",
)
@pytest.mark.parametrize("failure", [Failure.CONFIGURATION, Failure.NUMBERS])
def test_jobs_that_wait_for_a_failed_canary_are_cancelled_once(
    ledger: Ledger, cancelled: list[str], failure: Failure
) -> None:
    with_canary(ledger)
    canaries = Backlog(ledger, print)
    assert canaries.cancel_dependents(job_rows(ledger)) == []
    fails(ledger, "a", failure)
    update(ledger, "b", phase=RUNNING, state="RUNNING")
    message = f"the canary, a, failed ({failure}): 4 that had not started are cancelled"
    assert canaries.cancel_dependents(job_rows(ledger)) == [message]
    assert sorted(cancelled) == ["17_2", "17_3", "17_4", "17_5"]
    assert canaries.cancel_dependents(job_rows(ledger)) == []
    ended = end_of(ledger, "f")
    assert ended.reason == f"stopped after the canary, a, failed ({failure})"
    assert failure_of(ended, None) is Failure.STOPPED


def test_jobs_that_wait_for_a_partial_canary_are_not_cancelled(ledger: Ledger, cancelled: list[str]) -> None:
    with_canary(ledger)
    update(ledger, "a", phase=ENDED, state="TIMEOUT", verdict=PARTIAL)
    assert Backlog(ledger, print).cancel_dependents(job_rows(ledger)) == [] and cancelled == []


# ---- jobs that a user cancelled ------------------------------------------------------------------------------


def end_of(ledger: Ledger, name: str, state: str = "CANCELLED", reason: str | None = None) -> Ending:
    """Return the end of a job after the scheduler has reported it."""
    row = next(row for row in job_rows(ledger) if row.case_name == name)
    observation = Observation(state=state, phase=ENDED, reason=reason, exit_code=95 if state == "FAILED" else None)
    record_observations(ledger, {row.attempt_id: observation}, [])
    row = next(row for row in job_rows(ledger) if row.case_name == name)
    return Ending(row.phase, row.state, row.exit_code, row.reason)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A user cancels a canary and the jobs that wait for it",
    promise="All are `cancelled`, by this user, and none is repeated.",
)
@pytest.mark.parametrize(
    ("state", "reason"),
    [("CANCELLED", None), ("CANCELLED", "the canary (a) failed (Dependency)"), ("FAILED", "NonZeroExitCode")],
)
@pytest.mark.parametrize("is_stopped_too", [False, True])
def test_what_a_user_cancelled_is_cancelled_by_that_user_however_it_ends(
    ledger: Ledger, cancelled: list[str], state: str, reason: str | None, is_stopped_too: bool
) -> None:
    rows = job_rows(ledger)
    if is_stopped_too:
        cancel(ledger, rows, "the canary, a, failed (program)")
    cancel(ledger, rows)
    ending = end_of(ledger, "b", state, reason)
    assert ending.reason == f"cancelled by {user_name()}"
    judgement = judge(read_log(b""), Expected(8, {}), ending, lambda: Cause("not started", "x", None))
    assert judgement is not None and judgement.failure is Failure.CANCELLED
    assert judgement.reason == f"cancelled by {user_name()}; the log has no iteration"
    assert not POLICIES[judgement.failure].retry and len(cancelled) == 6 * (1 + is_stopped_too)


def test_an_end_that_another_terminal_saw_first_is_cancelled_by_the_user(ledger: Ledger, cancelled: list[str]) -> None:
    rows = job_rows(ledger)
    assert end_of(ledger, "b", reason="not by repro").reason == "not by repro"
    cancel(ledger, rows)
    assert job_rows(ledger)[1].reason == f"cancelled by {user_name()}" and cancelled


def test_a_job_that_completed_before_it_was_cancelled_keeps_its_end(ledger: Ledger, cancelled: list[str]) -> None:
    cancel(ledger, job_rows(ledger))
    assert end_of(ledger, "b", "COMPLETED").reason is None and cancelled


def test_without_a_canary_a_failed_job_cancels_no_other(ledger: Ledger, cancelled: list[str]) -> None:
    fails(ledger, "a", Failure.CONFIGURATION)
    assert Backlog(ledger, print).cancel_dependents(job_rows(ledger)) == [] and cancelled == []
