"""Results as rows: every case once, the same columns for every experiment, and no number that is no result."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.tables import IterationLine
from orchestrator.megatron.axes import AXES, METRICS
from orchestrator.megatron.logs.parse import LogFacts
from orchestrator.megatron.logs.statistics import joules, metrics
from orchestrator.reading.gpu_samples import MeanPower, read_samples
from orchestrator.results.cases import Result, case_results, published_for
from orchestrator.results.export.rows import CaseRow, case_columns, export_rows
from tests.cases import expand
from tests.recorded_jobs import job_row, measured_results, new_ledger, new_run, record_jobs
from tests.unit.catalog.entries import THREE_METHODS, entry_of, figure_13, shipped

VERIFIED, FAILED, ABSENT = "pp=1,tp=4,gbs=4", "pp=2,tp=2,gbs=4", "pp=4,tp=1,gbs=16"
SAMPLE = "2026/11/21 10:00:00.123, 0, 1000, 143771, 99, 690.5, 1755, 61, 0x0000000000000004\n"
NAMES = [column.name for column in case_columns(figure_13())]


@pytest.fixture
def found(tmp_path: Path) -> list[Result]:
    return measured_results(tmp_path, figure_13(), "cpu", {VERIFIED: 12.5, FAILED: 99.0}, failed=(FAILED,))


def row_of(rows: list[CaseRow], case: str) -> CaseRow:
    (row,) = [row for row in rows if row["case"] == case]
    return row


def changed(result: Result, **fields: Any) -> Result:
    """The same case with another job."""
    assert result.row is not None
    return replace(result, row=replace(result.row, **fields))


def test_every_case_has_a_row_with_what_ran_and_what_came_out(found: list[Result]) -> None:
    rows = export_rows(figure_13(), found)
    assert [row["case"] for row in rows] == [case.name for case in expand(figure_13(), "cpu")]
    good = row_of(rows, VERIFIED)
    assert (good["tflops_per_gpu"], good["iteration_ms"], good["iterations_used"], good["repeats"]) == (12.5, 80, 6, 1)
    shape = ("pipeline_parallel", "tensor_parallel", "global_batch_size", "gpus", "microbatches", "vocabulary")
    assert [good[name] for name in shape] == [1, 4, 4, 4, 4, 1024]
    assert (good["job"], good["verdict"], good["nodes"], good["scheduler_id"]) == ("job1", "verified", "n1", "7_0")
    assert (good["figure_metric"], good["figure_value"]) == ("tflops_per_gpu", 12.5)


def test_a_number_of_a_job_that_was_not_verified_is_left_out(found: list[Result]) -> None:
    bad = row_of(export_rows(figure_13(), found), FAILED)
    assert (bad["verdict"], bad["verdict_reason"]) == ("failed", 'exit 1, "oom"')
    numbers = [*METRICS, *(f"{name}_spread" for name in METRICS), "iterations_used", "repeats", "figure_value"]
    assert {bad[name] for name in numbers} == {None}


def test_a_number_that_cannot_be_right_is_left_out_and_the_row_has_the_reason(found: list[Result]) -> None:
    flagged = [replace(one, flag="faster than its peak", noise="spread 12 %") for one in found]
    row = row_of(export_rows(figure_13(), flagged), VERIFIED)
    assert (row["flag"], row["noise"], row["tflops_per_gpu"]) == ("faster than its peak", "spread 12 %", None)


def test_a_row_has_the_execution_mode_the_host_wait_and_whether_the_case_is_host_bound(tmp_path: Path) -> None:
    rates = {VERIFIED: 12.5, FAILED: 99.0, ABSENT: 10.0}
    how: dict[str, Any] = {"waits": {VERIFIED: 31.0, FAILED: 31.0}, "modes": {VERIFIED: "eager", FAILED: "graph"}}
    rows = export_rows(figure_13(), measured_results(tmp_path, figure_13(), "cpu", rates, failed=(FAILED,), **how))
    names = ("execution", "host_bound", "host_wait_ms", "host_wait_percent")
    assert [row_of(rows, VERIFIED)[name] for name in names] == ["eager", True, 24.8, 31.0]
    assert [row_of(rows, FAILED)[name] for name in names] == ["graph", None, None, None]
    assert [row_of(rows, ABSENT)[name] for name in names] == [None] * 4
    (tmp_path / "quick").mkdir()
    quick = measured_results(tmp_path / "quick", figure_13(), "cpu", rates, waits={VERIFIED: 10.0})
    assert row_of(export_rows(figure_13(), quick), VERIFIED)["host_bound"] is False


def test_every_experiment_has_the_same_columns_in_the_same_order(found: list[Result], tmp_path: Path) -> None:
    other = entry_of(tmp_path, THREE_METHODS)
    rows = measured_results(tmp_path, other, "paper", {"case=ours": 130.0}, metric="tokens_per_s")
    assert {tuple(row) for row in export_rows(figure_13(), found)} == {tuple(NAMES)}
    assert {tuple(row) for row in export_rows(other, rows)} == {tuple(NAMES)}
    assert len(set(NAMES)) == len(NAMES)


def test_every_axis_and_every_metric_has_a_column() -> None:
    assert {column.name for column in AXES.values()} <= set(NAMES)
    assert set(METRICS) <= set(NAMES)


def test_every_number_that_is_ever_measured_has_a_column_with_its_unit(tmp_path: Path) -> None:
    case = expand(shipped("atc-demo"))[0]
    ranks = {(t, p): 5 for t in range(case.layout.tensor_parallel) for p in range(case.layout.pipeline_parallel)}
    line = IterationLine(9, 100.0, 1.0, 1.0, True, 1.0, 0, 0, 50.0, 60.0, 70.0, host_wait_ms=4.0)
    parts = {name: asdict(getattr(case, name)) for name in ("model", "layout", "training")}
    (tmp_path / "gpus.n1.csv").write_text(SAMPLE)
    facts = LogFacts(
        parameters=ranks,
        max_allocated_bytes=1,
        max_reserved_bytes=2,
        device_used_bytes=3,
        theoretical_memory_bytes=4,
    )
    computes = {"causal_attention": True, "skips_last_product": True}
    printed = metrics([line], JobSpec.from_json({**parts, "peak_tflops": 312.0, "computes": computes}), facts)
    sampled = [
        *read_samples(tmp_path, (facts.measured_from, facts.measured_until), 1).metrics,
        *joules(MeanPower(500.0, 9), printed),
    ]
    units = {one.name: one.unit for one in [*printed, *sampled]}
    assert units == {name: METRICS[name].unit for name in units}
    assert [name for name in METRICS if name not in units] == ["training_days"]  # published only: no job measures it


def test_a_rows_own_label_does_not_take_the_place_of_the_cases_name(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, THREE_METHODS)
    rows = export_rows(entry, measured_results(tmp_path, entry, "paper", {"case=ours": 130.0}, metric="tokens_per_s"))
    assert [(row["case"], row["row"]) for row in rows] == [
        ("case=plain", "plain"),
        ("case=theirs", "theirs"),
        ("case=ours", "ours"),
    ]
    assert [row["figure_value"] for row in rows] == [row["tokens_per_s"] for row in rows] == [None, None, 130.0]
    assert [row["expected_outcome"] for row in rows] == ["oom", None, None]


def test_a_job_is_told_by_what_it_was_recorded_with_and_not_by_todays_file(found: list[Result]) -> None:
    case = found[0].case
    parts = {name: asdict(getattr(case, name)) for name in ("model", "layout", "training")}
    parts["training"]["dtype"], parts["layout"]["global_batch_size"] = "bf16", 40
    settings = {**case.settings, "layers": 99, "program": "another figure's"}
    recorded = {**parts, "device": "gpu", "settings": settings}
    (row,) = export_rows(figure_13(), [changed(found[0], spec=JobSpec.from_json(recorded))])
    assert (row["layers"], row["dtype"], row["device"], row["microbatches"]) == (99, "bf16", "gpu", 40)
    assert row["program"] == "pretrain"


def test_times_are_utc_and_what_a_job_held_gpus_for_is_counted(found: list[Result]) -> None:
    start, end = datetime(2026, 1, 2, 3, 4, 5, 6000), datetime(2026, 1, 2, 3, 34, 5, 6000)
    one = changed(found[0], submitted_at=start, started_at=start, ended_at=end, gpus=4)
    (row,) = export_rows(figure_13(), [one])
    assert (row["started_at"], row["elapsed_s"]) == ("2026-01-02T03:04:05.006Z", 1800)
    assert row["gpu_hours"] is None  # four processes on the cores of one machine
    on_gpus = replace(one, case=replace(one.case, device="gpu"))
    assert export_rows(figure_13(), [on_gpus])[0]["gpu_hours"] == 2
    (running,) = export_rows(figure_13(), [changed(one, ended_at=None)])
    assert (running["ended_at"], running["elapsed_s"], running["gpu_hours"]) == (None, None, None)


def test_repeats_have_their_interval_beside_the_mean(tmp_path: Path) -> None:
    case, base = expand(figure_13(), "cpu")[0], job_row(tmp_path)
    rows = [replace(base, case_name=case.name, attempt_id=i, job_id=f"job{i}", repeat=i) for i in (1, 2, 3)]
    values = {i: {"iteration_ms": MeasuredMetric("iteration_ms", 100.0 + i, "ms", 1.0, 5)} for i in (1, 2, 3)}
    (row,) = export_rows(figure_13(), case_results(figure_13(), [case], rows, values))
    assert (row["iteration_ms"], row["repeats"], row["repeat"], row["iterations_used"]) == (102, 3, 2, 15)
    assert row["iteration_ms_low"] < 101 and row["iteration_ms_high"] > 103  # t = 4.303, s = 1, n = 3


def test_the_run_that_made_the_attempt_names_the_commit(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a")
    (row,) = job_rows(ledger)
    record_jobs(ledger, "b", run=replace(new_run(), git_commit="beef", git_dirty=True))
    results = [Result(case=expand(figure_13(), "cpu")[0], row=job) for job in job_rows(ledger)]
    assert [out["git_commit"] for out in export_rows(figure_13(), results, ledger)] == ["c0ffee", "beef"]
    (out,) = export_rows(figure_13(), [replace(results[0], row=row)], ledger)
    assert (out["git_commit"], out["git_dirty"], out["code"], out["image"]) == ("c0ffee", False, "code", None)


@pytest.mark.parametrize(
    ("profile", "device", "cost"),
    [
        ({"price_per_gpu_hour": {"value": 2.5, "currency": "EUR"}}, "gpu", (5.0, "EUR")),
        ({"price_per_gpu_hour": {"value": 2.5, "currency": "EUR"}}, "cpu", (None, None)),
        ({"price_per_gpu_hour": "much"}, "gpu", (None, None)),
        ({}, "gpu", (None, None)),
    ],
)
def test_the_cost_is_gpu_hours_times_the_price_that_was_recorded(
    tmp_path: Path, profile: dict[str, object], device: str, cost: tuple[float | None, str | None]
) -> None:
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a", run=replace(new_run(), profile=profile))
    start = datetime(2026, 1, 2)
    times = {"started_at": start, "ended_at": start + timedelta(minutes=30), "gpus": 4}
    (row,) = job_rows(ledger)
    case = replace(expand(figure_13(), "cpu")[0], device=device)
    (out,) = export_rows(figure_13(), [changed(Result(case=case, row=row), **times)], ledger)
    assert (out["cost"], out["currency"]) == cost


def test_published_numbers_belong_to_the_published_scale() -> None:
    entry = figure_13()
    paper = {case.name: published_for(entry, case) for case in expand(entry, "paper")}
    shown = {name: point.value for name, point in paper.items() if point is not None}
    assert shown["pp=8,tp=8,gbs=32"] == 140 and len(shown) == len(entry.experiment.published)
    assert [published_for(entry, case) for case in expand(entry, "cpu")] == [None] * 6


@pytest.mark.parametrize(("gpu", "published"), [("NVIDIA H800", 130), ("NVIDIA H200", None), (None, None)])
def test_a_number_of_another_gpu_is_not_put_beside_ours(tmp_path: Path, gpu: str | None, published: int | None) -> None:
    entry = entry_of(tmp_path, THREE_METHODS)
    found = measured_results(tmp_path, entry, "paper", {"case=ours": 65.0}, metric="tokens_per_s", gpu=gpu)
    row = export_rows(entry, found)[-1]
    assert (row["published"], row["gpu"]) == (published, gpu)
    assert row["ratio_to_published"] == (0.5 if published else None)
    assert row["published_gpu"] == ("H800" if published else None)


CASE = "pp=8,tp=8,gbs=32"


@pytest.mark.parametrize(("gpu", "ratio"), [("A100-SXM4-80GB", 0.5), ("NVIDIA H200", None), (None, None)])
def test_beside_a_number_that_names_no_gpu_stands_the_papers_and_no_ratio_to_another(
    tmp_path: Path, gpu: str | None, ratio: float | None
) -> None:
    entry = figure_13()
    row = row_of(export_rows(entry, measured_results(tmp_path, entry, "paper", {CASE: 70.0}, gpu=gpu)), CASE)
    assert (row["published"], row["published_gpu"], row["ratio_to_published"]) == (140, "A100-SXM4-80GB", ratio)
    assert (row["published_metric"], row["published_confirmed"]) == ("tflops_per_gpu", True)
    assert (row["published_source"], row["published_error"]) == ("figure 13", 0.5)
    found = measured_results(tmp_path, entry, "paper", {CASE: 71.0}, gpu=gpu)
    rows = export_rows(entry, [replace(one, instead_of="another program") for one in found])
    assert (row_of(rows, CASE)["ratio_to_published"], rows[0]["published_program"]) == (None, "another program")


def test_what_a_log_said_steers_no_terminal_and_ends_no_line(found: list[Result]) -> None:
    said = "\x1b[31mRuntimeError\x1b[0m:\r\nreason=abcdefgh\tgone\x07\u202e\ud800"
    told = changed(found[0], verdict="failed", verdict_reason=said, deciding_line=said)
    (row,) = export_rows(figure_13(), [told])
    assert row["verdict_reason"] == row["deciding_line"] == "RuntimeError: reason=abcdefgh gone???"


def test_a_number_that_is_none_is_left_out(found: list[Result]) -> None:
    good = next(one for one in found if one.case.name == VERIFIED)
    timing = replace(good.metrics["iteration_ms"], spread=float("nan"), value=float("inf"))
    (row,) = export_rows(figure_13(), [replace(good, metrics={"iteration_ms": timing})])
    assert (row["iteration_ms"], row["iteration_ms_spread"], row["iterations_used"]) == (None, None, 6)
