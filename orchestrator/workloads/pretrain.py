"""A case in the arguments of our own `orchestrator.pretrain`, which speaks today's Megatron-LM for what it knows."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.catalog.case import Case
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.training import Training
from orchestrator.workloads.base import refuse


def job_arguments(case: Case) -> list[str]:
    """The argument list of a job; ReproError for what the program does not do. The exact planner, which builds no more
    than a model, asks for `arguments`, and for the attention itself.
    """
    refuse(case, f"{case.workload} has no", _unknown(case))
    typed = len(case.arguments)
    found = arguments(case)
    attention = _pair("--attention-backend", case.training.attention) if case.training.attention else []
    return [*found[: len(found) - typed], *attention, *case.arguments]


def arguments(case: Case) -> list[str]:
    """The argument list of a case; defaults are left out where the program's own is the same."""
    model, layout, training = case.model, case.layout, case.training
    result = [
        *_pair("--tensor-model-parallel-size", layout.tensor_parallel),
        *_pair("--pipeline-model-parallel-size", layout.pipeline_parallel),
        *_pair("--micro-batch-size", layout.micro_batch_size),
        *_pair("--global-batch-size", layout.global_batch_size),
        *_pair("--num-layers", model.layers),
        *_pair("--hidden-size", model.hidden),
        *_pair("--num-attention-heads", model.heads),
        *_pair("--seq-length", model.seq),
        *_pair("--vocab-size", model.vocab),
        *_pair("--train-iters", training.iterations),
        *_pair("--log-interval", training.log_interval),
        *_pair("--hidden-dropout", training.dropout),
        *_pair("--attention-dropout", training.dropout),
    ]
    if layout.virtual_stages > 1:
        result += _pair("--num-virtual-stages-per-pipeline-rank", layout.virtual_stages)
    if layout.context_parallel > 1:
        result += _pair("--context-parallel-size", layout.context_parallel)
    if layout.sequence_parallel:
        result.append("--sequence-parallel")
    result += [*_family(model), *_recomputation(training)]
    if training.dtype in ("bf16", "fp16"):
        result.append(f"--{training.dtype}")
    if training.dtype == "fp16" and training.loss_scale:
        result += _pair("--loss-scale", training.loss_scale)
    if training.distributed_optimizer is not False:  # sharded over the data-parallel ranks unless a case says otherwise
        result.append("--use-distributed-optimizer")
    return [*result, *case.arguments]


def _unknown(case: Case) -> Iterator[str]:
    if case.model.experts:
        yield "experts"
    if case.layout.context_parallel > 1 and case.training.cp_comm != "p2p":
        yield f"{case.training.cp_comm} for context parallelism"


def _family(model: ModelShape) -> list[str]:
    """What makes the model another than GPT with a feed-forward layer of 4 x hidden."""
    result: list[str] = []
    if model.family == "llama":
        result += ["--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope"]
        result += ["--disable-bias-linear", "--untie-embeddings-and-output-weights"]
        result += _pair("--make-vocab-size-divisible-by", 128)
    if model.ffn is not None:
        result += _pair("--ffn-hidden-size", model.ffn)
    if model.kv_groups is not None:
        result += ["--group-query-attention", *_pair("--num-query-groups", model.kv_groups)]
    return result


def _recomputation(training: Training) -> list[str]:
    result: list[str] = []
    if training.recompute == "ours":
        result += ["--recompute-norm", "--recompute-activation-func"]
    elif training.recompute != "none":
        result += _pair("--recompute-granularity", training.recompute)
    if training.offload:
        result += _pair("--offload-activation-ratio", training.offload)
    return result


def _pair(flag: str, value: object) -> list[str]:
    return [flag, str(value)]
