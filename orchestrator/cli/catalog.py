"""Commands that need no jobs: list, show, write and check experiments, plan and render their cases."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typing_extensions import Unpack

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.options import argument, command_session, flag, value_option, with_options
from orchestrator.cli.output import as_row, console, data, filled_columns, message, next_command, put, suggest, table
from orchestrator.errors import EXIT_FAILED, Problem, ReproError, require_none
from orchestrator.fields import columns_of, main_names, row_of
from orchestrator.files import written_files
from orchestrator.paths import find_folders, short_name
from orchestrator.text import counted

_LISTED = ("experiment", "cases", "gpus", "done", "title", "scales")

app = typer.Typer(rich_markup_mode=None)


@app.command("list")
def list_experiments(wide: option.Wide = False) -> None:
    """List the experiments of all papers: sizes and progress."""
    experiments = api.experiments(command_session())
    put(experiments=experiments.rows, clusters=experiments.clusters)
    if not console.is_json:
        columns = ["experiment", "paper", "cases", "gpus", "done", "scales", "title"]
        table(list(map(_experiment_row, experiments.rows)), columns, wide=wide, important=_LISTED)
        message(f"clusters: {', '.join(experiments.clusters)}")
        message("cases and gpus are of the published size; repro plan NAME predicts memory, time and cost")
        if experiments.rows:
            suggest("its cases, published numbers and claims", "show", "figure-13")
    require_none(experiments.problems)


def _experiment_row(listed: api.ListedExperiment) -> dict[str, object]:
    """Return the row of an experiment: scales as `paper:64`, progress as `2/10 paper@selene`."""
    one_size = listed.gpus_min == listed.gpus_max
    counts: dict[str, tuple[int, int]] = {}
    for done in listed.done:
        label = f"{done.scale}@{done.cluster}" + ("" if done.is_own_program else f" with {done.program}")
        verified, jobs = counts.get(label, (0, 0))
        counts[label] = (verified + done.verified, jobs + done.jobs)
    return as_row(listed) | {
        "paper": " ".join(filter(None, (listed.venue, listed.figure))),
        "gpus": str(listed.gpus_min) if one_size else f"{listed.gpus_min}-{listed.gpus_max}",
        "done": ", ".join(f"{verified}/{jobs} {label}" for label, (verified, jobs) in counts.items()),
        "scales": ", ".join(f"{size.scale}:{size.gpus}" for size in listed.scales),
    }


@app.command()
@with_options(option.CASES)
def plan(
    names: Annotated[
        list[str],
        argument(
            "EXPERIMENT|PAPER...",
            "Experiments, files, or papers for all of their experiments: figure-13, my/figure.yaml, sc21.",
            completion.experiments_and_papers,
        ),
    ],
    cluster: option.ClusterName = None,
    *,
    exact: Annotated[
        bool, flag("Build each model with the real megatron-core. Needs torch, no GPU.", "--exact")
    ] = False,
    solve_alpha: Annotated[
        bool, flag("Add the smallest offload share (ATC'24's alpha) that fits.", "--solve-alpha")
    ] = False,
    wide: option.Wide = False,
    **options: Unpack[api.CaseOptions],
) -> None:
    """Check each case: is it valid, does it fit in memory, how long does it take and what does it cost."""
    report = api.plan(names, cluster, solve_alpha=solve_alpha, session=command_session(), **options)
    if exact:
        count = counted(len(api.exact_jobs(report)), "job")
        message(f"building the model of {count}, up to about three seconds each")
        report = api.with_exact_memory(report)
    _print_report(report, wide)
    if report.batch.refusals:
        raise typer.Exit(ReproError.exit_code)
    _suggest_next(names, cluster, options, report)


def _print_report(report: api.BatchReport, wide: bool) -> None:
    """Print the cases, warnings, notes, refusals and totals."""
    rows, refused = list(report.rows.values()), report.batch.refusals
    put(refused, cases=rows, totals=[report.totals], warnings=report.warnings, notes=report.notes)
    if rows:
        hidden = {"time_limit_s", *rows[0].parts, *(["experiment"] if len(report.selections) == 1 else [])}
        shown = [
            {
                **row,
                "experiment": short_name(row.experiment),
                "uncertainty": None if row.uncertainty is None else f"±{row.uncertainty:.0%}",
            }
            for row in rows
        ]
        columns = [column for column in filled_columns(shown) if column not in hidden]
        table(shown, columns, wide=wide, important=main_names(columns_of(api.PlanRow)))
    for warning in report.warnings:
        message(f"warning: {warning}")
    for note in report.notes:
        message(f"note: {note}")
    for problem in refused:
        message(f"repro: {problem}")
    for caution in _cautions(report):
        message(caution)
    message(_summary(report))
    if report.batch.budgeted is not None:
        message(api.budget_text(report.batch.budgeted))


def _suggest_next(names: Sequence[str], cluster: str | None, options: api.CaseOptions, report: api.BatchReport) -> None:
    """Print the command that submits the planned cases, or that plans them for a cluster."""
    first = report.selections[0]
    if cluster is not None:
        at = {"scale": first.cases[0].scale} if len(report.selections) == 1 else {}
        suggest("the jobs to submit", "submit", *names, cluster=cluster, **{**options, **at}, dry_run=True)
    elif (scale := _cpu_scale(first.entry)) and not options.get("where"):  # its cases have other names
        suggest("a size for this machine", "plan", names[0], cluster="local", scale=scale)
    else:
        suggest("the same cases on another machine", "plan", *names, cluster="selene", **options)


def _cautions(report: api.BatchReport) -> Iterator[str]:
    """Yield what the predictions of memory and of time rest on."""
    costs = [planned.checked.cost for planned in report.batch.planned if planned.checked.cost is not None]
    memories = [cost.memory for cost in costs if cost.memory is not None]
    unlike = sum(not memory.calibrated for memory in memories)
    if memories:
        text = f"; not checked against a similar measured case in {unlike} of {len(memories)}" if unlike else ""
        yield f"memory is a prediction{text}"
    widths: dict[str, list[float]] = {}
    for duration in (cost.duration for cost in costs if cost.duration is not None):
        widths.setdefault(duration.about, []).append(duration.uncertainty)
    if widths:
        counts = [f" in {counted(len(of_basis), 'case')}" if len(widths) > 1 else "" for of_basis in widths.values()]
        ranges = [sorted({f"{100 * min(each):.0f}", f"{100 * max(each):.0f}"}, key=float) for each in widths.values()]
        classes = [f"±{' to '.join(ends)} % ({about})" for about, ends in zip(widths, ranges, strict=True)]
        yield f"time is a prediction: {', '.join(map(''.join, zip(classes, counts, strict=True)))}"


def _summary(report: api.BatchReport) -> str:
    batch = report.batch
    targets = dict.fromkeys(planned.checked.cluster for planned in batch.planned)
    text = f"{counted(len(batch.planned), 'case')} on {' and '.join(targets)}"
    text += f", {len(batch.refused)} refused" if batch.refused else ""
    text += f": {counted(len(batch.jobs), 'job')}"
    if batch.gpu_hours:
        money = f" ({batch.cost})" if batch.cost else ""
        basis = "" if batch.without_prediction else " predicted"
        text += f", {batch.gpu_hours:.4g} GPU-hours{money}{basis}, at most {counted(report.totals.most_gpus, 'GPU')}"
    return text


@app.command()
@with_options(option.CASES)
def render(
    experiment: option.ExperimentName,
    cluster: option.OnCluster,
    *,
    output: Annotated[
        Path | None, value_option("PATH", "Write the scripts into this folder.", None, "--output", "-o")
    ] = None,
    explain: Annotated[bool, flag("Show the origin of each line of the first script.", "--explain")] = False,
    **options: Unpack[api.CaseOptions],
) -> None:
    """Print the batch script of each case; with -o, write the scripts and what they import, ready to submit."""
    rendered = api.render(experiment, cluster, output, explain=explain, session=command_session(), **options)
    profile, scripts = rendered.planned.cluster, rendered.scripts
    if console.is_json:
        put(scripts=scripts, lines=rendered.lines)
        return
    if explain:
        _print_origins(rendered)
        suggest("the origin of each value", "clusters show", cluster, settings=options["settings"], resolved=True)
        return
    launcher = "sbatch" if profile.is_slurm else "bash"
    if output is None:
        for script in scripts:
            data(script.text.rstrip("\n"))
        purpose = f"write {counted(len(scripts), 'script')}, to {launcher} by hand"
        suggest(purpose, "render", experiment, cluster=cluster, **options, output="jobs")
        return
    for script in scripts:
        data(str(script.file))
    next_command(
        f"{launcher} {shlex.quote(str(scripts[0].file))}",
        f"or another script; then: repro adopt {shlex.quote(str(output))}",
    )


def _print_origins(rendered: api.Rendered) -> None:
    """Print each line of the first script after the files and lines, experiment or program that it comes from."""
    planned, origins = rendered.planned, [", ".join(line.origins) for line in rendered.lines]
    width = max(map(len, origins))
    for origin, line in zip(origins, rendered.lines, strict=True):
        data(f"{origin:<{width}}  {line.text}".rstrip())
    changes = planned.plans[0].case.argument_changes
    if dropped := [change for change in changes if change.startswith("--no-arg=")]:
        message(f"left out: {' '.join(change.partition('=')[2] for change in dropped)} (--no-arg)")
    if len(planned.plans) > 1:
        message(f"this is {planned.plans[0].case.name}, the first of {len(planned.plans)}; --where selects another")


experiments = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Files of experiments: write, check.")


_NOT_SETTINGS = (*("experiment", "scale", "published", "expected", "expected_confirmed", "reference_only", "script"),)
"""Fields of a case that the table has in another form, or for all cases."""


@app.command("show")
def show_experiment(
    experiment: Annotated[
        str,
        argument("EXPERIMENT|PAPER", "An experiment or a paper: figure-13, sc21.", completion.experiments_and_papers),
    ],
    scale: Annotated[
        str, value_option("SCALE", "paper is the published size; quad, cpu, ...", completion.scales)
    ] = "paper",
    where: option.Where = None,
    script: Annotated[
        bool, flag("Print the published script of each case, and how the case differs from it.", "--script")
    ] = False,
    wide: option.Wide = False,
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
        _show_paper(experiment, api.find_entries(find_folders(), experiment), wide)
        return
    shown = api.show(experiment, scale, where=where)
    entry = shown.entry
    if console.is_json:
        experiments = [api.shown_experiment(entry, shown.differences)]
        put(experiments=experiments, cases=shown.rows, claims=shown.claims)
        return
    if script:
        _print_scripts(shown, where, wide)
        return
    if shown.replaces_shipped:
        message(f"{entry.name} is {api.shown(entry.file)}, not the shipped file")
    _print_about(entry, scale)
    _print_cases(shown, wide)
    _print_numbers_of_rows(shown, wide)
    if claims := shown.claims:
        data("")
        columns = ["claim", "kind", "stated", "judged_at", "source", "says", "tolerance_because", "not_met_by_source"]
        rows = [as_row(claim) | {"judged_at": ", ".join(claim.judged_at)} for claim in claims]
        table(rows, columns, wide=wide)
    _print_caveats(shown)
    if entry.experiment.reference_only:
        suggest("the experiments that can be run", "list")
        return
    _suggest_plan(entry, scale, where)


def _show_paper(name: str, entries: Sequence[api.Entry], wide: bool) -> None:
    paper = entries[0].paper
    experiments = [api.shown_experiment(entry, entry.experiment.differences) for entry in entries]
    put(papers=[row_of(api.ShownPaper, paper, paper=name)], experiments=experiments)
    rows = [
        as_row(row) | {"experiment": short_name(row.experiment), "scales": ", ".join(row.scales)} for row in experiments
    ]
    message(f"{name}: {', '.join(filter(None, (paper.title, paper.venue)))}")
    if paper.hardware:
        message(f"measured on {paper.hardware}")
    table(rows, ["experiment", "figure", "scales", "title"], wide=wide)
    for difference in paper.differences:
        message(_difference_text(difference))
    for part in paper.not_run:
        message(f"not run: {part.part}: {part.says} Reason: {part.because}")
        for number in part.numbers:
            how = number.how if number.confirmed else f"{number.how}, unconfirmed"
            message(f"  {number.what}: {number.value:g} {number.unit} ({how})")
    for note in paper.notes:
        message(f"note: {note}")
    suggest("its cases, published numbers and claims", "show", entries[0].short_name)


def _print_scripts(shown: api.ExperimentCases, where: str | None, wide: bool) -> None:
    """Print the published script of each case, and where the case differs from it."""
    rows = [{"case": case.name, "script": shown.script_of(case)} for case in shown.cases]
    table(rows, ["case", "script"], wide=wide)
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


def _print_cases(shown: api.ExperimentCases, wide: bool) -> None:
    """Print the cases with a column for each published metric, and for each GPU of a metric with several."""
    gpus = {point.gpu for case in shown.cases for point in case.published}
    rows = []
    for case, values in zip(shown.cases, shown.rows, strict=True):
        row: dict[str, object] = {name: values[name] for name in values if name not in _NOT_SETTINGS}
        if case.expected is not None:
            row["expected"] = case.expected.outcome + ("" if case.expected.confirmed else ", unconfirmed")
        for point in case.published:
            name = f"{point.metric}@{point.gpu}" if len(gpus) > 1 and point.gpu else point.metric
            row[f"paper_{name}"] = point.value
        row["paper_how"] = "; ".join(dict.fromkeys(point.origin for point in case.published))
        rows.append(row)
    filled = filled_columns(rows)
    if len(rows) == 1:
        fields = [{"field": column, "value": _shown(rows[0][column])} for column in filled]
        table(fields, ["field", "value"], wide=wide)
        return
    shared = [name for name in filled if name != "case" and len({str(row.get(name)) for row in rows}) == 1]
    table(rows, [name for name in filled if name not in shared], wide=wide)
    if shared:
        data(f"all cases: {', '.join(f'{name}={_shown(rows[0][name])}' for name in shared)}")


def _print_numbers_of_rows(shown: api.ExperimentCases, wide: bool) -> None:
    rows: list[dict[str, object]] = [
        {axis: api.shown_value(value) for axis, value in point.where.items()}
        | {"metric": point.metric, "published": point.value, "gpu": point.gpu, "how": point.origin}
        for point in shown.numbers_of_rows
    ]
    if rows:
        data("")
        table(rows, list(dict.fromkeys(name for row in rows for name in row)), wide=wide)


def _shown(value: object) -> str:
    return api.shown_value(value) if isinstance(value, (bool, int, float, str)) else str(value)


def _print_about(entry: api.Entry, scale: str) -> None:
    experiment, axes = entry.experiment, entry.experiment.plot
    message(f"{entry.name}: {entry.source}, {experiment.title}")
    message(f"scale {scale}: {experiment.about_scale(scale) or 'as published'}")
    message(f"x: {axes.x.label} ({', '.join(axes.x.of)}); y: {axes.y.label} ({axes.y.metric})")
    if axes.series is not None:
        message(f"lines: {axes.series.title} ({axes.series.of})")
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
def new(file: Annotated[Path, argument("FILE", "The file to write, for example my/figure-1.yaml.")]) -> None:
    """Write a commented experiment to start from, and paper.yaml beside it."""
    files = api.new_experiment(file)
    if console.is_json:
        put(files=written_files("experiment", *files))
        return
    for path in files:
        data(str(path))
    suggest("after each change", "experiments check", str(file))


@experiments.command()
def check(
    experiment: option.ExperimentName,
    log: Annotated[str | None, value_option("OUTPUT", "Output of the program, to be read as that of a job.")] = None,
    scale: Annotated[
        str | None,
        value_option("SCALE", "Scale of the case. Default: paper for a log, any for the example.", completion.scales),
    ] = None,
    where: option.Where = None,
) -> None:
    """Report all problems of an experiment: fields, scales, and settings that its program does not support.

    If the experiment describes its program, also read an output: --log, or the example of the file. The first case of
    --scale and --where decides what a log must have. The example must fit one of the cases.
    """
    entry, scales = api.check_experiment(experiment)
    output = api.check_output(entry, log, scale, where)
    problems = output.problems if output is not None else ()
    put(problems, scales=scales, numbers=output.numbers if output is not None else ())
    if not console.is_json:
        table([as_row(scale) for scale in scales], ["scale", "cases"])
        message(f"{entry.name}: no problem found")
        if output is not None:
            _print_output(output)
    if problems:
        raise typer.Exit(EXIT_FAILED)
    if console.is_json:
        return
    if entry.paper.machine is None and _cpu_scale(entry) is None:
        suggest(f"machines for repro plan {entry.argument} --cluster NAME", "clusters list")
        return
    machine = None if entry.paper.machine is not None else "local"
    suggest("memory, time and cost of each case", "plan", entry.argument, cluster=machine)


def _cpu_scale(entry: api.Entry) -> str | None:
    """Return the smallest scale that runs on CPU cores, and so on this machine; None if there is none."""
    top = entry.experiment
    devices = {"paper": top.device, **{name: scale.device or top.device for name, scale in top.scales.items()}}
    return next((name for name, device in reversed(devices.items()) if device == "cpu"), None)


def _print_output(output: api.CheckedOutput) -> None:
    """Print the numbers of an output with their lines, and the verdict."""
    rows = [as_row(number) for number in output.numbers]
    table(rows, ["line", "at", "name", "value", "unit"])
    scale = "" if output.case.scale == "paper" else f" at scale {output.case.scale}"
    message(f"{output.file.name}, read as the output of {output.case.name}{scale}: {counted(len(rows), 'number')}")
    for problem in output.problems:
        message(str(problem))
    message(f"failed: {counted(len(output.problems), 'problem')}" if output.problems else "verified")


@experiments.command()
def schema(paper: Annotated[bool, flag("Print the schema of paper.yaml.", "--paper")] = False) -> None:
    """Print the JSON Schema of experiments, for editors."""
    data(api.experiment_schema_text(of_paper=paper).rstrip("\n"))
