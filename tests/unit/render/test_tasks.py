"""Effects of a script that runs: the started processes, their environment, and the records of the job."""

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
from orchestrator.launch.render import environment
from orchestrator.planning.plan import Plan
from orchestrator.programs.command import TORCHRUN
from tests.unit.render.stand_ins import (
    KINDS,
    ON_SLURM,
    Stage,
    cluster_and_plan,
    executable,
    with_arguments,
    with_fields,
)

pytestmark = pytest.mark.slow


def on_nodes(plan: Plan, nodes: int) -> Plan:
    return replace(plan, resources=Resources(nodes, 4, 4, plan.resources.time_limit))


def options_of(plan: Plan, kind: str, **slurm: object) -> list[str]:
    cluster = with_fields(cluster_and_plan(kind)[0], slurm=slurm)
    return [line.words[0] for line in srun_options(plan, cluster)]


# ---- the environment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_variables_of_the_profile_replace_those_of_the_program_in_each_task(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    program = replace(with_arguments(plan).program, environment=(("NCCL_DEBUG", "WARN"), ("OF_PROGRAM", "1")))
    cluster = with_fields(cluster, environment={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 8}, env_prepend={"A": "/a"})
    stage = Stage.at(tmp_path)
    stage.run_job(replace(plan, program=program), cluster, {"NCCL_DEBUG": "TRACE", "OMP_NUM_THREADS": "1", "A": "/z"})
    environment = stage.environment()
    names = ("NCCL_DEBUG", "OF_PROGRAM", "OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS")
    assert [environment[name] for name in names] == ["INFO", "1", "8", "1"]
    if kind in ON_SLURM:
        # An image would replace variables of the batch script.
        assert stage.environment("srun")["NCCL_DEBUG"] == "TRACE"


def test_programs_of_2021_do_not_get_a_variable_that_they_did_not_know() -> None:
    cluster, plan = cluster_and_plan("pyxis")
    programs = ("megatron-2021", "megatron-alpa", "megatron-kwai", "pretrain")
    plans = [replace(plan, program=replace(plan.program, name=program)) for program in programs]
    names = {plan.program.name: dict(environment(plan, cluster)) for plan in plans}
    assert [program for program in names if "CUDA_DEVICE_MAX_CONNECTIONS" in names[program]] == [
        "megatron-kwai",
        "pretrain",
    ]
    assert all("OMP_NUM_THREADS" in given for given in names.values())


@pytest.mark.parametrize(("nodes", "expected"), [(1, ["one", "both"]), (2, ["several", "both"])])
def test_values_for_several_nodes_are_not_in_a_job_on_one_node(nodes: int, expected: list[str], tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    conditions = {"one": "nodes == 1", "several": "nodes > 1"}
    cluster = with_fields(
        cluster,
        environment={"BOTH": "1", **{name.upper(): {"value": "1", "when": when} for name, when in conditions.items()}},
        env_prepend={f"P_{name}": {"value": "1", "when": when} for name, when in conditions.items()},
        setup=["S_both=1", *({"run": f"S_{name}=1", "when": when} for name, when in conditions.items())],
        container={"mounts": ["/both", *({"mount": f"/{name}", "when": when} for name, when in conditions.items())]},
    )
    script = Stage.at(tmp_path).render(on_nodes(plan, nodes), cluster)
    for name in ("one", "several", "both"):
        marks = [f"export {name.upper()}=1\n", f"\nS_{name}=1\n", f",/{name}:/{name}"]
        marks += [f"export P_{name}=1$"] if name != "both" else []
        assert [mark in script for mark in marks] == [name in expected] * len(marks), name


@pytest.mark.parametrize("kind", KINDS)
def test_job_without_a_variable_that_it_needs_from_the_shell_stops_and_names_it(kind: str, tmp_path: Path) -> None:
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
def test_variables_of_the_submitting_shell_are_no_options_of_srun(leftover: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), cluster, {leftover: "x", "SLURM_JOB_PARTITION": "p"})
    assert leftover not in stage.environment("srun")
    assert stage.environment("srun")["SLURM_JOB_PARTITION"] == "p"


