"""The views that people ask: one row for each thing, the right attempt of each case, the same in either database."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import record_observations
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import (
    MeasuredMetric,
    MeasuredRow,
    Measurement,
    record_measurements,
    rows_of_output,
)
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.runs import NewJob
from orchestrator.ledger.tables import ENDED, FAILED, VERIFIED, Attempt, IterationLine
from orchestrator.text import utc_stamp
from tests.recorded_jobs import (
    job_spec,
    new_attempts,
    new_job,
    new_run,
    record_jobs,
    record_run,
    unless_verified,
)

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 1, 12)


def rows(ledger: Ledger, view: str) -> list[dict[str, Any]]:
    with ledger.engine.connect() as connection:
        return [dict(row) for row in connection.exec_driver_sql(f"select * from {view}").mappings()]


def judged(ledger: Ledger, attempt: int, verdict: str, *metrics: MeasuredMetric) -> None:
    end = Observation("COMPLETED", ENDED, started_at=NOON, ended_at=NOON + timedelta(minutes=90, milliseconds=250))
    record_observations(ledger, {attempt: end}, [])
    lines = tuple(IterationLine(n, 100.0 + n, None, None, n > 1) for n in (1, 2))
    record_measurements(ledger, [Measurement(attempt, 2, verdict, None, lines, metrics)])


def test_a_job_that_two_experiments_share_has_a_row_in_each(ledger: Ledger) -> None:
    record_jobs(ledger, "a", "b", run=new_run("sc21/figure-13"))
    record_jobs(ledger, "a", run=new_run("sc21/figure-14"))
    record_jobs(ledger, "a", run=new_run("sc21/figure-14", scale="quad"))
    record_jobs(ledger, "a", run=new_run("sc21/figure-14"))
    record_measurements(ledger, [Measurement(1, 1, None, None, (IterationLine(1, 1.0, None, None, True),), ())])
    expected = [("sc21/figure-13", "cpu", "a"), ("sc21/figure-14", "cpu", "a"), ("sc21/figure-14", "quad", "a")]
    for view, others in (
        ("v_attempts", [("sc21/figure-13", "cpu", "b")]),
        ("v_results", [("sc21/figure-13", "cpu", "b")]),
        ("v_iterations", []),
    ):
        found = [(row["experiment"], row["scale"], row["case_name"]) for row in rows(ledger, view)]
        assert sorted(found) == sorted(expected + others), view


def test_two_cases_that_are_one_job_have_a_row_each(ledger: Ledger) -> None:
    first = new_job("a")
    record_run(ledger, new_run(), [first, replace(first, case_name="b")], unless_verified, new_attempts())
    for view in ("v_attempts", "v_results"):
        assert sorted((row["case_name"], row["attempt_id"]) for row in rows(ledger, view)) == [("a", 1), ("b", 1)]


def test_a_result_is_the_latest_attempt_and_all_attempts_are_there(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    judged(ledger, 1, FAILED)
    record_jobs(ledger, "a", token="again")
    assert sorted(row["attempt"] for row in rows(ledger, "v_attempts")) == [1, 2]
    (result,) = rows(ledger, "v_results")
    assert (result["attempt"], result["verdict"]) == (2, None)


def test_of_a_case_whose_code_has_changed_the_result_is_that_of_the_latest_run(ledger: Ledger) -> None:
    """Also where that run found the job done, and an attempt of other code is younger."""

    def run(code: str) -> None:
        job = replace(new_job("a"), id=f"with-{code}", code=code)
        record_run(ledger, new_run(), [job], unless_verified, new_attempts())

    run("old")
    judged(ledger, 1, VERIFIED)
    run("new")
    assert [row["code"] for row in rows(ledger, "v_results")] == ["new"]
    run("old")
    assert [(row["code"], row["attempt_id"]) for row in rows(ledger, "v_results")] == [("old", 1)]


def test_repeats_and_programs_are_results_of_their_own(ledger: Ledger) -> None:
    first = new_job("a")
    others = [replace(first, id="second", repeat=2), replace(first, id="other", program="megatron-2021")]
    record_run(ledger, new_run(), [first, *others], unless_verified, new_attempts())
    found = [(row["program"], row["repeat"]) for row in rows(ledger, "v_results")]
    assert sorted(found) == [("megatron-2021", 1), ("pretrain", 1), ("pretrain", 2)]


def test_the_execution_mode_and_the_host_wait_are_in_the_views(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    lines = (IterationLine(2, 100.0, None, None, True, host_wait_ms=12.5),)
    metrics = (MeasuredMetric("host_wait_ms", 12.5, "ms"), MeasuredMetric("host_wait_percent", 12.5, "%"))
    record_measurements(ledger, [Measurement(1, 2, VERIFIED, None, lines, metrics, execution="graph")])
    assert [row["execution"] for view in ("v_attempts", "v_results") for row in rows(ledger, view)] == ["graph"] * 2
    (line,) = rows(ledger, "v_iterations")
    values = [(row["name"], row["value"]) for row in rows(ledger, "v_metrics")]
    assert line["host_wait_ms"] == 12.5
    assert sorted(values) == [("host_wait_ms", 12.5), ("host_wait_percent", 12.5)]


def on_gpus(name: str) -> NewJob:
    return replace(new_job(name), gpus=8, spec=job_spec(device="gpu"))


def test_times_hours_and_metrics_have_their_units(ledger: Ledger) -> None:
    record_run(ledger, new_run(), [on_gpus("a"), new_job("b")], unless_verified, new_attempts())
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(submitted_at=NOON - timedelta(seconds=12.5)))
    timing = MeasuredMetric("iteration_ms", 800.25, "ms", 1.5, 17)
    memory = MeasuredMetric("max_memory_allocated_bytes", 2.0**36, "B")
    judged(ledger, 1, VERIFIED, timing, memory, MeasuredMetric("unheard_of", 1.0, "x"))
    judged(ledger, 2, VERIFIED)
    found = {row["case_name"]: row for row in rows(ledger, "v_results")}
    one = found["a"]
    assert (one["wait_s"], one["elapsed_s"]) == (12.5, 5400.25)
    assert one["gpu_hours"] == pytest.approx(8 * 5400.25 / 3600)
    (attempt, _) = rows(ledger, "v_attempts")
    assert (one["started_at"], one["ended_at"]) == (utc_stamp(NOON), utc_stamp(NOON + timedelta(minutes=90)))
    assert attempt["submitted_at"] == utc_stamp(NOON - timedelta(seconds=12.5))
    metrics = {row["name"]: row for row in rows(ledger, "v_metrics")}
    assert [metrics["iteration_ms"][name] for name in ("value", "unit", "spread", "count")] == [800.25, "ms", 1.5, 17]
    assert metrics["max_memory_allocated_bytes"]["value"] == 2.0**36 and "unheard_of" in metrics
    assert (one["tensor_parallel"], one["global_batch_size"], one["micro_batch_size"]) == (2, 4, 1)
    assert (one["git_commit"], one["code"], one["gpus"]) == ("c0ffee", "code", 8)
    assert (found["b"]["gpu_hours"], found["b"]["elapsed_s"]) == (None, 5400.25), "processes on cores are no GPUs"
    lines = [(row["iteration"], row["elapsed_ms"], bool(row["used"])) for row in rows(ledger, "v_iterations")]
    assert sorted(lines) == sorted([(1, 101.0, False), (2, 102.0, True)] * 2)


def test_what_has_not_happened_yet_is_nothing(ledger: Ledger) -> None:
    record_jobs(ledger, "a")
    (one,) = rows(ledger, "v_attempts")
    assert [one[name] for name in ("wait_s", "elapsed_s", "gpu_hours", "verdict", "nodes")] == [None] * 5


def test_every_metric_of_every_program_has_a_row_with_its_unit(ledger: Ledger) -> None:
    program = {"metrics": {"busbw": {"unit": "GB/s", "better": "higher"}, "share": {"better": "higher"}}}
    job = replace(new_job("a"), spec=job_spec(program=program))
    record_run(ledger, new_run(), [job], unless_verified, new_attempts())
    values = (MeasuredMetric("busbw", 2.5, "GB/s"), MeasuredMetric("share", 0.5, ""))
    keys: tuple[dict[str, int | str], ...] = ({"size": 8, "kind": "float"}, {"size": 16, "kind": "float"})
    output = tuple(MeasuredRow(key, values) for key in keys)
    whole = MeasuredMetric("iteration_ms", 7.0, "ms", 0.5, 6)
    for _ in range(2):
        record_measurements(ledger, [Measurement(1, None, VERIFIED, None, (), (whole,), rows=output)])
    assert rows_of_output(ledger, [1]) == {1: list(output)}
    found = sorted(
        (row["row_key"] or "", row["name"], row["value"], row["unit"], row["spread"], row["count"])
        for row in rows(ledger, "v_metrics")
    )
    assert found[0] == ("", "iteration_ms", 7.0, "ms", 0.5, 6)
    assert found[1:] == [
        (f'{{"size": {size}, "kind": "float"}}', name, value, unit, None, None)
        for size in (16, 8)
        for name, value, unit in (("busbw", 2.5, "GB/s"), ("share", 0.5, ""))
    ]
