"""Changes of a program's arguments for a run: `--arg --name=value` and `--no-arg --name`.

A change is an option word, `--arg=--lr=0.001` or `--no-arg=--overlap-sp-ag`. Cases, jobs and commands contain it so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.catalog.case import Case
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.megatron.rules import read_flags
from orchestrator.workloads import find_workload
from orchestrator.workloads.flags import ADDED, DROPPED, changed_flag, without_flags

_NAME = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")

_AXES: Mapping[str, Sequence[str]] = {
    "tp": ("--tensor-model-parallel-size",),
    "pp": ("--pipeline-model-parallel-size",),
    "cp": ("--context-parallel-size",),
    "ep": ("--expert-model-parallel-size",),
    "etp": ("--expert-tensor-parallel-size",),
    "vp": ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    "mbs": ("--micro-batch-size",),
    "gbs": ("--global-batch-size", "--rampup-batch-size"),
    "layers": ("--num-layers", "--encoder-num-layers", "--decoder-num-layers"),
    "hidden": ("--hidden-size",),
    "heads": ("--num-attention-heads", "--kv-channels"),
    "kv_groups": ("--group-query-attention", "--num-query-groups"),
    "ffn": ("--ffn-hidden-size", "--moe-ffn-hidden-size"),
    "experts": ("--num-experts",),
    "experts_per_token": ("--moe-router-topk",),
    "seq": ("--seq-length", "--max-position-embeddings", "--encoder-seq-length", "--decoder-seq-length"),
    "vocab": ("--vocab-size", "--padded-vocab-size", "--make-vocab-size-divisible-by"),
    "recompute": (
        *("--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-activations"),
        *("--activations-checkpoint-method", "--activations-checkpoint-num-layers", "--checkpoint-activations"),
        *("--kaimm-recompute-mlp-activation-func", "--kaimm-recompute-norm", "--recompute-norm"),
        "--recompute-activation-func",
    ),
    "offload": ("--kaimm-offload-activation-ratio", "--offload-activation-ratio"),
    "scatter_gather": ("--no-scatter-gather-tensors-in-pipeline",),
    "sequence_parallel": ("--sequence-parallel",),
    "distributed_optimizer": ("--use-distributed-optimizer",),
    "cp_comm": ("--cp-comm-type",),
    "ddp": ("--DDP-impl",),
}
"""Axis -> the flags that programs get from it. The verdict compares the planned value with the log."""

_TRAINING: Mapping[str, Sequence[str]] = {
    "dtype": ("--fp16", "--bf16"),
    "loss_scale": ("--loss-scale",),
    "dropout": ("--hidden-dropout", "--attention-dropout"),
    "attention": ("--attention-backend", "--use-flash-attn"),
    "iterations": ("--train-iters", "--train-samples", "--exit-interval", "--exit-duration-in-mins"),
    "log_interval": ("--log-interval",),
    "evaluation_iterations": ("--eval-iters",),
}
"""Field of `training` in an experiment -> the flags that programs get from it."""

_OF_PROFILE = ("--data-path", "--vocab-file", "--merge-file", "--tokenizer-type", "--mock-data")
_OF_MODEL = (
    *("--swiglu", "--normalization", "--rms-norm", "--position-embedding-type", "--no-position-embedding"),
    *("--use-rotary-position-embeddings", "--disable-bias-linear", "--untie-embeddings-and-output-weights"),
)


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
    axis = _owner(_AXES, flag)
    field = _owner(_TRAINING, flag)
    if axis is not None:
        what = f"{given}: the case sets this argument, and the verdict compares it with the log"
        yield Problem(what, hint=f"select cases with --where {axis}=..., or set {axis} in an experiment of your own")
    elif field is not None:
        shorter = "--time-budget reduces the iterations; " if field == "iterations" else ""
        what = f"{given}: the case sets this argument"
        yield Problem(what, hint=f"{shorter}set training: {field} in an experiment of your own")
    elif flag in _OF_PROFILE:
        yield Problem(f"{given}: the cluster's profile sets this argument", hint="set it in workloads: of the profile")
    elif flag in _OF_MODEL:
        what = f"{given}: the family of the model sets this argument"
        yield Problem(what, hint="set model: family in an experiment of your own")


def _owner(table: Mapping[str, Sequence[str]], flag: str) -> str | None:
    return next((name for name, flags in table.items() if flag in flags), None)


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


def with_changes(cases: Sequence[Case], changes: Sequence[str]) -> list[Case]:
    """Return the cases with these changes. A change without an effect on a case is not part of it."""
    return [_changed(case, _flags(case), changes) for case in cases] if changes else list(cases)


def _changed(case: Case, flags: Mapping[str, tuple[str, ...]], changes: Sequence[str]) -> Case:
    effective = [change for change in changes if _has_effect(change, flags)]
    if not effective:
        return case
    arguments = without_flags(case.arguments, effective)
    for change in effective:
        if change.startswith(ADDED):
            flag, equals, value = change.removeprefix(ADDED).partition("=")
            arguments += [flag, value] if equals else [flag]
    return replace(case, arguments=tuple(arguments), argument_changes=tuple(effective))


def _has_effect(change: str, flags: Mapping[str, tuple[str, ...]]) -> bool:
    flag = changed_flag(change)
    if change.startswith(DROPPED):
        return flag in flags
    _, equals, value = change.removeprefix(ADDED).partition("=")
    return flags.get(flag) != ((value,) if equals else ())


def _flags(case: Case) -> Mapping[str, tuple[str, ...]]:
    """Return the flags of a case's program; only those of the case itself if the program lacks a setting of it."""
    workload = find_workload(case.workload)
    if workload.unsupported_settings(case):
        return read_flags(case.arguments)
    required = {name: name for name, field in workload.site.model_fields.items() if field.is_required()}
    return read_flags([*workload.arguments(case, workload.site.model_construct(**required)), *case.arguments])


def changes_of(changes: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the changes of several jobs of one run, in the order of the flags."""
    return tuple(sorted({change for of_job in changes for change in of_job}, key=changed_flag))
