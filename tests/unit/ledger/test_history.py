"""A job's past: no attempt and no event is missing from it, and each is told with its own; and what is counted."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import job_counts, job_history, job_rows, last_seen, record_observations
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.runs import record_submission
from orchestrator.ledger.tables import ENDED, FAILED, RUNNING, VERIFIED, Attempt
from orchestrator.reading.job_status import experiment_statuses
from tests.recorded_jobs import new_run, record_jobs

NOON = datetime(2026, 1, 1, 12)


def end(ledger: Ledger, verdict: str, failure: str | None = None, why: str | None = None) -> None:
    """Every job under way has run on node n1 from noon, and is judged."""
    ids = [row.attempt_id for row in job_rows(ledger, only_open=True)]
    runs = Observation(state="RUNNING", phase=RUNNING, nodes="n1", started_at=NOON)
    state, code = ("COMPLETED", 0) if verdict == VERIFIED else ("FAILED", 7)
    ended = Observation(state=state, phase=ENDED, exit_code=code, ended_at=NOON + timedelta(hours=1))
    for seen in (runs, ended):
        record_observations(ledger, dict.fromkeys(ids, seen), ids)
    metrics = (MeasuredMetric("iteration_ms", 250.0, "ms", 1.0, 6),) if verdict == VERIFIED else ()
    record_measurements(ledger, [Measurement(one, 8, verdict, why, (), metrics, failure) for one in ids])


@pytest.fixture
def two_attempts(ledger: Ledger) -> Ledger:
    """A job that failed, was run again, and was then found verified by a third run."""
    record_jobs(ledger, "a", "b", token="first")
    record_submission(ledger, "first", "17")
    end(ledger, FAILED, "timeout", "TIMEOUT")
    record_jobs(ledger, "a", token="second")
    record_submission(ledger, "second", "18")
    end(ledger, VERIFIED)
    record_jobs(ledger, "a", run=new_run("atc24/figure-9"))
    return ledger


def test_every_attempt_is_there_with_what_became_of_it_and_what_it_measured(two_attempts: Ledger) -> None:
    first, second = job_history(two_attempts, "a-id")
    assert (first.number, first.scheduler_id, first.nodes, first.exit_code) == (1, "17_0", "n1", 7)
    assert (first.verdict, first.failure, first.verdict_reason) == (FAILED, "timeout", "TIMEOUT")
    assert (first.started_at, first.ended_at) == (NOON, NOON + timedelta(hours=1))
    assert first.metrics == {} and first.submitted_at is not None
    assert (second.number, second.scheduler_id, second.verdict, second.failure) == (2, "18_0", VERIFIED, None)
    assert second.metrics == {"iteration_ms": MeasuredMetric("iteration_ms", 250.0, "ms", 1.0, 6)}
    assert first.run_id != second.run_id and first.folder.endswith("a-id")


def test_every_change_is_told_with_its_own_attempt_in_the_order_in_which_it_happened(two_attempts: Ledger) -> None:
    first, second = job_history(two_attempts, "a-id")
    for attempt in (first, second):
        told = [event for event in attempt.events if event.kind in ("submitted", "state", "verdict")]
        assert [event.kind for event in told] == ["submitted", "state", "state", "verdict"]
        assert [event.at for event in attempt.events] == sorted(event.at for event in attempt.events)
    details = [event.detail for event in first.events]
    assert any("PENDING -> RUNNING" in str(detail) for detail in details)
    assert any("RUNNING -> FAILED" in str(detail) for detail in details)
    assert any("failed (timeout): TIMEOUT" in str(detail) for detail in details)
    assert not any("verified: every check passed" in str(detail) for detail in details)


def test_what_a_run_found_is_told_with_the_attempt_that_there_was(two_attempts: Ledger) -> None:
    first, second = job_history(two_attempts, "a-id")
    runs = [[str(event.detail) for event in one.events if event.kind == "run"] for one in (first, second)]
    assert len(runs[0]) == 1 and "2 missing" in runs[0][0]
    assert len(runs[1]) == 2 and "1 missing" in runs[1][0] and "1 done" in runs[1][1]


def test_another_jobs_past_is_not_mixed_in_and_an_unknown_job_has_none(two_attempts: Ledger) -> None:
    (other,) = job_history(two_attempts, "b-id")
    assert (other.scheduler_id, other.verdict) == ("17_1", FAILED)
    assert sum(event.kind == "verdict" for event in other.events) == 1
    assert job_history(two_attempts, "c-id") == []


def test_failures_are_counted_by_class_of_the_latest_attempt_in_each_experiment(two_attempts: Ledger) -> None:
    # b's only attempt timed out; so did a's first, which does not count any more.
    place = ("sc21/figure-13", "cpu", "local")
    _, *counts = job_counts(two_attempts)  # the first is of another experiment
    assert [count[:3] for count in counts] == [place, place]
    assert [count[4:] for count in counts] == [(FAILED, "timeout", ENDED, 1), (VERIFIED, None, ENDED, 1)]
    record_jobs(two_attempts, "c", "d", token="more")
    end(two_attempts, FAILED, "gpu-oom")
    (_, status), total = experiment_statuses(two_attempts)
    assert list(status.failures.items()) == list(total.failures.items()) == [("gpu-oom", 2), ("timeout", 1)]


def test_the_oldest_look_is_that_of_jobs_under_way_alone(two_attempts: Ledger) -> None:
    assert last_seen(two_attempts) is None
    record_jobs(two_attempts, "c", "d", token="more")
    before = now() - timedelta(hours=1)
    with two_attempts.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.job_id == "d-id").values(refreshed_at=before))
        session.execute(sa.update(Attempt).where(Attempt.job_id == "a-id").values(refreshed_at=NOON))
    assert last_seen(two_attempts) == before
