"""Runs that have come out, with numbers that a test says, in the ledger of a site where nothing ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import Disposition
from orchestrator.ledger.tables import Attempt, Run
from tests.stand_in_site import Site
from tests.unit.ledger.making import CONFIGURATION, attempts, new_job, new_ledger, new_run, record_run

FIRST_DAY = datetime(2026, 11, 1, 12)


@dataclass
class MeasuredRuns:
    site: Site
    ledger: Ledger
    runs: list[str] = field(default_factory=list)

    @staticmethod
    def make(site: Site) -> MeasuredRuns:
        return MeasuredRuns(site, new_ledger(site.folder))

    def add(
        self,
        experiment: str,
        numbers: Mapping[str, float | None],
        *,
        scale: str = "paper",
        cluster: str = "selene",
        metric: str = "tflops_per_gpu",
        gpu: str | None = "A100",
        spread: float = 0.01,
        day: int = 0,
        commit: str = "c0ffee1234",
        code: str = "6985e58938",
        repeat: int = 1,
        run_id: str | None = None,
        mode: str | None = None,
        wait_percent: float | None = None,
    ) -> str:
        """A run of these cases, by name, that ended so many days after the first of November; None for one that
        failed. `iteration_ms` is 1000 over the number, `wait_percent` the share of it for which GPUs waited for the
        host. Returns its id, which sorts as the days do.
        """
        entry = find_experiment(self.site.folders, experiment)
        cases = {case.name: case for case in expand(entry, scale)}
        made = replace(new_run(entry.name, scale), id=run_id or f"202611{day + 1:02}-120000-{len(self.runs):04x}")
        made = replace(made, cluster=cluster, git_commit=commit)
        jobs = []
        for name in numbers:
            configuration = {
                **CONFIGURATION,
                "settings": cases[name].settings,
                "point": dict(cases[name].point),
                "gpu": gpu,
                "gpus_per_node": 8,
            }
            identity = f"{abs(hash((cluster, entry.name, scale, name, code, repeat))):016x}"[:12]
            job = replace(new_job(name), id=identity, cluster=cluster, workload=cases[name].workload, code=code)
            jobs.append(replace(job, spec=JobSpec.from_json(configuration), repeat=repeat))
        record_run(self.ledger, made, jobs, lambda _job, _latest: Disposition.MISSING, attempts())
        self._end(made.id, FIRST_DAY + timedelta(days=day), numbers)
        measured = [
            _measured(row, metric, numbers[row.case_name], spread) for row in job_rows(self.ledger, run_id=made.id)
        ]
        measured = [replace(one, execution=mode, metrics=(*one.metrics, *_host_wait(wait_percent))) for one in measured]
        record_measurements(self.ledger, measured)
        self.runs.append(made.id)
        return made.id

    def _end(self, run_id: str, at: datetime, numbers: Mapping[str, float | None]) -> None:
        rows = job_rows(self.ledger, run_id=run_id)
        with self.ledger.writing() as session:
            session.execute(sa.update(Run).where(Run.id == run_id).values(created_at=at))
            for row in rows:
                state = "COMPLETED" if numbers[row.case_name] is not None else "FAILED"
                ended: dict[str, Any] = {"state": state, "phase": "ended", "ended_at": at, "scheduler_id": "1"}
                session.execute(sa.update(Attempt).where(Attempt.id == row.attempt_id).values(**ended))


def _host_wait(percent: float | None) -> list[MeasuredMetric]:
    return [] if percent is None else [MeasuredMetric("host_wait_percent", percent, "%", 0.0, 6)]


def _measured(row: JobRow, metric: str, number: float | None, spread: float) -> Measurement:
    if number is None:
        return Measurement(row.attempt_id, 3, "failed", "FAILED with exit code 7", (), (), "crash")
    ms = 1000 / number
    numbers = {"iteration_ms": MeasuredMetric("iteration_ms", ms, "ms", ms * spread, 6)}
    numbers[metric] = MeasuredMetric(metric, number, "", number * spread, 6)
    return Measurement(row.attempt_id, 8, "verified", None, (), tuple(numbers.values()))
