"""What a script does when it runs: how processes are started, what they are given, and what the job leaves behind."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.files import read_record
from orchestrator.job_spec import Resources
from orchestrator.launch.directives import directives, srun_options
from orchestrator.planning.plan import Plan
from orchestrator.workloads.base import TORCHRUN
from tests.unit.render.stand_ins import (
    KINDS,
    ON_SLURM,
    Stage,
    cluster_and_plan,
    executable,
    with_arguments,
    with_fields,
)


def on_nodes(plan: Plan, nodes: int) -> Plan:
    return replace(plan, resources=Resources(nodes, 4, 4, plan.resources.time_limit))


def options_of(plan: Plan, kind: str, **slurm: object) -> list[str]:
    cluster = with_fields(cluster_and_plan(kind)[0], slurm=slurm)
    return [line.words[0] for line in srun_options(plan, cluster)]


# ---- the environment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_profiles_word_wins_over_the_programs_and_is_set_in_the_task_itself(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    program = replace(with_arguments(plan).program, environment=(("NCCL_DEBUG", "WARN"), ("OF_PROGRAM", "1")))
    cluster = with_fields(cluster, environment={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 8}, env_prepend={"A": "/a"})
    stage = Stage.at(tmp_path)
    stage.run_job(replace(plan, program=program), cluster, {"NCCL_DEBUG": "TRACE", "OMP_NUM_THREADS": "1", "A": "/z"})
    found = stage.environment()
    names = ("NCCL_DEBUG", "OF_PROGRAM", "OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS")
    assert [found[name] for name in names] == ["INFO", "1", "8", "1"]
    if kind in ON_SLURM:
        assert stage.environment("srun")["NCCL_DEBUG"] == "TRACE", "not in the batch script, where an image would win"


@pytest.mark.parametrize(("nodes", "expected"), [(1, ["one", "both"]), (2, ["several", "both"])])
def test_what_is_for_several_nodes_is_in_no_job_on_one(nodes: int, expected: list[str], tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    words = {"one": "nodes == 1", "several": "nodes > 1"}
    cluster = with_fields(
        cluster,
        environment={"BOTH": "1", **{name.upper(): {"value": "1", "when": when} for name, when in words.items()}},
        env_prepend={f"P_{name}": {"value": "1", "when": when} for name, when in words.items()},
        setup=["S_both=1", *({"run": f"S_{name}=1", "when": when} for name, when in words.items())],
        container={"mounts": ["/both", *({"mount": f"/{name}", "when": when} for name, when in words.items())]},
    )
    script = Stage.at(tmp_path).render(on_nodes(plan, nodes), cluster)
    for name in ("one", "several", "both"):
        marks = [f"export {name.upper()}=1\n", f"\nS_{name}=1\n", f",/{name}:/{name}"]
        marks += [f"export P_{name}=1$"] if name != "both" else []
        assert [mark in script for mark in marks] == [name in expected] * len(marks), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_without_a_variable_that_it_wants_of_the_shell_stops_and_names_it(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    cluster = with_fields(cluster, env_from=["F_THERE", "F_MISSING"])
    stage = Stage.at(tmp_path)
    answer = stage.run(stage.render(with_arguments(plan), cluster), {"F_THERE": "x"})
    assert answer.returncode != 0
    assert "F_MISSING: must be exported in the shell that submits this job" in answer.stderr
    assert "F_THERE" not in answer.stderr and not (tmp_path / "argv").exists()
    assert stage.end_record()["exit_code"] == str(answer.returncode)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The submitting shell has variables that srun, pyxis or enroot would use",
    promise="They are unset before the step starts.",
)
@pytest.mark.parametrize("leftover", ["SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_GPU_BIND", "SLURM_MEM_BIND_LIST",
    "SLURM_DISTRIBUTION", "SLURM_EXACT", "SLURM_EXPORT_ENV", "SLURM_HINT", "SLURM_MPI_TYPE", "SLURM_OVERCOMMIT",
    "SLURM_OVERLAP", "SLURM_THREADS", "SLURM_WHOLE", "SLURM_STEP_ID", "SLURM_STEPID", "PYXIS_CONTAINER_NAME",
    "PYXIS_CONTAINER_IMAGE", "ENROOT_ROOTFS_WRITABLE", "ENROOT_REMAP_ROOT"])  # fmt: skip
def test_srun_takes_no_option_from_what_the_submitting_shell_left(leftover: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), cluster, {leftover: "x", "SLURM_JOB_PARTITION": "p"})
    assert leftover not in stage.environment("srun")
    assert stage.environment("srun")["SLURM_JOB_PARTITION"] == "p"


def test_the_profiles_own_lines_may_set_a_variable_of_enroot_and_its_credentials_stay(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    cluster = with_fields(cluster, setup=["export ENROOT_MAX_CONNECTIONS=4"])
    stage.run_job(with_arguments(plan), cluster, {"ENROOT_CONFIG_PATH": "/c", "ENROOT_MAX_CONNECTIONS": "99"})
    found = {name: value for name, value in stage.environment("srun").items() if name.startswith("ENROOT_")}
    assert found == {"ENROOT_CONFIG_PATH": "/c", "ENROOT_MAX_CONNECTIONS": "4"}


# ---- where ranks meet --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "host"), [("slurm", "node-1"), ("pyxis", "node-1"), ("mpirun", "first")])
def test_ranks_meet_at_the_name_and_port_that_the_profile_says(kind: str, host: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    (tmp_path / "hosts").write_text("first slots=4\n")
    if kind == "mpirun":
        cluster = with_fields(cluster, mpirun={"hostfile": str(tmp_path / "hosts")})
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), with_fields(cluster, rendezvous={"host_suffix": "-ib.x", "port": 6002}))
    assert (stage.environment()["MASTER_ADDR"], stage.environment()["MASTER_PORT"]) == (f"{host}-ib.x", "6002")
    stage.run_job(with_arguments(plan), cluster)
    assert stage.environment()["MASTER_ADDR"] == host
    assert 20000 <= int(stage.environment()["MASTER_PORT"]) < 30000


@pytest.mark.parametrize("module", ["orchestrator.pretrain.launch", TORCHRUN])
def test_the_launcher_is_started_once_on_each_node_with_the_number_of_the_node(module: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("per-node")
    plan = on_nodes(with_arguments(plan, "--x"), 2)
    plan = replace(plan, program=replace(plan.program, launcher=module))
    stage = Stage.at(tmp_path)
    stage.run_job(plan, cluster, {"TASKS": "1:0:1"})
    rendezvous = ["--node-rank=1", "--nproc-per-node=4", "--master-addr=node-1", "--master-port=22345"]
    launcher = ["-u", "-m", module, "--nnodes=2", *rendezvous]
    program = ["-m", "orchestrator.pretrain"] if module == TORCHRUN else []
    assert stage.recorded()[1:] == [*launcher, *program, "--x"]
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(stage.recorded("srun"))
    asked = [line.words[0] for line in directives(plan, cluster)]
    assert {"--nodes=2", "--ntasks-per-node=1", "--gres=gpu:h100:4"} <= set(asked)


def test_open_mpis_own_variables_say_which_rank_a_process_is(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("mpirun")
    stage = Stage.at(tmp_path)
    stage.run_job(on_nodes(with_arguments(plan), 2), cluster, {"TASKS": "7:3", "RANK": "0", "SLURM_PROCID": "1"})
    found = stage.environment()
    assert [found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] == ["7", "3", "8"]
    words = stage.recorded("mpirun")
    assert words[words.index("--map-by") + 1] == "ppr:4:node" and words[words.index("-np") + 1] == "8"


@pytest.mark.parametrize("kind", ["mpirun", "local"])
def test_a_job_that_no_scheduler_watches_ends_at_its_time_limit(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "python", "#!/bin/sh\nexec /usr/bin/sleep 5\n")
    plan = replace(with_arguments(plan), resources=replace(plan.resources, time_limit="0:00:01"))
    begun = time.monotonic()
    assert stage.run(stage.render(plan, cluster)).returncode == 124
    assert time.monotonic() - begun < 4 and stage.end_record()["exit_code"] == "124"


# ---- srun's options ----------------------------------------------------------------------------------------------


def test_a_gpu_asked_for_by_the_task_hides_no_other_gpu_of_the_node_from_it() -> None:
    plan = cluster_and_plan("slurm")[1]
    assert "--gpu-bind=none" in options_of(plan, "slurm", gpu_request="gpus-per-task")
    closest = options_of(plan, "slurm", gpu_request="gpus-per-task", gpu_bind="closest")
    assert [word for word in closest if "gpu-bind" in word] == ["--gpu-bind=closest"]
    free = options_of(plan, "slurm", gpu_request="gpus-per-task", srun=["--gpu-bind=map_gpu:0,1"])
    assert [word for word in free if "gpu-bind" in word] == ["--gpu-bind=map_gpu:0,1"]
    assert not [word for word in options_of(plan, "slurm", gpu_request="gpus-per-node") if "gpu-bind" in word]
    on_cores = replace(plan, resources=replace(plan.resources, gpus_per_node=0))
    assert not [word for word in options_of(on_cores, "slurm", gpu_request="gpus-per-task") if "gpu-bind" in word]


def test_what_srun_does_not_take_over_from_sbatch_is_said_again() -> None:
    found = options_of(
        cluster_and_plan("slurm")[1], "slurm", cpus_per_task=7, hint="nomultithread", mpi="pmix", cpu_bind="cores"
    )
    assert {"--cpus-per-task=7", "--hint=nomultithread", "--mpi=pmix", "--cpu-bind=cores"} <= set(found)
    assert {"--nodes=1", "--ntasks=4", "--ntasks-per-node=4"} <= set(found)


def test_a_free_argument_of_the_site_takes_the_place_of_ours_of_the_same_name() -> None:
    srun = ["--kill-on-bad-exit=0", "--mpi=pmi2", "--wait=60", "--export=NONE"]
    found = options_of(cluster_and_plan("slurm")[1], "slurm", mpi="pmix", srun=srun)
    assert found[-4:] == srun
    assert [word.partition("=")[0] for word in found].count("--mpi") == 1
    assert not {"--kill-on-bad-exit=1", "--export=ALL"} & set(found) and "--label" in found


# ---- kernels that one job compiles and others wait for -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["slurm", "pyxis", "mpirun", "local"])
@pytest.mark.parametrize(("minutes", "waits"), [(9, True), (12, False)])
def test_a_young_lock_is_waited_for_and_an_old_one_is_removed(
    kind: str, minutes: int, waits: bool, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    lock = tmp_path / "check out" / "megatron" / "fused_kernels" / "build" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - minutes * 60,) * 2)
    executable(tmp_path / "bin" / "sleep", '#!/bin/sh\nls "$LOCK" >>"$RECORDS/slept"\nrm -f "$LOCK"\n')
    program = replace(with_arguments(plan).program, compiles_in=str(tmp_path / "check out"))
    stage.run_job(replace(plan, program=program), cluster, {"LOCK": str(lock)})
    assert (tmp_path / "slept").exists() is waits and not lock.exists()
    assert any(word.startswith("orchestrator.pretrain") for word in stage.recorded())


def test_a_checkout_without_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("slurm")
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "sleep", "#!/bin/sh\nexit 9\n")
    program = replace(with_arguments(plan).program, compiles_in=str(tmp_path / "nothing"))
    stage.run_job(replace(plan, program=program), cluster)


# ---- what a job leaves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["slurm", "pyxis", "local"])
def test_the_commit_that_a_checkout_is_at_when_the_job_begins_is_in_its_record(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    checkout = tmp_path / "check out"
    checkout.mkdir()
    place = (str(checkout), ("workloads", "megatron-2021", "checkout"))
    plan = replace(plan, program=replace(with_arguments(plan).program, site_values=(place,)))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # whose commit is not the checkout's
    stage = Stage.at(tmp_path)
    stage.run_job(plan, cluster)
    assert stage.end_record()["commit"] == ""
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    subprocess.run(["git", *author, "-C", str(checkout), "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    stage.run_job(plan, cluster)
    record = read_record(stage.job / "end")
    assert record is not None and record.commit == head.stdout.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_the_exit_code_of_a_failing_program_is_in_the_jobs_own_record(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    (tmp_path / "code").write_text("7")
    assert stage.run(stage.render(with_arguments(plan), cluster)).returncode == 7
    record = read_record(stage.job / "end")
    assert record is not None and record.exit_code == 7
    assert record.scheduler_id == ("12345" if kind in ON_SLURM else "none")
    start = read_record(stage.job / "start")
    assert start is not None and start.exit_code == 0 and start.pid == record.pid


@pytest.mark.parametrize("kind", ["slurm", "mpirun", "local"])
def test_a_job_that_was_given_up_before_it_started_says_so_and_touches_nothing(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    stage.job.mkdir()
    (stage.job / "cancelled").touch()
    done = stage.run(stage.render(with_arguments(plan), cluster))
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr == "repro: not started: it was cancelled, or given up, before\n"
    assert [path.name for path in stage.job.iterdir()] == ["cancelled"] and not (tmp_path / "argv").exists()


@pytest.mark.parametrize("kind", ["slurm", "mpirun", "local"])
def test_a_job_cancelled_while_it_was_being_started_runs_nothing(kind: str, tmp_path: Path) -> None:
    """Between its first look at the mark and its own record, without which nobody knows whom to signal."""
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "hostname", f'#!/bin/sh\ntouch "{stage.job}/cancelled"\necho here\n')
    assert stage.run(stage.render(with_arguments(plan), cluster)).returncode == 143
    assert not (tmp_path / "argv").exists() and stage.end_record()["exit_code"] == "143"


def test_a_task_of_an_array_is_recorded_as_that_task(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("slurm")
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), cluster, {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"})
    assert stage.end_record()["scheduler_id"] == "77_3"


def test_a_hostfile_that_is_not_there_ends_the_job_before_anything_is_started(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("mpirun")
    stage = Stage.at(tmp_path)
    answer = stage.run(stage.render(with_arguments(plan), with_fields(cluster, mpirun={"hostfile": "-nowhere"})))
    assert answer.returncode != 0 and "-nowhere" in answer.stderr and not (tmp_path / "mpirun").exists()
