"""Tests of time budgets: iterations fit the budget, suffice for a measurement, and are reproducible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.machine import Machine
from orchestrator.config.model import Hardware
from orchestrator.errors import ReproError
from orchestrator.ledger.tables import IterationLine
from orchestrator.megatron.case import TrainingCase, training_case, training_cases
from orchestrator.megatron.logs.statistics import with_used
from orchestrator.megatron.model import Training
from orchestrator.planning.batch_plan import (
    LEAST_INTERVALS,
    BudgetedJob,
    most_measured,
    read_budget,
    total,
    within_budget,
)
from orchestrator.planning.plan import job_content
from orchestrator.planning.target import Target
from tests.cases import expand
from tests.unit.catalog.entries import BASE, entry_of, shipped

H200S = Target("four H200", Machine(64, gpus=4, gpu="NVIDIA H200", gpu_memory_gb=150).hardware())
QUAD = expand(shipped(), "quad")

trainings = st.builds(
    Training,
    iterations=st.integers(1, 200),
    warmup_iterations=st.integers(0, 50),
    log_interval=st.integers(1, 10),
    evaluation_iterations=st.integers(0, 10),
)
runs = st.builds(
    BudgetedJob,
    case=st.builds(
        replace, st.just(QUAD[0]), training=trainings, program=st.sampled_from(["pretrain", "megatron-2021"])
    ),
    iteration_ms=st.floats(0.01, 1e6),
)
some = st.lists(runs, min_size=1, max_size=8)
budgets = st.floats(0, 1e7)


def run(iterations: int = 20, warmup: int = 2, every: int = 1, iteration_ms: float = 1000.0) -> BudgetedJob:
    training = Training(iterations=iterations, warmup_iterations=warmup, log_interval=every)
    return BudgetedJob(replace(QUAD[0], training=training, program="pretrain"), iteration_ms)


def iterations(some_runs: list[BudgetedJob], budget_s: float) -> list[int] | None:
    measured = most_measured(some_runs, budget_s)
    return None if measured is None else [job.iterations(measured) for job in some_runs]


def measured_lines(training: Training) -> int:
    """Return the number of its lines that are measured."""
    printed = [i for i in range(1, training.iterations + 1) if i % training.log_interval == 0]
    lines = [IterationLine(i, 1.0, 7.0, 1.0) for i in printed]
    return sum(line.used for line in with_used(lines, training.warmup_iterations))


@given(some, budgets)
def test_budget_is_filled_and_never_exceeded(some_runs: list[BudgetedJob], budget_s: float) -> None:
    measured = most_measured(some_runs, budget_s)
    if measured is None:
        assert total(some_runs, 0) > budget_s
        return
    assert total(some_runs, measured) <= budget_s
    longest = max(job.case.iterations for job in some_runs)
    assert measured == longest or total(some_runs, measured + 1) > budget_s


@given(some, budgets)
def test_budgeted_iterations_can_be_measured_and_do_not_exceed_the_experiment(
    some_runs: list[BudgetedJob], budget_s: float
) -> None:
    for job, left in zip(some_runs, iterations(some_runs, budget_s) or [], strict=False):
        training, own = training_case(job.case).training, job.case.iterations
        assert left == own or (left < own and left % training.log_interval == 0)
        if left < own:
            assert left >= training.warmup_iterations + LEAST_INTERVALS * training.log_interval
            assert measured_lines(replace(training, iterations=left)) >= LEAST_INTERVALS


@given(some, budgets, st.floats(0, 1e6))
def test_larger_budget_never_gives_fewer_iterations(
    some_runs: list[BudgetedJob], budget_s: float, more_s: float
) -> None:
    few, many = iterations(some_runs, budget_s), iterations(some_runs, budget_s + more_s)
    assert few is None or (many is not None and all(a <= b for a, b in zip(few, many, strict=True)))


def test_all_runs_measure_the_same_number_of_iterations() -> None:
    some_runs = [run(20), run(8), run(20, warmup=5)]
    assert total(some_runs, 10) == 3 * 25 + 12 + 8 + 15
    assert iterations(some_runs, 110) == [12, 8, 15]
    assert iterations(some_runs, 109.9) == [11, 8, 14]
    assert iterations(some_runs, 1e6) == [20, 8, 20]


def test_smallest_number_of_iterations_is_warm_up_plus_three_intervals() -> None:
    assert iterations([run()], 25 + 5) == [5]
    assert iterations([run()], 25 + 4.9) is None
    assert iterations([run(warmup=0)], 25 + 4) == [4], "the first interval holds the start-up"
    assert iterations([run(4)], 25 + 4) == [4], "an experiment may ask for fewer"


def test_budgeted_iterations_are_whole_log_intervals() -> None:
    """SC21 figure 13 has 25 iterations and a line for each 5, the first of which is the warm-up."""
    some_runs = [run(25, warmup=5, every=5)]
    assert [iterations(some_runs, 25 + n) for n in (19, 20, 24, 25)] == [None, [20], [20], [25]]
    assert iterations([run(100, warmup=7, every=5)], 25 + 27) == [25], "an interval half in the warm-up is not counted"


def test_budget_changes_only_iterations() -> None:
    own = within_budget(QUAD, H200S, 3600)
    assert (own.cases, own.own) == (tuple(QUAD), (8,) * 6)
    budgeted = within_budget(QUAD, H200S, int(own.total_s) - 10)
    cases = training_cases(budgeted.cases)
    assert {case.iterations for case in cases} == {7}
    assert [replace(case, training=old.training) for case, old in zip(cases, QUAD, strict=True)] == QUAD
    assert budgeted.total_s == pytest.approx(sum(budgeted.run_s)) and budgeted.total_s <= (budgeted.budget_s or 0)
    assert (budgeted.jobs, budgeted.own) == (6, (8,) * 6) and 0 < budgeted.uncertainty < 1


def test_same_budget_gives_the_same_jobs() -> None:
    def jobs(budget_s: int) -> list[str]:
        return [job_content(case) for case in within_budget(QUAD, H200S, budget_s).cases]

    most = int(within_budget(QUAD, H200S, 3600).total_s) + 1
    assert jobs(most - 20) == jobs(most - 20) and jobs(most) == [job_content(case) for case in QUAD]
    assert set(jobs(most - 20)).isdisjoint(jobs(most))


def test_shared_job_counts_once_in_the_budget() -> None:
    twin = replace(QUAD[0], point=(("pp", 99),))
    alone, both = within_budget(QUAD[:1], H200S, 3600), within_budget([QUAD[0], twin], H200S, 3600)
    assert (both.jobs, both.total_s) == (1, alone.total_s) and len(both.run_s) == 2
    tight = within_budget([QUAD[0], twin], H200S, int(alone.total_s) - 2)
    assert len({job_content(case) for case in tight.cases}) == 1


def refusal(cases: list[TrainingCase], target: Target, budget_s: int) -> str:
    with pytest.raises(ReproError) as caught:
        within_budget(cases, target, budget_s)
    (problem,) = caught.value.problems
    return str(problem)


def test_too_small_budget_names_needed_time_and_longest_cases() -> None:
    line = refusal(QUAD, H200S, 60)
    least = sum(within_budget(QUAD, H200S, int(line.split(" jobs take ")[1].split()[0])).run_s)
    assert line.startswith(f"--time-budget 60s: the 6 jobs take {int(least) + 1} s even with no more than 3 measured")
    assert "longest: pp=1,tp=4,gbs=128 (" in line and line.count(" s)") == 3 and "--where" in line


def test_budget_without_predicted_time_is_refused(tmp_path: Path) -> None:
    line = refusal(expand(shipped(), "cpu"), Target("here", Machine(4).hardware(), Machine(4)), 600)
    assert line.startswith(
        "--time-budget: figure-13 at scale cpu runs on CPU cores, whose time is not predicted. Hint: "
    )
    unknown = Hardware.model_validate({"nodes": 1, "gpus_per_node": 8, "gpu": "X"})
    line = refusal(expand(entry_of(tmp_path, BASE)), Target("site", unknown), 600)
    assert "no time is predicted on site: the GPUs' peak in fp32 is unknown" in line
    assert "peak_tflops: {fp32: ...}" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10m", 600), ("600s", 600), ("1h", 3600), ("0:10:00", 600), ("1-00:00:00", 86400), ("90:00:00", 324000)],
)
def test_budget_formats(text: str, expected: int) -> None:
    assert read_budget(text) == expected


@pytest.mark.parametrize("text", ["", "10", "0m", "0:00:00", "-5m", "10 m", "1h30m", "10min", "0:70:00", "1.5h", "٣m"])
def test_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(ReproError, match="not a time. Hint: for example 10m, 600s, 1h or 0:10:00"):
        read_budget(text)
