"""Tests of `repro status`: state, verdict, progress, speed, reasons, and the watched picture."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.cli.job_table import bar
from orchestrator.ledger.attempts import RefreshResult
from orchestrator.ledger.database import now
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.tables import Attempt
from orchestrator.reading.job_status import ExperimentStatus
from tests.recorded_jobs import SimulatedSlurm, log_text, new_ledger, new_run, press_ctrl_c, record_jobs
from tests.unit.cli.calling import Caller, Done, everything_in

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    monkeypatch.setattr("orchestrator.cli.records.REDRAW_S", 0.0)
    return SimulatedSlurm.install(repro.site.folder, monkeypatch)


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100, lines: int = 30) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def frames(done: Done) -> list[list[str]]:
    """Return the lines of each picture, without codes of the terminal. The last one is drawn twice, at the end."""
    text = re.sub(r"\033\[\?25[lh]", "", done.stdout)
    pictures = [re.sub(r"\033\[[0-9;]*[A-Za-z]", "", frame).splitlines() for frame in text.split("\r\033[2K")]
    return pictures[:-1]


def test_status_before_a_submission_prints_that_and_creates_nothing(repro: Caller) -> None:
    before = everything_in(repro.site.folder)
    for words in (("status",), ("status", "--watch")):
        done = repro(*words)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"repro: {done.complaints[0]}".startswith(repro.no_jobs) and len(done.complaints) == 1
        assert done.stderr.splitlines()[1:] == ["next: repro list   # the experiments"]
    assert json.loads(repro("status", "--json").stdout)["jobs"] == []
    assert everything_in(repro.site.folder) == before


def test_many_jobs_are_counted_by_experiment_and_a_named_one_lists_its_cases(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.submit("a", "b", "c", "d")
    slurm.end("a-id")
    slurm.end("b-id", "TIMEOUT", "failed", failure="timeout")
    slurm.start("c-id", log_text(2))
    monkeypatch.setattr("orchestrator.cli.records.MOST_JOBS", 3)
    done = repro("status")
    assert len(json.loads(repro("status", "--json").stdout)["jobs"]) == 4, "the same rows for any number of jobs"
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == (
        "all experiments [##........] 1/4 verified, 1 running, 1 waiting, 1 failed (1 timeout)"
    )
    assert "1 timeout" in done.stdout.splitlines()[1]


def test_a_table_has_progress_remaining_time_and_the_age_of_states(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.start("a-id", log_text(3))
    slurm.update("b-id", starts_at=now() + timedelta(minutes=1), refreshed_at=now() - timedelta(minutes=4, seconds=5))
    slurm.answer = RefreshResult(("squeue: no answer",), now())
    done = repro("status")
    header, running, waiting = done.stdout.splitlines()
    assert "LEFT" in header and " 3/8 " in running and " 5m " in running and "starts " in waiting
    assert done.stderr.splitlines()[0] == "note: squeue: no answer" and done.returncode == 0


def test_wide_shows_energy_and_cost(repro: Caller) -> None:
    ledger = new_ledger(repro.site.folder)
    record_jobs(ledger, "a", run=replace(new_run(), profile={"price_per_gpu_hour": {"value": 2, "currency": "EUR"}}))
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(state="COMPLETED", phase="ended"))
    metrics = (MeasuredMetric("gpu_hours", 3.0, "h"), MeasuredMetric("joules_per_token", 0.25, "J"))
    record_measurements(ledger, [Measurement(1, 8, "verified", None, (), metrics)])
    done, wide = repro("status"), repro("status", "--wide").stdout
    assert "3 GPU-hours (6.00 EUR) in the attempts shown" in done.complaints and "EUR" not in done.stdout
    assert "6.00 EUR" in wide and "0.25" in wide and "JOULES_PER_ITERATION" not in wide


def test_a_bar_is_full_only_when_everything_is_measured() -> None:
    assert "[#########.]" in bar(ExperimentStatus("x", "", "", 1000, 998, 1, 0, 1, 0, {}))
    assert "[##########]" in bar(ExperimentStatus("x", "", "", 1000, 999, 1, 0, 0, 0, {}))
    assert bar(ExperimentStatus("x", "", "", 0, 0, 0, 0, 0, 0, {})) == "x [..........] 0/0 verified"


def test_only_values_that_differ_between_jobs_are_columns(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    assert "EXPERIMENT" not in repro("status").stdout
    with slurm.ledger.writing() as session:
        session.connection().exec_driver_sql("update jobs set repeat = 2, program = 'megatron-2021' where id = 'b-id'")
    done = repro("status")
    assert "PROGRAM" in done.stdout and " b #2 " in done.stdout and "SCALE" not in done.stdout


def test_watch_into_a_file_appends_changes_and_ends_with_the_last_job(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    nothing: list[Any] = [lambda: None, lambda: None]
    slurm.on_query = [
        *nothing,
        lambda: slurm.start("a-id", log_text(2)),
        lambda: slurm.write_log("a-id", log_text(8)),  # an iteration is no news for a file
        *nothing,
        lambda: slurm.end("a-id"),
        lambda: slurm.end("b-id", "FAILED", "failed", failure="program"),
    ]
    done = repro("status", "--watch")
    assert done.returncode == 0 and "\033" not in done.stdout
    said = [tuple(line.split()[:3]) for line in done.stdout.splitlines() if not line.startswith("JOB")]
    assert said == [
        ("a-id", "a", "PENDING"),
        ("b-id", "b", "PENDING"),
        ("a-id", "a", "RUNNING"),
        ("a-id", "a", "COMPLETED"),
        ("b-id", "b", "FAILED"),
    ]
    assert done.stderr.splitlines()[-1] == "next: repro logs b-id   # why b failed"
    assert set(slurm.intervals_s) == {15.0} and slurm.on_query == []


def test_watching_json_gives_a_complete_line_for_each_change(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.on_query = [lambda: None, lambda: slurm.end("a-id"), lambda: slurm.end("b-id")]
    done = repro("status", "--watch", "--json")
    lists = [json.loads(line)["jobs"] for line in done.stdout.splitlines()]
    assert [[row["state"] for row in rows] for rows in lists] == [
        ["PENDING", "PENDING"],
        ["COMPLETED", "PENDING"],
        ["COMPLETED", "COMPLETED"],
    ]
    assert set(slurm.intervals_s) == {15.0}


def test_on_a_terminal_the_picture_is_drawn_over_the_last_without_clearing_it(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.submit("a", "b")
    slurm.answer = RefreshResult((), now())
    slurm.on_query = [
        lambda: slurm.start("a-id", log_text(2)),
        lambda: slurm.write_log("a-id", log_text(5)),
        lambda: slurm.end("a-id"),
        lambda: slurm.end("b-id", "FAILED", "failed", failure="program", verdict_reason="it says so " * 30),
    ]
    on_a_terminal(monkeypatch)
    done = repro("status", "--watch")
    assert done.returncode == 0 and "\033[2J" not in done.stdout  # the terminal is never cleared
    recorded, *pictures = frames(done)
    assert len(pictures) == 4 and "PENDING" in recorded[2] and recorded[-1].startswith("states as last recorded")
    assert [next(line for line in one if line.startswith("a-id ")).split()[2] for one in pictures] == [
        *("RUNNING", "RUNNING", "COMPLETED", "COMPLETED")
    ]
    assert ["5/8" in "".join(one) for one in pictures[:2]] == [False, True]
    assert all(one[0].startswith("figure-13 cpu local [") for one in pictures)
    assert all("Slurm was queried at " in "".join(one) for one in pictures)
    assert all(len(line) <= 100 for one in pictures for line in one)
    assert done.stderr.splitlines() == ["next: repro logs b-id   # why b failed"]


@pytest.mark.parametrize("watch", [["--watch"], []])
def test_a_long_reason_hides_neither_job_nor_verdict_nor_class_nor_rate(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch, watch: list[str]
) -> None:
    reason = "the log has no iteration, and " * 20
    slurm.submit("a")
    slurm.start("a-id", log_text(2))
    slurm.end("a-id", "FAILED", "failed", failure="program", verdict_reason=reason)
    on_a_terminal(monkeypatch, columns=80)
    done = repro("status", *watch)
    lines = frames(done)[-1] if watch else done.stdout.splitlines()
    header = next(line for line in lines if line.startswith("JOB"))
    assert {"JOB", "VERDICT", "FAILURE", "TFLOPS_PER_GPU"} <= set(header.split())
    if watch:
        assert any(line.startswith("not shown: ") for line in lines)
    else:
        assert reason.split() == " ".join(lines[2:]).split()[1:]


def test_watch_on_a_dumb_terminal_appends_changes(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.submit("a")
    slurm.on_query = [lambda: slurm.start("a-id", log_text(2)), lambda: slurm.end("a-id")]
    on_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    done = repro("status", "--watch")
    assert "\033" not in done.stdout
    states = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("a-id")]
    assert states == ["RUNNING", "COMPLETED"]


def test_a_small_terminal_shows_running_jobs_first_and_never_scrolls(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"job{number}" for number in range(30)]
    slurm.submit(*names)
    for name in names[:10]:
        slurm.end(f"{name}-id")
    slurm.start("job25-id", log_text(2))
    slurm.end("job26-id", "FAILED", "failed")
    slurm.on_query = [lambda: None, press_ctrl_c]
    on_a_terminal(monkeypatch, lines=12)
    recorded, picture = frames(repro("status", "--watch"))
    assert len(recorded) < 12 and len(picture) < 12
    assert [line.split()[0] for line in picture if line.startswith("job")][:3] == ["job25-id", "job26-id", "job10-id"]
    assert "more rows not shown" in "".join(picture)
    assert "10/30 verified" in picture[0]


def test_ctrl_c_ends_the_watching_and_not_the_jobs(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.on_query = [lambda: None, press_ctrl_c]
    done = repro("status", "--watch")
    assert done.returncode == 130 and done.stderr.splitlines()[-1] == "no longer watching; the jobs continue"
    assert slurm.row("a-id").phase == "waiting"
