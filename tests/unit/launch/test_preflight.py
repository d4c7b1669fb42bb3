"""Nothing is submitted that lacks what it needs, and all of it is said at once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.clusters.profile import ClusterProfile
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError, Unreachable
from orchestrator.job_spec import Resources
from orchestrator.launch.preflight import require_ready
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.programs.command import BoundProgram
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import PLAIN, cluster_of
from tests.unit.launch.test_run_record import checkout, git

__all__ = ["checkout"]

HERE = "about: here\nscheduler: local\n"


def here(folder: Path, more: str = "") -> Cluster:
    (folder / "site").mkdir(exist_ok=True)
    return cluster_of(folder / "site", HERE + more)


def require(plans: list[Plan], folder: Path, more: str = "") -> None:
    require_ready(plans, here(folder, more), Folders(shipped=folder, home=folder))


def job_of(folder: Path, checkout: Path, commit: str) -> Plan:
    place = ("programs", "megatron-2021", "checkout")
    values = ((f"{checkout}/pretrain_gpt.py", place), (str(checkout), place))  # as programs/base gives them
    program = BoundProgram("megatron-2021", (), (), commit, site_values=values)
    (case, *_) = expand(shipped(), "pair")
    resources = Resources(1, 1, 1, "0:10:00")
    return Plan(case=case, cluster=here(folder).name, resources=resources, identity="case", program=program)


def test_jobs_are_not_recorded_with_a_commit_that_the_checkout_is_not_at(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    require([job_of(checkout, checkout, head), job_of(checkout, checkout, head[:12])], checkout)
    with pytest.raises(ReproError) as error:
        require([job_of(checkout, checkout, "6985e58938d40ad91ac07b0fddcfad8132e1447e")], checkout)
    (only,) = error.value.problems
    assert only.what == f"{checkout} is at commit {head[:10]}, and the jobs are recorded with 6985e58938"
    assert only.hint == f"git -C {checkout} checkout 6985e58938d40ad91ac07b0fddcfad8132e1447e"


def test_a_checkout_of_a_branch_is_at_its_head_or_refused(checkout: Path) -> None:
    git(checkout, "branch", "release")
    require([job_of(checkout, checkout, "release")], checkout)
    git(checkout, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "another")
    with pytest.raises(ReproError, match="and the jobs are recorded with release"):
        require([job_of(checkout, checkout, "release")], checkout)


def test_missing_code_and_data_are_refused_with_the_command_that_fetches_them(checkout: Path) -> None:
    values = {"checkout": checkout, "data_path": "/tmp/none/d", "vocab_file": "/none/v", "merge_file": "/none/m"}
    settings = ", ".join(f"{field}: {value}" for field, value in values.items())
    overlay = f"programs: {{megatron-2021: {{{settings}}}}}\n"
    job = job_of(checkout, checkout, git(checkout, "rev-parse", "HEAD"))
    with pytest.raises(ReproError) as error:
        require([job], checkout, overlay)
    # /none is not on this machine, so nothing is known about its files.
    assert [problem.what for problem in error.value.problems] == [
        "programs.megatron-2021.data_path: /tmp/none/d.bin: no such file or folder",
        "programs.megatron-2021.data_path: /tmp/none/d.idx: no such file or folder",
    ]
    assert {problem.hint for problem in error.value.problems} == {"repro programs fetch megatron-2021 --cluster site"}
    assert "site.yaml:3:" in (error.value.problems[0].location or "")
    require([job], checkout, overlay + "site: {login_sees_paths: false}\n")


def test_a_checkout_that_only_the_nodes_see_is_not_judged_from_here(tmp_path: Path) -> None:
    require([job_of(tmp_path, tmp_path / "not here", "6985e58938")], tmp_path)


@pytest.mark.fault(
    section="Safety",
    fault="The same characters in `REPRO_HOME`",
    promise="Refused before anything is recorded.",
)
@pytest.mark.parametrize("name", ["a,b", "$HOME", "`id`", 'a"b', "a b"])
def test_a_home_that_cannot_be_mounted_into_containers_is_refused_before_anything_is_recorded(
    name: str, tmp_path: Path
) -> None:
    cluster = replace(here(tmp_path), profile=container_profile(tmp_path))
    with pytest.raises(
        ReproError, match=r"cannot be mounted into containers.*\. Hint: set REPRO_HOME to a folder without"
    ):
        require_ready([], cluster, Folders(shipped=tmp_path, home=tmp_path / name))
    require_ready([], cluster, Folders(shipped=tmp_path, home=tmp_path / "a.b"))


def container_profile(folder: Path) -> ClusterProfile:
    """Of a machine that needs no Slurm to be asked."""
    profile = cluster_of(folder, f"{PLAIN}container: {{runtime: pyxis}}\n", name="boxed").profile
    return profile.model_copy(update={"scheduler": "local"})


def test_all_that_is_missing_is_said_at_once(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    with pytest.raises(ReproError) as error:
        require([job_of(checkout, checkout, "6985e58938")], checkout, "env_from: [NO_SUCH_TOKEN]\n")
    first, second = map(str, error.value.problems)
    assert re.search(r"site\.yaml:3:1 env_from: NO_SUCH_TOKEN not set in this shell. Hint: export it", first), first
    assert "is at commit" in second
    monkeypatch.setenv("NO_SUCH_TOKEN", "x")
    require([], checkout, "env_from: [NO_SUCH_TOKEN]\n")


def test_a_machine_without_mpirun_or_its_hostfile_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "about: x\nscheduler: mpirun\nhardware: {nodes: 1, gpus_per_node: 1}\n"
    cluster = cluster_of(tmp_path, text + "mpirun: {hostfile: /nowhere/hosts, time_limit: 0:10:00}\n")
    folders = Folders(shipped=tmp_path, home=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="mpirun is not on this machine"):
        require_ready([], cluster, folders)
    (tmp_path / "mpirun").write_text("#!/bin/sh\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(ReproError, match="/nowhere/hosts: no such hostfile"):
        require_ready([], cluster, folders)


@pytest.mark.parametrize("name", ["a%j", "a\\b"])
def test_a_home_that_slurm_would_read_as_a_pattern_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    folders = Folders(shipped=tmp_path, home=tmp_path / name)
    with pytest.raises(ReproError, match="set REPRO_HOME") as error:
        require_ready([], cluster_of(tmp_path), folders)
    assert not isinstance(error.value, Unreachable)
