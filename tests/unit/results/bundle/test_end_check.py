"""Tests of the end of an attempt of Slurm: what its records and logs contradict or do not prove."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.rows import JobRow
from orchestrator.results.bundle.verify import end_differences
from tests.recorded_jobs import new_ledger, record_jobs

AT = datetime(2026, 1, 1)
SLURM = "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO {} ***\n"
LIMIT, PREEMPTION, NODE = (SLURM.format(why) for why in ("TIME LIMIT", "PREEMPTION", "NODE FAILURE"))
LOCAL: dict[str, Any] = {"scheduler": "local"}
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.\n"


@pytest.fixture
def row(tmp_path: Path) -> JobRow:
    """Return a row of a job that ran for a minute; its folder is empty."""
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a", scheduler="slurm")
    (one,) = job_rows(ledger)
    (tmp_path / "job").mkdir()
    ends = AT + timedelta(minutes=1)
    return dataclasses.replace(
        one, folder=str(tmp_path / "job"), scheduler_id="17_0", phase="ended", started_at=AT, ended_at=ends
    )


def write_record(row: JobRow, name: str, code: int = 0, at: datetime = AT, job: str = "17_0") -> None:
    lines = (f"exit_code={code}", f"at={at:%Y-%m-%dT%H:%M:%SZ}", "host=n1", f"scheduler_id={job}", "pid=7")
    (Path(row.folder) / name).write_text("\n".join(lines))


def differences(row: JobRow, code: int | None, log: str = "", **columns: Any) -> list[str]:
    """Return the differences of a job with this exit code in its end record; None: without one."""
    if code is not None:
        write_record(row, "end", code, AT + timedelta(minutes=1))
    write_record(row, "start")
    (Path(row.folder) / "log.txt").write_text(log)
    return list(end_differences(dataclasses.replace(row, **columns)))


@pytest.mark.parametrize(
    ("code", "log", "columns"),
    [
        (0, "", {"state": "COMPLETED", "exit_code": 0}),
        (0, "", {"state": "COMPLETED"}),
        (1, "", {"state": "FAILED", "exit_code": 1}),
        (143, "", {"state": "FAILED", "exit_code": 15}),
        (143, "", {"state": "FAILED", "exit_code": 0, "signal": 15} | {"exit_code": 143}),
        (None, "", {"state": "FAILED", "exit_code": 0, "signal": 9}),
        (143, LIMIT, {"state": "TIMEOUT", "exit_code": 0, "signal": 15}),
        (0, LIMIT, {"state": "TIMEOUT", "exit_code": 0, "signal": 1}),
        (None, LIMIT, {"state": "TIMEOUT"}),
        (0, PREEMPTION, {"state": "PREEMPTED"}),
        (0, NODE, {"state": "NODE_FAIL"}),
        (0, OOM, {"state": "OUT_OF_MEMORY", "exit_code": 0, "signal": 125}),
        (143, "", {"state": "CANCELLED", "exit_code": 0, "signal": 15}),
        (None, "", {"state": "NODE_FAIL"}),
        (None, "", {"state": "LOST"}),
        (143, "", {"state": "PENDING", "phase": "waiting", "is_requeued": True}),
        (0, "", {"state": "PENDING", "phase": "waiting", "is_requeued": True}),
        (None, "", {"state": "RUNNING", "phase": "running"}),
        (0, "", LOCAL | {"state": "COMPLETED", "exit_code": 0}),
        (124, "", LOCAL | {"state": "TIMEOUT", "exit_code": 124}),
        (143, "", LOCAL | {"state": "FAILED", "exit_code": 143}),
        (None, "", LOCAL | {"state": "NODE_FAIL"}),
    ],
)
def test_an_end_that_slurm_and_the_records_can_both_report_is_no_difference(
    row: JobRow, code: int | None, log: str, columns: dict[str, Any]
) -> None:
    assert differences(row, code, log, **columns) == []


@pytest.mark.fault(
    section="Safety",
    fault="A bundle with a forged record, or a forged state, exit code or time of an attempt, and new checksums",
    promise="`bundle verify` names the attempt.",
)
@pytest.mark.parametrize(
    ("code", "log", "columns", "expected"),
    [
        (3, "", {"state": "COMPLETED", "exit_code": 0}, "and its end record has exit code 3"),
        (None, "", {"state": "COMPLETED", "exit_code": 0}, "and it has no end record"),
        (0, "", {"state": "FAILED", "exit_code": 1}, "and its end record has exit code 0"),
        (1, "", {"state": "TIMEOUT"}, "and no log has Slurm's line about it"),
        (None, "", {"state": "TIMEOUT"}, "and no log has Slurm's line about it"),
        (0, LIMIT, {"state": "PREEMPTED"}, "and no log has Slurm's line about it"),
        (0, "", {"state": "CANCELLED"}, "and no log has Slurm's line about it"),
        (0, "", {"state": "ANYTHING"}, "and no log has Slurm's line about it"),
        (1, "", {"state": "LOST"}, "and its end record has exit code 1"),
        (1, "", {"state": "FAILED", "exit_code": 2}, "exit_code is 2 in the ledger, 1 in its end record"),
        (1, "", {"state": "FAILED", "exit_code": 1, "signal": 9}, "signal is 9 in the ledger"),
        (0, "", {"state": "RUNNING", "phase": "running"}, "and its end record has exit code 0"),
        (0, "", {"state": "CANCELLED", "scheduler_id": "18_0"}, "scheduler_id is 18_0 in the ledger, 17_0 in its"),
        (None, "", LOCAL | {"state": "TIMEOUT"}, "and it has no end record"),
        (124, "", LOCAL | {"state": "FAILED", "exit_code": 124}, "and its end record has exit code 124"),
        (1, "", LOCAL | {"state": "TIMEOUT", "exit_code": 1}, "and its end record has exit code 1"),
        (143, "", LOCAL | {"state": "CANCELLED", "exit_code": 143}, "and its end record has exit code 143"),
        (143, "", LOCAL | {"state": "FAILED", "exit_code": 15}, "exit_code is 15 in the ledger, 143 in its end record"),
        (124, "", LOCAL | {"state": "TIMEOUT", "exit_code": 1}, "exit_code is 1 in the ledger, 124 in its end record"),
        (1, "", LOCAL | {"state": "FAILED"}, "exit_code is None in the ledger, 1 in its end record"),
        (143, "", LOCAL | {"state": "FAILED", "exit_code": 143, "signal": 15}, "signal is 15 in the ledger"),
    ],
)
def test_an_end_that_a_record_or_log_contradicts_is_a_difference(
    row: JobRow, code: int | None, log: str, columns: dict[str, Any], expected: str
) -> None:
    assert expected in differences(row, code, log, **columns)[0]


def test_a_job_that_repro_cancelled_has_its_mark(row: JobRow) -> None:
    (Path(row.folder) / "cancelled").touch()
    assert differences(row, 0, state="CANCELLED") == []
    assert differences(row, 143, state="CANCELLED", exit_code=143, **LOCAL) == []
    for state in ("CANCELLED", "FAILED"):  # a local job that ended well before the signal is COMPLETED
        (found,) = differences(row, 0, state=state, exit_code=0, **LOCAL)
        assert found == f"state is {state} in the ledger, and its end record has exit code 0"


@pytest.mark.parametrize(
    ("scheduler", "seconds", "found"),
    [
        *(("slurm", 54, True), ("slurm", 55, False), ("slurm", 1800, False)),
        *(("local", 54, True), ("local", 55, False), ("local", 65, False), ("local", 66, True)),
    ],
)
def test_a_job_has_the_duration_of_its_records_up_to_5_s_and_a_slurm_job_may_be_longer(
    row: JobRow, scheduler: str, seconds: int, found: bool
) -> None:
    columns: dict[str, Any] = {"scheduler": scheduler, "state": "COMPLETED", "exit_code": 0}
    columns["ended_at"] = AT + timedelta(seconds=seconds)
    expected = [f"its duration is {seconds} s in the ledger, 60 s by its records"] if found else []
    assert differences(row, 0, **columns) == expected
    for without in ("started_at", "ended_at"):
        assert differences(row, 0, **columns | {without: None}) == []
    (Path(row.folder) / "start").unlink()
    assert list(end_differences(dataclasses.replace(row, **columns))) == []


def test_a_record_of_another_job_is_a_difference(row: JobRow) -> None:
    write_record(row, "start", job="18_0")
    assert list(end_differences(dataclasses.replace(row, state="NODE_FAIL"))) == [
        "scheduler_id is 17_0 in the ledger, 18_0 in its start record"
    ]


def test_an_attempt_that_was_never_submitted_left_nothing_but_a_refusal(row: JobRow) -> None:
    never = dataclasses.replace(row, state="NEVER_SUBMITTED")
    (Path(row.folder) / "batch.txt").write_text("repro: not started: it was cancelled, or given up, before\n")
    (Path(row.folder) / "cancelled").touch()
    assert list(end_differences(never)) == []
    (Path(row.folder) / "claimed").write_text("17_0\n")
    assert list(end_differences(never)) == ["state is NEVER_SUBMITTED in the ledger, and its folder contains claimed"]
    write_record(row, "end")
    (Path(row.folder) / "log.txt").touch()
    (found,) = end_differences(never)
    assert found.endswith("its folder contains end, claimed, log.txt")
