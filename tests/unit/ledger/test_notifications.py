"""Claims of messages: one process sends a message, and a process that died is replaced."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.notifications import (
    LONGEST_SENDING,
    FigureEnd,
    MessageClaim,
    claim_message,
    record_message,
    sent_at,
)
from orchestrator.ledger.submissions import Submitter
from orchestrator.ledger.tables import Notification
from tests.recorded_jobs import new_ledger

END = FigureEnd("sc21/figure-13", "cpu", "here", "pretrain", "17")
SENDER = Submitter("login1", "ada", 17, "machine", 4711)


def claim(ledger: Ledger, alive: bool | None, end: FigureEnd = END, address: str = "a") -> int | None:
    def is_alive(claim: MessageClaim) -> bool | None:
        assert (claim.host, claim.pid, claim.machine, claim.pid_start_ticks) == ("login1", 17, "machine", 4711)
        return alive

    return claim_message(ledger, end, "json://***", address, SENDER, is_alive)


def test_a_message_that_a_living_process_sends_or_that_was_sent_is_not_claimed_again(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    first = claim(ledger, alive=True)
    assert first is not None and claim(ledger, alive=True) is None
    record_message(ledger, first, "title", None)
    assert claim(ledger, alive=False) is None and sent_at(ledger, END, "a") is not None
    assert claim(ledger, alive=True, address="b") not in (None, first)
    assert claim(ledger, alive=True, end=FigureEnd("sc21/figure-13", "cpu", "here", "pretrain", "18")) is not None


def test_a_message_of_a_killed_process_or_that_was_refused_is_claimed_again(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    first = claim(ledger, alive=True)
    assert first is not None and claim(ledger, alive=False) == first
    record_message(ledger, first, "title", "refused")
    assert sent_at(ledger, END, "a") is None and claim(ledger, alive=True) == first


def test_a_claim_of_another_machine_ends_after_a_time(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    first = claim(ledger, alive=None)
    assert first is not None and claim(ledger, alive=None) is None
    with ledger.writing() as session:
        session.execute(sa.update(Notification).values(claimed_at=now() - LONGEST_SENDING - timedelta(seconds=1)))
    assert claim(ledger, alive=None) == first
