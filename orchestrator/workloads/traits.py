"""What planning must know of a program beyond its arguments: whose rules it keeps and what it does with memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from orchestrator.catalog.case import Case
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.rules.rules import Dialect
from orchestrator.megatron.training import Training
from orchestrator.pretrain.pipeline import microbatch_slots

USABLE_SHARE = 0.9375
"""Share of a GPU's memory that tensors can have; the rest is the context, NCCL's buffers and fragments. ATC'24's
figure 7 brackets it on 80 GB: 72.8e9 bytes allocated fit, 77.8e9 do not."""
USABLE_SHARE_CORE = 0.9875
"""The same for Megatron-LM at core 0.14 inside one node: with it 73 of the 74 rows of the Megatron tutorials end as
their tables say. The other, 228, is predicted to need 79.3e9 bytes of 80 GB and fitted; 121, at 79.2e9, did not."""
USABLE_SHARE_PRETRAIN = 0.975
"""The same for `pretrain`, whose allocator leaves hardly a gap. Of an H200, 150 GB in units of 10^9 bytes, a job held
146.07, 0.974, and one that needs 153.4 ran out (experiments/results/h200, over-the-edge). What NCCL takes over
many nodes is unconfirmed."""


GPT2_TOKENS = 50257
"""Entries of GPT-2's vocabulary."""


def _as_it_is(_model: ModelShape, _tensor_parallel: int) -> None:
    return None


def _gpt2(_model: ModelShape, _tensor_parallel: int) -> int:
    return GPT2_TOKENS


def _null(model: ModelShape, _tensor_parallel: int) -> int:
    """NullTokenizer of 2023 has one entry more than it is told (atc24 pads 32,005)."""
    return model.vocab + 1


def _fitted(model: ModelShape, tensor_parallel: int) -> int | None:
    """A divisor is found by which the padding ends at the model's own vocabulary, if tensor parallelism divides it."""
    return model.vocab if model.vocab % tensor_parallel else None


def _pretrain(model: ModelShape, _tensor_parallel: int) -> int | None:
    """Our program pads only a Llama's."""
    return model.vocab if model.family == "llama" else None


@dataclass(frozen=True, slots=True)
class Traits:
    """`memory` holds where a case says nothing else; `memory_measured`: its closed form was held to measured bytes.

    `tokens` (of a model and a tensor-parallel size) is how many entries the vocabulary has that the program pads, None
    where it takes the model's as it is. `skips_last_product`: full recomputation of a layer leaves out the layer's last
    product, whose result nothing reads (`pretrain/checkpoint.py`).
    """

    dialect: Dialect
    memory: MemoryFacts
    memory_measured: bool = False
    usable_share: float = USABLE_SHARE
    tokens: Callable[[ModelShape, int], int | None] = _gpt2
    skips_last_product: bool = False

    def memory_of(self, case: Case) -> MemoryFacts:
        """Return how the program uses memory with the options of a case."""
        attention, shards = case.training.attention, case.training.distributed_optimizer
        return replace(
            self.memory,
            attention=self.memory.attention if attention is None else attention,
            shards_optimizer=self.memory.shards_optimizer if shards is None else shards,
            microbatch_slots=self.memory.microbatch_slots if _may_record(case.arguments) else None,
        )

    def causal_attention(self, training: Training, arguments: Sequence[str]) -> bool:
        """Return whether attention computes only the causal half of the scores.

        Flash attention does. Unfused attention computes all scores, as do Megatron-LM's own layers, which the argument
        `--transformer-impl local` asks for.
        """
        own_layers = ("--transformer-impl", "local") in pairwise(arguments)
        return (training.attention or self.memory.attention) == "flash" and not own_layers


def _may_record(arguments: Sequence[str]) -> bool:
    """Return whether a pipeline of `pretrain` records CUDA graphs with these options (pretrain/graph.py)."""
    return not {"--overlap-grad-reduce", "--overlap-param-gather"}.intersection(arguments) and (
        ("--cuda-graph-impl", "none") not in pairwise(arguments)
    )


# Megatron-LM of 2021: scores are kept, gradients are of the weights' own 16 bits unless asked otherwise, the optimizer
# is whole on every rank (arguments.py and optimizer/ at 6985e58938). Alpa's fork branched two months later.
_2021 = MemoryFacts(
    "unfused",
    shards_optimizer=False,
    gradient_bytes=2,
    logit_bytes=6,
    frees_outputs=False,
    fuses_weight_gradients=False,
)
# Later ones run with flash attention and accumulate gradients in fp32; the optimizer is sharded where a case says so.
_KWAI = MemoryFacts("flash", shards_optimizer=True)
_CORE = MemoryFacts("flash", shards_optimizer=False)
_PRETRAIN = MemoryFacts(
    "flash",
    shards_optimizer=True,
    logit_bytes=2,
    keeps_gathered_keys=True,
    microbatch_slots=microbatch_slots,
)

_TRAITS: Mapping[str, Traits] = {
    "megatron-2021": Traits("2021", _2021),
    "megatron-alpa": Traits("2021", _2021, tokens=_as_it_is),
    "megatron-kwai": Traits("kwai", _KWAI, memory_measured=True, tokens=_null),
    "megatron-jan-2024": Traits("2024", _KWAI, tokens=_null),
    "megatron-core-0.14": Traits("now", _CORE, usable_share=USABLE_SHARE_CORE),
    "megatron-tutorial-fork": Traits("now", _CORE, usable_share=USABLE_SHARE_CORE),
    "megatron-2026": Traits("now", _CORE, tokens=_fitted),
    "pretrain": Traits(
        "pretrain",
        _PRETRAIN,
        memory_measured=True,
        usable_share=USABLE_SHARE_PRETRAIN,
        tokens=_pretrain,
        skips_last_product=True,
    ),
}


def traits_of(workload: str) -> Traits:
    found = _TRAITS.get(workload)
    if found is None:
        hint = did_you_mean(workload, _TRAITS) or f"there are: {', '.join(_TRAITS)}"
        raise ReproError(Problem(f"{workload}: no such workload", hint=hint))
    return found
