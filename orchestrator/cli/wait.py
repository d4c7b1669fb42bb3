"""`repro wait`: stays until jobs have ended, and says in its exit code whether all is well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.options import Database, MaybeTargets
from orchestrator.cli.output import next_command, say
from orchestrator.errors import EXIT_FAILED
from orchestrator.paths import short_name

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.rows import JobRow
    from orchestrator.paths import Folders


def wait(targets: MaybeTargets = None, database: Database = None) -> None:
    """Stay until jobs have ended: those of experiments, single ones, or everything that is under way."""
    from orchestrator.cli.job_table import bar_marks, print_rows, stands, tallies
    from orchestrator.cli.selection import chosen_rows, submitted_ledger
    from orchestrator.cli.waiting import Following, wait_for
    from orchestrator.launch.supervise import Backlog
    from orchestrator.ledger.database import now
    from orchestrator.paths import find_folders

    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    # As last seen: what has ended since then counts, so that `submit` and then `wait` misses no failure.
    chosen = chosen_rows(ledger, folders, targets) if targets else _under_way(ledger)
    if not chosen:
        say("nothing is under way")
        next_command("repro status", "how everything stands")
        return
    following = Following(ledger, chosen)
    names = sorted({short_name(row.experiment) for row in chosen})
    backlog = Backlog(ledger, say)
    one = names[0] if len(names) == 1 else ""
    wait_for(ledger, following, one, lambda: backlog.submit_what_fits(following()))
    rows = following()
    marks = bar_marks()
    for tally in tallies(rows):
        say(tally.bar(*marks))
    print_rows(stands(ledger, rows, now()))
    bad = [row for row in rows if not _is_well(folders, row)]
    if not bad:
        next_command(f"repro collect {names[0]} --export csv", "the numbers and the claims")
        return
    _suggest(bad)
    raise typer.Exit(EXIT_FAILED)


def _under_way(ledger: Ledger) -> list[JobRow]:
    from orchestrator.ledger.attempts import job_rows
    from orchestrator.ledger.tables import ENDED

    return [*job_rows(ledger, only_open=True), *(row for row in job_rows(ledger, unjudged=True) if row.phase == ENDED)]


def _is_well(folders: Folders, row: JobRow) -> bool:
    """Return whether the job is verified, or failed as its source reports."""
    from orchestrator.catalog.expand import expand
    from orchestrator.catalog.library import find_experiment
    from orchestrator.errors import ReproError
    from orchestrator.ledger.tables import FAILED, VERIFIED
    from orchestrator.reading.failure import fails_as_published, ran_out_of_memory

    if row.verdict != FAILED or not ran_out_of_memory(row):
        return row.verdict == VERIFIED
    try:
        cases = expand(find_experiment(folders, row.experiment), row.scale)
    except ReproError:  # the experiment file has changed or is gone
        return False
    return any(fails_as_published(case, row.failure) for case in cases if case.name == row.case_name)


def _suggest(bad: Sequence[JobRow]) -> None:
    from orchestrator.ledger.tables import OPEN

    failed = next((row for row in bad if row.phase not in OPEN), None)
    if failed is not None:
        next_command(f"repro logs {failed.job_id}", f"why {failed.label} failed")
    else:
        next_command(f"repro history {bad[0].job_id}", f"what became of {bad[0].label} until now")
