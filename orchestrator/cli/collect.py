"""`repro collect`: what came out, as a file for others."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.cli.options import ClusterName, Database, MaybeExperiment, OnlyScale, OnlyWorkload, Where, as_typed
from orchestrator.cli.output import data, next_command
from orchestrator.cli.overwrite import require_leave
from orchestrator.errors import EXIT_FAILED, Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.results.outcome import FigureOutcome


class Format(str, enum.Enum):
    csv = "csv"
    json = "json"
    jsonl = "jsonl"
    parquet = "parquet"
    md = "md"
    latex = "latex"


ENDINGS = {
    **{f".{one.value}": one for one in Format if one is not Format.latex},
    ".tex": Format.latex,
    ".ndjson": Format.jsonl,
    ".markdown": Format.md,
}
"""What a file's ending says."""

_FOR_PEOPLE = (Format.md, Format.latex)

Export = Annotated[
    Optional[Format],  # noqa: UP045
    typer.Option("--export", help="Else what the ending of -o says, else csv."),
]
OutputFile = Annotated[Optional[Path], typer.Option("--output", "-o", help="Write to this file instead.")]  # noqa: UP045
Iterations = Annotated[bool, typer.Option("--iterations", help="A row per line of the logs, of jobs that run as well.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of -o if there is one.")]


def collect(
    experiment: MaybeExperiment = None,
    export: Export = None,
    output: OutputFile = None,
    iterations: Iterations = False,
    force: Force = False,
    scale: OnlyScale = None,
    where: Where = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    database: Database = None,
) -> None:
    """Read the logs and export one row per case; the claims go to stderr."""
    chosen = _format(export, output)
    _require_sense(chosen, output, iterations)
    if output is not None:
        require_leave(output, force)
    from orchestrator.atomic_write import written_whole
    from orchestrator.cli.outcome import outcome_now, print_claims
    from orchestrator.cli.selection import submitted_ledger
    from orchestrator.paths import find_folders

    now = outcome_now(experiment, scale, cluster, workload, database, running=True)
    ledger = submitted_ledger(find_folders(), database)
    pieces = _of_iterations(chosen, now, where, ledger) if iterations else _of_cases(chosen, now, where, ledger)
    if output is None:
        _print(pieces)
    else:
        with written_whole(output) as part, part.open("wb") as file:
            file.writelines(pieces)
        data(str(output))
    print_claims(now, to_stdout=False)
    next_command(f"repro plot {now.entry.short_name}{as_typed(workload)}", "the figure as a picture")
    if now.failed:
        raise typer.Exit(EXIT_FAILED)


def _format(export: Format | None, output: Path | None) -> Format:
    """What was asked for; ReproError where the file's ending says another format, or none when nobody says one."""
    if output is None:
        return export or Format.csv
    told = ENDINGS.get(output.suffix.lower())
    if export is None and told is None:
        hint = f"say --export {', '.join(one.value for one in Format)}"
        raise ReproError(Problem(f"{output}: its ending says no format", hint=hint))
    if export is not None and told is not None and told is not export:
        hint = "leave --export out, or give the file another ending"
        raise ReproError(Problem(f"{output}: its ending says {told.value}, --export {export.value}", hint=hint))
    return export or told or Format.csv


def _require_sense(chosen: Format, output: Path | None, iterations: bool) -> None:
    if iterations and chosen in _FOR_PEOPLE:
        raise ReproError(
            Problem(f"{chosen.value} is a table of cases", hint="--iterations goes with csv, json, jsonl and parquet")
        )
    if chosen is Format.parquet:
        from orchestrator.results.export.formats import require_parquet

        require_parquet()
        if output is None and sys.stdout.isatty():
            raise ReproError(Problem("parquet is nothing for a terminal", hint="add -o FILE.parquet"))


def _of_cases(chosen: Format, now: FigureOutcome, where: str | None, ledger: Ledger) -> Iterator[bytes]:
    from orchestrator.results.export import formats
    from orchestrator.results.export.columns import CASE_COLUMNS
    from orchestrator.results.export.rows import claim_rows, export_rows, runs_of

    found = now.having(where)
    runs = runs_of(ledger, [result.row for result in found if result.row is not None])
    rows = export_rows(now.entry, found, runs)
    if chosen in _FOR_PEOPLE:
        table = formats.candidate_lines(now.entry, now.scale, now.cluster, rows)
        yield (formats.as_markdown(table) if chosen is Format.md else formats.as_latex(table)).encode()
    else:
        yield from formats.pieces(chosen.value, CASE_COLUMNS, {"cases": rows, "claims": claim_rows(now.claims)})


def _of_iterations(chosen: Format, now: FigureOutcome, where: str | None, ledger: Ledger) -> Iterator[bytes]:
    """Of every job of these cases, its repeats and those before it as well."""
    from orchestrator.ledger.attempts import job_rows
    from orchestrator.results.export.columns import ITERATION_COLUMNS
    from orchestrator.results.export.formats import pieces
    from orchestrator.results.export.rows import iteration_rows

    cases = {result.case.name: result.case.workload for result in now.having(where)}
    rows = [
        row
        for row in job_rows(ledger, experiment=now.entry.name)
        if (row.scale, row.cluster) == (now.scale, now.cluster) and cases.get(row.case_name) == row.workload
    ]
    places = {name: place for place, name in enumerate(cases)}
    ordered = sorted(rows, key=lambda row: places[row.case_name])
    yield from pieces(chosen.value, ITERATION_COLUMNS, {"iterations": iteration_rows(ledger, ordered)})


def _print(pieces: Iterable[bytes]) -> None:
    """To a pipe or a file as it is; to a terminal what can be seen of it."""
    if sys.stdout.isatty():
        data(b"".join(pieces).decode().replace("\r\n", "\n").rstrip("\n"))
        return
    sys.stdout.buffer.writelines(pieces)
    sys.stdout.buffer.flush()
