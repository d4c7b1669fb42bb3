"""Megatron-LM on megatron-core: the two programs of the Megatron tutorials, and today's.

The tutorials' are core_r0.14.0 and the first generation's fork of Megatron-LM. The scripts are those of
vuiseng9/megatron-tutorials at 0b2c030a1d and of vuiseng9/megatron-lm at 6ac43930b5; both have the same arguments. Two
of them are omitted: --train-iters 500000, which a later one overrides, and --tensorboard-dir, because the log contains
everything that is read.

Today's is core 0.20.0 of 2026-08-22, with arguments in the order of SC21's CONFIG.sh. For the 99 cases of SC21 this is
the list of 2021 with today's flags: recomputation and DDP have other names, and the data are synthetic unless the site
has some, so a run needs only the checkout. Cases of other papers add the flags of their model; their schedule of the
learning rate is SC21's, too, because it does not affect the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import model_validator

from orchestrator.config.model import Text, optional
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.megatron.predictions import PlannedProgram
from orchestrator.megatron.programs.base import (
    GPT2_FILES,
    GPT2_TOKENS,
    CheckoutSite,
    TimeFacts,
    VocabularySite,
    megatron_program,
)
from orchestrator.megatron.programs.flags import RECOMPUTATION, Flags, flag_arguments, lacking, script_flags, site_flags
from orchestrator.megatron.programs.megatron_2021 import SCHEDULE, SIZES
from orchestrator.megatron.token_data import MegatronTokens
from orchestrator.programs.command import BoundProgram, read_flags
from orchestrator.programs.record import JobContext, Repository

USABLE_SHARE_CORE = 0.992
"""Usable share of memory inside one node, fitted to the tables of the Megatron tutorials: the smallest with which every
row that ran fits. Row 228 is predicted to need 79.30e9 bytes of 80 GB and ran. Two rows that ran out of memory, at
79.19e9 and 79.28e9, are therefore predicted to fit."""

_MEMORY = MemoryFacts("flash", shards_optimizer=False)
_TIME = TimeFacts(overlaps_backward_communication=True)
"""transformer-engine's column-parallel layers overlap their backward communication with products by default."""

_EXPERTS = (
    "--num-experts --moe-router-topk --moe-ffn-hidden-size --expert-model-parallel-size --expert-tensor-parallel-size "
)
"""Flags of experts. The experiment sets how they are computed (--moe-grouped-gemm and others)."""

_TUTORIAL_SCRIPT = (
    "--num-layers --hidden-size --num-attention-heads --seq-length --max-position-embeddings --attention-backend "
    "--hidden-dropout --attention-dropout "
    + _EXPERTS
    + RECOMPUTATION
    + "--micro-batch-size --global-batch-size --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 "
    "--init-method-std 0.006 --clip-grad 1.0 --fp16 --bf16 --loss-scale --lr 6.0e-5 --lr-decay-style cosine "
    "--min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000 "
    # The experiment sets the two overlaps that make it the tutorials' ZeRO-2.
    "--use-distributed-optimizer --tensor-model-parallel-size --pipeline-model-parallel-size --context-parallel-size "
    # The fork's scripts omit p2p, the default.
    "--cp-comm-type --sequence-parallel --num-layers-per-virtual-pipeline-stage "
    "--data-path --vocab-file --merge-file --split 949,50,1 "
    "--train-iters --log-interval --log-throughput --save-interval 0 --eval-interval --eval-iters"
)


def _tutorial_arguments(case: TrainingCase, site: VocabularySite) -> list[str]:
    """Return the arguments of the published scripts."""
    values = {
        **site_flags(site),
        "--context-parallel-size": case.layout.context_parallel,
        # flash in the second generation's table of context parallelism, auto in all other scripts
        "--attention-backend": case.training.attention or "auto",
        # The value of most scripts; experiments with another one set it.
        "--eval-interval": None if "--eval-interval" in read_flags(case.arguments) else 50,
    }
    return flag_arguments(script_flags(_TUTORIAL_SCRIPT, case, values))


