"""Launcher that forks the ranks of a node: failing ranks and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe, get_context
from pathlib import Path
from typing import Any

import pytest

from orchestrator.pretrain import launch
from orchestrator.reading.causes import cause
from tests.training.launching import REPOSITORY, SMALL_MODEL, TIMEOUT_S, clean_environment, run_forked

LAUNCH = ["-u", "-m", "orchestrator.pretrain.launch", "--nproc-per-node=2"]


def test_report_names_the_first_failed_rank_and_the_log_has_its_error() -> None:
    """Only the last rank writes a record, and cannot. The other then loses its connection."""
    command = [*LAUNCH[1:], *SMALL_MODEL, "--record", "/dev/null/record"]
    (finished,) = run_forked([command], [{}])
    assert finished.exit_code == 1
    assert "[rank1]: FileExistsError" in finished.stderr
    _, _, root = finished.stderr.partition("Root Cause (first observed failure):")
    assert "rank      : 1 (local_rank: 1)" in root and "exitcode  : 1" in root
    failure = cause(finished.stderr.encode())
    assert failure is not None and (failure.kind, failure.rank) == ("error", 1)


@dataclass(frozen=True)
class Running:
    """A launcher whose ranks train, and the process ids of the ranks, rank 0 first."""

    launcher: subprocess.Popen[str]
    ranks: list[int]

    def wait(self) -> str:
        """Wait for the end of the launcher, and return stderr."""
        return self.launcher.communicate(timeout=TIMEOUT_S)[1]

    def are_gone(self) -> bool:
        until = time.monotonic() + TIMEOUT_S
        while any(Path(f"/proc/{rank}").exists() for rank in self.ranks):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    record = folder / "record"
    command = [sys.executable, *LAUNCH, *SMALL_MODEL, "--train-iters", "1000000", "--record", str(record)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=clean_environment(), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            until = time.monotonic() + TIMEOUT_S
            while not record.exists() or not record.read_text():
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.05)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield Running(process, sorted(map(int, children)))
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGKILL, "a rank was killed"), (signal.SIGSEGV, "a rank crashed")]
)
def test_a_rank_ended_by_a_signal_is_the_root_cause_and_no_rank_remains(
    number: signal.Signals, kind: str, tmp_path: Path
) -> None:
    with running(tmp_path) as run:
        os.kill(run.ranks[1], number)
        stderr = run.wait()
        assert run.launcher.returncode == 1 and run.are_gone()
    failure = cause(stderr.encode())
    assert failure is not None and (failure.kind, failure.rank) == (kind, 1)
    assert f"Signal {int(number)} ({number.name}) received by PID {run.ranks[1]}" in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_ends_all_ranks_without_a_report(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.launcher.send_signal(number)
        assert run.wait() == ""
        assert run.launcher.returncode == 128 + number and run.are_gone()


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.launcher.kill()
        run.wait()
        assert run.are_gone()


def _end_with_code_3() -> None:
    sys.exit(3)


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_ever() -> None:
    time.sleep(TIMEOUT_S)


def _kill_itself_after(pid: int) -> None:
    """End by a signal once the launcher has seen the end of another process."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    _kill_itself()


def _failed_ranks(processes: Sequence[Any], reported: Sequence[int] = ()) -> list[int]:
    reports, reporter = Pipe(duplex=False)
    for rank in reported:
        reporter.send(rank)
    try:
        return list(launch._failures_of(processes, reports))
    finally:
        launch._end(processes)


def test_among_simultaneous_failures_a_signal_is_the_root_cause() -> None:
    processes = _started(_end_with_code_3, _kill_itself, _wait_for_ever)
    for failed in processes[:2]:
        failed.join()
    assert _failed_ranks(processes) == [1, 0]
    assert [process.exitcode for process in processes] == [3, -signal.SIGKILL, -signal.SIGTERM]


def test_a_killed_rank_is_the_root_cause_if_another_ends_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", TIMEOUT_S)
    (lost,) = _started(_end_with_code_3)
    assert _failed_ranks([lost, *_started(partial(_kill_itself_after, lost.pid))]) == [1, 0]


def test_the_first_reported_exception_is_the_root_cause_if_another_rank_ends_earlier() -> None:
    lost, first = _started(_end_with_code_3, _end_with_code_3)
    lost.join()
    assert _failed_ranks([lost, first], reported=[1]) == [1, 0]


def _started(*functions: Callable[[], None]) -> list[Any]:
    processes = [get_context("fork").Process(target=function) for function in functions]
    for process in processes:
        process.start()
    return processes
