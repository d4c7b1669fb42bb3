"""`repro report`: what came out, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.cli import completion
from orchestrator.cli.options import ClusterName, Database, OnlyScale, OnlyWorkload
from orchestrator.cli.output import data, next_command, say
from orchestrator.cli.session import bring_up_to_date
from orchestrator.errors import Problem, ReproError
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.paths import Folders
    from orchestrator.results.outcome import FigureOutcome

Experiments = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads these at run time, on Python 3.10 too
    typer.Argument(help="Experiments; none means all that were submitted.", autocompletion=completion.experiments),
]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", help="The folder that index.html is written in.")]
Force = Annotated[bool, typer.Option("--force", help="Also where the folder holds something else.")]


def report(
    experiments: Experiments = None,
    *,
    output: OutputFolder,
    scale: OnlyScale = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    force: Force = False,
    database: Database = None,
) -> None:
    """Write one HTML page that needs nothing but a browser: outcomes, pictures, and all that stands behind them."""
    from orchestrator.cli.selection import submitted_ledger
    from orchestrator.paths import find_folders
    from orchestrator.results.report.page import report as made
    from orchestrator.results.report.page import require_folder, write_report

    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    require_folder(output, force)
    for complaint in bring_up_to_date(ledger):
        say(f"note: {complaint}")
    outcomes = _outcomes(ledger, folders, experiments or (), scale, cluster, workload)
    data(str(write_report(made(ledger, outcomes, folders.templates), output)))
    cases = counted(sum(len(one.results) for one in outcomes), "case")
    say(f"{counted(len(outcomes), 'experiment')}, {cases}; the page is one file and can be sent as it is")
    failed = [(one, row) for one in outcomes for row in one.failures]
    if failed:
        next_command(f"repro logs {failed[0][1].job_id}", f"why {failed[0][1].label} failed")
    else:
        next_command(f"repro claims {outcomes[0].entry.short_name}", "the same verdicts, for a script")


def _outcomes(
    ledger: Ledger,
    folders: Folders,
    names: Sequence[str],
    scale: str | None,
    cluster: str | None,
    workload: str | None,
) -> list[FigureOutcome]:
    """Of these experiments, else of all that were submitted, the latest at the scale and on the cluster asked for."""
    from orchestrator.catalog.library import full_name
    from orchestrator.results.outcome import read_outcome

    if names:
        wanted = dict.fromkeys(full_name(folders, name) for name in names)
        return [read_outcome(ledger, folders, name, scale, cluster, workload) for name in wanted]
    found: list[FigureOutcome] = []
    for name in _submitted(ledger, scale, cluster, workload):
        try:
            found.append(read_outcome(ledger, folders, name, scale, cluster, workload))
        except ReproError as error:  # its file may have gone or changed since; the others are there
            say(f"note: {name} is left out: {error.problems[0]}")
    if not found:
        asked = [scale and f"at {scale}", cluster and f"on {cluster}", workload and f"with {workload}"]
        what = " ".join(filter(None, ["nothing that could be shown was submitted", *asked]))
        raise ReproError(Problem(what, hint="repro status shows what was"))
    return found


def _submitted(ledger: Ledger, scale: str | None, cluster: str | None, workload: str | None) -> list[str]:
    """The experiments with such a job, each paper's together."""
    from orchestrator.cli.selection import require_known
    from orchestrator.ledger.attempts import job_summaries

    require_known(workload)
    return sorted(
        {
            row.experiment
            for row in job_summaries(ledger)
            if scale in (None, row.scale) and cluster in (None, row.cluster) and workload in (None, row.workload)
        }
    )
