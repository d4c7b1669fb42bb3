"""Pictures of experiments on the paper's axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, FigureFilter, Session, with_keywords
from orchestrator.api.figures import judged, note_program, outcomes
from orchestrator.api.jobs import name_list, updated_ledger
from orchestrator.catalog.library import experiments_meant
from orchestrator.errors import Problem, ReproError
from orchestrator.files import names_folder, require_place
from orchestrator.results.outcome import FigureOutcome
from orchestrator.results.plot.figure import known_format, require_matplotlib
from orchestrator.results.plot.figure import plot as draw

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Plotted:
    """A figure file and the outcome that it shows."""

    file: Path
    outcome: FigureOutcome


@with_keywords(FigureFilter)
def plot(
    experiment: str | None = None,
    output: Path | str | None = None,
    *,
    where: str | None = None,
    attempt: int | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[FigureFilter],
) -> Plotted:
    """Draw an experiment on the paper's axes as png, svg or pdf. Replaces the file. Needs matplotlib.

    In a folder, or without `output`, the file is a png with the name of the figure. A folder whose name ends with a
    slash is made.

    `attempt` is that of `collect`.
    """
    place, is_folder = Path(output or "."), names_folder(output)
    if not is_folder:
        require_plot_file(place)
    figure = judged(updated_ledger(session), session, experiment, attempt, **selection)
    note_program(session, figure)
    if not _is_measured(figure, where):
        raise ReproError(_no_verified_case(figure))
    require_matplotlib()
    file = place
    if is_folder:
        place.mkdir(parents=True, exist_ok=True)
        file = place / figure.file_name(".png", attempt)
    require_place(file)
    return _drawn(figure, where, file)


@with_keywords(FigureFilter)
def plot_all(
    names: Sequence[str] | str,
    folder: Path | str | None = None,
    *,
    where: str | None = None,
    attempt: int | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[FigureFilter],
) -> list[Plotted]:
    """Draw one png for each of these experiments, into a folder that exists or whose name ends with a slash.

    Replaces the files.

    Of a paper, each experiment with a verified case is drawn. ReproError has the problems of all experiments, before
    the first picture.
    """
    place = Path(folder or ".")
    if not names_folder(folder):
        raise ReproError(Problem("no such folder", f"{place}:", f"several pictures need a folder: -o {place}/"))
    meant = experiments_meant(session.folders, name_list(names))
    figures = outcomes(names, attempt=attempt, session=session, **selection)
    unverified = [figure for figure in figures if not _is_measured(figure, where)]
    problems = {figure.entry.name: _no_verified_case(figure) for figure in unverified}
    named = [problem for name, problem in problems.items() if meant[name]]
    if named or len(problems) == len(figures):
        raise ReproError(*(named or problems.values()))
    session.note(f"{figure.entry.short_name} is left out: no verified case" for figure in unverified)
    require_matplotlib()
    place.mkdir(parents=True, exist_ok=True)
    files = [
        (figure, place / figure.file_name(".png", attempt)) for figure in figures if figure.entry.name not in problems
    ]
    for _, file in files:
        require_place(file)
    return [_drawn(figure, where, file) for figure, file in files]


def _is_measured(figure: FigureOutcome, where: str | None) -> bool:
    return any(result.is_measured for result in figure.having(where))


def _no_verified_case(figure: FigureOutcome) -> Problem:
    name = figure.entry.short_name
    return Problem(f"{name} at scale {figure.scale}: no verified case", hint=f"repro status {name}")


def _drawn(figure: FigureOutcome, where: str | None, file: Path) -> Plotted:
    draw(figure.entry, figure.scale, figure.cluster, figure.drawn(where), file)
    return Plotted(file, figure)


def require_plot_file(file: Path) -> None:
    """Raise ReproError if the name has no known ending or no file can be written there."""
    known_format(file)
    require_place(file)
