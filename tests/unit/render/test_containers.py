"""What containers are told, and how a job knows that its tasks ran inside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ReproError
from orchestrator.files import read_record
from orchestrator.job_spec import Resources
from orchestrator.planning.plan import Plan
from tests.unit.render.stand_ins import RUNTIMES, Stage, cluster_and_plan, with_arguments, with_fields

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
        ("apptainer", "\n  docker://registry.example/nvidia/x:1 "),
    ],
)
def test_an_image_in_a_registry_is_named_as_the_runtime_reads_it(
    runtime: str, expected: str, image: str, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(runtime)
    script = Stage.at(tmp_path).render(with_image(plan, image), cluster)
    assert expected in script and script.count("nvidia/x:1") == 1


@pytest.mark.parametrize("runtime", ["shifter", "podman-hpc"])
def test_a_runtime_with_a_store_of_its_own_is_given_no_file(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    with pytest.raises(ReproError, match="cannot use an image file"):
        Stage.at(tmp_path).render(with_image(plan, "/images/x.sif"), cluster)


def test_a_job_without_an_image_is_refused(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    with pytest.raises(ReproError, match="has no container image for pretrain"):
        Stage.at(tmp_path).render(with_image(plan, None), cluster)


@pytest.mark.fault(
    section="Safety",
    fault="The same characters in the folder of a job",
    promise="Refused, with the hint to set `REPRO_HOME`.",
)
@pytest.mark.parametrize("name", ["a,b", "a:b", 'a"b', "a\\b", "$HOME", "a$(id)", "`id`"])
def test_a_job_folder_that_a_runtime_would_divide_is_refused(name: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    with pytest.raises(
        ReproError, match=r"(cannot be mounted into containers|below a folder with a backslash). Hint: set REPRO_HOME"
    ):
        Stage.at(tmp_path, name).render(with_arguments(plan), cluster)


@pytest.mark.parametrize(
    ("runtime", "unless", "with_home"),
    [
        ("pyxis", "--no-container-mount-home \\", "--container-mount-home \\"),
        ("apptainer", "--no-home \\", None),
        ("edf", None, """'  "'"$HOME":"$HOME"'",' \\"""),
        ("podman-hpc", None, '--volume="$HOME":"$HOME" \\'),
    ],
)
def test_whether_the_home_folder_is_mounted_is_what_the_profile_says(
    runtime: str, unless: str | None, with_home: str | None, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    said = {
        home: stage.render(with_arguments(plan), with_fields(cluster, container={"mount_home": home})).splitlines()
        for home in (False, True)
    }
    for home, line in ((False, unless), (True, with_home)):
        other = with_home if line is unless else unless
        assert line is None or f"  {line}" in said[home]
        assert other is None or f"  {other}" not in said[home]


@pytest.mark.parametrize(
    ("runtime", "writable", "fixed"),
    [
        ("pyxis", "\n  --container-writable ", "\n  --container-readonly "),
        ("edf", "'writable = true'", "'writable = false'"),
        ("apptainer", "\n  --writable-tmpfs ", ""),
    ],
)
def test_an_image_can_be_written_to_where_the_profile_says_so(
    runtime: str, writable: str, fixed: str, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    assert writable in stage.render(with_arguments(plan), with_fields(cluster, container={"writable": True}))
    script = stage.render(with_arguments(plan), cluster)
    assert writable not in script and fixed in script


@pytest.mark.parametrize(("version", "option"), [("0.10", False), ("0.11", True)])
def test_an_old_pyxis_is_given_no_option_that_it_does_not_have(version: str, option: bool, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    script = Stage.at(tmp_path).render(with_arguments(plan), with_fields(cluster, container={"version": version}))
    assert ("--container-readonly" in script) == option


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_a_mount_names_in_braces_is_filled_in_where_the_job_runs(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    cluster = with_fields(cluster, container={"mounts": ["/tmp/{user}/{job_id}:/scratch"]})
    stage.run_job(with_arguments(plan), cluster, {"SLURM_JOB_ID": "77", "USER": "o'neil"})
    told = stage.job / "environment.toml"
    text = told.read_text() if runtime == "edf" else "\n".join(stage.recorded("srun"))
    assert "/tmp/o'neil/77:/scratch" in text


def test_a_user_without_a_name_in_the_environment_is_asked_for(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    script = stage.render(with_arguments(plan), with_fields(cluster, container={"mounts": ["/tmp/{user}:/scratch"]}))
    answer = stage.run(f"unset USER\n{script}")
    assert answer.returncode == 0 and not any("/tmp/:" in word for word in stage.recorded("srun"))


# ---- variables that cross over -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "passed"),
    [
        ({"NCCL_A": "1", "NCCL_B": "", "UCX_A": "1", "NCC": "1"}, "--container-env=NCCL_A,NCCL_B"),
        ({"UCX_A": "1"}, None),
    ],
)
def test_pyxis_is_told_the_names_that_exist_and_nothing_where_there_are_none(
    there: dict[str, str], passed: str | None, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), with_fields(cluster, container={"pass_env": ["NCCL_*", "NOBODYS_*"]}), there)
    found = [word for word in stage.recorded("srun") if word.startswith("--container-env")]
    assert found == ([passed] if passed else [])


# ---- the proof that tasks ran inside -----------------------------------------------------------------------------


def on_two_nodes(plan: Plan) -> Plan:
    return replace(with_arguments(plan), resources=Resources(2, 4, 4, plan.resources.time_limit))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_task_outside_its_image_ends_with_97_and_its_program_is_not_started(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    answer = stage.run(
        stage.render(with_arguments(plan), cluster), {"NOT_INSIDE": "1", "SHIFTER_RUNTIME": "1", "TASKS": "0:0:0"}
    )
    assert answer.returncode == 97 and not (tmp_path / "argv").exists()
    assert answer.stderr == "repro: this node runs the task outside its image\n"
    record = read_record(stage.job / "end")
    assert record is not None and (record.exit_code, record.inside_image) == (97, "0/1")
    assert record.outside_image == "0 of 1 nodes ran it inside pretrain"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_node_proves_once_that_it_ran_inside_and_the_record_counts_them(runtime: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(runtime)
    stage = Stage.at(tmp_path)
    stage.run_job(on_two_nodes(plan), cluster, {"TASKS": "0:0:0 1:1:0 4:0:1 5:1:1"})
    assert sorted(path.name for path in stage.job.glob("inside.*")) == ["inside.0", "inside.1"]
    record = read_record(stage.job / "end")
    assert record is not None
    assert (record.inside_image, record.image, record.outside_image) == ("2/2", "pretrain", None)


def test_a_node_that_proved_nothing_is_missing_in_the_record(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(on_two_nodes(plan), cluster, {"TASKS": "0:0:0 1:1:0"})
    assert stage.end_record()["inside_image"] == "1/2"


@pytest.mark.parametrize("way", ["outside", "setup"])
def test_what_an_earlier_attempt_proved_is_no_proof_of_this_one(way: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(on_two_nodes(plan), cluster, {"TASKS": "0:0:0 4:0:1"})
    assert stage.end_record()["inside_image"] == "2/2"
    failing = with_fields(cluster, setup=["(exit 5)"]) if way == "setup" else cluster
    answer = stage.run(stage.render(on_two_nodes(plan), failing), {"NOT_INSIDE": "1"})
    assert answer.returncode in (5, 97) and stage.end_record()["inside_image"] == "0/2"