def test_setup_lines_may_set_variables_of_enroot_and_its_credentials_stay(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("pyxis")
    stage = Stage.at(tmp_path)
    cluster = with_fields(cluster, setup=["export ENROOT_MAX_CONNECTIONS=4"])
    stage.run_job(with_arguments(plan), cluster, {"ENROOT_CONFIG_PATH": "/c", "ENROOT_MAX_CONNECTIONS": "99"})
    of_enroot = {name: value for name, value in stage.environment("srun").items() if name.startswith("ENROOT_")}
    assert of_enroot == {"ENROOT_CONFIG_PATH": "/c", "ENROOT_MAX_CONNECTIONS": "4"}


# ---- rendezvous --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "host"), [("slurm", "node-1"), ("pyxis", "node-1"), ("mpirun", "first")])
def test_rendezvous_uses_the_host_suffix_and_port_of_the_profile(kind: str, host: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("kind", ["slurm", "pyxis"])
@pytest.mark.parametrize(
    ("srun", "variables", "host"),
    [
        ((), {}, "node-1"),
        (("--distribution=plane=1",), {}, "node-1"),
        ((), {"SLURM_HOSTFILE": "/racks"}, "of-rank-0"),
        (("--distribution=arbitrary", "--nodelist=n2,n1"), {}, "of-rank-0"),
    ],
)
def test_master_address_is_the_host_of_rank_0_in_every_order_of_ranks(
    kind: str, srun: tuple[str, ...], variables: dict[str, str], host: str, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    cluster = with_fields(cluster, slurm={"srun": list(srun)}, rendezvous={"host_suffix": "-ib"})
    given = {**variables, "SLURMD_NODENAME": "of-rank-0", "TASKS": "0:0:0"}
    stage.run_job(with_arguments(plan), cluster, given)
    assert stage.environment()["MASTER_ADDR"] == f"{host}-ib"


def test_the_sampler_runs_once_on_each_node_also_with_a_file_of_ranks(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("slurm")
    script = Stage.at(tmp_path).render(plan, with_fields(cluster, sample_gpus_every_s=1))
    assert "env --unset=SLURM_HOSTFILE srun --overlap --nodes=1 --ntasks=1" in script


@pytest.mark.parametrize("module", ["orchestrator.pretrain.launch", TORCHRUN])
def test_launcher_is_started_once_per_node_with_the_node_rank(module: str, tmp_path: Path) -> None:
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
    requested = {line.words[0] for line in directives(plan, cluster)}
    assert {"--nodes=2", "--ntasks-per-node=1", "--gres=gpu:h100:4"} <= requested


def test_rank_is_read_from_variables_of_open_mpi(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("mpirun")
    stage = Stage.at(tmp_path)
    stage.run_job(on_nodes(with_arguments(plan), 2), cluster, {"TASKS": "7:3", "RANK": "0", "SLURM_PROCID": "1"})
    environment = stage.environment()
    assert [environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")] == ["7", "3", "8"]
    arguments = stage.recorded("mpirun")
    assert arguments[arguments.index("--map-by") + 1] == "ppr:4:node" and arguments[arguments.index("-np") + 1] == "8"


@pytest.mark.parametrize("kind", ["mpirun", "local"])
def test_job_without_a_scheduler_ends_at_its_time_limit(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "python", "#!/bin/sh\nexec /usr/bin/sleep 60\n")
    plan = replace(with_arguments(plan), resources=replace(plan.resources, time_limit="0:00:01"))
    assert stage.run(stage.render(plan, cluster)).returncode == 124
    assert stage.end_record()["exit_code"] == "124"


# ---- options of srun ----------------------------------------------------------------------------------------------


def test_gpus_per_task_do_not_hide_other_gpus_of_the_node() -> None:
    plan = cluster_and_plan("slurm")[1]
    assert "--gpu-bind=none" in options_of(plan, "slurm", gpu_request="gpus-per-task")
    closest = options_of(plan, "slurm", gpu_request="gpus-per-task", gpu_bind="closest")
    assert [word for word in closest if "gpu-bind" in word] == ["--gpu-bind=closest"]
    free = options_of(plan, "slurm", gpu_request="gpus-per-task", srun=["--gpu-bind=map_gpu:0,1"])
    assert [word for word in free if "gpu-bind" in word] == ["--gpu-bind=map_gpu:0,1"]
    assert not [word for word in options_of(plan, "slurm", gpu_request="gpus-per-node") if "gpu-bind" in word]
    on_cores = replace(plan, resources=replace(plan.resources, gpus_per_node=0))
    assert not [word for word in options_of(on_cores, "slurm", gpu_request="gpus-per-task") if "gpu-bind" in word]


def test_options_that_srun_does_not_inherit_from_sbatch_are_repeated() -> None:
    options = options_of(
        cluster_and_plan("slurm")[1], "slurm", cpus_per_task=7, hint="nomultithread", mpi="pmix", cpu_bind="cores"
    )
    assert {"--cpus-per-task=7", "--hint=nomultithread", "--mpi=pmix", "--cpu-bind=cores"} <= set(options)
    assert {"--nodes=1", "--ntasks=4", "--ntasks-per-node=4"} <= set(options)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`cpu_bind` lists masks for another number of tasks than a job has on a node",
    promise="`--cpu-bind=none`, with a comment in the script: no task runs far from its GPU.",
)
@pytest.mark.parametrize(
    ("kind", "bind", "option"),
    [
        ("slurm", "mask_cpu:f,f0,f00,f000", "mask_cpu:f,f0,f00,f000"),
        ("slurm", "verbose,map_cpu:0,1,2,3", "verbose,map_cpu:0,1,2,3"),
        ("slurm", "cores", "cores"),
        ("slurm", "mask_cpu:f,f0", "none"),
        ("slurm", "map_ldom:0,0,1,1,2,2,3,3", "none"),
        ("per-node", "mask_cpu:f,f0,f00,f000", "none"),
    ],
)
def test_tasks_are_bound_to_cpus_only_if_the_list_fits_their_number(
    kind: str, bind: str, option: str, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(kind)
    plan = replace(plan, program=replace(plan.program, launcher=TORCHRUN if kind == "per-node" else None))
    fields = {"cpu_bind": bind, "srun": []}
    assert f"--cpu-bind={option}" in options_of(plan, kind, **fields)
    script = Stage.at(tmp_path).render(with_arguments(plan), with_fields(cluster, slurm=fields))
    assert ("\n# --cpu-bind=none, because cpu_bind of the profile is for " in script) == (option == "none")


def test_srun_argument_of_the_profile_replaces_the_default_with_the_same_name() -> None:
    srun = ["--kill-on-bad-exit=0", "--mpi=pmi2", "--wait=60", "--export=NONE"]
    options = options_of(cluster_and_plan("slurm")[1], "slurm", mpi="pmix", srun=srun)
    assert options[-4:] == srun
    assert [word.partition("=")[0] for word in options].count("--mpi") == 1
    assert not {"--kill-on-bad-exit=1", "--export=ALL"} & set(options) and "--label" in options


# ---- lock of compiled kernels -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["slurm", "pyxis", "mpirun", "local"])
@pytest.mark.parametrize(("minutes", "waits"), [(9, True), (12, False)])
def test_job_waits_for_a_new_lock_and_removes_an_old_one(kind: str, minutes: int, waits: bool, tmp_path: Path) -> None:
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


def test_job_does_not_wait_without_a_lock(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("slurm")
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "sleep", "#!/bin/sh\nexit 9\n")
    program = replace(with_arguments(plan).program, compiles_in=str(tmp_path / "nothing"))
    stage.run_job(replace(plan, program=program), cluster)


# ---- records of a job -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["slurm", "pyxis", "local"])
def test_record_has_the_commit_of_the_checkout(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    checkout = tmp_path / "check out"
    checkout.mkdir()
    place = (str(checkout), ("programs", "megatron-2021", "checkout"))
    plan = replace(plan, program=replace(with_arguments(plan).program, site_values=(place,)))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # its commit is not that of the checkout
    stage = Stage.at(tmp_path)
    stage.run_job(plan, cluster)
    assert stage.end_record()["commit"] == ""
    (stage.job / "end").unlink()
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    subprocess.run(["git", *author, "-C", str(checkout), "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    stage.run_job(plan, cluster)
    record = read_record(stage.job / "end")
    assert record is not None and record.commit == head.stdout.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_record_has_the_exit_code_of_the_program(kind: str, tmp_path: Path) -> None:
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
def test_job_cancelled_before_its_start_changes_nothing_and_prints_the_reason(kind: str, tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    stage.job.mkdir()
    (stage.job / "cancelled").touch()
    done = stage.run(stage.render(with_arguments(plan), cluster))
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr == "repro: not started: it was cancelled, or given up, before\n"
    assert [path.name for path in stage.job.iterdir()] == ["cancelled"] and not (tmp_path / "argv").exists()


@pytest.mark.parametrize("kind", ["slurm", "mpirun", "local"])
def test_job_cancelled_during_its_start_runs_nothing(kind: str, tmp_path: Path) -> None:
    """It is cancelled after the first check and before its record, so no process could be signalled."""
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    executable(tmp_path / "bin" / "hostname", f'#!/bin/sh\ntouch "{stage.job}/cancelled"\necho here\n')
    assert stage.run(stage.render(with_arguments(plan), cluster)).returncode == 143
    assert not (tmp_path / "argv").exists() and stage.end_record()["exit_code"] == "143"


def test_record_has_the_number_of_the_array_task(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("slurm")
    stage = Stage.at(tmp_path)
    stage.run_job(with_arguments(plan), cluster, {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"})
    assert stage.end_record()["scheduler_id"] == "77_3"


def test_job_with_a_missing_hostfile_starts_nothing(tmp_path: Path) -> None:
    cluster, plan = cluster_and_plan("mpirun")
    stage = Stage.at(tmp_path)
    answer = stage.run(stage.render(with_arguments(plan), with_fields(cluster, mpirun={"hostfile": "-nowhere"})))
    assert answer.returncode != 0 and "-nowhere" in answer.stderr and not (tmp_path / "mpirun").exists()
