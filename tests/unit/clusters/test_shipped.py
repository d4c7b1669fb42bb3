"""Shipped profiles: each is valid, has the public facts of its machine, and leaves private values open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clusters.container import RUNTIMES
from orchestrator.clusters.machine import gpu_facts, parse_nvidia_smi
from orchestrator.clusters.resolve import Cluster, leaves
from orchestrator.config.yaml import read_document
from tests.slurm.configuration import Shape, slurm_conf
from tests.slurm.portable import gpu_type
from tests.unit.clusters.sites import (
    CHECKOUT,
    copy_shipped,
    filled,
    image_names,
    program_names,
    shipped_cluster,
    shipped_names,
)

pytestmark = pytest.mark.slow

SITES = [name for name in shipped_names() if name != "local"]
NAMES = pytest.mark.parametrize("name", shipped_names())
SITE_NAMES = pytest.mark.parametrize("name", SITES)


def text_of(name: str) -> str:
    return (CHECKOUT / "clusters" / f"{name}.yaml").read_text()


@NAMES
def test_every_shipped_profile_loads_with_its_placeholders_open(name: str, tmp_path: Path) -> None:
    cluster = shipped_cluster(tmp_path, name)
    assert cluster.name == name and not cluster.has_overlay
    assert bool(cluster.unfilled) == (name != "local")


@NAMES
def test_the_first_line_names_the_schema_for_editors(name: str) -> None:
    assert text_of(name).startswith("# yaml-language-server: $schema=schema.json\n# ")


@SITE_NAMES
def test_the_header_lists_public_facts_and_values_to_set(name: str) -> None:
    header = re.split(r"\n(?!#)", text_of(name))[0]
    assert re.search(r"^# Public: .*\(", header, re.MULTILINE), "what is public, and its source in brackets"
    assert f"# Set in {name}.local.yaml: " in header


@SITE_NAMES
def test_lines_are_as_short_as_everywhere_and_have_no_trailing_space(name: str) -> None:
    lines = text_of(name).splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert [line for line in lines if len(line) > 120 and not line.strip().startswith("cpu_bind: mask_cpu:")] == []


@NAMES
def test_unconfirmed_values_are_comments(name: str) -> None:
    value = read_document(CHECKOUT / "clusters" / f"{name}.yaml").value
    assert [item for _, item in leaves(value) if "unconfirmed" in str(item)] == []
    lines = [line for line in text_of(name).splitlines() if "unconfirmed" in line]
    assert [line for line in lines if not line.strip().startswith("#")] == []


@NAMES
def test_no_name_of_a_registry_or_of_a_persons_folder_is_in_it(name: str) -> None:
    assert re.findall(r"\b(?:[a-z0-9-]+\.)+(?:io|com|net|dev)\b/?#?", text_of(name)) == []
    assert re.findall(r"/(?:home|Users)/\w+", text_of(name)) == []


@SITE_NAMES
def test_a_placeholder_describes_its_value_in_words(name: str, tmp_path: Path) -> None:
    for blank in shipped_cluster(tmp_path, name).unfilled:
        (words,) = re.findall(r"<([^<>]*)>", blank.text)
        assert len(words.split()) >= 3, blank


@NAMES
def test_the_location_of_a_value_is_a_line_with_the_value(name: str, tmp_path: Path) -> None:
    layered = shipped_cluster(tmp_path, name).layered
    for path, item in leaves(layered.value):
        file, row, column = layered.location(path).rsplit(":", 2)
        assert re.fullmatch(r"\S*/clusters/[a-z0-9-]+\.yaml", file)
        assert typed(item) in Path(file).read_text().splitlines()[int(row) - 1][int(column) - 1 :], path


def typed(item: Any) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


@NAMES
def test_with_every_placeholder_filled_it_is_a_site_where_every_program_can_run(name: str, tmp_path: Path) -> None:
    cluster = filled(tmp_path, name)
    assert cluster.unfilled == () and cluster.has_overlay
    assert all(cluster.profile.programs.site(program) for program in program_names())
    container = cluster.profile.container
    if container is None:
        assert cluster.profile.programs.python("pretrain") == "/code/venv/bin/python"
    else:
        assert container.images.keys() >= set(image_names())
        assert all(
            cluster.require_filled(program, image) == [] for program in program_names() for image in image_names()
        )


def test_there_is_a_profile_of_every_scheduler_runtime_and_way_to_ask_for_gpus(tmp_path: Path) -> None:
    profiles = [shipped_cluster(tmp_path, name).profile for name in shipped_names()]
    assert {profile.scheduler for profile in profiles} == {"slurm", "local", "mpirun"}
    requests = {profile.slurm.gpu_request for profile in profiles if profile.slurm}
    assert requests == {"none", "gres", "gpus-per-node", "gpus-per-task"}
    shown = {profile.container.runtime for profile in profiles if profile.container}
    commented = set(re.findall(r"^#\s+runtime: (\S+)$", "\n".join(map(text_of, SITES)), re.MULTILINE))
    assert shown | commented == set(RUNTIMES.names())


@SITE_NAMES
def test_a_container_has_an_image_for_the_small_scales_and_none_of_them_is_a_registrys(
    name: str, tmp_path: Path
) -> None:
    container = shipped_cluster(tmp_path, name).profile.container
    if container is not None:
        assert "pretrain" in container.images
        assert all(image.startswith("<") for image in container.images.values())


@SITE_NAMES
def test_peaks_are_the_dense_ones_of_the_data_sheet(name: str, tmp_path: Path) -> None:
    hardware = shipped_cluster(tmp_path, name).hardware
    gpu = hardware.gpu or ""
    if name in ("leonardo", "kwai-h800"):  # a part of its own; and what the published MFU divide by
        assert dict(hardware.peak_tflops) == ({} if name == "leonardo" else {"bf16": 989.4, "fp16": 989.4})
    else:
        facts = gpu_facts(gpu)
        assert facts is not None and dict(hardware.peak_tflops) == dict(facts.peak_tflops)


NVLINK = {"V100": 150, "A100": 300, "H100": 450, "H200": 450, "GH200": 450, "H800": 200}
"""GB/s for each GPU and direction: half of what NVIDIA's data sheets print, which count both directions."""


