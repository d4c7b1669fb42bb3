"""Tests of `--time-budget`: fewer iterations in plan, submit and render, always the same number."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

QUAD = ("figure-13", "--cluster", "here", "--scale", "quad")


@pytest.fixture
def four_gpus(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """`repro` on a machine with four H200."""
    program = repro.site.folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "$i, GPU-a$i, NVIDIA H200, 143771"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return repro


def planned(repro: Caller, *words: str) -> dict[str, Any]:
    done = repro("plan", *QUAD, *words, "--json")
    assert done.returncode == 0, done.stderr
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def tight(repro: Caller, *words: str) -> int:
    """Seconds for one iteration less of each case."""
    return int(planned(repro, *words, "--time-budget", "1h")["totals"][0]["run_s"]) - 1


def dry(repro: Caller, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(repro("submit", *QUAD, *words, "--dry-run", "--json").stdout)["plans"]
    return rows


def test_a_plan_shows_the_iterations_that_fit_and_ends_with_their_sum(four_gpus: Caller) -> None:
    budget_s = tight(four_gpus)
    asked = ("--time-budget", f"{budget_s}s")
    own, cut = planned(four_gpus), planned(four_gpus, *asked)
    assert own["cases"][0]["iterations"] is None
    assert {row["iterations"] for row in cut["cases"]} == {7}
    seconds = [row["run_s"] for row in cut["cases"]]
    assert sum(seconds) == pytest.approx(cut["totals"][0]["run_s"], abs=0.5)
    assert cut["totals"][0]["run_s"] <= cut["totals"][0]["time_budget_s"] == budget_s
    assert cut["totals"][0]["gpu_hours"] < own["totals"][0]["gpu_hours"]
    done = four_gpus("plan", *QUAD, *asked)
    assert re.search(r"  ITERATIONS +RUN_S$", done.stdout.splitlines()[0])
    expected = rf"7 iterations instead of 8: 6 jobs, one after another, (\d+) s of the {budget_s} s of --time-budget, "
    last = re.fullmatch(rf"{expected}predicted within \d+ %", done.complaints[-1])
    assert last and abs(int(last[1]) - sum(seconds)) < 1
    assert f"submit figure-13 --cluster here --scale quad --time-budget {budget_s}s --dry-run" in done.stderr


def test_plan_submit_and_render_leave_the_same_iterations_and_the_suggested_command_too(four_gpus: Caller) -> None:
    asked = ("--where", "gbs=128", "--time-budget", f"{tight(four_gpus, '--where', 'gbs=128')}s")
    (left,) = {row["iterations"] for row in planned(four_gpus, *asked)["cases"]}
    assert {row["iterations"] for row in dry(four_gpus, *asked)} == {left}
    done = four_gpus("submit", *QUAD, *asked, "--dry-run")
    suggested = done.stderr.splitlines()[-1].removeprefix("next: repro ").partition("   #")[0].split()
    for words in (("render", *QUAD, *asked), suggested):
        assert set(re.findall(r"--train-iters (\d+)", four_gpus(*words).stdout)) == {str(left)}


@pytest.mark.parametrize("command", ["plan", "submit", "render"])
def test_a_budget_that_no_job_fits_is_one_line_and_nothing_is_submitted(command: str, four_gpus: Caller) -> None:
    for words, expected in (
        ((*QUAD, "--time-budget", "1m"), "--time-budget 60s: the 6 jobs take "),
        (
            (*QUAD, "--time-budget", "soon"),
            "--time-budget soon: not a time. Hint: for example 10m, 600s, 1h or 0:10:00",
        ),
        ((*QUAD, "--time-budget", ""), "--time-budget : not a time. Hint: "),
        ((*QUAD[:4], "cpu", "--time-budget", "1m"), "--time-budget: figure-13 at scale cpu runs on CPU cores"),
    ):
        done = four_gpus(command, *words)
        assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1), done.stderr
        assert done.complaints[0].startswith(f"repro: {expected}")
    assert not (four_gpus.site.folder / "results.db").exists()


def test_a_budget_is_for_one_machine(repro: Caller) -> None:
    done = repro("plan", "figure-13", "atc-demo", "--time-budget", "10h")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.complaints
    assert line.startswith("repro: --time-budget: the cases are planned for 2 machines, ")
    assert line.endswith("Hint: name one with --cluster")


def test_the_help_names_the_budget_an_upper_bound_on_slurm(finished: Site) -> None:
    for command in ("plan", "submit", "render"):
        text = " ".join(finished.repro(command, "--help").stdout.split())
        assert "If Slurm runs several jobs at once, the time is an upper bound." in text
