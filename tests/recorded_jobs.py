"""Runs, jobs, attempts and results that tests write into a ledger. Nothing runs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.catalog.case import with_changes
from orchestrator.catalog.library import Entry
from orchestrator.job_spec import JobSpec
from orchestrator.ledger import runs
from orchestrator.ledger.attempts import RefreshResult, job_rows
from orchestrator.ledger.database import Ledger, ledger_url, now, open_ledger
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import AttemptRow, JobRow
from orchestrator.ledger.runs import (
    Disposition,
    NewAttempt,
    NewJob,
    NewRun,
    Recorded,
    Submitter,
    claim,
    queued_attempts,
    record_submission,
)
from orchestrator.ledger.tables import VERIFIED, Attempt, Event, Metric, Run, SchedulerKind, field_values, rows_of
from orchestrator.megatron.case import TrainingCase
from orchestrator.reading.failure import OUT_OF_MEMORY
from orchestrator.results.cases import Result, case_results
from orchestrator.results.outcome import FigureOutcome, judge_stored
from tests.cases import cases_to_run, expand

# ---- runs, jobs and attempts ---------------------------------------------------------------------------------

_RUN_IDS = (f"20260101-000000-{number:04x}" for number in itertools.count())

JOB_SPEC = {
    "point": {"pp": 1, "gbs": 4},
    "device": "cpu",
    "model": {"layers": 4, "hidden": 256, "heads": 8, "seq": 64, "vocab": 1024},
    "layout": {"gpus": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "micro_batch_size": 1, "global_batch_size": 4},
    "training": {"recompute": "full", "warmup_iterations": 2},
    "gpus_per_node": 4,
    "peak_tflops": None,
}


def job_spec(**changes: object) -> JobSpec:
    """Return the configuration above with other parts."""
    return JobSpec.from_json(JOB_SPEC | changes)


def new_ledger(folder: Path) -> Ledger:
    """Return the ledger of this folder. Create it if there is none."""
    return ledger_at(ledger_url(None, folder))


def ledger_at(url: sa.URL) -> Ledger:
    """Return the ledger of this database. Create it if there is none."""
    ledger = open_ledger(url)
    assert ledger is not None
    return ledger


def new_run(experiment: str = "sc21/figure-13", scale: str = "cpu", host: str = "here", pid: int = 1) -> NewRun:
    return NewRun(
        id=next(_RUN_IDS),
        experiment=experiment,
        scale=scale,
        cluster="local",
        user="me",
        host=host,
        pid=pid,
        command=["repro", "submit"],
        git_commit="c0ffee",
        git_dirty=False,
        versions={"repro": "0"},
        profile={"about": "a test"},
    )


def new_job(name: str, scheduler: SchedulerKind = "local") -> NewJob:
    return NewJob(
        id=f"{name}-id",
        case_name=name,
        cluster="local",
        program="pretrain",
        code="code",
        image=None,
        spec=job_spec(),
        gpus=4,
        iterations=8,
        scheduler=scheduler,
    )


def new_attempts(
    folder: str = "/nowhere", array: bool = True, scripts: Mapping[str, str] | None = None
) -> Callable[[Collection[str]], Mapping[str, NewAttempt]]:
    """Return the function that makes an attempt for each missing job, all in one file; `scripts` by job id."""

    def make(missing: Collection[str]) -> Mapping[str, NewAttempt]:
        texts = scripts or dict.fromkeys(missing, "a script")
        return {
            job_id: NewAttempt(
                file=f"{folder}/queue",
                array_index=index if array else None,
                options=(),
                is_requeued=False,
                folder=f"{folder}/{job_id}",
                script=texts[job_id],
                script_sha256=hashlib.sha256(texts[job_id].encode()).hexdigest(),
            )
            for index, job_id in enumerate(missing)
        }

    return make


def record_run(
    ledger: Ledger,
    run: NewRun,
    jobs: Sequence[NewJob],
    decide: Callable[[str, AttemptRow | None], Disposition],
    make: Callable[[Collection[str]], Mapping[str, NewAttempt]],
) -> Recorded:
    """Store a run with an attempt for each job that `decide` finds missing."""
    with runs.new_run(ledger, run, jobs) as transaction:
        latest = {job_id: attempts[-1] for job_id, attempts in transaction.before.items()}
        dispositions = {job.id: decide(job.id, latest.get(job.id)) for job in jobs}
        missing = [job_id for job_id, of in dispositions.items() if of is Disposition.MISSING]
        return transaction.add(dispositions, make(missing), {})


def unless_verified(_job_id: str, latest: AttemptRow | None) -> Disposition:
    """Return MISSING for a job without an attempt and for a failed job."""
    if latest is None:
        return Disposition.MISSING
    if latest.verdict is None:
        return Disposition.UNDER_WAY
    return Disposition.DONE if latest.verdict == VERIFIED else Disposition.MISSING


def record_jobs(
    ledger: Ledger,
    *names: str,
    token: str = "token",
    run: NewRun | None = None,
    scheduler: SchedulerKind = "local",
    array: bool = True,
) -> Recorded:
    """Store a run of these jobs, whose attempts are claimed under the token and have no scheduler id yet."""
    run = run or new_run()
    jobs = [new_job(name, scheduler) for name in names]
    recorded = record_run(ledger, run, jobs, unless_verified, new_attempts(array=array))
    claimed = [attempt.attempt_id for attempt in queued_attempts(ledger, run_id=run.id)]
    assert claim(ledger, claimed, token, Submitter(run.host, run.user, run.pid, run.machine, run.pid_start_ticks))
    return recorded


# ---- jobs that run ---------------------------------------------------------------------------------------------

INTERVAL_LINE = (
    "0:  [2026-01-01 00:00:00.000000] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration"
    " (ms): {:.1f} | learning rate: 1.000000E-04 | global batch size:     4 | lm loss: 6.9E+00 | loss scale: 1.0 |"
    " grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def log_text(last: int, of: int = 8, ms: float = 60_000) -> str:
    """Return the log of a job at iteration `last`. The first iteration takes four times as long as the others."""
    return "".join(INTERVAL_LINE.format(n, of, 4 * n, 4 * ms if n == 1 else ms) for n in range(1, last + 1))


@dataclass
class SimulatedSlurm:
    """Slurm jobs of a home folder. A test writes their states into the ledger.

    Each query of the scheduler calls the next function of `on_query`, and returns `answer`. `intervals_s` has the
    minimum interval of each query.
    """

    home: Path
    ledger: Ledger
    on_query: list[Callable[[], None]] = field(default_factory=list)
    intervals_s: list[float] = field(default_factory=list)
    answer: RefreshResult = field(default_factory=RefreshResult)

    @staticmethod
    def install(home: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
        """Replace the queries of `repro`."""
        slurm = SimulatedSlurm(home, new_ledger(home))
        monkeypatch.setattr("orchestrator.launch.refresh.refresh", slurm._refresh)
        return slurm

    def submit(self, *names: str, token: str = "17") -> None:
        """Record pending jobs: `a` is the job `a-id` with the scheduler id 17_0, and so on. Each has a run folder."""
        record_jobs(self.ledger, *names, token=token, scheduler="slurm")
        record_submission(self.ledger, token, token)
        for row in job_rows(self.ledger, only_open=True):
            folder = self.run_folder(row.job_id, row.number)
            folder.mkdir(parents=True, exist_ok=True)
            self.update(row.job_id, folder=str(folder))

    def run_folder(self, job_id: str, number: int = 1) -> Path:
        return self.home / "runs" / f"{job_id}-{number}"

    def update(self, job_id: str, **columns: Any) -> None:
        """Change columns of the job's latest attempt."""
        newest = sa.select(sa.func.max(Attempt.id)).where(Attempt.job_id == job_id).scalar_subquery()
        with self.ledger.writing() as session:
            session.execute(sa.update(Attempt).where(Attempt.id == newest).values(**columns))

    def start(self, job_id: str, log: str | bytes = b"", **columns: Any) -> None:
        """Make the job running, with this log."""
        self.update(job_id, state="RUNNING", phase="running", reason=None, started_at=now(), **columns)
        self.write_log(job_id, log)

    def write_log(self, job_id: str, log: str | bytes) -> None:
        """Append to the job's log."""
        number = self.row(job_id).number
        with (self.run_folder(job_id, number) / "log.txt").open("ab") as file:
            file.write(log.encode() if isinstance(log, str) else log)

    def end(self, job_id: str, state: str = "COMPLETED", verdict: str = "verified", **columns: Any) -> None:
        """End the job with this state and verdict."""
        self.update(job_id, state=state, phase="ended", ended_at=now(), verdict=verdict, **columns)

    def row(self, job_id: str) -> JobRow:
        return next(row for row in job_rows(self.ledger) if row.job_id == job_id)

    def _refresh(self, _ledger: Ledger, at_most_every_s: float = 0.0) -> RefreshResult:
        self.intervals_s.append(at_most_every_s)
        if self.on_query:
            self.on_query.pop(0)()
        return self.answer


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


