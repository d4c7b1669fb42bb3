"""ATC'24's two programs: arguments in the order of their scripts (examples/atc24 at b2646e4d9f).

Megatron-Kwai at atc24ae-1.0.0 (pretrain_llama.sh), and its baseline, the Megatron-LM of January 2024, which the paper
calls origin (pretrain_llama_using_origin_megatron.sh).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from orchestrator.megatron.case import TrainingCase, training_case
from orchestrator.megatron.memory import MemoryFacts, estimate_memory_atc24
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.predictions import PlannedProgram
from orchestrator.megatron.programs.base import LLAMA_TOKENS, MegatronSite, TimeFacts, megatron_program
from orchestrator.megatron.programs.flags import (
    RECOMPUTATION,
    flag_arguments,
    lacking,
    layers_per_chunk,
    script_flags,
    site_flags,
)
from orchestrator.megatron.programs.megatron_2021 import compile_command
from orchestrator.megatron.token_data import MegatronTokens
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.record import JobContext, Repository

ENVIRONMENT = (
    ("MPI_THREAD_SINGLE", "1"),
    ("NCCL_DEBUG", "WARN"),
    ("NVTE_FWD_LAYERNORM_SM_MARGIN", "8"),
    ("NVTE_BWD_LAYERNORM_SM_MARGIN", "8"),
    ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"),
    ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:21"),
)
"""Variables that both scripts pass to mpirun with -x, without the rendezvous, PYTHONPATH and those that all jobs set.
Variables of a cluster's network belong to its profile."""

SCRIPTED_ITERATIONS = 200
"""TRAIN_ITERS of both scripts. The data sets have this size, so a shorter run reads the same samples."""

_LAYOUT = (
    "--use-distributed-optimizer --accumulate-allreduce-grads-in-fp32 --initial-loss-scale 1 --use-flash-attn "
    "--tensor-model-parallel-size --sequence-parallel --pipeline-model-parallel-size "
    "--num-layers-per-virtual-pipeline-stage "
)
_MODEL = (
    "--num-layers --hidden-size --num-attention-heads --ffn-hidden-size --seq-length --max-position-embeddings "
    "--group-query-attention --num-query-groups "
)
_OPTIMIZER = (
    "--micro-batch-size --global-batch-size --lr 1.5e-4 --train-iters --lr-decay-iters 500000 --lr-decay-style cosine "
    "--min-lr 1.5e-5 --weight-decay 0.1 --lr-warmup-iters 2000 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 "
    "--adam-eps 1e-5 --fp16 --bf16 --no-position-embedding --use-rotary-position-embeddings --swiglu "
)
_LINEAR = "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout --attention-dropout "
# --exit-interval ends a run that is shorter than the script's, and saves nothing without --save. With
# --exit-duration-in-mins both programs would save a checkpoint without a folder for it.
_ENDING = (
    "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --data-path "
    "--tokenizer-type NullTokenizer --vocab-size --split 949,50,1 --log-interval --save-interval 10000 "
    "--eval-interval 1000 --eval-iters --exit-interval"
)
_KWAI_SCRIPT = (
    _LAYOUT
    + "--overlap-p2p-communication --context-parallel-size "
    + RECOMPUTATION
    + "--kaimm-recompute-mlp-activation-func --kaimm-recompute-norm "
    "--overlap-sp-ag --overlap-sp-rs "  # the program disables both without tensor parallelism
    "--kaimm-overlap-cp-slow-ctas 4 --kaimm-cuda-synchronize-level 2 --kaimm-gc-interval 9999 --use-fast-rms-norm "
    "--use-fast-rope --kaimm-offload-activation-ratio --kaimm-async-dataloader --prefetch-factor 64 "
    + _MODEL
    + "--no-context-parallel-comm-overlap-gemm "
    + _OPTIMIZER
    + "--rms-norm "
    + _LINEAR
    + "--no-query-key-layer-scaling "
    + _ENDING
)
_ORIGIN_SCRIPT = (
    _LAYOUT
    + "--context-parallel-size "
    + RECOMPUTATION
    + "--use-mcore-models --tp-comm-overlap --manual-gc --manual-gc-interval 9999 "
    + _MODEL
    + _OPTIMIZER
    + "--normalization "
    + _LINEAR
    + _ENDING
)


