"""Tests of `--time-budget`: fewer iterations in plan, submit and render, always the same number."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
from typing import Any

import pytest

from tests.stand_in_site import CHECKOUT, Site
from tests.unit.cli.calling import Caller, Done
from tests.waiting import wait_until

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


def summary(done: Done) -> str:
    match = re.search(r"^figure-13 at scale quad on here: (.*)$", done.stderr, re.MULTILINE)
    assert match, done.stderr
    return match[1]


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


def test_a_large_budget_changes_no_job(four_gpus: Caller) -> None:
    assert dry(four_gpus) == dry(four_gpus, "--time-budget", "1h")
    assert "8 iterations, as in the experiment: 6 jobs" in four_gpus("plan", *QUAD, "--time-budget", "1h").stderr


def test_plan_submit_and_render_leave_the_same_iterations_and_the_suggested_command_too(four_gpus: Caller) -> None:
    asked = ("--where", "gbs=128", "--time-budget", f"{tight(four_gpus, '--where', 'gbs=128')}s")
    (left,) = {row["iterations"] for row in planned(four_gpus, *asked)["cases"]}
    assert {row["iterations"] for row in dry(four_gpus, *asked)} == {left}
    done = four_gpus("submit", *QUAD, *asked, "--dry-run")
    suggested = done.stderr.splitlines()[-1].removeprefix("next: repro ").partition("   #")[0].split()
    for words in (("render", *QUAD, *asked), suggested):
        assert set(re.findall(r"--train-iters (\d+)", four_gpus(*words).stdout)) == {str(left)}


def test_the_same_budget_finds_the_same_jobs_again_and_another_makes_others(four_gpus: Caller) -> None:
    budget_s = tight(four_gpus)
    asked = ("--time-budget", f"{budget_s}s")
    done = four_gpus("submit", *QUAD, *asked, "--wait")
    assert (done.returncode, summary(done)) == (0, "6 cases: 6 submitted"), done.stderr
    assert "note: 7 iterations instead of 8: 6 jobs, one after another, " in done.stderr
    assert summary(four_gpus("submit", *QUAD, *asked)) == "6 cases: 6 done, 0 submitted"
    as_limit = f"0:{budget_s // 60:02}:{budget_s % 60:02}"
    assert summary(four_gpus("submit", *QUAD, "--time-budget", as_limit)) == "6 cases: 6 done, 0 submitted"
    assert {
        (row["iteration"], row["iterations"]) for row in json.loads(four_gpus("status", "--json").stdout)["jobs"]
    } == {(7, 7)}
    assert summary(four_gpus("submit", *QUAD, "--wait")) == "6 cases: 6 submitted"
    assert len(four_gpus.site.started()) == 12


def test_the_jobs_of_the_latest_run_count_even_if_they_ran_earlier(
    four_gpus: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which of two runs is the later one is known by the second in which they began, here without waiting for the next.
    ids = (f"20260101-0000{number:02d}-0000" for number in itertools.count())
    monkeypatch.setattr("orchestrator.launch.submit.new_run_id", lambda: next(ids))
    asked = ("--time-budget", f"{tight(four_gpus)}s")
    for words, expected in ((asked, "7"), ((), "8"), (asked, "7")):
        done = four_gpus("submit", *QUAD, *words, "--wait")
        assert done.returncode == 0, done.stderr
        rows = list(csv.DictReader(io.StringIO(four_gpus("collect", "figure-13").stdout)))
        assert {(row["iterations"], row["verdict"]) for row in rows} == {(expected, "verified")}


def test_repeats_share_the_budget_equally(four_gpus: Caller) -> None:
    budget_s = tight(four_gpus)
    once = {row["case"]: row["job"] for row in dry(four_gpus, "--time-budget", f"{budget_s}s")}
    twice = ("--time-budget", f"{2 * budget_s + 1}s", "--repeat", "2")
    done = four_gpus("submit", *QUAD, *twice, "--dry-run")
    assert f"note: each of the 2 repeats has {budget_s}s of --time-budget {2 * budget_s + 1}s" in done.complaints
    assert f"--time-budget {budget_s}s" in done.stderr.splitlines()[-1]
    rows = dry(four_gpus, *twice)
    assert len(rows) == 12 and {row["case"]: row["job"] for row in rows if row["repeat"] == 1} == once


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


def test_refused_cases_are_printed_with_and_without_a_budget(repro: Caller) -> None:
    file = repro.site.folder / "experiments" / "own" / "figure-99.yaml"
    file.parent.mkdir(parents=True)
    (file.parent / "paper.yaml").write_text("title: t\nvenue: v\n")
    figure = (CHECKOUT / "experiments" / "sc21" / "figure-13.yaml").read_text()
    file.write_text(figure.replace("layers: 32, hidden: 20480", "layers: 36, hidden: 20480"))
    own, cut = (repro("plan", "figure-99", "--cluster", "selene", *more) for more in ((), ("--time-budget", "1h")))
    assert (own.returncode, cut.returncode) == (2, 2)
    refused = [line for line in own.complaints if line.startswith("repro: ")]
    assert refused and [line for line in cut.complaints if line.startswith("repro: ")] == refused
    assert " 4 jobs, one after another, " in cut.complaints[-1]


def test_the_help_names_the_budget_an_upper_bound_on_slurm(finished: Site) -> None:
    for command in ("plan", "submit", "render"):
        text = " ".join(finished.repro(command, "--help").stdout.split())
        assert "If Slurm runs several jobs at once, the time is an upper bound." in text


def test_a_retry_keeps_the_iterations_that_a_budget_left(four_gpus: Caller) -> None:
    budget_s = tight(four_gpus)
    four_gpus.site.behave("fail", "pp1-gbs32")
    assert four_gpus("submit", *QUAD, "--time-budget", f"{budget_s}s", "--wait").returncode == 1
    four_gpus.site.behave("well", "pp1-gbs32")
    done = four_gpus("retry", "figure-13", "--class", "gpu-oom")
    assert (done.returncode, done.complaints) == (0, ["1 job submitted again"]), done.stderr
    wait_until(lambda: "verified" in four_gpus("status", "--where", "pp=1,gbs=32").stdout)
    rows = json.loads(four_gpus("status", "--json").stdout)["jobs"]
    assert {(row["iteration"], row["verdict"]) for row in rows} == {(7, "verified")}
