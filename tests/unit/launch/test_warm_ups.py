"""Jobs beside an experiment's own: kernels that are compiled once, before all that would compile them at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.render import render_job
from orchestrator.launch.submit import side_plan, submit, task_per_gpu, warm_ups
from orchestrator.ledger.attempts import job_rows
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, plan_cases
from tests.recorded_jobs import new_ledger
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import CHECKOUT, cluster_of

PROFILE = """\
about: a cluster of the tests
scheduler: slurm
hardware: {{nodes: 64, gpus_per_node: 8, gpu: A100, gpu_memory_gb: 80, peak_tflops: {{bf16: 312, fp16: 312}}}}
slurm: {{time_limit: 1:00:00, partition: gpus}}
programs:
  pretrain: {{python: /opt/python}}
  megatron-2021: {{checkout: {checkout}, data_path: /data/d, vocab_file: /data/v, merge_file: /data/m}}
"""

KERNELS = "megatron/fused_kernels/build"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """The checkout is the folder itself."""
    return cluster_of(tmp_path, PROFILE.format(checkout=tmp_path))


def plans(cluster: Cluster, scale: str = "paper") -> list[Plan]:
    entry = shipped("figure-13")
    return plan_cases(entry, expand(entry, scale), cluster, Folders(shipped=CHECKOUT, home=CHECKOUT))


# ---- when ----------------------------------------------------------------------------------------------------


def test_several_jobs_of_one_checkout_have_one_warm_up_for_all_of_them(cluster: Cluster) -> None:
    jobs = plans(cluster)
    ((plan, waiting),) = warm_ups(jobs, cluster)
    assert waiting == {job.identity for job in jobs} and len(waiting) == 10
    assert (plan.resources.nodes, plan.resources.tasks, plan.resources.gpus_per_node) == (1, 1, 1)


def test_a_job_alone_compiles_its_kernels_itself(cluster: Cluster) -> None:
    assert warm_ups(plans(cluster)[:1], cluster) == []


def test_a_program_that_compiles_nothing_needs_none(cluster: Cluster) -> None:
    assert warm_ups(plans(cluster, "cpu"), cluster) == []


def test_kernels_that_are_there_already_are_not_compiled_again(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / KERNELS).mkdir(parents=True)
    (tmp_path / KERNELS / "lock").touch()
    assert len(warm_ups(plans(cluster), cluster)) == 1, "a folder without kernels is none that was compiled"
    (tmp_path / KERNELS / "scaled_masked_softmax_cuda.so").touch()
    assert warm_ups(plans(cluster), cluster) == []


def test_two_checkouts_have_a_warm_up_each(cluster: Cluster, tmp_path: Path) -> None:
    here = plans(cluster)[:2]
    there = plans(cluster_of(tmp_path, PROFILE.format(checkout="/code/other"), name="other"))[:3]
    found = warm_ups([*here, *there], cluster)
    assert [len(waiting) for _, waiting in found] == [2, 3]
    assert [plan.program.compiles_in for plan, _ in found] == [str(tmp_path), "/code/other"]


# ---- what it runs --------------------------------------------------------------------------------------------

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_PROCID=0 SLURM_LOCALID=0 exec "$@"
"""

# What Megatron-LM of 2021 has in these places, as far as the warm-up touches it.
CHECKOUT_OF_2021 = {
    "megatron/__init__.py": "",
    "megatron/data/__init__.py": "",
    "megatron/data/dataset_utils.py": "def compile_helper(): print('helpers')\n",
    "megatron/fused_kernels/__init__.py": "def load(args): print(args.rank, args.masked_softmax_fusion)\n",
}


@pytest.mark.parametrize("tasks", ["per-gpu", "per-node"])
def test_its_script_compiles_in_the_checkout_with_the_programs_own_python_and_nothing_else(
    tmp_path: Path, tasks: str
) -> None:
    for name, text in CHECKOUT_OF_2021.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    programs = {"srun": SRUN, "scontrol": "#!/bin/sh\necho n1\n", "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    cluster = cluster_of(tmp_path, PROFILE.format(checkout=tmp_path), f"slurm: {{tasks: {tasks}}}\n")
    ((plan, _),) = warm_ups(plans(cluster), cluster)
    script = tmp_path / "job.sh"
    script.write_text(render_job(plan, task_per_gpu(cluster), tmp_path / "job", CHECKOUT / "templates"))
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "helpers\n0 True\n", "")


def test_a_side_job_asks_for_the_tasks_and_the_gpus_that_it_is_given(cluster: Cluster) -> None:
    program = plans(cluster)[0].program
    plan = side_plan(cluster, program, "look", 1, "0:01:00", gpus=8)
    assert (plan.resources.tasks, plan.resources.gpus_per_node, plan.resources.time_limit) == (1, 8, "0:01:00")


# ---- the jobs behind it --------------------------------------------------------------------------------------


def test_the_jobs_wait_for_it_and_never_for_ever(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, tuple[str, ...]]] = []

    def take(_: object, text: str, comment: str, options: Sequence[str] = (), _arguments: Sequence[str] = ()) -> str:
        assert text.startswith("#!/bin/bash")
        sent.append((comment.partition(":")[0], tuple(options)))
        return str(100 + len(sent))

    monkeypatch.setattr(SlurmScriptExecutor, "submit_script", take)
    monkeypatch.setattr("orchestrator.launch.submit.most_in_array", lambda: 1001)
    monkeypatch.setattr("orchestrator.launch.sbatch.cluster_identity", lambda: "test@host:6817")
    ledger = new_ledger(tmp_path)
    done = submit(plans(cluster), cluster, ledger, Folders(shipped=CHECKOUT, home=tmp_path), [])
    (warm_up, options), *jobs = sent
    assert warm_up == "repro-warm-up" and done.warm_ups == ("101",)
    assert options[0].startswith("--job-name=repro-warm-up-") and options[1:] == ("--dependency=singleton",)
    assert jobs == [("repro", ("--array=0-9%4", "--dependency=afterok:101", "--kill-on-invalid-dep=yes"))]
    rows = job_rows(ledger)
    assert len(rows) == 10 and "101" not in {str(row.scheduler_id).partition("_")[0] for row in rows}