def _unsupported_by_tutorials(case: TrainingCase, _site: VocabularySite | None) -> Iterator[str]:
    model = case.model
    other_width = model.ffn is not None and not model.experts
    if model.family != "gpt" or model.kv_groups is not None or other_width:
        yield "models other than GPT-2's, with or without experts"
    settings = "rotary positions", "recomputation", "offloading", "disabling scatter/gather", "DDP torch"
    yield from lacking(case, *settings, recomputation=("none", "full"))


CORE = PlannedProgram(
    name="megatron-core-0.14",
    about="Megatron-LM of the tutorials, core 0.14",
    site=VocabularySite,
    dialect="now",
    memory=_MEMORY,
    arguments=_tutorial_arguments,
    unsupported=_unsupported_by_tutorials,
    program=lambda job, arguments: megatron_program(job, arguments, data=job.site.data_path),
    usable_share=USABLE_SHARE_CORE,
    time=replace(_TIME, stages_cost_host=True, fitted_on={"H100": "H100"}),  # the tutorials
    needs=(
        Repository(),
        *GPT2_FILES,
        MegatronTokens(
            GPT2_TOKENS,
            "openwebtext-10k with GPT-2's vocabulary (target prepare-ds-openwebtext-10k of the tutorials' Makefile)",
        ),
    ),
)
TUTORIAL_FORK = replace(
    CORE, name="megatron-tutorial-fork", about="fork of Megatron-LM, first generation of the tutorials"
)

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
"""The commit of NVIDIA/Megatron-LM with these arguments; no paper names it."""

SCRIPTED_ITERATIONS = 500
"""--train-iters of SC21's scripts. --exit-interval ends shorter runs; it saves nothing without --save today, and skips
the evaluation at the end."""

_USUAL_MULTIPLE = 1024

OWN_LAYERS: Flags = {
    "--transformer-impl": "local",
    "--no-persist-layer-norm": True,
    "--no-gradient-accumulation-fusion": True,
    "--no-masked-softmax-fusion": True,
}
"""Flags of a run without transformer-engine and apex, which the defaults require."""


class TodaySite(CheckoutSite):
    """A checkout of today's Megatron-LM. Without data of the site it uses mock data."""

    data_path: Text | None = optional(
        "Tokenised data: the path of the .bin and .idx files, without the ending. Without it: mock data.",
        "/shared/data/gpt2_text_document",
    )
    vocab_file: Text | None = optional("The file gpt2-vocab.json, with `data_path`.", "/shared/data/gpt2-vocab.json")
    merge_file: Text | None = optional("The file gpt2-merges.txt, with `data_path`.", "/shared/data/gpt2-merges.txt")
    transformer_engine: bool = optional(
        "false: jobs find neither transformer-engine nor apex, and use Megatron-LM's own layers.", default=True
    )

    @model_validator(mode="after")
    def _data_are_complete(self) -> TodaySite:
        missing = [name for name in ("data_path", "vocab_file", "merge_file") if getattr(self, name) is None]
        if 0 < len(missing) < 3:
            raise ValueError(f"data need all of data_path, vocab_file and merge_file: no {' and no '.join(missing)}")
        return self


_SCRIPT = (
    RECOMPUTATION
    + "--num-layers-per-virtual-pipeline-stage --overlap-grad-reduce "
    + SIZES
    + "--data-path --mock-data --tokenizer-type --vocab-size --vocab-file --merge-file --make-vocab-size-divisible-by "
    "--log-interval --log-throughput --seq-length --max-position-embeddings --train-iters --exit-interval "
    + SCHEDULE
    # Data sets require an --eval-interval (an int is divided by None).
    + "--eval-iters --eval-interval 1000 --clip-grad 1.0 --fp16 --bf16 --loss-scale "
    # Models other than SC21's GPT
    "--swiglu --normalization --position-embedding-type --disable-bias-linear --untie-embeddings-and-output-weights "
    "--ffn-hidden-size --group-query-attention --num-query-groups --attention-backend --hidden-dropout "
    "--attention-dropout "
    + _EXPERTS
    + "--context-parallel-size --cp-comm-type --sequence-parallel --use-distributed-optimizer"
)


