"""Tests of experiments planned with another program: scale, refusals and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.clusters.machine import Machine
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import ChosenCases, plan_batch
from orchestrator.planning.plan import Plan, plan_cases
from orchestrator.planning.target import Target, cases_at, replace_program
from tests.unit.catalog.entries import BASE, CHECKOUT, entry_of, shipped
from tests.unit.clusters.sites import cluster_of

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT)
SITE = "{checkout: /code, data_path: /data, vocab_file: /vocab, merge_file: /merges}"
PRETRAIN_ONLY = "about: this machine\nscheduler: local\n"
SLURM = f"""\
about: x
scheduler: slurm
hardware: {{nodes: 512, gpus_per_node: 8, gpu: A100, gpu_memory_gb: 80, peak_tflops: {{fp16: 312, bf16: 312}}}}
slurm: {{time_limit: 1:00:00}}
environment: {{CUDA_DEVICE_MAX_CONNECTIONS: 1}}
programs: {{megatron-2021: {SITE}}}
"""


def eight_gpus(folder: Path, text: str = PRETRAIN_ONLY) -> Cluster:
    machine = Machine(8, gpus=8, gpu_memory_gb=80, gpu="NVIDIA A100")
    return replace(cluster_of(folder, text, name="local"), machine=machine, hardware=machine.hardware())


def plans(folder: Path, name: str, program: str | None) -> list[Plan]:
    entry = shipped(name)
    return plan_cases(entry, replace_program(expand(entry), program), cluster_of(folder, SLURM), FOLDERS)


def refused(program: str, name: str = "figure-13", scale: str = "paper") -> str:
    with pytest.raises(ReproError) as caught:
        replace_program(expand(shipped(name), scale), program)
    return str(caught.value)


def test_other_program_gives_other_jobs(tmp_path: Path) -> None:
    own, others = plans(tmp_path, "figure-13", None), plans(tmp_path, "figure-13", "pretrain")
    assert {plan.program.command[2:] for plan in others} == {("-m", "orchestrator.pretrain")}
    assert {plan.identity for plan in own} & {plan.identity for plan in others} == set()
    assert len({plan.identity for plan in others}) == len(own) == 10
    assert [plan.resources for plan in others] == [plan.resources for plan in own]


def test_own_program_by_name_gives_the_same_jobs(tmp_path: Path) -> None:
    own, same = plans(tmp_path, "figure-13", None), plans(tmp_path, "figure-13", "megatron-2021")
    assert [plan.identity for plan in same] == [plan.identity for plan in own]


def test_cases_that_the_program_cannot_distinguish_are_refused(tmp_path: Path) -> None:
    assert len(plans(tmp_path, "figure-18", None)) == 10
    with pytest.raises(ReproError) as caught:
        plans(tmp_path, "figure-18", "pretrain")
    assert str(caught.value) == (
        "figure-18: pretrain would run scatter_gather=true,gbs=12 and scatter_gather=false,gbs=12 identically, "
        "and 4 more such pairs. Hint: it has no option for the difference"
    )


def test_unknown_program_is_refused_with_the_nearest_name() -> None:
    assert refused("pretain") == 'pretain: no such program. Did you mean "pretrain"?'


def test_only_pretrain_is_planned_without_gpus() -> None:
    assert refused("megatron-2021", scale="cpu") == (
        "--program megatron-2021: figure-13 at scale cpu runs on CPU cores, and megatron-2021 on GPUs only. Hint: "
        "leave --program out, or choose another --scale"
    )
    assert replace_program(expand(shipped(), "cpu"), "pretrain") == expand(shipped(), "cpu")


def test_scale_is_chosen_for_the_replacing_program(tmp_path: Path) -> None:
    cluster = eight_gpus(tmp_path)
    figure = entry_of(tmp_path, BASE.replace("program: pretrain", "program: megatron-core-0.14"))
    assert cases_at(figure, cluster, None, "pretrain")[0].scale == "paper"
    with_2021 = eight_gpus(tmp_path, PRETRAIN_ONLY + f"programs: {{megatron-2021: {SITE}}}\n")
    assert cases_at(figure, with_2021, None, "megatron-2021")[0].scale == "paper"


def test_a_program_that_the_profile_lacks_is_the_refusal_and_not_a_scale_that_does_not_fit(tmp_path: Path) -> None:
    cluster = eight_gpus(tmp_path)
    figure = entry_of(tmp_path, BASE.replace("program: pretrain", "program: megatron-core-0.14"))
    with pytest.raises(ReproError, match=r"local does not define program megatron-core-0\.14\. Hint: set in the prof"):
        plan_cases(figure, cases_at(figure, cluster, None), cluster, FOLDERS)
    with pytest.raises(ReproError, match=r"local does not define program megatron-2021\. Hint: set in the profile"):
        plan_cases(
            figure,
            replace_program(cases_at(figure, cluster, None, "megatron-2021"), "megatron-2021"),
            cluster,
            FOLDERS,
        )


def test_scale_that_compares_programs_is_skipped(tmp_path: Path) -> None:
    assert cases_at(shipped("atc-demo"), eight_gpus(tmp_path), None, "pretrain")[0].scale == "quad"


def test_memory_is_that_of_the_replacing_program() -> None:
    entry = shipped()

    def memory(program: str | None) -> list[float]:
        chosen = ChosenCases(entry, tuple(replace_program(expand(entry), program)), Target.of_paper(entry))
        costs = [planned.checked.cost for planned in plan_batch([chosen]).planned]
        return [cost.memory.total_bytes for cost in costs if cost and cost.memory]

    assert len(memory("pretrain")) == 10 and memory("pretrain") != memory(None) == memory("megatron-2021")
