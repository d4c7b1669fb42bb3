"""Lookup of experiments by name, and reading of their files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.catalog.experiment import Experiment, Paper
from orchestrator.catalog.validate import value_problems
from orchestrator.config.model import read_model
from orchestrator.config.yaml import Document, read_document, shown
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.paths import Folders, short_name


@dataclass(frozen=True, slots=True)
class Entry:
    """An experiment with its file and its paper. `name` is the full name, `sc21/figure-13`."""

    name: str
    file: Path
    document: Document
    experiment: Experiment
    paper: Paper

    @property
    def short_name(self) -> str:
        """Name without the paper: `figure-13`."""
        return short_name(self.name)


def experiment_names(folders: Folders) -> dict[str, Path]:
    """Return the file of every experiment by full name; ReproError if two files of a folder have the same name.

    A user's file replaces the shipped file of the same name.
    """
    names: dict[str, Path] = {}
    for path in folders.experiment_files():
        name = f"{path.parent.name}/{path.stem}"
        before = names.get(name)
        if before is not None and before.parent == path.parent:
            both = f"{shown(before)} and {shown(path)}"
            raise ReproError(Problem(f"{name}: this name is used twice, by {both}", hint="rename one of them"))
        if path.stem != "paper":
            names.setdefault(name, path)
    return names


def replaced(folders: Folders, entry: Entry) -> Path | None:
    """Return the shipped file that the user's file replaces."""
    shipped = folders.shipped / "experiments" / f"{entry.name}.yaml"
    return shipped if shipped.is_file() and not entry.file.samefile(shipped) else None


def papers(names: Iterable[str]) -> list[str]:
    """Return the folders of the papers: `sc21` of `sc21/figure-13`."""
    return list(dict.fromkeys(full.rpartition("/")[0] for full in names))


def _of_paper(names: Iterable[str], paper: str) -> list[str]:
    return [full for full in names if full.startswith(f"{paper}/")]


def names_meant(names: Iterable[str], name: str) -> list[str]:
    """Return the full names that match a short or full name."""
    return [full for full in names if name in (full, short_name(full))]


def full_name(folders: Folders, name: str) -> str:
    """Return `sc21/figure-13` for `figure-13`; ReproError for an unknown or ambiguous name."""
    names = names_meant(experiment_names(folders), name)
    return names[0] if len(names) == 1 else find_experiment(folders, name).name


def find_experiment(folders: Folders, name: str) -> Entry:
    """Read the experiment with this short or full name; ReproError has every problem of its files."""
    names = experiment_names(folders)
    found = names_meant(names, name)
    if name in papers(names):
        ours = ", ".join(short_name(full) for full in _of_paper(names, name))
        raise ReproError(Problem(f"{name}: a paper, not an experiment", hint=f"it has {ours}"))
    if not found:
        near = did_you_mean(name, [*map(short_name, names), *names, *papers(names)])
        there = f"there are: {', '.join(sorted(names)) or 'none'}"
        raise ReproError(Problem(f"{name}: no such experiment", hint=near or there))
    if len(found) > 1:
        raise ReproError(Problem(f"{name}: could be {' or '.join(found)}", hint="give the full name"))
    return read_experiment(found[0], names[found[0]])


def find_entries(folders: Folders, name: str) -> list[Entry]:
    """Read the experiment of this name, or all of a paper (`sc21`); ReproError has every problem."""
    names = experiment_names(folders)
    of_paper = _of_paper(names, name)
    if not of_paper:
        return [find_experiment(folders, name)]
    entries: list[Entry] = []
    problems: list[Problem] = []
    for full in of_paper:
        try:
            entries.append(read_experiment(full, names[full]))
        except ReproError as error:
            problems.extend(error.problems)
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return entries


def read_experiment(name: str, file: Path) -> Entry:
    """Read an experiment and its paper; ReproError has every problem of both files."""
    problems: list[Problem] = []
    document, experiment, paper = None, None, None
    try:
        document = read_document(file)
        experiment = read_model(Experiment, document)
        problems.extend(value_problems(document, experiment))
    except ReproError as error:
        problems.extend(error.problems)
    try:
        paper = read_model(Paper, read_document(file.parent / "paper.yaml"))
    except ReproError as error:
        problems.extend(error.problems)
    if document is None or experiment is None or paper is None or problems:
        raise ReproError(*problems)
    return Entry(name, file, document, experiment, paper)
