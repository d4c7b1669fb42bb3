"""The logs line by line: each line of each job once, with what is known of the job beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import Measurement, record_measurements
from orchestrator.ledger.tables import IterationLine
from orchestrator.results.export.rows import ITERATION_COLUMNS, iteration_rows, pieces
from tests.recorded_jobs import new_ledger, record_jobs

GOOD = IterationLine(1, 812.5, 10.25, 0.5, False, 8192.0, 1, 0, 120.5, 3000.0, 399.0, host_wait_ms=12.5)
BAD = IterationLine(2, 800.1, float("nan"), float("inf"), True, is_finite=False)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Two jobs, one that has two lines and no verdict yet, one that has none."""
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a", "b")
    row = next(row for row in job_rows(ledger) if row.case_name == "a")
    record_measurements(ledger, [Measurement(row.attempt_id, 2, None, None, (GOOD, BAD), ())])
    return ledger


def test_each_line_is_a_row_of_its_job_whatever_its_verdict(ledger: Ledger) -> None:
    one, two = iteration_rows(ledger, job_rows(ledger))
    names = [column.name for column in ITERATION_COLUMNS]
    assert list(one) == list(two) == names
    assert (one["experiment"], one["scale"], one["cluster"], one["case"]) == ("sc21/figure-13", "cpu", "local", "a")
    assert (one["job"], one["attempt"], one["repeat"], one["verdict"]) == ("a-id", 1, 1, None)
    assert [one[name] for name in names[-13:-3]] == [1, 812.5, 10.25, 0.5, 8192, 1, 0, 120.5, 3000, 399]
    assert [one[name] for name in names[-3:]] == [True, 12.5, False]
    assert (two["iteration"], two["used"], two["is_finite"]) == (2, True, False)


def test_what_is_no_number_is_nothing_in_json(ledger: Ledger) -> None:
    made = b"".join(pieces("json", ITERATION_COLUMNS, {"iterations": iteration_rows(ledger, job_rows(ledger))}))
    read = json.loads(made, parse_constant=lambda _name: pytest.fail("NaN is no JSON"))
    assert [(row["loss"], row["grad_norm"]) for row in read["iterations"]] == [(10.25, 0.5), (None, None)]
    assert len(read["columns"]) == len(ITERATION_COLUMNS)


def test_jobs_stand_in_the_order_in_which_they_are_asked_for(ledger: Ledger) -> None:
    (row,) = [row for row in job_rows(ledger) if row.case_name == "a"]
    again = replace(row, repeat=2)
    assert [one["repeat"] for one in iteration_rows(ledger, [again, row])] == [2, 2, 1, 1]
