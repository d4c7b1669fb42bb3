"""Command group `experiments`: write and check files of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import options as option
from orchestrator.cli.options import argument
from orchestrator.cli.output import as_row, data, message, suggest, table

if TYPE_CHECKING:
    from orchestrator.cli.documents import ExperimentsCheckDocument, ExperimentsNewDocument

experiments = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Files of experiments: write, check.")

NewFile = Annotated[Path, argument("FILE", "The file to write, for example my/figure-1.yaml.")]

OfPaper = Annotated[bool, typer.Option("--paper", help="Print the schema of paper.yaml.")]


@experiments.command()
def new(context: typer.Context, file: NewFile, json: option.Json = False) -> None:
    """Write a commented experiment to start from, and paper.yaml beside it."""
    files = api.new_experiment(file)
    if json:
        document: ExperimentsNewDocument = {"files": [{"file": str(path)} for path in files]}
        context.obj.json.put(document)
        return
    for path in files:
        data(str(path))
    suggest("after each change", "experiments check", str(file))


@experiments.command()
def check(context: typer.Context, experiment: option.ExperimentName, json: option.Json = False) -> None:
    """Report all problems of an experiment: fields, scales, and settings that its program does not support."""
    entry, scales = api.check_experiment(experiment)
    if json:
        document: ExperimentsCheckDocument = {"scales": scales}
        context.obj.json.put(document)
        return
    table([as_row(scale) for scale in scales], ["scale", "cases"])
    message(f"{entry.name}: no problem found")
    machine = None if entry.paper.machine is not None else "local"
    suggest("memory, time and cost of each case", "plan", entry.argument, cluster=machine)


@experiments.command()
def schema(paper: OfPaper = False) -> None:
    """Print the JSON Schema of experiments, for editors."""
    data((api.paper_schema_text() if paper else api.experiment_schema_text()).rstrip("\n"))
