"""Tests of start checks: a job that a site cannot start is refused before its submission."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.case import with_program
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.model import Hardware
from orchestrator.megatron.predictions import LOCAL_LAYERS_WARNING, memory_of, time_of
from orchestrator.megatron.time_constants import Basis
from orchestrator.planning.plan import check_case
from orchestrator.planning.target import Target, refusals, start_refusals, start_warnings
from orchestrator.programs.command import BoundProgram
from tests.cases import expand
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import PLAIN, cluster_of

H100 = Hardware(
    nodes=64,
    gpus_per_node=8,
    gpu="H100-SXM5-80GB",
    gpu_memory_gb=80,
    peak_tflops={"fp16": 989, "bf16": 989},
    nvlink_gb_s=450,
    network_gb_s=50,
)
MPI = BoundProgram("megatron-kwai", (), (), "code", needs_mpi=True)


def site(folder: Path, slurm: str) -> Cluster:
    return cluster_of(folder, PLAIN.replace("time_limit: 1:00:00", f"time_limit: 1:00:00, {slurm}"))


def container(folder: Path, runtime: str, more: str = "") -> Cluster:
    image = "registry.example/team/torch:1"
    return cluster_of(folder, PLAIN + f"container: {{runtime: {runtime}, images: {{pretrain: {image}}}}}\n{more}")


def pulled(cluster: Cluster) -> BoundProgram:
    return BoundProgram("pretrain", (), (), "code", image="pretrain", image_path=cluster.image_location("pretrain"))


@pytest.mark.parametrize("slurm", ["mpi: pmix", "mpi: pmi2", "srun: [--mpi=pmix_v4]"])
def test_mpi_program_starts_with_pmi(tmp_path: Path, slurm: str) -> None:
    assert list(start_refusals(MPI, site(tmp_path, slurm))) == []


@pytest.mark.parametrize(
    ("slurm", "why"),
    [
        ("max_running: 1", "the profile needs slurm: mpi: pmix"),
        ("mpi: none", "the profile needs slurm: mpi: pmix"),
        ("mpi: pmix, tasks: per-node", "each process must be a task of srun"),
    ],
)
def test_mpi_program_is_refused_without_pmi(tmp_path: Path, slurm: str, why: str) -> None:
    (only,) = start_refusals(MPI, site(tmp_path, slurm))
    assert why in only


def test_mpi_program_is_refused_on_a_machine_with_torchrun(tmp_path: Path) -> None:
    (only,) = start_refusals(MPI, cluster_of(tmp_path, "about: here\nscheduler: local\n"))
    assert only.endswith("starts processes with torchrun")


def test_registry_image_is_refused_on_offline_nodes(tmp_path: Path) -> None:
    cluster = container(tmp_path, "pyxis", "site: {offline_nodes: true}\n")
    (only,) = start_refusals(pulled(cluster), cluster)
    assert "repro images import --cluster site" in only and list(start_warnings(pulled(cluster), cluster)) == []


def test_image_pulled_by_every_node_is_a_warning(tmp_path: Path) -> None:
    cluster = container(tmp_path, "pyxis")
    (only,) = start_warnings(pulled(cluster), cluster)
    assert only.startswith("every node of every job pulls registry.example/team/torch:1")


def test_imported_image_gives_no_warning(tmp_path: Path) -> None:
    imported = container(tmp_path, "pyxis", "site: {staging_folder: /shared/images, offline_nodes: true}\n")
    assert imported.image_location("pretrain") == "/shared/images/team+torch+1.sqsh"
    for cluster in (imported, container(tmp_path, "podman-hpc"), container(tmp_path, "shifter")):
        assert [*start_refusals(pulled(cluster), cluster), *start_warnings(pulled(cluster), cluster)] == []


def test_todays_megatron_refuses_figure_18_without_scatter_gather(tmp_path: Path) -> None:
    target = Target.of_cluster(replace(cluster_of(tmp_path), unfilled=()))
    reasons = {
        case.value("scatter_gather"): [reason for reason in refusals(case, target) if "scatter/gather" in reason]
        for case in with_program(expand(shipped("figure-18")), "megatron-2026")
    }
    assert reasons[True] == [] and "10e7b74597 removed the option" in reasons[False][0]


def test_unmounted_data_is_a_warning(tmp_path: Path) -> None:
    mounts = (
        "container: {runtime: pyxis, mounts: [/shared/data, '/home/me:/me:ro', {mount: /local, when: nodes > 1}]}\n"
    )
    cluster = cluster_of(tmp_path, PLAIN + mounts)
    paths = ("/code/Megatron-LM", "/shared/data/text", "/me/vocab.json", "/home/me/merges.txt", "/shared/database", "x")
    values = tuple((path, ("programs", "megatron-2021", "data_path")) for path in paths)
    python = ("/opt/python", ("programs", "pretrain", "python"))
    program = BoundProgram("w", (), (), "c", mounts=("/code/Megatron-LM",), site_values=(*values, python))
    (only,) = start_warnings(program, cluster)
    assert only == "no mount of site contains /home/me/merges.txt and /shared/database, which the program needs"
    assert list(start_warnings(program, cluster_of(tmp_path))) == []


def test_a_site_without_transformer_engine_plans_the_programs_own_layers_with_a_warning(tmp_path: Path) -> None:
    """Attention is a small part of this model of hidden size 20,480."""
    case = replace(with_program(expand(shipped()), "megatron-2026")[0], arguments=())
    checked = []
    for number, fused in enumerate(("true", "false")):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = f"programs: {{megatron-2026: {{checkout: /c, transformer_engine: {fused}}}}}\n"
        target = replace(Target.of_cluster(cluster_of(folder, PLAIN + text)), hardware=H100)
        checked.append(check_case(case, target))
    fused_case, own = checked
    assert fused_case.cost is not None and fused_case.cost.duration is not None
    assert own.cost is not None and own.cost.duration is not None
    assert own.cost.duration.iteration_ms > 1.04 * fused_case.cost.duration.iteration_ms
    assert own.cost.duration.basis == "not compared"
    assert LOCAL_LAYERS_WARNING in own.warnings and LOCAL_LAYERS_WARNING not in fused_case.warnings


def test_own_layers_keep_the_scores_of_attention() -> None:
    case = with_program(expand(shipped()), "megatron-2026")[0]
    case = replace(case, training=replace(case.training, recompute="none"))
    fused, own = (memory_of(replace(case, arguments=given)) for given in ((), ("--transformer-impl", "local")))
    assert own.activations_bytes > 1.1 * fused.activations_bytes


def test_a_renamed_copy_of_a_measured_site_is_another_site() -> None:
    case, machine = expand(shipped())[-1], Target.of_paper(shipped()).hardware
    bases = {name: time_of(case, Target(name, machine)) for name in ("selene", "my-selene")}
    assert [duration and duration.basis for duration in bases.values()] == [Basis.MEASURED, Basis.OTHER_SITE]
    of_paper = time_of(case, Target.of_paper(shipped()))
    assert of_paper is not None and of_paper.basis is Basis.MEASURED
