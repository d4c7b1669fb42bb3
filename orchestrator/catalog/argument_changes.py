"""Cases with changed arguments: the options `--arg --name=value` and `--no-arg --name` of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.catalog.case import C, Case
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.programs.changes import ADDED, DROPPED, changed_flag, read_flags, without_flags
from orchestrator.programs.registry import known_program


def require_changeable(cases: Sequence[Case], changes: Sequence[str]) -> None:
    """Raise ReproError for each argument that the program's axes or the profile set, or that no case passes."""
    known = dict.fromkeys(case.program for case in cases if case.described is None)
    programs = [program for name in known if (program := known_program(name)) is not None]
    problems = [
        Problem(f"{change.replace('=', ' ', 1)}: {fixed.what}", hint=fixed.hint)
        for change in changes
        for program in programs
        if (fixed := program.fixed_argument(changed_flag(change))) is not None
    ]
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    _require_dropped(cases, [changed_flag(change) for change in changes if change.startswith(DROPPED)])


def _require_dropped(cases: Sequence[Case], dropped: Sequence[str]) -> None:
    known = dict.fromkeys(flag for case in cases for flag in _flags(case)) if dropped else {}
    programs = " and ".join(dict.fromkeys(case.program for case in cases))
    problems = [
        Problem(
            f"--no-arg {flag}: {programs} does not get this argument",
            hint=did_you_mean(flag, known) or "repro render prints the arguments of a job",
        )
        for flag in dropped
        if flag not in known
    ]
    if problems:
        raise ReproError(*problems)


def with_changes(cases: Sequence[C], changes: Sequence[str]) -> list[C]:
    """Return the cases with these changes. A change without an effect on a case is not part of it."""
    return [_changed(case, _flags(case), changes) for case in cases] if changes else list(cases)


def _changed(case: C, flags: Mapping[str, tuple[str, ...]], changes: Sequence[str]) -> C:
    effective = [change for change in changes if flags.get(changed_flag(change)) != _values(change)]
    if not effective:
        return case
    arguments = without_flags(case.arguments, effective)
    for change in effective:
        values = _values(change)
        arguments += [] if values is None else [changed_flag(change), *values]
    return replace(case, arguments=tuple(arguments), argument_changes=tuple(effective))


def _values(change: str) -> tuple[str, ...] | None:
    """Return the value that a change gives to its flag, () for a switch; None if the change drops the flag."""
    _, equals, value = change.removeprefix(ADDED).partition("=")
    return None if change.startswith(DROPPED) else (value,) if equals else ()


def _flags(case: Case) -> Mapping[str, tuple[str, ...]]:
    """Return the flags of a case's program."""
    program = known_program(case.program) if case.described is None else None
    if program is not None:
        return program.flags_of(case)
    return read_flags([*(case.described.command if case.described else ()), *case.arguments])
