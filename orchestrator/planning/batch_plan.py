"""Many experiments planned together: every case costed or refused, jobs that figures share counted once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem
from orchestrator.planning.cost import Cost, cost_of
from orchestrator.planning.identity import what_runs
from orchestrator.planning.plan import refusal_problems
from orchestrator.planning.target import Target, refusals, warnings
from orchestrator.slurm.time_limits import time_limit_s


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some cases of an experiment, and the machine to plan them for."""

    entry: Entry
    cases: tuple[Case, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case with what it takes, or why it cannot run. `same_as` names an earlier case that is the same job."""

    entry: Entry
    case: Case
    target: Target
    cost: Cost | None
    time_limit: str
    refused: tuple[str, ...]
    warnings: tuple[str, ...]
    same_as: str | None

    @property
    def label(self) -> str:
        return _label(self.entry, self.case)


@dataclass(frozen=True, slots=True)
class Campaign:
    planned: tuple[PlannedCase, ...]

    @property
    def jobs(self) -> list[PlannedCase]:
        """What would run, each job once."""
        return [planned for planned in self.planned if not planned.refused and planned.same_as is None]

    @property
    def refused(self) -> list[PlannedCase]:
        return [planned for planned in self.planned if planned.refused]

    @property
    def refusals(self) -> list[Problem]:
        """Of each experiment every reason once, with the cases that it stops."""
        by_entry: dict[str, list[PlannedCase]] = {}
        for planned in self.planned:
            by_entry.setdefault(planned.entry.name, []).append(planned)
        return [
            problem
            for some in by_entry.values()
            for problem in refusal_problems(some[0].entry, [(planned.case, planned.refused) for planned in some])
        ]

    @property
    def gpu_hours(self) -> float:
        """Of the jobs whose time can be predicted."""
        return sum(job.cost.gpu_hours for job in self.jobs if job.cost and job.cost.gpu_hours)


def plan_campaign(chosen: Iterable[Chosen]) -> Campaign:
    """Every chosen case, in order. Pure, and quick: no scheduler, no torch, no file is touched."""
    first: dict[tuple[str, str], str] = {}
    planned: list[PlannedCase] = []
    for some in chosen:
        for case in some.cases:
            label = _label(some.entry, case)
            same_as = first.setdefault((some.target.name, what_runs(case)), label)
            planned.append(_planned(some.entry, case, some.target, None if same_as == label else same_as))
    return Campaign(tuple(planned))


def _planned(entry: Entry, case: Case, target: Target, same_as: str | None) -> PlannedCase:
    refused = tuple(refusals(case, target))
    cost = None if refused else cost_of(case, target)
    limit = case.time_limit or target.time_limit or "0:30:00"
    found = (*warnings(case, target), *_cost_warnings(cost, limit))
    return PlannedCase(entry, case, target, cost, limit, refused, found, same_as)


def _label(entry: Entry, case: Case) -> str:
    return f"{entry.short_name} {case.name}"


def _cost_warnings(cost: Cost | None, limit: str) -> list[str]:
    if cost is None:
        return []
    found = []
    if cost.fit == "OOM unexpected":
        found.append("does not fit into the GPU's memory")
    if cost.job_s is not None and cost.job_s > time_limit_s(limit):
        found.append(f"predicted to take {cost.job_s / 60:.0f} minutes, asks for {limit}")
    return found
