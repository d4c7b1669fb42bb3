"""Tests of `repro wait`: it waits for every job that can start, and the exit code is that of the jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.launch.supervise import FollowedJobs, wait_for
from orchestrator.ledger.attempts import RefreshResult, job_rows
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import Run, RunJob
from tests.recorded_jobs import SimulatedSlurm, log_text, press_ctrl_c
from tests.unit.catalog.entries import THREE_METHODS
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    monkeypatch.setattr("orchestrator.launch.supervise.SLURM_WAIT_S", 0.0)
    return SimulatedSlurm.install(repro.site.folder, monkeypatch)


def test_jobs_of_this_machine_are_waited_for_and_judged(repro: Caller) -> None:
    assert repro("wait").returncode == 2  # nothing was submitted yet
    repro.site.behave("slow", "pp1-gbs4")
    assert repro("submit", *HERE, "--where", "gbs=4").returncode == 0
    done = repro("wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" verified ") == 3
    assert "3/3 cases ended" in done.stderr and "[##########] 3/3 verified" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: repro collect figure-13 ")
    again = repro("wait")
    assert (again.returncode, again.stdout, again.complaints) == (0, "", ["no open jobs"])
    assert repro("wait", "figure-13").returncode == 0


def test_a_job_that_fails_is_exit_1_and_the_others_are_waited_for(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c")
    slurm.on_query = [
        lambda: slurm.start("a-id", log_text(3)),
        lambda: slurm.end("a-id", "TIMEOUT", "failed", failure="timeout", verdict_reason="TIMEOUT"),
        lambda: slurm.start("b-id", log_text(5)),
        lambda: slurm.end("b-id"),
        lambda: slurm.end("c-id"),
    ]
    done = repro("wait")
    assert done.returncode == 1 and slurm.on_query == []
    assert "0/3 cases ended; a iteration 3/8" in done.stderr and "1/3 cases ended; b iteration 5/8" in done.stderr
    assert "2/3 verified, 1 failed (1 timeout)" in done.stderr
    assert done.stderr.splitlines()[-1] == "next: repro logs a-id   # why a failed"
    assert set(slurm.intervals_s) == {15.0}


def test_a_failure_before_the_first_query_counts(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.on_query = [lambda: slurm.end("a-id", "FAILED", "failed")]
    assert repro("wait").returncode == 1
    assert repro("wait", "a-id").returncode == 1  # asked for by name it counts for ever


def test_wait_waits_only_for_the_named_jobs(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.on_query = [lambda: None, lambda: slurm.end("b-id")]
    done = repro("wait", "b-id")
    assert done.returncode == 0 and [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["b-id"]
    unknown = repro("wait", "b-id", "zzz")
    assert unknown.returncode == 2 and "zzz: no experiment or job of this name" in unknown.stderr


@pytest.mark.fault(
    section="Ends that are expected",
    fault="A case runs out of memory as published",
    promise="The job is done and not repeated. Any other class is a failure.",
    count=0,
)
def test_a_job_that_runs_out_of_memory_as_published_is_well_and_any_other_is_not(
    repro: Caller, slurm: SimulatedSlurm
) -> None:
    out_of_memory = {"failure": "gpu-oom", "verdict_reason": "out of memory on the GPU (rank 3)"}
    slurm.submit("case=baseline", "b")
    with slurm.ledger.writing() as session:
        session.execute(sa.update(Run).values(experiment="own/figure-1", scale="paper"))
        session.execute(sa.update(RunJob).where(RunJob.case_name == "case=baseline").values(case_name="case=plain"))
    folder = repro.site.folder / "experiments" / "own"
    folder.mkdir(parents=True)
    (folder / "paper.yaml").write_text("title: t\nvenue: v\n")
    (folder / "figure-1.yaml").write_text(THREE_METHODS)
    slurm.end("case=baseline-id", "FAILED", "failed", **out_of_memory)
    slurm.end("b-id")
    done = repro("wait", "figure-1")
    assert done.returncode == 0, done.stderr
    slurm.update("case=baseline-id", failure="program", verdict_reason="FAILED with exit code 1")
    assert repro("wait", "figure-1").returncode == 1
    slurm.update("case=baseline-id", **out_of_memory)
    slurm.update("b-id", verdict="failed", **out_of_memory)
    assert repro("wait", "figure-1").returncode == 1


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("JobHeldUser", "JobHeldUser: is held by its user or an account's coordinator. Hint: release it with"),
        ("DependencyNeverSatisfied", "DependencyNeverSatisfied: depends on a job that did not succeed"),
    ],
)
def test_jobs_that_can_never_start_end_the_wait(repro: Caller, slurm: SimulatedSlurm, reason: str, said: str) -> None:
    slurm.submit("a", "b")
    slurm.update("b-id", reason=reason)
    slurm.on_query = [lambda: slurm.start("a-id"), lambda: None, lambda: slurm.end("a-id"), press_ctrl_c]
    done = repro("wait")
    assert done.returncode == 1 and slurm.on_query == [press_ctrl_c]
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("b-id (b): ")]
    assert said in line and ". Hint: " in line
    assert "1/2 verified, 1 waiting" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: repro history b-id ")


@pytest.mark.parametrize("reason", ["Priority", "Resources", "Dependency", "ReqNodeNotAvail", "NewWord", None])
def test_jobs_that_may_still_start_are_waited_for(repro: Caller, slurm: SimulatedSlurm, reason: str | None) -> None:
    slurm.submit("a")
    slurm.update("a-id", reason=reason)
    slurm.on_query = [lambda: None, lambda: None, lambda: slurm.end("a-id")]
    assert repro("wait").returncode == 0 and slurm.on_query == []


def test_jobs_with_the_same_reason_to_wait_are_one_line(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c")
    for job in ("a-id", "b-id", "c-id"):
        slurm.update(job, reason="JobHeldUser" if job != "c-id" else "BadConstraints")
    lines = [line for line in repro("wait").stderr.splitlines() if ": is " in line or ": requests " in line]
    assert len(lines) == 2
    assert lines[0].startswith("2 jobs, first a-id (a): JobHeldUser: ") and "scontrol release ID" in lines[0]
    assert lines[1].startswith("c-id (c): BadConstraints: ")


def test_a_queued_attempt_behind_held_jobs_is_not_waited_for(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.launch.supervise.Backlog.submit_what_fits", lambda *_: None)
    slurm.submit("a", "b")
    slurm.update("a-id", reason="JobHeldUser")
    slurm.update("b-id", state="QUEUED", scheduler_id=None, reason="the queue is full")
    slurm.on_query = [lambda: None, press_ctrl_c]
    done = repro("wait")
    assert done.returncode == 1 and slurm.on_query == [press_ctrl_c]
    assert "a-id (a): JobHeldUser: is held by" in done.stderr
    assert "b-id (b): queued, not submitted yet (the queue is full). Hint: repro wait b-id submits it" in done.stderr
    slurm.on_query = [lambda: None, lambda: None, lambda: slurm.end("b-id")]
    assert repro("wait", "b-id").returncode == 0 and slurm.on_query == []


def test_wait_submits_queued_attempts(repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.submit("a")
    slurm.update("a-id", state="QUEUED", scheduler_id=None)

    def sends(_turns: object, rows: list[JobRow]) -> None:
        if rows[0].state == "QUEUED":
            slurm.update("a-id", state="PENDING", scheduler_id="18")
        else:
            slurm.end("a-id")

    monkeypatch.setattr("orchestrator.launch.supervise.Backlog.submit_what_fits", sends)
    done = repro("wait")
    assert done.returncode == 0 and " 18" in done.stdout


def test_queued_attempts_are_submitted_before_the_end_is_checked(slurm: SimulatedSlurm) -> None:
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
    slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_ctrl_c_ends_the_wait_and_not_the_jobs(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.on_query = [lambda: None, press_ctrl_c]
    done = repro("wait")
    assert done.returncode == 130 and slurm.row("a-id").phase == "waiting"
    assert done.stderr.splitlines()[-2:] == [
        "no longer waiting; the jobs continue",
        "next: repro status figure-13 --watch   # or: repro cancel figure-13",
    ]


def test_an_unreachable_scheduler_is_reported_once_and_waited_for(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.answer = RefreshResult(("squeue: no answer",), None)
    slurm.on_query = [lambda: None, lambda: None, lambda: slurm.end("a-id")]
    done = repro("wait")
    assert done.returncode == 0 and done.stderr.count("note: squeue: no answer") == 1


def test_of_many_running_jobs_a_line_names_a_few(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c", "d", "e")

    def run() -> None:
        for row in job_rows(slurm.ledger):
            slurm.start(row.job_id)

    def end() -> None:
        for row in job_rows(slurm.ledger):
            slurm.end(row.job_id)

    slurm.on_query = [run, end]
    done = repro("wait")
    assert done.returncode == 0
    assert "0/5 cases ended; a iteration 0/8, b iteration 0/8, c iteration 0/8, and 2 more" in done.stderr


def test_a_timeout_is_exit_124_and_cancels_nothing(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.start("b-id", log_text(2))
    slurm.on_query = [lambda: slurm.end("a-id"), *[lambda: None] * 10_000]
    done = repro("wait", "--timeout", "1s")
    assert done.returncode == 124 and slurm.row("b-id").state == "RUNNING"
    assert done.stderr.splitlines()[-2:] == [
        "--timeout 1s: 1 job not ended; no job was cancelled",
        "next: repro wait figure-13   # wait again",
    ]
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["a-id", "b-id"]
    wrong = repro("wait", "--timeout", "soon")
    assert wrong.returncode == 2
    assert wrong.complaints == ["repro: --timeout soon: not a time. Hint: for example 10m, 600s, 1h or 0:10:00"]


def test_wait_takes_only_jobs_that_match(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.end("a-id")
    assert repro("wait", "--scale", "paper", "--timeout", "1s").complaints == ["no open jobs"]
    assert repro("wait", "figure-13", "--cluster", "elsewhere").complaints == ["no open jobs"]
    slurm.on_query = [lambda: slurm.end("b-id")]
    assert repro("wait", "--scale", slurm.row("b-id").scale).returncode == 0 and slurm.on_query == []


def test_state_selects_by_slurms_words_and_by_verdict(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c", "d")
    slurm.end("a-id")
    slurm.end("b-id", "TIMEOUT", "failed", failure="timeout", verdict_reason="TIMEOUT")
    slurm.start("c-id", log_text(2))

    def jobs(*words: str) -> list[str]:
        done = repro("status", *words, "--json")
        assert done.returncode == 0, done.stderr
        return [row["job"] for row in json.loads(done.stdout)["jobs"]]

    assert jobs("--state", "verified") == ["a-id"] and jobs("--state", "Failed") == ["b-id"]
    assert jobs("--state", "running,pending") == ["c-id", "d-id"] and jobs("--state", "timeout") == ["b-id"]
    assert jobs("--state", "completed", "--cluster", "elsewhere") == []
    wrong = repro("status", "--state", "runing,verified")
    assert (wrong.returncode, wrong.complaints) == (
        2,
        ['repro: --state runing: no such state. Did you mean "RUNNING"?'],
    )
    assert "Hint: a state of Slurm (PENDING, " in repro("cancel", "figure-13", "--state", "xyz").stderr
    none = repro("cancel", "figure-13", "--state", "queued")
    assert (none.returncode, none.complaints[-1]) == (0, "no open job to cancel")
    # A later attempt does not hide a verified result.
    slurm.submit("a", token="18")
    slurm.start("a-id", log_text(2))
    assert jobs("--state", "verified") == ["a-id"] and jobs("--state", "running") == ["a-id", "c-id"]
