"""Verdicts, numbers and progress of described programs, from the files of a job to the ledger."""

from __future__ import annotations

import functools
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.files import ScriptRecord
from orchestrator.ledger.attempts import job_rows, record_observations, result_rows
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import JobRow, Observation
from orchestrator.ledger.tables import ENDED, Attempt, SchedulerKind
from orchestrator.programs import output
from orchestrator.reading.collect import collect, is_verified
from orchestrator.reading.job_status import job_statuses
from orchestrator.reading.logs import LONGEST_LINE_BYTES
from tests.described_jobs import NOON, Described, record_described
from tests.recorded_jobs import new_job
from tests.unit.programs.programs import SWEEP, SWEEP_OUTPUT, TRAINING

LOSSES = "".join(f"step={step} loss={10 / step:.4f}\n" for step in range(1, 13))
SECTION = "Verdicts of described programs"


Make = Callable[..., Described]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Return the function that records a job of the program in a YAML text."""
    return functools.partial(record_described, tmp_path)


def verdict(row: JobRow) -> tuple[str | None, str | None]:
    return row.verdict, row.failure


def test_a_whole_output_is_verified_and_each_row_has_its_metrics_with_units(made: Make) -> None:
    job = made()
    job.write(SWEEP_OUTPUT)
    assert (*verdict(job.ends()), job.row.verdict_reason) == ("verified", None, None)
    assert [row.key for row in job.rows] == [{"size": 8}, {"size": 1024}, {"size": 2**20}]
    assert job.rows[2].metrics == (MeasuredMetric("busbw", 67.04, "GB/s"), MeasuredMetric("time_us", 27.37, "us"))
    assert set(job.metrics()) == set()
    with job.ledger.engine.connect() as connection:
        query = "select row_key, value, unit from v_metrics where name = 'busbw' and value > 1"
        assert connection.exec_driver_sql(query).fetchall() == [('{"size": 1048576}', 67.04, "GB/s")]


def test_a_second_reading_replaces_metrics_and_rows(made: Make) -> None:
    job = made()
    job.write(SWEEP_OUTPUT)
    job.ends()
    before = job.rows
    with job.ledger.writing() as session:
        session.execute(sa.update(Attempt).values(verdict=None))
    collect(job.ledger)
    assert job.rows == before and job.row.verdict == "verified"


def test_iterations_give_statistics_without_the_warm_up(made: Make) -> None:
    text = """
command: [train]
output: {iterations: 'step={iteration} loss={loss} ms={ms} mem={memory} free={free}'}
metrics:
  loss: {better: lower, take: last}
  ms: {better: lower, unit: ms}
  memory: {better: lower, take: largest}
  free: {better: higher, take: smallest, unit: B}
