"""Commands for experiments: `show` for cases, published numbers and claims; `experiments` to write and check files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.options import argument
from orchestrator.cli.output import WIDE_HINT, as_row, data, filled_columns, message, suggest, table
from orchestrator.errors import Problem, ReproError

ExperimentOrPaper = Annotated[
    str,
    argument("EXPERIMENT|PAPER", "An experiment or a paper: figure-13, sc21.", completion.experiments_and_papers),
]
ScriptNames = Annotated[
    bool, typer.Option("--script", help="Print the published script of each case, and how the case differs from it.")
]
experiments = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Files of experiments: write, check.")

NewFile = Annotated[Path, argument("FILE", "The file to write, for example my/figure-1.yaml.")]
OfPaper = Annotated[bool, typer.Option("--paper", help="Print the schema of paper.yaml.")]

_NOT_SETTINGS = (*("experiment", "scale", "published", "expected", "expected_confirmed", "reference_only", "script"),)
"""Fields of a case that the table has in another form, or for all cases."""

app = typer.Typer(rich_markup_mode=None)


@app.command()
def show(
    context: typer.Context,
    experiment: ExperimentOrPaper,
    scale: option.ScaleOf = "paper",
    where: option.Where = None,
    script: ScriptNames = False,
    wide: option.Wide = False,
    json: option.Json = False,
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
            _show_paper(contents, wide)
        return
    shown = api.show(experiment, scale, where=where)
    entry = shown.entry
    if json:
        rows = [api.shown_experiment(entry, shown.differences)]
        context.obj.json.put(experiments=rows, cases=shown.rows, claims=shown.claims)
        return
    if script:
        _print_scripts(shown, where, wide)
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
        suggest("the experiments that can be run", "list")
        return
    _suggest_plan(entry, scale, where)


def _show_paper(contents: api.PaperContents, wide: bool) -> None:
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
    suggest("its cases, published numbers and claims", "show", contents.entries[0].short_name)


def _print_scripts(shown: api.ExperimentCases, where: str | None, wide: bool) -> None:
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
    _suggest_plan(shown.entry, shown.scale, where)


def _suggest_plan(entry: api.Entry, scale: str, where: str | None) -> None:
    cluster = None if entry.paper.machine is not None else "local"
    purpose = "check each case: validity, memory and cost"
    suggest(purpose, "plan", entry.argument, cluster=cluster, scale=scale, where=where)


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


@experiments.command()
def new(context: typer.Context, file: NewFile, json: option.Json = False) -> None:
    """Write a commented experiment to start from, and paper.yaml beside it."""
    files = api.new_experiment(file)
    if json:
        context.obj.json.put(files=api.written_files("experiment", *files))
        return
    for path in files:
        data(str(path))
    suggest("after each change", "experiments check", str(file))


@experiments.command()
def check(context: typer.Context, experiment: option.ExperimentName, json: option.Json = False) -> None:
    """Report all problems of an experiment: fields, scales, and settings that its program does not support."""
    entry, scales = api.check_experiment(experiment)
    if json:
        context.obj.json.put(scales=scales)
        return
    table([as_row(scale) for scale in scales], ["scale", "cases"])
    message(f"{entry.name}: no problem found")
    machine = None if entry.paper.machine is not None else "local"
    suggest("memory, time and cost of each case", "plan", entry.argument, cluster=machine)


@experiments.command()
def schema(paper: OfPaper = False) -> None:
    """Print the JSON Schema of experiments, for editors."""
    data((api.paper_schema_text() if paper else api.experiment_schema_text()).rstrip("\n"))