def _arguments(script: str, case: TrainingCase, site: MegatronSite) -> list[str]:
    """Return the arguments of a script. Both always request interleaving and sequence parallelism."""
    layout, training, is_ours = case.layout, case.training, case.training.recompute == "ours"
    values = {
        **site_flags(site),
        **dict.fromkeys(("--use-distributed-optimizer", "--sequence-parallel"), True),
        **dict.fromkeys(("--hidden-dropout", "--attention-dropout"), training.dropout),
        **dict.fromkeys(("--kaimm-recompute-mlp-activation-func", "--kaimm-recompute-norm"), is_ours),
        "--num-layers-per-virtual-pipeline-stage": layers_per_chunk(case),
        "--context-parallel-size": layout.context_parallel,
        "--tp-comm-overlap": layout.context_parallel == 1,
        "--kaimm-offload-activation-ratio": training.offload,
        "--ffn-hidden-size": case.model.ffn_hidden,
        "--no-context-parallel-comm-overlap-gemm": case.model.kv_groups is not None,
        "--train-iters": max(SCRIPTED_ITERATIONS, training.iterations),
    }
    return flag_arguments(script_flags(script, case, values))


def _unsupported(
    settings: Sequence[str], recomputation: Sequence[str], case: TrainingCase, _site: MegatronSite | None
) -> Iterator[str]:
    layout, training = case.layout, case.training
    if case.model.family != "llama" or case.model.experts:
        yield "models other than dense Llama"
    yield from lacking(case, *settings, recomputation=recomputation)
    if layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield "tensor parallelism without sequence parallelism"
    if layout.context_parallel > 1 and training.cp_comm != "p2p":
        yield f"{training.cp_comm} for context parallelism"
    if training.distributed_optimizer is False:
        yield "an optimizer that is not distributed"
    if training.attention == "unfused":
        yield "attention other than flash attention"
    if training.dtype == "fp16" and training.loss_scale:
        yield "a static loss scale"
    yield from lacking(case, "disabling scatter/gather", "DDP torch")


def _kwai_program(job: JobContext[MegatronSite], arguments: Sequence[str]) -> BoundProgram:
    # With tensor parallelism --overlap-sp-ag and -rs stay on, and create an MPI group (initialize.py:186).
    overlaps = not {"--overlap-sp-ag", "--overlap-sp-rs"}.isdisjoint(arguments)
    options = "masked_softmax_fusion=False, use_fast_rope=True, context_parallel_size=2"
    return megatron_program(
        job,
        arguments,
        data=job.site.data_path,
        environment=ENVIRONMENT,
        needs_mpi=overlaps and training_case(job.case).layout.tensor_parallel > 1,
        warm_up=compile_command(job.site.checkout, f"{options}, kaimm_offload_activation_ratio=1.0"),
    )


def _origin_program(job: JobContext[MegatronSite], arguments: Sequence[str]) -> BoundProgram:
    # --tp-comm-overlap, which the script passes without context parallelism, creates an MPI group with every
    # tensor-parallel size (initialize.py:196). Nothing is compiled: fused_kernels.load is empty.
    needs_mpi = "--tp-comm-overlap" in arguments
    return megatron_program(job, arguments, data=job.site.data_path, environment=ENVIRONMENT, needs_mpi=needs_mpi)


def _null_tokens(model: ModelShape, _tensor_parallel: int) -> int:
    """Return the entries of NullTokenizer of 2023: one more than --vocab-size (atc24 pads 32,005)."""
    return model.vocab + 1


_MEMORY = MemoryFacts("flash", shards_optimizer=True)
_NEEDS = (
    Repository(),
    MegatronTokens(
        LLAMA_TOKENS, "/root/dataset/enwiki-100m_text_document in the image, 100 million tokens of Wikipedia"
    ),
)

KWAI = PlannedProgram(
    name="megatron-kwai",
    about="Megatron-Kwai, the program of ATC'24",
    site=MegatronSite,
    dialect="kwai",
    memory=_MEMORY,
    arguments=partial(_arguments, _KWAI_SCRIPT),
    unsupported=partial(_unsupported, ["recomputation"], ("full", "ours", "none")),
    program=_kwai_program,
    memory_formula=lambda case: (
        estimate_memory_atc24(case.model, case.layout, case.training)
        if case.training.recompute in ("none", "ours")
        else None
    ),
    tokens=_null_tokens,
    time=TimeFacts(hides_layer_communication=True, fitted_on={"H800": "H800"}, sites={"H800": ("atc24", "kwai-h800")}),
    counts_context_as_data=True,  # its arguments.py divides the world by tensor x pipeline alone (b2646e4d9f, line 85)
    needs=_NEEDS,
)

JAN_2024 = PlannedProgram(
    name="megatron-jan-2024",
    about="Megatron-LM of January 2024, the origin of ATC'24",
    site=MegatronSite,
    dialect="2024",
    memory=_MEMORY,
    arguments=partial(_arguments, _ORIGIN_SCRIPT),
    unsupported=partial(_unsupported, ["recomputation", "offloading"], ("full", "none")),
    program=_origin_program,
    tokens=_null_tokens,
    needs=_NEEDS,
)
