"""Cluster without a scheduler: a real Open MPI starts ranks from a hostfile, on this machine."""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.slurm.host import install_packages
from tests.stand_in_site import Site

PROFILE = """\
about: this machine under Open MPI
scheduler: mpirun
hardware: {{nodes: 1, gpus_per_node: 4}}
mpirun:
  hostfile: {folder}/hosts
  time_limit: "0:10:00"
  arguments: [--allow-run-as-root, --oversubscribe, --mca, btl, "self,tcp"]
env_from: [REPRO_TEST_SECRET]
programs: {{pretrain: {{python: {python}}}}}
"""
SITE = ("--cluster", "site.yaml", "--scale", "cpu")
TWO_RANKS = ("figure-11", *SITE, "--where", "pp=2,gbs=4")
FOUR_RANKS = ("figure-13", *SITE, "--where", "pp=2,gbs=4")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    if shutil.which("mpirun") is None:
        install_packages(["openmpi-bin"])
    (tmp_path / "hosts").write_text("# the nodes\nlocalhost slots=4\n")
    (tmp_path / "site.yaml").write_text(PROFILE.format(folder=tmp_path, python=sys.executable))
    return Site(tmp_path, {"REPRO_TEST_SECRET": "n0t-for-any-file"})


def test_a_case_under_mpirun_is_verified_and_no_file_has_the_secret(site: Site) -> None:
    assert site.repro("clusters", "check", "site.yaml").returncode == 0
    answer = site.repro("submit", *TWO_RANKS, "--wait")
    (row,) = site.status()
    assert (row["state"], row["verdict"], row["iteration"]) == ("COMPLETED", "verified", 8), answer.stderr
    measured = site.repro("collect", "figure-11", "--export", "csv").stdout
    assert any(float(entry["tflops_per_gpu"] or 0) > 0 for entry in csv.DictReader(io.StringIO(measured)))
    written = [file for file in site.folder.rglob("*") if file.is_file()]
    assert len(written) > 5 and not any(b"n0t-for-any-file" in file.read_bytes() for file in written)


def test_a_failed_rank_fails_the_job_and_is_in_its_record(site: Site) -> None:
    (site.folder / "python").write_text('#!/bin/sh\n[ "$RANK" != 2 ] || exit 5\nsleep 600\n')
    (site.folder / "python").chmod(0o755)
    text = (site.folder / "site.yaml").read_text()
    (site.folder / "site.yaml").write_text(re.sub("python: .*}}", f"python: {site.folder}/python}}}}", text))
    site.repro("submit", *FOUR_RANKS, "--wait")
    (row,) = site.status()
    assert (row["state"], row["verdict"]) == ("FAILED", "failed")
    (end,) = site.folder.glob("runs/*/*/end")
    assert "exit_code=5" in end.read_text().splitlines()


def test_a_missing_secret_or_hostfile_is_an_error_before_anything_is_recorded(site: Site) -> None:
    site.variables["REPRO_TEST_SECRET"] = ""
    (site.folder / "hosts").unlink()
    assert "wrong" in site.repro("clusters", "check", "site.yaml").stdout
    answer = site.repro("submit", *TWO_RANKS)
    assert answer.returncode == 2 and "REPRO_TEST_SECRET not set in this shell" in answer.stderr
    site.variables["REPRO_TEST_SECRET"] = "x"
    answer = site.repro("submit", *TWO_RANKS)
    assert answer.returncode == 2 and "no such hostfile" in answer.stderr
    assert not (site.folder / "runs").exists()
