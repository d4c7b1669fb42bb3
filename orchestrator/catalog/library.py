"""Finds experiments by name and reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.catalog.experiment import Experiment, Paper
from orchestrator.documents.model import read_model
from orchestrator.documents.source import Document, read_document
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.folders import Folders


@dataclass(frozen=True, slots=True)
class Entry:
    """An experiment as read, with the paper it belongs to. `name` is its full form, `sc21/figure-13`."""

    name: str
    file: Path
    document: Document
    experiment: Experiment
    paper: Paper

    @property
    def short_name(self) -> str:
        return self.name.rpartition("/")[2]


def experiment_names(folders: Folders) -> dict[str, Path]:
    """Full name -> file of every experiment."""
    files = (path for path in folders.experiment_files() if path.stem != "paper")
    return {f"{path.parent.name}/{path.stem}": path for path in files}


def find_experiment(folders: Folders, name: str) -> Entry:
    """Read the experiment that `name` means, short or full; ReproError has every fault of its files."""
    names = experiment_names(folders)
    found = [full for full in names if name in (full, full.rpartition("/")[2])]
    if not found:
        short = [full.rpartition("/")[2] for full in names]
        near = did_you_mean(name, [*short, *names]) or f"there are: {', '.join(sorted(names)) or 'none'}"
        raise ReproError(Problem(f"{name}: no such experiment", mend=near))
    if len(found) > 1:
        raise ReproError(Problem(f"{name}: could be {' or '.join(found)}", mend="give the full name"))
    return read_experiment(found[0], names[found[0]])


def read_experiment(name: str, file: Path) -> Entry:
    problems: list[Problem] = []
    document, experiment, paper = None, None, None
    try:
        document = read_document(file)
        experiment = read_model(Experiment, document)
    except ReproError as error:
        problems.extend(error.problems)
    try:
        paper = read_model(Paper, read_document(file.parent / "paper.yaml"))
    except ReproError as error:
        problems.extend(error.problems)
    if document is None or experiment is None or paper is None:
        raise ReproError(*problems)
    return Entry(name, file, document, experiment, paper)
