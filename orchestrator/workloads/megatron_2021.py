"""A case in the arguments of Megatron-LM at 6985e58938 (2021-08-18), in the order of the SC21 scripts' CONFIG.sh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.catalog.case import Case
from orchestrator.workloads.base import Flags, refuse, words

DROPOUT = 0.1
"""Megatron-LM's own, then and now, since no script of SC21 says one."""

SCHEDULE: Flags = {
    "--lr-decay-iters": 320,
    "--lr": "0.0001",
    "--min-lr": "0.00001",
    "--lr-decay-style": "cosine",
    "--lr-warmup-fraction": "0.01",
    "--split": "969,30,1",
}

_RECOMPUTATION: Mapping[str, Flags] = {"none": {}, "full": {"--activations-checkpoint-method": "uniform"}}


def arguments(case: Case, data_path: str, vocab_file: str, merge_file: str) -> list[str]:
    """The argument list of a case, the scripts' own but for the numbers of iterations; ReproError for what this
    Megatron-LM did not have yet.

    There is no --exit-interval: at this commit it needs --save, and saves a checkpoint into nowhere without.
    """
    refuse(case, f"{case.workload} has no", _unknown(case))
    training, layout = case.training, case.layout
    per_chunk = case.model.layers // layout.pipeline_parallel // layout.virtual_stages
    return words(
        {
            # MEGATRON_EXTRA_PARAMS, which the scripts put first
            **_RECOMPUTATION[training.recompute],
            "--num-layers-per-virtual-pipeline-stage": per_chunk if layout.virtual_stages > 1 else None,
            "--no-scatter-gather-tensors-in-pipeline": not training.scatter_gather,
            **shape(case),
            "--DDP-impl": training.ddp,
            "--data-path": data_path,
            "--vocab-file": vocab_file,
            "--merge-file": merge_file,
            "--log-interval": training.log_interval,
            "--seq-length": case.model.seq,
            "--max-position-embeddings": case.model.seq,
            "--train-iters": training.iterations,
            **SCHEDULE,
            "--eval-iters": training.evaluation_iterations,
            "--eval-interval": 1000,
            "--clip-grad": "1.0",
            f"--{training.dtype}": training.dtype != "fp32",
            "--loss-scale": training.loss_scale,
            # What the scripts leave to the program, where a case does not.
            "--ffn-hidden-size": case.model.ffn,
            **dropout(case),
        }
    ) + list(case.arguments)


def shape(case: Case) -> Flags:
    """What the scripts take from their run_*.sh."""
    return {
        "--tensor-model-parallel-size": case.layout.tensor_parallel,
        "--pipeline-model-parallel-size": case.layout.pipeline_parallel,
        "--micro-batch-size": case.layout.micro_batch_size,
        "--global-batch-size": case.layout.global_batch_size,
        "--num-layers": case.model.layers,
        "--hidden-size": case.model.hidden,
        "--num-attention-heads": case.model.heads,
    }


def dropout(case: Case) -> Flags:
    """Nothing where it is Megatron-LM's own."""
    given = None if case.training.dropout == DROPOUT else case.training.dropout
    return {"--hidden-dropout": given, "--attention-dropout": given}


def _unknown(case: Case) -> Iterator[str]:
    model, layout, training = case.model, case.layout, case.training
    if model.family != "gpt" or model.experts or model.kv_groups is not None:
        yield "models but dense GPT in which every head has its own keys"
    if training.recompute not in _RECOMPUTATION:
        yield f"recomputation {training.recompute}, only {', '.join(_RECOMPUTATION)}"
    if training.offload:
        yield "offloading"
    if layout.context_parallel > 1:
        yield "context parallelism"
    if layout.sequence_parallel and layout.tensor_parallel > 1:
        yield "sequence parallelism"
    if training.distributed_optimizer:
        yield "distributed optimizer"
    if training.attention == "flash":
        yield "flash attention"
