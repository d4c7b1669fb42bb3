"""Values of a profile and a case reach the program and the launchers byte by byte when bash runs the script.

Stand-ins for the programs that a script calls record their arguments and their environment.
"""

from __future__ import annotations

import os
import re
import string
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ReproError
from orchestrator.launch.directives import directives
from orchestrator.launch.templates import quoted
from tests.examples import examples
from tests.unit.render.plans import PROGRAM, local, plans
from tests.unit.render.stand_ins import (
    RUNTIMES,
    Stage,
    cluster_and_plan,
    executable,
    sbatch_arguments,
    with_arguments,
    with_fields,
)

pytestmark = pytest.mark.slow

toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # pytest depends on it

NASTY = "'\"\\`$(){}[]<>|&;*?!~#%=, \t-_aZ0/.:@é€中\u2028"
TRICKY = "a'b\"c`touch x`$(touch y)\\ $HOME ${z} #%s;&|* {job_id} {user} %j"
TEXT = st.text(
    st.sampled_from(NASTY) | st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=25
)
WORD = TEXT.filter(bool)
PRINTED = WORD.map(lambda text: "".join(c for c in text if ord(c) > 31 and c != "\x7f") or "x")
# Refused in a mount: , and : separate, names in braces are replaced, and a shell on the node expands the others.
MOUNTED = PRINTED.map(lambda text: "".join(c for c in text if c not in ',:{}<$`"\\'))
# The name of a folder: any character but /.
FOLDER = st.text(st.sampled_from(NASTY.replace("/", "") + "\n"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
ONE_LINE = FOLDER.filter(lambda name: "\n" not in name)  # an #SBATCH line cannot contain a line end
NAMES = st.sampled_from(["no_proxy", "task", "jobs", "i", "exit_code", "command", "NCCL_DEBUG", "LANG"]) | st.text(
    string.ascii_letters + "_", min_size=1, max_size=8
).map(lambda name: f"X_{name}")


@dataclass(frozen=True)
class Values:
    """Values of a profile, a case and a shell. `free` is in each field in which a site may write any text."""

    folder: str
    environment: dict[str, str]
    arguments: list[str]
    free: str
    mount: str
    secret: str


VALUES = st.builds(
    Values,
    folder=ONE_LINE,
    environment=st.dictionaries(NAMES, TEXT, max_size=3),
    arguments=st.lists(TEXT, max_size=3),
    free=PRINTED,
    mount=MOUNTED,
    secret=WORD,
)
BAD = Values(
    folder="a'b\"c`touch x`$(touch y)\\ $HOME ${z} #%s;&|* {job_id} {user} %j",
    environment={"X": TRICKY, "Y": "", "Z": "-n"},
    arguments=[TRICKY, "", "--", "-n", "--a=b c", "'"],
    free=TRICKY,
    mount="a'b(touch y) HOME z #%s;&|* job_id user %j",
    secret=TRICKY,
)

few = settings(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow])


def common(values: Values) -> dict[str, Any]:
    return {
        "environment": values.environment,
        "env_prepend": {"P_PATH": values.free, "P_NEW": values.free},
        "env_unset": ["U_GONE"],
        "env_from": ["F_SECRET"],
    }


def shell_environment(values: Values) -> dict[str, str]:
    return {"P_PATH": "before", "U_GONE": "x", "F_SECRET": values.secret, "NCCL_OF_HOST": "1", "UNLISTED": "1"}


def compare_program(stage: Stage, values: Values, before: str = "before", launcher: list[str] | None = None) -> None:
    """Compare the command line and the environment of the program."""
    expected = [*(launcher or ["-u", "-m", "orchestrator.pretrain"]), *values.arguments]
    assert stage.recorded() == [str(stage.base / "bin" / "python"), *expected]
    environment = stage.environment()
    assert {name: environment[name] for name in values.environment} == values.environment
    assert environment["P_PATH"] == (f"{values.free}:{before}" if before else values.free)
    assert (environment["P_NEW"], environment["F_SECRET"]) == (values.free, values.secret)
    assert "U_GONE" not in environment and environment["PYTHONPATH"] == PROGRAM
    assert stage.end_record()["exit_code"] == "0"


@few
@given(values=VALUES.flatmap(lambda values: FOLDER.map(lambda folder: replace(values, folder=folder))))
@example(values=replace(BAD, folder=BAD.folder + "\n\n"))
def test_values_reach_the_program_of_a_local_script(values: Values) -> None:
    cluster, plan = cluster_and_plan("local")
    with TemporaryDirectory() as base:
        stage = Stage.at(Path(base), values.folder)
        plan = with_arguments(plan, *values.arguments)
        stage.run_job(plan, with_fields(cluster, **common(values)), shell_environment(values))
        launcher = ["-u", "-m", "orchestrator.pretrain.launch", "--nproc-per-node=4"]
        compare_program(stage, values, launcher=launcher)
        names = {path.name for path in stage.job.iterdir() if not path.match("fingerprint.*")}
        assert names == {"claimed", "end", "log.txt", "start"}


@few
@given(values=VALUES, per_node=st.booleans())
@example(values=BAD, per_node=False)
@example(values=BAD, per_node=True)
def test_values_reach_srun_and_the_program_of_a_batch_script(values: Values, per_node: bool) -> None:
    cluster, plan = cluster_and_plan("per-node" if per_node else "slurm")
    with TemporaryDirectory() as base:
        stage = Stage.at(Path(base), values.folder.replace("\\", "") or "job")  # with a backslash it is refused
        slurm = {"srun": [f"--mcs-label={values.free}"], "cpu_bind": values.free, "gpu_bind": values.free}
        plan = with_arguments(plan, *values.arguments)
        cluster = with_fields(cluster, slurm=slurm, **common(values))
        stage.run_job(plan, cluster, shell_environment(values))
        assert stage.recorded("scontrol") == ["show", "hostnames", "n[1-2] x"]
        options = stage.recorded("srun")
        output = "--output=" + str(stage.job / "log.txt").replace("%", "%%")
        named = [f"--mcs-label={values.free}", f"--cpu-bind={values.free}", f"--gpu-bind={values.free}", output]
        assert set(named) <= set(options) and options[options.index("bash") - 1] == output
        launcher = ["-u", "-m", "orchestrator.pretrain.launch", "--nnodes=1", "--node-rank=5", "--nproc-per-node=4"]
        launcher += ["--master-addr=node-1", "--master-port=22345"]
        compare_program(stage, values, launcher=launcher if per_node else None)
        if not per_node:
            ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            assert [stage.environment()[name] for name in ranks] == ["5", "1", "4", "node-1", "22345"]


@few
@given(values=VALUES)
@example(values=BAD)
def test_values_reach_mpirun_and_its_program(values: Values) -> None:
    cluster, plan = cluster_and_plan("mpirun")
    with TemporaryDirectory() as base:
        stage = Stage.at(Path(base), values.folder)
        hostfile = stage.base / "hosts"
        hostfile.write_text("# the nodes\n\n\t # more\n \tfirst slots=4\nsecond slots=4")
        hostfile = hostfile.rename(stage.base / f"h{values.folder}")
        free = ["--mca", "btl", values.free]
        cluster = with_fields(cluster, mpirun={"hostfile": str(hostfile), "arguments": free}, **common(values))
        stage.run_job(with_arguments(plan, *values.arguments), cluster, shell_environment(values))
        arguments = stage.recorded("mpirun")
        options = arguments[: arguments.index("bash")]
        fixed = ["-np", "4", "--map-by", "ppr:4:node", "--bind-to", "none"]
        assert options == ["--hostfile", str(hostfile), *fixed, *free, "-x", "F_SECRET"]
        compare_program(stage, values, before="")
        ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
        assert [stage.environment()[name] for name in ranks] == ["5", "1", "4", "first"]


@pytest.mark.parametrize("runtime", RUNTIMES)
@few
@given(values=VALUES)
@example(values=BAD)
def test_values_reach_the_container_and_its_program(runtime: str, values: Values) -> None:
    cluster, plan = cluster_and_plan(runtime)
    with TemporaryDirectory() as base:
        if runtime == "pyxis":  # paths with blanks are refused
            texts = (values.folder, values.mount, values.free)
            folder, mount, free = (re.sub("[ \t]", "", text) or "x" for text in texts)
            values = replace(values, folder=folder, mount=mount, free=free)
        stage = Stage.at(Path(base), "".join(c for c in values.folder if c not in ',:"\\$`') or "job")
        image = (
            "registry.example/team/torch:1"
            if runtime in ("shifter", "podman-hpc", "docker")
            else f"/i/{values.free}.sqsh"
        )
        program = replace(with_arguments(plan, *values.arguments).program, image_path=image, image=values.free)
        mount = f"/m/{values.mount}/{{job_id}}:/in{values.mount}/{{user}}"
        container: dict[str, Any] = {"mounts": [mount], "images": {"pretrain": image}}
        if runtime in ("pyxis", "podman-hpc", "docker"):
            container["pass_env"] = ["NCCL_*", "ONE"]
        if runtime in ("shifter", "podman-hpc", "docker", "apptainer"):
            container["options"] = [f"--free={values.free}"]
        if runtime == "shifter":
            container["modules"] = [values.free]
        if runtime == "edf":
            container["annotations"] = {"com.hooks.x": values.free, "y": "{job_id}"}
        cluster = with_fields(cluster, container=container, **common(values))
        stage.run_job(replace(plan, program=program), cluster, shell_environment(values))
        compare_program(stage, values, before="" if runtime in ("podman-hpc", "docker") else "before")
        assert stage.end_record()["image"] == values.free
        filled = f"/m/{values.mount}/12345:/in{values.mount}/me"
        check_runtime(stage, runtime, image, [f"{PROGRAM}:{PROGRAM}", filled], values)


def check_runtime(stage: Stage, runtime: str, image: str, mounts: list[str], values: Values) -> None:
    """Compare the arguments of the runtime."""
    job, arguments = f"{stage.job}:/repro-job", stage.recorded("srun")
    log = arguments.index(next(argument for argument in arguments if argument.startswith("--output=")))
    own = arguments[log + 1 : arguments.index("bash")]
    if runtime == "pyxis":
        passed = [f"--container-env={','.join(['F_SECRET', 'NCCL_OF_HOST', 'ONE'])}"]
        given = [f"--container-image={image}", f"--container-mounts={','.join([job, *mounts])}"]
        assert own == [*given, "--no-container-mount-home", "--container-readonly", *passed]
    elif runtime == "edf":
        assert own == [f"--environment={stage.job}/environment.toml"]
        text = (stage.job / "environment.toml").read_bytes().decode()
        annotations = {"com": {"hooks": {"x": values.free}}, "y": "{job_id}"}
        expected = {"image": image, "writable": False, "mounts": [job, *mounts], "annotations": annotations}
        assert toml.loads(text) == expected
    elif runtime == "shifter":
        volumes = [f"--volume={mount}" for mount in mounts]
        given = [f"--image={image}", f"--module={values.free}", *volumes]
        assert own == ["shifter", *given, f"--free={values.free}"]
    elif runtime == "podman-hpc":
        fixed = ["podman-hpc", "run", "--rm", "--net=host", "--ipc=host", "--entrypoint=", "--gpu"]
        names = [f"--env={name}" for name in ("SLURM_*", "CUDA_VISIBLE_DEVICES", "NCCL_*", "ONE", "F_SECRET")]
        volumes = [f"--volume={mount}" for mount in (job, *mounts)]
        assert own == [*fixed, *volumes, *names, f"--free={values.free}", image]
        assert stage.environment()["NCCL_OF_HOST"] == "1" and "UNLISTED" not in stage.environment()
    elif runtime == "docker":
        fixed = ["docker", "run", "--rm", "--init", "--net=host", "--ipc=host", "--ulimit=memlock=-1", "--entrypoint="]
        fixed += ["--gpus=all", f"--user={os.getuid()}:{os.getgid()}"]
        volumes = [f"--volume={mount}" for mount in (job, *mounts)]
        start = [*fixed, *volumes, f"--free={values.free}"]
        assert own[: len(start)] == start and own[-1] == image
        names = [word.removeprefix("--env=") for word in own[len(start) : -1]]
        assert {"SLURM_PROCID", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "NCCL_OF_HOST", "ONE", "F_SECRET"} <= set(names)
        assert stage.environment()["NCCL_OF_HOST"] == "1" and "UNLISTED" not in stage.environment()
    else:
        binds = [f"--bind={mount}" for mount in (job, *mounts)]
        assert own == ["apptainer", "exec", "--nv", "--no-home", *binds, f"--free={values.free}", image]


def test_a_text_with_a_null_character_is_refused_because_a_shell_drops_the_character() -> None:
    with pytest.raises(ReproError, match="null character"):
        quoted("/data/a\0b")


@settings(max_examples=examples(150))
@given(text=WORD)
@example(text=TRICKY)
@example(text="#")
@example(text="'")
@example(text="\\")
@example(text="-x")
@example(text="a\u00a0b")
def test_values_reach_sbatch(text: str) -> None:
    cluster, plan = cluster_and_plan("slurm")
    placed = dict.fromkeys(("partition", "constraint", "reservation", "qos", "gres_type"), text)
    account = text.replace("{", "(").replace("<", "(")  # {project} is filled in, and <...> is a blank
    name = "".join(text.split()).replace("=", "")
    free = [f"--mail-user={text}", f"-J{name}", f"--x{name}={text}"]
    cluster = with_fields(cluster, slurm={**placed, "account": account, "sbatch": free, "gpu_request": "gres"})
    lines = [sbatch_arguments(line.words[0]) for line in directives(plan, cluster)]
    assert all(len(arguments) == 1 for arguments in lines)
    expected = [f"--{name}={text}" for name in ("partition", "constraint", "reservation", "qos")]
    assert {*expected, f"--account={account}", f"--gres=gpu:{text}:4", *free} <= {arguments[0] for arguments in lines}


def test_failing_setup_line_ends_the_job_and_is_recorded(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("slurm")
    stage = Stage.at(tmp_path)
    answer = stage.run(stage.render(with_arguments(plan), with_fields(cluster, setup=["(exit 5)"])))
    assert answer.returncode == 5 and stage.end_record()["exit_code"] == "5"
    assert not (tmp_path / "srun").exists()


@pytest.mark.torch
def test_setup_lines_may_read_unset_variables(tmp_path: Path) -> None:
    cluster = local(tmp_path, "about: x\nscheduler: local\nsetup: ['export FROM_SETUP=\"$NEVER_SET\"done']\n")
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plans(cluster, "cpu")[0]), cluster)
    assert stage.environment()["FROM_SETUP"] == "done"


def test_output_of_a_local_program_goes_to_its_log(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("local")
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "python", "#!/bin/sh\necho out; echo err >&2; exit 7\n")
    assert stage.run(stage.render(with_arguments(plan), cluster)).returncode == 7
    assert (stage.job / "log.txt").read_text() == "out\nerr\n"
