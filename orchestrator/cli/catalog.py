"""Commands that show the catalog: experiments and their cases."""

from __future__ import annotations

from typing import Any

import typer

from orchestrator import api
from orchestrator.cli.options import Database, ExperimentName, Json, ScaleOf, Where, session_of
from orchestrator.cli.output import as_json, data, filled_columns, message, next_command, table
from orchestrator.errors import ReproError

app = typer.Typer(rich_markup_mode=None)


@app.command("list")
def list_experiments(context: typer.Context, json: Json = False, database: Database = None) -> None:
    """List the experiments of all papers: sizes, predicted cost and progress."""
    experiments = api.experiments(session_of(context, database))
    if json:
        as_json(experiments.rows)
    else:
        columns = ["experiment", "paper", "cases", "gpus", "gpu_hours", "done", "scales", "title"]
        table(experiments.rows, columns)
        message(f"clusters: {', '.join(experiments.clusters)}")
        message("gpus and gpu_hours are of the published size; hours are predicted for the paper's machine")
        if experiments.rows:
            next_command("repro show figure-13", "its cases, published numbers and claims")
    if experiments.problems:
        raise ReproError(*experiments.problems)


@app.command()
def show(experiment: ExperimentName, scale: ScaleOf = "paper", where: Where = None, json: Json = False) -> None:
    """Show an experiment: its cases and axes, published numbers, and claims with the scales that can judge them."""
    shown = api.show(experiment, scale, where=where)
    entry, rows = shown.entry, [_case_row(case) for case in shown.cases]
    claims = [
        {
            "claim": claim.id,
            "kind": claim.kind,
            "stated": claim.stated,
            "judged_at": ", ".join(claim.judged_at),
            "source": claim.source,
            "says": claim.says,
        }
        for claim in entry.experiment.claims
    ]
    if json:
        as_json({**_about(entry, scale), "cases": rows, "claims": claims})
        return
    if shown.replaces_shipped:
        message(f"{entry.name} is {api.shown(entry.file)}, not the shipped file")
    _print_about(entry, scale)
    _print_cases(rows)
    if claims:
        data("")
        table(claims, list(claims[0]))
    _print_caveats(shown)
    if entry.experiment.reference_only:
        next_command("repro list", "the experiments that can be run")
        return
    next_command(f"repro plan {entry.short_name} --scale {scale}", "check each case: validity, memory and cost")


def _case_row(case: api.Case) -> dict[str, Any]:
    layout = case.layout
    row: dict[str, Any] = {
        "case": case.name,
        "gpus": layout.gpus,
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_parallel,
        "cp": layout.context_parallel,
        "dp": layout.data_parallel,
        "vp": layout.virtual_stages,
        "mbs": layout.micro_batch_size,
        "gbs": layout.global_batch_size,
        "microbatches": layout.microbatches,
        "recompute": case.training.recompute,
        "parameters_billion": round(case.model.parameters() / 1e9, 4),
        "workload": case.workload,
    }
    row["published"] = [point.model_dump(exclude_none=True, exclude={"where"}) for point in case.published]
    if case.expected is not None:
        row["expected"] = case.expected.outcome + ("" if case.expected.confirmed else ", unconfirmed")
    return row


def _print_cases(rows: list[dict[str, Any]]) -> None:
    """Print the cases with a column for each published metric, and for each GPU of a metric with several."""
    gpus = {point.get("gpu") for row in rows for point in row["published"]}
    flat = []
    for row in rows:
        line = {name: value for name, value in row.items() if name != "published"}
        for point in row["published"]:
            name = f"{point['metric']}@{point['gpu']}" if len(gpus) > 1 and "gpu" in point else point["metric"]
            line[f"paper_{name}"] = point["value"]
        line["paper_how"] = "; ".join(dict.fromkeys(_how(point) for point in row["published"]))
        flat.append(line)
    table(flat, filled_columns(flat))


def _how(point: dict[str, Any]) -> str:
    return str(point["how"]) + ("" if point["confirmed"] else ", unconfirmed")


def _about(entry: api.Entry, scale: str) -> dict[str, Any]:
    experiment, paper = entry.experiment, entry.paper
    return {
        "experiment": entry.name,
        "paper": {"title": paper.title, "venue": paper.venue, "arxiv": paper.arxiv, "doi": paper.doi},
        "figure": experiment.figure,
        "title": experiment.title,
        "scale": scale,
        "axes": experiment.axes.model_dump(exclude_none=True),
        "reference_only": experiment.reference_only,
        "differences": [difference.model_dump(exclude_none=True) for difference in experiment.differences],
        "notes": experiment.notes,
    }


def _print_about(entry: api.Entry, scale: str) -> None:
    experiment, axes = entry.experiment, entry.experiment.axes
    message(f"{entry.name}: {entry.paper.venue} {experiment.figure}, {experiment.title}")
    about = experiment.scales[scale].about if scale in experiment.scales else None
    message(f"scale {scale}: {about or 'as published'}")
    message(f"x: {axes.x.label} ({', '.join(axes.x.of)}); y: {axes.y.label} ({axes.y.metric})")
    if axes.series is not None:
        message(f"lines: {axes.series.label} ({axes.series.of})")
    if experiment.reference_only:
        message(f"reference only: {experiment.reference_only}")


def _print_caveats(shown: api.ExperimentCases) -> None:
    experiment = shown.entry.experiment
    for difference in experiment.differences:
        if any(difference.where.given().items() <= case.settings.items() for case in shown.cases):
            source = f"This experiment follows the {difference.follows}: {difference.because}"
            message(f"paper and script differ: {difference.what} {source}")
    for case in shown.cases:
        if case.note:
            message(f"{case.name}: {case.note}")
    for note in experiment.notes:
        message(f"note: {note}")