verified: iterations == steps and seconds == 60 and gpus == 2 and all(loss < 11)
warmup: 2
"""
    job = made(text, steps=6)
    job.write("".join(f"step={n} loss={10 - n} ms={900 if n < 3 else n} mem={n} free={-n}\n" for n in range(1, 7)))
    row = job.ends()
    assert (*verdict(row), row.iteration) == ("verified", None, 6)
    metrics = job.metrics()
    assert metrics.pop("gpu_hours", None) is None
    assert metrics == {
        "loss": MeasuredMetric("loss", 4.0, "", None, 4),
        "ms": MeasuredMetric("ms", 4.5, "ms", 0.75, 4),
        "memory": MeasuredMetric("memory", 6.0, "", None, 4),
        "free": MeasuredMetric("free", -6.0, "B", None, 4),
    }
    assert job.rows == []


def test_a_running_job_has_its_progress_and_no_verdict(made: Make) -> None:
    job = made(TRAINING, width=64, steps=10)
    job.write("step=1 loss=9\nstep=2 loss=8\nstep=3 lo")
    assert collect(job.ledger) == ()
    assert (job.row.iteration, job.row.verdict) == (2, None)
    job.write("step=1 loss=9\rstep=2 loss=8\rstep=3 loss=7\rstep=4")
    collect(job.ledger)
    assert job.row.iteration == 3
    (status,) = job_statuses(job.ledger, result_rows(job.ledger, job_rows(job.ledger)))
    assert (status.iteration, status.iterations, status.progress, status.left_s) == (3, 0, "3", None)


def test_a_running_job_without_iterations_is_not_written(made: Make) -> None:
    job = made()
    job.write(SWEEP_OUTPUT)
    version = "pragma data_version"
    with job.ledger.engine.connect() as connection:
        before = connection.exec_driver_sql(version).scalar()
        assert collect(job.ledger) == ()
        assert connection.exec_driver_sql(version).scalar() == before
    assert (job.row.iteration, job.row.verdict) == (None, None)


@pytest.mark.parametrize(
    ("old", "new", "failure", "reason", "line"),
    [
        ("0\n# Out", "3\n# Out", "numbers", "wrong == 0: wrong is 3", " 1048576   262144   float"),
        ("# Out of", "# Not of", "incomplete", "output.values.out_of_bounds: matches no line", "# Not of bounds"),
        ("67.04       0\n", "67.04\n", "incomplete", "line 6: a row with 5 of 6 columns", " 1048576"),
        ("67.04", "nan", "numbers", "busbw is nan at size=1048576 (line 6)", " 1048576"),
        (SWEEP_OUTPUT, "", "incomplete", "output.values.out_of_bounds: matches no line", None),
        (SWEEP_OUTPUT, "\x00\xff\x1b[31m" * 99, "incomplete", "output.values.out_of_bounds: matches no line", None),
    ],
)
@pytest.mark.fault(
    section=SECTION,
    fault="The output is cut, wrong, empty or binary",
    promise="Failed, with each problem and its line; its numbers are never a result.",
)
def test_a_damaged_output_fails_with_its_problems_and_the_line(
    made: Make, old: str, new: str, failure: str, reason: str, line: str | None
) -> None:
    job = made()
    assert old in SWEEP_OUTPUT
    job.write(SWEEP_OUTPUT.replace(old, new))
    row = job.ends()
    assert verdict(row) == ("failed", failure)
    assert reason in (row.verdict_reason or "") and "\n" not in (row.verdict_reason or "")
    assert (row.deciding_line or "").startswith((line or "").strip())


def test_a_reason_has_the_first_problems_and_the_number_of_the_others(made: Make) -> None:
    job = made()
    rows = "".join(f"{2**n} 2 float 1.0 1.0 {n + 1}\n" for n in range(20))
    job.write(rows + "# Out of bounds values : 0 OK\n")
    reason = job.ends().verdict_reason or ""
    assert reason.count("wrong is ") == 5 and "; 15 more; rows == 3: rows is 20" in reason


def test_colours_progress_bars_and_labels_are_no_part_of_a_line(made: Make) -> None:
    job = made(scheduler="slurm")
    lines = SWEEP_OUTPUT.splitlines()
    coloured = [
        f"\x1b[32m{line}\x1b[0m" if number % 2 else f"  1%|\r 99%|\r{line}" for number, line in enumerate(lines)
    ]
    job.write("".join(f"0: {line}\n" for line in coloured) + "slurmstepd: done\n")
    assert verdict(job.ends()) == ("verified", None)
    assert len(job.rows) == 3


def test_the_label_of_mpirun_is_no_part_of_a_line(made: Make) -> None:
    job = made()
    job.write("".join(f"[1,0]<stdout>:{line}\n" for line in SWEEP_OUTPUT.splitlines()))
    assert verdict(job.ends()) == ("verified", None)


OUTPUT_FILE = SWEEP.replace("output:\n", "output:\n  file: result.txt\n")


@pytest.mark.parametrize("name", ["result.txt", "result.txt.gz"])
def test_the_output_may_be_a_file(made: Make, name: str) -> None:
    job = made(OUTPUT_FILE)
    job.write(gzip.compress(SWEEP_OUTPUT.encode()) if name.endswith(".gz") else SWEEP_OUTPUT, name)
    job.write("nothing of interest\n")
    assert verdict(job.ends()) == ("verified", None)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "missing"])
@pytest.mark.fault(
    section=SECTION,
    fault="The output file is a link, a pipe, a folder, or missing",
    promise="It is not read, and the attempt fails with that reason.",
)
def test_an_output_file_that_is_no_file_is_not_read(made: Make, tmp_path: Path, kind: str) -> None:
    job = made(OUTPUT_FILE)
    (tmp_path / "elsewhere").write_text(SWEEP_OUTPUT)
    file = job.folder / "result.txt"
    make: dict[str, Callable[[], object]] = {
        "link": lambda: file.symlink_to(tmp_path / "elsewhere"),
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "missing": lambda: None,
    }
    make[kind]()
    row = job.ends()
    assert verdict(row) == ("failed", "incomplete") and job.rows == []
    wanted = "is not in the job's folder" if kind == "missing" else f"is a {kind} and not a file"
    assert f"result.txt {wanted}" in (row.verdict_reason or "")


def test_an_exit_code_fails_with_the_programs_own_error(made: Make) -> None:
    job = made()
    job.write(SWEEP_OUTPUT + "Traceback (most recent call last):\nValueError: no such device\n")
    row = job.ends("FAILED", 1)
    assert verdict(row) == ("failed", "program")
    assert row.verdict_reason == "FAILED with exit code 1 (error: ValueError: no such device)"
    assert row.deciding_line == "ValueError: no such device"


@pytest.mark.parametrize(
    ("line", "state", "failure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "FAILED", "gpu-oom"),
        ("NCCL error in: x.cc:1, unhandled system error, NCCL version 2.18", "FAILED", "nccl-error"),
        ("OSError: [Errno 28] No space left on device", "FAILED", "program"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "OUT_OF_MEMORY", "host-oom"),
        ("srun: error: Node failure on n8", "NODE_FAIL", "node-fail"),
        ("slurmstepd: error: pyxis: container start failed", "FAILED", "image"),
        ("bash: line 1: all_reduce: command not found", "FAILED", "configuration"),
    ],
)
def test_generic_causes_are_those_of_every_program(made: Make, line: str, state: str, failure: str) -> None:
    job = made(scheduler="slurm")
    job.write(f"0: {line}\n" if "slurm" not in line and "srun" not in line else f"{line}\n")
    assert verdict(job.ends(state, 1)) == ("failed", failure)


FAILURES = (
    SWEEP
    + """
