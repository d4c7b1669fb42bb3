"""Tests of the selection of `repro cancel`: no job is cancelled that was not meant."""

from __future__ import annotations

import pytest

from orchestrator.cli.run import ASK_ABOVE
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import QUEUED
from tests.recorded_jobs import new_attempts, new_job, new_ledger, new_run, record_run, unless_verified
from tests.unit.cli.calling import Caller


def queued_jobs(repro: Caller, *names: str) -> Ledger:
    ledger = new_ledger(repro.site.folder)
    record_run(ledger, new_run(), [new_job(name) for name in names], unless_verified, new_attempts())
    return ledger


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_many_jobs_are_cancelled_only_if_the_user_confirms(repro: Caller, words: tuple[str, ...]) -> None:
    ledger = queued_jobs(repro, *(f"{number:02}" for number in range(ASK_ABOVE + 1)))
    done = repro("cancel", "figure-13", *words)
    assert (done.returncode, done.stdout if not words else "") == (2, "")
    assert f"{ASK_ABOVE + 1} jobs would be cancelled. Hint: confirm with --yes" in done.stderr
    assert {row.state for row in job_rows(ledger)} == {QUEUED}


def test_an_id_that_fits_several_jobs_cancels_none(repro: Caller) -> None:
    ledger = queued_jobs(repro, "ab", "ac")
    done = repro("cancel", "a", "--yes")
    assert done.returncode == 2
    assert "a: matches several jobs: ab-id, ac-id. Hint: give more of the id" in done.stderr
    assert {row.state for row in job_rows(ledger)} == {QUEUED}
