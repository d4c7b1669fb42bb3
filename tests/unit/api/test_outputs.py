"""Outputs of described programs that are read before there is a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.errors import ReproError
from orchestrator.paths import Folders
from tests.unit.catalog.entries import CHECKOUT, shipped

LOSS = """\
figure: Figure 1
title: Loss by width
program:
  command: [python3, train_toy.py, --width, "{width}", --steps, "{steps}"]
  output: {iterations: 'step={iteration} loss={loss}', example: output.txt}
  metrics: {loss: {better: lower, unit: nats, take: last}}
  verified: iterations == steps
matrix: {width: [64, 128]}
fixed: {steps: 2}
plot: {x: {label: Width, of: [width]}, y: {label: Loss, metric: loss}}
"""
OUTPUT = "start\nstep=1 loss=2.5\nstep=2 loss=2.25\n"


def entry_in(folder: Path, text: str = LOSS, output: str | None = OUTPUT) -> Entry:
    file = folder / "toy" / "loss.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    if output is not None:
        (file.parent / "output.txt").write_text(output)
    return find_experiment(Folders(CHECKOUT, folder), str(file))


def test_every_number_of_the_example_has_its_line_and_unit(tmp_path: Path) -> None:
    checked = api.check_output(entry_in(tmp_path))
    assert checked is not None and checked.problems == ()
    numbers = [(one.line, one.at, one.name, one.value, one.unit) for one in checked.numbers]
    assert numbers == [(2, "iteration 1", "loss", 2.5, "nats"), (3, "iteration 2", "loss", 2.25, "nats")]


def test_the_example_may_be_of_a_case_of_any_scale(tmp_path: Path) -> None:
    text = LOSS.replace("fixed: {steps: 2}", "fixed: {steps: 9}") + "scales:\n  short: {fixed: {steps: 2}}\n"
    checked = api.check_output(entry_in(tmp_path, text))
    assert checked is not None and checked.problems == () and checked.case.scale == "short"


def test_an_output_that_is_cut_is_not_verified(tmp_path: Path) -> None:
    entry = entry_in(tmp_path)
    cut = tmp_path / "cut.txt"
    cut.write_text(OUTPUT[:25])
    checked = api.check_output(entry, str(cut))
    assert checked is not None
    assert [str(problem) for problem in checked.problems] == [
        "cut.txt: iterations == steps: iterations is 1, steps is 2"
    ]


def test_the_case_of_where_decides_what_the_output_must_have(tmp_path: Path) -> None:
    text = LOSS.replace("matrix: {width: [64, 128]}\nfixed: {steps: 2}", "matrix: {width: [64], steps: [2, 3]}")
    entry = entry_in(tmp_path, text)
    checked = api.check_output(entry, where="steps=3")
    assert checked is not None and checked.case.name == "width=64,steps=3"
    assert [problem.what for problem in checked.problems] == ["iterations == steps: iterations is 2, steps is 3"]


def test_the_example_may_be_that_of_any_case_at_any_scale(tmp_path: Path) -> None:
    short = (
        "scales: {short: {fixed: {steps: 1}, matrix: {width: [8]}}, long: {fixed: {steps: 2}, matrix: {width: [16]}}}\n"
    )
    entry = entry_in(tmp_path, LOSS.replace("fixed: {steps: 2}", "fixed: {steps: 30}") + short)
    checked = api.check_output(entry)
    assert checked is not None and checked.problems == ()
    assert (checked.case.scale, checked.case.name) == ("long", "width=16")
    short_log = tmp_path / "short.txt"
    short_log.write_text(OUTPUT[:20])
    of_log = [api.check_output(entry, str(short_log), scale) for scale in (None, "short")]
    assert [one.problems == () for one in of_log if one is not None] == [False, True]
    with pytest.raises(ReproError, match="no such case"):
        api.check_output(entry, where="width=16", scale="short")


def test_an_example_of_no_case_has_the_problems_of_the_nearest(tmp_path: Path) -> None:
    scale = "scales: {short: {fixed: {steps: 1}, matrix: {width: [8]}}}\n"
    text = LOSS.replace("iterations == steps", "iterations == steps and width == 8").replace("steps: 2", "steps: 5")
    checked = api.check_output(entry_in(tmp_path, text + scale))
    assert checked is not None and checked.case.scale == "short"
    assert [problem.what for problem in checked.problems] == ["iterations == steps: iterations is 2, steps is 1"]


def test_a_missing_example_is_an_error_with_its_line_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"loss\.yaml:5:\d+ cannot be read \(No such file or directory\)"):
        api.check_output(entry_in(tmp_path, output=None))


def test_a_line_of_any_length_needs_little_memory(tmp_path: Path) -> None:
    entry = entry_in(tmp_path)
    long = tmp_path / "long.txt"
    long.write_text("x" * 1_000_000 + "\n" + OUTPUT)
    checked = api.check_output(entry, str(long))
    assert checked is not None and [one.line for one in checked.numbers] == [3, 4]
    assert [problem.what for problem in checked.problems] == ["line 1: only its first 10000 characters are read"]


def test_an_output_of_a_known_program_is_not_declared_by_its_experiment() -> None:
    assert api.check_output(shipped()) is None
    with pytest.raises(ReproError, match="figure-13 describes no program"):
        api.check_output(shipped(), "log.txt")
