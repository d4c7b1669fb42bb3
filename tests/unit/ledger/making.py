"""Runs, jobs and attempts for tests, with every field that does not matter filled in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa

from orchestrator.job_spec import JobSpec
from orchestrator.ledger import runs
from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from orchestrator.ledger.migrations import run_migrations
from orchestrator.ledger.rows import LatestAttempt
from orchestrator.ledger.runs import Disposition, Missing, NewAttempt, NewJob, NewRun, Recorded
from orchestrator.ledger.submissions import Submitter, claim, queued_attempts
from orchestrator.ledger.tables import VERIFIED, SchedulerKind

_RUN_IDS = (f"20260101-000000-{number:04x}" for number in itertools.count())

CONFIGURATION = {
    "point": {"pp": 1, "gbs": 4},
    "device": "cpu",
    "model": {"layers": 4, "hidden": 256, "heads": 8, "seq": 64, "vocab": 1024},
    "layout": {"gpus": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "micro_batch_size": 1, "global_batch_size": 4},
    "training": {"recompute": "full", "warmup_iterations": 2},
    "gpus_per_node": 4,
    "peak_tflops": None,
}


def job_spec(**changes: object) -> JobSpec:
    """The configuration above with other parts, as the ledger reads it."""
    return JobSpec.from_json(CONFIGURATION | changes)


def new_ledger(folder: Path) -> Ledger:
    """The ledger in this folder, made where there is none."""
    return opened(ledger_url(None, folder))


def opened(url: sa.URL) -> Ledger:
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
        workload="pretrain",
        code="code",
        image=None,
        spec=job_spec(),
        gpus=4,
        iterations=8,
        scheduler=scheduler,
    )


def attempts(
    folder: str = "/nowhere", array: bool = True
) -> Callable[[Mapping[str, Missing]], Mapping[str, NewAttempt]]:
    """What `record_run` calls: an attempt for everything that is missing, all in one file."""

    def make(missing: Mapping[str, Missing]) -> Mapping[str, NewAttempt]:
        return {
            job_id: NewAttempt(
                file=f"{folder}/queue",
                array_index=index if array else None,
                options=(),
                is_requeued=False,
                folder=f"{folder}/{job_id}",
                script=f"attempt {one.number}",
                script_sha256="sha",
            )
            for index, (job_id, one) in enumerate(missing.items())
        }

    return make


def record_run(
    ledger: Ledger,
    run: NewRun,
    jobs: Sequence[NewJob],
    decide: Callable[[str, LatestAttempt | None], Disposition],
    make: Callable[[Mapping[str, Missing]], Mapping[str, NewAttempt]],
) -> Recorded:
    """Store a run with an attempt for each job that `decide` finds missing."""
    with runs.new_run(ledger, run, jobs) as transaction:
        latest = transaction.latest
        missing = transaction.missing({job.id: decide(job.id, latest.get(job.id)) for job in jobs})
        return transaction.add(make(missing), {})


def unless_verified(_job_id: str, latest: LatestAttempt | None) -> Disposition:
    """Another attempt unless the last one is good or not judged yet."""
    if latest is None:
        return Disposition.MISSING
    if latest.verdict is None:
        return Disposition.UNDER_WAY
    return Disposition.DONE if latest.verdict == VERIFIED else Disposition.MISSING


def record(
    ledger: Ledger,
    *names: str,
    token: str = "token",
    run: NewRun | None = None,
    scheduler: SchedulerKind = "local",
    array: bool = True,
) -> Recorded:
    """A run of these jobs; what it has to submit is claimed under the token, and nobody has answered yet."""
    run = run or new_run()
    jobs = [new_job(name, scheduler) for name in names]
    recorded = record_run(ledger, run, jobs, unless_verified, attempts(array=array))
    claimed = [turn.attempt_id for turn in queued_attempts(ledger, run_id=run.id)]
    assert claim(ledger, claimed, token, Submitter(run.host, run.user, run.pid))
    return recorded


# The rows of an old ledger, in the words of its own time: neither names nor columns follow what changes later.
_OLD_ROWS = (
    """INSERT INTO jobs (id, cluster, workload, code, image, configuration, gpus, iterations, created_at) VALUES
    ('a-id', 'selene', 'megatron-2021', 'c0ffee', NULL, '{"gpus_per_node": 8}', 8, 20, '2026-01-02 03:04:05.000006'),
    ('b-id', 'selene', 'megatron-2021', 'c0ffee', 'i.sqsh', '{}', 16, 20, '2026-01-02 03:04:05.000006')""",
    """INSERT INTO runs (id, experiment, scale, cluster, created_at, "user", host, pid, command, git_commit, git_dirty,
    versions, profile) VALUES ('old', 'sc21/figure-13', 'full', 'selene', '2026-01-02 03:04:05.000006', 'me', 'login-1',
    17, '["repro", "submit"]', 'c0ffee', FALSE, '{"repro": "0"}', '{"about": "old"}')""",
    """INSERT INTO run_jobs (run_id, job_id, position, case_name) VALUES
    ('old', 'a-id', 0, 'a'), ('old', 'b-id', 1, 'b')""",
    """INSERT INTO attempts (job_id, run_id, number, scheduler, host, token, array_index, scheduler_id, state, phase,
    exit_code, folder, script, script_sha256, created_at, ended_at, iteration, verdict) VALUES
    ('a-id', 'old', 1, 'slurm', 'login-1', 't', 0, '17_0', 'COMPLETED', 'ended', 0, '/runs/old/a', '#!', 'sha',
    '2026-01-02 03:04:05.000006', '2026-01-02 04:00:00.000000', 20, 'verified'),
    ('b-id', 'old', 1, 'slurm', 'login-1', 't', 1, '17_1', 'PENDING', 'waiting', NULL, '/runs/old/b', '#!', 'sha',
    '2026-01-02 03:04:05.000006', NULL, NULL, NULL)""",
    """INSERT INTO events (at, run_id, attempt_id, kind, detail) VALUES
    ('2026-01-02 03:04:05.000006', 'old', 1, 'submitted', '17_0')""",
    """INSERT INTO iterations (attempt_id, iteration, elapsed_ms, loss, grad_norm, used) VALUES
    (1, 10, 812.5, 10.25, NULL, FALSE), (1, 20, 800.1, 9.875, 0.5, TRUE)""",
    """INSERT INTO metrics (attempt_id, name, value, unit, spread, count) VALUES
    (1, 'iteration_ms', 800.1, 'ms', 0.5, 1)""",
)


def make_old_ledger(url: sa.URL, schema: str) -> None:
    """A ledger as an older repro left it: two jobs, one verified with its numbers, one in the queue."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        run_migrations(connection, schema)
        for statement in _OLD_ROWS:
            connection.exec_driver_sql(statement)
    engine.dispose()
