"""A case in the arguments of today's Megatron-LM, core 0.20.0 of 2026-08-22, in the order of SC21's CONFIG.sh.

For the 99 cases of SC21 this is the list of 2021 in today's words: recomputation and DDP have other names, and data are
made up unless the site has some, so that a run needs no more than the checkout. Cases of other papers say the same and
what makes their model another; their schedule of the learning rate is SC21's, too, as it changes no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.megatron.rules.rule_context import read_flags
from orchestrator.workloads.base import Flags, refuse, words
from orchestrator.workloads.megatron_2021 import SCHEDULE, dropout, shape
from orchestrator.workloads.megatron_core import experts
from orchestrator.workloads.traits import GPT2_TOKENS

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
"""NVIDIA/Megatron-LM whose arguments these are; no paper names it."""

SCRIPTED_ITERATIONS = 500
"""--train-iters of SC21's scripts. Shorter runs are ended by --exit-interval, which saves nothing without --save today,
and skips the evaluation at the end."""

_RECOMPUTATION: Mapping[str, Flags] = {
    "none": {},
    "selective": {"--recompute-granularity": "selective"},
    "full": {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1},
}
_USUAL_MULTIPLE = 1024

OWN_LAYERS: Flags = {
    "--transformer-impl": "local",
    "--no-persist-layer-norm": True,
    "--no-gradient-accumulation-fusion": True,
    "--no-masked-softmax-fusion": True,
}
"""What a run without transformer-engine and apex must say: by default each of these asks for one of them."""


@dataclass(frozen=True, slots=True)
class Data:
    """Tokens in GPT-2's vocabulary, and where its two files are."""

    data_path: str
    vocab_file: str
    merge_file: str


def arguments(case: Case, data: Data | None, *, transformer_engine: bool = True) -> list[str]:
    """The argument list of a case, on mock data without `data`; ReproError for what this Megatron-LM has no words for.

    What a case types itself is left out here. Without `transformer_engine` a case is refused what only that one does.
    """
    refuse(case, f"{case.workload} has no", _unknown(case, data))
    if not transformer_engine:
        refuse(case, f"{case.workload} without transformer-engine has no", _unknown_to_own_layers(case))
    flags: Flags = {
        **_instead_of_the_scripts_own(case),
        **shape(case),
        **_data(case, data),
        "--log-interval": case.training.log_interval,
        "--log-throughput": True,
        "--seq-length": case.model.seq,
        "--max-position-embeddings": case.model.seq,
        "--train-iters": max(SCRIPTED_ITERATIONS, case.training.iterations),
        "--exit-interval": case.training.iterations,
        **SCHEDULE,
        "--eval-iters": case.training.evaluation_iterations,
        # Without one the data sets are not built (an int is divided by None).
        "--eval-interval": 1000,
        "--clip-grad": "1.0",
        f"--{case.training.dtype}": case.training.dtype != "fp32",
        "--loss-scale": case.training.loss_scale if case.training.dtype == "fp16" else None,
        **_model(case),
        **experts(case),
        **_parallel(case),
        **({} if transformer_engine else OWN_LAYERS),
    }
    typed = read_flags(case.arguments)
    return words({flag: value for flag, value in flags.items() if flag not in typed}) + list(case.arguments)


def vocabulary_divisor(vocab: int, tensor_parallel: int, tokens: int) -> int | None:
    """The --make-vocab-size-divisible-by with which `tokens` entries are padded to exactly `vocab` rows.

    The program pads to a multiple of it times the tensor-parallel size. None where there is none such.

    >>> vocabulary_divisor(51200, 32, 51199), vocabulary_divisor(51200, 8, 50257), vocabulary_divisor(32004, 8, 32003)
    (32, 128, None)
    """
    if vocab % tensor_parallel or tokens > vocab:
        return None
    multiple = math.lcm(tensor_parallel, math.gcd(vocab, _USUAL_MULTIPLE))
    return (multiple if vocab - tokens < multiple else vocab) // tensor_parallel


def _unknown(case: Case, data: Data | None) -> Iterator[str]:
    model, training = case.model, case.training
    if training.recompute not in _RECOMPUTATION:
        yield f"recomputation {training.recompute}, only {', '.join(_RECOMPUTATION)}"
    if training.offload:
        yield "share of the activations to offload"
    if not training.scatter_gather:
        yield "switch for scatter/gather (its option was removed by 10e7b74597 and nothing took its place)"
    if data and vocabulary_divisor(model.vocab, case.layout.tensor_parallel, GPT2_TOKENS) is None:
        yield f"way to pad the {GPT2_TOKENS:,} entries of the site's data to {model.vocab:,}"


def _unknown_to_own_layers(case: Case) -> Iterator[str]:
    """What dot_product_attention.py, torch_norm.py and models/backends.py of core 0.20.0 stop at, or do otherwise."""
    layout = case.layout
    if case.training.attention not in (None, "unfused"):
        yield f"{case.training.attention} attention"
    if layout.context_parallel > 1:
        yield "context parallelism"
    if layout.sequence_parallel and layout.tensor_parallel > 1:
        yield "sequence parallelism"
    if "--moe-grouped-gemm" in read_flags(case.arguments):
        yield "grouped products of the experts"


def _instead_of_the_scripts_own(case: Case) -> Flags:
    """What SC21's scripts put first, and --DDP-impl: `torch` overlaps the gradients' all-reduce, `local` does not."""
    layout = case.layout
    per_chunk = case.model.layers // layout.pipeline_parallel // layout.virtual_stages
    return {
        **_RECOMPUTATION[case.training.recompute],
        "--num-layers-per-virtual-pipeline-stage": per_chunk if layout.virtual_stages > 1 else None,
        "--overlap-grad-reduce": case.training.ddp == "torch",
    }


def _data(case: Case, data: Data | None) -> Flags:
    """NullTokenizer has as many entries as it is told, and one more until core 0.17. With one fewer than the model has,
    both are padded to the model's. A vocabulary that tensor parallelism does not divide is padded as by default.
    """
    vocab = case.model.vocab
    divisor = vocabulary_divisor(vocab, case.layout.tensor_parallel, GPT2_TOKENS if data else vocab - 1)
    if data:
        source: Flags = {
            "--data-path": data.data_path,
            "--tokenizer-type": "GPT2BPETokenizer",
            "--vocab-file": data.vocab_file,
            "--merge-file": data.merge_file,
        }
    else:
        source = {
            "--mock-data": True,
            "--tokenizer-type": "NullTokenizer",
            "--vocab-size": vocab if divisor is None else vocab - 1,
        }
    return {**source, "--make-vocab-size-divisible-by": divisor}


def _model(case: Case) -> Flags:
    """What makes it another than SC21's GPT."""
    model = case.model
    llama = model.family == "llama"
    return {
        "--swiglu": llama,
        "--normalization": "RMSNorm" if llama else None,
        "--position-embedding-type": "rope" if llama else None,
        "--disable-bias-linear": llama,
        "--untie-embeddings-and-output-weights": llama,
        "--ffn-hidden-size": None if model.experts else model.ffn,
        "--group-query-attention": model.kv_groups is not None,
        "--num-query-groups": model.kv_groups,
        "--attention-backend": case.training.attention,
        **dropout(case),
    }


def _parallel(case: Case) -> Flags:
    context = case.layout.context_parallel
    return {
        "--context-parallel-size": context if context > 1 else None,
        "--cp-comm-type": case.training.cp_comm if context > 1 else None,
        "--sequence-parallel": case.layout.sequence_parallel,
        "--use-distributed-optimizer": case.training.distributed_optimizer is True,
    }
