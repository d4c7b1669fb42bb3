"""Profiles that are generated from a Slurm site."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.generate import profile_text
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.model import placeholders
from orchestrator.config.yaml import parse_document
from orchestrator.errors import ReproError
from orchestrator.slurm.accounting import Association, Qos
from orchestrator.slurm.nodes import Gres, NodeKind, Partition
from orchestrator.slurm.site import Site, SrunOptions
from tests.unit.clusters.sites import cluster_of

SCHEMA = "../schemas/cluster.json"
PYXIS_0_20 = frozenset({"container-image", "container-env", "container-entrypoint-log"})
NODES = NodeKind(4, 16, 256_000, (Gres("gpu", "h100", 4),), frozenset({"h100"}), "x86_64")
BATCH = Partition("batch", True, True, 4, max_time_s=14400, default_time_s=1800, kinds=(NODES,))
SITE = Site(
    user="root",
    cluster_name="ci",
    slurm_version="22.05.8",
    partitions=(BATCH, replace(BATCH, name="short", is_default=False, max_nodes=2, max_time_s=600)),
    associations=(
        Association("small", ("normal", "low"), "normal"),
        Association("research", ("normal",), "normal", is_default=True),
    ),
    qos=(Qos("normal"), Qos("low")),
    srun=SrunOptions(PYXIS_0_20, PYXIS_0_20),
    mpi_kinds=("pmix", "none"),
    settings={
        "AccountingStorageEnforce": "associations,limits,qos",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CORE_MEMORY",
        "MpiDefault": "pmix",
    },
)


def text_of(site: Site = SITE, partition: str | None = None) -> str:
    return profile_text(site, "mine", partition, SCHEMA)


def values(text: str) -> Any:
    return parse_document(text, "mine.yaml").value


def with_nodes(*kinds: NodeKind, **settings: str) -> Site:
    where = replace(BATCH, nodes=sum(kind.count for kind in kinds), kinds=kinds)
    return replace(SITE, partitions=(where,), settings={**SITE.settings, **settings})


def with_gpu(gres: str | None, *features: str) -> Site:
    return with_nodes(replace(NODES, gres=(Gres("gpu", gres, 4),), features=frozenset(features)))


def loaded(folder: Path, text: str) -> Cluster:
    return cluster_of(folder, text, name="mine")


def test_every_setting_that_slurm_reports_is_in_the_profile_and_it_loads(tmp_path: Path) -> None:
    text = text_of()
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA}"
    assert values(text) == {
        "about": "mine, partition batch of the Slurm cluster ci",
        "scheduler": "slurm",
        "hardware": {
            "nodes": 4,
            "gpus_per_node": 4,
            "gpu": "H100",
            "peak_tflops": {"bf16": 989, "fp16": 989, "fp32": 67},
        },
        "site": {"architecture": "x86_64", "cpus_per_node": 16},
        "slurm": {
            "account": "research",
            "partition": "batch",
            "qos": "normal",
            "time_limit": "0:30:00",
            "max_time": "4:00:00",
            "exclusive": True,
            "mem": "0",
            "gpu_request": "gpus-per-node",
            "gres_type": "h100",
            "cpus_per_task": 4,
            "max_running": 4,
            "mpi": "pmix",
        },
        "container": {
            "runtime": "pyxis",
            "version": "0.20",
            "images": {"pretrain": "<an image with torch and megatron-core, a .sqsh file or HOST/NAME:TAG>"},
        },
    }
    cluster = loaded(tmp_path, text)
    assert cluster.profile.slurm is not None and cluster.profile.slurm.partition == "batch"
    assert [blank.path for blank in cluster.unfilled] == [
        ("container", "images", "pretrain"),
    ]


def test_every_filled_value_names_its_source() -> None:
    lines = text_of().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"  \w+: [^<{\[]", line):
            has_source = "#" in line or lines[number - 1].startswith("  # ")
            assert has_source and re.search(
                r"scontrol|sacctmgr|srun|data sheet|repro's default", line + lines[number - 1]
            ), line
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("site", [SITE, replace(SITE, associations=None, qos=None), with_gpu(None), with_nodes()])
def test_a_profile_of_an_incomplete_site_loads_with_open_values(tmp_path: Path, site: Site) -> None:
    site = replace(site, partitions=tuple(replace(part, nodes=4) for part in site.partitions))
    text = text_of(site)
    assert {blank.path for blank in loaded(tmp_path, text).unfilled} == {path for path, _ in placeholders(values(text))}


def test_the_other_partitions_stand_in_comments() -> None:
    assert (
        "  # another: short, 4 nodes, 4 with gpu:h100:4, jobs of 2, up to 0:10:00; 8 GPUs for a job of yours\n"
        in text_of()
    )
    assert "# another: batch" in text_of(partition="short")


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(ReproError, match="no such partition"):
        text_of(partition="shorts")


def test_a_partition_without_default_time_or_with_less_keeps_jobs_within_its_limit() -> None:
    assert values(text_of(partition="short"))["slurm"]["time_limit"] == "0:10:00"
    endless = replace(SITE, partitions=(replace(BATCH, default_time_s=None, max_time_s=None),))
    assert values(text_of(endless))["slurm"]["time_limit"] == "0:30:00"
    long = replace(SITE, partitions=(replace(BATCH, default_time_s=93600, max_time_s=None),))
    assert values(text_of(long))["slurm"]["time_limit"] == "1-2:00:00"


def test_limits_of_partition_and_qos_bound_the_nodes_and_the_jobs_at_once() -> None:
    short = values(text_of(partition="short"))
    assert (short["hardware"]["nodes"], short["slurm"]["max_nodes"]) == (4, 2)
    bounded = replace(SITE, qos=(Qos("normal", {"job wall": 900, "job gres/gpu": 4, "user jobs": 2}),))
    settings = values(text_of(bounded))
    assert (settings["slurm"]["max_nodes"], settings["slurm"]["max_running"]) == (1, 2)
    assert (settings["slurm"]["time_limit"], settings["slurm"]["max_time"]) == ("0:15:00", "0:15:00")


@pytest.mark.parametrize(
    ("change", "account"),
    [
        ({"associations": None}, "<your Slurm account, as in sacctmgr show user $USER withassoc>"),
        ({"associations": ()}, "<a Slurm account that this partition accepts>"),
        ({"associations": (Association("a"), Association("b"))}, "<one of your Slurm accounts>"),
        ({"associations": None, "settings": {}}, None),
        ({"associations": (), "settings": {}}, None),
        ({"associations": (Association("only"),), "settings": {}}, "only"),
    ],
)
def test_an_account_is_written_only_when_it_is_certain(change: dict[str, Any], account: str | None) -> None:
    assert values(text_of(replace(SITE, **change)))["slurm"].get("account") == account


def test_a_qos_that_the_partition_does_not_take_is_not_written() -> None:
    own = (Association("a", ("normal", "low", "high"), "normal"),)
    denied = replace(SITE, associations=own, partitions=(replace(BATCH, deny_qos=frozenset({"normal"})),))
    assert values(text_of(denied))["slurm"]["qos"] == "<one of your QOS that this partition accepts>"
    free = replace(SITE, associations=(Association("a", ("x", "y")),))
    assert "qos" not in values(text_of(free))["slurm"] and "# qos: optional" in text_of(free)


@pytest.mark.parametrize(
    ("gres", "features", "gpu", "memory_gb"),
    [
        ("h100", (), "H100", None),
        ("H100", ("a100-80gb",), "H100", None),
        ("nvidia_a100-sxm4-80gb", (), "A100", 80),
        ("tesla_v100-sxm2-32gb", (), "V100", 32),
        ("h200", (), "H200", 141),
        ("nvidia_gh200_120gb", (), "GH200", None),
        ("nvidia_h100_pcie", (), "H100 PCIe", None),
        (None, ("v100-16g", "rack1"), "V100", 16),
        (None, ("gpu_sku:A100_SXM4", "256gb"), "A100", None),
        (None, ("a100", "v100"), None, None),
        (None, ("h100", "pcie"), None, None),
        ("h100_nvl", (), None, None),
        ("tesla_v100-pcie-16gb", (), None, None),
        ("rtx_a1000", (), None, None),
        ("h20", ("h100",), None, None),
        ("mi250", (), None, None),
    ],
)
def test_facts_of_a_gpu_are_written_only_for_one_that_is_named_for_certain(
    gres: str | None, features: tuple[str, ...], gpu: str | None, memory_gb: int | None
) -> None:
    hardware = values(text_of(with_gpu(gres, *features)))["hardware"]
    assert hardware["gpu"] == (gpu or "<the GPU of these nodes, as nvidia-smi names it>")
    assert hardware.get("gpu_memory_gb") == memory_gb
    assert ("peak_tflops" in hardware) is (gpu is not None)
    assert hardware["gpus_per_node"] == 4


def test_a_partition_without_gpus_has_open_hardware_values(tmp_path: Path) -> None:
    text = text_of(with_nodes(replace(NODES, gres=())))
    cluster = loaded(tmp_path, text)
    assert ("hardware", "gpu") in {blank.path for blank in cluster.unfilled}
    assert values(text)["slurm"]["gpu_request"] == "none" and "gres_type" not in values(text)["slurm"]
    assert "unknown" in next(line for line in text.splitlines() if "gpus_per_node: 1" in line)


@pytest.mark.parametrize(
    ("select", "parameters", "request_style", "mem"),
    [
        ("select/cons_tres", "CR_CORE_MEMORY", "gpus-per-node", "0"),
        ("select/cons_res", "CR_CORE", "gres", None),
        ("select/linear", "CR_MEMORY", "gres", "0"),
        ("select/cray_aries", "CR_CORE,OTHER_CONS_TRES", "gpus-per-node", None),
    ],
)
def test_gpu_and_memory_requests_follow_the_select_type_of_slurm(
    select: str, parameters: str, request_style: str, mem: str | None
) -> None:
    slurm = values(text_of(with_nodes(NODES, SelectType=select, SelectTypeParameters=parameters)))["slurm"]
    assert (slurm["gpu_request"], slurm.get("mem")) == (request_style, mem)


def test_nodes_that_differ_only_in_their_rack_are_one_kind() -> None:
    racks = [replace(NODES, features=frozenset({"h100", f"rack{number}"})) for number in range(3)]
    settings = values(text_of(with_nodes(*racks)))
    assert settings["hardware"]["nodes"] == 12 and "constraint" not in settings["slurm"]


def test_jobs_are_kept_off_nodes_with_other_gpus_by_a_feature() -> None:
    kinds = [
        replace(NODES, count=count, gres=(Gres("gpu", None, 4),), features=frozenset({name, "gpu"}))
        for count, name in ((3, "v100-16g"), (5, "v100-32g"))
    ]
    settings = values(text_of(with_nodes(*kinds)))
    assert (settings["hardware"]["nodes"], settings["hardware"]["gpu_memory_gb"]) == (5, 32)
    assert settings["slurm"]["constraint"] == "v100-32g" and "gres_type" not in settings["slurm"]
    alike = [replace(kind, memory_mb=count) for count, kind in enumerate((NODES, NODES))]
    text = text_of(with_nodes(*alike))
    assert "constraint" not in values(text)["slurm"] and "lists different nodes" in text


def test_without_pyxis_there_is_no_container() -> None:
    plain = text_of(replace(SITE, srun=SrunOptions(frozenset({"account"}))))
    assert "container" not in values(plain) and "No container" in plain
    assert "CSCS" in text_of(replace(SITE, srun=SrunOptions(frozenset({"environment"}))))


def test_the_comment_of_images_names_the_nodes_architecture() -> None:
    assert "built for aarch64" in text_of(with_nodes(replace(NODES, architecture="aarch64")))


def test_a_default_for_mpi_that_srun_does_not_list_is_not_written() -> None:
    assert "mpi" not in values(text_of(with_nodes(NODES, MpiDefault="openmpi")))["slurm"]
    assert "mpi" not in values(text_of(replace(SITE, mpi_kinds=())))["slurm"]


def test_failed_queries_are_listed_at_the_top() -> None:
    text = text_of(replace(SITE, associations=None, qos=None, complaints=("sacctmgr: Connection refused",)))
    assert "# No answer: sacctmgr: Connection refused\n" in text


AWKWARD = ("true", "null", "1e3", "08", "- a", "a: b", "a #b", "&a", "*a", "!t", "a\nslurm: {}", "\\", "\u2028", "\x85")
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from(AWKWARD)


@given(partition=NAME, other=NAME, account=NAME, qos=NAME, gres=NAME, feature=NAME, cluster=NAME, rest=NAME)
def test_every_name_from_slurm_is_read_back_unchanged(
    partition: str, other: str, account: str, qos: str, gres: str, feature: str, cluster: str, rest: str
) -> None:
    kind = replace(NODES, gres=(Gres("gpu", gres, 4),), features=frozenset({feature}), architecture=rest)
    rival = replace(kind, features=frozenset(), memory_mb=1, count=1)
    site = replace(
        SITE,
        cluster_name=cluster,
        slurm_version=rest,
        partitions=(
            Partition(partition, True, True, 5, kinds=(kind, rival)),
            Partition(other, allow_qos=frozenset({rest})),
        ),
        associations=(Association(account, (qos, rest), qos, is_default=True),),
        qos=(Qos(qos, {"job wall": 60, "job node": 1, "user gres/gpu": 4, "user jobs": 1, "user queue": 1}), Qos(rest)),
        mpi_kinds=(rest, "pmix"),
        settings={**SITE.settings, "SelectType": rest, "SelectTypeParameters": f"MEMORY{rest}"},
        reservations=(rest,),
        complaints=(rest,),
    )
    settings = values(profile_text(site, rest, None, rest))
    assert settings["about"] == f"{rest}, partition {partition} of the Slurm cluster {cluster}"
    slurm = settings["slurm"]
    assert (slurm["account"], slurm["partition"], slurm["qos"]) == (account, partition, qos)
    assert (slurm["gres_type"], slurm["constraint"]) == (gres, feature)
    assert set(settings) == {"about", "scheduler", "hardware", "site", "slurm", "container"}
