"""Selection of cases: `--where tp=8,gbs=32` and `--workload pretrain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.catalog.axes import AXES, Value, read_value
from orchestrator.catalog.case import Case, shown_value
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.paths import short_name

_MOST_SHOWN = 12


def parse_where(text: str | None) -> dict[str, Value]:
    """`pp=8,recompute=full` -> {"pp": 8, "recompute": "full"}."""
    wanted: dict[str, Value] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            hint = did_you_mean(name, AXES) or f"known: {', '.join(AXES)}"
            raise ReproError(Problem(f"--where {part.strip()}: no such axis", hint=hint))
        if not equals or not value:
            raise ReproError(Problem(f"--where {part.strip()}: must be axis=value", hint="for example pp=8,gbs=32"))
        try:
            meant = read_value(name, value)
        except ValueError as error:
            raise ReproError(Problem(f"--where {part.strip()}: {error}", hint="for example pp=8,gbs=32")) from None
        if wanted.get(name, meant) != meant:
            raise ReproError(Problem(f"--where {part.strip()}: {name} is given twice", hint="one value for each axis"))
        wanted[name] = meant
    return wanted


def select(cases: list[Case], wanted: Mapping[str, Value]) -> list[Case]:
    """The cases with these values; ReproError says which values there are when none is left."""
    chosen = [case for case in cases if wanted.items() <= case.settings.items()]
    if chosen:
        return chosen
    asked = ",".join(f"{axis}={shown_value(value)}" for axis, value in wanted.items())
    there = "; ".join(f"{axis}: {_values(cases, axis)}" for axis in wanted)
    raise ReproError(Problem(f"--where {asked}: no such case", hint=f"there are {there}"))


def _values(cases: list[Case], axis: str) -> str:
    there = dict.fromkeys(case.settings[axis] for case in cases if axis in case.settings)
    texts = [shown_value(value) for value in sorted(there, key=lambda value: (isinstance(value, str), value))]
    more = f", ... ({len(texts)} in all)" if len(texts) > _MOST_SHOWN else ""
    return (", ".join(texts[:_MOST_SHOWN]) or "none") + more


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
        raise ReproError(Problem(what, hint="leave --workload out"))
    return [
        replace(
            case,
            workload=workload,
            expected=None,
            instead_of=case.instead_of or own[0],
            settings=case.settings | {"workload": workload},
        )
        for case in cases
    ]


def replacement_notes(cases: Sequence[Case]) -> list[str]:
    """Return what a user should know before another workload than the experiment's own runs the cases."""
    own, workload = cases[0].instead_of, cases[0].workload
    if own is None:
        return []
    notes = [f"{short_name(cases[0].experiment)} with {workload} instead of {own}"]
    passed = dict.fromkeys(" ".join(case.arguments) for case in cases if case.arguments)
    if passed:
        notes.append(f"written for {own} and passed to {workload} as they are: {'; '.join(passed)}")
    return notes
