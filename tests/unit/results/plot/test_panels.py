"""What a picture shows: whose numbers, in which order, and what stands where a number is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.library import Entry
from orchestrator.results.cases import CaseMetric, Result
from orchestrator.results.plot import panels as content
from orchestrator.results.plot.figure import positions_of
from orchestrator.results.plot.panels import Panel, named_lines, panels, published_number
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import THREE_METHODS, entry_of, figure_13, shipped
from tests.unit.results.drawing import LINES, made_up, nothing_ran


def shown(entry: Entry, results: Sequence[Result]) -> list[Panel]:
    place = positions_of(entry, results)
    return panels(entry, results, place, place.by_number)


def marks(entry: Entry, results: Sequence[Result], name: str, at: float) -> tuple[content.AxisMark, ...]:
    (line,) = [line for line in shown(entry, results)[0].lines if line.name == name]
    (spot,) = [spot for spot in line.points if spot.at == at]
    return spot.marks


@pytest.mark.parametrize(
    ("rates", "how", "expected"),
    [
        ({}, {}, (content.OOM_PUBLISHED,)),
        ({}, {"out_of_memory": ("recompute=none,gbs=8",)}, (content.OOM_BOTH,)),
        ({}, {"failed": ("recompute=none,gbs=8",)}, (content.OOM_PUBLISHED, content.FAILED_HERE)),
        ({"recompute=none,gbs=8": 5.0}, {}, (content.OOM_PUBLISHED,)),
    ],
)
def test_a_case_that_is_published_to_run_out_of_memory_is_marked_with_what_it_did_here(
    tmp_path: Path, rates: dict[str, float], how: dict[str, Any], expected: tuple[content.AxisMark, ...]
) -> None:
    entry = entry_of(tmp_path, LINES)
    found = measured_results(tmp_path, entry, "paper", rates, **how)
    assert marks(entry, found, "Recomputation = none", 8) == expected


def test_what_nobody_confirmed_of_memory_is_told_apart(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES.replace("outcome: oom, confirmed: true", "outcome: oom, confirmed: false"))
    found = measured_results(tmp_path, entry, "paper", {})
    assert marks(entry, found, "Recomputation = none", 8) == (content.OOM_PUBLISHED_UNCONFIRMED,)
    found = measured_results(tmp_path, entry, "paper", {}, out_of_memory=("recompute=none,gbs=8",))
    assert marks(entry, found, "Recomputation = none", 8) == (content.OOM_BOTH_UNCONFIRMED,)


def test_a_missing_number_says_why_it_is_missing(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES)
    name = "recompute=full,gbs=1"
    found = measured_results(tmp_path, entry, "paper", {name: 5.0})
    (ran,) = [result for result in found if result.case.name == name]
    assert ran.row is not None
    for result, expected in (
        (ran, ()),
        (replace(ran, row=None), (content.NOT_RUN,)),
        (replace(ran, row=replace(ran.row, verdict=None)), (content.UNDER_WAY,)),
        (replace(ran, row=replace(ran.row, verdict="failed", verdict_reason="exit 1")), (content.FAILED_HERE,)),
        (replace(ran, metrics={}), (content.NO_NUMBER,)),
        (replace(ran, flag="faster than the GPU's peak"), (content.FLAGGED,)),
    ):
        assert marks(entry, [result if one is ran else one for one in found], "With it", 1) == expected
    found = measured_results(tmp_path, entry, "paper", {}, out_of_memory=(name,))
    assert marks(entry, found, "With it", 1) == (content.OOM_MEASURED,)


def test_every_mark_has_its_place_in_the_legend() -> None:
    every = {mark for mark in vars(content).values() if isinstance(mark, content.AxisMark)}
    assert set(content.AXIS_MARKS) == every
    looks = [(mark.marker, mark.filled, str(mark.ring)) for mark in content.AXIS_MARKS]
    assert len(set(looks)) == len(looks)


def test_a_line_stands_from_left_to_right_whatever_the_files_order(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES)
    (panel,) = shown(entry, measured_results(tmp_path, entry, "paper", {}))
    assert [[spot.at for spot in line.points] for line in panel.lines] == [[1, 2, 8]] * 2
    assert all(line.joined for line in panel.lines)


def test_cases_of_words_and_several_at_one_place_are_not_joined(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, THREE_METHODS)
    assert not shown(entry, measured_results(tmp_path, entry, "paper", {}))[0].lines[0].joined
    search = shipped("alpa-search")
    assert not any(line.joined for line in shown(search, nothing_ran(search))[0].lines)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("figure-12", "Non-interleaved", "Interleaved"),
        ("figure-17", "Act. recomputation", "W/o act. recomputation"),
        ("figure-18", "Unoptimized", "Scatter/gather optimization"),
    ],
)
def test_the_lines_come_in_the_papers_order(name: str, first: str, second: str) -> None:
    entry = shipped(name)
    assert list(named_lines(entry, nothing_ran(entry))) == [first, second]


def test_a_value_that_the_paper_has_no_name_for_comes_after_those_it_names(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES.replace("recompute: [full, none]", "recompute: [selective, full, none]"))
    names = named_lines(entry, measured_results(tmp_path, entry, "paper", {}))
    assert list(names) == ["With it", "Recomputation = selective", "Recomputation = none"]


@pytest.mark.parametrize(("gpu", "value"), [("A800", 3016), ("H800", 6639), ("H200", 6639), (None, 6639)])
def test_the_published_number_is_that_of_this_gpu_else_of_the_papers_own(gpu: str | None, value: float) -> None:
    entry = shipped("atc-demo")  # printed for two GPUs; the paper measured on H800
    (baseline, *_) = nothing_ran(entry)
    point = published_number(entry, replace(baseline, gpu=gpu), "tokens_per_s_per_gpu")
    assert point is not None and point.value == value


def test_a_panel_of_another_number_is_there_only_where_that_number_is(tmp_path: Path) -> None:
    entry = shipped("core-sp")
    assert [panel.y.metric for panel in shown(entry, nothing_ran(entry))] == ["iteration_ms", "gpu_memory_used_gb"]
    cpu = shipped("tutorial-cp")
    results = measured_results(tmp_path, cpu, "cpu", {"case=301": 5.0}, metric="iteration_ms")
    assert [panel.y.metric for panel in shown(cpu, results)] == ["iteration_ms"]


def test_the_figures_own_panel_is_there_without_any_number(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES)
    (panel,) = shown(entry, nothing_ran(entry))
    assert panel.values == [] and len(list(panel.points)) == 6


def test_an_error_bar_is_the_interval_of_the_repeats_else_the_spread(tmp_path: Path) -> None:
    entry = figure_13()
    found = made_up(tmp_path, entry)
    one, two = CaseMetric("tflops_per_gpu", 100, "", 4, 5), CaseMetric("tflops_per_gpu", 100, "", 4, 15, 90, 110, 3)
    bare = CaseMetric("tflops_per_gpu", 100, "")
    for metric, ends in ((one, (96, 104)), (two, (90, 110)), (bare, (100, 100))):
        again = [replace(found[0], metrics={"tflops_per_gpu": metric}), *found[1:]]
        spot = shown(entry, again)[0].lines[0].points[0]
        assert (spot.low, spot.high) == ends
