"""Tests of `repro logs`: the whole log, one rank, an earlier attempt, and a log that grows."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.job_spec import Resources
from orchestrator.ledger.attempts import RefreshResult
from orchestrator.reading.logs import RankLines
from tests.recorded_jobs import SimulatedSlurm, log_text
from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    for name, value in (("READ_EVERY_S", 0.0), ("SLURM_REFRESH_S", 0.0)):
        monkeypatch.setattr(f"orchestrator.api.jobs.{name}", value)
    return SimulatedSlurm.install(repro.site.folder, monkeypatch)


def test_a_job_is_shown_by_the_start_of_its_id_or_the_schedulers(
    repro: Caller, finished: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repro = Caller(finished, monkeypatch, capsys)
    job = json.loads(repro("status", "--json").stdout)["jobs"][0]
    whole = repro("logs", job["job"]).stdout
    assert whole.startswith("this is a stand-in") and whole.count("elapsed time per iteration") == 8
    for words in ((job["job"][:6],), (job["id"],), ("-f", job["job"]), (job["job"], "--attempt", "1")):
        assert repro("logs", *words).stdout == whole


def test_following_a_log_ends_with_its_job_and_loses_nothing(repro: Caller) -> None:
    repro.site.behave("slow")
    repro("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", "pp=1,gbs=4")
    job = json.loads(repro("status", "--json").stdout)["jobs"][0]["job"]
    followed = repro("logs", "-f", job)
    assert followed.returncode == 0 and "[after training is done]" in followed.stdout
    assert followed.stdout == repro("logs", job).stdout


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


SRUN = b" 0: start\n 1: start\n11: start\n 1: [rank1]: Traceback\n 1:   File\n11: bad\nslurmstepd: error: x\n 1: end"
TORCHRUN = b"0: [default0]: a\n1: [default0]: b\n1: [default3]: c\n1: torchrun says\n1: [rank5]: d\n0: [rank2]:[W] e\n"


def of_rank(rank: int, log: bytes, ranks_per_task: int = 1, piece: int = 1 << 20) -> list[bytes]:
    lines = RankLines(rank, ranks_per_task)
    found = b"".join(lines.feed(log[at : at + piece]) for at in range(0, len(log), piece)) + lines.end()
    return found.splitlines()


def test_a_rank_of_one_task_each_has_the_lines_that_srun_has_labelled_so() -> None:
    assert of_rank(1, SRUN) == [b" 1: start", b" 1: [rank1]: Traceback", b" 1:   File", b" 1: end"]
    assert of_rank(11, SRUN) == [b"11: start", b"11: bad"]
    assert of_rank(2, SRUN) == []


def test_lines_of_a_task_with_several_ranks_are_selected_by_their_own_label() -> None:
    assert of_rank(0, TORCHRUN, 4) == [b"0: [default0]: a"]
    assert of_rank(4, TORCHRUN, 4) == [b"1: [default0]: b"]
    assert of_rank(7, TORCHRUN, 4) == [b"1: [default3]: c"]
    assert of_rank(5, TORCHRUN, 4) == [b"1: [rank5]: d"]
    assert of_rank(2, TORCHRUN, 4) == [b"0: [rank2]:[W] e"]
    assert of_rank(1, TORCHRUN, 4) == []  # "1:" is a node here


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=0, max_value=11))
def test_a_line_that_comes_in_pieces_is_the_same_line(piece: int, rank: int) -> None:
    assert of_rank(rank, SRUN, piece=piece) == of_rank(rank, SRUN)


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.reading.logs.LONGEST_LINE_BYTES", 1000)
    lines = RankLines(0)
    printed = b"".join(lines.feed(b"0: " + b"x" * 497) for _ in range(10))
    assert len(printed) + len(lines.end()) == 5000 and len(printed) > 3000


def test_the_lines_of_one_rank_are_printed_with_their_labels_and_no_others(
    repro: Caller, slurm: SimulatedSlurm
) -> None:
    slurm.submit("a")
    slurm.start("a-id", SRUN)
    done = repro("logs", "a-id", "--rank", "1")
    assert (done.returncode, done.stdout.encode()) == (0, b"".join(SRUN.splitlines(True)[i] for i in (1, 3, 4, 7)))
    silent = repro("logs", "a-id", "--rank", "2")
    assert (silent.returncode, silent.stdout) == (0, "")
    assert silent.stderr.startswith("rank 2 of a-id (a) has no labelled lines")
    outside = repro("logs", "a-id", "--rank", "4")
    assert (outside.returncode, outside.complaints) == (2, ["repro: --rank 4: the job has 4 ranks. Hint: 0 to 3"])
    assert repro("logs", "a-id", "--rank", "-1").returncode == 2


def test_a_task_for_each_node_is_known_by_the_script_it_has(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", b"1: torchrun says\n0: [default1]: a\n0: [rank1]: b\n")
    with slurm.ledger.writing() as session:
        given = json.dumps(slurm.row("a-id").spec.to_json() | {"resources": asdict(Resources(1, 4, 4, "1:00"))})
        session.connection().exec_driver_sql("update jobs set configuration = ?", (given,))
    (slurm.run_folder("a-id") / "job.sh").write_text("#!/bin/bash\n#SBATCH --ntasks-per-node=1\n")
    assert repro("logs", "a-id", "--rank", "1").stdout == "0: [default1]: a\n0: [rank1]: b\n"


def test_a_log_without_rank_labels_is_an_error_of_rank(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.start("a-id", b"one\ntwo\n")
    for job in ("a-id", "b-id"):
        done = repro("logs", job, "--rank", "1")
        assert (done.returncode, done.stdout) == (2, "")
    assert repro("logs", "a-id", "--rank", "1").complaints == [
        "repro: a-id (a): no line of its log has the label of a rank. Hint: repro logs a-id prints all lines"
    ]


def test_an_earlier_attempt_is_shown_by_its_number(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", b"the first time\n")
    slurm.end("a-id", "FAILED", "failed")
    slurm.submit("a", token="18")
    slurm.start("a-id", b"the second time\n")
    assert repro("logs", "a-id").stdout == "the second time\n"
    assert repro("logs", "a-id", "--attempt", "2").stdout == "the second time\n"
    for words in (("--attempt", "1"), ("--attempt", "1", "-f")):  # it has ended, whatever the other does
        assert repro("logs", "a-id", *words).stdout == "the first time\n"
    done = repro("logs", "a-id", "--attempt", "3")
    assert (done.returncode, done.complaints) == (2, ["repro: --attempt 3: a-id has no such attempt. Hint: 1 to 2"])


def test_follow_waits_for_a_log_that_does_not_exist_yet(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    nothing = [lambda: None, lambda: None]
    slurm.on_query = [*nothing, lambda: slurm.start("a-id", b"begins\n"), *nothing, lambda: slurm.end("a-id")]
    done = repro("logs", "a-id", "-f")
    assert (done.returncode, done.stdout, slurm.on_query) == (0, "begins\n", [])
    assert set(slurm.intervals_s) == {15.0}
    slurm.submit("b", token="18")
    done = repro("logs", "b-id")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[0] == "b-id (b) has no output yet; its state is PENDING"


def test_lines_written_just_before_the_end_are_printed(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", b"begins\n")

    def ends() -> None:
        slurm.write_log("a-id", b"ends without an end of line")
        slurm.end("a-id")

    slurm.on_query = [lambda: None, ends]
    slurm.answer = RefreshResult(("squeue: no answer",), None)  # which is said once, and no reason to stop
    done = repro("logs", "a-id", "-f")
    assert done.stdout == "begins\nends without an end of line"
    assert done.stderr.count("note: squeue: no answer") == 1


def test_a_log_that_begins_anew_is_followed_from_its_start(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", log_text(3))
    log = slurm.run_folder("a-id") / "log.txt"

    def requeued() -> None:
        log.write_bytes(b"anew\n")

    def replaced() -> None:
        log.with_name("other").write_bytes(b"another\n")
        slurm.write_log("a-id", b"the last of the old\n")
        log.with_name("other").rename(log)

    slurm.on_query = [lambda: None, requeued, lambda: None, replaced, lambda: slurm.end("a-id")]
    done = repro("logs", "a-id", "-f")
    assert done.returncode == 0
    assert done.stdout == log_text(3) + "anew\nthe last of the old\nanother\n"
    assert done.stderr.splitlines()[:2] == [
        "the log was cut off and is printed from its new start",
        "the log was replaced by another file",
    ]


def test_follow_continues_with_a_new_attempt_and_names_it(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", b"the first time\n")

    def again() -> None:
        slurm.write_log("a-id", b"fails\n")
        slurm.end("a-id", "FAILED", "failed")
        slurm.submit("a", token="18")
        slurm.start("a-id", b"the second time\n")

    slurm.on_query = [lambda: None, again, lambda: None, lambda: slurm.end("a-id")]
    done = repro("logs", "a-id", "-f")
    assert (done.returncode, done.stdout) == (0, "the first time\nfails\nthe second time\n")
    assert done.stderr.splitlines()[0] == "attempt 2 of a-id: 18_0"


def test_a_link_in_a_logs_place_is_not_followed(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id")
    log = slurm.run_folder("a-id") / "log.txt"
    log.unlink()
    log.symlink_to("/etc/hostname")
    done = repro("logs", "a-id")
    assert (done.returncode, done.stdout) == (2, "") and "a link and not a file" in done.stderr


def test_output_of_the_script_itself_follows_the_log(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", b"the program\n")
    (slurm.run_folder("a-id") / "batch.txt").write_bytes(b"srun: error\n")
    assert repro("logs", "a-id").stdout == "the program\nsrun: error\n"


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
