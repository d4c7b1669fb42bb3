"""What became of a local job, told from its folder and the processes alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.files import read_record
from orchestrator.launch.executors import find_process, is_alive, local_state
from tests.waiting import wait_until

BEGAN, ENDED = datetime(2026, 1, 1, 12), datetime(2026, 1, 1, 13)
NO_PROCESS = 2**22 + 1
"""Above the largest process id Linux gives out."""


def write(folder: Path, name: str, pid: int = NO_PROCESS, exit_code: int = 0, at: datetime = BEGAN) -> None:
    lines = [f"event={name}", f"exit_code={exit_code}", f"at={at:%Y-%m-%dT%H:%M:%SZ}", "host=here"]
    (folder / name).write_text("\n".join([*lines, "scheduler_id=7_0", f"pid={pid}"]) + "\n")


@contextmanager
def process(name: Path) -> Iterator[int]:
    """A process that has `name` in its command line."""
    name.parent.mkdir(parents=True, exist_ok=True)
    name.write_text("sleep 60 & wait")
    with subprocess.Popen(["bash", str(name)], start_new_session=True) as running:
        wait_until(lambda: is_alive(running.pid, str(name)))
        try:
            yield running.pid
        finally:
            os.killpg(running.pid, signal.SIGKILL)


def test_a_job_waits_while_its_queue_runs(tmp_path: Path) -> None:
    with process(tmp_path / "0123.queue.sh") as queue:
        state = local_state(tmp_path / "job", queue)
    assert (state.state, state.reason) == ("PENDING", "waits for the jobs before it")


def test_a_job_runs_while_its_process_does(tmp_path: Path) -> None:
    with process(tmp_path / "job.sh") as pid:
        write(tmp_path, "start", pid)
        state = local_state(tmp_path, None)
        assert (state.state, state.started_at) == ("RUNNING", BEGAN)


@pytest.mark.parametrize(
    ("exit_code", "cancelled", "expected"),
    [
        (0, False, "COMPLETED"),
        (0, True, "COMPLETED"),
        (1, False, "FAILED"),
        (137, False, "FAILED"),
        (124, False, "TIMEOUT"),
        (143, True, "CANCELLED"),
        (124, True, "CANCELLED"),
    ],
)
def test_an_end_record_decides(tmp_path: Path, exit_code: int, cancelled: bool, expected: str) -> None:
    write(tmp_path, "start")
    write(tmp_path, "end", exit_code=exit_code, at=ENDED)
    if cancelled:
        (tmp_path / "cancelled").touch()
    state = local_state(tmp_path, None)
    assert (state.state, state.exit_code, state.started_at, state.ended_at) == (expected, exit_code, BEGAN, ENDED)


@pytest.mark.fault(
    section="Local queue",
    fault="A reboot, simulated by its files: a start record, no end record, no process",
    promise="The job is `node-fail` and no longer running.",
)
def test_a_job_that_was_killed_without_an_end_record_is_lost_and_not_running(tmp_path: Path) -> None:
    write(tmp_path, "start")
    state = local_state(tmp_path, None)
    assert state.state == "NODE_FAIL" and "left no end record" in str(state.reason)
    (tmp_path / "cancelled").touch()
    assert local_state(tmp_path, None).state == "CANCELLED"


@pytest.mark.fault(
    section="Local queue",
    fault="A reboot, and another process has the process id",
    promise="The process is not taken for the job or its queue.",
)
def test_a_reused_process_id_is_not_taken_for_the_job_or_its_queue(tmp_path: Path) -> None:
    with process(tmp_path / "another" / "program.sh") as stranger:
        write(tmp_path, "start", stranger)
        (tmp_path / "waiting").mkdir()
        assert local_state(tmp_path / "waiting", stranger).state == "NODE_FAIL"
        assert not is_alive(stranger, "job.sh")
        write(tmp_path, "start", stranger)
        assert local_state(tmp_path / "waiting", None).state == "NODE_FAIL"


@pytest.mark.fault(
    section="Local queue",
    fault="A reboot before the job started",
    promise="The job is `node-fail` and no longer running.",
)
def test_a_job_whose_queue_was_killed_before_it_started_is_lost(tmp_path: Path) -> None:
    state = local_state(tmp_path, NO_PROCESS)
    assert state.state == "NODE_FAIL" and "never started it" in str(state.reason)


def test_a_job_cancelled_while_it_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    (tmp_path / "cancelled").touch()
    with process(tmp_path / "0123.queue.sh") as queue:
        assert local_state(tmp_path, queue).state == "CANCELLED"


def test_a_job_that_starts_and_ends_while_it_is_looked_at_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everything_happens_now(_pid: int, _marker: str) -> bool:
        write(tmp_path, "start")
        write(tmp_path, "end")
        return False

    monkeypatch.setattr("orchestrator.launch.executors.is_alive", everything_happens_now)
    assert local_state(tmp_path, 1).state == "COMPLETED"


@pytest.mark.fault(
    section="Local queue",
    fault="A dead process that its parent has not waited for",
    promise="It is not alive.",
)
def test_a_zombie_is_not_alive(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("exit 0")
    zombie = subprocess.Popen(["bash", str(script)], stdout=subprocess.PIPE)
    assert zombie.stdout is not None
    zombie.stdout.read()  # at its end the process is over, and not yet waited for
    while "Z" not in Path(f"/proc/{zombie.pid}/stat").read_text():
        pass
    assert not is_alive(zombie.pid, "")
    zombie.wait()
    zombie.stdout.close()
    assert not is_alive(zombie.pid, "")


def test_a_process_is_found_by_its_command_line(tmp_path: Path) -> None:
    marker = tmp_path / "f00d.queue.sh"
    assert find_process(str(marker)) is None
    with process(marker) as pid:
        assert find_process(str(marker)) == str(pid)


@pytest.mark.fault(
    section="Job states",
    fault="A job's record is unreadable",
    promise="It is ignored.",
)
@pytest.mark.parametrize("text", ["", "exit_code=0\n", "exit_code=zero\nat=now\nhost=h\nscheduler_id=1\npid=1\n", "\0"])
def test_a_record_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    assert read_record(tmp_path / "end") is None
    (tmp_path / "end").write_text(text)
    assert read_record(tmp_path / "end") is None