@SITE_NAMES
def test_nvlink_is_counted_in_one_direction(name: str, tmp_path: Path) -> None:
    hardware = shipped_cluster(tmp_path, name).hardware
    (kind,) = {known for known in NVLINK if (hardware.gpu or "").startswith(known)}
    # The source of jean-zay-v100 gives the rate between two GPUs.
    assert hardware.nvlink_gb_s == (50 if name == "jean-zay-v100" else NVLINK[kind])


@pytest.mark.parametrize(
    ("name", "nodes", "gpus_per_node", "network_gb_s"),
    [
        ("selene", 384, 8, 25),
        ("eos", 576, 8, 50),
        ("jean-zay-v100", 261, 4, 12.5),
        ("jean-zay-a100", 52, 8, 6.25),
        ("jean-zay-h100", 364, 4, None),
        ("juwels-booster", 936, 4, 25),
        ("leonardo", 3456, 4, None),
        ("perlmutter", 256, 4, None),
        ("alps", 1200, 4, 25),
        ("aws-parallelcluster-p4d", 32, 8, 6.25),
        ("aws-parallelcluster-p5", 32, 8, 50),
        ("aws-hyperpod", 32, 8, 50),
        ("gcp-a3-mega", 32, 8, 25),
        ("azure-ndv5", 32, 8, 50),
        ("kwai-h800", 32, 8, 12.5),
        ("h200", 1, 4, None),
    ],
)
def test_nodes_and_network_are_the_published_ones(
    name: str, nodes: int, gpus_per_node: int, network_gb_s: float | None, tmp_path: Path
) -> None:
    hardware = shipped_cluster(tmp_path, name).hardware
    assert (hardware.nodes, hardware.gpus_per_node, hardware.network_gb_s) == (nodes, gpus_per_node, network_gb_s)


def slurm_of(cluster: Cluster) -> Any:
    assert cluster.profile.slurm is not None
    return cluster.profile.slurm


def test_jean_zays_profiles_differ_in_account_constraint_qos_and_share_the_rest(tmp_path: Path) -> None:
    v100, a100, h100 = (slurm_of(filled(tmp_path, f"jean-zay-{gpu}")) for gpu in ("v100", "a100", "h100"))
    assert [slurm.account_name for slurm in (v100, a100, h100)] == ["abc@v100", "abc@a100", "abc@h100"]
    assert [slurm.constraint for slurm in (v100, a100, h100)] == ["v100-32g", "a100", "h100"]
    assert [slurm.qos_for(1, 4, "1:00:00") for slurm in (v100, a100, h100)] == [
        "qos_gpu-t3",
        "qos_gpu_a100-t3",
        "qos_gpu_h100-t3",
    ]
    assert v100.qos_for(4, 16, "4-04:00:00") == "qos_gpu-t4" and v100.qos_for(5, 20, "20:00:01") is None
    assert {(slurm.hint, slurm.gpu_request) for slurm in (v100, a100, h100)} == {("nomultithread", "gres")}


