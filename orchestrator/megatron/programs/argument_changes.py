"""Changes of a program's arguments for a run: `--arg --name=value` and `--no-arg --name`.

A change is an option word, `--arg=--lr=0.001` or `--no-arg=--overlap-sp-ag`. Cases, jobs and commands contain it so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.catalog.case import C, Case
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.megatron.axes import AXES
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.programs import find_workload
from orchestrator.megatron.programs.flags import OF_CASE
from orchestrator.megatron.rules import read_flags
from orchestrator.programs.changes import ADDED, DROPPED, changed_flag, without_flags

_NAME = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")

_OTHER_FLAGS: Mapping[str, str] = {
    "vp": "--num-virtual-stages-per-pipeline-rank",
    "gbs": "--rampup-batch-size",
    "layers": "--encoder-num-layers --decoder-num-layers",
    "heads": "--kv-channels",
    "seq": "--encoder-seq-length --decoder-seq-length",
    "vocab": "--padded-vocab-size --make-vocab-size-divisible-by",
    "recompute": (
        "--recompute-activations --activations-checkpoint-num-layers --checkpoint-activations "
        "--kaimm-recompute-mlp-activation-func --kaimm-recompute-norm --recompute-norm --recompute-activation-func"
    ),
    "offload": "--kaimm-offload-activation-ratio --offload-activation-ratio",
    "attention": "--use-flash-attn",
    "iterations": "--train-samples --exit-duration-in-mins",
    "family": "--rms-norm --no-position-embedding --use-rotary-position-embeddings",
    "profile": "--data-path --vocab-file --merge-file --tokenizer-type --mock-data",
}
_OWNERS = {flag: owner for flag, (owner, _) in OF_CASE.items()}
_OWNERS |= {flag: owner for owner, flags in _OTHER_FLAGS.items() for flag in flags.split()}
"""Flag -> the axis, the field of `training`, the family of the model or the profile that sets it."""


def parse_changes(arguments: Sequence[str], dropped: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that these values of `--arg` and `--no-arg` request, in the order of the flags.

    ReproError has every value that is not a flag, is given twice, or contradicts the case.
    """
    problems: list[Problem] = []
    changes: dict[str, str] = {}
    for option, words in (("--arg", arguments), ("--no-arg", dropped)):
        for word in words:
            flag, equals, value = word.partition("=")
            given = f"{option} {word}"
            if not _NAME.fullmatch(flag) or (equals and option == "--no-arg") or "\0" in value:
                form = "--name or --name=value" if option == "--arg" else "--name"
                example = "--arg --lr=0.001" if option == "--arg" else "--no-arg --overlap-sp-ag"
                problems.append(Problem(f"{given}: must be {form}", hint=f"for example {example}"))
            elif flag in changes:
                problems.append(Problem(f"{given}: {flag} is given twice", hint="give it once"))
            else:
                changes[flag] = f"{option}={word}"
                problems += _contradictions(given, flag)
    if problems:
        raise ReproError(*problems)
    return tuple(changes[flag] for flag in sorted(changes))


def _contradictions(given: str, flag: str) -> Iterator[Problem]:
    """Yield the problem of a flag whose value is a part of the case or of the profile."""
    owner = _OWNERS.get(flag)
    what, own = f"{given}: the case sets this argument", "in an experiment of your own"
    if owner is None:
        return
    if owner == "profile":
        yield Problem(f"{given}: the cluster's profile sets this argument", hint="set it in workloads: of the profile")
    elif owner == "family":
        yield Problem(f"{given}: the family of the model sets this argument", hint=f"set model: family {own}")
    elif owner in AXES:
        hint = f"select cases with --where {owner}=..., or set {owner} {own}"
        yield Problem(f"{what}, and the verdict compares it with the log", hint=hint)
    else:
        shorter = "--time-budget reduces the iterations; " if owner == "iterations" else ""
        yield Problem(what, hint=f"{shorter}set training: {owner} {own}")


def require_known(cases: Sequence[Case], changes: Sequence[str]) -> None:
    """Raise ReproError for each flag of `--no-arg` that no case passes to its program."""
    dropped = [changed_flag(change) for change in changes if change.startswith(DROPPED)]
    known = dict.fromkeys(flag for case in cases for flag in _flags(case)) if dropped else {}
    programs = " and ".join(dict.fromkeys(case.workload for case in cases))
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
    """Return the flags of a case's program; only those of the case itself if the program lacks a setting of it."""
    if not isinstance(case, TrainingCase):
        return read_flags([*(case.program.command if case.program else ()), *case.arguments])
    workload = find_workload(case.workload)
    if workload.unsupported_settings(case):
        return read_flags(case.arguments)
    required: dict[str, Any] = {name: name for name, field in workload.site.model_fields.items() if field.is_required()}
    return read_flags([*workload.arguments(case, workload.site.model_construct(**required)), *case.arguments])


def changes_of(changes: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the changes of several jobs of one run, in the order of the flags."""
    return tuple(sorted({change for of_job in changes for change in of_job}, key=changed_flag))
