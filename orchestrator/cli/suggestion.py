"""Suggested commands: the last line of each command, `next: repro ...`.

A suggestion keeps the options that select jobs, cases, plans or a ledger, so that it is about the same things.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.output import message

if TYPE_CHECKING:
    import typer

_OPTIONS = {
    "cluster": "--cluster",
    "scale": "--scale",
    "workload": "--workload",
    "where": "--where",
    "state": "--state",
    "attempt": "--attempt",
    "time_budget": "--time-budget",
    "cost_budget": "--cost-budget",
    "arg": "--arg",
    "no_arg": "--no-arg",
    "run": "--run",
    "without": "--without",
    "settings": "--set",
    "example": "--example",
    "partition": "--partition",
    "qos": "--qos",
    "reservation": "--reservation",
    "nodelist": "--nodelist",
    "exclude": "--exclude",
    "time": "--time",
    "database": "--database",
}
"""Parameter of a command -> option, in the order in which a suggestion has them."""

_RUNS = frozenset({"cluster", "scale", "workload", "database"})
_JOBS = _RUNS | {"where"}
_ON_CLUSTER = frozenset({"settings", "partition", "qos", "reservation", "nodelist", "exclude", "time"})
_CASES = _ON_CLUSTER | {"scale", "where", "workload", "time_budget", "cost_budget", "arg", "no_arg", "example"}
_OF_RESULTS = frozenset({"attempt", "arg", "run", "without"})
TAKEN: dict[str, frozenset[str]] = {
    "list": frozenset({"database"}),
    "show": frozenset({"scale", "where"}),
    "plan": _CASES | {"cluster"},
    "render": _CASES | {"cluster"},
    "submit": _CASES | {"cluster", "database"},
    "status": _JOBS | {"state"},
    "wait": _JOBS,
    "retry": _JOBS | {"state", "settings", "time"},
    "cancel": _JOBS | {"state"},
    "collect": _JOBS | _OF_RESULTS,
    "compare": _JOBS | _OF_RESULTS,
    "claims": _RUNS | _OF_RESULTS,
    "plot": _JOBS | _OF_RESULTS,
    "bundle": _RUNS | {"arg", "run", "without"},
    "logs": frozenset({"attempt", "database"}),
    "history": frozenset({"database"}),
    "sql": frozenset({"database"}),
    "clusters check": frozenset({"scale"}) | _ON_CLUSTER,
    "clusters show": frozenset({"settings"}),
    "nodes allow": frozenset({"cluster"}),
    "nodes deny": frozenset({"cluster"}),
    "nodes list": frozenset({"cluster"}),
    "images list": frozenset({"cluster"}),
    "images import": frozenset({"cluster"}),
    "workloads show": frozenset({"cluster"}),
    "workloads fetch": frozenset({"cluster"}),
    "bundle verify": frozenset(),
    "experiments check": frozenset(),
}
"""Suggested command -> the parameters of `_OPTIONS` that it takes. A test compares this with the commands."""


def next_command(command: str, purpose: str) -> None:
    """Print the command to type next."""
    message(f"next: {command}   # {purpose}")


def suggest(context: typer.Context, purpose: str, command: str, *words: str, **changed: object) -> None:
    """Print a command of `repro` to type next, with this command's options that it takes.

    `words` are arguments, then options without a value to keep. `changed` replaces options; None leaves one out.
    """
    next_command(suggested(context, command, *words, **changed), purpose)


def suggested(context: typer.Context, command: str, *words: str, **changed: object) -> str:
    """Return the command of `suggest`."""
    given = {name: value for name, value in context.params.items() if _is_given(context, name)}
    chosen = {name: value for name, value in (given | changed).items() if name in TAKEN[command]}
    options = [word for name in _OPTIONS if name in chosen for word in _option(name, chosen[name])]
    flags = next((number for number, word in enumerate(words) if word.startswith("-")), len(words))
    return shlex.join(["repro", *command.split(), *words[:flags], *options, *words[flags:]])


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether the command line has this parameter. Defaults apply to the suggested command, too."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _option(name: str, value: object) -> Iterator[str]:
    """Yield the words of an option: none for None and an empty list, several for a list."""
    if value is True:
        yield _OPTIONS[name]
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from (_OPTIONS[name], str(each))
    elif value not in (None, False):
        yield from (_OPTIONS[name], str(value))


def only(names: Sequence[str]) -> Sequence[str]:
    """Return the name as the words of a command that takes at most one; nothing if there are several."""
    distinct = list(dict.fromkeys(names))
    return distinct if len(distinct) == 1 else []
