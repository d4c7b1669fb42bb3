"""Runs, jobs and attempts for tests, with every field that does not matter filled in."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from orchestrator.ledger.submissions import NewAttempt, NewJob, NewRun, Recorded, record_run

_RUN_IDS = (f"20260101-000000-{number:04x}" for number in itertools.count())

CONFIGURATION = {
    "point": {"pp": 1, "gbs": 4},
    "device": "cpu",
    "model": {"layers": 4, "hidden": 256, "heads": 8, "seq": 64, "vocab": 1024},
    "layout": {"gpus": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "global_batch_size": 4},
    "training": {"recompute": "full", "warmup_iterations": 2},
    "gpus_per_node": 4,
    "peak_tflops": None,
}


def new_ledger(folder: Path) -> Ledger:
    ledger = open_ledger(ledger_url(None, folder))
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


def new_job(name: str, scheduler: str = "local") -> NewJob:
    return NewJob(
        id=f"{name}-id",
        case_name=name,
        cluster="local",
        workload="pretrain",
        code="code",
        image=None,
        configuration=CONFIGURATION,
        gpus=4,
        iterations=8,
        scheduler=scheduler,
    )


def attempts_under(
    token: str = "token", folder: str = "/nowhere", array: bool = True
) -> Callable[[dict[str, int]], dict[str, NewAttempt]]:
    """What `record_run` calls: one submission `token` for everything that is missing."""

    def make(missing: dict[str, int]) -> dict[str, NewAttempt]:
        return {
            job_id: NewAttempt(token, index if array else None, f"{folder}/{job_id}", f"attempt {number}", "sha")
            for index, (job_id, number) in enumerate(missing.items())
        }

    return make


def record(
    ledger: Ledger, *names: str, token: str = "token", run: NewRun | None = None, scheduler: str = "local"
) -> Recorded:
    jobs = [new_job(name, scheduler) for name in names]
    return record_run(ledger, run or new_run(), jobs, attempts_under(token))
