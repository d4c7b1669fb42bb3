"""ATC'24's two programs: arguments in the order of their scripts (examples/atc24 at b2646e4d9f).

Megatron-Kwai at atc24ae-1.0.0 (pretrain_llama.sh), and its baseline, the Megatron-LM of January 2024, which the paper
calls origin (pretrain_llama_using_origin_megatron.sh).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryEstimate, MemoryFacts, estimate_memory_atc24
from orchestrator.megatron.model import ModelShape
from orchestrator.workloads.base import (
    FULL_RECOMPUTATION,
    Flags,
    JobContext,
    Program,
    TimeFacts,
    Workload,
    flag_arguments,
    layers_per_chunk,
    megatron_program,
)
from orchestrator.workloads.kernels import compile_command
from orchestrator.workloads.needs import LLAMA_TOKENS, Repository, TokenData
from orchestrator.workloads.site_fields import MegatronSite

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

_OURS: Flags = {"--kaimm-recompute-mlp-activation-func": True, "--kaimm-recompute-norm": True}
_KWAI: Mapping[str, Flags] = {"full": FULL_RECOMPUTATION, "ours": _OURS, "none": {}}
_ORIGIN: Mapping[str, Flags] = {"full": FULL_RECOMPUTATION, "none": {}}


def kwai_arguments(case: Case, site: MegatronSite) -> list[str]:
    """Return the arguments of a case for Megatron-Kwai."""
    return flag_arguments(
        {
            **_parallel(case),
            "--overlap-p2p-communication": True,
            "--context-parallel-size": case.layout.context_parallel,
            **_KWAI[case.training.recompute],
            "--overlap-sp-ag": True,  # the program disables both without tensor parallelism
            "--overlap-sp-rs": True,
            "--kaimm-overlap-cp-slow-ctas": 4,
            "--kaimm-cuda-synchronize-level": 2,
            "--kaimm-gc-interval": 9999,
            "--use-fast-rms-norm": True,
            "--use-fast-rope": True,
            "--kaimm-offload-activation-ratio": case.training.offload,
            "--kaimm-async-dataloader": True,
            "--prefetch-factor": 64,
            **_model(case),
            "--no-context-parallel-comm-overlap-gemm": case.model.kv_groups is not None,
            **_optimizer(case),
            **_switches(case, {"--rms-norm": True}),
            "--no-query-key-layer-scaling": True,
            **_fusions(),
            **_ending(case, site.data_path),
        }
    )


def origin_arguments(case: Case, site: MegatronSite) -> list[str]:
    """Return the arguments of a case for the Megatron-LM of January 2024."""
    return flag_arguments(
        {
            **_parallel(case),
            "--context-parallel-size": case.layout.context_parallel,
            **_ORIGIN[case.training.recompute],
            "--use-mcore-models": True,
            "--tp-comm-overlap": case.layout.context_parallel == 1,
            "--manual-gc": True,
            "--manual-gc-interval": 9999,
            **_model(case),
            **_optimizer(case),
            **_switches(case, {"--normalization": "RMSNorm"}),
            **_fusions(),
            **_ending(case, site.data_path),
        }
    )


def _unsupported_by_kwai(case: Case, _site: MegatronSite | None) -> Iterator[str]:
    return _unsupported(case, _KWAI, offloads=True)


def _unsupported_by_origin(case: Case, _site: MegatronSite | None) -> Iterator[str]:
    return _unsupported(case, _ORIGIN, offloads=False)


def _unsupported(case: Case, recomputation: Collection[str], *, offloads: bool) -> Iterator[str]:
    layout, training = case.layout, case.training
    if case.model.family != "llama" or case.model.experts:
        yield "models other than dense Llama"
    if training.recompute not in recomputation:
        yield f"recomputation {training.recompute} (only {', '.join(recomputation)})"
    if training.offload and not offloads:
        yield "offloading"
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
    if not training.scatter_gather:
        yield "disabling scatter/gather"
    if training.ddp != "local":
        yield f"DDP {training.ddp}"


def _parallel(case: Case) -> Flags:
    """Return the flags of the layout. The scripts always request interleaving and sequence parallelism."""
    layout = case.layout
    return {
        "--use-distributed-optimizer": True,
        "--accumulate-allreduce-grads-in-fp32": True,
        "--initial-loss-scale": 1,
        "--use-flash-attn": True,
        "--tensor-model-parallel-size": layout.tensor_parallel,
        "--sequence-parallel": True,
        "--pipeline-model-parallel-size": layout.pipeline_parallel,
        "--num-layers-per-virtual-pipeline-stage": layers_per_chunk(case),
    }


def _model(case: Case) -> Flags:
    model = case.model
    return {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--num-attention-heads": model.heads,
        "--ffn-hidden-size": model.ffn_hidden,
        "--seq-length": model.seq,
        "--max-position-embeddings": model.seq,
        "--group-query-attention": model.kv_groups is not None,
        "--num-query-groups": model.kv_groups,
    }


def _optimizer(case: Case) -> Flags:
    return {
        "--micro-batch-size": case.layout.micro_batch_size,
        "--global-batch-size": case.layout.global_batch_size,
        "--lr": "1.5e-4",
        "--train-iters": max(SCRIPTED_ITERATIONS, case.training.iterations),
        "--lr-decay-iters": 500000,
        "--lr-decay-style": "cosine",
        "--min-lr": "1.5e-5",
        "--weight-decay": "0.1",
        "--lr-warmup-iters": 2000,
        "--clip-grad": "1.0",
        "--adam-beta1": "0.9",
        "--adam-beta2": "0.95",
        "--adam-eps": "1e-5",
        f"--{case.training.dtype}": case.training.dtype != "fp32",
    }


def _switches(case: Case, norm: Flags) -> Flags:
    """Return the flags that make the model a Llama."""
    return {
        "--no-position-embedding": True,
        "--use-rotary-position-embeddings": True,
        "--swiglu": True,
        **norm,
        "--disable-bias-linear": True,
        "--untie-embeddings-and-output-weights": True,
        "--hidden-dropout": case.training.dropout,
        "--attention-dropout": case.training.dropout,
    }


def _fusions() -> Flags:
    return {"--no-masked-softmax-fusion": True, "--no-bias-gelu-fusion": True, "--no-bias-dropout-fusion": True}


def _ending(case: Case, data_path: str) -> Flags:
    """Return the flags of data and output.

    --exit-interval ends a run that is shorter than the script's, and saves nothing without --save. With
    --exit-duration-in-mins both programs would save a checkpoint without a folder for it.
    """
    return {
        "--data-path": data_path,
        "--tokenizer-type": "NullTokenizer",
        "--vocab-size": case.model.vocab,
        "--split": "949,50,1",
        "--log-interval": case.training.log_interval,
        "--save-interval": 10000,
        "--eval-interval": 1000,
        "--eval-iters": case.training.evaluation_iterations,
        "--exit-interval": case.training.iterations,
    }


def _kwai_program(job: JobContext[MegatronSite], arguments: Sequence[str]) -> Program:
    # With tensor parallelism --overlap-sp-ag and -rs stay on, and create an MPI group (initialize.py:186).
    overlaps = not {"--overlap-sp-ag", "--overlap-sp-rs"}.isdisjoint(arguments)
    options = "masked_softmax_fusion=False, use_fast_rope=True, context_parallel_size=2"
    return megatron_program(
        job,
        job.site,
        arguments,
        data=job.site.data_path,
        environment=ENVIRONMENT,
        needs_mpi=overlaps and job.case.layout.tensor_parallel > 1,
        warm_up=compile_command(job.site.checkout, f"{options}, kaimm_offload_activation_ratio=1.0"),
    )


def _origin_program(job: JobContext[MegatronSite], arguments: Sequence[str]) -> Program:
    # --tp-comm-overlap, which the script passes without context parallelism, creates an MPI group with every
    # tensor-parallel size (initialize.py:196). Nothing is compiled: fused_kernels.load is empty.
    needs_mpi = "--tp-comm-overlap" in arguments
    return megatron_program(
        job, job.site, arguments, data=job.site.data_path, environment=ENVIRONMENT, needs_mpi=needs_mpi
    )


def _null_tokens(model: ModelShape, _tensor_parallel: int) -> int:
    """Return the entries of NullTokenizer of 2023: one more than --vocab-size (atc24 pads 32,005)."""
    return model.vocab + 1


def _atc24_memory(case: Case) -> MemoryEstimate | None:
    if case.training.recompute not in ("none", "ours"):
        return None
    return estimate_memory_atc24(case.model, case.layout, case.training)


_MEMORY = MemoryFacts("flash", shards_optimizer=True)
_NEEDS = (
    Repository(),
    TokenData(LLAMA_TOKENS, "/root/dataset/enwiki-100m_text_document in the image, 100 million tokens of Wikipedia"),
)

KWAI = Workload(
    name="megatron-kwai",
    about="Megatron-Kwai, the program of ATC'24",
    site=MegatronSite,
    dialect="kwai",
    memory=_MEMORY,
    arguments=kwai_arguments,
    unsupported=_unsupported_by_kwai,
    program=_kwai_program,
    memory_formula=_atc24_memory,
    tokens=_null_tokens,
    time=TimeFacts(hides_layer_communication=True, fitted_on={"H800": "H800"}, sites={"H800": ("atc24", "kwai-h800")}),
    counts_context_as_data=True,  # its arguments.py divides the world by tensor x pipeline alone (b2646e4d9f, line 85)
    needs=_NEEDS,
)

JAN_2024 = Workload(
    name="megatron-jan-2024",
    about="Megatron-LM of January 2024, the origin of ATC'24",
    site=MegatronSite,
    dialect="2024",
    memory=_MEMORY,
    arguments=origin_arguments,
    unsupported=_unsupported_by_origin,
    program=_origin_program,
    tokens=_null_tokens,
    needs=_NEEDS,
)
