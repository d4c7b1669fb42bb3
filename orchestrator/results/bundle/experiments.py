"""Experiments of a bundle: the figure's own, and those that its claims compare with."""

from __future__ import annotations

from pathlib import Path

from orchestrator.catalog.claims import PairFields
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, read_experiment
from orchestrator.results.outcome import FigureOutcome


def read_entry(folder: Path, name: str) -> Entry:
    """Read the experiment in the bundle, and those that its claims compare with."""
    file = folder / "experiment" / f"{name}.yaml"
    files = {f"{name.rpartition('/')[0]}/{path.stem}": path for path in sorted(file.parent.glob("*.yaml"))}
    return read_experiment(name, file, files)


def with_others(entry: Entry) -> list[Entry]:
    """Return the experiment, the experiments that its claims compare with, and those that theirs compare with."""
    return [entry, *(one for other in entry.others.values() for one in with_others(other))]


def compared_cases(figure: FigureOutcome) -> dict[str, set[str]]:
    """Return the cases of other experiments that the claims compare with, by full name of the experiment."""
    cases: dict[str, set[str]] = {other.name: set() for other in figure.entry.others.values()}
    for claim in figure.entry.experiment.claims:
        if not isinstance(claim, PairFields) or claim.experiment is None or figure.scale not in claim.judged_at:
            continue
        other = figure.entry.others[claim.experiment]
        wanted = claim.where.given() | claim.over.given()
        cases[other.name] |= {
            case.name for case in expand(other, figure.scale) if wanted.items() <= case.settings.items()
        }
    return cases
