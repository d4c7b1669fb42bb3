"""What a command does first: open the ledger, and bring it up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.folders import Folders
    from orchestrator.ledger.database import Ledger


def existing_ledger(folders: Folders, database: str | None) -> Ledger | None:
    """The ledger, brought to today's schema; None when nothing was ever submitted."""
    from orchestrator.ledger.database import ledger_url, open_ledger

    return open_ledger(ledger_url(database, folders.home), create=False)


def bring_up_to_date(ledger: Ledger) -> tuple[str, ...]:
    """Ask the scheduler and read the logs of what is under way; nothing is loaded when nothing is.

    Returns what could not be asked.
    """
    from orchestrator.ledger.jobs import anything_to_refresh

    if not anything_to_refresh(ledger):
        return ()
    from orchestrator.launch.refresh import refresh
    from orchestrator.results.collect import collect

    complaints = refresh(ledger).complaints
    collect(ledger)
    return complaints
