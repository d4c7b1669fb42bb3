"""Origins of each line of a script, and the explained script equals the script."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.render import explain_job, render_job
from orchestrator.launch.templates import Explained
from orchestrator.planning.plan import Plan
from tests.unit.clusters.sites import filled, shipped_names
from tests.unit.render.plans import TEMPLATES, planned
from tests.unit.render.site_scripts import (
    CASES,
    VARIANTS,
    case_of,
    job_folder,
    plan_of,
    runs,
    site,
    site_script,
    without_folders,
)
from tests.unit.render.stand_ins import KINDS, cluster_and_plan, with_fields

PLACE = re.compile(r"(\S+\.yaml):([0-9]+):([0-9]+)")
PROFILES = [(name, list(CASES)) for name in shipped_names()]
PROFILES += [(name, [variant.program]) for name, variant in VARIANTS.items()]


def explained(plan: Plan, cluster: Cluster) -> list[Explained]:
    return explain_job(plan, cluster, job_folder(plan), TEMPLATES)


def origins(lines: list[Explained], start: str) -> str:
    """Return the origins of the only line that begins like this, without folders of profiles."""
    (explained_line,) = [line for line in lines if line.text.strip().startswith(start)]
    return without_folders(", ".join(explained_line.origins))


@pytest.mark.parametrize(("profile", "programs"), PROFILES)
def test_explained_lines_are_the_script_and_each_has_an_origin(profile: str, programs: list[str]) -> None:
    programs = [program for program in programs if runs(profile, program)]
    assert programs
    for program in programs:
        lines = explained(plan_of(profile, program), site(profile))
        assert "".join(f"{line.text}\n" for line in lines) == site_script(profile, program)
        assert [line.text for line in lines if line.text and not line.origins] == []


@pytest.mark.parametrize("kind", KINDS)
def test_value_with_other_line_separators_is_explained(kind: str) -> None:
    cluster, plan = cluster_and_plan(kind)
    odd = "a\u2028b\x0bc\x85d"
    folder = Path("/runs/with\u2028a-line-end")
    cluster = with_fields(cluster, environment={"ODD": odd}, env_prepend={"P": odd}, setup=[f": {odd}"])
    lines = explain_job(plan, cluster, folder, TEMPLATES)
    assert "".join(f"{line.text}\n" for line in lines) == render_job(plan, cluster, folder, TEMPLATES)
    assert [line.text for line in lines if line.text and not line.origins] == []


def test_origin_of_a_profile_value_is_the_line_with_the_value(tmp_path: Path) -> None:
    cluster = filled(tmp_path, "jean-zay-a100")
    entry, case = case_of("megatron-2021")
    (plan,) = planned(entry, [case], cluster)
    seen = 0
    for line in explained(plan, cluster):
        places = PLACE.findall(", ".join(line.origins))
        values = [Path(file).read_text().splitlines()[int(row) - 1][int(column) - 1 :] for file, row, column in places]
        value = line.text.strip().rstrip("\\ ").partition("=")[2].strip("'\"")
        if line.text.startswith("#SBATCH --gres"):
            assert values == ["gpu_request: gres"]
        elif values and line.text.startswith(("#SBATCH", "export NCCL", "  --wait", "  --hint")):
            assert all(part in "".join(values) for part in value.split("@")), (line.text, values)
            seen += 1
    assert seen >= 8


def test_origin_of_a_value_is_the_layer_that_sets_it() -> None:
    lines = explained(plan_of("aws-hyperpod", "megatron-2021"), site("aws-hyperpod"))
    of = {start: origins(lines, start).partition(":")[0].removeprefix("clusters/") for start in (
        "#SBATCH --partition", "--auto-resume", "export FI_EFA_SET_CUDA", "--mpi", "--container-image", "--data-path"
    )}  # fmt: skip
    assert of == {
        "#SBATCH --partition": "aws-hyperpod.local.yaml",
        "--auto-resume": "aws-hyperpod.yaml",
        "export FI_EFA_SET_CUDA": "aws-parallelcluster-p5.yaml",
        "--mpi": "aws-parallelcluster-p4d.yaml",
        "--container-image": "aws-hyperpod.local.yaml",
        "--data-path": "aws-hyperpod.local.yaml",
    }


def test_origin_of_a_path_of_the_program_is_the_profile() -> None:
    lines = explained(plan_of("gcp-a3-mega", "megatron-kwai"), site("gcp-a3-mega"))
    for start in ("lock=", "export PYTHONPATH", "python -u", "--data-path", "--container-mounts"):
        assert re.match(r"(repro, )?clusters/gcp-a3-mega\.local\.yaml:\d+:\d+", origins(lines, start)), start
    kwai = explained(plan_of("kwai-h800", "megatron-kwai"), site("kwai-h800"))
    for start in ("--hostfile", "read -r MASTER_ADDR", "MASTER_PORT=", "unset NCCL_MAX_CTAS", "--mca btl self,tcp"):
        assert PLACE.match(origins(kwai, start)), start


def test_origin_of_an_argument_is_the_experiment() -> None:
    plan = plan_of("selene", "megatron-2021")
    typed = ("--no-scatter-gather-tensors-in-pipeline", "--seed", "7")
    program = replace(plan.program, arguments=(*plan.program.arguments, *typed))
    plan = replace(plan, case=replace(plan.case, arguments=typed), program=program)
    lines = explained(plan, site("selene"))
    for start in ("--seed 7", "--no-scatter-gather", "#SBATCH --nodes", "--ntasks="):
        assert origins(lines, start).startswith("experiments/sc21/figure-13.yaml, templates/"), start
    assert origins(lines, "--hidden-size").startswith("program megatron-2021, experiments/sc21/figure-13.yaml")


def test_origin_of_a_changed_argument_is_its_option_and_the_script_names_the_changes() -> None:
    plan = plan_of("selene", "megatron-2021")
    changes = ("--no-arg=--clip-grad", "--arg=--seed=7")
    case = replace(plan.case, arguments=("--seed", "7"), argument_changes=changes)
    program = replace(plan.program, arguments=(*plan.program.arguments, "--seed", "7"))
    lines = explained(replace(plan, case=case, program=program), site("selene"))
    assert origins(lines, "--seed 7").startswith("--arg, templates/")
    comment = "# Other arguments than published: --no-arg --clip-grad --arg --seed=7"
    assert [line.text for line in lines if line.text.startswith("# Other arguments")] == [comment]
    plain = [line.text for line in explained(plan, site("selene"))]
    assert not any(text.startswith("# Other arguments") for text in plain)


def test_origin_of_a_line_of_every_script_is_repro() -> None:
    lines = explained(plan_of("selene", "megatron-2021"), site("selene"))
    for start in ("#SBATCH --no-requeue", "export OMP_NUM_THREADS", "--label", "--no-container-mount-home"):
        assert origins(lines, start).startswith("repro, templates/"), start
    assert origins(lines, "set -euo").startswith("templates/job.sh.j2:")


@pytest.mark.parametrize("kind", KINDS)
def test_secret_of_the_submitting_shell_is_in_no_script_and_no_record(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hf-9f8e7d6c5b4a"
    monkeypatch.setenv("F_TOKEN", secret)
    cluster, plan = cluster_and_plan(kind)
    container = {"container": {"pass_env": ["F_*"]}} if kind in ("pyxis", "podman-hpc", "docker") else {}
    cluster = with_fields(cluster, env_from=["F_TOKEN"], **container)
    script = render_job(plan, cluster, Path("/runs/x"), TEMPLATES)
    lines = explain_job(plan, cluster, Path("/runs/x"), TEMPLATES)
    configuration = json.dumps(cluster.layered.value)  # as in the ledger
    assert "F_TOKEN" in script and "F_TOKEN" in configuration
    for text in (script, repr(lines), configuration, repr(plan)):
        assert secret not in text
