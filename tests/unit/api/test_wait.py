"""Wait for jobs: every job that can start is waited for, and a failure is reported."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.ledger.attempts import RefreshResult
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import Run, RunJob
from tests.recorded_jobs import SimulatedSlurm, log_text, press_ctrl_c
from tests.unit.api.project import Project
from tests.unit.catalog.entries import THREE_METHODS


def wait(project: Project, *targets: str, **options: str) -> api.Waited:
    return api.wait(targets, session=project.session, **options)


def failed(project: Project, *targets: str, **options: str) -> list[str]:
    """Return the failed jobs."""
    return [row.job_id for row in wait(project, *targets, **options).failed]


def test_a_job_that_fails_is_reported_and_the_others_are_waited_for(
    project: Project, simulated: SimulatedSlurm
) -> None:
    simulated.submit("a", "b", "c")
    simulated.on_query = [
        lambda: simulated.start("a-id", log_text(3)),
        lambda: simulated.end("a-id", "TIMEOUT", "failed", failure="timeout", verdict_reason="TIMEOUT"),
        lambda: simulated.start("b-id", log_text(5)),
        lambda: simulated.end("b-id"),
        lambda: simulated.end("c-id"),
    ]
    waited = wait(project)
    assert simulated.on_query == [] and set(simulated.intervals_s) == {15.0}
    assert ([row.job_id for row in waited.failed], waited.open_jobs, waited.timed_out) == (["a-id"], 0, False)
    assert [count.text() for count in waited.tallies] == ["2/3 verified, 1 failed (1 timeout)"]


def test_a_failure_before_the_first_query_counts(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.on_query = [lambda: simulated.end("a-id", "FAILED", "failed")]
    assert failed(project) == ["a-id"]
    assert failed(project, "a-id") == ["a-id"], "a job that is named counts for ever"


def test_only_the_named_jobs_are_waited_for(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b")
    simulated.on_query = [lambda: None, lambda: simulated.end("b-id")]
    assert [job.job for job in wait(project, "b-id").jobs] == ["b-id"]
    with pytest.raises(ReproError, match="^zzz: no experiment or job of this name"):
        wait(project, "b-id", "zzz")


def test_only_jobs_that_match_are_waited_for(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b")
    simulated.end("a-id")
    assert wait(project, scale="paper") == wait(project, "figure-13", cluster="elsewhere") == api.Waited((), (), ())
    simulated.on_query = [lambda: simulated.end("b-id")]
    assert failed(project, scale=simulated.row("b-id").scale) == [] and simulated.on_query == []


@pytest.mark.fault(
    section="Ends that are expected",
    fault="A case runs out of memory as published",
    promise="The job is done and not repeated. Any other class is a failure.",
    count=0,
)
def test_a_job_that_runs_out_of_memory_as_published_is_no_failure_and_any_other_is(
    project: Project, simulated: SimulatedSlurm
) -> None:
    out_of_memory = {"failure": "gpu-oom", "verdict_reason": "out of memory on the GPU (rank 3)"}
    simulated.submit("case=baseline", "b")
    with simulated.ledger.writing() as session:
        session.execute(sa.update(Run).values(experiment="own/figure-1", scale="paper"))
        session.execute(sa.update(RunJob).where(RunJob.case_name == "case=baseline").values(case_name="case=plain"))
    folder = project.folder / "experiments" / "own"
    folder.mkdir(parents=True)
    (folder / "paper.yaml").write_text("title: t\nvenue: v\n")
    (folder / "figure-1.yaml").write_text(THREE_METHODS)
    simulated.end("case=baseline-id", "FAILED", "failed", **out_of_memory)
    simulated.end("b-id")
    assert failed(project, "figure-1") == []
    simulated.update("case=baseline-id", failure="program", verdict_reason="FAILED with exit code 1")
    assert failed(project, "figure-1") == ["case=baseline-id"]
    simulated.update("case=baseline-id", **out_of_memory)
    simulated.update("b-id", verdict="failed", **out_of_memory)
    assert failed(project, "figure-1") == ["b-id"]


def test_jobs_that_can_never_start_end_the_wait(project: Project, simulated: SimulatedSlurm) -> None:
    for number, (reason, meaning) in enumerate(
        (
            ("JobHeldUser", "is held by its user or an account's coordinator. Hint: release it with"),
            ("DependencyNeverSatisfied", "depends on a job that did not succeed. Hint: "),
        )
    ):
        names = (f"a{number}", f"b{number}")
        first, second = (f"{name}-id" for name in names)
        simulated.submit(*names, token=f"2{number}")
        simulated.update(second, reason=reason)
        simulated.on_query = [
            lambda first=first: simulated.start(first),  # type: ignore[misc]
            lambda: None,
            lambda first=first: simulated.end(first),  # type: ignore[misc]
            press_ctrl_c,
        ]
        assert failed(project, first, second) == [second] and simulated.on_query == [press_ctrl_c]
        (line,) = [text for text in project.messages if text.startswith(f"{second} (")]
        assert f"{reason}: {meaning}" in line


@pytest.mark.parametrize("reason", ["Priority", "Resources", "Dependency", "ReqNodeNotAvail", "NewWord", None])
def test_jobs_that_may_still_start_are_waited_for(
    project: Project, simulated: SimulatedSlurm, reason: str | None
) -> None:
    simulated.submit("a")
    simulated.update("a-id", reason=reason)
    simulated.on_query = [lambda: None, lambda: None, lambda: simulated.end("a-id")]
    assert failed(project) == [] and simulated.on_query == []


def test_jobs_with_the_same_reason_to_wait_are_one_line(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b", "c")
    for job in ("a-id", "b-id", "c-id"):
        simulated.update(job, reason="JobHeldUser" if job != "c-id" else "BadConstraints")
    wait(project)
    lines = [text for text in project.messages if ": is " in text or ": requests " in text]
    assert len(lines) == 2
    assert lines[0].startswith("2 jobs, first a-id (a): JobHeldUser: ") and "scontrol release ID" in lines[0]
    assert lines[1].startswith("c-id (c): BadConstraints: ")


def test_a_queued_attempt_behind_held_jobs_is_not_waited_for(
    project: Project, simulated: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.launch.supervise.Backlog.submit_what_fits", lambda *_: None)
    simulated.submit("a", "b")
    simulated.update("a-id", reason="JobHeldUser")
    simulated.update("b-id", state="QUEUED", scheduler_id=None, reason="the queue is full")
    simulated.on_query = [lambda: None, press_ctrl_c]
    assert failed(project) == ["a-id", "b-id"] and simulated.on_query == [press_ctrl_c]
    queued = (
        "b-id (b): queued, not submitted yet (the queue is full). Hint: repro wait b-id submits it when there is room"
    )
    assert queued in project.messages and any(text.startswith("a-id (a): JobHeldUser") for text in project.messages)
    simulated.on_query = [lambda: None, lambda: None, lambda: simulated.end("b-id")]
    assert failed(project, "b-id") == [] and simulated.on_query == []


def test_queued_attempts_are_submitted(
    project: Project, simulated: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.submit("a")
    simulated.update("a-id", state="QUEUED", scheduler_id=None)

    def sends(_turns: object, rows: list[JobRow]) -> None:
        if rows[0].state == "QUEUED":
            simulated.update("a-id", state="PENDING", scheduler_id="18")
        else:
            simulated.end("a-id")

    monkeypatch.setattr("orchestrator.launch.supervise.Backlog.submit_what_fits", sends)
    assert [(job.id, job.verdict) for job in wait(project).jobs] == [("18", "verified")]


def test_an_unreachable_scheduler_is_reported_once_and_waited_for(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.answer = RefreshResult(("squeue: no answer",), None)
    simulated.on_query = [lambda: None, lambda: None, lambda: simulated.end("a-id")]
    assert failed(project) == [] and project.messages.count("note: squeue: no answer") == 1


def test_a_timeout_cancels_nothing_and_open_jobs_are_no_failures(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b")
    simulated.start("b-id", log_text(2))
    simulated.on_query = [lambda: simulated.end("a-id"), *[lambda: None] * 10_000]
    waited = wait(project, timeout="1s")
    assert (waited.failed, waited.open_jobs, waited.timed_out) == ((), 1, True)
    assert simulated.row("b-id").state == "RUNNING" and [job.job for job in waited.jobs] == ["a-id", "b-id"]
    with pytest.raises(ReproError, match="^--timeout soon: not a time. Hint: for example 10m, 600s, 1h or 0:10:00$"):
        wait(project, timeout="soon")
