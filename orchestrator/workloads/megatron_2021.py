"""A case in the arguments of Megatron-LM at 6985e58938 (2021-08-18), in the order of the SC21 scripts' CONFIG.sh."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.catalog.case import Case


def arguments(case: Case, data_path: str, vocab_file: str, merge_file: str) -> list[str]:
    """The argument list of a case, the scripts' own but for the numbers of iterations.

    There is no --exit-interval: at this commit it needs --save, and saves a checkpoint into nowhere without.
    """
    model, layout, training = case.model, case.layout, case.training
    fixed = {
        "--tensor-model-parallel-size": layout.tensor_parallel,
        "--pipeline-model-parallel-size": layout.pipeline_parallel,
        "--micro-batch-size": layout.micro_batch_size,
        "--global-batch-size": layout.global_batch_size,
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--num-attention-heads": model.heads,
        "--DDP-impl": training.ddp,
        "--data-path": data_path,
        "--vocab-file": vocab_file,
        "--merge-file": merge_file,
        "--log-interval": training.log_interval,
        "--seq-length": model.seq,
        "--max-position-embeddings": model.seq,
        "--train-iters": training.iterations,
        "--lr-decay-iters": 320,
        "--lr": "0.0001",
        "--min-lr": "0.00001",
        "--lr-decay-style": "cosine",
        "--lr-warmup-fraction": "0.01",
        "--split": "969,30,1",
        "--eval-iters": training.evaluation_iterations,
        "--eval-interval": 1000,
        "--clip-grad": "1.0",
    }
    result = list(_extra(case))
    for flag, value in fixed.items():
        result += [flag, str(value)]
    if training.dtype == "fp16":
        result.append("--fp16")
    if training.loss_scale:
        result += ["--loss-scale", str(training.loss_scale)]
    return [*result, *case.arguments]


def _extra(case: Case) -> Iterator[str]:
    """MEGATRON_EXTRA_PARAMS, which the scripts put first."""
    layout = case.layout
    if case.training.recompute == "full":
        yield from ("--activations-checkpoint-method", "uniform")
    if layout.virtual_stages > 1:
        per_stage = case.model.layers // layout.pipeline_parallel // layout.virtual_stages
        yield from ("--num-layers-per-virtual-pipeline-stage", str(per_stage))
    if not case.training.scatter_gather:
        yield "--no-scatter-gather-tensors-in-pipeline"
