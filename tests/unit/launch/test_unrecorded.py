"""Tests of attempts that a lost ledger does not have: jobs that wait or run, and verified results, are found."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import Unreachable
from orchestrator.launch import refresh as recover
from orchestrator.launch.refresh import unrecorded_attempts
from orchestrator.launch.run_record import write_sent
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.runs import NewJob, queued_attempts
from orchestrator.ledger.tables import ENDED, VERIFIED, SchedulerKind
from orchestrator.slurm.command import QueryAnswer
from orchestrator.slurm.notation import JobRecord
from tests.recorded_jobs import log_text, new_attempts, new_job, new_ledger, new_run, record_run, unless_verified
from tests.waiting import wait_until

TOKEN = "feed"
NOBODY = 2**22 + 1
"""A process id that no process has."""
JOBS = [new_job(name) for name in "abcdef"]
WORLD = "using world size: 4, data-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
VERIFIED_LOG = f"{WORLD}{log_text(8)}[after training is done] datetime: 2026-01-01 00:00:00 \n"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The new ledger of a home whose ledger was lost."""
    return new_ledger(tmp_path)


def lost_run(
    home: Path, *names: str, scheduler: SchedulerKind = "slurm", array: bool = True, token: str = TOKEN
) -> dict[str, Path]:
    """Write the folder of a run that was submitted with this token. Return the folders of its jobs."""
    run, jobs = replace(new_run(), id=f"lost-{token}"), [new_job(name, scheduler) for name in names]
    folder = home / "runs" / run.id
    folder.mkdir(parents=True)
    (home / token).mkdir()
    lost = new_ledger(home / token)
    record_run(lost, run, jobs, unless_verified, new_attempts(str(folder), array=array))
    attempts = [replace(attempt, file=queue_file(home)) for attempt in queued_attempts(lost)]
    write_sent(folder, attempts, token)
    for job in jobs:
        (folder / job.id).mkdir()
    return {name: folder / f"{name}-id" for name in names}


def queue_file(home: Path) -> str:
    """Return a name that no process of another test run has in its command line."""
    return f"{str(home).replace('/', '-')}.queue.sh"


def unrecorded(ledger: Ledger, jobs: Sequence[NewJob]) -> list[tuple[str, str, str | None, str | None]]:
    """Return job, folder, scheduler id and verdict of the attempts that the ledger does not have."""
    found = unrecorded_attempts(ledger, jobs)
    assert all((attempt.phase == ENDED) == (attempt.verdict is not None) for attempt in found)
    return [(attempt.job_id, attempt.folder, attempt.scheduler_id, attempt.verdict) for attempt in found]


def write_record(folder: Path, name: str, scheduler_id: str, *, exit_code: int = 0, pid: int = NOBODY) -> None:
    text = f"exit_code={exit_code}\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id={scheduler_id}\npid={pid}\n"
    (folder / name).write_text(text)


def answer_for_slurm(monkeypatch: pytest.MonkeyPatch, states: Mapping[str, str]) -> list[set[str]]:
    """Answer queries of comments with jobs in these states, by id. Return the comments of each query."""
    asked: list[set[str]] = []

    def find_by_comments(comments: Collection[str]) -> QueryAnswer:
        asked.append(set(comments))
        return QueryAnswer({job_id: _slurm_job(job_id, state) for job_id, state in states.items()})

    monkeypatch.setattr(recover, "find_by_comments", find_by_comments)
    return asked


def _slurm_job(job_id: str, state: str) -> JobRecord:
    return JobRecord(
        job_id=job_id,
        state=state,
        reason="",
        nodes="",
        exit_code=None,
        signal=None,
        comment=f"repro:{TOKEN}",
        started_at=None,
        ended_at=None,
        source="squeue",
    )


