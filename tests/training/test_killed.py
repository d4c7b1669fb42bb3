"""Real launchers in a real queue: after a kill no rank remains, the next job runs, and the failure has its class."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.files import read_record
from orchestrator.launch.executors import local_state
from orchestrator.launch.render import JobScript, render_queue
from orchestrator.reading.causes import cause
from orchestrator.reading.failure import Ending, failure_of
from orchestrator.reading.logs import log_blocks
from tests.training.launching import SMALL_MODEL, TIMEOUT_S, clean_environment
from tests.unit.render.plans import TEMPLATES

RANK = """import os, pathlib, sys, time
pathlib.Path(sys.argv[1], "began").touch()
time.sleep(600)
"""
JOB = """#!/bin/bash
folder=$1
record() {
  local code=$?
  printf '%s\\n' "event=$1" "exit_code=$code" at=2026-01-01T00:00:00Z host=h scheduler_id=s "pid=$$" >"$folder/.r"
  mv "$folder/.r" "$folder/$1"
}
record start
trap 'record end' EXIT
COMMAND >"$folder/log.txt" 2>&1
"""


def job(folder: Path, command: str) -> JobScript:
    (folder / "job.sh").write_text(JOB.replace("COMMAND", command))
    return JobScript(folder / "job.sh", folder)


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def with_torchrun(folder: Path) -> str:
    (folder / "rank.py").write_text(RANK)
    return f"-m torch.distributed.run --standalone --nproc-per-node 2 {folder}/rank.py {folder}"


def forked(folder: Path) -> str:
    arguments = [*SMALL_MODEL, "--train-iters", "1000000", "--record", f"{folder}/began"]
    return f"-u -m orchestrator.pretrain.launch --nproc-per-node 2 {' '.join(arguments)}"


def launcher_and_ranks(folder: Path) -> tuple[int, list[int]]:
    """Return the process ids once both ranks run."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            argv = (process / "cmdline").read_text().split("\0")
            if argv[0] == sys.executable and any(str(folder) in word for word in argv):
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
    launchers = [process for process, parent in parents.items() if parent not in parents]
    ranks = [process for process, parent in parents.items() if parent in parents]
    return (launchers or [0])[0], ranks if (folder / "began").exists() else []


@pytest.mark.parametrize("command", [with_torchrun, forked])
@pytest.mark.parametrize(("who", "failure"), [("rank", "killed"), ("launcher", "killed"), ("script", "node-fail")])
def test_after_a_killed_process_no_rank_remains_and_the_next_job_runs(
    tmp_path: Path, command: Callable[[Path], str], who: str, failure: str
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    first = job(folder, f"timeout --foreground {TIMEOUT_S} {sys.executable} {command(folder)}")
    queue = tmp_path / "queue.sh"
    (tmp_path / "b").mkdir()
    queue.write_text(render_queue([first, job(tmp_path / "b", "echo well")], tmp_path / "lock", TEMPLATES))
    with subprocess.Popen(["bash", str(queue)], start_new_session=True, env=clean_environment()) as process:
        until = time.monotonic() + TIMEOUT_S
        while len((found := launcher_and_ranks(folder))[1]) < 2:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        launcher, (one, other) = found
        start = read_record(folder / "start")
        assert start is not None
        os.kill({"rank": one, "launcher": launcher, "script": start.pid}[who], signal.SIGKILL)
        assert process.wait(timeout=TIMEOUT_S) == 0
    assert not is_alive(one) and not is_alive(other)
    assert local_state(tmp_path / "b", None).state == "COMPLETED"
    state, line = local_state(folder, None), cause(b"".join(log_blocks(folder)))
    ending = Ending("ended", state.state, state.exit_code, state.reason)
    assert str(failure_of(ending, line.kind if line else None)) == failure
