"""Tests of `repro nodes`: texts and options. unit/api tests the deny list."""

from __future__ import annotations

import json
import re

import pytest

from tests.unit.cli.calling import Caller
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

DENY = ("nodes", "deny", "--cluster", "there", "--because", "ECC")


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(repro.site.folder / ".config"))
    profile = PROFILE.replace("max_running: 4", "partition: batch, exclude: ['n[8-9]']")
    (repro.site.folder / "clusters" / "there.yaml").write_text(profile)
    slurm = Slurm.on_path(repro.site.folder.parent / "bin", monkeypatch)
    slurm.has_nodes(*(f"n{number}" for number in range(1, 11)))
    return slurm


def test_nodes_are_denied_listed_and_allowed(repro: Caller, slurm: Slurm) -> None:
    assert "missing option '--cluster'" in repro("nodes", "deny", "n1", "--because", "ECC").stderr
    done = repro(*DENY, "n[1-2]", "--until", "2998-12-31")
    assert (done.returncode, done.complaints) == (0, ["there: 2 nodes denied: ECC, until 2998-12-31: n1, n2"])
    rows = json.loads(repro("nodes", "list", "--json").stdout)["nodes"]
    assert [(row["cluster"], row["node"], row["reason"], row["until"]) for row in rows] == [
        ("there", node, "ECC", "2998-12-31") for node in ("n1", "n2")
    ]
    dry = repro("submit", "figure-13", "--cluster", "there", "--scale", "cpu", "--dry-run")
    assert "note: jobs on there exclude 2 nodes: n1, n2 (denied: ECC, until 2998-12-31)" in dry.stderr
    assert repro("nodes", "allow", "n[1-2]").complaints == ["there: 2 nodes allowed again: n1, n2"]
    refused = repro("nodes", "allow", "n1")
    assert (refused.returncode, refused.complaints) == (2, ["repro: n1: not denied. Hint: repro nodes list"])
    (slurm.folder / "nodes").write_text("NodeName=a1 Partitions=other\n")  # the Slurm of another cluster
    done = repro(*DENY, "n77")
    assert done.complaints[1] == "note: this machine does not see the Slurm of there, so the names were not checked"


def test_jobs_that_import_images_exclude_denied_nodes_and_the_default_cluster_is_used(
    repro: Caller, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = repro.site.folder / "images"
    staging.mkdir()
    with (repro.site.folder / "clusters" / "there.yaml").open("a") as profile:
        profile.write(f"site: {{staging_folder: {json.dumps(str(staging))}}}\n")
        profile.write("container: {runtime: pyxis, images: {torch: 'nvcr.io#nvidia/pytorch:24.01-py3'}}\n")
    monkeypatch.setenv("REPRO_CLUSTER", "there")
    assert repro("nodes", "deny", "n4", "--because", "ECC").returncode == 0
    assert repro("images", "import", "--cluster", "there").returncode == 0 and len(slurm.calls()) == 1
    scripts = "".join(file.read_text() for file in (repro.site.folder / "runs").rglob("*.sh"))
    assert set(re.findall(r"^#SBATCH --exclude=(.*)$", scripts, re.MULTILINE)) == {"n[8-9],n4"}
