"""A case on a cluster -> the command of a rank."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.folders import Folders
from orchestrator.workloads.program import Program, image_of, program_for
from tests.unit.catalog.entries import CHECKOUT, shipped
from tests.unit.clusters.sites import PLAIN, cluster_of, selene

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT)


def program(cluster: Cluster, scale: str = "paper") -> Program:
    entry = shipped()
    return program_for(expand(entry, scale)[0], entry.paper, cluster, FOLDERS)


def test_megatron_runs_the_papers_commit_in_the_papers_image_from_the_sites_paths(tmp_path: Path) -> None:
    found = program(selene(tmp_path))
    assert found.per_rank()[:4] == [
        "python",
        "-u",
        "/code/Megatron-LM/pretrain_gpt.py",
        "--activations-checkpoint-method",
    ]
    assert found.code == "6985e58938d40ad91ac07b0fddcfad8132e1447e"
    assert (found.image, found.image_path) == ("nvidia/pytorch:20.12-py3", "/images/pytorch-20.12.sqsh")
    assert found.mounts == ("/code/Megatron-LM",)


def test_pretrain_runs_this_python_unless_the_site_names_another_or_there_is_an_image(tmp_path: Path) -> None:
    assert program(cluster_of(tmp_path), "quad").python == sys.executable
    named = cluster_of(tmp_path, PLAIN + "workloads: {pretrain: {python: /opt/py}}\n")
    assert program(named, "quad").python == "/opt/py"
    boxed = cluster_of(tmp_path, PLAIN + "container: {runtime: pyxis, images: {pretrain: /i.sqsh}}\n")
    found = program(boxed, "quad")
    assert (found.python, found.image_path, found.mounts) == ("python", "/i.sqsh", (str(CHECKOUT),))
    assert found.python_path == str(CHECKOUT)


def test_one_machines_ranks_are_started_by_torchrun_and_a_clusters_by_srun(tmp_path: Path) -> None:
    found = program(cluster_of(tmp_path), "quad")
    launcher = [
        "-u",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=4",
        "-m",
        "orchestrator.pretrain",
    ]
    assert found.torchrun(4)[1:8] == launcher
    assert found.per_rank()[1:4] == ["-u", "-m", "orchestrator.pretrain"]
    assert found.torchrun(4)[8:] == found.per_rank()[4:] == list(found.arguments)


def test_a_site_without_megatron_is_told_what_its_profile_needs(tmp_path: Path) -> None:
    with pytest.raises(ReproError) as caught:
        program(cluster_of(tmp_path))
    assert str(caught.value).startswith(
        "site has no megatron-2021; the profile needs workloads: megatron-2021: checkout"
    )


def test_an_unknown_workload_gets_the_nearest(tmp_path: Path) -> None:
    entry = shipped()
    for name, mend in (
        ("megatron-2012", 'did you mean "megatron-2021"?'),
        (
            "zzz",
            "there are: megatron-2021, megatron-alpa, megatron-kwai, megatron-jan-2024, megatron-core-0.14, "
            "megatron-tutorial-fork, pretrain",
        ),
    ):
        case = replace(expand(entry)[0], workload=name)
        with pytest.raises(ReproError) as caught:
            program_for(case, entry.paper, cluster_of(tmp_path), FOLDERS)
        assert str(caught.value) == f"{name}: no such workload; {mend}"


def test_a_paper_that_names_no_commit_is_refused(tmp_path: Path) -> None:
    entry = shipped()
    paper = entry.paper.model_copy(update={"code": {}})
    with pytest.raises(ReproError, match=r"paper\.yaml names no code for megatron-2021"):
        program_for(expand(entry)[0], paper, selene(tmp_path), FOLDERS)


def test_a_site_without_containers_has_no_image(tmp_path: Path) -> None:
    assert image_of("megatron-2021", shipped().paper, cluster_of(tmp_path)) == (None, None)


def test_a_workload_that_can_only_be_planned_is_refused_with_what_runs(tmp_path: Path) -> None:
    entry = shipped()
    case = replace(expand(entry)[0], workload="megatron-kwai")
    with pytest.raises(ReproError, match="cannot write its arguments yet; it can be planned; what runs is: pretrain"):
        program_for(case, entry.paper, cluster_of(tmp_path), FOLDERS)
