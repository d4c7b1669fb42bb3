"""Tests of `repro history`: attempts with their metrics, events with their times and causes."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import record_observations
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.tables import ENDED, FAILED, RUNNING, VERIFIED, Job
from tests.recorded_jobs import SimulatedSlurm
from tests.stand_in_site import Site
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
def test_json_has_the_same_a_list_of_attempts_each_with_its_events(repro: Caller) -> None:
    first, second = json.loads(repro("history", "a-id", "--json").stdout)["attempts"]
    assert (first["number"], first["nodes"], first["failure"], first["signal"]) == (1, "n[1-2]", "timeout", 15)
    assert (first["started_at"], first["ended_at"]) == ("2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z")
    assert first["metrics"] == {} and first["user"] == "me" and first["folder"].endswith("a-id-1")
    assert second["metrics"]["iteration_ms"] == {
        "name": "iteration_ms",
        "value": 250.0,
        "unit": "ms",
        "spread": 1.0,
        "count": 6,
    }
    assert [event["event"] for event in first["events"]][:2] == ["run", "submitted"]
    assert first["events"][-1]["detail"].startswith("failed (timeout)")
    assert second["events"][-1] == {
        "at": second["events"][-1]["at"],
        "event": "verdict",
        "detail": "verified: every check passed",
    }


def test_the_digest_of_the_jobs_image_is_shown(repro: Caller, slurm: SimulatedSlurm) -> None:
    digest = f"sha256:{64 * 'a'}"
    with slurm.ledger.writing() as session:
        session.execute(sa.update(Job).where(Job.id == "a-id").values(image="pretrain", image_digest=digest))
    done = repro("history", "a-id")
    assert f"image pretrain, {digest}" in done.stderr
    shown = json.loads(repro("history", "a-id", "--json").stdout)["attempts"]
    assert [(one["image"], one["image_digest"]) for one in shown] == 2 * [("pretrain", digest)]
    assert "image" not in repro("history", "b-id").stderr


@pytest.mark.usefixtures("slurm")
def test_a_value_that_no_attempt_has_gets_no_column(repro: Caller) -> None:
    done = repro("history", "b-id")
    header, line = done.stdout.split("\n\n")[0].splitlines()
    assert header.split() == ["ATTEMPT", "ID", "STATE", "SUBMITTED"] and " 17_1 " in line
    assert done.stderr.splitlines()[-1].startswith("next: repro logs b-id ")


@pytest.mark.usefixtures("slurm")
def test_a_history_is_of_one_job(repro: Caller) -> None:
    for word, what in (
        ("figure-13", "figure-13: 2 jobs, expected one. Hint: repro status shows the jobs"),
        ("zzz", "no experiment or job of this name"),
    ):
        done = repro("history", word)
        assert (done.returncode, done.stdout) == (2, "") and what in done.complaints[0]


def test_a_job_of_this_machine_has_its_past_too(
    repro: Caller, finished: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repro = Caller(finished, monkeypatch, capsys)
    job = json.loads(repro("status", "--json").stdout)["jobs"][0]
    (attempt,) = json.loads(repro("history", job["job"], "--json").stdout)["attempts"]
    assert (attempt["scheduler_id"], attempt["verdict"], attempt["exit_code"]) == (job["id"], "verified", 0)
    assert attempt["metrics"]["iteration_ms"]["count"] == 6 and attempt["ended_at"].endswith("Z")
    assert {"run", "submitted", "state", "verdict"} <= {event["event"] for event in attempt["events"]}
