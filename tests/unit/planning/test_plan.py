"""Tests of plans of cases on a cluster, and of refusals with every reason at once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.case import Case, select
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.clusters.machine import Machine
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.job_spec import Resources
from orchestrator.megatron.exact import install_command
from orchestrator.megatron.programs import megatron_2021
from orchestrator.megatron.programs.flags import Flags, flag_arguments
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, plan_cases, resources_of
from orchestrator.planning.target import Target, cases_at
from tests.unit.catalog.entries import BASE, CHECKOUT, entry_of, shipped
from tests.unit.clusters.sites import PLAIN, cluster_of, selene

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT)
LOCAL = "about: this machine\nscheduler: local\nprograms: {pretrain: {python: /opt/python}}\n"


def local(folder: Path, machine: Machine, text: str = LOCAL) -> Cluster:
    """Return the profile of the local machine with other hardware."""
    return replace(cluster_of(folder, text, name="local"), machine=machine, hardware=machine.hardware())


def plans(cluster: Cluster, scale: str = "paper", entry: Entry | None = None) -> list[Plan]:
    entry = entry or shipped()
    return plan_cases(entry, expand(entry, scale), cluster, FOLDERS)


def refusals(
    cluster: Cluster, scale: str = "paper", entry: Entry | None = None, cases: list[Case] | None = None
) -> list[str]:
    entry = entry or shipped()
    with pytest.raises(ReproError) as caught:
        plan_cases(entry, cases or expand(entry, scale), cluster, FOLDERS)
    return [str(problem) for problem in caught.value.problems]


def test_figure_13_on_selene_is_ten_plans_of_eight_nodes(tmp_path: Path) -> None:
    planned = plans(selene(tmp_path))
    assert len({plan.identity for plan in planned}) == 10
    assert {plan.resources for plan in planned} == {Resources(8, 8, 8, "0:30:00")}
    assert planned[0].resources.tasks == 64 and {plan.cluster for plan in planned} == {"selene"}


def test_arguments_of_each_case_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Flags] = []

    def recorded(flags: Flags) -> list[str]:
        built.append(flags)
        return flag_arguments(flags)

    monkeypatch.setattr(megatron_2021, "flag_arguments", recorded)
    assert len(plans(selene(tmp_path))) == len(built) == 10


def test_tensor_parallelism_across_nodes_is_a_warning(tmp_path: Path) -> None:
    spans = "spans nodes of 8 GPUs"
    planned = {plan.case.value("tp"): plan.warnings for plan in plans(selene(tmp_path))}
    assert {tp: tuple(text for text in warnings if spans in text) for tp, warnings in planned.items()} == {
        32: ("tensor-parallel 32 spans nodes of 8 GPUs",),
        16: ("tensor-parallel 16 spans nodes of 8 GPUs",),
        8: (),
        4: (),
        2: (),
    }


def test_gpus_smaller_than_published_are_a_warning_on_a_cluster(tmp_path: Path) -> None:
    overlay = "slurm: {account: a, partition: p}\ncontainer: {mounts: []}\nhardware: {gpu_memory_gb: 40}\n"
    cluster = selene(tmp_path, overlay)
    cluster = replace(cluster, unfilled=())
    assert all("laid out for GPUs of 80 GB, here they have 40 GB" in plan.warnings for plan in plans(cluster))


def test_indivisible_layout_is_refused(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, BASE.replace("layers: 8", "layers: 6").replace("[8, 16]", "[8]"))
    assert refusals(cluster_of(tmp_path, PLAIN.replace("bf16", "fp32")), entry=entry) == [
        "figure-1 pp=4,tp=2,gbs=8: 6 layers do not divide by pipeline-parallel 4"
    ]


def test_all_reasons_are_reported_at_once_without_duplicates(tmp_path: Path) -> None:
    text = BASE.replace("layers: 8", "layers: 6").replace("heads: 8", "heads: 4").replace("gbs: [8, 16]", "gbs: [3]")
    entry = entry_of(tmp_path, text.replace("mbs: 1", "mbs: 2"))
    cluster = cluster_of(
        tmp_path, PLAIN.replace("nodes: 4, gpus_per_node: 8", "nodes: 1, gpus_per_node: 4"), "slurm: {qos: <q>}"
    )
    assert refusals(cluster, entry=entry) == [
        "figure-1 all 3 cases: needs 8 GPUs, site has 1 x 4 = 4",
        "figure-1 all 3 cases: site: A100 has no fp32 (it has bf16)".replace("site: A100", "A100 of site"),
        "figure-1 all 3 cases: global batch 3 does not divide by microbatch 2 x data-parallel 1",
        "figure-1 pp=1,tp=8,gbs=3: attention heads 4 does not divide by tensor-parallel 8",
        "figure-1 pp=4,tp=2,gbs=3: 6 layers do not divide by pipeline-parallel 4",
        *[str(problem) for problem in cluster.require_filled("pretrain", None)],
    ]


def test_cases_with_the_same_reason_are_reported_together(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, BASE.replace("layers: 8", "layers: 6"))
    (only,) = refusals(cluster_of(tmp_path, PLAIN.replace("bf16", "fp32")), entry=entry)
    assert only.startswith("figure-1 pp=4,tp=2,gbs=8 and pp=4,tp=2,gbs=16: ")


def test_more_gpus_than_the_cluster_has_are_refused(tmp_path: Path) -> None:
    cluster = replace(selene(tmp_path), hardware=selene(tmp_path).hardware.model_copy(update={"nodes": 7}))
    assert refusals(cluster) == [
        "figure-13 all 10 cases: needs 64 GPUs, selene has 7 x 8 = 56. Hint: --scale quad, pair or cpu fits"
    ]


def test_part_of_a_node_is_refused(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN.replace("gpus_per_node: 8", "gpus_per_node: 6").replace("bf16", "fp32"))
    assert refusals(cluster, entry=entry_of(tmp_path)) == [
        "figure-1 all 6 cases: 8 GPUs do not fill whole nodes of 6 GPUs"
    ]
    few = cluster_of(tmp_path, PLAIN.replace("gpus_per_node: 8", "gpus_per_node: 3"))
    assert refusals(few, "cpu") == [
        "figure-13 all 6 cases: 4 processes do not fill whole nodes of 3 places. Hint: --scale pair fits"
    ]


def test_dtype_that_the_gpu_lacks_is_refused(tmp_path: Path) -> None:
    cluster = cluster_of(
        tmp_path, PLAIN.replace("gpu: A100", "gpu: V100").replace("{bf16: 312}", "{fp16: 125, fp32: 16}")
    )
    assert refusals(cluster, "quad") == [
        "figure-13 all 6 cases: V100 of site has no bf16 (it has fp16, fp32). Hint: --scale cpu fits"
    ]


def test_profile_without_peaks_accepts_any_dtype(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN.replace(", peak_tflops: {bf16: 312}", ""))
    assert len(plans(cluster, "quad")) == 6


def test_cpu_places_are_counted_over_all_nodes(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN.replace("nodes: 4, gpus_per_node: 8", "nodes: 3, gpus_per_node: 1"))
    assert refusals(cluster, "cpu") == [
        "figure-13 all 6 cases: needs 4 processes, site has places for 3 x 1 = 3. Hint: --scale pair fits"
    ]


def test_machine_without_gpus_refuses_gpu_scales(tmp_path: Path) -> None:
    assert refusals(local(tmp_path, Machine(2)), "quad") == [
        "figure-13 all 6 cases: needs 4 GPUs, this machine has none. Hint: --scale cpu fits"
    ]


def test_gpus_of_a_local_profile_that_the_machine_lacks_are_named_with_their_line(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, LOCAL + "hardware:\n  nodes: 1\n  gpus_per_node: 4\n")
    (problem,) = refusals(replace(cluster, machine=Machine(2)), "quad")
    assert "needs 4 GPUs, this machine has none; the profile has 4 (" in problem
    assert problem.endswith("site.yaml:6:3). Hint: --scale cpu fits")


def test_gpus_with_too_little_memory_are_refused_on_the_local_machine(tmp_path: Path) -> None:
    machine = Machine(16, gpus=4, gpu="NVIDIA A100", gpu_memory_gb=42)
    assert refusals(local(tmp_path, machine), "quad") == [
        "figure-13 all 6 cases: needs GPUs of 79 GB, local has 42 GB. Hint: --scale cpu fits"
    ]


@pytest.mark.parametrize(
    ("machine", "scale"),
    [
        (Machine(2), "cpu"),
        (Machine(64, gpus=2, gpu="NVIDIA H200", gpu_memory_gb=150), "pair"),
        (Machine(64, gpus=4, gpu="NVIDIA A100", gpu_memory_gb=42), "cpu"),
        (Machine(64, gpus=4, gpu="NVIDIA H200", gpu_memory_gb=150), "quad"),
        (Machine(64, gpus=8, gpu="NVIDIA H200", gpu_memory_gb=150), "quad"),
        (Machine(64, gpus=4, gpu="Tesla V100", gpu_memory_gb=150), "cpu"),
    ],
)
def test_local_machine_gets_the_largest_scale_that_fits(tmp_path: Path, machine: Machine, scale: str) -> None:
    cluster = local(tmp_path, machine)
    assert cases_at(shipped(), cluster, None)[0].scale == scale
    if machine.gpus in (0, 4):
        assert len(plans(cluster, scale)) == 6


@pytest.mark.parametrize("gpus", [0, 1, 2, 3])
def test_machine_with_few_gpus_can_use_the_cpu_scale(tmp_path: Path, gpus: int) -> None:
    machine = Machine(2, gpus=gpus, gpu="NVIDIA H200" if gpus else None, gpu_memory_gb=150 if gpus else None)
    (resources,) = {plan.resources for plan in plans(local(tmp_path, machine), "cpu")}
    assert (resources.nodes, resources.tasks, resources.gpus_per_node) == (1, 4, 0)


@pytest.mark.parametrize(("nodes", "scale"), [(8, "paper"), (7, "quad"), (1, "quad")])
def test_slurm_cluster_gets_the_largest_scale_that_fits(tmp_path: Path, nodes: int, scale: str) -> None:
    cluster = selene(tmp_path)
    small = replace(cluster, hardware=cluster.hardware.model_copy(update={"nodes": nodes}))
    assert cases_at(shipped(), small, None)[0].scale == scale


def test_only_the_chosen_cases_must_fit(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    small = replace(cluster, hardware=cluster.hardware.model_copy(update={"nodes": 4}))
    table = shipped("table-1")
    assert cases_at(table, small, None)[0].scale != "paper"
    assert cases_at(table, small, None, wanted={"case": "1.7B"})[0].scale == "paper"


def test_slurm_cluster_that_fits_no_scale_gets_the_reasons_of_the_paper_scale(tmp_path: Path) -> None:
    cluster = cluster_of(
        tmp_path, "about: x\nscheduler: slurm\nhardware: {nodes: 1, gpus_per_node: 1}\nslurm: {time_limit: 1:00:00}\n"
    )
    assert cases_at(entry_of(tmp_path), cluster, None)[0].scale == "paper"


def test_given_scale_is_used(tmp_path: Path) -> None:
    assert cases_at(shipped(), selene(tmp_path), "cpu")[0].scale == "cpu"


def test_error_names_all_scales_if_none_fits(tmp_path: Path) -> None:
    with pytest.raises(ReproError) as caught:
        cases_at(entry_of(tmp_path), local(tmp_path, Machine(2)), None)
    assert str(caught.value) == (
        "no scale of figure-1 (paper) fits local. Hint: --cluster NAME selects another machine; "
        "`repro clusters list` lists them"
    )


@pytest.mark.parametrize("absent", ["torch", "megatron"])
def test_missing_local_packages_are_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    cluster = local(tmp_path, Machine(2), "about: x\nscheduler: local\n")
    lines = refusals(cluster, "cpu")
    assert len(lines) == 1 and absent in lines[0] and lines[0].startswith("training here needs ")
    assert lines[0].endswith(f". Hint: {install_command()}") and "megatron-core==" in install_command()
    assert len(plans(local(tmp_path, Machine(2)), "cpu")) == 6  # another Python may well have them


def test_missing_image_is_reported_with_the_field_to_add(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, PLAIN.replace("bf16", "fp16") + "container: {runtime: pyxis}\n")
    cluster = replace(
        cluster, profile=cluster.profile.model_copy(update={"programs": selene(tmp_path).profile.programs})
    )
    cases = select(expand(shipped()), {"pp": 8, "gbs": 32})
    cluster = replace(cluster, hardware=cluster.hardware.model_copy(update={"nodes": 8}))
    (only,) = refusals(cluster, cases=cases)
    assert only.startswith("site has no container image for nvidia/pytorch:20.12-py3. Hint: add container: images: ")
    assert only.endswith("site.local.yaml")


def test_cpu_case_requests_no_gpus(tmp_path: Path) -> None:
    case = replace(expand(shipped(), "cpu")[0], time_limit=None)
    assert resources_of(case, Target.of_cluster(cluster_of(tmp_path))) == Resources(1, 4, 0, "1:00:00")
    spread = cluster_of(tmp_path, PLAIN.replace("gpus_per_node: 8", "gpus_per_node: 2"))
    assert resources_of(case, Target.of_cluster(spread)) == Resources(2, 2, 0, "1:00:00")
    assert resources_of(case, Target.of_cluster(spread)).tasks == 4


def test_local_job_has_a_default_time_limit_of_half_an_hour(tmp_path: Path) -> None:
    case = replace(expand(shipped(), "cpu")[0], time_limit=None)
    assert resources_of(case, Target.of_cluster(local(tmp_path, Machine(2)))).time_limit == "0:30:00"
    assert (
        resources_of(replace(case, time_limit="0:01:00"), Target.of_cluster(local(tmp_path, Machine(2)))).time_limit
        == "0:01:00"
    )
