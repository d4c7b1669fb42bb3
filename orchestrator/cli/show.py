"""Command `show`: the cases, published numbers, scripts and claims of an experiment, or the experiments of a paper."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.options import Json, ScaleOf, Where, Wide
from orchestrator.cli.output import WIDE_HINT, as_row, data, filled_columns, message, table
from orchestrator.cli.suggestion import suggest
from orchestrator.errors import Problem, ReproError

ExperimentOrPaper = Annotated[
    str,
    typer.Argument(help="An experiment or a paper: figure-13, sc21.", autocompletion=completion.experiments_and_papers),
]
ScriptNames = Annotated[
    bool, typer.Option("--script", help="Print the published script of each case, and how the case differs from it.")
]
_NOT_SETTINGS = (*("experiment", "scale", "published", "expected", "expected_confirmed", "reference_only", "script"),)
"""Fields of a case that the table has in another form, or for all cases."""

app = typer.Typer(rich_markup_mode=None)


@app.command()
def show(
    context: typer.Context,
    experiment: ExperimentOrPaper,
    scale: ScaleOf = "paper",
    where: Where = None,
    script: ScriptNames = False,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """Show an experiment: its cases and axes, published numbers, and claims with the scales that can judge them.

    For a paper, show its experiments, and the parts that no experiment runs.
    """
    if api.is_paper(experiment):
        if scale != "paper" or where is not None or script:
            hint = f"repro show EXPERIMENT, for example one of `repro show {experiment}`"
            raise ReproError(
                Problem(f"{experiment}: a paper, which has no cases for --scale, --where and --script", hint=hint)
            )
        contents = api.show_paper(experiment)
        if json:
            paper = api.row_of(api.ShownPaper, contents.paper, paper=contents.name)
            rows = [api.shown_experiment(entry, entry.experiment.differences) for entry in contents.entries]
            context.obj.json.put(papers=[paper], experiments=rows)
        else:
            _show_paper(context, contents, wide)
        return
    shown = api.show(experiment, scale, where=where)
    entry = shown.entry
    if json:
        rows = [api.shown_experiment(entry, shown.differences)]
        context.obj.json.put(experiments=rows, cases=shown.rows, claims=shown.claims)
        return
    if script:
        _print_scripts(context, shown, wide)
        return
    if shown.replaces_shipped:
        message(f"{entry.name} is {api.shown(entry.file)}, not the shipped file")
    _print_about(entry, scale)
    _print_cases(shown, wide)
    if claims := shown.claims:
        data("")
        columns = ["claim", "kind", "stated", "judged_at", "source", "says", "tolerance_because", "not_met_by_source"]
        table(
            [as_row(claim) | {"judged_at": ", ".join(claim.judged_at)} for claim in claims],
            columns,
            wide=wide,
            hint=WIDE_HINT,
        )
    _print_caveats(shown)
    if entry.experiment.reference_only:
        suggest(context, "the experiments that can be run", "list")
        return
    _suggest_plan(context, entry, scale)


def _show_paper(context: typer.Context, contents: api.PaperContents, wide: bool) -> None:
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
    message(f"{contents.name}: {paper.title}, {paper.venue}")
    if paper.hardware:
        message(f"measured on {paper.hardware}")
    table(rows, list(rows[0]), wide=wide, hint=WIDE_HINT)
    for difference in paper.differences:
        message(_difference_text(difference))
    for part in paper.not_run:
        message(f"not run: {part.part}: {part.says} Reason: {part.because}")
        for number in part.numbers:
            how = number.how if number.confirmed else f"{number.how}, unconfirmed"
            message(f"  {number.what}: {number.value:g} {number.unit} ({how})")
    for note in paper.notes:
        message(f"note: {note}")
    suggest(context, "its cases, published numbers and claims", "show", contents.entries[0].short_name)


def _print_scripts(context: typer.Context, shown: api.ExperimentCases, wide: bool) -> None:
    """Print the published script of each case, and where the case differs from it."""
    rows = [{"case": case.name, "script": shown.script_of(case)} for case in shown.cases]
    table(rows, ["case", "script"], wide=wide, hint=WIDE_HINT)
    cases: dict[str, list[str]] = {}
    for case in shown.cases:
        for difference in shown.differences_of(case):
            if difference.follows != "script":
                because = f"follows the {difference.follows}: " if difference.follows == "paper" else ""
                text = f"{difference.what} ({because}{difference.because})"
                cases.setdefault(text, []).append(case.name)
    for text, names in cases.items():
        data(f"{'all cases' if len(names) == len(shown.cases) > 1 else '; '.join(names)}: {text}")
    if not any(case.script for case in shown.cases):
        message(f"the source of {shown.entry.short_name} has no script for these cases")
    elif not cases:
        message("no declared difference from the scripts")
    _suggest_plan(context, shown.entry, shown.scale)


def _suggest_plan(context: typer.Context, entry: api.Entry, scale: str) -> None:
    cluster = None if entry.paper.machine is not None else "local"
    suggest(
        context,
        "check each case: validity, memory and cost",
        "plan",
        entry.argument,
        scale=scale,
        cluster=cluster,
    )


def _expected(case: api.Case) -> dict[str, str]:
    if case.expected is None:
        return {}
    return {"expected": case.expected.outcome + ("" if case.expected.confirmed else ", unconfirmed")}


def _print_cases(shown: api.ExperimentCases, wide: bool) -> None:
    """Print the cases with a column for each published metric, and for each GPU of a metric with several."""
    gpus = {point.gpu for case in shown.cases for point in case.published}
    rows = []
    for case, values in zip(shown.cases, shown.rows, strict=True):
        row: dict[str, object] = {name: values[name] for name in values if name not in _NOT_SETTINGS} | _expected(case)
        for point in case.published:
            name = f"{point.metric}@{point.gpu}" if len(gpus) > 1 and point.gpu else point.metric
            row[f"paper_{name}"] = point.value
        row["paper_how"] = "; ".join(dict.fromkeys(point.origin for point in case.published))
        rows.append(row)
    filled = filled_columns(rows)
    if len(rows) == 1:
        fields = [{"field": column, "value": _shown(rows[0][column])} for column in filled]
        table(fields, ["field", "value"], wide=wide, hint=WIDE_HINT)
        return
    shared = [name for name in filled if name != "case" and len({str(row.get(name)) for row in rows}) == 1]
    table(rows, [name for name in filled if name not in shared], wide=wide, hint=WIDE_HINT)
    if shared:
        data(f"all cases: {', '.join(f'{name}={_shown(rows[0][name])}' for name in shared)}")


def _shown(value: object) -> str:
    return api.shown_value(value) if isinstance(value, (bool, int, float, str)) else str(value)


def _print_about(entry: api.Entry, scale: str) -> None:
    experiment, axes = entry.experiment, entry.experiment.axes
    message(f"{entry.name}: {entry.paper.venue} {experiment.figure}, {experiment.title}")
    message(f"scale {scale}: {experiment.about_scale(scale) or 'as published'}")
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
