"""Files of experiments that were submitted by a path, so that later commands find them by name."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import ExperimentFile


def experiment_files(ledger: Ledger) -> dict[str, Path]:
    """Return the recorded file of each experiment that was submitted by a path."""
    with ledger.reading() as session:
        rows = session.execute(sa.select(ExperimentFile.experiment, ExperimentFile.file))
        return {experiment: Path(file) for experiment, file in rows}


def record_experiment_file(ledger: Ledger, experiment: str, file: Path) -> None:
    """Store the file of an experiment. ReproError if another file that still exists has this name."""
    other = experiment_files(ledger).get(experiment)
    if other is not None and other.is_file() and not other.samefile(file):
        hint = "rename the file or its folder: both are part of the experiment's name"
        raise ReproError(Problem(f"{experiment} was submitted from another file, {other}", f"{file}:", hint))
    with ledger.writing() as session:
        session.merge(ExperimentFile(experiment=experiment, file=str(file)))
