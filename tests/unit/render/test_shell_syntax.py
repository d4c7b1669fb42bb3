"""Every script of every case through bash and shellcheck."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from orchestrator.launch.render import render_array, render_job, render_queue
from tests.unit.render.plans import TEMPLATES, local, plain_slurm, plans, selene


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All scripts of figure 13 on three kinds of cluster, their arrays and a queue."""
    folder = tmp_path_factory.mktemp("scripts")
    written: list[Path] = []

    def write(name: str, text: str) -> Path:
        written.append(folder / name)
        written[-1].write_text(text, encoding="utf-8")
        return written[-1]

    clusters = [
        (selene(folder), "paper"),
        (plain_slurm(folder), "quad"),
        (plain_slurm(folder), "cpu"),
        (local(folder), "cpu"),
    ]
    for cluster, scale in clusters:
        found = plans(cluster, scale)
        jobs = [
            write(f"{cluster.name}-{scale}-{p.case.slug}.sh", render_job(p, cluster, folder / p.case.slug, TEMPLATES))
            for p in found
        ]
        if cluster.profile.slurm is not None:
            write(f"{cluster.name}-{scale}-array.sh", render_array(found, cluster, jobs, folder, TEMPLATES))
        else:
            write("queue.sh", render_queue(jobs, folder / "lock", TEMPLATES))
    return written


def test_there_is_a_script_for_each_case_and_submission(scripts: list[Path]) -> None:
    assert len(scripts) == 10 + 1 + 6 + 1 + 6 + 1 + 6 + 1


def test_bash_reads_every_script(scripts: list[Path]) -> None:
    for script in scripts:
        answer = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stderr) == (0, ""), script.name


def test_shellcheck_finds_nothing_in_any_script(scripts: list[Path]) -> None:
    if shutil.which("shellcheck") is None:
        assert os.environ.get("CI") != "true", "shellcheck is not installed: apt-get install shellcheck"
        warnings.warn("shellcheck is not installed, so no script was checked by it", stacklevel=1)
        return
    command = ["shellcheck", "--shell=bash", *map(str, scripts)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
