"""Real torchrun in a real queue: whoever is killed, no rank is left, the next job runs, and it is said what it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.job_record import read_record
from orchestrator.launch.local_state import local_state
from orchestrator.launch.render import Script, render_queue
from orchestrator.megatron.log_causes import cause
from orchestrator.reading.failure import failure_of
from orchestrator.reading.log_files import log_bytes
from orchestrator.reading.outcome import Ending
from tests.training.launching import TIMEOUT_S, clean_environment
from tests.unit.render.plans import TEMPLATES

RANK = """import os, pathlib, sys, time
pathlib.Path(sys.argv[1], f"rank.{os.environ['RANK']}").write_text(f"{os.getpid()} {os.getppid()}")
time.sleep(300)
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


def job(folder: Path, command: str) -> Script:
    folder.mkdir()
    (folder / "job.sh").write_text(JOB.replace("COMMAND", command))
    return Script(folder / "job.sh", folder)


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


@pytest.mark.parametrize(("who", "failure"), [("rank", "killed"), ("launcher", "killed"), ("script", "node-fail")])
def test_whoever_is_killed_no_rank_is_left_and_the_next_job_runs(tmp_path: Path, who: str, failure: str) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 {tmp_path}/rank.py"
    first = job(tmp_path / "a", f'timeout --foreground 300 {torchrun} "$folder"')
    queue = tmp_path / "queue.sh"
    queue.write_text(render_queue([first, job(tmp_path / "b", "echo well")], tmp_path / "lock", TEMPLATES))
    with subprocess.Popen(["bash", str(queue)], start_new_session=True, env=clean_environment()) as process:
        until = time.monotonic() + TIMEOUT_S
        while sum(len(file.read_text().split()) for file in first.folder.glob("rank.?")) < 4:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        (one, launcher), (other, _) = (
            [int(n) for n in file.read_text().split()] for file in first.folder.glob("rank.?")
        )
        start = read_record(first.folder / "start")
        assert start is not None
        os.kill({"rank": one, "launcher": launcher, "script": start.pid}[who], signal.SIGKILL)
        assert process.wait(timeout=TIMEOUT_S) == 0
    assert not is_alive(one) and not is_alive(other)
    assert local_state(tmp_path / "b", None).state == "COMPLETED"
    state, found = local_state(first.folder, None), cause(log_bytes(first.folder))
    ending = Ending("ended", state.state, state.exit_code, state.reason)
    assert str(failure_of(ending, found.kind if found else None)) == failure
