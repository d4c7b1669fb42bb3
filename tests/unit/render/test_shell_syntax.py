"""Every script of every profile and workload through bash and shellcheck, with all cases of a figure on some sites."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from orchestrator.launch.render import Script, render_array, render_job, render_queue
from orchestrator.planning.plan import Plan
from tests.unit.render.matrix import VARIED, job_folder, plan_or_refusals, site
from tests.unit.render.plans import TEMPLATES, local, plain_slurm, plans, selene
from tests.unit.render.standing import RUNTIMES, saying, sited
from tests.unit.render.test_golden import MATRIX, OTHERS

ODD = {
    "environment": {"A": "it's $HOME", "B": ""},
    "env_prepend": {"P": "/a b"},
    "env_unset": ["U"],
    "env_from": ["F"],
    "rendezvous": {"host_suffix": "-ib", "port": 6002},
}
"""What few shipped profiles say."""


def texts(folder: Path) -> dict[str, str]:
    found = {name: script() for name, script in OTHERS.items()}
    for profile, workload in [*MATRIX, *((name, said[2]) for name, said in VARIED.items())]:
        plan = plan_or_refusals(profile, workload)
        if isinstance(plan, Plan):
            found[f"{profile}-{workload}"] = render_job(plan, site(profile), job_folder(plan), TEMPLATES)
    for kind in ("local", "slurm", "per-node", "mpirun", *RUNTIMES):
        cluster, plan = sited(kind)
        odd = saying(cluster, **ODD, **({"container": {"pass_env": ["NCCL_*", "X"]}} if kind == "pyxis" else {}))
        found[f"odd-{kind}"] = render_job(plan, odd, folder / "a folder", TEMPLATES)
    for cluster, scale in (
        (selene(folder), "paper"),
        (plain_slurm(folder), "quad"),
        (plain_slurm(folder), "cpu"),
        (local(folder), "cpu"),
    ):
        each = plans(cluster, scale)
        named = {f"{cluster.name}-{scale}-{plan.case.slug}": plan for plan in each}
        found |= {name: render_job(plan, cluster, folder / name, TEMPLATES) for name, plan in named.items()}
        each_script = [Script(folder / f"{name}.sh", folder / name) for name in named]
        if cluster.is_slurm:
            found[f"{cluster.name}-{scale}-array"] = render_array(
                each, cluster, each_script, folder, TEMPLATES, at_once=4
            )
        else:
            found["queue-of-all"] = render_queue(each_script, folder / "lock", TEMPLATES)
    return found


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("scripts")
    written = []
    for name, text in texts(folder).items():
        written.append(folder / f"{name}.sh")
        written[-1].write_text(text, encoding="utf-8")
    return written


def test_there_is_a_script_for_each_case_and_submission(scripts: list[Path]) -> None:
    refused = sum(not isinstance(plan_or_refusals(*one), Plan) for one in MATRIX)
    figure_13 = 10 + 1 + 6 + 1 + 6 + 1 + 6 + 1
    assert len(scripts) == len(MATRIX) - refused + len(VARIED) + len(OTHERS) + 4 + len(RUNTIMES) + figure_13


def test_bash_reads_every_script(scripts: list[Path]) -> None:
    for script in scripts:
        answer = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stderr) == (0, ""), script.name


def test_shellcheck_finds_nothing_in_any_script(scripts: list[Path]) -> None:
    if shutil.which("shellcheck") is None:
        assert os.environ.get("CI") != "true", "shellcheck is not installed: apt-get install shellcheck"
        warnings.warn("shellcheck is not installed, so no script was checked by it", stacklevel=1)
        return
    # SC1091: a line of setup: that sources a file of the site, which is not here to be followed.
    command = ["shellcheck", "--shell=bash", "--exclude=SC1091", *map(str, scripts)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
