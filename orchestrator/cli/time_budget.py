"""`--time-budget`, as plan, submit and render have it: the option, and what a person is told of what it did."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.planning.batch_plan import Budgeted

TimeBudget = Annotated[
    Optional[str],  # noqa: UP045  typer reads it at run time, on Python 3.10 too
    typer.Option(
        "--time-budget",
        help="Fewer iterations, so that all chosen jobs, one after another, are predicted to take no longer: 10m, "
        "600s, 1h or 0:10:00. Where Slurm runs several at once it is an upper bound.",
    ),
]


def as_typed_budget(time_budget: str | None, where: str | None) -> str:
    """The option as it stands at the end of a command that is suggested, with the choice of the cases that share it."""
    if time_budget is None:
        return ""
    return f"{f' --where {shlex.quote(where)}' if where else ''} --time-budget {time_budget}"


def budget_line(found: Budgeted) -> str:
    """`5 iterations instead of 8: 6 jobs, one after another, 581 s of the 600 s of --time-budget, as predicted ...`."""
    now, own = _range([case.training.iterations for case in found.cases]), _range(found.own)
    kept = f"{now} iterations, as the experiment says" if now == own else f"{now} iterations instead of {own}"
    jobs = counted(found.jobs, "job") + (", one after another," if found.jobs > 1 else "")
    spent = f"{found.total_s:.0f} s of the {found.budget_s} s of --time-budget"
    return f"{kept}: {jobs} {spent}, as predicted, give or take {100 * found.uncertainty:.0f} %"


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"