def test_slurm_decides_which_jobs_of_a_lost_run_are_under_way_and_a_start_record_where_slurm_has_no_job(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = lost_run(tmp_path, *"abcdef")
    write_record(folders["a"], "end", "17_0", exit_code=1)
    asked = answer_for_slurm(monkeypatch, {"17_0": "RUNNING", "17_1": "PENDING", "17_2": "RUNNING", "17_3": "FAILED"})
    for name in "cde":
        write_record(folders[name], "start", f"99_{name}")
    assert unrecorded(ledger, JOBS) == [
        ("b-id", str(folders["b"]), "17_1", None),
        ("c-id", str(folders["c"]), "17_2", None),
        ("e-id", str(folders["e"]), "99_e", None),
    ]
    assert asked == [{f"repro:{TOKEN}"}]


def test_a_job_that_was_submitted_alone_is_found_by_its_id_without_index(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = lost_run(tmp_path, "a", array=False)
    answer_for_slurm(monkeypatch, {"17": "PENDING"})
    assert unrecorded(ledger, JOBS) == [("a-id", str(folders["a"]), "17", None)]


def test_only_jobs_that_are_submitted_now_count(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = lost_run(tmp_path, "a", "b")
    answer_for_slurm(monkeypatch, {"17_0": "PENDING", "17_1": "PENDING"})
    assert unrecorded(ledger, JOBS[1:]) == [("b-id", str(folders["b"]), "17_1", None)]
    assert unrecorded(ledger, JOBS[2:]) == []


def test_a_run_that_the_ledger_contains_is_not_searched(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_run(tmp_path, "a")
    record_run(ledger, replace(new_run(), id=f"lost-{TOKEN}"), JOBS[:1], unless_verified, new_attempts())
    asked = answer_for_slurm(monkeypatch, {"17_0": "PENDING"})
    assert (unrecorded(ledger, JOBS), asked) == ([], [])


def test_slurm_is_asked_only_for_submissions_to_slurm_with_a_job_that_has_not_ended(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = lost_run(tmp_path, "a")
    write_record(ended["a"], "end", "17_0", exit_code=1)
    lost_run(tmp_path, "b", scheduler="local", token="here")
    asked = answer_for_slurm(monkeypatch, {"17_0": "RUNNING"})
    assert (unrecorded(ledger, JOBS), asked) == ([], [])


def test_a_slurm_that_does_not_answer_is_reported_and_the_jobs_are_not_taken_for_lost(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_run(tmp_path, "a")

    def away(_comments: Collection[str]) -> QueryAnswer:
        raise Unreachable("squeue: no answer")

    monkeypatch.setattr(recover, "find_by_comments", away)
    with pytest.raises(Unreachable, match="no answer"):
        unrecorded_attempts(ledger, JOBS)


def test_of_the_jobs_that_ended_only_those_with_a_verified_log_are_found(ledger: Ledger, tmp_path: Path) -> None:
    folders = lost_run(tmp_path, *"abcdef")
    logs = {
        "a": VERIFIED_LOG,
        "b": VERIFIED_LOG,  # with exit code 1
        "c": WORLD + log_text(7),
        "d": VERIFIED_LOG.replace("tensor-model-parallel size: 2", "tensor-model-parallel size: 1"),
        "e": "",
    }
    for name, text in logs.items():
        (folders[name] / "log.txt").write_text(text)
        write_record(folders[name], "end", f"17_{name}", exit_code=1 if name == "b" else 0)
    write_record(folders["f"], "end", "17_f")
    os.mkfifo(folders["f"] / "log.txt")
    assert unrecorded(ledger, JOBS) == [("a-id", str(folders["a"]), "17_a", VERIFIED)]


def test_an_end_record_that_cannot_be_read_is_no_end(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = lost_run(tmp_path, "a")
    os.mkfifo(folders["a"] / "end")
    answer_for_slurm(monkeypatch, {"17_0": "RUNNING"})
    assert unrecorded(ledger, JOBS) == [("a-id", str(folders["a"]), "17_0", None)]


def test_a_home_with_two_names_has_each_attempt_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    (folder,) = lost_run(home, "a").values()
    (folder / "log.txt").write_text(VERIFIED_LOG)
    write_record(folder, "end", "17_0")
    ledger = new_ledger(tmp_path / "link")
    assert len(ledger.runs) == 2
    assert [Path(attempt.folder).resolve() for attempt in unrecorded_attempts(ledger, JOBS)] == [folder.resolve()]


def test_a_home_without_runs_has_no_attempt(ledger: Ledger, tmp_path: Path) -> None:
    assert unrecorded(ledger, JOBS) == []
    (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "runs" / "file").touch()
    assert unrecorded(ledger, JOBS) == []


# ---- jobs of a local queue -------------------------------------------------------------------------------------


@contextmanager
def process_with(word: str) -> Iterator[int]:
    """Run a process with this word in its command line. Yield its process id."""
    with subprocess.Popen(["bash", "-c", "read -r _; :", word], stdin=subprocess.PIPE) as process:
        wait_until(lambda: word.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        yield process.pid


def test_a_local_job_that_started_is_under_way_while_its_process_runs(ledger: Ledger, tmp_path: Path) -> None:
    folders = lost_run(tmp_path, "a", "b", scheduler="local")
    with process_with(str(folders["a"])) as pid:
        for folder in folders.values():  # the process with this number is a job of another folder than b's
            write_record(folder, "start", "4_0", pid=pid)
        assert unrecorded(ledger, JOBS) == [("a-id", str(folders["a"]), "4_0", None)]
    assert unrecorded(ledger, JOBS) == []


def test_a_local_job_that_waits_is_under_way_while_its_queue_runs_unless_it_was_cancelled(
    ledger: Ledger, tmp_path: Path
) -> None:
    folders = lost_run(tmp_path, "a", "b", scheduler="local")
    assert unrecorded(ledger, JOBS) == []
    (folders["b"] / "cancelled").touch()
    with process_with(queue_file(tmp_path)):
        assert unrecorded(ledger, JOBS) == [("a-id", str(folders["a"]), None, None)]
    assert unrecorded(ledger, JOBS) == []


def test_a_local_job_of_another_host_is_under_way_from_its_start_to_its_end(ledger: Ledger, tmp_path: Path) -> None:
    folders = lost_run(tmp_path, "a", "b", scheduler="local")
    record = folders["a"].parent / "submissions" / f"{TOKEN}.sent"
    record.write_text(record.read_text().replace(f"host={socket.gethostname()}", "host=another"))
    write_record(folders["a"], "start", "4_0")
    assert unrecorded(ledger, JOBS) == [("a-id", str(folders["a"]), "4_0", None)]
    write_record(folders["a"], "end", "4_0", exit_code=1)
    assert unrecorded(ledger, JOBS) == []
