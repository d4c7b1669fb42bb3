"""Tests of `repro status`: state, verdict, progress, speed, reasons, and the watched picture."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.cli.job_table import bar
from orchestrator.ledger.attempts import RefreshResult
from orchestrator.ledger.database import now
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.tables import Attempt
from orchestrator.reading.job_status import ExperimentStatus, duration
from tests.recorded_jobs import SimulatedSlurm, log_text, new_ledger, new_run, press_ctrl_c, record_jobs
from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller, Done, everything_in

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    monkeypatch.setattr("orchestrator.cli.records.REDRAW_S", 0.0)
    return SimulatedSlurm.install(repro.site.folder, monkeypatch)


def shown(repro: Caller, *words: str) -> dict[str, dict[str, Any]]:
    """The rows by job."""
    done = repro("status", "--json", *words)
    assert done.returncode == 0, done.stderr
    return {row["job"]: row for row in json.loads(done.stdout)["jobs"]}


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


def test_status_has_state_and_verdict_in_two_columns_and_a_bar(
    finished: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = Caller(finished, monkeypatch, capsys)("status", "figure-13", "--where", "pp=4")
    assert status.returncode == 0
    header, *rows = status.stdout.splitlines()
    assert header.split() == ["JOB", "CASE", "STATE", "VERDICT", "ITERATION", "TFLOPS_PER_GPU", "ID"]
    cases = ["pp=4,tp=1,gbs=4", "pp=4,tp=1,gbs=16"]
    assert [row.split()[1:5] for row in rows] == [[case, "COMPLETED", "verified", "8/8"] for case in cases]
    bar, after = status.stderr.splitlines()
    assert bar == "figure-13 cpu here [##########] 2/2 verified"
    assert after.startswith("next: repro collect figure-13 --where pp=4 ")


def test_many_jobs_are_counted_by_experiment_and_a_named_one_lists_its_cases(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.submit("a", "b", "c", "d")
    slurm.end("a-id")
    slurm.end("b-id", "TIMEOUT", "failed", failure="timeout")
    slurm.start("c-id", log_text(2))
    monkeypatch.setattr("orchestrator.cli.records.MOST_JOBS", 3)
    # Not one row of a job is read for it.
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.api.jobs.job_statuses", None)
        done = repro("status")
    document = json.loads(repro("status", "--json").stdout)
    (counts,) = document["experiments"]
    assert len(document["jobs"]) == 4, "the same rows for any number of jobs"
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == (
        "all experiments [##........] 1/4 verified, 1 running, 1 waiting, 1 failed (1 timeout)"
    )
    assert "1 timeout" in done.stdout.splitlines()[1]
    assert (counts["experiment"], counts["cases"], counts["verified"]) == ("sc21/figure-13", 4, 1)
    assert (counts["running"], counts["waiting"], counts["failures"]) == (1, 1, {"timeout": 1})
    assert len(shown(repro, "figure-13")) == 4


def test_a_running_job_has_progress_speed_and_remaining_time(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.start("a-id", log_text(3))
    row = shown(repro)["a-id"]
    assert (row["iteration"], row["left_s"], row["left_by"]) == (3, 5 * 60, "pace")
    # Equation 3 by hand, as in test_statistics: 7113539584 FLOPs in 60 s on 4 GPUs.
    assert row["tflops_per_gpu"] == pytest.approx(7113539584 / 60 / 4 / 1e12)
    header, line = repro("status").stdout.splitlines()
    assert "LEFT" in header and " 3/8 " in line and " 5m " in line
    slurm.write_log("a-id", log_text(4)[-400:])
    assert shown(repro)["a-id"]["iteration"] == 4


def test_the_remaining_time_is_the_time_limit_if_that_comes_first(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c")
    in_two_minutes = now() + timedelta(minutes=2, seconds=1)
    slurm.start("a-id", log_text(3), ends_at=in_two_minutes)
    slurm.start("b-id", log_text(7), ends_at=in_two_minutes)
    slurm.start("c-id", "loading\n", ends_at=in_two_minutes)
    rows = shown(repro)
    assert [rows[job]["left_by"] for job in ("a-id", "b-id", "c-id")] == ["time limit", "pace", "time limit"]
    assert 115 <= rows["a-id"]["left_s"] <= 121 and rows["b-id"]["left_s"] == 60
    assert re.fullmatch("needs [23]m more than its time limit at this pace", rows["a-id"]["why"])
    assert rows["b-id"]["why"] is None and rows["c-id"]["why"] is None
    lines = repro("status").stdout.splitlines()
    assert "m (time limit)" in lines[1] and "time limit" not in lines[2]


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files since it started."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_only_the_end_of_a_running_jobs_log_is_read_and_nothing_of_a_waiting_jobs(
    repro: Caller, slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.submit("a", "b")
    slurm.start("a-id")
    log = slurm.run_folder("a-id") / "log.txt"
    with log.open("r+b") as file:
        file.truncate(1 << 30)  # a hole: it takes no room
    slurm.write_log("a-id", "\n" + log_text(5))
    slurm.write_log("b-id", log_text(8))
    read: list[tuple[str, int]] = []
    from orchestrator import files

    tail_bytes = files.tail_bytes

    def counting(folder: Any, name: str, last: int) -> bytes:
        tail = tail_bytes(folder, name, last)
        read.append((folder.name, len(tail)))
        return tail

    monkeypatch.setattr("orchestrator.reading.job_status.tail_bytes", counting)
    began, bytes_before = time.monotonic(), bytes_read()
    rows = shown(repro)
    assert time.monotonic() - began < 1.0 and bytes_read() - bytes_before < 1 << 20
    assert (rows["a-id"]["iteration"], rows["b-id"]["iteration"]) == (5, 0)
    assert read == [("a-id-1", 64 * 1024)]


def test_an_unreadable_log_is_reported_and_the_other_jobs_are_shown(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    slurm.start("a-id", log_text(2))
    slurm.start("b-id", log_text(2))
    log = slurm.run_folder("a-id") / "log.txt"
    log.unlink()
    log.symlink_to("/etc/hostname")
    rows = shown(repro)
    assert "is a link and not a file, so it is not read" in rows["a-id"]["why"]
    assert (rows["a-id"]["iteration"], rows["b-id"]["iteration"]) == (0, 2)


def test_a_waiting_job_has_its_start_time_and_reason(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c", "d")
    starts = now() + timedelta(minutes=1)
    slurm.update("a-id", starts_at=starts, reason="Priority")
    slurm.update("b-id", reason="JobHeldUser")
    slurm.update("c-id", reason="SomethingOfNextYear")
    slurm.update("d-id", state="QUEUED", scheduler_id=None, reason="the queue is full")
    rows = shown(repro)
    assert rows["a-id"]["starts_at"] == f"{starts.replace(microsecond=0).isoformat()}Z"
    assert rows["a-id"]["why"].startswith("Priority: waits behind jobs of higher priority")
    assert "scontrol release 17_1" in rows["b-id"]["why"] and rows["b-id"]["why"].startswith("JobHeldUser: is held")
    assert rows["c-id"]["why"].startswith("SomethingOfNextYear") and rows["d-id"]["why"] == "the queue is full"
    here = starts.replace(tzinfo=timezone.utc).astimezone()
    line = repro("status").stdout.splitlines()[1]
    assert f"{here:%H:%M}" in line and "starts " in line


def test_an_experiment_has_one_bar_that_counts_failures_by_their_class(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b", "c", "d", "e", "f")
    for job in ("a-id", "b-id"):
        slurm.end(job)
    slurm.start("c-id")
    slurm.end("d-id", "TIMEOUT", "failed", failure="timeout")
    slurm.end("e-id", "FAILED", "failed", failure="gpu-oom")
    done = repro("status")
    assert done.stderr.splitlines()[0] == (
        "figure-13 cpu local [###.......] 2/6 verified, 1 running, 1 waiting, 2 failed (1 timeout, 1 gpu-oom)"
    )
    assert "FAILURE" in done.stdout.splitlines()[0] and " timeout " in done.stdout
    assert done.stderr.splitlines()[-1] == "next: repro logs d-id   # why d failed"


def test_a_bar_is_full_only_when_everything_is_measured() -> None:
    assert "[#########.]" in bar(ExperimentStatus("x", "", "", 1000, 998, 1, 0, 1, 0, {}))
    assert "[##########]" in bar(ExperimentStatus("x", "", "", 1000, 999, 1, 0, 0, 0, {}))
    assert bar(ExperimentStatus("x", "", "", 0, 0, 0, 0, 0, 0, {})) == "x [..........] 0/0 verified"


def test_only_values_that_differ_between_jobs_are_columns(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a", "b")
    assert "EXPERIMENT" not in repro("status").stdout
    with slurm.ledger.writing() as session:
        session.connection().exec_driver_sql("update jobs set repeat = 2, workload = 'megatron-2021' where id = 'b-id'")
    done = repro("status")
    assert "WORKLOAD" in done.stdout and " b #2 " in done.stdout and "SCALE" not in done.stdout
    rows = shown(repro)
    assert (rows["b-id"]["case"], rows["b-id"]["repeat"]) == ("b", 2)
    assert {row["experiment"] for row in rows.values()} == {"sc21/figure-13"}


def test_states_that_could_not_be_refreshed_are_shown_with_their_age(repro: Caller, slurm: SimulatedSlurm) -> None:
    slurm.submit("a")
    slurm.update("a-id", refreshed_at=now() - timedelta(minutes=4, seconds=5))
    slurm.answer = RefreshResult(("squeue: no answer",), now())
    done = repro("status")
    assert done.returncode == 0 and "PENDING" in done.stdout
    assert done.stderr.splitlines()[:2] == ["note: squeue: no answer", "note: states are from 4m ago"]
    slurm.update("a-id", refreshed_at=now() + timedelta(seconds=1))  # only accounting is away
    assert "states are from" not in repro("status").stderr
    slurm.answer = RefreshResult((), now())
    assert "note:" not in repro("status").stderr


@pytest.mark.parametrize("every", ["4.9", "0", "-1", "nan", "inf", "1e9"])
def test_the_interval_between_queries_has_limits(repro: Caller, slurm: SimulatedSlurm, every: str) -> None:
    slurm.submit("a")
    done = repro("status", "--watch", f"--every={every}")
    assert (done.returncode, done.stdout, slurm.intervals_s) == (2, "", [])
    assert len(done.complaints) == 1 and done.complaints[0].startswith("repro: --every ")


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
    done = repro("status", "--watch", "--json", "--every", "60")
    lists = [json.loads(line)["jobs"] for line in done.stdout.splitlines()]
    assert [[row["state"] for row in rows] for rows in lists] == [
        ["PENDING", "PENDING"],
        ["COMPLETED", "PENDING"],
        ["COMPLETED", "COMPLETED"],
    ]
    assert set(slurm.intervals_s) == {60.0}


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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0s"), (59.4, "59s"), (60, "1m"), (3599, "59m"), (3900, "1h05m"), (86399, "23h59m"), (90000, "1d01h")],
)
def test_a_duration_is_short_and_in_two_units_at_most(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_status_shows_gpu_hours_and_their_cost_by_the_price_of_the_run_and_wide_shows_energy(repro: Caller) -> None:
    ledger = new_ledger(repro.site.folder)
    record_jobs(
        ledger, "a", "b", run=replace(new_run(), profile={"price_per_gpu_hour": {"value": 2, "currency": "EUR"}})
    )
    metrics = (MeasuredMetric("gpu_hours", 3.0, "h"), MeasuredMetric("joules_per_token", 0.25, "J"))
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(state="COMPLETED", phase="ended"))
    gap = "GPU 3 of n1: 7.0 s without a sample of its power; at most 3 s are accepted"
    record_measurements(
        ledger,
        [
            Measurement(1, 8, "verified", None, (), metrics),
            Measurement(2, 8, "verified", None, (), metrics[:1], no_energy=gap),
        ],
    )
    done = repro("status")
    assert "6 GPU-hours (12.00 EUR) in the attempts shown" in done.complaints and "EUR" not in done.stdout
    wide = repro("status", "--wide").stdout
    assert "6.00 EUR" in wide and "0.25" in wide and gap in wide and "JOULES_PER_ITERATION" not in wide
    rows = json.loads(repro("status", "--json").stdout)["jobs"]
    assert [(row["gpu_hours"], row["cost"], row["currency"]) for row in rows] == [(3, 6, "EUR")] * 2
    assert [(row["joules_per_token"], row["no_energy"]) for row in rows] == [(0.25, None), (None, gap)]


def test_a_verified_job_with_noisy_times_is_marked(repro: Caller) -> None:
    ledger = new_ledger(repro.site.folder)
    record_jobs(ledger, "a", "b")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(state="COMPLETED", phase="ended"))
    quiet, noisy = (MeasuredMetric("iteration_ms", 200.0, "ms", spread, 6) for spread in (2.0, 180.0))
    record_measurements(
        ledger,
        [Measurement(1, 8, "verified", None, (), (quiet,)), Measurement(2, 8, "verified", None, (), (noisy,))],
    )
    rows = json.loads(repro("status", "--json").stdout)["jobs"]
    assert [row["why"] for row in rows] == [None, "noisy: spread 90 % of the median"]
