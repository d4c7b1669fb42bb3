"""Plan of many experiments: each case checked and costed, jobs that figures share counted once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem
from orchestrator.planning.plan import CheckedCase, check_case, refusal_problems, what_runs
from orchestrator.planning.target import Target


@dataclass(frozen=True, slots=True)
class CaseSelection:
    """Cases of an experiment and the machine to plan them for."""

    entry: Entry
    cases: tuple[Case, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A checked case of an experiment. `same_as` is the label of an earlier case that is the same job."""

    entry: Entry
    checked: CheckedCase
    same_as: str | None

    @property
    def case(self) -> Case:
        return self.checked.case

    @property
    def label(self) -> str:
        return _label(self.entry, self.case)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The planned cases of all experiments."""

    planned: tuple[PlannedCase, ...]

    @property
    def jobs(self) -> list[PlannedCase]:
        """The cases that would run, each job once."""
        return [planned for planned in self.planned if not planned.checked.refusals and planned.same_as is None]

    @property
    def refused(self) -> list[PlannedCase]:
        """The cases that cannot run."""
        return [planned for planned in self.planned if planned.checked.refusals]

    @property
    def refusals(self) -> list[Problem]:
        """Each refusal of each experiment once, with the cases that it stops."""
        by_entry: dict[str, list[PlannedCase]] = {}
        for planned in self.planned:
            by_entry.setdefault(planned.entry.name, []).append(planned)
        return [
            problem
            for group in by_entry.values()
            for problem in refusal_problems(group[0].entry, [planned.checked for planned in group])
        ]

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the jobs whose time can be predicted."""
        costs = [job.checked.cost for job in self.jobs]
        return sum(cost.gpu_hours for cost in costs if cost and cost.gpu_hours)


def plan_batch(selections: Iterable[CaseSelection]) -> BatchPlan:
    """Check and cost every chosen case, in order."""
    first: dict[tuple[str, str], str] = {}
    planned: list[PlannedCase] = []
    for selection in selections:
        for case in selection.cases:
            label = _label(selection.entry, case)
            same_as = first.setdefault((selection.target.name, what_runs(case)), label)
            checked = check_case(case, selection.target)
            planned.append(PlannedCase(selection.entry, checked, None if same_as == label else same_as))
    return BatchPlan(tuple(planned))


def _label(entry: Entry, case: Case) -> str:
    return f"{entry.short_name} {case.name}"
