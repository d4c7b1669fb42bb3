"""What was measured beside what was published: the ratio, whose tolerance, and what judges nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.library import Entry
from orchestrator.results.comparison import OUR_TOLERANCE, ComparedNumber, reference_rows
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import THREE_METHODS, entry_of, figure_13, find_case, shipped, with_claims

pytestmark = pytest.mark.slow

THEIRS, OURS = "case=theirs", "case=ours"
CLAIM: dict[str, Any] = {"kind": "published", "metrics": ["tokens_per_s"], "tolerance": 0.05}


@pytest.fixture
def rows(tmp_path: Path) -> Entry:
    """Two methods with published tokens/s on H800, 100 and 130, and one that runs out of memory."""
    return with_claims(entry_of(tmp_path, THREE_METHODS), CLAIM)


def besides(folder: Path, entry: Entry, rates: dict[str, float], **how: Any) -> dict[tuple[str, str], ComparedNumber]:
    how = {"metric": "tokens_per_s", "gpu": "NVIDIA H800", "repeats": 1 if "noise" in how else 3, **how}
    found = measured_results(folder, entry, "paper", rates, **how)
    return {(one.case, one.metric): one for one in reference_rows(entry, found)}


@pytest.mark.parametrize(
    ("rate", "within"), [(95.0, True), (105.0, True), (94.9, False), (105.1, False), (200.0, False)]
)
def test_a_number_comes_out_within_the_tolerance_of_the_claim_about_it(
    tmp_path: Path, rows: Entry, rate: float, within: bool
) -> None:
    one = besides(tmp_path, rows, {THEIRS: rate})[THEIRS, "tokens_per_s"]
    assert one.measured == pytest.approx(rate) and one.ratio == pytest.approx(rate / 100)
    assert one.within is within
    assert (one.tolerance, one.tolerance_from) == (0.05, "ours, claim published")
    assert (one.published_how, one.published_source) == ("printed", "a table")


@pytest.mark.parametrize(("rate", "within"), [(153.4, True), (153.6, None), (154.4, None), (154.6, False)])
def test_the_error_of_a_plotted_number_decides_no_comparison(tmp_path: Path, rate: float, within: bool | None) -> None:
    """The plot has 140 ± 0.5; 10 % are 14."""
    case = "pp=8,tp=8,gbs=32"
    found = besides(tmp_path, figure_13(), {case: rate}, metric="tflops_per_gpu", gpu="NVIDIA A100-SXM4-80GB")
    one = found[case, "tflops_per_gpu"]
    assert one.within is within
    assert one.because == (None if within is not None else "the published number is known to ±0.5")


def test_a_tolerance_that_the_source_gives_is_said_to_be_the_sources(tmp_path: Path, rows: Entry) -> None:
    entry = with_claims(rows, CLAIM | {"tolerance_is": "the source's", "tolerance": 0.0, "where": {"case": "theirs"}})
    found = besides(tmp_path, entry, {THEIRS: 100.0, OURS: 130.0})
    assert found[THEIRS, "tokens_per_s"].tolerance_from == "the source's, claim published"
    assert found[THEIRS, "tokens_per_s"].within is True
    other = found[OURS, "tokens_per_s"]
    assert (other.tolerance, other.tolerance_from) == (OUR_TOLERANCE, "default, no claim is about it")


def test_every_published_number_of_a_case_has_a_row_measured_or_not(tmp_path: Path, rows: Entry) -> None:
    found = besides(tmp_path, rows, {THEIRS: 100.0, OURS: 130.0}, out_of_memory=("case=plain",))
    assert {key: one.missing for key, one in found.items()} == {
        ("case=plain", "tokens_per_s"): "out of memory as published",
        (THEIRS, "tokens_per_s"): None,
        (THEIRS, "mfu_percent"): "not measured",
        (OURS, "tokens_per_s"): None,
    }


def test_what_is_missing_is_told_apart(tmp_path: Path, rows: Entry) -> None:
    found = besides(tmp_path, rows, {}, failed=(THEIRS,))
    assert found[THEIRS, "tokens_per_s"].missing == "failed"
    assert found[THEIRS, "tokens_per_s"].because == 'exit 1, "oom"'
    assert found[OURS, "tokens_per_s"].missing == "not submitted"
    results = measured_results(tmp_path, rows, "paper", {THEIRS: 1.0, OURS: 1.0}, metric="tokens_per_s", gpu="H800")
    running, flagged = results[1], results[2]
    assert running.row is not None
    running = replace(running, row=replace(running.row, verdict=None, phase="running", state="RUNNING"))
    kinds = [one.missing for one in reference_rows(rows, [running, replace(flagged, flag="faster than its peak")])]
    assert kinds == ["under way", "under way", "cannot be right"]


@pytest.mark.parametrize(
    ("gpu", "because"),
    [("A100-SXM4-80GB", "published for H800, measured on A100-SXM4-80GB"), (None, "measured on a GPU without a name")],
)
def test_a_number_of_another_gpu_is_shown_and_not_judged(
    tmp_path: Path, rows: Entry, gpu: str | None, because: str
) -> None:
    one = besides(tmp_path, rows, {THEIRS: 300.0}, gpu=gpu)[THEIRS, "tokens_per_s"]
    assert (one.ratio, one.within) == (3.0, None) and because in (one.because or "")


def test_a_number_of_another_program_is_shown_and_not_judged(tmp_path: Path, rows: Entry) -> None:
    found = measured_results(tmp_path, rows, "paper", {THEIRS: 300.0}, metric="tokens_per_s", gpu="H800")
    other = [replace(result, instead_of="megatron-kwai") for result in found]
    one = next(one for one in reference_rows(rows, other) if one.measured)
    assert (one.ratio, one.within, one.because) == (3.0, None, "published for megatron-kwai, and pretrain ran")


def test_numbers_that_no_program_measured_are_shown_and_judge_nothing(tmp_path: Path, rows: Entry) -> None:
    theirs = replace(rows, experiment=rows.experiment.model_copy(update={"published_program": "their program"}))
    one = besides(tmp_path, theirs, {THEIRS: 100.0}, gpu="H800")[THEIRS, "tokens_per_s"]
    assert (one.ratio, one.within, one.because) == (1.0, None, "published for their program, and pretrain ran")


def test_a_number_of_the_papers_machine_is_shown_and_not_judged_on_another_gpu(tmp_path: Path) -> None:
    rates = {"pp=8,tp=8,gbs=32": 10.0}
    found = measured_results(tmp_path, figure_13(), "paper", rates, gpu="NVIDIA H200")
    drawn = {one.case: one for one in reference_rows(figure_13(), found)}["pp=8,tp=8,gbs=32"]
    assert drawn.ratio == pytest.approx(10 / 140) and drawn.within is None
    assert drawn.because == "published for A100-SXM4-80GB, measured on NVIDIA H200"


def test_an_unconfirmed_number_is_shown_and_a_case_without_one_is_listed(tmp_path: Path) -> None:
    entry = shipped("alpa-gpt")
    found = measured_results(tmp_path, entry, "paper", {"gpus=64": 29.0}, metric="tflops_per_gpu", gpu="V100")
    row = next(one for one in reference_rows(entry, found) if (one.case, one.metric) == ("gpus=64", "tflops_per_gpu"))
    assert (row.within, row.because) == (None, "the number is not confirmed")
    search = shipped("alpa-search")
    (tmp_path / "search").mkdir()
    found = measured_results(tmp_path / "search", search, "paper", {"case=L92": 10.0})
    none = next(one for one in reference_rows(search, found) if one.case == "case=L92")
    assert (none.measured, none.published, none.missing) == (10.0, None, "no published number")


def test_a_rate_of_a_host_bound_case_is_shown_and_not_judged(tmp_path: Path, rows: Entry) -> None:
    one = besides(tmp_path, rows, {THEIRS: 50.0}, waits={THEIRS: 31.0})[THEIRS, "tokens_per_s"]
    assert (one.ratio, one.within) == (0.5, None)
    assert one.because == "host-bound: its GPUs waited 31 % of the time for the host"
    (tmp_path / "quick").mkdir()
    one = besides(tmp_path / "quick", rows, {THEIRS: 50.0}, waits={THEIRS: 10.0})[THEIRS, "tokens_per_s"]
    assert (one.within, one.because) == (False, None)


def test_noise_that_could_turn_the_verdict_leaves_none(tmp_path: Path, rows: Entry) -> None:
    for rate, within, missing in ((100.0, None, "too noisy"), (150.0, False, None)):
        one = besides(tmp_path, rows, {THEIRS: rate}, noise={THEIRS: 0.08})[THEIRS, "tokens_per_s"]
        assert (one.within, one.missing) == (within, missing)


def test_of_a_case_published_for_two_gpus_the_measured_ones_counts(tmp_path: Path) -> None:
    published = """\
published:
  - {where: {case: ours}, metric: tokens_per_s, value: 3803, how: printed, confirmed: true, source: a README, gpu: A800}
  - {where: {case: ours}, metric: tokens_per_s, value: 8273, how: printed, confirmed: true, source: a README, gpu: H800}
"""
    entry = entry_of(tmp_path, THREE_METHODS.replace(", published: {tokens_per_s: 130}", "") + published)
    for gpu, values in (("A800", [3803]), ("H800", [8273]), ("H100", [3803, 8273])):
        found = measured_results(tmp_path, entry, "paper", {OURS: 3803.0}, metric="tokens_per_s", gpu=gpu)
        points = [one.point for one in reference_rows(entry, found) if one.case == OURS]
        assert [point.value for point in points if point] == values


def test_the_equation_says_whether_recomputation_counts() -> None:
    assert find_case("figure-13", "pp=8,tp=8,gbs=32").equation == "SC21 eq. 3"
    assert find_case("figure-17", "recompute=none,gbs=8").equation == "SC21's appendix, without recomputation"
