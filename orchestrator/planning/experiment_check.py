"""Check of an experiment's file: every scale is expanded, and every case is compared with its program."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import Folders
from orchestrator.planning.plan import check_case, refusal_problems
from orchestrator.planning.target import Target
from orchestrator.workloads import find_workload


@dataclass(frozen=True, slots=True)
class CheckedScale:
    """A scale of an experiment and the number of its cases that have a job."""

    scale: str
    cases: int


def check_experiment(folders: Folders, name: str) -> tuple[Entry, list[CheckedScale]]:
    """Return an experiment and its scales; ReproError has every problem of its file, scales and cases.

    The published cases are also checked on the machine of the paper, if paper.yaml describes it.
    """
    entry = find_experiment(folders, name)
    scales: list[CheckedScale] = []
    problems: list[Problem] = []
    for scale in scale_names(entry.experiment):
        try:
            cases = [] if entry.experiment.reference_only else cases_to_run(entry, scale)
        except ReproError as error:
            problems += error.problems
            continue
        problems += _unsupported(entry, scale, cases)
        if scale == PAPER and entry.paper.machine is not None:
            target = Target.of_paper(entry)
            problems += refusal_problems(entry, [check_case(case, target) for case in cases], target)
        scales.append(CheckedScale(scale, len(cases)))
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return entry, scales


def _unsupported(entry: Entry, scale: str, cases: list[Case]) -> list[Problem]:
    """Return each reason why a program cannot run cases of a scale, with the cases."""
    by_reason: dict[str, list[str]] = {}
    for case in cases:
        try:
            reason = find_workload(case.workload).unsupported_settings(case)
        except ReproError as error:
            problem = error.problems[0]
            reason = str(Problem(problem.what, hint=problem.hint))
        if reason is not None:
            by_reason.setdefault(reason, []).append(case.name)
    problems = []
    for reason, names in by_reason.items():
        which = f"all {len(cases)} cases" if len(names) == len(cases) > 1 else " and ".join(names)
        problems.append(Problem(f"{which} at scale {scale}: {reason}", entry.scale_location(scale, "workload")))
    return problems
