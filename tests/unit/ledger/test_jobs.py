"""Runs, jobs and attempts: nothing is submitted twice, nothing is lost, an end stays an end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import anything_to_refresh, job_rows, record_observations
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import (
    MeasuredMetric,
    Measurement,
    losses_of,
    metrics_of,
    record_measurements,
)
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.runs import (
    NewAttempt,
    Submitter,
    claim,
    interrupted_submissions,
    record_never_submitted,
    record_queued_again,
    record_submission,
    time_unsettled_s,
    under_way_of,
)
from orchestrator.ledger.tables import (
    ENDED,
    FAILED,
    NEVER_SUBMITTED,
    RUNNING,
    SUBMITTING,
    VERIFIED,
    WAITING,
    Attempt,
    Event,
    Iteration,
    IterationLine,
    Job,
    Run,
)
from orchestrator.reading.job_status import experiment_statuses
from tests.recorded_jobs import new_attempts, new_job, new_run, record_jobs, record_run, unless_verified

NOON = datetime(2026, 1, 1, 12)
DONE = Observation(state="COMPLETED", phase=ENDED, exit_code=0, ended_at=NOON)


def count(ledger: Ledger, table: type[object]) -> int:
    with ledger.reading() as session:
        return session.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def finish(ledger: Ledger, verdict: str | None, state: str = "COMPLETED") -> None:
    """Every open attempt ends, and is judged unless `verdict` is None."""
    ids = [row.attempt_id for row in job_rows(ledger, only_open=True)]
    record_observations(ledger, {one: Observation(state=state, phase=ENDED) for one in ids}, ids)
    if verdict is not None:
        record_measurements(ledger, [Measurement(one, 8, verdict, None, (), ()) for one in ids])


def test_a_new_job_is_stored_as_submitting_before_any_scheduler_is_called(ledger: Ledger) -> None:
    recorded = record_jobs(ledger, "a", "b")
    assert (recorded.done, recorded.under_way, recorded.to_submit) == ([], [], {"a-id": 1, "b-id": 1})
    rows = job_rows(ledger)
    assert [(row.case_name, row.state, row.phase, row.verdict) for row in rows] == [
        ("a", "SUBMITTING", SUBMITTING, None),
        ("b", "SUBMITTING", SUBMITTING, None),
    ]
    assert [one.token for one, *_ in interrupted_submissions(ledger)] == ["token"]
    assert [one.folder for one in interrupted_submissions(ledger)[0]] == ["/nowhere/a-id", "/nowhere/b-id"]


@pytest.mark.parametrize("phase", [SUBMITTING, WAITING, RUNNING])
def test_a_job_under_way_is_not_submitted_again(ledger: Ledger, phase: str) -> None:
    record_jobs(ledger, "a")
    attempt = job_rows(ledger)[0].attempt_id
    if phase != SUBMITTING:
        record_submission(ledger, "token", "17")
        record_observations(ledger, {attempt: Observation(state="X", phase=phase)}, [attempt])
    again = record_jobs(ledger, "a", token="other")
    assert (again.under_way, again.to_submit) == (["a-id"], {})
    assert count(ledger, Attempt) == 1


def test_a_verified_job_is_found_again(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    finish(ledger, VERIFIED)
    again = record_jobs(ledger, "a", "b", token="other")
    assert (again.done, again.to_submit) == (["a-id"], {"b-id": 1})


def test_a_failed_job_gets_another_attempt_and_the_first_is_kept(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    finish(ledger, FAILED)
    assert record_jobs(ledger, "a", token="second").to_submit == {"a-id": 2}
    finish(ledger, FAILED)
    assert record_jobs(ledger, "a", token="third").to_submit == {"a-id": 3}
    assert count(ledger, Attempt) == 3
    assert [(row.number, row.token, row.verdict) for row in job_rows(ledger)] == [(3, "third", None)]


def test_a_job_that_has_ended_but_was_not_judged_is_not_run_a_second_time(ledger: Ledger) -> None:
    """Another terminal may have seen the end a moment ago, and be about to find it good."""
    record_jobs(ledger, "a")
    finish(ledger, verdict=None)
    again = record_jobs(ledger, "a", token="other")
    assert (again.under_way, again.to_submit) == (["a-id"], {})


def test_when_the_scripts_cannot_be_made_nothing_is_stored(ledger: Ledger) -> None:
    def fails(_missing: Collection[str]) -> dict[str, NewAttempt]:
        raise RuntimeError("no template")

    with pytest.raises(RuntimeError, match="no template"):
        record_run(ledger, new_run(), [new_job("a")], unless_verified, fails)
    assert [count(ledger, table) for table in (Run, Job, Attempt, Event)] == [0, 0, 0, 0]
    assert record_jobs(ledger, "a").to_submit == {"a-id": 1}


def test_a_job_that_two_experiments_share_runs_once_and_shows_in_both(ledger: Ledger) -> None:
    record_jobs(ledger, "a", run=new_run("sc21/figure-13"))
    assert record_jobs(ledger, "a", run=new_run("sc21/figure-14")).under_way == ["a-id"]
    rows = job_rows(ledger)
    assert [(row.experiment, row.attempt_id) for row in rows] == [("sc21/figure-13", 1), ("sc21/figure-14", 1)]
    assert [row.experiment for row in job_rows(ledger, experiment="sc21/figure-14")] == ["sc21/figure-14"]
    assert count(ledger, Attempt) == 1


def test_a_job_that_two_scales_share_shows_in_both(ledger: Ledger) -> None:
    record_jobs(ledger, "a", "b", run=new_run(scale="small"))
    record_jobs(ledger, "a", run=new_run(scale="smaller"))
    assert [(row.scale, row.case_name) for row in job_rows(ledger)] == [
        ("small", "a"),
        ("small", "b"),
        ("smaller", "a"),
    ]


def test_array_elements_get_their_index_and_a_single_job_does_not(ledger: Ledger) -> None:
    record_jobs(ledger, "a", "b")
    record_submission(ledger, "token", "17")
    record_jobs(ledger, "c", token="alone", array=False)
    record_submission(ledger, "alone", "18")
    assert [row.scheduler_id for row in job_rows(ledger)] == ["17_0", "17_1", "18"]
    assert interrupted_submissions(ledger) == []


def test_a_submission_found_by_a_second_terminal_does_not_reopen_what_has_ended(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    record_submission(ledger, "token", "17")
    finish(ledger, VERIFIED)
    assert record_submission(ledger, "token", "18") and not record_submission(ledger, "given up", "18")
    row = job_rows(ledger)[0]
    assert (row.state, row.phase, row.verdict, row.scheduler_id) == ("COMPLETED", ENDED, VERIFIED, "17_0")


def test_a_submission_that_a_second_terminal_found_is_not_queued_again(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    record_submission(ledger, "token", "17")
    record_queued_again(ledger, "token", "not found")
    row = job_rows(ledger)[0]
    assert (row.state, row.phase, row.token, row.reason) == ("PENDING", WAITING, "token", None)


def test_the_time_without_an_answer_begins_again_with_each_submission(ledger: Ledger) -> None:
    """Else the second submission of a slow host is given up before its time."""

    def waited(seconds_since_boot: float, boot_id: str = "boot") -> float:
        return time_unsettled_s(ledger, [1], boot_id, seconds_since_boot)[1]

    record_jobs(ledger, "a")
    assert [waited(10.0), waited(25.0), waited(300.0, "of another machine"), waited(30.0)] == [0.0, 15.0, 0.0, 20.0]
    record_queued_again(ledger, "token", "not found")
    assert job_rows(ledger)[0].reason == "not found"
    assert claim(ledger, [1], "again", Submitter("here", "me", 1))
    assert ([waited(40.0), waited(45.0)], job_rows(ledger)[0].reason) == ([0.0, 5.0], None)


def test_an_open_submission_is_one_id_whatever_its_number_of_attempts(ledger: Ledger) -> None:
    run = new_run()
    record_jobs(ledger, "a", "b", run=run)
    record_submission(ledger, "token", "17")
    record_jobs(ledger, "c", run=new_run(), token="of another run")
    record_submission(ledger, "of another run", "18")
    record_jobs(ledger, "d", run=new_run(), token="without an id")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.scheduler_id == "17_1").values(file="array.sh"))
    assert under_way_of(ledger, run.id) == under_way_of(ledger, run.id, "array.sh") == ["17"]
    record_observations(ledger, {2: DONE}, [2])
    assert (under_way_of(ledger, run.id), under_way_of(ledger, run.id, "array.sh")) == (["17"], [])
    assert under_way_of(ledger, job_rows(ledger)[-1].run_id) == []


def test_a_refusal_has_its_reason_and_says_nothing_of_jobs_that_were_taken(ledger: Ledger) -> None:
    record_jobs(ledger, "taken", token="one")
    record_submission(ledger, "one", "17")
    record_jobs(ledger, "refused", token="two")
    ids = [row.attempt_id for row in job_rows(ledger)]
    record_never_submitted(ledger, ids, "invalid partition", "refused")
    taken, refused = job_rows(ledger)
    assert (taken.phase, taken.verdict) == (WAITING, None)
    assert (refused.state, refused.phase, refused.verdict) == (NEVER_SUBMITTED, ENDED, FAILED)
    assert (refused.verdict_reason, refused.reason, refused.failure) == (
        "invalid partition",
        "invalid partition",
        "refused",
    )
    assert refused.ended_at is not None
    assert record_jobs(ledger, "refused", token="three").to_submit == {"refused-id": 2}


@pytest.mark.fault(
    section="Job states",
    fault="Another host gave a submission up too early",
    promise="The process that made the submission takes it back.",
)
def test_a_submission_given_up_too_early_is_taken_back_by_the_one_who_made_it(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    record_never_submitted(ledger, [job_rows(ledger)[0].attempt_id], "not found", "lost")
    assert record_submission(ledger, "token", "17", "tests@c1:6817")
    row = job_rows(ledger)[0]
    assert (row.scheduler_id, row.phase, row.verdict, row.ended_at) == ("17_0", WAITING, None, None)
    assert (row.state, row.slurm_cluster, row.reason, row.verdict_reason, row.failure) == (
        "PENDING",
        "tests@c1:6817",
        None,
        None,
        None,
    )


@pytest.mark.fault(
    section="Job states",
    fault="A slower terminal writes an older state",
    promise="A job that has ended stays ended.",
)
def test_what_has_ended_is_not_reopened_by_a_slower_look(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    record_submission(ledger, "token", "17")
    record_observations(ledger, {1: DONE}, [1])
    record_observations(ledger, {1: Observation(state="RUNNING", phase=RUNNING)}, [1])
    row = job_rows(ledger)[0]
    assert (row.state, row.phase, row.exit_code, row.ended_at) == ("COMPLETED", ENDED, 0, NOON)


def test_a_job_of_which_nothing_was_seen_stays_as_it_was(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    record_submission(ledger, "token", "17")
    record_observations(ledger, {}, [1])
    row = job_rows(ledger)[0]
    assert (row.state, row.phase) == ("PENDING", WAITING)
    assert row.refreshed_at is not None


def test_an_observation_keeps_what_it_does_not_know_and_drops_an_old_reason(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    record_observations(ledger, {1: Observation("PENDING", WAITING, reason="Resources")}, [])
    record_observations(ledger, {1: Observation("RUNNING", RUNNING, nodes="n1", started_at=NOON)}, [])
    record_observations(ledger, {1: Observation("COMPLETED", ENDED)}, [])
    row = job_rows(ledger)[0]
    assert (row.reason, row.nodes, row.started_at, row.state) == (None, "n1", NOON, "COMPLETED")
    assert row.ended_at is not None
    with ledger.reading() as session:
        said = session.scalars(sa.select(Event.detail).where(Event.kind == "state").order_by(Event.id)).all()
    assert said == ["SUBMITTING -> PENDING: Resources", "PENDING -> RUNNING", "RUNNING -> COMPLETED"]


def test_reading_a_log_again_replaces_its_numbers(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    lines = tuple(IterationLine(n, 100.0, 6.9, None, n > 2) for n in (1, 2, 3))
    for value, upto in ((1.0, 2), (2.0, 3)):
        metric = MeasuredMetric("iteration_ms", value, "ms", 0.1, 1)
        record_measurements(ledger, [Measurement(1, upto, None, None, lines[:upto], (metric,))])
    assert metrics_of(ledger, [1, 99]) == {1: {"iteration_ms": MeasuredMetric("iteration_ms", 2.0, "ms", 0.1, 1)}}
    assert (count(ledger, Iteration), job_rows(ledger)[0].iteration) == (3, 3)


@pytest.mark.fault(
    section="Job states",
    fault="A slower terminal has read less of the log",
    promise="The verdict stays.",
)
def test_a_slower_reader_does_not_take_a_verdict_back(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    finish(ledger, VERIFIED)
    record_measurements(ledger, [Measurement(1, 5, None, None, (), ())])
    row = job_rows(ledger)[0]
    assert (row.verdict, row.iteration) == (VERIFIED, 8)


def test_nothing_is_to_refresh_once_everything_is_judged(ledger: Ledger) -> None:
    assert not anything_to_refresh(ledger)
    record_jobs(ledger, "a")
    assert anything_to_refresh(ledger)
    finish(ledger, verdict=None)
    assert anything_to_refresh(ledger)
    record_measurements(ledger, [Measurement(1, 8, VERIFIED, None, (), ())])
    assert not anything_to_refresh(ledger)


def test_jobs_are_found_by_the_start_of_their_id_taken_literally(ledger: Ledger) -> None:
    record_jobs(ledger, "abc", "abd", "x%y")
    assert [row.case_name for row in job_rows(ledger, job_prefix="ab")] == ["abc", "abd"]
    assert [row.case_name for row in job_rows(ledger, job_prefix="x%")] == ["x%y"]
    assert job_rows(ledger, job_prefix="%") == []


def test_an_experiment_is_counted_over_the_latest_attempts(ledger: Ledger) -> None:
    record_jobs(ledger, "a", "b")
    finish(ledger, FAILED)
    record_jobs(ledger, "a", token="second")
    finish(ledger, VERIFIED)
    record_jobs(ledger, "c", "d", token="third")
    record_observations(ledger, {4: Observation("RUNNING", RUNNING)}, [])
    (counts,), total = experiment_statuses(ledger)
    assert total.cases == 4
    assert (counts.cases, counts.verified, counts.failed, counts.running, counts.waiting) == (4, 1, 1, 1, 1)


def test_two_cases_that_are_one_job_are_submitted_once_and_both_have_its_result(ledger: Ledger) -> None:
    first = new_job("a")
    asked: list[list[str]] = []

    def make(missing: Collection[str]) -> Mapping[str, NewAttempt]:
        asked.append(list(missing))
        return new_attempts()(missing)

    recorded = record_run(ledger, new_run(), [first, replace(first, case_name="b")], unless_verified, make)
    assert asked == [["a-id"]] and recorded.to_submit == {"a-id": 1}
    assert [(row.case_name, row.attempt_id) for row in job_rows(ledger)] == [("a", 1), ("b", 1)]
    assert count(ledger, Job) == count(ledger, Attempt) == 1


def test_losses_come_back_in_the_order_of_iterations_without_those_that_have_none(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    (row,) = job_rows(ledger)
    lines = tuple(IterationLine(n, 1.0, loss, None, True) for n, loss in ((2, 9.5), (1, 10.0), (3, None)))
    record_measurements(ledger, [Measurement(row.attempt_id, 3, VERIFIED, None, lines, ())])
    assert losses_of(ledger, [row.attempt_id]) == {row.attempt_id: [(1, 10.0), (2, 9.5)]}
