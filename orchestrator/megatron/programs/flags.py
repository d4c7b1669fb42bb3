"""Flags of the programs: those of a case, changes of a run (`--arg`, `--no-arg`), and settings that a program lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.errors import Problem
from orchestrator.megatron.axes import AXES
from orchestrator.megatron.case import TrainingCase
from orchestrator.programs.record import ProgramSite

Flags = Mapping[str, object]
"""Flag -> its value, in the order of the command line. True is a switch without a value; a flag with None or False is
left out."""

DROPOUT = 0.1
"""Megatron-LM's default in all versions; no script of SC21 sets it."""

RECOMPUTATION = "--recompute-granularity --recompute-method --recompute-num-layers "
"""Flags of recomputation, except in Megatron-LM of 2021."""


def layers_per_chunk(case: TrainingCase) -> int:
    """Return the number of layers of a virtual pipeline stage."""
    return case.model.layers // case.layout.pipeline_parallel // case.layout.virtual_stages


def _is_llama(case: TrainingCase) -> bool:
    return case.model.family == "llama"


def _dropout(case: TrainingCase) -> float | None:
    return None if case.training.dropout == DROPOUT else case.training.dropout


def _method(case: TrainingCase) -> str | None:
    return "uniform" if case.training.recompute == "full" else None


OF_CASE: Mapping[str, tuple[str, Callable[[TrainingCase], object]]] = {
    "--tensor-model-parallel-size": ("tp", lambda case: case.layout.tensor_parallel),
    "--pipeline-model-parallel-size": ("pp", lambda case: case.layout.pipeline_parallel),
    "--num-layers-per-virtual-pipeline-stage": (
        "vp",
        lambda case: layers_per_chunk(case) if case.layout.virtual_stages > 1 else None,
    ),
    "--no-scatter-gather-tensors-in-pipeline": ("scatter_gather", lambda case: not case.training.scatter_gather),
    "--context-parallel-size": ("cp", lambda case: size if (size := case.layout.context_parallel) > 1 else None),
    "--cp-comm-type": ("cp_comm", lambda case: case.training.cp_comm if case.layout.context_parallel > 1 else None),
    "--sequence-parallel": ("sequence_parallel", lambda case: case.layout.sequence_parallel),
    "--use-distributed-optimizer": ("distributed_optimizer", lambda case: case.training.distributed_optimizer),
    "--DDP-impl": ("ddp", lambda case: case.training.ddp),
    "--micro-batch-size": ("mbs", lambda case: case.layout.micro_batch_size),
    "--global-batch-size": ("gbs", lambda case: case.layout.global_batch_size),
    "--num-layers": ("layers", lambda case: case.model.layers),
    "--hidden-size": ("hidden", lambda case: case.model.hidden),
    "--num-attention-heads": ("heads", lambda case: case.model.heads),
    "--seq-length": ("seq", lambda case: case.model.seq),
    "--max-position-embeddings": ("seq", lambda case: case.model.seq),
    "--vocab-size": ("vocab", lambda case: case.model.vocab),
    "--ffn-hidden-size": ("ffn", lambda case: None if case.model.experts else case.model.ffn),
    "--group-query-attention": ("kv_groups", lambda case: case.model.kv_groups is not None),
    "--num-query-groups": ("kv_groups", lambda case: case.model.kv_groups),
    "--num-experts": ("experts", lambda case: case.model.experts or None),
    "--moe-router-topk": (
        "experts_per_token",
        lambda case: case.model.experts_per_token if case.model.experts else None,
    ),
    "--moe-ffn-hidden-size": ("ffn", lambda case: case.model.ffn_hidden if case.model.experts else None),
    "--expert-model-parallel-size": ("ep", lambda case: case.layout.expert_parallel if case.model.experts else None),
    "--expert-tensor-parallel-size": (
        "etp",
        lambda case: case.layout.expert_tensor_size if case.model.experts else None,
    ),
    "--swiglu": ("family", _is_llama),
    "--normalization": ("family", lambda case: "RMSNorm" if _is_llama(case) else None),
    "--position-embedding-type": ("family", lambda case: "rope" if case.model.has_rotary_positions else None),
    "--disable-bias-linear": ("family", _is_llama),
    "--untie-embeddings-and-output-weights": ("family", _is_llama),
    "--recompute-granularity": (
        "recompute",
        lambda case: kind if (kind := case.training.recompute) in ("full", "selective") else None,
    ),
    "--recompute-method": ("recompute", _method),
    "--recompute-num-layers": ("recompute", lambda case: 1 if case.training.recompute == "full" else None),
    "--activations-checkpoint-method": ("recompute", _method),
    "--attention-backend": ("attention", lambda case: case.training.attention),
    "--hidden-dropout": ("dropout", _dropout),
    "--attention-dropout": ("dropout", _dropout),
    "--fp16": ("dtype", lambda case: case.training.dtype == "fp16"),
    "--bf16": ("dtype", lambda case: case.training.dtype == "bf16"),
    "--loss-scale": ("loss_scale", lambda case: case.training.loss_scale if case.training.dtype == "fp16" else None),
    "--train-iters": ("iterations", lambda case: case.training.iterations),
    "--exit-interval": ("iterations", lambda case: case.training.iterations),
    "--log-interval": ("log_interval", lambda case: case.training.log_interval),
    "--eval-iters": ("evaluation_iterations", lambda case: case.training.evaluation_iterations),
}
"""Flag -> the axis, the field of `training` or the `family` that sets it, and its value for a case."""


