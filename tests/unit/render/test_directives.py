"""#SBATCH lines, and the options of srun that belong to them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.launch.directives import directives
from orchestrator.launch.render import JobScript, render_array, render_job
from orchestrator.planning.plan import Plan
from tests.unit.render.plans import TEMPLATES, plain_slurm, plans, selene
from tests.unit.render.site_scripts import SITES, runs, site_script

SCRIPT = JobScript(Path("/runs/x/job.sh"), Path("/runs/x"))


def with_slurm(cluster: Cluster, **changes: Any) -> Cluster:
    assert cluster.profile.slurm is not None
    slurm = cluster.profile.slurm.model_copy(update=changes)
    return replace(cluster, profile=cluster.profile.model_copy(update={"slurm": slurm}))


def sbatch_options(plan: Plan, cluster: Cluster) -> list[str]:
    return [line.words[0] for line in directives(plan, cluster)]


def sbatch_lines(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.slow
def test_container_options_are_on_srun_and_not_in_sbatch_lines() -> None:
    for profile, program in SITES:
        if runs(profile, program):
            script = site_script(profile, program)
            assert not any(line.startswith(("--container", "--no-container")) for line in sbatch_lines(script))
            # A single option with all mounts: of several options Slurm passes only the last one to the nodes.
            assert script.count("--container-mounts=") == script.count("--container-image=") <= 1


def test_sbatch_lines_precede_the_first_command(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    cases = plans(cluster, "paper")
    for script in (
        render_job(cases[0], cluster, tmp_path, TEMPLATES),
        render_array(cases, cluster, [SCRIPT] * len(cases), tmp_path, TEMPLATES, at_once=4),
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
def test_gpus_are_requested_as_the_profile_says(
    tmp_path: Path, request_kind: str, gres_type: str | None, expected: list[str]
) -> None:
    cluster = with_slurm(plain_slurm(tmp_path), gpu_request=request_kind, gres_type=gres_type)
    assert [option for option in sbatch_options(plans(cluster, "quad")[0], cluster) if "gpu" in option] == expected


def test_job_on_cpu_cores_requests_no_gpu(tmp_path: Path) -> None:
    cluster = plain_slurm(tmp_path)
    assert not [line for line in sbatch_options(plans(cluster, "cpu")[0], cluster) if "gpu" in line]


def test_unset_fields_of_the_profile_request_nothing(tmp_path: Path) -> None:
    cluster = with_slurm(
        plain_slurm(tmp_path),
        account=None,
        qos=None,
        constraint=None,
        cpus_per_task=None,
        gpu_request="none",
        sbatch=[],
    )
    assert sbatch_options(plans(cluster, "quad")[0], cluster) == [
        "--job-name=figure-13-pp1-tp4-gbs32",
        "--nodes=1",
        "--ntasks-per-node=4",
        "--time=0:30:00",
        "--no-requeue",
    ]


def test_array_requests_what_each_of_its_jobs_requests_and_has_a_limit(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    cases = plans(cluster, "paper")
    text = render_array(cases, cluster, [SCRIPT] * 10, tmp_path / "100%", TEMPLATES, at_once=3)
    lines = sbatch_lines(text)
    assert "--array=0-9%3" in lines and "--job-name=figure-13-paper" in lines
    assert f"--output={tmp_path}/100%%/%A_%a.txt" in lines
    own = {line for line in lines if line.startswith(("--array", "--output", "--job-name"))}
    for plan in cases:
        assert set(lines) - own == {
            option for option in sbatch_options(plan, cluster) if not option.startswith("--job-name")
        }


def test_percent_sign_is_doubled_in_the_name_of_the_output(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    lines = sbatch_lines(render_job(plans(cluster, "paper")[0], cluster, Path("/runs/50%/x"), TEMPLATES))
    assert "--output=/runs/50%%/x/batch.txt" in lines


@pytest.mark.fault(
    section="Safety",
    fault="A backslash, which Slurm removes, in the folder of a job without a container",
    promise="Refused before anything is recorded.",
)
def test_folder_with_a_backslash_is_refused(tmp_path: Path) -> None:
    cluster = plain_slurm(tmp_path)
    with pytest.raises(ReproError, match=r"^/a\\b/batch.txt: Slurm cannot write output .*Hint: set REPRO_HOME"):
        render_job(plans(cluster, "quad")[0], cluster, Path("/a\\b"), TEMPLATES)


def test_rendered_script_has_the_comment_of_the_site_joined_to_the_token(tmp_path: Path) -> None:
    cluster = with_slurm(plain_slurm(tmp_path), comment="group 7")
    plan = plans(plain_slurm(tmp_path), "quad")[0]
    alone = render_job(plan, cluster, tmp_path, TEMPLATES)
    joined = render_job(plan, cluster, tmp_path, TEMPLATES, comment="repro:feed")
    assert re.findall("--comment=(.*)", alone) == ['"group 7"']
    assert re.findall("--comment=(.*)", joined) == ['"repro:feed group 7"']


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_value_with_a_line_end_or_null_character_is_refused(tmp_path: Path, value: str) -> None:
    cluster = with_slurm(plain_slurm(tmp_path), account=value)
    with pytest.raises(ReproError, match="cannot be a value of an #SBATCH line"):
        directives(plans(plain_slurm(tmp_path), "quad")[0], cluster)


@pytest.mark.fault(
    section="Safety",
    fault="The same characters in a folder that a program mounts",
    promise="Refused, with the line of the profile.",
)
@pytest.mark.parametrize("folder", ["/a,b", "/a:b", "/$HOME", "/a`id`", '/a"', "/a\\", "/a b"])
def test_mount_with_a_separator_of_pyxis_is_refused(tmp_path: Path, folder: str) -> None:
    cluster = selene(tmp_path)
    plan = plans(cluster, "paper")[0]
    with pytest.raises(ReproError, match="cannot be mounted"):
        render_job(replace(plan, program=replace(plan.program, mounts=(folder,))), cluster, tmp_path, TEMPLATES)


def test_undefined_name_in_a_template_is_an_error(tmp_path: Path) -> None:
    cluster = selene(tmp_path)
    (tmp_path / "sbatch_pyxis.sh.j2").write_text("{{ undefined_name }}")
    with pytest.raises(jinja2.UndefinedError):
        render_job(plans(cluster, "paper")[0], cluster, tmp_path, tmp_path)
