"""Tests of plans for machines with one, two and four H200: scale, memory and time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.clusters.machine import parse_nvidia_smi
from orchestrator.clusters.resolve import Cluster
from orchestrator.megatron.model import flops_per_iteration
from orchestrator.megatron.programs.base import USABLE_SHARE
from orchestrator.planning.plan import cost_of, plan_cases
from orchestrator.planning.target import Target, cases_at
from tests.cases import expand
from tests.unit.catalog.entries import shipped
from tests.unit.planning.test_plan import FOLDERS, local

# Scale -> experiment -> how many cases it has.
CASES = {
    "quad": {
        "table-1": 3,
        "figure-11": 6,
        "figure-12": 10,
        "figure-13": 6,
        "figure-14": 6,
        "figure-15": 9,
        "figure-16": 8,
        "figure-17": 12,
        "figure-18": 10,
        "atc-demo": 3,
        "core-cp": 4,
    },
    "pair": {
        "table-1": 2,
        "figure-11": 4,
        "figure-12": 6,
        "figure-13": 4,
        "figure-14": 4,
        "figure-15": 4,
        "figure-16": 4,
        "figure-17": 6,
        "atc-demo": 3,
        "core-cp": 3,
    },
    "single": {"table-1": 1, "figure-16": 4, "figure-17": 6, "core-cp": 2},
}
GPUS = {"quad": 4, "pair": 2, "single": 1}
# Rows that run out of memory on 80 GB as published: they are there for GPUs that have more.
NEED_MORE = {("atc-demo", "quad", "case=no-recompute"), *(("core-cp", scale, "case=301") for scale in GPUS)}


def h200s(folder: Path, gpus: int) -> Cluster:
    """Return a local machine with H200s of 143,771 MiB each."""
    rows = "".join(f"{number}, GPU-{number}, NVIDIA H200, 143771\n" for number in range(gpus))
    return local(folder, parse_nvidia_smi(rows, 64))


@pytest.mark.parametrize(
    ("gpus", "name", "scale"),
    [
        (4, "figure-13", "quad"),
        (2, "figure-13", "pair"),
        (3, "figure-13", "pair"),
        (1, "figure-13", "cpu"),
        (2, "figure-16", "pair"),
        (1, "figure-16", "single"),
        (2, "figure-18", "cpu"),
        (2, "atc-demo", "pair"),
        (1, "atc-demo", "cpu"),
        (4, "core-cp", "quad"),
        (1, "core-cp", "single"),
    ],
)
def test_scale_matches_the_number_of_gpus_or_the_next_smaller_one(
    tmp_path: Path, gpus: int, name: str, scale: str
) -> None:
    assert cases_at(shipped(name), h200s(tmp_path, gpus), None)[0].scale == scale


def test_demo_runs_on_cpu_cores_if_its_model_does_not_fit_two_80_gb_gpus(tmp_path: Path) -> None:
    rows = "".join(f"{number}, GPU-{number}, NVIDIA H100 80GB HBM3, 81559\n" for number in range(2))
    cluster = local(tmp_path, parse_nvidia_smi(rows, 64))
    assert cases_at(shipped("atc-demo"), cluster, None)[0].scale == "cpu"
    assert cases_at(shipped("figure-14"), cluster, None)[0].scale == "pair"


@pytest.mark.parametrize(("scale", "name"), [(scale, name) for scale, names in CASES.items() for name in names])
def test_cases_of_small_scales_fit_h200_memory(tmp_path: Path, scale: str, name: str) -> None:
    entry, cluster = shipped(name), h200s(tmp_path, GPUS[scale])
    cases = expand(entry, scale)
    assert len(plan_cases(entry, cases, cluster, FOLDERS)) == len(cases) == CASES[scale][name]
    for case in cases:
        cost = cost_of(case, Target.of_cluster(cluster))
        assert cost.memory is not None and cost.fit == "fits"
        fits = cost.memory.total_bytes <= (case.gpu_memory_gb or 0) * 1e9 * USABLE_SHARE
        assert fits == ((name, scale, case.name) not in NEED_MORE), case.name


@pytest.mark.parametrize("scale", ["pair", "single"])
def test_iteration_on_few_gpus_takes_under_4_s_at_500_tflops(scale: str) -> None:
    for name in CASES[scale]:
        for case in expand(shipped(name), scale):
            training, layout = case.training, case.layout
            flops = flops_per_iteration(case.model, layout.global_batch_size, training.recompute == "full")
            assert flops / (layout.gpus * 500e12) < 4, (name, case.name)
            assert (training.iterations, training.warmup_iterations, training.evaluation_iterations) == (6, 2, 0)
            assert (training.dtype, training.dropout, training.log_interval) == ("bf16", 0.0, 1)


def test_figures_share_the_job_of_a_common_case_on_two_gpus(tmp_path: Path) -> None:
    cluster, jobs = h200s(tmp_path, 2), defaultdict(list)
    for name in CASES["pair"]:
        for plan in plan_cases(shipped(name), expand(shipped(name), "pair"), cluster, FOLDERS):
            jobs[plan.identity].append(f"{name} {plan.label}")
    assert (sum(map(len, jobs.values())), len(jobs)) == (40, 37)
    assert [labels for labels in jobs.values() if len(labels) > 1] == [
        ["figure-12 vp=1,gbs=4", "figure-17 recompute=full,gbs=4"],
        ["figure-13 pp=2,tp=1,gbs=16", "figure-17 recompute=full,gbs=16"],
        ["figure-14 pp=1,dp=2,gbs=32", "figure-15 tp=1,dp=2,gbs=32"],
    ]
