"""A job of a described program in a ledger, and its files. Nothing runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from orchestrator.ledger.attempts import job_rows, record_observations
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, MeasuredRow, metrics_of, rows_of_output
from orchestrator.ledger.rows import JobRow, Observation
from orchestrator.ledger.tables import ENDED, RUNNING, Attempt, SchedulerKind
from orchestrator.reading.collect import collect
from tests.recorded_jobs import job_spec, new_attempts, new_job, new_ledger, new_run, record_run, unless_verified
from tests.unit.programs.programs import SWEEP, program

NOON = datetime(2026, 1, 1, 12)


@dataclass
class Described:
    """A job of a described program in a ledger."""

    ledger: Ledger
    folder: Path

    def write(self, text: str | bytes, name: str = "log.txt") -> None:
        (self.folder / name).write_bytes(text.encode() if isinstance(text, str) else text)

    def runs(self) -> None:
        record_observations(self.ledger, {1: Observation("RUNNING", RUNNING, started_at=NOON)}, [])

    def ends(self, state: str = "COMPLETED", code: int | None = 0, **seen: Any) -> JobRow:
        """End the job after a minute, collect it, and return its row."""
        end = Observation(state, ENDED, exit_code=code, started_at=NOON, ended_at=NOON + timedelta(minutes=1), **seen)
        record_observations(self.ledger, {1: end}, [])
        assert collect(self.ledger) == ()
        return self.row

    @property
    def row(self) -> JobRow:
        return job_rows(self.ledger)[0]

    @property
    def rows(self) -> list[MeasuredRow]:
        return rows_of_output(self.ledger, [1]).get(1, [])

    def metrics(self) -> dict[str, MeasuredMetric]:
        return metrics_of(self.ledger, [1]).get(1, {})


def record_described(
    home: Path, text: str = SWEEP, *, scheduler: SchedulerKind = "local", **settings: Any
) -> Described:
    """Record a running job of the program in a YAML text."""
    fields = program(text).model_dump(mode="json", by_alias=True, exclude_unset=True)
    given = settings or {"from": "8", "to": "1M"}
    spec = replace(job_spec(), own={}, program=fields, settings=given)
    job = replace(new_job("a", scheduler), program="sweep", spec=spec, gpus=2, iterations=0)
    ledger = new_ledger(home)
    record_run(ledger, new_run(), [job], unless_verified, new_attempts(str(home)))
    described = Described(ledger, home / "a-id")
    described.folder.mkdir()
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(folder=str(described.folder)))
    described.runs()
    return described
