"""Today's Megatron-LM, core 0.20.0 of 2026-08-22: arguments in the order of SC21's CONFIG.sh.

For the 99 cases of SC21 this is the list of 2021 with today's flags: recomputation and DDP have other names, and the
data are synthetic unless the site has some, so a run needs only the checkout. Cases of other papers add the flags of
their model; their schedule of the learning rate is SC21's, too, because it does not affect the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field, model_validator

from orchestrator.catalog.case import Case
from orchestrator.config.model import Text
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.rules.rule_context import read_flags
from orchestrator.workloads.base import (
    FULL_RECOMPUTATION,
    Flags,
    JobContext,
    Program,
    Workload,
    flag_arguments,
    interleaving,
    megatron_program,
)
from orchestrator.workloads.megatron_2021 import SCHEDULE, dropout, shape
from orchestrator.workloads.megatron_core import MEMORY, TIME, experts
from orchestrator.workloads.needs import GPT2_TOKENS, MERGES, VOCABULARY, Repository, TokenData
from orchestrator.workloads.site_fields import CheckoutSite

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
"""The commit of NVIDIA/Megatron-LM with these arguments; no paper names it."""

SCRIPTED_ITERATIONS = 500
"""--train-iters of SC21's scripts. --exit-interval ends shorter runs; it saves nothing without --save today, and skips
the evaluation at the end."""

_RECOMPUTATION: Mapping[str, Flags] = {
    "none": {},
    "selective": {"--recompute-granularity": "selective"},
    "full": FULL_RECOMPUTATION,
}
_USUAL_MULTIPLE = 1024

OWN_LAYERS: Flags = {
    "--transformer-impl": "local",
    "--no-persist-layer-norm": True,
    "--no-gradient-accumulation-fusion": True,
    "--no-masked-softmax-fusion": True,
}
"""Flags of a run without transformer-engine and apex, which the defaults require."""

MOCK = "mock data"


class TodaySite(CheckoutSite):
    """A checkout of today's Megatron-LM. Without data of the site it uses mock data."""

    data_path: Text | None = Field(
        default=None,
        description="Tokenised data: the path of the .bin and .idx files, without the ending. Without it: mock data.",
        examples=["/shared/data/gpt2_text_document"],
    )
    vocab_file: Text | None = Field(
        default=None,
        description="The file gpt2-vocab.json, with `data_path`.",
        examples=["/shared/data/gpt2-vocab.json"],
    )
    merge_file: Text | None = Field(
        default=None,
        description="The file gpt2-merges.txt, with `data_path`.",
        examples=["/shared/data/gpt2-merges.txt"],
    )
    transformer_engine: bool = Field(
        default=True,
        description="false: jobs find neither transformer-engine nor apex, and use Megatron-LM's own layers.",
    )

    @model_validator(mode="after")
    def _data_are_complete(self) -> TodaySite:
        missing = [name for name in ("data_path", "vocab_file", "merge_file") if getattr(self, name) is None]
        if 0 < len(missing) < 3:
            raise ValueError(f"data need all of data_path, vocab_file and merge_file: no {' and no '.join(missing)}")
        return self


def arguments(case: Case, site: TodaySite) -> list[str]:
    """Return the arguments of a case, without flags that the case itself gives."""
    flags: Flags = {
        **_first_flags(case),
        **shape(case),
        **_data(case, site),
        "--log-interval": case.training.log_interval,
        "--log-throughput": True,
        "--seq-length": case.model.seq,
        "--max-position-embeddings": case.model.seq,
        "--train-iters": max(SCRIPTED_ITERATIONS, case.training.iterations),
        "--exit-interval": case.training.iterations,
        **SCHEDULE,
        "--eval-iters": case.training.evaluation_iterations,
        # Data sets require one (an int is divided by None).
        "--eval-interval": 1000,
        "--clip-grad": "1.0",
        f"--{case.training.dtype}": case.training.dtype != "fp32",
        "--loss-scale": case.training.loss_scale if case.training.dtype == "fp16" else None,
        **_model(case),
        **experts(case),
        **_parallel(case),
        **({} if site.transformer_engine else OWN_LAYERS),
    }
    typed = read_flags(case.arguments)
    return flag_arguments({flag: value for flag, value in flags.items() if flag not in typed})


def vocabulary_divisor(vocab: int, tensor_parallel: int, tokens: int) -> int | None:
    """Return the --make-vocab-size-divisible-by with which `tokens` entries are padded to exactly `vocab` rows.

    The program pads to a multiple of it times the tensor-parallel size. None if there is no such number.

    >>> vocabulary_divisor(51200, 32, 51199), vocabulary_divisor(51200, 8, 50257), vocabulary_divisor(32004, 8, 32003)
    (32, 128, None)
    """
    if vocab % tensor_parallel or tokens > vocab:
        return None
    multiple = math.lcm(tensor_parallel, math.gcd(vocab, _USUAL_MULTIPLE))
    return (multiple if vocab - tokens < multiple else vocab) // tensor_parallel