def test_a_v100_has_no_bf16(tmp_path: Path) -> None:
    assert shipped_cluster(tmp_path, "jean-zay-v100").hardware.peak("bf16") is None
    assert shipped_cluster(tmp_path, "jean-zay-a100").hardware.peak("bf16") == 312


def test_hyperpod_is_parallelcluster_that_asks_for_no_gpus_and_starts_lost_steps_again(tmp_path: Path) -> None:
    below, hyperpod = (slurm_of(shipped_cluster(tmp_path, name)) for name in ("aws-parallelcluster-p5", "aws-hyperpod"))
    assert (below.gpu_request, hyperpod.gpu_request) == ("gpus-per-node", "none")
    assert (below.srun, hyperpod.srun) == ([], ["--auto-resume=1"])
    assert hyperpod.sbatch == below.sbatch and hyperpod.exclusive
    copy_shipped(tmp_path)
    (tmp_path / "clusters" / "aws-hyperpod.local.yaml").write_text("slurm: {srun: {remove: [--auto-resume]}}\n")
    assert slurm_of(shipped_cluster(tmp_path, "aws-hyperpod")).srun == []


def test_google_needs_its_network_between_nodes_only(tmp_path: Path) -> None:
    profile = shipped_cluster(tmp_path, "gcp-a3-mega").profile
    assert profile.variables(1) == {}
    assert profile.variables(2)["NCCL_FASTRAK_IFNAME"].count("enp") == 8
    assert profile.container is not None
    assert {getattr(mount, "when", None) for mount in profile.container.mounts} == {"nodes > 1"}


def test_azures_masks_give_each_of_eight_tasks_24_separate_cpus(tmp_path: Path) -> None:
    bind = slurm_of(shipped_cluster(tmp_path, "azure-ndv5")).cpu_bind
    masks = [int(mask, 16) for mask in bind.removeprefix("mask_cpu:").split(",")]
    assert len(masks) == 8 and {mask.bit_count() for mask in masks} == {24}
    assert (masks[0] | masks[2] | masks[4] | masks[6]).bit_count() == 96


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_the_h200_machine_has_the_number_of_gpus_in_its_overlay(gpus: int, tmp_path: Path) -> None:
    copy_shipped(tmp_path)
    (tmp_path / "clusters" / "h200.local.yaml").write_text(f"hardware: {{gpus_per_node: {gpus}}}\n")
    hardware = shipped_cluster(tmp_path, "h200").hardware
    assert (hardware.nodes, hardware.gpus_per_node) == (1, gpus)


def test_the_memory_of_an_h200_is_that_of_nvidia_smi_in_units_of_the_profile(tmp_path: Path) -> None:
    machine = parse_nvidia_smi("0, GPU-1, NVIDIA H200, 143771\n", cpus=16)
    assert shipped_cluster(tmp_path, "h200").hardware.gpu_memory_gb == machine.gpu_memory_gb == 150


def test_the_site_of_ones_own_is_the_slurm_that_the_tests_bring_up(tmp_path: Path) -> None:
    slurm = slurm_of(shipped_cluster(tmp_path, "h200"))
    assert slurm.gres_type == gpu_type("NVIDIA H200")
    conf = slurm_conf(tmp_path, Shape(nodes=1, gpu_type="h200", carried=True, real_gpus=True), "machine")
    (partition,) = re.findall(r"^PartitionName=(\S+) .*Default=YES MaxTime=0?(\S+) ", conf, re.MULTILINE)
    assert partition == (slurm.partition, slurm.max_time)


def test_kwais_open_mpi_has_the_published_arguments(tmp_path: Path) -> None:
    profile = shipped_cluster(tmp_path, "kwai-h800").profile
    assert profile.mpirun is not None and profile.rendezvous.port == 6002
    assert not any(" " in word for word in profile.mpirun.arguments)
    assert profile.mpirun.arguments[-3:] == ["--mca", "btl_openib_allow_ib", "false"]
    assert profile.variables(32)["NCCL_IB_TIMEOUT"] == "19"
