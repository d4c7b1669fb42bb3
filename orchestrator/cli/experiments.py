"""Command group `experiments`: write and check files of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator import api
from orchestrator.cli.options import ExperimentName, Json
from orchestrator.cli.output import as_row, data, message, table
from orchestrator.cli.suggestion import suggest

experiments = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Files of experiments: write, check.")

NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, for example my/figure-1.yaml.")]

OfPaper = Annotated[bool, typer.Option("--paper", help="Print the schema of paper.yaml.")]


@experiments.command()
def new(context: typer.Context, file: NewFile, json: Json = False) -> None:
    """Write a commented experiment to start from, and paper.yaml beside it."""
    files = api.new_experiment(file)
    if json:
        context.obj.json.put(files=api.written_files("experiment", *files))
        return
    for path in files:
        data(str(path))
    suggest(context, "after each change", "experiments check", str(file))


@experiments.command()
def check(context: typer.Context, experiment: ExperimentName, json: Json = False) -> None:
    """Report all problems of an experiment: fields, scales, and settings that its program does not support."""
    entry, scales = api.check_experiment(experiment)
    if json:
        context.obj.json.put(scales=scales)
        return
    table([as_row(scale) for scale in scales], ["scale", "cases"])
    message(f"{entry.name}: no problem found")
    machine = None if entry.paper.machine is not None else "local"
    suggest(context, "memory, time and cost of each case", "plan", entry.argument, cluster=machine)


@experiments.command()
def schema(paper: OfPaper = False) -> None:
    """Print the JSON Schema of experiments, for editors."""
    data((api.paper_schema_text() if paper else api.experiment_schema_text()).rstrip("\n"))
