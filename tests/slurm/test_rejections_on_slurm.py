"""Refusals of a real sbatch, and the hints for the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import Unreachable
from orchestrator.slurm.command import run_slurm
from orchestrator.slurm.reasons import explain_rejection
from tests.slurm.cluster import SlurmCluster

pytestmark = pytest.mark.usefixtures("slurm_cluster")

REFUSED = {
    "-p nosuch": "partition",
    "-A nosuch": "account",
    "-q nosuch": "qos",
    "-N 99": "nodes",
    "-p short -N 4": "nodes",
    "-p short -t 60": "time_limit",
    "-t 1x": "time_limit",
    "--gres=foo:1": "gres_type",
    "--gpus-per-node=9": "GPUs",
    "--mem=2T": "mem",
    "-c 65": "`cpus_per_task`",
    "-n 513": "`cpus_per_task`",
    "-C a100": "constraint",
    "--reservation=nosuch": "reservation",
    "--array=0-1001": "MaxArraySize",
    "-d afterok:abc": "depend",
    "--nosuchoption": "option",
    "--container-image=x.sqsh": "pyxis",
    "-q limited -N 3": "qos",
}


@pytest.mark.parametrize("options", REFUSED)
def test_a_refusal_names_what_to_change(options: str, tmp_path: Path) -> None:
    refused = run_slurm(["sbatch", *options.split(), _script(tmp_path, "#!/bin/bash\ntrue\n")])
    assert refused.returncode != 0
    problem = explain_rejection(refused.stderr)
    assert problem.hint is not None and REFUSED[options] in problem.hint
    assert not problem.what.startswith("sbatch") and problem.what.split(":")[0] in refused.stderr


@pytest.mark.parametrize(("text", "hint"), [("true\n", "#!/bin/bash"), ("", "nothing"), ("#!/bin/sh\r\n", "Unix")])
def test_a_broken_script_names_the_template(text: str, hint: str, tmp_path: Path) -> None:
    problem = explain_rejection(run_slurm(["sbatch", _script(tmp_path, text)]).stderr)
    assert problem.hint is not None and hint in problem.hint


def test_too_many_queued_jobs_have_the_hint_to_wait(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    script = _script(tmp_path, "#!/bin/bash\ntrue\n")
    answers = [run_slurm(["sbatch", "--parsable", "--hold", "-q", "limited", script]) for _ in range(4)]
    slurm_cluster.run("scancel", *(answer.stdout.strip() for answer in answers if answer.returncode == 0))
    assert answers[3].returncode != 0
    problem = explain_rejection(answers[3].stderr)
    assert "QOSMaxSubmitJobPerUserLimit" in problem.what and "wait" in str(problem.hint)


def test_a_missing_slurm_configuration_is_unreachable_and_not_a_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(Unreachable, match="SLURM_CONF"):
        run_slurm(["squeue"], timeout_s=1.5)


def _script(folder: Path, text: str) -> str:
    path = folder / "job.sh"
    path.write_text(text, newline="")
    return str(path)
