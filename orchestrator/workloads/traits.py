"""What planning must know of a program beyond its arguments: whose rules it keeps and what it does with memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.megatron.rules import Dialect
from orchestrator.megatron.training import Training

USABLE_SHARE = 0.9375
"""Share of a GPU's memory that tensors can have; the rest is the context, NCCL's buffers and fragments. ATC'24's
figure 7 brackets it on 80 GB: 72.8e9 bytes allocated fit, 77.8e9 do not."""
USABLE_SHARE_CORE = 0.9875
"""The same for Megatron-LM at core 0.14 inside one node: with it 73 of the 74 rows of the Megatron tutorials end as
their tables say. The other, 228, is predicted to need 79.3e9 bytes of 80 GB and fitted; 121, at 79.2e9, did not."""


@dataclass(frozen=True, slots=True)
class Traits:
    """`memory` holds where a case says nothing else; `memory_measured`: its closed form was held to measured bytes."""

    dialect: Dialect
    memory: MemoryFacts
    memory_measured: bool = False
    usable_share: float = USABLE_SHARE

    def memory_of(self, training: Training) -> MemoryFacts:
        """The program's habits with what a case decides itself laid over them."""
        attention, shards = training.attention, training.distributed_optimizer
        return replace(
            self.memory,
            attention=self.memory.attention if attention is None else attention,
            shards_optimizer=self.memory.shards_optimizer if shards is None else shards,
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
_PRETRAIN = MemoryFacts("flash", shards_optimizer=True, keeps_gathered_keys=True)

_TRAITS: Mapping[str, Traits] = {
    "megatron-2021": Traits("2021", _2021),
    "megatron-alpa": Traits("2021", _2021),
    "megatron-kwai": Traits("kwai", _KWAI, memory_measured=True),
    "megatron-jan-2024": Traits("2024", _KWAI),
    "megatron-core-0.14": Traits("now", _CORE, usable_share=USABLE_SHARE_CORE),
    "megatron-tutorial-fork": Traits("now", _CORE, usable_share=USABLE_SHARE_CORE),
    "pretrain": Traits("pretrain", _PRETRAIN, memory_measured=True),
}


def traits_of(workload: str) -> Traits:
    found = _TRAITS.get(workload)
    if found is None:
        mend = did_you_mean(workload, _TRAITS) or f"there are: {', '.join(_TRAITS)}"
        raise ReproError(Problem(f"{workload}: no such workload", mend=mend))
    return found