def _arguments(case: TrainingCase, site: TodaySite) -> list[str]:
    """Return the arguments of a case, without flags that the case itself gives.

    --overlap-grad-reduce is the equivalent of `--DDP-impl torch`. NullTokenizer has --vocab-size entries, and one more
    before core 0.17. With one fewer than the model has, both are padded to the model's. A vocabulary that tensor
    parallelism does not divide is padded as by default.
    """
    vocab, has_data = case.model.vocab, site.data_path is not None
    divisor = vocabulary_divisor(vocab, case.layout.tensor_parallel, GPT2_TOKENS if has_data else vocab - 1)
    values = {
        **site_flags(site),
        "--overlap-grad-reduce": case.training.ddp == "torch",
        "--mock-data": not has_data,
        "--tokenizer-type": "GPT2BPETokenizer" if has_data else "NullTokenizer",
        "--vocab-size": None if has_data else vocab if divisor is None else vocab - 1,
        "--make-vocab-size-divisible-by": divisor,
        "--train-iters": max(SCRIPTED_ITERATIONS, case.training.iterations),
    }
    flags = {**script_flags(_SCRIPT, case, values), **({} if site.transformer_engine else OWN_LAYERS)}
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


def _unsupported(case: TrainingCase, site: TodaySite | None) -> Iterator[str]:
    vocab = case.model.vocab
    yield from lacking(case, "recomputation", "offloading", recomputation=("none", "selective", "full"))
    if not case.training.scatter_gather:
        yield "disabling scatter/gather (10e7b74597 removed the option)"
    if site is None:
        return
    if site.data_path and vocabulary_divisor(vocab, case.layout.tensor_parallel, GPT2_TOKENS) is None:
        yield f"padding the {GPT2_TOKENS:,} entries of the site's data to {vocab:,}"
    if not site.transformer_engine:
        yield from (f"{setting} without transformer-engine" for setting in _unsupported_by_own_layers(case))


def _unsupported_by_own_layers(case: TrainingCase) -> Iterator[str]:
    """Yield settings that dot_product_attention.py, torch_norm.py and models/backends.py of core 0.20.0 lack."""
    if case.training.attention not in (None, "unfused"):
        yield f"{case.training.attention} attention"
    yield from lacking(case, "context parallelism", "sequence parallelism")
    if "--moe-grouped-gemm" in read_flags(case.arguments):
        yield "grouped products of the experts"


def _program(job: JobContext[TodaySite], arguments: Sequence[str]) -> BoundProgram:
    site, place = job.site, job.field("transformer_engine")
    values = () if site.transformer_engine else [(flag, place) for flag in OWN_LAYERS]
    data = site.data_path or "mock data"
    return megatron_program(job, arguments, data=data, default_commit=COMMIT, site_values=values)


PROGRAM = PlannedProgram(
    name="megatron-2026",
    about="Megatron-LM of August 2026, core 0.20",
    site=TodaySite,
    dialect="now",
    memory=_MEMORY,
    arguments=_arguments,
    unsupported=_unsupported,
    program=_program,
    # The divisor pads to the model's vocabulary, unless tensor parallelism divides it already.
    tokens=lambda model, tensor_parallel: model.vocab if model.vocab % tensor_parallel else None,
    time=_TIME,
    costly_arguments=lambda site: () if site.transformer_engine else flag_arguments(OWN_LAYERS),
    other_names=("megatron-core",),
    needs=(
        Repository(name="NVIDIA/Megatron-LM", commit=COMMIT),
        *GPT2_FILES,
        MegatronTokens(GPT2_TOKENS, "mock data, if the profile sets no data_path"),
    ),
)
