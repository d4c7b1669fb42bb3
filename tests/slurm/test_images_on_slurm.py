"""Imports as jobs of a real Slurm. enroot is simulated; the profile's `setup:` puts the script first in PATH."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.stand_in_site import Site
from tests.unit.launch.enroot import DIGEST, FILE, StandIn
from tests.waiting import wait_until

PROFILE = """\
about: nodes of the test cluster
scheduler: slurm
hardware: {{nodes: 4, gpus_per_node: 2}}
slurm:
  account: research
  partition: batch
  time_limit: "0:10:00"
  gpu_request: gres
  gres_type: h100
site: {{staging_folder: {folder}/images}}
container:
  runtime: pyxis
  images: {{pretrain: registry.example/team/torch:1, other: registry.example/team/jax:2}}
setup: ["export PATH={folder}/bin:$PATH"]
"""


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Site:  # noqa: ARG001  needs it up
    (tmp_path / "site.yaml").write_text(PROFILE.format(folder=tmp_path))
    return Site(tmp_path)


@pytest.fixture
def enroot(site: Site) -> StandIn:
    return StandIn.make(site.folder / "bin", DIGEST)


def names(site: Site) -> list[str]:
    return sorted(path.name for path in (site.folder / "images").iterdir())


def test_a_job_imports_the_image_and_list_shows_it(site: Site, enroot: StandIn, slurm_cluster: SlurmCluster) -> None:
    done = site.repro("images", "import", "--cluster", "site.yaml", "pretrain", "--wait")
    assert done.returncode == 0, done.stderr
    assert "1 import submitted" in done.stderr and "pretrain: imported" in done.stderr
    job = re.findall(r"^pretrain  (\d+)  ", done.stdout)[0]
    assert names(site) == ["team+torch+1.sqsh", FILE, f"{FILE}.json"]
    asked = slurm_cluster.run("sacct", "-X", "-n", "-P", "-o", "JobName,ReqTRES,Timelimit", "-j", job)
    assert asked.startswith("import-team+torch+1|") and asked.endswith("|01:00:00")
    assert "node=1" in asked and "gres" not in asked
    rows = json.loads(site.repro("images", "list", "--cluster", "site.yaml", "--json").stdout)["images"]
    assert [(row["image"], row["there"], row["digest"]) for row in rows] == [
        ("pretrain", "yes", DIGEST),
        ("other", "no", None),
    ]
    assert json.loads((site.folder / "images" / f"{FILE}.json").read_text())["job_id"] == job
    assert "stand-in" in next(site.folder.glob("runs/images/*/log.txt")).read_text()
    again = site.repro("images", "import", "--cluster", "site.yaml", "pretrain")
    assert again.returncode == 0 and "imported already" in again.stderr and len(enroot.imports) == 1


def test_a_failed_import_prints_its_last_line_and_ends_with_1(site: Site, enroot: StandIn) -> None:
    enroot.tell(behave="fail")
    done = site.repro("images", "import", "--cluster", "site.yaml", "pretrain", "--wait")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pretrain: ended with exit code 3: [ERROR] URL https://registry.example/v2/ returned" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"next: cat {site.folder}/runs/images/team+torch+1.")
    assert names(site) == []


def test_two_concurrent_imports_of_one_image_leave_one_file(
    site: Site, enroot: StandIn, slurm_cluster: SlurmCluster
) -> None:
    enroot.tell(behave="meet")
    for _ in range(2):
        assert site.repro("images", "import", "--cluster", "site.yaml", "pretrain").returncode == 0
    wait_until(lambda: not slurm_cluster.run("squeue", "-h"), what="both imports end")
    assert names(site) == ["team+torch+1.sqsh", FILE, f"{FILE}.json"] and len(enroot.imports) == 2
    ends = [end.read_text() for end in site.folder.glob("runs/images/*/end")]
    assert len(ends) == 2 and all("exit_code=0" in end for end in ends)


def test_a_cancelled_import_leaves_no_partial_file(site: Site, enroot: StandIn, slurm_cluster: SlurmCluster) -> None:
    enroot.tell(behave="hang")
    done = site.repro("images", "import", "--cluster", "site.yaml", "pretrain")
    assert done.returncode == 0 and "repro images list --cluster site.yaml" in done.stderr
    sleeper = enroot.folder / "sleeper"
    wait_until(sleeper.exists, what="the import runs")
    slurm_cluster.run("scancel", done.stdout.split()[1])
    wait_until(lambda: not slurm_cluster.run("squeue", "-h"), what="the job has gone")
    assert names(site) == []


def test_each_image_is_imported_by_a_separate_job(site: Site, enroot: StandIn) -> None:
    done = site.repro("images", "import", "--cluster", "site.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    assert len(set(re.findall(r"  (\d+)  ", done.stdout))) == 2 and len(enroot.imports) == 2
    assert [name for name in names(site) if "@" not in name] == ["team+jax+2.sqsh", "team+torch+1.sqsh"]


def test_a_refused_import_prints_slurms_message(site: Site) -> None:
    profile = site.folder / "site.yaml"
    profile.write_text(profile.read_text().replace("partition: batch", "partition: nosuch"))
    done = site.repro("images", "import", "--cluster", "site.yaml", "pretrain")
    assert done.returncode == 2 and "invalid partition specified: nosuch" in done.stderr.lower()
