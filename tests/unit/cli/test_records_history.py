"""Tests of `repro history`: attempts with their metrics, events with their times and causes."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest

from orchestrator.ledger.attempts import Observation, record_observations
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.tables import ENDED, FAILED, RUNNING, VERIFIED
from tests.recorded_jobs import SimulatedSlurm
from tests.unit.cli.calling import Caller

NOON = datetime(2026, 1, 1, 12)


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    """Return a ledger with a job that reached its time limit and was verified in its second attempt."""
    slurm = SimulatedSlurm.install(repro.site.folder, monkeypatch)
    slurm.submit("a", "b")
    first = slurm.row("a-id").attempt_id
    runs = Observation(state="RUNNING", phase=RUNNING, nodes="n[1-2]", started_at=NOON, seen_via="squeue")
    ended = Observation(
        state="TIMEOUT", phase=ENDED, exit_code=0, signal=15, ended_at=NOON + timedelta(hours=1), reason="TimeLimit"
    )
    for seen in (runs, ended):
        record_observations(slurm.ledger, {first: seen}, [first])
    why = "TIMEOUT; its log ends at iteration 5 of 8"
    record_measurements(slurm.ledger, [Measurement(first, 5, FAILED, why, (), (), "timeout")])
    slurm.submit("a", token="18")
    second = slurm.row("a-id").attempt_id
    done = Observation(state="COMPLETED", phase=ENDED, nodes="n3", exit_code=0, ended_at=NOON + timedelta(hours=3))
    record_observations(slurm.ledger, {second: done}, [second])
    metrics = (
        MeasuredMetric("iteration_ms", 250.0, "ms", 1.0, 6),
        MeasuredMetric("tflops_per_gpu", 120.5, "TFLOP/s", 0.5, 6),
    )
    record_measurements(slurm.ledger, [Measurement(second, 8, VERIFIED, None, (), metrics)])
    return slurm


@pytest.mark.usefixtures("slurm")
def test_every_attempt_and_every_event_is_shown_with_its_time_and_cause(repro: Caller) -> None:
    done = repro("history", "a-id")
    assert done.returncode == 0
    attempts, events = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert len(attempts) == 3
    for word in (
        "17_0",
        "n[1-2]",
        "TIMEOUT",
        "failed",
        "timeout",
        "15",
        "2026-01-01T12:00:00Z",
        "2026-01-01T13:00:00Z",
    ):
        assert f" {word} " in attempts[1]
    for word in ("18_0", "n3", "COMPLETED", "verified", "250", "120.5", "6"):
        assert f" {word} " in attempts[2]
    assert attempts[1].endswith("its log ends at iteration 5 of 8")
    assert events[0].split() == ["AT", "ATTEMPT", "EVENT", "DETAIL"]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in events[1:])
    told = "\n".join(events)
    order = [
        "2 missing",
        "17_0",
        "PENDING -> RUNNING (via squeue)",
        "RUNNING -> TIMEOUT: TimeLimit",
        "failed (timeout): TIMEOUT",
        "1 missing",
        "18_0",
        "PENDING -> COMPLETED",
        "verified: every check passed",
    ]
    places = [told.index(detail) for detail in order]
    assert places == sorted(places)
    assert done.stderr.splitlines()[0] == "a-id: a of sc21/figure-13 at scale cpu on local, pretrain"
    assert done.stderr.splitlines()[-1].startswith("next: repro logs a-id --attempt 1 ")


@pytest.mark.usefixtures("slurm")
def test_a_value_that_no_attempt_has_gets_no_column(repro: Caller) -> None:
    done = repro("history", "b-id")
    header, line = done.stdout.split("\n\n")[0].splitlines()
    assert header.split() == ["ATTEMPT", "ID", "STATE", "SUBMITTED"] and " 17_1 " in line
    assert done.stderr.splitlines()[-1].startswith("next: repro logs b-id ")
