"""A case in the arguments of ATC'24's two programs, in the order of their scripts (examples/atc24 at b2646e4d9f).

Megatron-Kwai at atc24ae-1.0.0 (pretrain_llama.sh), and the Megatron-LM of January 2024 that it compares itself with,
which the paper calls origin (pretrain_llama_using_origin_megatron.sh).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from orchestrator.catalog.case import Case
from orchestrator.workloads.base import Flags, refuse, words

ENVIRONMENT = (
    ("MPI_THREAD_SINGLE", "1"),
    ("NCCL_DEBUG", "WARN"),
    ("NVTE_FWD_LAYERNORM_SM_MARGIN", "8"),
    ("NVTE_BWD_LAYERNORM_SM_MARGIN", "8"),
    ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"),
    ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:21"),
)
"""What both scripts give mpirun with -x, but for the rendezvous, PYTHONPATH and what every job of ours has. Those that
a script adds for its cluster's network are the site's."""

SCRIPTED_ITERATIONS = 200
"""TRAIN_ITERS of both scripts. The data sets are made for as many, so that a shorter run reads the same samples."""

_FULL: Flags = {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1}
_OURS: Flags = {"--kaimm-recompute-mlp-activation-func": True, "--kaimm-recompute-norm": True}
_KWAI: Mapping[str, Flags] = {"full": _FULL, "ours": _OURS, "none": {}}
_ORIGIN: Mapping[str, Flags] = {"full": _FULL, "none": {}}


def kwai_arguments(case: Case, data_path: str) -> list[str]:
    """The argument list of a case for Megatron-Kwai; ReproError if its script has no setting for it."""
    refuse(case, f"the script of {case.workload} has no", _unknown(case, _KWAI, offloads=True))
    return words(
        {
            **_parallel(case),
            "--overlap-p2p-communication": True,
            "--context-parallel-size": case.layout.context_parallel,
            **_KWAI[case.training.recompute],
            "--overlap-sp-ag": True,  # without tensor parallelism the program turns these two off itself
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
            **_ending(case, data_path),
        }
    ) + list(case.arguments)


def origin_arguments(case: Case, data_path: str) -> list[str]:
    """The same for January 2024, which neither offloads nor recomputes in ATC'24's way."""
    refuse(case, f"the script of {case.workload} has no", _unknown(case, _ORIGIN, offloads=False))
    return words(
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
            **_ending(case, data_path),
        }
    ) + list(case.arguments)


def kwai_needs_mpi(case: Case) -> bool:
    """With tensor parallelism --overlap-sp-ag and -rs stay on, and make an MPI group (initialize.py:186)."""
    return case.layout.tensor_parallel > 1


def origin_needs_mpi(case: Case) -> bool:
    """--tp-comm-overlap makes one whatever the tensor-parallel size; the script gives it without context parallelism
    only (initialize.py:196).
    """
    return case.layout.context_parallel == 1


def _unknown(case: Case, recomputation: Collection[str], *, offloads: bool) -> Iterator[str]:
    layout, training = case.layout, case.training
    if case.model.family != "llama" or case.model.experts:
        yield "models but dense Llama"
    if training.recompute not in recomputation:
        yield f"recomputation {training.recompute}, only {', '.join(recomputation)}"
    if training.offload and not offloads:
        yield "offloading"
    if layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield "tensor parallelism without sequence parallelism"
    if layout.context_parallel > 1 and training.cp_comm != "p2p":
        yield f"choice of {training.cp_comm} for context parallelism"
    if training.distributed_optimizer is False:
        yield "optimizer that is not distributed"
    if training.attention == "unfused":
        yield "attention but flash attention"
    if training.dtype == "fp16" and training.loss_scale:
        yield "static loss scale"
    if not training.scatter_gather:
        yield "switch for scatter/gather"
    if training.ddp != "local":
        yield f"DDP of {training.ddp}"


def _parallel(case: Case) -> Flags:
    """The scripts always interleave, and always ask for sequence parallelism, even where it has no effect."""
    layout = case.layout
    per_chunk = case.model.layers // layout.pipeline_parallel // layout.virtual_stages
    return {
        "--use-distributed-optimizer": True,
        "--accumulate-allreduce-grads-in-fp32": True,
        "--initial-loss-scale": 1,
        "--use-flash-attn": True,
        "--tensor-model-parallel-size": layout.tensor_parallel,
        "--sequence-parallel": True,
        "--pipeline-model-parallel-size": layout.pipeline_parallel,
        "--num-layers-per-virtual-pipeline-stage": per_chunk,
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
    """What makes it a Llama."""
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
    """Data and output. --exit-interval ends a run that is shorter than the script's, and saves nothing without --save.

    Never --exit-duration-in-mins: both programs then save a checkpoint without having been told where.
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
