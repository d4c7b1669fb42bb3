"""Settings of the command line for a run: those of the cluster profile, and those of the experiment's cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BeforeValidator

from orchestrator.catalog.case import C
from orchestrator.catalog.experiment import Experiment
from orchestrator.clusters.profile import ClusterProfile
from orchestrator.config.model import Count, Strict, TimeLimit, read_model
from orchestrator.config.yaml import Setting, dotted, parse_settings, settings_document
from orchestrator.errors import Problem, ReproError, added_to, did_you_mean, require_none
from orchestrator.planning.batch_plan import seconds_with_unit
from orchestrator.slurm.notation import format_time_limit


def _in_slurms_form(value: object) -> object:
    """Return a time with a unit, such as `1h`, in the syntax of Slurm; other values unchanged."""
    seconds = seconds_with_unit(value) if isinstance(value, str) else None
    return value if seconds is None else format_time_limit(seconds)


class _TrainingSettings(Strict):
    iterations: Count | None = None


class _CaseSettings(Strict):
    """Settings of cases that change the length of a job and not what it measures."""

    training: _TrainingSettings = _TrainingSettings()
    time_limit: Annotated[TimeLimit | None, BeforeValidator(_in_slurms_form)] = None


_OF_FILES = {"extends", "about", "scheduler"}
_OF_PROFILE = ClusterProfile.model_fields.keys() - _OF_FILES


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run. `iterations` and `time_limit` replace those of every case."""

    all: tuple[Setting, ...] = ()
    of_profile: tuple[Setting, ...] = ()
    iterations: int | None = None
    time_limit: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the values of `--set`."""
        return tuple(setting.text for setting in self.all)

    def applied(self, cases: Sequence[C]) -> list[C]:
        """Return the cases with these iterations and this time limit.

        ReproError if the program of a case has no planned number of iterations.
        """
        if self.iterations is not None and (other := next((case for case in cases if not case.iterations), None)):
            what = f"--set training.iterations={self.iterations}: {other.program} has no such setting"
            raise ReproError(Problem(what, hint="leave it out, or change an axis in the experiment"))
        changed = [case if self.iterations is None else case.with_iterations(self.iterations) for case in cases]
        return changed if self.time_limit is None else [replace(case, time_limit=self.time_limit) for case in changed]


NO_SETTINGS = RunSettings()


def read_settings(texts: Sequence[str]) -> RunSettings:
    """Parse values of `--set`. ReproError has every problem of their form, and unknown fields of experiments."""
    settings = parse_settings(texts)
    of_profile = tuple(setting for setting in settings if setting.path[0] in _OF_PROFILE)
    of_cases = [setting for setting in settings if setting.path[0] in _CaseSettings.model_fields]
    problems = [_unknown(setting) for setting in settings if setting not in of_profile and setting not in of_cases]
    cases = _CaseSettings()
    with added_to(problems):
        document = settings_document(of_cases)
        cases = read_model(_CaseSettings, document, lambda path: document.place(path).in_message)
    require_none(problems)
    return RunSettings(settings, of_profile, cases.training.iterations, cases.time_limit)


def _unknown(setting: Setting) -> Problem:
    field, location = str(setting.path[0]), setting.location.in_message
    in_file = f"{dotted(setting.path)} can be changed in a file only"
    if field in _OF_FILES:
        return Problem(in_file, location, "write a profile of your own with extends:")
    if field in Experiment.model_fields:
        return Problem(in_file, location, "write an experiment of your own; --arg changes arguments of the program")
    known = sorted({*_OF_PROFILE, *_CaseSettings.model_fields})
    return Problem(f"{field}: no such field", location, did_you_mean(field, known) or f"fields: {', '.join(known)}")


def over(recorded: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return recorded settings with given ones over them: a given path replaces recorded ones at or below it."""
    paths = [setting.path for setting in parse_settings(given)]
    earlier = parse_settings(recorded)
    kept = [one.text for one in earlier if not any(one.path[: len(path)] == path for path in paths)]
    return (*kept, *given)
