"""Commands that say what came out: collect and plot."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.cli.opening import bring_up_to_date, existing_ledger
from orchestrator.cli.options import ClusterName, Database, MaybeExperiment, OnlyScale, OnlyWorkload, Where, as_typed
from orchestrator.cli.output import data, next_command, say
from orchestrator.errors import EXIT_FAILED, Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.cli.scope import Outcome


class Format(str, enum.Enum):
    csv = "csv"
    json = "json"


Export = Annotated[Format, typer.Option("--export", help="csv or json, to stdout unless -o is given.")]
OutputFile = Annotated[Optional[Path], typer.Option("--output", "-o", help="Write to this file instead.")]  # noqa: UP045


def collect(
    experiment: MaybeExperiment = None,
    export: Export = Format.csv,
    output: OutputFile = None,
    scale: OnlyScale = None,
    where: Where = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    database: Database = None,
) -> None:
    """Read the logs and export one row per case; the claims go to stderr."""
    from orchestrator.cli.outcome import print_claims
    from orchestrator.results.export import as_csv, export_rows, written_whole
    from orchestrator.results.export import as_json as results_as_json

    now = _outcome_now(experiment, scale, cluster, workload, database)
    rows = export_rows(now.entry, now.having(where))
    text = as_csv(rows) if export is Format.csv else results_as_json(rows, now.claims)
    if output is None:
        data(text.rstrip("\n"))
    else:
        with written_whole(output) as part:
            part.write_text(text, encoding="utf-8")
        data(str(output))
    print_claims(now, to_stdout=False)
    next_command(f"repro plot {now.entry.short_name}{as_typed(workload)}", "the figure as a picture")
    if now.failed:
        raise typer.Exit(EXIT_FAILED)


def plot(
    experiment: MaybeExperiment = None,
    output: OutputFile = None,
    scale: OnlyScale = None,
    where: Where = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    database: Database = None,
) -> None:
    """Draw the figure on the paper's axes; prints the picture's path."""
    from orchestrator.cli.outcome import print_claims
    from orchestrator.results.plot import plot as draw

    now = _outcome_now(experiment, scale, cluster, workload, database)
    found = now.having(where)
    if not any(result.is_verified for result in found):
        mend = f"repro status {now.entry.short_name}"
        raise ReproError(Problem(f"{now.entry.short_name} at scale {now.scale}: no case is verified yet", mend=mend))
    ran = f"-{found[0].case.workload}" if now.program else ""
    file = output or Path(f"{now.entry.short_name}-{now.scale}-{now.cluster}{ran}.png")
    on = f"{now.cluster} with {now.program}" if now.program else now.cluster
    draw(now.entry, now.scale, on, found, file)
    data(str(file))
    print_claims(now, to_stdout=False)
    next_command(f"repro collect --export csv{as_typed(workload)}", "the numbers behind it")


def _outcome_now(
    experiment: str | None, scale: str | None, cluster: str | None, workload: str | None, database: str | None
) -> Outcome:
    from orchestrator.cli.scope import read_outcome
    from orchestrator.folders import find_folders

    folders = find_folders()
    ledger = existing_ledger(folders, database)
    if ledger is None:
        raise ReproError(Problem("nothing was submitted yet", mend="repro submit figure-13 --cluster local --wait"))
    for complaint in bring_up_to_date(ledger):
        say(f"note: {complaint}")
    now = read_outcome(ledger, folders, experiment, scale, cluster, workload)
    if now.program:
        say(f"note: {now.entry.short_name} with {now.program}")
    return now
