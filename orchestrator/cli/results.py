"""Commands that read: status, logs, collect, plot."""

from __future__ import annotations

import enum
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from orchestrator.cli import completion
from orchestrator.cli.opening import bring_up_to_date, existing_ledger
from orchestrator.cli.options import ClusterName, Database, Json, OnlyScale, OnlyWorkload, Where, as_typed
from orchestrator.cli.output import as_json, data, next_command, say, table
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.folders import short_name

if TYPE_CHECKING:
    from orchestrator.cli.scope import Outcome
    from orchestrator.folders import Folders
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.jobs import JobRow

MOST_ROWS = 60
"""Above this many jobs `status` counts them by experiment; naming one lists its cases."""

WATCH_EVERY_S = 5.0


class Format(str, enum.Enum):
    csv = "csv"
    json = "json"


MaybeExperiment = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(help="figure-13, or in full sc21/figure-13.", autocompletion=completion.experiments),
]
JobName = Annotated[str, typer.Argument(help="A job id, or enough of its start.", autocompletion=completion.job_ids)]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat until every job has ended.")]
Export = Annotated[Format, typer.Option("--export", help="csv or json, to stdout unless -o is given.")]
OutputFile = Annotated[Optional[Path], typer.Option("--output", "-o", help="Write to this file instead.")]  # noqa: UP045


def status(
    experiment: MaybeExperiment = None,
    where: Where = None,
    scale: OnlyScale = None,
    workload: OnlyWorkload = None,
    watch: Watch = False,
    json: Json = False,
    database: Database = None,
) -> None:
    """Where every job stands: what the scheduler says, and whether we verified it."""
    from orchestrator.folders import find_folders

    if workload is not None:
        from orchestrator.cli.scope import require_known

        require_known(workload)
    folders = find_folders()
    ledger = existing_ledger(folders, database)
    if ledger is None:
        if json:
            as_json([])
        say("nothing was submitted yet")
        next_command("repro list", "what there is to run")
        return
    while True:
        still_open = _show_status(folders, ledger, Shown(experiment, where, scale, workload), json, watch)
        if not (watch and still_open):
            return
        time.sleep(WATCH_EVERY_S)


def logs(job: JobName, follow: Follow = False, database: Database = None) -> None:
    """Print a job's log as it is."""
    from orchestrator.cli.scope import chosen_rows, submitted_ledger
    from orchestrator.folders import find_folders
    from orchestrator.launch.refresh import refresh
    from orchestrator.ledger.jobs import job_rows
    from orchestrator.ledger.tables import OPEN

    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    rows = chosen_rows(ledger, folders, [job])
    if len(rows) != 1:
        raise ReproError(Problem(f"{job}: {len(rows)} jobs; logs are shown of one", mend="repro status shows the jobs"))
    row = rows[0]
    position = 0
    while True:
        if follow:
            refresh(ledger)
            row = job_rows(ledger, job_prefix=row.job_id)[0]
        ended = row.phase not in OPEN
        position = _print_from(Path(row.folder) / "log.txt", position)
        if not follow or ended:
            break
        time.sleep(1.0)
    # What the script itself printed: empty unless something went wrong around the program.
    if position + _print_from(Path(row.folder) / "batch.txt", 0) == 0:
        say(f"{row.job_id} ({row.case_name}) has written nothing yet; it is {row.state}")
        for log in sorted(Path(row.folder).parent.glob("warm-up-*/log.txt")):
            say(f"it waits, or waited, for kernels that another job compiles: {log}")
    next_command(f"repro status {short_name(row.experiment)}", "how it stands among the others")


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


@dataclass(frozen=True, slots=True)
class Shown:
    """Which jobs `status` is asked about; nothing means all."""

    experiment: str | None
    where: str | None
    scale: str | None
    workload: str | None

    @property
    def is_all(self) -> bool:
        return self == Shown(None, None, None, None)


def _show_status(folders: Folders, ledger: Ledger, shown: Shown, json: bool, watch: bool) -> bool:
    """One look at everything; returns whether something is still under way."""
    from orchestrator.ledger.jobs import experiment_counts, job_rows
    from orchestrator.ledger.tables import OPEN

    complaints = bring_up_to_date(ledger)
    counts = experiment_counts(ledger)
    if watch and sys.stdout.isatty():
        typer.echo("\033[2J\033[H", nl=False)
    for complaint in complaints:
        say(f"note: {complaint}")
    if shown.is_all and sum(count.cases for count in counts) > MOST_ROWS:
        rows: list[dict[str, Any]] = [{name: getattr(count, name) for name in count.__slots__} for count in counts]
        _print(rows, json)
        still_open = any(count.running or count.waiting for count in counts)
        next_command(f"repro status {counts[0].experiment}", "its cases")
    else:
        jobs = job_rows(ledger, experiment=_full_name(folders, shown.experiment))
        jobs = [row for row in jobs if shown.scale in (None, row.scale) and shown.workload in (None, row.workload)]
        jobs = [row for row in jobs if _matches(row, shown.where)]
        _print(_status_rows(ledger, jobs), json)
        still_open = any(row.phase in OPEN for row in jobs)
        if not (watch and still_open):
            _suggest(jobs, still_open)
    return still_open


def _full_name(folders: Folders, experiment: str | None) -> str | None:
    if experiment is None:
        return None
    from orchestrator.cli.scope import full_name

    return full_name(folders, experiment)


def _matches(row: JobRow, where: str | None) -> bool:
    if where is None:
        return True
    from orchestrator.catalog.selection import parse_where
    from orchestrator.cli.scope import matches

    return matches(row, parse_where(where))


def _status_rows(ledger: Ledger, jobs: list[JobRow]) -> list[dict[str, Any]]:
    from orchestrator.ledger.measurements import metrics_of

    metrics = metrics_of(ledger, [row.attempt_id for row in jobs])
    rows = []
    for row in jobs:
        rate = metrics.get(row.attempt_id, {}).get("tflops_per_gpu")
        rows.append(
            {
                "job": row.job_id,
                "experiment": short_name(row.experiment),
                "scale": row.scale,
                "cluster": row.cluster,
                "case": row.case_name,
                "state": row.state,
                "verdict": row.verdict,
                "iteration": f"{row.iteration or 0}/{row.iterations}",
                "workload": row.workload,
                "tflops_per_gpu": rate.value if rate else None,
                "id": row.scheduler_id,
                "why": row.verdict_reason or row.reason,
            }
        )
    return rows


def _print(rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        as_json(rows)
    elif rows:
        table(rows, [name for name in rows[0] if name != "why" or any(row["why"] for row in rows)])
    else:
        say("no such job")


def _suggest(jobs: list[JobRow], still_open: bool) -> None:
    failed = next((row for row in jobs if row.verdict == "failed"), None)
    if failed is not None:
        next_command(f"repro logs {failed.job_id}", f"why {failed.case_name} failed")
    elif still_open:
        next_command("repro status --watch", "until they have ended")
    elif jobs:
        name = short_name(jobs[-1].experiment)
        next_command(f"repro collect {name} --export csv", "the numbers and the claims")
    else:
        next_command("repro list", "what there is to run")


def _print_from(file: Path, position: int) -> int:
    """Copy what `file` has beyond `position` to stdout, byte for byte; the new position."""
    try:
        with file.open("rb") as log:
            log.seek(position)
            while block := log.read(1 << 20):
                sys.stdout.buffer.write(block)
                position += len(block)
    except FileNotFoundError:
        return position
    sys.stdout.buffer.flush()
    return position
