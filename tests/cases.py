"""Cases of experiments of the Megatron family, with model, layout and training."""

from __future__ import annotations

from orchestrator.catalog import expand as catalog
from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry, experiment_names, find_experiment
from orchestrator.megatron.case import TrainingCase, training_cases
from orchestrator.paths import Folders


def expand(entry: Entry, scale: str = PAPER) -> list[TrainingCase]:
    """Return every case of an experiment at a scale."""
    return training_cases(catalog.expand(entry, scale))


def cases_to_run(entry: Entry, scale: str = PAPER) -> list[TrainingCase]:
    """Return the cases that have a job."""
    return training_cases(catalog.cases_to_run(entry, scale))


def megatron_names(folders: Folders) -> list[str]:
    """Return the experiments that do not describe their program."""
    return [name for name in experiment_names(folders) if find_experiment(folders, name).described is None]
