"""Steps of a setup beside the command of a job: the job's script runs on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.launch.render import render_job
from orchestrator.launch.submit import copy_programs
from orchestrator.paths import Folders
from tests.slurm.host import is_alive
from tests.unit.render.described import described_plans
from tests.unit.render.plans import TEMPLATES, local

BEFORE = "before the command; setup-1.txt has its output"
CLIENT = "cat answer.txt; sleep 0.5; exit 3"


def run(folder: Path, server: str, probe: str, client: str = CLIENT, processes: int = 1) -> tuple[int, str, Path]:
    """Run a job whose setup has this server. Return its exit code, its log and its folder."""
    command = json.dumps(["bash", "-c", client, "{n}"])
    run_server = json.dumps(["bash", "-c", server])
    text = f"""\
program:
  name: client
  command: {command}
  processes: {processes}
  setup: [{{run: {run_server}, {probe}, timeout_s: {1 if "false" in probe else 60}}}]
  output: {{values: {{answer: 'answer {{number}}'}}}}
  metrics: {{answer: {{better: higher}}}}
"""
    cluster = local(folder)
    (plan,) = described_plans(folder, cluster, text, {"n": 1})
    copy_programs([plan.program], Folders(folder, folder))
    job = folder / "job"
    script = render_job(plan, cluster, job, TEMPLATES)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == "", done.stderr
    return done.returncode, (job / "log.txt").read_text(), job


def is_running(job: Path) -> bool:
    return is_alive(int((job / "pid").read_text()))


@pytest.mark.parametrize("probe", ["ready: [test, -e, answer.txt]", "log: 'up [0-9]+'"])
def test_command_starts_when_the_step_is_ready_and_the_step_ends_with_it(probe: str, tmp_path: Path) -> None:
    server = "echo $$ >pid; sleep 0.3; echo answer 42 >answer.txt; echo up 1; exec sleep 1000"
    code, log, job = run(tmp_path, server, probe)
    assert (code, log) == (3, "answer 42\n") and not is_running(job)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_all_processes_wait_for_the_step_and_have_their_ranks(tmp_path: Path) -> None:
    server = "sleep 0.3; echo answer 42 >answer.txt; exec sleep 1000"
    client = 'echo "$(cat answer.txt) $WORLD_SIZE" >"rank.$RANK"'
    code, _, job = run(tmp_path, server, "ready: [test, -e, answer.txt]", client, processes=2)
    assert code == 0 and [(job / f"rank.{rank}").read_text() for rank in range(2)] == ["answer 42 2\n"] * 2


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A server beside the command of a job ends early, or is not ready in time",
    promise="The job fails with a line that names the server; nothing of the server stays.",
)
@pytest.mark.parametrize(
    ("server", "probe", "line"),
    [
        ("sleep 1000", "ready: ['false']", "bash is not ready after 1 s"),
        (
            "echo no >&2; exit 7",
            "log: up",
            f"bash ended with exit code 7 {BEFORE}",
        ),
        ("echo up; exit 0", "log: up", f"bash ended with exit code 0 {BEFORE}"),
    ],
)
def test_step_that_fails_fails_the_job(server: str, probe: str, line: str, tmp_path: Path) -> None:
    code, log, job = run(tmp_path, f"echo $$ >pid; {server}", probe, "sleep 1000")
    assert (code, log) == (1, f"repro: setup: {line}\n") and not is_running(job)
    assert "exit_code=1\n" in (job / "end").read_text()


def test_step_that_does_not_end_is_killed(tmp_path: Path) -> None:
    server = "trap : TERM; echo $$ >pid; echo answer 1 >answer.txt; echo up; while :; do sleep 1; done"
    code, _, job = run(tmp_path, server, "log: up")
    assert code == 3 and not is_running(job)
