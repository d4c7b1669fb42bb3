"""Submission of figures: which jobs run again, in which order, after what, and until when."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.ledger.tables import Attempt
from tests.unit.api.project import Project, counts, problems
from tests.unit.launch.slurm_stand_in import Slurm
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ONE, SMALL = "pp=1,gbs=4", "gbs=4"
FIRST = "pp=1,tp=4,gbs=4"
NO_EFFECT = "note: here runs one job at a time; --max-parallel has no effect"


def test_verified_cases_are_measured_again_only_with_rerun(project: Project) -> None:
    assert counts(project.run(ONE)) == {"submitted": 1}
    assert counts(project.submit(ONE)) == {"done": 1}
    assert counts(project.run(ONE, rerun=True)) == {"submitted": 1}
    (row,) = project.rows()
    assert (row.number, row.verdict) == (2, "verified") and len(project.site.started()) == 2


def test_open_jobs_are_not_submitted_again_even_with_rerun(project: Project) -> None:
    project.site.behave("hang")
    project.submit(SMALL)
    wait_until(project.site.sleepers)
    assert counts(project.submit(SMALL, rerun=True)) == {"running": 1, "waiting": 2}
    api.cancel("figure-13", session=project.session)


def test_repeats_are_jobs_of_their_own_that_are_found_again(project: Project) -> None:
    assert counts(project.run(ONE, repeat=2)) == {"submitted": 2}
    first, second = project.rows()
    assert (first.label, second.label) == (FIRST, f"{FIRST} #2")
    assert first.job_id != second.job_id and first.folder != second.folder
    for row in (first, second):
        assert (row.verdict, row.number) == ("verified", 1)
        assert b"elapsed time per iteration" in api.logs(row.job_id, session=project.session).read()
    assert counts(project.submit(ONE, repeat=2)) == {"done": 2}
    assert counts(project.submit(ONE)) == {"done": 1}
    assert counts(project.run(ONE, repeat=3)) == {"done": 2, "submitted": 1}
    assert len(project.site.started()) == 3


def test_a_repeat_that_has_not_begun_can_be_cancelled(project: Project) -> None:
    project.site.behave("hang")
    project.submit(ONE, repeat=3)
    wait_until(project.site.sleepers)
    assert len(api.cancel("figure-13", session=project.session).asked) == 3
    wait_until(lambda: {job.state for job in project.jobs().values()} == {"CANCELLED"})
    assert len(project.site.started()) == 1


# ---- one before the others -----------------------------------------------------------------------------------


def test_the_smallest_case_goes_first_and_once_it_is_verified_the_others_do(project: Project) -> None:
    submission = project.run(canary=True)
    assert submission.canary == FIRST and project.verdicts() == ["verified"] * 6
    assert project.site.started()[0] == FIRST and len(project.site.started()) == 6


def test_a_canary_that_fails_keeps_the_others_from_starting(project: Project) -> None:
    project.site.behave("nan", "pp1-gbs4")
    project.run(SMALL, canary=True)
    assert project.site.started() == [FIRST]
    canary, *others = project.rows()
    assert (canary.failure, {row.failure for row in others}) == ("numbers", {"stopped"})
    assert all(f"its canary, {FIRST}, is not verified" in str(row.verdict_reason) for row in others)


def test_a_case_that_is_verified_already_needs_no_canary(project: Project) -> None:
    project.run(ONE)
    submission = project.run(SMALL, canary=True)
    assert (submission.canary, counts(submission)) == (None, {"done": 1, "submitted": 2})
    assert project.verdicts() == ["verified"] * 3 and len(project.site.started()) == 3


def test_a_canary_that_would_fail_again_blocks_the_others_until_it_is_retried(project: Project) -> None:
    project.site.behave("fail")
    project.run(SMALL, canary=True)
    assert len(project.site.started()) == 1
    with pytest.raises(ReproError) as caught:
        project.submit(SMALL, canary=True)
    hint = f"repro retry figure-13 --class gpu-oom --where {FIRST}, or leave --canary out"
    assert problems(caught) == [f"the canary, {FIRST}, failed (gpu-oom), and the others wait for it. Hint: {hint}"]
    assert len(project.site.started()) == 1
    project.site.behave("well")
    assert project.retry(classes="gpu-oom", where=FIRST) == 1
    project.run(SMALL, canary=True)
    assert project.verdicts() == ["verified"] * 3 and len(project.site.started()) == 4


# ---- when it stops, and after what ---------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True], ids=["left to itself", "waited for"])
def test_after_so_many_failures_of_one_kind_no_other_job_starts(project: Project, waits: bool) -> None:
    project.site.behave("fail")
    (project.run if waits else project.submit)(stop_after=2)
    wait_until(lambda: set(project.verdicts()) == {"failed"})
    assert len(project.site.started()) == 2
    failures = sorted(str(row.failure) for row in project.rows())
    assert failures[-1] in ("gpu-oom", "stopped") and failures.count("gpu-oom") == 2
    assert set(failures) <= {"gpu-oom", "stopped", "cancelled"}


def test_failures_of_different_kinds_stop_nothing(project: Project) -> None:
    project.site.behave("fail", "pp1-gbs4")
    project.site.behave("nan", "pp2-gbs4")
    project.run(SMALL, stop_after=2)
    assert len(project.site.started()) == 3


def test_jobs_begin_after_the_job_that_was_named(project: Project) -> None:
    project.site.behave("hang", "pp1-gbs4")
    project.submit(ONE)
    project.submit("pp=2,gbs=4")
    wait_until(project.site.sleepers)
    first, second = project.rows()
    project.submit("pp=4,gbs=4", after=second.job_id)
    api.cancel(first.job_id, session=project.session)
    wait_until(lambda: len(project.site.started()) == 3)
    assert project.site.started() == [f"pp={pp},tp={4 // pp},gbs=4" for pp in (1, 2, 4)]


def test_a_job_that_has_ended_is_not_waited_for(project: Project) -> None:
    project.run(ONE)
    project.run("pp=2,gbs=4", after=project.rows()[0].job_id)
    assert project.verdicts() == ["verified"] * 2


def test_after_refuses_jobs_that_cannot_be_awaited(project: Project, slurm: Slurm) -> None:
    with pytest.raises(ReproError, match="^zzz: no experiment or job of this name"):
        project.submit(ONE, after="zzz")
    project.site.behave("hang")
    project.submit(ONE)
    (row,) = project.rows()
    with pytest.raises(ReproError, match=f"^--after {row.job_id}: {FIRST} is a job of another scheduler"):
        project.submit(cluster="there", after=row.job_id)
    assert slurm.calls() == []
    api.cancel("figure-13", session=project.session)


def test_a_local_cluster_runs_one_job_at_a_time_and_a_plan_has_the_same_note(project: Project) -> None:
    (planned,) = api.plan_runs("figure-13", "here", scale="cpu", where=ONE, max_parallel=2)
    assert f"note: {planned.notes[0]}" == NO_EFFECT
    project.run(ONE, max_parallel=2)
    assert NO_EFFECT in project.messages
    project.messages.clear()
    project.submit(ONE, max_parallel=1)
    assert not [text for text in project.messages if text.startswith("note:")]


@pytest.mark.usefixtures("slurm")
def test_a_warm_up_without_kernels_is_refused(project: Project) -> None:
    for cluster, why in (
        ("here", "local jobs run one after another"),
        ("there", "pretrain compiles no kernels first"),
    ):
        with pytest.raises(ReproError, match=f"^--depends-on warm-up: {why}. Hint: leave it out$"):
            project.submit(cluster=cluster, warm_up=True)
    assert not (project.folder / "results.db").exists()


# ---- Slurm's queue -------------------------------------------------------------------------------------------


def its_sender_has_ended(project: Project) -> None:
    """Change the ledger as the end of the command does; here all commands are calls in one process."""
    with project.ledger.writing() as session:
        session.execute(sa.update(Attempt).values(pid=2**22 + 1))


@pytest.mark.fault(
    section="Submissions",
    fault="The queue stays full for a while",
    promise="The rest is submitted once, by the next `repro submit` or by a command that waits.",
    count=0,
)
def test_submitting_again_submits_queued_attempts_once(project: Project, slurm: Slurm) -> None:
    slurm.has_room_for(3)
    full = project.submit(cluster="there")
    assert counts(full) == {"submitted": 3, "queued": 3}
    assert str(full.queued_because).startswith("QOSMaxSubmitJobPerUserLimit")
    assert sorted(row.state for row in full.jobs) == ["PENDING"] * 3 + ["QUEUED"] * 3
    slurm.has_room_for(10)
    # As long as that command is there, it may still be at it.
    assert counts(project.submit(cluster="there")) == {"waiting": 6}
    its_sender_has_ended(project)
    assert counts(project.submit(cluster="there")) == {"waiting": 3, "submitted": 3}
    rows = project.rows()
    assert [row.state for row in rows] == ["PENDING"] * 6 and {row.number for row in rows} == {1}
    assert len({row.token for row in rows}) == len(slurm.taken()) == 2
    assert counts(project.submit(cluster="there")) == {"waiting": 6} and len(slurm.taken()) == 2


def test_a_queued_attempt_can_be_cancelled_and_is_not_submitted_later(project: Project, slurm: Slurm) -> None:
    slurm.has_room_for(3)
    project.submit(cluster="there")
    cancelled = api.cancel("figure-13", where="gbs=16", session=project.session)
    assert len(cancelled.asked) == 3 and slurm.cancelled() == []
    slurm.has_room_for(10)
    assert counts(project.submit(cluster="there")) == {"waiting": 3, "left": 3}
    assert len(slurm.taken()) == 1


def test_a_refused_submission_is_tried_again_by_the_next_one(project: Project, slurm: Slurm) -> None:
    slurm.then("refuse")
    with pytest.raises(ReproError, match="Invalid partition name specified"):
        project.submit(cluster="there")
    assert {(row.state, row.failure) for row in project.rows()} == {("NEVER_SUBMITTED", "refused")}
    assert counts(project.submit(cluster="there")) == {"submitted": 6}


def test_a_slow_scheduler_is_reported_while_the_submission_waits(
    project: Project, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.launch.sbatch.PAUSES_S", (0.001,))
    slurm.then("late")
    assert counts(project.submit(cluster="there")) == {"submitted": 6}
    assert sum("asking again" in text for text in project.messages) == 1 and len(slurm.calls()) == 1