failures: {bad-link: '^Test NCCL failure', nccl-error: NCCL WARN}
"""
)


@pytest.mark.parametrize("scheduler", ["local", "slurm"])
def test_a_class_of_the_program_comes_before_the_generic_ones(made: Make, scheduler: SchedulerKind) -> None:
    job = made(FAILURES, scheduler=scheduler)
    label = "1: " if scheduler == "slurm" else ""
    log = ("NCCL WARN first", "torch.OutOfMemoryError: CUDA out of memory.", "Test NCCL failure x.cu:1")
    job.write("".join(f"{label}{line}\n" for line in log))
    row = job.ends("FAILED", 3)
    assert verdict(row) == ("failed", "bad-link")
    assert (row.deciding_line, row.deciding_rank) == ("Test NCCL failure x.cu:1", 1 if label else None)
    assert (row.verdict_reason or "").startswith("FAILED with exit code 3 (bad-link: Test NCCL failure x.cu:1)")


@pytest.mark.parametrize(
    ("state", "failure"), [("CANCELLED", "cancelled"), ("NODE_FAIL", "node-fail"), ("PREEMPTED", "preempted")]
)
def test_the_scheduler_decides_for_jobs_that_it_ended(made: Make, state: str, failure: str) -> None:
    job = made(FAILURES)
    job.write("Test NCCL failure\n")
    assert verdict(job.ends(state, 1)) == ("failed", failure)


def test_a_class_of_a_verified_job_does_not_count(made: Make) -> None:
    job = made(FAILURES)
    job.write(SWEEP_OUTPUT + "Test NCCL failure, and repeated\n")
    assert verdict(job.ends()) == ("verified", None)


@pytest.mark.parametrize(
    ("steps", "expected", "failure"),
    [(12, "reached its time limit at iteration 12, with 12 samples", None), (5, "TIMEOUT", "timeout")],
)
def test_a_job_at_its_time_limit_is_partial_with_enough_samples(
    made: Make, steps: int, expected: str, failure: str | None
) -> None:
    job = made(TRAINING, width=64, steps=20)
    job.write("".join(LOSSES.splitlines(keepends=True)[:steps]))
    row = job.ends("TIMEOUT", None)
    assert verdict(row) == ("failed" if failure else "partial", failure)
    assert (row.verdict_reason or "").startswith(expected)


def test_a_table_that_is_cut_off_by_the_time_limit_is_not_partial(made: Make) -> None:
    job = made()
    job.write("".join(SWEEP_OUTPUT.splitlines(keepends=True)[:5]))
    assert verdict(job.ends("TIMEOUT", None)) == ("failed", "timeout")


def test_a_job_without_the_proof_of_its_image_is_not_verified(made: Make) -> None:
    job = made(scheduler="slurm")
    with job.ledger.writing() as session:
        session.execute(sa.text("update jobs set image = 'nccl.sqsh'"))
    job.write(SWEEP_OUTPUT)
    row = job.ends()
    assert verdict(row) == ("failed", "configuration")
    assert "does not prove that it ran inside nccl.sqsh" in (row.verdict_reason or "")


@pytest.mark.parametrize("where", ["values", "failures"])
@pytest.mark.fault(
    section=SECTION,
    fault="A pattern takes exponential time",
    promise="Its search is stopped after a second; the reason of the verdict names the pattern.",
)
def test_a_pattern_that_backtracks_is_stopped_and_named(
    made: Make, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SLOWEST_S", 0.05)
    slow = "(a|a|aa)+$"
    text = SWEEP.replace("Out of", f"{slow} Out of") if where == "values" else SWEEP + f"failures: {{mine: '{slow}'}}"
    job = made(text)
    job.write("a" * 5000 + "!\n" + SWEEP_OUTPUT)
    row = job.ends("FAILED", 1)
    name = "output.values.out_of_bounds" if where == "values" else "failures.mine"
    assert f"{name}: took more than 0.05 s for line 1, and was stopped" in (row.verdict_reason or "")


def test_a_line_of_megabytes_is_one_line(made: Make) -> None:
    job = made()
    job.write(b"x" * (3 * LONGEST_LINE_BYTES) + b"\n" + SWEEP_OUTPUT.replace("67.04 ", "nan   ").encode())
    end = Observation("COMPLETED", ENDED, exit_code=0, started_at=NOON, ended_at=NOON)
    record_observations(job.ledger, {1: end}, [])
    (warning,) = collect(job.ledger)
    assert "1 line of 3,145,729 bytes ignored" in warning
    assert (job.row.verdict_reason or "").startswith("busbw is nan at size=1048576 (line 7)")


@pytest.mark.parametrize("text", [SWEEP, TRAINING, "{command: [x], output: {csv: n}, metrics: {x: {better: higher}}}"])
@pytest.mark.fault(
    section=SECTION,
    fault="Rows, iterations or a document without end",
    promise="Failed with the limit as the reason; memory stays bounded.",
)
def test_an_output_without_end_needs_little_memory(made: Make, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_MOST_ROWS", 1000)
    monkeypatch.setattr(output, "_LARGEST_DOCUMENT", 1 << 16)
    job = made(text, steps=1, width=1, to=1)
    lines = (f"{number} 2 float 1.0 1.0 0\nstep={number} loss=1.0 {'x' * 900}\n" for number in range(2500))
    job.write("".join(lines))
    tracemalloc.start()
    reason = job.ends().verdict_reason or ""
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "more than 1,000 " in reason or "larger than 65,536 characters" in reason
    assert most < 12e6


def test_a_job_that_the_ledger_lacks_is_judged_from_its_records(made: Make) -> None:
    job = made(SWEEP.replace("rows == 3", "rows == 3 and seconds == 60"))
    job.write(SWEEP_OUTPUT)
    record = "exit_code=0\nat=2026-01-01T12:00:{:02}Z\nhost=n1\nscheduler_id=7\npid=1\n"
    job.write(record.format(0), "start")
    row = job.row
    lost = replace(new_job("a"), spec=row.spec, gpus=2, iterations=0)
    end = ScriptRecord(exit_code=0, at=NOON + timedelta(minutes=1), host="n1", scheduler_id="7", pid=1)
    assert is_verified(lost, job.folder, end)
    assert not is_verified(lost, job.folder, replace(end, exit_code=1))


@pytest.mark.parametrize("damage", [{"output": {"rows": {"columns": "a a", "key": "b"}}}, {"command": 7}, {}])
@pytest.mark.fault(
    section=SECTION,
    fault="The record of a program is damaged",
    promise="One line names the job and the field; no other job is concerned.",
)
def test_a_damaged_record_of_a_program_is_one_line(made: Make, damage: dict[str, object]) -> None:
    job = made()
    with job.ledger.writing() as session:
        spec = replace(job.row.spec, program={**dict(job.row.spec.program or {}), **damage} if damage else {})
        session.execute(
            sa.text("update jobs set configuration = :spec"),
            {"spec": json.dumps(spec.to_json() | {"program": spec.program})},
        )
    (warning,) = collect(job.ledger)
    assert "the record of the job's program is not valid: " in warning and "\n" not in warning
    assert job.row.verdict is None
