"""Jobs on a Slurm that does not exist: the test writes its answers into the ledger, one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import RefreshResult, job_rows
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.submissions import record_submission
from orchestrator.ledger.tables import Attempt
from tests.unit.cli.calling import Caller
from tests.unit.ledger.making import new_ledger, record

LINE = (
    "0:  [2026-01-01 00:00:00.000000] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration"
    " (ms): {:.1f} | learning rate: 1.000000E-04 | global batch size:     4 | lm loss: 6.9E+00 | loss scale: 1.0 |"
    " grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def iterations(last: int, of: int = 8, ms: float = 60_000) -> str:
    """What a job has printed by its iteration `last`; the first takes four times as long."""
    return "".join(LINE.format(n, of, 4 * n, 4 * ms if n == 1 else ms) for n in range(1, last + 1))


@dataclass
class MadeJobs:
    """`then` is what happens each time the scheduler is asked, one after another; `asked` how often it may be."""

    repro: Caller
    ledger: Ledger
    then: list[Callable[[], None]] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    answer: RefreshResult = field(default_factory=RefreshResult)

    @staticmethod
    def make(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> MadeJobs:
        made = MadeJobs(repro, new_ledger(repro.site.folder))
        monkeypatch.setattr("orchestrator.launch.refresh.refresh", made._refresh)
        return made

    def submit(self, *names: str, token: str = "17") -> None:
        """`a` becomes the job `a-id`, which the scheduler knows as 17_0, and so on; each has a folder of its own."""
        record(self.ledger, *names, token=token, scheduler="slurm")
        record_submission(self.ledger, token, token)
        for row in job_rows(self.ledger, only_open=True):
            folder = self.folder(row.job_id, row.number)
            folder.mkdir(parents=True, exist_ok=True)
            self.update(row.job_id, folder=str(folder))

    def folder(self, job_id: str, number: int = 1) -> Path:
        return self.repro.site.folder / "runs" / f"{job_id}-{number}"

    def update(self, job_id: str, **columns: Any) -> None:
        """Of the job's latest attempt."""
        newest = sa.select(sa.func.max(Attempt.id)).where(Attempt.job_id == job_id).scalar_subquery()
        with self.ledger.writing() as session:
            session.execute(sa.update(Attempt).where(Attempt.id == newest).values(**columns))

    def runs(self, job_id: str, log: str | bytes = b"", **columns: Any) -> None:
        self.update(job_id, state="RUNNING", phase="running", reason=None, started_at=now(), **columns)
        self.writes(job_id, log)

    def writes(self, job_id: str, log: str | bytes) -> None:
        number = self.row(job_id).number
        with (self.folder(job_id, number) / "log.txt").open("ab") as file:
            file.write(log.encode() if isinstance(log, str) else log)

    def ends(self, job_id: str, state: str = "COMPLETED", verdict: str = "verified", **columns: Any) -> None:
        self.update(job_id, state=state, phase="ended", ended_at=now(), verdict=verdict, **columns)

    def row(self, job_id: str) -> JobRow:
        return next(row for row in job_rows(self.ledger) if row.job_id == job_id)

    def _refresh(self, _ledger: Ledger, at_most_every_s: float = 0.0) -> RefreshResult:
        self.asked.append(at_most_every_s)
        if self.then:
            self.then.pop(0)()
        return self.answer


def interrupt() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt
