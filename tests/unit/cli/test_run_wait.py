"""Tests of `repro wait`: it waits for every job that can start, and the exit code is that of the jobs."""

from __future__ import annotations

import pytest

from orchestrator.ledger.attempts import job_rows
from tests.recorded_jobs import SimulatedSlurm, log_text, press_ctrl_c
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    monkeypatch.setattr("orchestrator.launch.supervise.SLURM_WAIT_S", 0.0)
    return SimulatedSlurm.install(repro.site.folder, monkeypatch)


def test_jobs_of_this_machine_are_waited_for_and_judged(repro: Caller) -> None:
    assert repro("wait").returncode == 2  # nothing was submitted yet
    repro.site.behave("slow", "pp1-gbs4")
    assert repro("submit", *HERE, "--where", "gbs=4").returncode == 0
    done = repro("wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" verified ") == 3
    assert "3/3 cases ended" in done.stderr and "[##########] 3/3 verified" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: repro collect figure-13 ")
    again = repro("wait")
    assert (again.returncode, again.stdout, again.complaints) == (0, "", ["no open jobs"])
    assert repro("wait", "figure-13").returncode == 0


def test_a_job_that_fails_is_exit_1_and_the_others_are_waited_for(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c")
    slurm.on_query = [
        lambda: slurm.start("a-id", log_text(3)),
        lambda: slurm.end("a-id", "TIMEOUT", "failed", failure="timeout", verdict_reason="TIMEOUT"),
        lambda: slurm.start("b-id", log_text(5)),
        lambda: slurm.end("b-id"),
        lambda: slurm.end("c-id"),
    ]
    done = repro("wait")
    assert done.returncode == 1 and slurm.on_query == []
    assert "0/3 cases ended; a iteration 3/8" in done.stderr and "1/3 cases ended; b iteration 5/8" in done.stderr
    assert "2/3 verified, 1 failed (1 timeout)" in done.stderr
    assert done.stderr.splitlines()[-1] == "next: repro logs a-id   # why a failed"
    assert set(slurm.intervals_s) == {15.0}


def test_a_job_that_can_never_start_is_exit_1_with_its_history(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.update("b-id", reason="JobHeldUser")
    slurm.on_query = [lambda: slurm.start("a-id"), lambda: slurm.end("a-id")]
    done = repro("wait")
    assert done.returncode == 1 and "1/2 verified, 1 waiting" in done.stderr
    assert "b-id (b): JobHeldUser: is held by its user or an account's coordinator. Hint: " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: repro history b-id ")


def test_ctrl_c_ends_the_wait_and_not_the_jobs(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.on_query = [lambda: None, press_ctrl_c]
    done = repro("wait")
    assert done.returncode == 130 and slurm.row("a-id").phase == "waiting"
    assert done.stderr.splitlines()[-2:] == [
        "no longer waiting; the jobs continue",
        "next: repro status figure-13 --watch   # or: repro cancel figure-13",
    ]


def test_of_many_running_jobs_a_line_names_a_few(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c", "d", "e")

    def run() -> None:
        for row in job_rows(slurm.ledger):
            slurm.start(row.job_id)

    def end() -> None:
        for row in job_rows(slurm.ledger):
            slurm.end(row.job_id)

    slurm.on_query = [run, end]
    done = repro("wait")
    assert done.returncode == 0
    assert "0/5 cases ended; a iteration 0/8, b iteration 0/8, c iteration 0/8, and 2 more" in done.stderr


def test_a_timeout_is_exit_124_and_cancels_nothing(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.start("b-id", log_text(2))
    slurm.on_query = [lambda: slurm.end("a-id"), *[lambda: None] * 10_000]
    done = repro("wait", "--timeout", "1s")
    assert done.returncode == 124 and slurm.row("b-id").state == "RUNNING"
    assert done.stderr.splitlines()[-2:] == [
        "--timeout 1s: 1 job not ended; no job was cancelled",
        "next: repro wait figure-13   # wait again",
    ]
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["a-id", "b-id"]
