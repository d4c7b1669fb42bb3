"""Commands that need no jobs: list and show experiments, plan and render their cases."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.options import (
    CaseOptions,
    ClusterName,
    Database,
    ExperimentName,
    Json,
    OnCluster,
    ScaleOf,
    Where,
    budget_option,
    session_of,
    workload_option,
)
from orchestrator.cli.output import as_json, data, filled_columns, message, next_command, table
from orchestrator.errors import Problem, ReproError
from orchestrator.text import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

Names = Annotated[
    list[str],
    typer.Argument(
        help="Experiments, or papers for all of their experiments: figure-13, sc21.",
        autocompletion=completion.experiments_and_papers,
    ),
]
ExperimentOrPaper = Annotated[
    str,
    typer.Argument(help="An experiment or a paper: figure-13, sc21.", autocompletion=completion.experiments_and_papers),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Build each model with the real megatron-core. Needs torch, no GPU.")
]
SolveAlpha = Annotated[
    bool, typer.Option("--solve-alpha", help="Add the smallest offload share (ATC'24's alpha) that fits.")
]
OutputFolder = Annotated[Path | None, typer.Option("--output", "-o", help="Write the scripts into this folder.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show the origin of each line of the first script.")]

_PAPER_FIELDS = ("title", "venue", "arxiv", "doi", "hardware", "code", "images", "differences", "not_run", "notes")

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
def show(experiment: ExperimentOrPaper, scale: ScaleOf = "paper", where: Where = None, json: Json = False) -> None:
    """Show an experiment: its cases and axes, published numbers, and claims with the scales that can judge them.

    For a paper, show its experiments, and the parts that no experiment runs.
    """
    if api.is_paper(experiment):
        if scale != "paper" or where is not None:
            hint = f"repro show EXPERIMENT, for example one of `repro show {experiment}`"
            raise ReproError(Problem(f"{experiment}: a paper, which has no cases for --scale and --where", hint=hint))
        _show_paper(api.show_paper(experiment), json)
        return
    shown = api.show(experiment, scale, where=where)
    entry = shown.entry
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
        as_json({**_about(shown), "cases": [_case_json(case) for case in shown.cases], "claims": claims})
        return
    if shown.replaces_shipped:
        message(f"{entry.name} is {api.shown(entry.file)}, not the shipped file")
    _print_about(entry, scale)
    _print_cases(shown.cases)
    if claims:
        data("")
        table(claims, list(claims[0]))
    _print_caveats(shown)
    if entry.experiment.reference_only:
        next_command("repro list", "the experiments that can be run")
        return
    next_command(f"repro plan {entry.short_name} --scale {scale}", "check each case: validity, memory and cost")


def _show_paper(contents: api.PaperContents, json: bool) -> None:
    paper = contents.paper
    rows = [
        {
            "experiment": entry.short_name,
            "figure": entry.experiment.figure,
            "scales": ", ".join(api.scale_names(entry.experiment)),
            "title": entry.experiment.title,
        }
        for entry in contents.entries
    ]
    if json:
        fields = paper.model_dump(exclude_none=True, include=set(_PAPER_FIELDS))
        as_json({"paper": contents.name, **fields, "experiments": rows})
        return
    message(f"{contents.name}: {paper.title}, {paper.venue}")
    if paper.hardware:
        message(f"measured on {paper.hardware}")
    table(rows, list(rows[0]))
    for difference in paper.differences:
        message(_difference_text(difference))
    for part in paper.not_run:
        message(f"not run: {part.part}: {part.says} Reason: {part.because}")
        for number in part.numbers:
            how = number.how if number.confirmed else f"{number.how}, unconfirmed"
            message(f"  {number.what}: {number.value:g} {number.unit} ({how})")
    for note in paper.notes:
        message(f"note: {note}")
    next_command(f"repro show {contents.entries[0].short_name}", "its cases, published numbers and claims")


def _case_row(case: api.Case) -> dict[str, object]:
    layout = case.layout
    return {
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


def _case_json(case: api.Case) -> dict[str, object]:
    published = [point.model_dump(exclude_none=True, exclude={"where"}) for point in case.published]
    reference = {"reference_only": case.reference_only} if case.reference_only else {}
    return {**_case_row(case), "published": published, **_expected(case), **reference}


def _expected(case: api.Case) -> dict[str, str]:
    if case.expected is None:
        return {}
    return {"expected": case.expected.outcome + ("" if case.expected.confirmed else ", unconfirmed")}


def _print_cases(cases: Sequence[api.Case]) -> None:
    """Print the cases with a column for each published metric, and for each GPU of a metric with several."""
    gpus = {point.gpu for case in cases for point in case.published}
    rows = []
    for case in cases:
        row = {**_case_row(case), **_expected(case)}
        for point in case.published:
            name = f"{point.metric}@{point.gpu}" if len(gpus) > 1 and point.gpu else point.metric
            row[f"paper_{name}"] = point.value
        sources = [f"{point.how}{'' if point.confirmed else ', unconfirmed'}" for point in case.published]
        row["paper_how"] = "; ".join(dict.fromkeys(sources))
        rows.append(row)
    table(rows, filled_columns(rows))


def _about(shown: api.ExperimentCases) -> dict[str, object]:
    entry = shown.entry
    experiment, paper = entry.experiment, entry.paper
    return {
        "experiment": entry.name,
        "paper": {"title": paper.title, "venue": paper.venue, "arxiv": paper.arxiv, "doi": paper.doi},
        "figure": experiment.figure,
        "title": experiment.title,
        "scale": shown.scale,
        "axes": experiment.axes.model_dump(exclude_none=True),
        "reference_only": experiment.reference_only,
        "differences": [difference.model_dump(exclude_none=True) for difference in shown.differences],
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


def _difference_text(difference: api.Difference) -> str:
    if difference.follows == "neither":
        return f"jobs and source differ: {difference.what} Reason: {difference.because}"
    source = f"This experiment follows the {difference.follows}: {difference.because}"
    return f"paper and script differ: {difference.what} {source}"


def _print_caveats(shown: api.ExperimentCases) -> None:
    experiment = shown.entry.experiment
    for difference in shown.differences:
        message(_difference_text(difference))
    for note in shown.reference_notes:
        message(f"note: {note}")
    for case in shown.cases:
        if case.note:
            message(f"{case.name}: {case.note}")
    for note in experiment.notes:
        message(f"note: {note}")


@app.command()
@api.with_keywords(CaseOptions)
def plan(
    names: Names,
    *,
    cluster: ClusterName = None,
    exact: Exact = False,
    solve_alpha: SolveAlpha = False,
    json: Json = False,
    **options: Unpack[CaseOptions],
) -> None:
    """Check each case: is it valid, does it fit in memory, how long does it take and what does it cost."""
    report = api.plan(names, cluster, solve_alpha=solve_alpha, **options)
    if exact:
        count = counted(len(api.exact_jobs(report)), "job")
        message(f"building the model of {count}, up to about three seconds each")
        report = api.with_exact_memory(report)
    rows, refused = list(report.rows.values()), [str(problem) for problem in report.refusals]
    if json:
        as_json(
            {
                "cases": report.detailed_rows,
                "refused": refused,
                "warnings": report.warnings,
                "notes": report.notes,
                "totals": report.totals,
            }
        )
    elif rows:
        table(rows, [column for column in rows[0] if column in filled_columns(rows)])
    for warning in report.warnings:
        message(f"warning: {warning}")
    for note in report.notes:
        message(f"note: {note}")
    for problem in refused:
        message(f"repro: {problem}")
    if rows:
        message(_caution(report))
    message(_summary(report))
    if report.budgeted is not None:
        message(api.budget_text(report.budgeted))
    if refused:
        raise typer.Exit(ReproError.exit_code)
    _print_next(report, cluster, _next_options(options))


def _next_options(options: CaseOptions) -> str:
    """Return the options of the next command that keep the same program and iterations."""
    budget = budget_option(options.get("time_budget"), options.get("where"))
    return f"{workload_option(options.get('workload'))}{budget}"


def _print_next(report: api.BatchReport, cluster: str | None, options: str) -> None:
    first = report.selections[0]
    name, scales = first.entry.short_name, list(first.entry.experiment.scales)
    if cluster is not None:
        command = f"repro submit {name} --cluster {cluster} --scale {first.cases[0].scale}{options} --dry-run"
        next_command(command, "the jobs to submit")
    elif scales:
        next_command(f"repro plan {name} --cluster local --scale {scales[-1]}", "a size for this machine")
    else:
        next_command(f"repro plan {name} --cluster selene{options}", "the same cases on another machine")


def _caution(report: api.BatchReport) -> str:
    """Return what the predictions rest on."""
    costs = [planned.checked.cost for planned in report.batch.planned if planned.checked.cost is not None]
    memory = sum(cost.memory is not None and not cost.memory.calibrated for cost in costs)
    time = sum(cost.duration is not None and not cost.duration.calibrated for cost in costs)
    if not memory and not time:
        return "memory and time are predictions"
    extrapolated = [f"{count} {name} predictions" for name, count in (("memory", memory), ("time", time)) if count]
    cases = counted(len(costs), "case")
    return f"memory and time are predictions; of {cases}, {' and '.join(extrapolated)} have no similar measured case"


def _summary(report: api.BatchReport) -> str:
    batch = report.batch
    targets = dict.fromkeys(planned.checked.cluster for planned in batch.planned)
    text = f"{counted(len(batch.planned), 'case')} on {' and '.join(targets)}"
    text += f", {len(batch.refused)} refused" if batch.refused else ""
    text += f": {counted(len(batch.jobs), 'job')}"
    if batch.gpu_hours:
        text += f", {batch.gpu_hours:.4g} GPU-hours predicted, at most {report.totals['most_gpus']} GPUs"
    return text


@app.command()
@api.with_keywords(CaseOptions)
def render(
    context: typer.Context,
    experiment: ExperimentName,
    *,
    cluster: OnCluster,
    output: OutputFolder = None,
    explain: Explain = False,
    **options: Unpack[CaseOptions],
) -> None:
    """Print the batch script of each case; with -o, write the scripts and what they import, ready to submit."""
    rendered = api.render(experiment, cluster, output, explain=explain, session=session_of(context), **options)
    profile, scripts = rendered.planned.cluster, rendered.scripts
    if explain:
        _print_origins(rendered)
        return
    launcher = "sbatch" if profile.is_slurm else "bash"
    if output is None:
        for script in scripts:
            data(script.text.rstrip("\n"))
        name = rendered.planned.entry.short_name
        command = f"repro render {name} --cluster {cluster}{_next_options(options)} -o jobs"
        next_command(command, f"write {counted(len(scripts), 'script')}, to {launcher} by hand")
        return
    for script in scripts:
        data(str(script.path))
    next_command(f"{launcher} {shlex.quote(str(scripts[0].path))}", "or another script")


def _print_origins(rendered: api.Rendered) -> None:
    """Print each line of the first script after the files and lines, experiment or workload that it comes from."""
    planned, origins = rendered.planned, [", ".join(line.origins) for line in rendered.lines]
    width = max(map(len, origins))
    for origin, line in zip(origins, rendered.lines, strict=True):
        data(f"{origin:<{width}}  {line.text}".rstrip())
    if len(planned.plans) > 1:
        message(f"this is {planned.plans[0].case.name}, the first of {len(planned.plans)}; --where selects another")
    next_command(f"repro clusters show {planned.cluster.name} --resolved", "the origin of each value of the profile")
