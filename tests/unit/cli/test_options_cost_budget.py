"""Tests of prices: money in plan, collect and report, and `--cost-budget`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.unit.cli.calling import Caller

QUAD = ("figure-13", "--cluster", "paid", "--scale", "quad")
PRICE = "price_per_gpu_hour: {value: 3, currency: USD}\n"


@pytest.fixture
def paid(repro: Caller) -> Caller:
    """`repro` with a priced cluster of four H200 that extends another profile."""
    hardware = "{nodes: 1, gpus_per_node: 4, gpu: NVIDIA H200, gpu_memory_gb: 150, peak_tflops: {bf16: 989, fp16: 989}}"
    clusters = repro.site.folder / "clusters"
    free = f'about: a\nscheduler: slurm\nhardware: {hardware}\nslurm: {{time_limit: "0:30:00"}}\n'
    (clusters / "free.yaml").write_text(free)
    (clusters / "paid.yaml").write_text("extends: free\nabout: b\n" + PRICE)
    return repro


def planned(repro: Caller, *words: str) -> dict[str, Any]:
    done = repro("plan", *QUAD, *words, "--json")
    assert done.returncode == 0, done.stderr
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def test_a_plan_shows_the_cost_of_each_case_and_of_all_jobs(paid: Caller) -> None:
    plan = planned(paid)
    for row in plan["cases"]:
        assert row["currency"] == "USD" and row["cost"] == pytest.approx(3 * row["gpu_hours"], abs=0.02)
    assert plan["totals"][0]["cost"] == pytest.approx(3 * plan["totals"][0]["gpu_hours"], abs=0.02)
    done = paid("plan", *QUAD)
    assert re.search(r"6 jobs, [0-9.]+ GPU-hours \([0-9.]+ USD\) predicted", done.stderr)
    free = json.loads(paid("plan", *QUAD, "--cluster", "free", "--json").stdout)
    assert free["totals"][0]["cost"] is None and {row["cost"] for row in free["cases"]} == {None}
    assert "USD" not in paid("plan", *QUAD, "--cluster", "free").stdout


def test_a_cost_budget_reduces_iterations_and_is_kept(paid: Caller) -> None:
    own = planned(paid)["totals"][0]["cost"]
    budget = f"{own - 0.01:.2f}"
    cut = planned(paid, "--cost-budget", f"{budget}USD")
    assert {row["iterations"] for row in cut["cases"]} == {7}
    assert cut["totals"][0]["cost"] <= cut["totals"][0]["cost_budget"] == float(budget)
    asked = ("submit", *QUAD, "--cost-budget", budget, "--dry-run")
    done = paid(*asked)
    text = (
        rf"note: 7 iterations instead of 8: 6 jobs [0-9.]+ USD of the {budget} USD of --cost-budget, predicted within "
    )
    assert re.search(text, done.stderr)
    assert f"--cost-budget {float(budget):g}USD --explain" in done.stderr
    assert {row["iterations"] for row in json.loads(paid(*asked, "--json").stdout)["plans"]} == {7}
    large = planned(paid, "--cost-budget", f"{own + 1:.2f}")
    assert {row["iterations"] for row in large["cases"]} == {8}
    both = planned(paid, "--cost-budget", f"{own + 1:.2f}", "--time-budget", f"{int(large['totals'][0]['run_s']) - 1}s")
    assert {row["iterations"] for row in both["cases"]} == {7}
    twice = paid(*asked[:-3], "--cost-budget", f"{2 * float(budget):.2f}", "--repeat", "2", "--dry-run")
    assert f"each of the 2 repeats has {budget} USD of --cost-budget" in twice.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--cost-budget", "0.01USD"), "--cost-budget 0.01 USD: the 6 jobs cost "),
        (("--cost-budget", "50EUR"), "--cost-budget 50EUR: the price of paid is in USD"),
        (("--cost-budget", "$50"), "--cost-budget $50: not an amount of money"),
        (("--cost-budget", "0"), "--cost-budget 0: not an amount of money"),
        (("--cost-budget", "50", "--cluster", "free"), "--cost-budget: free has no price of a GPU-hour"),
        (("--cost-budget", "50", "--scale", "cpu"), "--cost-budget: figure-13 at scale cpu runs on CPU cores"),
        (("--cost-budget", "50", "--set", "training.iterations=5"), "--set training.iterations and --cost-budget"),
        (("--set", "price_per_gpu_hour.currency=dollar"), "must be an ISO 4217 code such as USD or EUR"),
        (("--set", "price_per_gpu_hour.value=-2"), "price_per_gpu_hour.value: "),
    ],
)
def test_a_wrong_budget_or_price_is_one_line_and_nothing_is_submitted(
    paid: Caller, words: tuple[str, ...], complaint: str
) -> None:
    done = paid("submit", *QUAD, *words)
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1), done.stderr
    assert complaint in done.complaints[0]
    assert not (paid.site.folder / "results.db").exists()
