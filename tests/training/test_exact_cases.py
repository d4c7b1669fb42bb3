"""Shipped cases planned by the real model, compared with the closed form, or refused in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.exact import exact_job, plan_exactly
from orchestrator.megatron.predictions import memory_of
from orchestrator.programs.record import ExactCase
from tests.training.planner import shared_processes
from tests.unit.catalog.entries import find_case
from tests.unit.planning.test_plan_measured_memory import LLAMA
from tests.unit.results.test_shipped_evidence import cases_that_ran

REPRO = Path(sys.executable).with_name("repro")

CASES = [
    find_case("figure-13", "pp=2,tp=2,gbs=32", "quad"),
    find_case("figure-18", "scatter_gather=true,gbs=12"),
    find_case("atc-demo", "case=baseline", "quad"),
    find_case("atc-demo", "case=ours", "quad"),
    find_case("table-1", "case=530B"),
]


def plan(cases: Sequence[TrainingCase]) -> list[ExactCase | str]:
    with shared_processes():
        return plan_exactly(cases)


def test_closed_form_and_real_model_agree_on_memory_of_figures() -> None:
    plans = plan(CASES)
    for planned, exact in zip(CASES, plans, strict=True):
        assert isinstance(exact, ExactCase), exact
        closed = memory_of(planned)
        assert closed.parameters == pytest.approx(exact.parameters, rel=1e-3), planned.name
        assert closed.total_bytes == pytest.approx(exact.total_bytes, rel=0.05), planned.name


def test_real_model_memory_equals_measured_h200_cases() -> None:
    """Four GPUs: Llama, interleaved stages, and offloading, where a second iteration would need more.

    Two and one: context parallelism, pipelines, tensor parallelism, and a case that nearly fills a GPU.
    """
    of_four = [(find_case(of, name, "quad"), mib * 2**20) for of, name, mib in LLAMA]
    names = ("301", "302", "mbs=8,gbs=32", "recompute=none,gbs=16", "3.6B", "hidden-4096-fits", "hidden-2304-over")
    of_two = [
        (case, float(row["max_memory_allocated_bytes"]))
        for case, row in cases_that_ran("h200")
        if case.name.removeprefix("case=") in names
    ]
    plans = plan([case for case, _ in of_four + of_two])
    faults = []
    for (case, measured_bytes), exact in zip(of_four + of_two, plans, strict=True):
        assert isinstance(exact, ExactCase), exact
        faults.append(abs(exact.total_bytes / measured_bytes - 1))
        assert faults[-1] < (0.03 if case.training.offload else 0.01), case.name
    assert len(of_two) == len(names)
    assert mean(faults) < 0.005


def test_a_case_that_the_real_model_does_not_support_has_one_line() -> None:
    experts = replace(CASES[0], model=replace(CASES[0].model, experts=8, experts_per_token=2))
    broken = replace(CASES[0], model=replace(CASES[0].model, layers=33))
    plans = plan([experts, replace(CASES[0], device="cpu"), broken])
    assert plans[:2] == ["the exact planner builds no experts", "planned for GPUs only"]
    assert isinstance(plans[2], str) and "33 layers do not divide" in plans[2] and "\n" not in plans[2]


def test_a_program_of_2021_is_planned_with_its_own_memory_use() -> None:
    old, own = exact_job(CASES[1]), exact_job(CASES[0])
    assert (old.attention, old.frees_outputs, old.world_size) == ("unfused", False, 96)
    assert "--use-distributed-optimizer" not in old.arguments and "--no-cross-entropy-fusion" in old.arguments
    assert (own.attention, own.frees_outputs) == ("flash", True)
    assert "--use-distributed-optimizer" in own.arguments


def test_plan_exact_prints_the_real_models_bytes_beside_the_closed_form(tmp_path: Path) -> None:
    command = ["plan", "figure-13", "--scale", "quad", "--cluster", "selene", "--where", "pp=4", "--exact", "--json"]
    environment = {**os.environ, "REPRO_HOME": str(tmp_path)}
    done = subprocess.run([REPRO, *command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    for row in json.loads(done.stdout)["cases"]:
        assert row["exact_gb"] == pytest.approx(row["memory_gb"], rel=0.05) and row["fit"] == "fits"
        assert row["exact_parameters_per_gpu_b"] == pytest.approx(row["parameters_per_gpu_b"], rel=0.01)
