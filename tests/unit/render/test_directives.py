"""What stands behind #SBATCH and on srun."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.launch.directives import directives
from orchestrator.launch.render import Script, render_array, render_job
from orchestrator.planning.plan import Plan
from tests.unit.render.plans import TEMPLATES, plain_slurm, plans, selene

SCRIPT = Script(Path("/runs/x/job.sh"), Path("/runs/x"))


def with_slurm(cluster: Cluster, **changes: Any) -> Cluster:
    assert cluster.profile.slurm is not None
    slurm = cluster.profile.slurm.model_copy(update=changes)
    return replace(cluster, profile=cluster.profile.model_copy(update={"slurm": slurm}))


def asked(plan: Plan, cluster: Cluster) -> list[str]:
    return [line.words[0] for line in directives(plan, cluster)]


def sbatch_lines(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_container_flags_stand_on_srun_and_never_behind_sbatch(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    for plan in plans(cluster, "paper"):
        script = render_job(plan, cluster, tmp_path, TEMPLATES)
        assert not any(line.startswith(("--container", "--no-container")) for line in sbatch_lines(script))
        command = script[script.index("\nsrun ") :]
        assert "  --container-image=/images/pytorch-20.12.sqsh \\\n" in command
        # One option for all: of several Slurm would bring only the last to the nodes.
        assert command.count("--container-mounts=") == 1
        assert '--container-mounts="$folder":/repro-job,/code/Megatron-LM:/code/Megatron-LM,/data:/data \\\n' in command
        assert "  --no-container-mount-home \\\n" in command


def test_directives_come_before_the_first_command_or_sbatch_ignores_them(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    found = plans(cluster, "paper")
    for script in (
        render_job(found[0], cluster, tmp_path, TEMPLATES),
        render_array(found, cluster, [SCRIPT] * len(found), tmp_path, TEMPLATES, at_once=4),
    ):
        lines = script.splitlines()
        commands = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
        assert lines[0] == "#!/bin/bash"
        assert max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < commands[0]


@pytest.mark.parametrize(
    ("request_kind", "gres_type", "expected"),
    [
        ("none", None, []),
        ("gres", None, ["--gres=gpu:4"]),
        ("gres", "h100", ["--gres=gpu:h100:4"]),
        ("gpus-per-node", None, ["--gpus-per-node=4"]),
        ("gpus-per-node", "h100", ["--gpus-per-node=h100:4"]),
    ],
)
def test_gpus_are_asked_for_in_the_sites_way(
    tmp_path: Path, request_kind: str, gres_type: str | None, expected: list[str]
) -> None:
    cluster = with_slurm(plain_slurm(tmp_path), gpu_request=request_kind, gres_type=gres_type)
    found = asked(plans(cluster, "quad")[0], cluster)
    assert [line for line in found if "gpu" in line] == expected


def test_processes_on_cpu_cores_ask_for_no_gpu(tmp_path: Path) -> None:
    cluster = plain_slurm(tmp_path)
    assert not [line for line in asked(plans(cluster, "cpu")[0], cluster) if "gpu" in line]


def test_only_what_the_profile_says_is_asked_for(tmp_path: Path) -> None:
    cluster = with_slurm(
        plain_slurm(tmp_path),
        account=None,
        qos=None,
        constraint=None,
        cpus_per_task=None,
        gpu_request="none",
        sbatch=[],
    )
    assert asked(plans(cluster, "quad")[0], cluster) == [
        "--job-name=figure-13-pp1-tp4-gbs32",
        "--nodes=1",
        "--ntasks-per-node=4",
        "--time=0:30:00",
        "--no-requeue",
    ]


def test_cpus_per_task_is_repeated_on_srun_which_does_not_take_it_over(tmp_path: Path) -> None:
    cluster = plain_slurm(tmp_path)
    script = render_job(plans(cluster, "quad")[0], cluster, tmp_path, TEMPLATES)
    assert "--cpus-per-task=12" in sbatch_lines(script)
    assert "\n  --cpus-per-task=12 \\\n" in script


def test_an_array_asks_for_what_each_of_its_jobs_asks_for_and_is_throttled(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    found = plans(cluster, "paper")
    text = render_array(found, cluster, [SCRIPT] * 10, tmp_path / "100%", TEMPLATES, at_once=3)
    lines = sbatch_lines(text)
    assert "--array=0-9%3" in lines and "--job-name=figure-13-paper" in lines
    assert f"--output={tmp_path}/100%%/%A_%a.txt" in lines
    own = {line for line in lines if line.startswith(("--array", "--output", "--job-name"))}
    for plan in found:
        assert set(lines) - own == {d for d in asked(plan, cluster) if not d.startswith("--job-name")}


def test_the_output_is_a_pattern_in_which_a_percent_sign_is_doubled(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    lines = sbatch_lines(render_job(plans(cluster, "paper")[0], cluster, Path("/runs/50%/x"), TEMPLATES))
    assert "--output=/runs/50%%/x/batch.txt" in lines


@pytest.mark.fault(
    section="Safety",
    fault="A backslash, which Slurm removes, in the folder of a job without a container",
    promise="Refused before anything is recorded.",
)
def test_a_folder_with_a_backslash_that_slurm_would_remove_is_refused(tmp_path: Path) -> None:
    cluster = plain_slurm(tmp_path)
    with pytest.raises(ReproError, match=r"^/a\\b/batch.txt: Slurm cannot write output .*Hint: set REPRO_HOME"):
        render_job(plans(cluster, "quad")[0], cluster, Path("/a\\b"), TEMPLATES)


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_a_value_that_would_end_its_directive_is_refused(tmp_path: Path, value: str) -> None:
    cluster = with_slurm(plain_slurm(tmp_path), account=value)
    with pytest.raises(ReproError, match="cannot be a value of an #SBATCH line"):
        directives(plans(plain_slurm(tmp_path), "quad")[0], cluster)


@pytest.mark.fault(
    section="Safety",
    fault="The same characters in a folder that a workload mounts",
    promise="Refused, with the line of the profile.",
)
@pytest.mark.parametrize("folder", ["/a,b", "/a:b", "/$HOME", "/a`id`", '/a"', "/a\\"])
def test_a_folder_that_pyxis_would_divide_is_refused(tmp_path: Path, folder: str) -> None:
    cluster = selene(tmp_path)
    plan = plans(cluster, "paper")[0]
    with pytest.raises(ReproError, match="cannot be mounted"):
        render_job(replace(plan, program=replace(plan.program, mounts=(folder,))), cluster, tmp_path, TEMPLATES)


def test_a_name_that_a_template_uses_and_nobody_gives_is_an_error(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    (tmp_path / "sbatch_pyxis.sh.j2").write_text("{{ nobody_gives_this }}")
    with pytest.raises(jinja2.UndefinedError):
        render_job(plans(cluster, "paper")[0], cluster, tmp_path, tmp_path)
