"""What a command does first: open the ledger, and bring it up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.output import say
from orchestrator.errors import Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.ledger.attempts import RefreshResult
    from orchestrator.ledger.database import Ledger
    from orchestrator.paths import Folders


ASK_EVERY_S = 15.0
"""How often a command that stays asks Slurm: all terminals that share a ledger together."""


def existing_ledger(folders: Folders, database: str | None, *, whole: bool = False) -> Ledger | None:
    """The ledger, brought to today's schema; None when nothing was ever submitted.

    A row with a wrong value is an error if `whole`; else it is printed and left out.
    """
    return named_ledger(folders, database, create=False, whole=whole)


def named_ledger(folders: Folders, database: str | None, *, create: bool, whole: bool = False) -> Ledger | None:
    """Return the ledger that was named, else that of home; ReproError if another user can change the one found.

    A row with a wrong value is an error if `whole`; else it is printed and left out.
    """
    from orchestrator.ledger.database import ledger_url, open_ledger

    if not database and folders.refused is not None:
        raise ReproError(folders.refused)
    listener = None if whole else say_wrong_cell
    return open_ledger(ledger_url(database, folders.home), create=create, home=folders.home, listener=listener)


_WRONG_CELLS: list[Problem] = []


def say_wrong_cell(problem: Problem) -> None:
    """Print a wrong cell of the ledger at once; the command goes on without its row, and ends with exit code 2."""
    if problem not in _WRONG_CELLS:
        _WRONG_CELLS.append(problem)
        say(f"repro: {problem}")


def forget_wrong_cells() -> None:
    """Begin a command: no wrong cell was printed yet."""
    _WRONG_CELLS.clear()


def were_wrong_cells() -> bool:
    """Return whether this command has printed a wrong cell."""
    return bool(_WRONG_CELLS)


def bring_up_to_date(ledger: Ledger, at_most_every_s: float = 0.0, *, running: bool = False) -> tuple[str, ...]:
    """Ask the scheduler about what is under way, and judge what has ended; returns what could not be learned.

    With `running` what is new in the logs of jobs that still run is read and stored, too: for a command that gives out
    their iterations, such as `repro collect`.
    """
    return look(ledger, at_most_every_s, running=running).complaints


def look(ledger: Ledger, at_most_every_s: float = 0.0, *, running: bool = False) -> RefreshResult:
    """The same, with when the scheduler was asked; nothing is loaded when nothing is under way.

    It is not asked where any terminal asked it less than `at_most_every_s` ago; logs are read all the same. Those of
    jobs that still run only with `running`: how far they are stands at their end, for whoever only shows it.
    """
    from orchestrator.ledger.attempts import RefreshResult, anything_to_refresh

    if not anything_to_refresh(ledger):
        return RefreshResult()
    from orchestrator.launch.refresh import refresh
    from orchestrator.reading.collect import collect

    refreshed = refresh(ledger, at_most_every_s)
    return RefreshResult((*refreshed.complaints, *collect(ledger, running=running)), refreshed.asked_at)