def script_flags(script: str, case: TrainingCase, values: Flags) -> dict[str, object]:
    """Return the flags of a published script for a case, in the order of the script.

    A flag has the value that follows it in the script, else that of `values`, else that of the case. Without any it is
    a switch.
    """
    flags: dict[str, object] = {}
    flag = ""
    for word in script.split():
        if not word.startswith("--"):
            flags[flag] = word
            continue
        flag = word
        flags[flag] = values[flag] if flag in values else OF_CASE[flag][1](case) if flag in OF_CASE else True
    return flags


def site_flags(site: ProgramSite) -> Flags:
    """Return the flag of each field of a site: `--data-path` of `data_path`."""
    return {f"--{name.replace('_', '-')}": value for name, value in site.model_dump().items()}


def flag_arguments(flags: Flags) -> list[str]:
    """Return flags as arguments.

    >>> flag_arguments({"--lr": "6.0e-5", "--bf16": True, "--swiglu": False, "--train-iters": 100})
    ['--lr', '6.0e-5', '--bf16', '--train-iters', '100']
    """
    result: list[str] = []
    for flag, value in flags.items():
        if value is True:
            result.append(flag)
        elif value is not None and value is not False:
            result += [flag, str(value)]
    return result


_SETTINGS: Mapping[str, Callable[[TrainingCase], object]] = {
    "rotary positions": lambda case: case.model.positions != "learned",
    "offloading": lambda case: case.training.offload,
    "context parallelism": lambda case: case.layout.context_parallel > 1,
    "sequence parallelism": lambda case: case.layout.sequence_parallel and case.layout.tensor_parallel > 1,
    "virtual stages": lambda case: case.layout.virtual_stages > 1,
    "the distributed optimizer": lambda case: case.training.distributed_optimizer,
    "flash attention": lambda case: case.training.attention == "flash",
    "DDP torch": lambda case: case.training.ddp == "torch",
    "disabling scatter/gather": lambda case: not case.training.scatter_gather,
}


def lacking(case: TrainingCase, *settings: str, recomputation: Sequence[str] = ()) -> Iterator[str]:
    """Yield those of the settings that a case has. `recomputation` has the values that the program supports."""
    for setting in settings:
        if setting != "recomputation":
            if _SETTINGS[setting](case):
                yield setting
        elif case.training.recompute not in recomputation:
            yield f"recomputation {case.training.recompute} (only {', '.join(recomputation)})"


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


def fixed_argument(flag: str) -> Problem | None:
    """Return why `--arg` cannot change this flag: its value is a part of the case or of the profile."""
    owner, own = _OWNERS.get(flag), "in an experiment of your own"
    if owner is None:
        return None
    if owner == "profile":
        return Problem("the cluster's profile sets this argument", hint="set it in programs: of the profile")
    if owner == "family":
        return Problem("the family of the model sets this argument", hint=f"set model: family {own}")
    what = "the case sets this argument"
    if owner in AXES:
        hint = f"select cases with --where {owner}=..., or set {owner} {own}"
        return Problem(f"{what}, and the verdict compares it with the log", hint=hint)
    shorter = "--time-budget reduces the iterations; " if owner == "iterations" else ""
    return Problem(what, hint=f"{shorter}set training: {owner} {own}")
