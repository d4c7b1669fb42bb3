"""Which cases of an experiment a person means: `--where tp=8,gbs=32`."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.catalog.case import Case, shown_value
from orchestrator.catalog.settings import AXES, Value, read_value
from orchestrator.errors import Problem, ReproError, did_you_mean

_MOST_SHOWN = 12


def parse_where(text: str | None) -> dict[str, Value]:
    """`pp=8,recompute=full` -> {"pp": 8, "recompute": "full"}."""
    wanted: dict[str, Value] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in AXES:
            mend = did_you_mean(name, AXES) or f"known: {', '.join(AXES)}"
            raise ReproError(Problem(f"--where {part.strip()}: no such axis", mend=mend))
        if not equals or not value:
            raise ReproError(Problem(f"--where {part.strip()}: must be axis=value", mend="for example pp=8,gbs=32"))
        try:
            meant = read_value(name, value)
        except ValueError as error:
            raise ReproError(Problem(f"--where {part.strip()}: {error}", mend="for example pp=8,gbs=32")) from None
        if wanted.get(name, meant) != meant:
            raise ReproError(Problem(f"--where {part.strip()}: {name} is given twice", mend="one value for each axis"))
        wanted[name] = meant
    return wanted


def select(cases: list[Case], wanted: Mapping[str, Value]) -> list[Case]:
    """The cases with these values; ReproError says which values there are when none is left."""
    chosen = [case for case in cases if wanted.items() <= case.settings.items()]
    if chosen:
        return chosen
    asked = ",".join(f"{axis}={shown_value(value)}" for axis, value in wanted.items())
    there = "; ".join(f"{axis}: {_values(cases, axis)}" for axis in wanted)
    raise ReproError(Problem(f"--where {asked}: no such case", mend=f"there are {there}"))


def _values(cases: list[Case], axis: str) -> str:
    there = dict.fromkeys(case.settings[axis] for case in cases if axis in case.settings)
    texts = [shown_value(value) for value in sorted(there, key=lambda value: (isinstance(value, str), value))]
    more = f", ... ({len(texts)} in all)" if len(texts) > _MOST_SHOWN else ""
    return (", ".join(texts[:_MOST_SHOWN]) or "none") + more
