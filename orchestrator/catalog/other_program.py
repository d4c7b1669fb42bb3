"""An experiment's cases run with another program than its own: `--workload pretrain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import short_name


def with_workload(cases: Sequence[Case], workload: str) -> list[Case]:
    """The same cases with this program; those that have it already come back as they are.

    How the source says a case ends is about its own program and goes; its numbers stay, to be drawn beside. All cases
    of an experiment at a scale are given: ReproError where they compare programs, and would become the same job.
    """
    own = list(dict.fromkeys(case.workload for case in cases))
    if own == [workload]:
        return list(cases)
    if len(own) > 1 or any(axis == "workload" for case in cases for axis, _ in case.point):
        figure = f"{short_name(cases[0].experiment)} at scale {cases[0].scale}"
        what = f"--workload {workload}: {figure} compares programs ({', '.join(own)}), which would become one"
        raise ReproError(Problem(what, mend="leave --workload out"))
    return [
        replace(case, workload=workload, expected=None, settings=case.settings | {"workload": workload})
        for case in cases
    ]


def instead_of(entry: Entry, case: Case) -> str | None:
    """The program that the experiment itself names at the case's scale; None where the case has it."""
    own = [other.workload for other in expand(entry, case.scale)]
    return None if case.workload in own else own[0]


def replacement_notes(entry: Entry, cases: Sequence[Case]) -> list[str]:
    """What a person should know before another program runs the cases; nothing where their own does."""
    own, workload = instead_of(entry, cases[0]), cases[0].workload
    if own is None:
        return []
    notes = [f"{entry.short_name} with {workload} instead of {own}"]
    passed = dict.fromkeys(" ".join(case.arguments) for case in cases if case.arguments)
    if passed:
        notes.append(f"written for {own} and passed to {workload} as they are: {'; '.join(passed)}")
    return notes