def _unsupported(case: Case, site: TodaySite | None) -> Iterator[str]:
    model, training = case.model, case.training
    if training.recompute not in _RECOMPUTATION:
        yield f"recomputation {training.recompute} (only {', '.join(_RECOMPUTATION)})"
    if training.offload:
        yield "offloading"
    if not training.scatter_gather:
        yield "disabling scatter/gather (10e7b74597 removed the option)"
    if site is None:
        return
    if site.data_path and vocabulary_divisor(model.vocab, case.layout.tensor_parallel, GPT2_TOKENS) is None:
        yield f"padding the {GPT2_TOKENS:,} entries of the site's data to {model.vocab:,}"
    if not site.transformer_engine:
        yield from (f"{setting} without transformer-engine" for setting in _unsupported_by_own_layers(case))


def _unsupported_by_own_layers(case: Case) -> Iterator[str]:
    """Yield settings that dot_product_attention.py, torch_norm.py and models/backends.py of core 0.20.0 lack."""
    layout = case.layout
    if case.training.attention not in (None, "unfused"):
        yield f"{case.training.attention} attention"
    if layout.context_parallel > 1:
        yield "context parallelism"
    if layout.sequence_parallel and layout.tensor_parallel > 1:
        yield "sequence parallelism"
    if "--moe-grouped-gemm" in read_flags(case.arguments):
        yield "grouped products of the experts"


def _first_flags(case: Case) -> Flags:
    """Return SC21's first flags, and the equivalent of --DDP-impl: `torch` overlaps the gradients' all-reduce."""
    return {
        **_RECOMPUTATION[case.training.recompute],
        **interleaving(case),
        "--overlap-grad-reduce": case.training.ddp == "torch",
    }


def _data(case: Case, site: TodaySite) -> Flags:
    """Return the flags of data and vocabulary.

    NullTokenizer has --vocab-size entries, and one more before core 0.17. With one fewer than the model has, both are
    padded to the model's. A vocabulary that tensor parallelism does not divide is padded as by default.
    """
    vocab = case.model.vocab
    divisor = vocabulary_divisor(vocab, case.layout.tensor_parallel, GPT2_TOKENS if site.data_path else vocab - 1)
    if site.data_path:
        source: Flags = {
            "--data-path": site.data_path,
            "--tokenizer-type": "GPT2BPETokenizer",
            "--vocab-file": site.vocab_file,
            "--merge-file": site.merge_file,
        }
    else:
        source = {
            "--mock-data": True,
            "--tokenizer-type": "NullTokenizer",
            "--vocab-size": vocab if divisor is None else vocab - 1,
        }
    return {**source, "--make-vocab-size-divisible-by": divisor}


def _model(case: Case) -> Flags:
    """Return the flags of models other than SC21's GPT."""
    model = case.model
    llama = model.family == "llama"
    return {
        "--swiglu": llama,
        "--normalization": "RMSNorm" if llama else None,
        "--position-embedding-type": "rope" if model.has_rotary_positions else None,
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


def _program(job: JobContext[TodaySite], arguments: Sequence[str]) -> Program:
    site, place = job.site, job.field("transformer_engine")
    values = () if site.transformer_engine else [(flag, place) for flag in OWN_LAYERS]
    data = site.data_path or MOCK
    return megatron_program(job, site, arguments, data=data, default_commit=COMMIT, site_values=values)


def _tokens(model: ModelShape, tensor_parallel: int) -> int | None:
    """Return the model's vocabulary, to which the divisor pads; None if tensor parallelism divides it already."""
    return model.vocab if model.vocab % tensor_parallel else None


WORKLOAD = Workload(
    name="megatron-2026",
    about="Megatron-LM of August 2026, core 0.20",
    site=TodaySite,
    dialect="now",
    memory=MEMORY,
    arguments=arguments,
    unsupported=_unsupported,
    program=_program,
    tokens=_tokens,
    time=TIME,
    costly_arguments=lambda site: () if site.transformer_engine else flag_arguments(OWN_LAYERS),
    other_names=("megatron-core",),
    needs=(
        Repository(name="NVIDIA/Megatron-LM", commit=COMMIT),
        VOCABULARY,
        MERGES,
        TokenData(GPT2_TOKENS, "mock data, if the profile sets no data_path"),
    ),
)
