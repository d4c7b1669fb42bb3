"""Megatron-LM at 6985e58938 (2021-08-18): arguments in the order of the SC21 scripts' CONFIG.sh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.workloads.base import (
    Flags,
    JobContext,
    Program,
    TimeFacts,
    Workload,
    flag_arguments,
    interleaving,
    megatron_program,
)
from orchestrator.workloads.kernels import compile_command
from orchestrator.workloads.needs import GPT2_TOKENS, MERGES, VOCABULARY, Repository, TokenData
from orchestrator.workloads.site_fields import VocabularySite

DROPOUT = 0.1
"""Megatron-LM's default in all versions; no script of SC21 sets it."""

SCHEDULE: Flags = {
    "--lr-decay-iters": 320,
    "--lr": "0.0001",
    "--min-lr": "0.00001",
    "--lr-decay-style": "cosine",
    "--lr-warmup-fraction": "0.01",
    "--split": "969,30,1",
}

_RECOMPUTATION: Mapping[str, Flags] = {"none": {}, "full": {"--activations-checkpoint-method": "uniform"}}


# At 6985e58938: attention keeps its scores (model/transformer.py). The loss copies the 16-bit logits to fp32 and
# overwrites this copy (mpu/cross_entropy.py). Gradients have the 16 bits of the weights (arguments.py), and one buffer
# only with --use-contiguous-buffers-in-ddp, which no script sets (model/distributed.py). Every rank holds the whole
# optimizer (optimizer/optimizer.py). Stages keep the outputs that they have sent, and an interleaved schedule can start
# with all forward passes (schedules.py).
MEMORY = MemoryFacts(
    "unfused",
    shards_optimizer=False,
    gradient_bytes=2,
    keeps_gradient_buffers=False,
    logit_bytes=6,
    frees_outputs=False,
    fills_pipeline_first=True,
    fuses_weight_gradients=False,
)
TIME = TimeFacts(
    "unfused",
    distributed_optimizer=False,
    fp32_gradients=False,
    hides_interleaved_transfers=False,
    synchronizes_transfers=True,  # p2p_communication.py: torch.cuda.synchronize after batch_isend_irecv
    ring_uses_one_card=True,  # inferred from figure 15, where rings have 4 of 8 GPUs of a node
    limited_by_host=False,  # layers of 4 ms are not (figure 15)
    fitted_on={"A100": "A100"},
    sites={"A100": ("sc21", "selene")},
)
COMPILED = "masked_softmax_fusion=True"


def arguments(case: Case, site: VocabularySite) -> list[str]:
    """Return the arguments of the published scripts, except for the numbers of iterations.

    There is no --exit-interval: at this commit it requires --save, and without a folder it fails to save a checkpoint.
    """
    training = case.training
    return flag_arguments(
        {
            # MEGATRON_EXTRA_PARAMS, which come first in the scripts
            **_RECOMPUTATION[training.recompute],
            **interleaving(case),
            "--no-scatter-gather-tensors-in-pipeline": not training.scatter_gather,
            **shape(case),
            "--DDP-impl": training.ddp,
            "--data-path": site.data_path,
            "--vocab-file": site.vocab_file,
            "--merge-file": site.merge_file,
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
            # The scripts use the defaults of the program here.
            "--ffn-hidden-size": case.model.ffn,
            **dropout(case),
        }
    )


def shape(case: Case) -> Flags:
    """Return the flags that the scripts take from their run_*.sh."""
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
    """Return the flags of a dropout other than Megatron-LM's default."""
    given = None if case.training.dropout == DROPOUT else case.training.dropout
    return {"--hidden-dropout": given, "--attention-dropout": given}


def _unsupported(case: Case, _site: VocabularySite | None) -> Iterator[str]:
    model, layout, training = case.model, case.layout, case.training
    if model.family != "gpt" or model.experts or model.kv_groups is not None:
        yield "models other than dense GPT with separate keys for each head"
    if model.positions != "learned":
        yield "rotary positions"
    if training.recompute not in _RECOMPUTATION:
        yield f"recomputation {training.recompute} (only {', '.join(_RECOMPUTATION)})"
    if training.offload:
        yield "offloading"
    if layout.context_parallel > 1:
        yield "context parallelism"
    if layout.sequence_parallel and layout.tensor_parallel > 1:
        yield "sequence parallelism"
    if training.distributed_optimizer:
        yield "the distributed optimizer"
    if training.attention == "flash":
        yield "flash attention"


def _program(job: JobContext[VocabularySite], arguments: Sequence[str]) -> Program:
    site = job.site
    warm_up = compile_command(site.checkout, COMPILED)
    return megatron_program(job, site, arguments, data=site.data_path, imports_checkout=False, warm_up=warm_up)


WORKLOAD = Workload(
    name="megatron-2021",
    about="Megatron-LM at the commit of SC21's scripts",
    site=VocabularySite,
    dialect="2021",
    memory=MEMORY,
    arguments=arguments,
    unsupported=_unsupported,
    program=_program,
    time=TIME,
    needs=(
        Repository(),
        VOCABULARY,
        MERGES,
        TokenData(GPT2_TOKENS, "GPT-2 tokens; the published scripts name no data set"),
    ),
)
