"""The job that sends the message after the last job: when `submit` submits one."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from orchestrator.api import notifications
from orchestrator.api.notifications import FigureMessages
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.user import Address
from orchestrator.errors import ReproError
from orchestrator.launch.notify_job import Figure
from orchestrator.ledger.attempts import job_rows
from orchestrator.paths import Folders
from tests.recorded_jobs import new_ledger, record_jobs
from tests.unit.catalog.entries import CHECKOUT
from tests.unit.clusters.sites import PLAIN, cluster_of


def test_one_job_sends_the_message_however_often_the_same_jobs_are_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[object] = []

    def submit(figure: Figure, rows: object, cluster: Cluster, *_: object) -> str:
        submitted.append((figure.program, len(cast(list[object], rows)), cluster.name))
        if len(submitted) == 4:
            raise ReproError("the queue is full")
        return "1042"

    monkeypatch.setattr(notifications, "submit_notify_job", submit)
    ledger, notes, cluster = new_ledger(tmp_path), list[str](), cluster_of(tmp_path, PLAIN)
    record_jobs(ledger, "a", "b", scheduler="slurm")
    rows = job_rows(ledger)

    def repeat(origin: str, *, is_new: bool) -> None:
        addresses = [Address("json://h", origin)]
        messages = FigureMessages(ledger, Folders(CHECKOUT, tmp_path), addresses, notes.append, rows)
        messages.submit_jobs(rows[0].run_id, cluster, is_new=is_new)

    repeat("REPRO_NOTIFY", is_new=True)
    repeat("REPRO_NOTIFY", is_new=False)
    assert submitted == [(None, 2, "site")] and notes == [
        "job 1042 sends the message about figure-13 after its last job"
    ]
    repeat("--notify", is_new=False)  # another address
    repeat("REPRO_NOTIFY", is_new=True)  # more jobs
    repeat("REPRO_NOTIFY", is_new=True)
    assert notes[-1] == "note: `repro wait figure-13` sends the message, but no job does: the queue is full"
    assert len(submitted) == 4