# ---- results -----------------------------------------------------------------------------------------------------

START = datetime(2026, 1, 2, 3, 4, 5)
SCRIPT = "#!/bin/bash\n# {name}\nset -euo pipefail\nsrun python pretrain.py \\\n  --train-iters 8\n"

_VERIFIED: dict[str, Any] = {
    "state": "COMPLETED",
    "phase": "ended",
    "exit_code": 0,
    "iteration": 8,
    "verdict": "verified",
}
CRASHED: dict[str, Any] = {
    "state": "FAILED",
    "phase": "ended",
    "exit_code": 7,
    "iteration": 3,
    "verdict": "failed",
    "failure": "program",
    "verdict_reason": "FAILED with exit code 7",
}
GPU_OOM: dict[str, Any] = {
    "state": "FAILED",
    "phase": "ended",
    "exit_code": 1,
    "verdict": "failed",
    "failure": "gpu-oom",
    "verdict_reason": OUT_OF_MEMORY,
    "deciding_line": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    "deciding_rank": 3,
}
PENDING: dict[str, Any] = {"state": "PENDING", "phase": "waiting", "reason": "Priority", "verdict": None}


@dataclass(frozen=True)
class Outcome:
    """Result of a case: the value of the figure's metric, or the columns of an attempt that is not verified.

    `spread` has the unit of the value; None is 1 % of the value.
    """

    value: float | None = None
    spread: float | None = None
    host_wait_percent: float | None = None
    execution: str | None = None
    columns: Mapping[str, Any] = field(default_factory=lambda: _VERIFIED)

    def metrics(self, metric: str) -> list[MeasuredMetric]:
        """Return the metrics of six iterations. An iteration takes 1000 ms divided by the value."""
        if self.value is None:
            return []
        spread = self.value / 100 if self.spread is None else self.spread
        ms = 1000 / self.value
        metrics = [MeasuredMetric("iteration_ms", ms, "ms", ms * spread / self.value, 6)]
        if metric != "iteration_ms":
            metrics.append(MeasuredMetric(metric, self.value, "", spread, 6))
        if self.host_wait_percent is not None:
            metrics.append(MeasuredMetric("host_wait_ms", self.host_wait_percent / 100 * ms, "ms", 0.0, 6))
            metrics.append(MeasuredMetric("host_wait_percent", self.host_wait_percent, "%", 0.0, 6))
        return metrics


def record_results(
    ledger: Ledger,
    entry: Entry,
    scale: str,
    outcomes: Mapping[str, Outcome | float],
    *,
    at: datetime = START,
    cluster: str = "selene",
    gpu: str = "A100-SXM4-80GB",
    code: str = "6985e589",
    repeat: int = 1,
    script: str = SCRIPT,
    changes: Sequence[str] = (),
    **run_fields: Any,
) -> str:
    """Record a run of the named cases that started at this time and took six minutes. Return its id.

    A number is the outcome of a verified case. `{name}` in the script is the name of the case. `changes` are those of
    the program's arguments.
    """
    cases = {case.name: case for case in with_changes(expand(entry, scale), changes)}
    run = replace(
        new_run(entry.name, scale, host="login-1"),
        id=f"{at:%Y%m%d-%H%M%S}-{len(runs.run_ids(ledger)):04x}",
        cluster=cluster,
        git_commit="c0ffee1234",
        command=["repro", "submit", entry.short_name, "--cluster", cluster, "--scale", scale],
        versions={"repro": "0.1", "python": "3.11.2", "submitit": "1.5.4"},
        profile={"about": "a test", "slurm": {"partition": "batch"}},
        profile_file=f"clusters/{cluster}.yaml",
    )
    run = replace(run, **run_fields)
    jobs = {name: _job_of(cases[name], entry, cluster, gpu, code, repeat) for name in outcomes}
    scripts = {job.id: script.format(name=name) for name, job in jobs.items()}
    record_run(ledger, run, list(jobs.values()), lambda *_: Disposition.MISSING, new_attempts("/runs", scripts=scripts))
    by_job = {
        jobs[name].id: outcome if isinstance(outcome, Outcome) else Outcome(outcome)
        for name, outcome in outcomes.items()
    }
    _record_outcomes(ledger, run.id, at, entry.experiment.plot.y.metric, by_job)
    return run.id


def record_figure(
    ledger: Ledger, entry: Entry, scale: str, outcome: Callable[[int, TrainingCase], Outcome], **options: Any
) -> FigureOutcome:
    """Record a run of all cases by `record_results` with these options. Return the figure that the ledger has."""
    outcomes = {case.name: outcome(number, case) for number, case in enumerate(cases_to_run(entry, scale))}
    record_results(ledger, entry, scale, outcomes, **options)
    return judge_stored(ledger, entry, scale)


