"""Tests of the identity of a job: its record of Slurm is recognised under any comment."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch.refresh import is_job_of, is_proven, owner_check
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.rows import JobRow
from orchestrator.slurm.notation import JobRecord
from tests.recorded_jobs import new_ledger, record_jobs

pytestmark = pytest.mark.slow

REAPER = '{"OccupiedIdleGPUsJobReaper":{"exemptIdleTimeMins":"120"}}'
LATER = timedelta(days=1)


@pytest.fixture
def row(tmp_path: Path) -> JobRow:
    """An attempt with id 17 whose folder has no record."""
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a", scheduler="slurm", array=False)
    (row,) = job_rows(ledger)
    folder = tmp_path / "runs/20260101-000000-0123abcd/pp1-gbs4"
    folder.mkdir(parents=True)
    return replace(row, scheduler_id="17", token="0123456789abcdef", user="ann", folder=str(folder))


def utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc)


def record(row: JobRow, comment: str = REAPER, **values: Any) -> JobRecord:
    """Return what squeue lists for the row's job, with other values."""
    job = JobRecord("17", "RUNNING", "", "n1", None, None, comment, None, None, "squeue")
    return replace(
        job,
        **{
            "user": "ann",
            "name": "figure-13-pp1-gbs4",
            "submitted_at": utc(row.created_at),
            "output": f"{row.folder}/batch.txt",
            **values,
        },
    )


COMMENTS = ["", REAPER, "belongs to project X", "their own repro:"]


@pytest.mark.fault(
    section="Job states",
    fault="A user, a plug-in of the site or a reaper of idle GPUs changes the comment of a job",
    promise="The job is recognised by its output file, or by the job's `start` record. It is not `LOST`.",
)
@pytest.mark.parametrize("comment", COMMENTS)
@pytest.mark.parametrize("proof", ["output", "start"])
def test_a_job_with_another_comment_is_recognised(row: JobRow, comment: str, proof: str) -> None:
    started = utc(row.created_at) + timedelta(hours=7)
    job = record(row, comment, submitted_at=utc(row.created_at) + LATER, started_at=started)
    if proof == "start":
        job = replace(job, output="/home/ann/other.txt", name="renamed")
        at = f"{started:%Y-%m-%dT%H:%M:%SZ}"
        (Path(row.folder) / "start").write_text(f"exit_code=0\nat={at}\nhost=n1\nscheduler_id=17\npid=1\n")
    assert is_job_of(job, row) is True and is_proven(job, row)


def test_the_elements_of_an_array_are_recognised_by_its_output_folder(row: JobRow) -> None:
    element = replace(row, array_index=3, scheduler_id="17_3")
    for name in ("17_3.txt", "%A_%a.txt"):
        output = str(Path(row.folder).parent / "submissions" / name)
        assert is_proven(record(row, job_id="17_3", output=output), element)
        assert not is_proven(record(row, output=output), row), "a job that is no element writes into its own folder"
    moved = Path("/elsewhere/runs", *Path(row.folder).parts[-2:], "batch.txt")
    assert is_proven(record(row, output=str(moved)), row), "the home was moved after the submission"


FOREIGN: dict[str, dict[str, Any]] = {
    "another token": {"comment": "repro:fedcba9876543210"},
    "another user": {"user": "bob"},
    "another output and name": {"output": "/home/ann/slurm-17.out", "name": "bash"},
    "no output, another name": {"output": "", "name": "bash"},
    "another output, a day later": {"output": "/home/ann/slurm-17.out", "late": True},
    "the name of another run": {"output": "/home/ann/runs/other/pp1-gbs4/batch.txt", "late": True},
}


@pytest.mark.fault(
    section="Job states",
    fault="Slurm gives the id of a job to a foreign job: another token, user, output file, name or time",
    promise="The foreign job is not taken for the attempt's.",
)
@pytest.mark.parametrize("how", FOREIGN)
def test_a_foreign_job_with_the_id_of_ours_is_not_ours(row: JobRow, how: str) -> None:
    values = dict(FOREIGN[how])
    late = LATER if values.pop("late", False) else timedelta(0)
    job = record(row, **{"submitted_at": utc(row.created_at) + late, **values})
    assert is_job_of(job, row) is False and not is_proven(job, row)


