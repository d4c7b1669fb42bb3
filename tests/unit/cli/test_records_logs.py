"""Tests of `repro logs`: the whole log, one rank, an earlier attempt, and a log that grows."""

from __future__ import annotations

import io
import sys

import pytest

from tests.recorded_jobs import SimulatedSlurm
from tests.unit.cli.calling import Caller


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    for name, value in (("READ_EVERY_S", 0.0), ("SLURM_REFRESH_S", 0.0)):
        monkeypatch.setattr(f"orchestrator.api.jobs.{name}", value)
    return SimulatedSlurm.install(repro.site.folder, monkeypatch)


class Stdout(io.TextIOWrapper):
    """What a command prints, in bytes, on a terminal or not."""

    def __init__(self, is_terminal: bool) -> None:
        self.written = io.BytesIO()
        self.is_terminal = is_terminal
        super().__init__(self.written)

    def isatty(self) -> bool:
        return self.is_terminal


def test_a_pipe_gets_the_bytes_as_they_are_and_a_terminal_nothing_that_steers_it(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = b"before \x1b[2J\x1b]0;title\x07 after \xff\x00 \xc3\xa4\r\n"
    slurm.submit("a")
    slurm.start("a-id", evil)
    printed = {}
    for is_terminal in (False, True):
        with monkeypatch.context() as patch:
            stdout = Stdout(is_terminal)
            patch.setattr(sys, "stdout", stdout)
            assert repro("logs", "a-id").returncode == 0
            printed[is_terminal] = stdout.written.getvalue()
    assert printed[False] == evil
    assert b"\x1b" not in printed[True] and b"\x07" not in printed[True]
    assert b"before" in printed[True] and "ä".encode() in printed[True]


def test_the_log_of_a_finished_job_and_the_lines_of_one_rank_are_printed(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", b" 0: start\n 1: start\n")
    slurm.end("a-id")
    for words, printed in (((), " 0: start\n 1: start\n"), (("--rank", "1"), " 1: start\n"), (("-f",), None)):
        done = repro("logs", "a-id", *words)
        assert (done.returncode, done.stdout) == (0, printed or " 0: start\n 1: start\n"), words
    for words, problem in (
        (("--rank", "4"), "--rank 4: the job has 4 ranks. Hint: 0 to 3"),
        (("--attempt", "3"), "--attempt 3: a-id has no such attempt. Hint: there is only the first"),
    ):
        done = repro("logs", "a-id", *words)
        assert (done.returncode, done.stdout, done.complaints) == (2, "", [f"repro: {problem}"])


def test_following_a_pending_job_says_so_and_ctrl_c_prints_that_the_job_continues(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    slurm.submit("a")
    monkeypatch.setattr("orchestrator.api.jobs.time.sleep", interrupt)
    done = repro("logs", "-f", "a-id")
    assert done.returncode == 130 and slurm.row("a-id").phase == "waiting"
    assert done.stderr.splitlines() == [
        "a-id (a) is PENDING; its log follows when it runs. Ctrl-C ends",
        "no longer following; the job continues",
    ]


def test_the_next_command_of_a_job_that_never_started_is_its_history(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    assert repro("status", "figure-13").stderr.splitlines()[-1].startswith("next: repro status figure-13 --watch ")
    slurm.end("a-id", "CANCELLED", "failed", failure="cancelled", verdict_reason="CANCELLED")
    done = repro("status", "figure-13")
    assert done.stderr.splitlines()[-1] == "next: repro history a-id   # why a failed"
    assert "CANCELLED" in repro("history", "a-id").stdout
