"""How far files were read: what is stored beside it is added to or replaced as a whole, in either database."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import (
    job_rows,
    record_observations,
    rows_of_attempts,
    unjudged_attempts,
)
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import (
    MeasuredMetric,
    Measurement,
    OffsetUpdate,
    file_offsets,
    iterations_of,
    metrics_of,
    record_measurements,
)
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.runs import record_never_submitted
from orchestrator.ledger.tables import ENDED, RUNNING, VERIFIED, Event, FileOffset, IterationLine
from tests.recorded_jobs import new_run, record_jobs

FACTS = {"version": 1, "settings": {"π": "日本語 🚀"}, "sizes": [1, None, 2.5]}


def lines(*numbers: int, elapsed_ms: float = 100.0) -> tuple[IterationLine, ...]:
    return tuple(IterationLine(n, elapsed_ms, 9.5, 1.0, n > 1, 1.0, 0, 0) for n in numbers)


def file_read(upto: int, name: str = "log.txt") -> FileOffset:
    return FileOffset(name, str(2**64 - 1), upto, f"digest of {upto}", FACTS)


def add(
    ledger: Ledger,
    before: FileOffset | None,
    now: FileOffset,
    new: tuple[IterationLine, ...],
    *,
    keeps: bool = True,
    verdict: str | None = None,
) -> list[int]:
    known: Mapping[str, FileOffset] = {before.name: before} if before else {}
    read = OffsetUpdate(known, {now.name: now}, keeps)
    last = new[-1].iteration if new else None
    return record_measurements(ledger, [Measurement(1, last, verdict, None, new, (), read=read)])


def stored(ledger: Ledger) -> list[tuple[int, float]]:
    return [(line.iteration, line.elapsed_ms) for line in iterations_of(ledger, 1)]


@pytest.fixture(autouse=True)
def a_job(ledger: Ledger) -> None:
    record_jobs(ledger, "a")


def test_how_far_a_file_was_read_comes_back_whatever_its_size_and_number(ledger: Ledger) -> None:
    far = file_read(2**40)
    assert add(ledger, None, far, lines(1)) == []
    assert file_offsets(ledger, [1, 99]) == {1: {"log.txt": far}}


def test_new_lines_are_added_and_take_the_place_of_those_with_their_numbers(ledger: Ledger) -> None:
    add(ledger, None, file_read(10), lines(1, 2, 3))
    add(ledger, file_read(10), file_read(20), lines(3, 4, elapsed_ms=200.0))
    assert stored(ledger) == [(1, 100.0), (2, 100.0), (3, 200.0), (4, 200.0)]
    assert iterations_of(ledger, 1, most=2) == list(lines(1, 2))


def test_where_what_was_read_no_longer_counts_all_of_it_is_replaced(ledger: Ledger) -> None:
    add(ledger, None, file_read(10), lines(1, 2, 3))
    add(ledger, file_read(10), file_read(5), lines(1, elapsed_ms=200.0), keeps=False)
    assert stored(ledger) == [(1, 200.0)] and file_offsets(ledger, [1])[1]["log.txt"].bytes_read == 5


def test_who_goes_on_from_where_another_has_gone_on_writes_nothing_and_is_told(ledger: Ledger) -> None:
    add(ledger, None, file_read(10), lines(1, 2))
    add(ledger, file_read(10), file_read(20), lines(3))
    assert add(ledger, file_read(10), file_read(15), lines(3, elapsed_ms=1.0)) == [1]
    assert add(ledger, None, file_read(15), lines(3, elapsed_ms=1.0), keeps=False) == [1]
    assert stored(ledger) == [(1, 100.0), (2, 100.0), (3, 100.0)]


def test_a_look_that_comes_after_the_verdict_is_dropped_for_good(ledger: Ledger) -> None:
    add(ledger, None, file_read(10), lines(1, 2), verdict=VERIFIED)
    assert add(ledger, None, file_read(8), lines(1), keeps=False) == []
    assert stored(ledger) == [(1, 100.0), (2, 100.0)] and job_rows(ledger)[0].verdict == VERIFIED


def test_a_line_that_was_not_finite_comes_back_as_one(ledger: Ledger) -> None:
    bad = IterationLine(2, math.inf, math.nan, None, False, nan=1, is_finite=False)
    add(ledger, None, file_read(10), (*lines(1), bad))
    _, back = iterations_of(ledger, 1)
    assert math.isnan(back.elapsed_ms) and (back.loss, back.is_finite, back.used, back.nan) == (None, False, False, 1)


def test_many_attempts_are_one_transaction_with_an_event_for_each_verdict(ledger: Ledger) -> None:
    names = [f"job {number}" for number in range(1000)]
    record_jobs(ledger, *names, token="many")
    ids = unjudged(ledger)
    metric = MeasuredMetric("iteration_ms", 1.0, "ms")
    record_measurements(ledger, [Measurement(one, 2, VERIFIED, None, lines(1, 2), (metric,)) for one in ids])
    with ledger.reading() as session:
        assert session.scalar(sa.select(sa.func.count()).where(Event.kind == "verdict")) == len(ids) == 1001
    assert len(metrics_of(ledger, ids)) == 1001 and unjudged(ledger) == []


def unjudged(ledger: Ledger) -> list[int]:
    """Of all of which none has begun."""
    return unjudged_attempts(ledger, ("submitting",))


def test_only_attempts_that_run_or_have_ended_without_a_verdict_are_to_be_read(ledger: Ledger) -> None:
    record_jobs(ledger, "b", "c", "d", "e", token="others")
    seen: dict[int, Any] = {2: Observation("RUNNING", RUNNING), 3: Observation("FAILED", ENDED)}
    record_observations(ledger, seen | {4: Observation("COMPLETED", ENDED)}, [])
    record_measurements(ledger, [Measurement(4, 1, VERIFIED, None, (), ())])
    record_never_submitted(ledger, [5], "refused", "refused")
    assert unjudged_attempts(ledger) == [2, 3] and unjudged_attempts(ledger, (ENDED,)) == [3]


def test_an_attempt_is_one_row_as_the_run_has_it_that_made_it(ledger: Ledger) -> None:
    record_jobs(ledger, "a", "b", run=new_run("sc21/figure-14"), token="other")
    rows = rows_of_attempts(ledger, [2, 1, 99])
    assert [(row.attempt_id, row.experiment, row.case_name) for row in rows] == [
        (1, "sc21/figure-13", "a"),
        (2, "sc21/figure-14", "b"),
    ]