def test_a_start_record_of_an_earlier_job_does_not_prove_a_job_that_has_its_id_now(row: JobRow) -> None:
    (Path(row.folder) / "start").write_text("exit_code=0\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id=17\npid=1\n")
    started = datetime(2026, 1, 2, tzinfo=timezone.utc)
    job = record(row, output="/home/ann/slurm-17.out", started_at=started, submitted_at=started)
    assert is_job_of(job, row) is False and not is_proven(job, row)


@pytest.mark.parametrize(
    ("job_id", "seconds", "is_proven_by_start"),
    [("17", 0, True), ("17", 600, True), ("17", -600, True), ("17", 601, False), ("17", -601, False), ("18", 0, False)],
)
def test_a_start_record_proves_the_job_that_slurm_started_within_10_minutes_of_it(
    row: JobRow, job_id: str, seconds: int, is_proven_by_start: bool
) -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    start = Path(row.folder) / "start"
    start.write_text(f"exit_code=0\nat={at:%Y-%m-%dT%H:%M:%SZ}\nhost=n1\nscheduler_id={job_id}\npid=1\n")
    job = record(row, output="/home/ann/other.txt", started_at=at + timedelta(seconds=seconds))
    assert is_proven(job, row) is is_proven_by_start
    assert not is_proven(replace(job, started_at=None), row)
    start.unlink()
    os.mkfifo(start)
    assert not is_proven(job, row), "a record that cannot be read"


@pytest.mark.parametrize(("seconds", "expected"), [(-301, False), (-300, True), (600, True), (601, False)])
def test_a_job_of_ours_was_submitted_from_5_minutes_before_its_record_to_10_minutes_after(
    row: JobRow, seconds: int, expected: bool
) -> None:
    row = replace(row, submitted_at=row.created_at)
    for name in ("figure-13-pp1-gbs4", f"figure-13-{row.scale}"):
        job = record(row, output="", name=name, submitted_at=utc(row.created_at) + timedelta(seconds=seconds))
        assert is_job_of(job, row) is expected
    assert is_job_of(replace(job, source="sacct", name=""), row) is expected
    assert is_job_of(replace(job, submitted_at=None), row) is False
    assert is_job_of(replace(job, source="sacct", submitted_at=None), row) is True


def test_a_job_with_the_user_time_and_name_of_ours_and_another_output_is_not_decided(row: JobRow) -> None:
    job = record(row, output="/home/ann/other.txt")
    assert is_job_of(job, row) is None and not is_proven(job, row)
    assert is_job_of(replace(job, output=""), row) is True, "this squeue prints no output file"
    assert not is_proven(replace(job, output=""), row), "that is enough for a state, not for a cancellation"


def test_a_user_without_a_name_on_this_machine_is_not_another_user(row: JobRow) -> None:
    assert is_job_of(record(row, user="4711"), row) is True


@pytest.mark.parametrize("comment", COMMENTS)
def test_sacct_with_another_comment_decides_by_user_and_time(row: JobRow, comment: str) -> None:
    job = record(row, comment, source="sacct", output="", name="")
    assert is_job_of(job, row) is True and not is_proven(job, row)
    assert is_job_of(replace(job, user="bob"), row) is False
    assert is_job_of(replace(job, submitted_at=utc(row.created_at) + LATER), row) is False


def test_a_long_array_is_checked_without_a_search_through_all_rows(row: JobRow) -> None:
    """squeue lists elements that have ended, too: each of them has no row."""
    rows = {f"17_{index}": replace(row, scheduler_id=f"17_{index}", array_index=index) for index in range(2)}
    check = owner_check(rows)
    token = f"repro:{row.token}"
    assert check(record(row, token, job_id="17_9")) is True, "the whole array has one token"
    assert check(record(row, token, job_id="18_9")) is False