def _job_of(case: TrainingCase, entry: Entry, cluster: str, gpu: str, code: str, repeat: int) -> NewJob:
    identity = f"{cluster} {entry.name} {case.scale} {case.name} {code} {repeat} {case.argument_changes}"
    on_gpus = case.device == "gpu"
    spec = job_spec(
        point=dict(case.point),
        settings=case.settings,
        device=case.device,
        gpus_per_node=8,
        gpu=gpu if on_gpus else None,
        argument_changes=case.argument_changes,
    )
    return replace(
        new_job(case.name, "slurm"),
        id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        cluster=cluster,
        program=case.program,
        code=code,
        image="pytorch-20.12-py3.sqsh",
        gpus=case.layout.gpus,
        spec=spec,
        repeat=repeat,
    )


def _record_outcomes(ledger: Ledger, run_id: str, at: datetime, metric: str, outcomes: Mapping[str, Outcome]) -> None:
    with ledger.writing() as session:
        ids = dict(session.execute(sa.select(Attempt.job_id, Attempt.id).where(Attempt.run_id == run_id)).all())
        metrics: list[dict[str, object]] = []
        for index, (job_id, outcome) in enumerate(outcomes.items()):
            columns: dict[str, Any] = {"scheduler_id": f"17_{index}", "execution": outcome.execution}
            if outcome.columns["phase"] == "ended":
                columns |= {"started_at": at, "ended_at": at + timedelta(minutes=6), "nodes": f"n[{index}-9]"}
            columns |= outcome.columns
            session.execute(sa.update(Attempt).where(Attempt.id == ids[job_id]).values(**columns))
            metrics += [{"attempt_id": ids[job_id], **field_values(one)} for one in outcome.metrics(metric)]
        if metrics:
            session.execute(sa.insert(rows_of(Metric)), metrics)
        session.execute(sa.update(Run).where(Run.id == run_id).values(created_at=at))
        session.execute(sa.update(Event).where(Event.run_id == run_id).values(at=at))


_JOB_ROWS: list[JobRow] = []


def job_row(folder: Path) -> JobRow:
    """Return the row of a verified job. It is made once, in a new ledger of the folder of the first call."""
    if not _JOB_ROWS:
        ledger = new_ledger(folder)
        record_jobs(ledger, "a")
        _JOB_ROWS.append(replace(job_rows(ledger)[0], scheduler_id="7_0", nodes="n1", **_VERIFIED))
    return _JOB_ROWS[0]


def measured_results(
    folder: Path,
    entry: Entry,
    scale: str,
    rates: Mapping[str, float],
    failed: tuple[str, ...] = (),
    out_of_memory: tuple[str, ...] = (),
    metric: str = "tflops_per_gpu",
    gpu: str | None = None,
    losses: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    noise: Mapping[str, float] | None = None,
    waits: Mapping[str, float] | None = None,
    modes: Mapping[str, str] | None = None,
    repeats: int = 1,
) -> list[Result]:
    """Return the results of all cases of the scale. The named cases have a job, the others have none.

    All arguments are by case. `rates` are values of the metric, `noise` the spread as a share of the value (0.01),
    `waits` the percentage of the time for which GPUs wait for the host, `modes` the execution mode. Equal `repeats`
    make numbers exact.
    """
    base, cases = job_row(folder), expand(entry, scale)
    base = replace(base, spec=replace(base.spec, gpu=gpu), scale=scale)
    ended = dict.fromkeys(rates, _VERIFIED) | dict.fromkeys(failed, CRASHED | {"verdict_reason": 'exit 1, "oom"'})
    ended |= dict.fromkeys(out_of_memory, GPU_OOM | {"verdict_reason": f"{OUT_OF_MEMORY} (rank 3)"})
    rows: list[JobRow] = []
    metrics: dict[int, dict[str, MeasuredMetric]] = {}
    logged: dict[int, Sequence[tuple[int, float]]] = {}
    for number, case in enumerate(cases, 1):
        if case.name in ended:
            rate = rates.get(case.name, 1.0)
            spread, wait = rate * (noise or {}).get(case.name, 0.01), (waits or {}).get(case.name)
            outcome = Outcome(rate, spread, wait, (modes or {}).get(case.name), ended[case.name])
            for attempt in range(number, number + repeats * len(cases), len(cases)):
                row = replace(base, case_name=case.name, job_id=f"job{number}", attempt_id=attempt)
                rows.append(replace(row, execution=outcome.execution, **outcome.columns))
                metrics[attempt] = {one.name: one for one in outcome.metrics(metric)}
                logged[attempt] = (losses or {}).get(case.name, ())
    return case_results(entry, cases, rows, metrics, logged)
