"""Options of container runtimes, and the proof of a job that its tasks ran inside its image."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ReproError
from orchestrator.files import read_record
from orchestrator.job_spec import Resources
from orchestrator.planning.plan import Plan
from tests.unit.render.stand_ins import RUNTIMES, Stage, cluster_and_plan, with_arguments, with_fields

pytestmark = pytest.mark.slow

IMAGES = ("registry.example/nvidia/x:1", "registry.example#nvidia/x:1", "docker://registry.example/nvidia/x:1")


def with_image(plan: Plan, image: str | None) -> Plan:
    return replace(plan, program=replace(with_arguments(plan).program, image_path=image))


# ---- images, mounts and homes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ("pyxis", "\n  '--container-image=registry.example#nvidia/x:1' "),
        ("edf", "'image = \"registry.example#nvidia/x:1\"' "),
        ("shifter", "--image=registry.example/nvidia/x:1 "),
        ("podman-hpc", "\n  registry.example/nvidia/x:1 "),
        ("docker", '"${pass_env[@]/#/--env=}" registry.example/nvidia/x:1 '),
        ("apptainer", "\n  docker://registry.example/nvidia/x:1 "),
    ],
)
def test_registry_image_has_the_notation_of_the_runtime(
    runtime: str, expected: str, image: str, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(runtime)
    script = Stage.at(tmp_path).render(with_image(plan, image), cluster)
    assert expected in script and script.count("nvidia/x:1") == 1


@pytest.mark.parametrize("runtime", ["shifter", "podman-hpc", "docker"])
def test_image_file_is_refused_for_a_runtime_with_its_own_store(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    with pytest.raises(ReproError, match="cannot use an image file"):
        Stage.at(tmp_path).render(with_image(plan, "/images/x.sif"), cluster)


def test_job_without_an_image_is_refused(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    with pytest.raises(ReproError, match="has no container image for pretrain"):
        Stage.at(tmp_path).render(with_image(plan, None), cluster)


@pytest.mark.fault(
    section="Safety",
    fault="The same characters in the folder of a job",
    promise="Refused, with the hint to set `REPRO_HOME`.",
)
@pytest.mark.parametrize("name", ["a,b", "a:b", 'a"b', "a\\b", "$HOME", "a$(id)", "`id`", "a b"])
def test_job_folder_with_a_separator_of_the_runtime_is_refused(name: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    with pytest.raises(
        ReproError,
        match=r"(cannot be mounted into containers|below a folder with a backslash).*\. Hint: set REPRO_HOME",
    ):
        Stage.at(tmp_path, name).render(with_arguments(plan), cluster)


@pytest.mark.parametrize(
    ("runtime", "unless", "with_home"),
    [
        ("pyxis", "--no-container-mount-home \\", "--container-mount-home \\"),
        ("apptainer", "--no-home \\", None),
        ("edf", None, """'  "'"$HOME":"$HOME"'",' \\"""),
        ("podman-hpc", None, '--volume="$HOME":"$HOME" \\'),
        ("docker", None, '--volume="$HOME":"$HOME" \\'),
    ],
)
def test_home_folder_is_mounted_only_if_the_profile_says_so(
    runtime: str, unless: str | None, with_home: str | None, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    lines = {
        home: stage.render(with_arguments(plan), with_fields(cluster, container={"mount_home": home})).splitlines()
        for home in (False, True)
    }
    for home, line in ((False, unless), (True, with_home)):
        other = with_home if line is unless else unless
        assert line is None or f"  {line}" in lines[home]
        assert other is None or f"  {other}" not in lines[home]


@pytest.mark.parametrize(
    ("runtime", "writable", "fixed"),
    [
        ("pyxis", "\n  --container-writable ", "\n  --container-readonly "),
        ("edf", "'writable = true'", "'writable = false'"),
        ("apptainer", "\n  --writable-tmpfs ", ""),
    ],
)
def test_image_is_writable_only_if_the_profile_says_so(runtime: str, writable: str, fixed: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    assert writable in stage.render(with_arguments(plan), with_fields(cluster, container={"writable": True}))
    script = stage.render(with_arguments(plan), cluster)
    assert writable not in script and fixed in script


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, []),
        ({"entrypoint": False, "remap_root": True}, ["--no-container-entrypoint", "--container-remap-root"]),
        ({"entrypoint": True, "remap_root": False}, ["--container-entrypoint", "--no-container-remap-root"]),
        ({"workdir": "/tmp"}, ["--container-workdir=/tmp"]),
    ],
)
def test_pyxis_gets_the_options_of_the_profile_and_else_those_of_the_site_hold(
    fields: dict[str, object], options: list[str], tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    script = Stage.at(tmp_path).render(with_arguments(plan), with_fields(cluster, container=fields))
    assert re.findall(r"^  (--\S*(?:entrypoint|remap-root|workdir|name)\S*)", script, re.MULTILINE) == options


def test_a_named_container_is_never_that_of_another_image(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    cluster = with_fields(cluster, container={"name": "torch"})
    replaced = replace(plan, program=replace(plan.program, image_digest="sha256:1"))
    plans, stage = (plan, replaced, with_image(plan, "/images/other.sqsh"), plan), Stage.at(tmp_path)
    names = [re.findall("--container-name=(.*) ", stage.render(other, cluster))[0] for other in plans]
    assert len(set(names)) == 3 and names[0] == names[3]
    assert all(re.fullmatch("torch-[0-9a-f]{12}", name) for name in names)


@pytest.mark.parametrize(
    ("runtime", "flag", "command"),
    [
        ("apptainer", None, "apptainer exec --nv"),
        ("apptainer", "--rocm", "apptainer exec --rocm"),
        ("apptainer", "none", "apptainer exec --no-home"),
        ("podman-hpc", None, "podman-hpc run --rm --net=host --ipc=host --entrypoint= --gpu"),
        ("podman-hpc", "--device=amd.com/gpu=all", "--entrypoint= --device=amd.com/gpu=all"),
        ("docker", None, "--entrypoint= --gpus=all"),
        ("docker", "--runtime=nvidia", "--entrypoint= --runtime=nvidia"),
    ],
)
def test_container_gets_the_gpu_flag_of_the_profile_or_of_its_runtime(
    runtime: str, flag: str | None, command: str, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(runtime)
    cluster = with_fields(cluster, container={"gpu_flag": flag} if flag else {})
    words = " ".join(Stage.at(tmp_path).render(with_arguments(plan), cluster).replace("\\\n", "").split())
    assert command in words and ("--nv" in words) == (flag is None and runtime == "apptainer")


@pytest.mark.parametrize(("version", "option"), [("0.10", False), ("0.11", True)])
def test_old_pyxis_gets_no_option_that_it_does_not_have(version: str, option: bool, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    script = Stage.at(tmp_path).render(with_arguments(plan), with_fields(cluster, container={"version": version}))
    assert ("--container-readonly" in script) == option


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_names_in_braces_in_a_mount_are_replaced_on_the_node(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    cluster = with_fields(cluster, container={"mounts": ["/tmp/{user}/{job_id}:/scratch"]})
    stage.run_job(with_arguments(plan), cluster, {"SLURM_JOB_ID": "77", "USER": "o'neil"})
    environment_file = stage.job / "environment.toml"
    text = environment_file.read_text() if runtime == "edf" else "\n".join(stage.recorded("srun"))
    assert "/tmp/o'neil/77:/scratch" in text


def test_name_of_the_user_does_not_need_the_environment(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    script = stage.render(with_arguments(plan), with_fields(cluster, container={"mounts": ["/tmp/{user}:/scratch"]}))
    answer = stage.run(f"unset USER\n{script}")
    assert answer.returncode == 0 and not any("/tmp/:" in option for option in stage.recorded("srun"))


# ---- variables that cross over -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "passed"),
    [
        ({"NCCL_A": "1", "NCCL_B": "", "UCX_A": "1", "NCC": "1"}, "--container-env=NCCL_A,NCCL_B"),
        ({"UCX_A": "1"}, None),
    ],
)
def test_pyxis_gets_only_names_of_existing_variables(
    variables: dict[str, str], passed: str | None, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), with_fields(cluster, container={"pass_env": ["NCCL_*", "UNSET_*"]}), variables)
    options = [option for option in stage.recorded("srun") if option.startswith("--container-env")]
    assert options == ([passed] if passed else [])


# ---- the proof that tasks ran inside -----------------------------------------------------------------------------


def on_two_nodes(plan: Plan) -> Plan:
    return replace(with_arguments(plan), resources=Resources(2, 4, 4, plan.resources.time_limit))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_task_outside_its_image_ends_with_97_and_does_not_start_the_program(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    answer = stage.run(
        stage.render(with_arguments(plan), cluster), {"NOT_INSIDE": "1", "SHIFTER_RUNTIME": "1", "TASKS": "0:0:0"}
    )
    assert answer.returncode == 97 and not (tmp_path / "argv").exists()
    assert answer.stderr == "repro: this node runs the task outside its image\n"
    record = read_record(stage.job / "end")
    assert record is not None and (record.exit_code, record.inside_image) == (97, "0/1")
    assert record.outside_image == "0 of 1 node ran it inside pretrain"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_record_counts_the_nodes_that_ran_inside_the_image(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    stage.run_job(on_two_nodes(plan), cluster, {"TASKS": "0:0:0 1:1:0 4:0:1 5:1:1"})
    assert sorted(path.name for path in stage.job.glob("inside.*")) == ["inside.0", "inside.1"]
    record = read_record(stage.job / "end")
    assert record is not None
    assert (record.inside_image, record.image, record.outside_image) == ("2/2", "pretrain", None)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_repeat_has_the_proof_in_its_own_folder(runtime: str, tmp_path: Path) -> None:
    """Repeats of a case share a script. The array passes the folder of each."""
    cluster, plan = cluster_and_plan(runtime)
    stage, repeat = Stage.at(tmp_path), tmp_path / "repeat"
    script = f"set -- {shlex.quote(str(repeat))}\n{stage.render(on_two_nodes(plan), cluster)}"
    answer = stage.run(script, {"TASKS": "0:0:0 1:1:0 4:0:1 5:1:1"})
    assert answer.returncode == 0, answer.stderr
    assert sorted(path.name for path in repeat.glob("inside.*")) == ["inside.0", "inside.1"]
    assert not list(stage.job.glob("inside.*"))
    record = read_record(repeat / "end")
    assert record is not None and record.inside_image == "2/2"


def test_record_does_not_count_a_node_without_proof(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(on_two_nodes(plan), cluster, {"TASKS": "0:0:0 1:1:0"})
    assert stage.end_record()["inside_image"] == "1/2"


@pytest.mark.parametrize("failure", ["outside", "setup"])
def test_proof_of_an_earlier_attempt_does_not_count(failure: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(on_two_nodes(plan), cluster, {"TASKS": "0:0:0 4:0:1"})
    assert stage.end_record()["inside_image"] == "2/2"
    (stage.job / "end").unlink()  # its node was lost, and Slurm runs it again
    failing = with_fields(cluster, setup=["(exit 5)"]) if failure == "setup" else cluster
    answer = stage.run(stage.render(on_two_nodes(plan), failing), {"NOT_INSIDE": "1"})
    assert answer.returncode in (5, 97) and stage.end_record()["inside_image"] == "0/2"


@pytest.mark.fault(
    section="Safety",
    fault="Leftover `APPTAINER*` and `SINGULARITY*` variables of the submitting shell",
    promise="Unset in the script, except folders and credentials of downloads, and names in `env_from`.",
)
@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("APPTAINER_BIND", False),
        ("SINGULARITY_BIND", False),
        ("APPTAINER_WRITABLE_TMPFS", False),
        ("APPTAINERENV_PATH", False),
        ("SINGULARITYENV_TMPDIR", False),
        ("APPTAINER_CACHEDIR", True),
        ("SINGULARITY_DOCKER_PASSWORD", True),
        ("APPTAINER_NV", True),
    ],
)
def test_apptainer_gets_no_leftover_variable(name: str, stays: bool, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("apptainer")
    script = Stage.at(tmp_path).render(with_arguments(plan), with_fields(cluster, env_from=["APPTAINER_NV"]))
    block = script.split("\nfor stray in")[1].split("\ndone\n")[0]
    program = f'{name}=x\nfor stray in{block}\ndone\nprintf %s "${{{name}:-}}"'
    output = subprocess.run(["bash", "-euc", program], env={}, capture_output=True, text=True, check=True).stdout
    assert output == ("x" if stays else "")
