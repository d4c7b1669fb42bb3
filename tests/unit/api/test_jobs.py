"""Status of jobs: state, verdict, progress, speed, reasons, costs; their selection and their history."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator import api, files
from orchestrator.errors import ReproError
from orchestrator.ledger.attempts import RefreshResult, record_observations
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.tables import ENDED, FAILED, RUNNING, VERIFIED, Attempt, Job
from orchestrator.reading.job_status import duration
from tests.recorded_jobs import SimulatedSlurm, log_text, new_run, record_jobs
from tests.unit.api.project import Project, problems


def test_many_jobs_are_counted_by_experiment_and_no_row_of_a_job_is_read(
    project: Project, simulated: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.submit("a", "b", "c", "d")
    simulated.end("a-id")
    simulated.end("b-id", "TIMEOUT", "failed", failure="timeout")
    simulated.start("c-id", log_text(2))
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.api.jobs.job_statuses", None)
        status = api.status(most_jobs=3, session=project.session)
    (counts,) = status.experiments
    assert (status.jobs, counts.experiment, counts.cases, counts.verified) == ((), "sc21/figure-13", 4, 1)
    assert (counts.running, counts.waiting, counts.failures) == (1, 1, {"timeout": 1})
    assert status.tallies[0].text() == "1/4 verified, 1 running, 1 waiting, 1 failed (1 timeout)"
    assert len(project.jobs("figure-13", most_jobs=3)) == 4, "the jobs of a named experiment are listed"


def test_a_running_job_has_progress_speed_and_remaining_time(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.start("a-id", log_text(3))
    job = project.jobs()["a-id"]
    assert (job.iteration, job.left_s, job.left_by) == (3, 5 * 60, "pace")
    # Equation 3 by hand, as in test_statistics: 7113539584 FLOPs in 60 s on 4 GPUs.
    assert job.tflops_per_gpu == pytest.approx(7113539584 / 60 / 4 / 1e12)
    assert (job.progress, job.left) == ("3/8", "5m")
    simulated.write_log("a-id", log_text(4)[-400:])
    assert project.jobs()["a-id"].iteration == 4


def test_the_remaining_time_is_the_time_limit_if_that_comes_first(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b", "c")
    in_two_minutes = now() + timedelta(minutes=2, seconds=1)
    simulated.start("a-id", log_text(3), ends_at=in_two_minutes)
    simulated.start("b-id", log_text(7), ends_at=in_two_minutes)
    simulated.start("c-id", "loading\n", ends_at=in_two_minutes)
    a, b, c = project.jobs().values()
    assert [job.left_by for job in (a, b, c)] == ["time limit", "pace", "time limit"]
    assert 115 <= (a.left_s or 0) <= 121 and b.left_s == 60 and str(a.left).endswith("m (time limit)")
    assert re.fullmatch("needs [23]m more than its time limit at this pace", str(a.why))
    assert b.why is None and c.why is None


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files since it started."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_only_the_end_of_a_running_jobs_log_is_read_and_nothing_of_a_waiting_jobs(
    project: Project, simulated: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.submit("a", "b")
    simulated.start("a-id")
    with (simulated.run_folder("a-id") / "log.txt").open("r+b") as file:
        file.truncate(1 << 30)  # a hole: it takes no room
    simulated.write_log("a-id", "\n" + log_text(5))
    simulated.write_log("b-id", log_text(8))
    read: list[tuple[str, int]] = []
    tail_bytes = files.tail_bytes

    def counting(folder: Any, name: str, last: int) -> bytes:
        tail = tail_bytes(folder, name, last)
        read.append((folder.name, len(tail)))
        return tail

    monkeypatch.setattr("orchestrator.megatron.logs.reader.tail_bytes", counting)
    began, bytes_before = time.process_time(), bytes_read()
    jobs = project.jobs()
    assert time.process_time() - began < 1.0 and bytes_read() - bytes_before < 1 << 20
    assert (jobs["a-id"].iteration, jobs["b-id"].iteration) == (5, 0)
    assert read == [("a-id-1", 64 * 1024)]


def test_an_unreadable_log_is_reported_and_the_other_jobs_are_shown(
    project: Project, simulated: SimulatedSlurm
) -> None:
    simulated.submit("a", "b")
    for job in ("a-id", "b-id"):
        simulated.start(job, log_text(2))
    log = simulated.run_folder("a-id") / "log.txt"
    log.unlink()
    log.symlink_to("/etc/hostname")
    jobs = project.jobs()
    assert "is a link and not a file, so it is not read" in str(jobs["a-id"].why)
    assert (jobs["a-id"].iteration, jobs["b-id"].iteration) == (0, 2)


def test_a_waiting_job_has_its_start_time_and_reason(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b", "c", "d")
    starts = now() + timedelta(minutes=1)
    simulated.update("a-id", starts_at=starts, reason="Priority")
    simulated.update("b-id", reason="JobHeldUser")
    simulated.update("c-id", reason="SomethingOfNextYear")
    simulated.update("d-id", state="QUEUED", scheduler_id=None, reason="the queue is full")
    a, b, c, d = project.jobs().values()
    assert a.starts_at == starts and str(a.left).startswith("starts ")
    assert str(a.why).startswith("Priority: waits behind jobs of higher priority")
    assert "scontrol release 17_1" in str(b.why) and str(b.why).startswith("JobHeldUser: is held")
    assert str(c.why).startswith("SomethingOfNextYear") and d.why == "the queue is full"


def test_repeats_and_programs_are_told_apart(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b")
    with simulated.ledger.writing() as session:
        session.execute(sa.update(Job).where(Job.id == "b-id").values(repeat=2, program="megatron-2021"))
    a, b = project.jobs().values()
    assert (a.case, a.repeat, a.program) == ("a", 1, "pretrain")
    assert (b.case, b.repeat, b.program) == ("b", 2, "megatron-2021")


def test_states_that_could_not_be_refreshed_have_their_age(project: Project, simulated: SimulatedSlurm) -> None:
    def notes() -> tuple[str, ...]:
        return api.status(session=project.session).notes

    simulated.submit("a")
    simulated.update("a-id", refreshed_at=now() - timedelta(minutes=4, seconds=5))
    simulated.answer = RefreshResult(("squeue: no answer",), now())
    assert notes() == ("note: squeue: no answer", "note: states are from 4m ago")
    simulated.update("a-id", refreshed_at=now() + timedelta(seconds=1))  # only accounting is away
    assert notes() == ("note: squeue: no answer",)
    simulated.answer = RefreshResult((), now())
    assert notes() == ()


def test_jobs_are_selected_by_slurms_states_and_by_verdict(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b", "c", "d")
    simulated.end("a-id")
    simulated.end("b-id", "TIMEOUT", "failed", failure="timeout", verdict_reason="TIMEOUT")
    simulated.start("c-id", log_text(2))
    for state, jobs in (
        ("verified", ["a-id"]),
        ("Failed", ["b-id"]),
        ("timeout", ["b-id"]),
        ("running,pending", ["c-id", "d-id"]),
    ):
        assert list(project.jobs(state=state)) == jobs, state
    assert project.jobs(state="completed", cluster="elsewhere") == {}
    with pytest.raises(ReproError) as caught:
        project.jobs(state="runing,verified")
    assert problems(caught) == ['--state runing: no such state. Did you mean "RUNNING"?']
    with pytest.raises(ReproError, match=r"Hint: a state of Slurm \(PENDING, "):
        api.cancel("figure-13", state="xyz", session=project.session)
    assert api.cancel("figure-13", state="queued", session=project.session).asked == []
    # A later attempt does not hide a verified result.
    simulated.submit("a", token="18")
    simulated.start("a-id", log_text(2))
    assert list(project.jobs(state="verified")) == ["a-id"]
    assert list(project.jobs(state="running")) == ["a-id", "c-id"]


def ended_jobs(project: Project, *names: str, **run: Any) -> Ledger:
    ledger = project.ledger
    record_jobs(ledger, *names, run=replace(new_run(), **run))
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(state="COMPLETED", phase="ended"))
    return ledger


def test_a_job_has_its_gpu_hours_their_cost_by_the_price_of_the_run_and_its_energy(project: Project) -> None:
    ledger = ended_jobs(project, "a", "b", profile={"price_per_gpu_hour": {"value": 2, "currency": "EUR"}})
    metrics = (MeasuredMetric("gpu_hours", 3.0, "h"), MeasuredMetric("joules_per_token", 0.25, "J"))
    gap = "GPU 3 of n1: 7.0 s without a sample of its power; at most 3 s are accepted"
    measured = [
        Measurement(1, 8, "verified", None, (), metrics),
        Measurement(2, 8, "verified", None, (), metrics[:1], no_energy=gap),
    ]
    record_measurements(ledger, measured)
    jobs = project.jobs().values()
    assert [(job.gpu_hours, job.cost, job.currency) for job in jobs] == [(3, 6, "EUR")] * 2
    assert [(job.joules_per_token, job.no_energy) for job in jobs] == [(0.25, None), (None, gap)]
    assert api.spent_text(list(jobs)) == "6 GPU-hours (12.00 EUR) in the attempts shown"


def test_a_verified_job_with_noisy_times_is_marked(project: Project) -> None:
    ledger = ended_jobs(project, "a", "b")
    quiet, noisy = (MeasuredMetric("iteration_ms", 200.0, "ms", spread, 6) for spread in (2.0, 180.0))
    measured = [Measurement(number, 8, "verified", None, (), (one,)) for number, one in ((1, quiet), (2, noisy))]
    record_measurements(ledger, measured)
    assert [job.why for job in project.jobs().values()] == [None, "noisy: spread 90 % of the median"]


def test_a_duration_is_short_and_in_two_units_at_most() -> None:
    texts = {-3: "0s", 59.4: "59s", 60: "1m", 3599: "59m", 3900: "1h05m", 86399: "23h59m", 90000: "1d01h"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


# ---- history -------------------------------------------------------------------------------------------------

NOON = datetime(2026, 1, 1, 12)


def test_the_history_of_a_job_has_every_attempt_with_its_metrics_and_every_event(
    project: Project, simulated: SimulatedSlurm
) -> None:
    """The job reaches its time limit, and is verified in its second attempt."""
    simulated.submit("a", "b")
    first = simulated.row("a-id").attempt_id
    runs = Observation(state="RUNNING", phase=RUNNING, nodes="n[1-2]", started_at=NOON, seen_via="squeue")
    ended = Observation(
        state="TIMEOUT", phase=ENDED, exit_code=0, signal=15, ended_at=NOON + timedelta(hours=1), reason="TimeLimit"
    )
    for seen in (runs, ended):
        record_observations(simulated.ledger, {first: seen}, [first])
    why = "TIMEOUT; its log ends at iteration 5 of 8"
    record_measurements(simulated.ledger, [Measurement(first, 5, FAILED, why, (), (), "timeout")])
    simulated.submit("a", token="18")
    second = simulated.row("a-id").attempt_id
    done = Observation(state="COMPLETED", phase=ENDED, nodes="n3", exit_code=0, ended_at=NOON + timedelta(hours=3))
    record_observations(simulated.ledger, {second: done}, [second])
    metric = MeasuredMetric("iteration_ms", 250.0, "ms", 1.0, 6)
    record_measurements(simulated.ledger, [Measurement(second, 8, VERIFIED, None, (), (metric,))])
    digest = f"sha256:{64 * 'a'}"
    with simulated.ledger.writing() as session:
        session.execute(sa.update(Job).where(Job.id == "a-id").values(image="pretrain", image_digest=digest))
    history = api.history("a-id", session=project.session)
    one, two = history.attempts
    assert (one.number, one.nodes, one.failure, one.signal, one.user) == (1, "n[1-2]", "timeout", 15, "me")
    assert (one.started_at, one.ended_at, one.metrics) == (NOON, NOON + timedelta(hours=1), {})
    assert one.folder.endswith("a-id-1") and {attempt.image_digest for attempt in history.attempts} == {digest}
    assert (two.scheduler_id, two.nodes, two.verdict, two.metrics) == ("18_0", "n3", "verified", {metric.name: metric})
    details = [str(event.detail) for attempt in history.attempts for event in attempt.events]
    order = [
        *("2 missing", "17_0", "PENDING -> RUNNING (via squeue)", "RUNNING -> TIMEOUT: TimeLimit"),
        *("failed (timeout): TIMEOUT", "1 missing", "18_0", "PENDING -> COMPLETED", "verified: every check passed"),
    ]
    places = [next(place for place, detail in enumerate(details) if word in detail) for word in order]
    assert places == sorted(places)


def test_a_history_is_of_one_job(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b")
    for word, what in (
        ("figure-13", "figure-13: 2 jobs, expected one"),
        ("zzz", "zzz: no experiment or job of this name"),
    ):
        with pytest.raises(ReproError, match=f"^{what}. Hint: repro status shows the jobs$"):
            api.history(word, session=project.session)
