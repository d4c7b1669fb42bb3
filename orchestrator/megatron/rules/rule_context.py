"""A rule of Megatron-LM, and its input: model, layout, training, further arguments, environment, GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from orchestrator.megatron.model import Layout, ModelShape, Training, padded_vocabulary

Dialect = Literal["2021", "kwai", "2024", "now", "pretrain"]
"""Version whose rules apply: Megatron-LM at 6985e58938 (2021-08-18, SC21's), Megatron-Kwai (ATC'24's, atc24ae-1.0.0),
Megatron-LM of January 2024 that ATC'24 compares with (2bc6cd307a), today's, or `pretrain` on megatron-core."""

_PER_VIRTUAL_STAGE = "--num-layers-per-virtual-pipeline-stage"
_VIRTUAL_STAGES = "--num-virtual-stages-per-pipeline-rank"
_DIVISOR = "--make-vocab-size-divisible-by"


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Input of the rules.

    `arguments` are the further arguments of a case, not those of model, layout and training. `environment` has the
    variables of the job; `gpu` is the name of the GPU, None if unknown. `tokens` is the size of the vocabulary that the
    program pads, None if it uses the model's vocabulary unchanged.
    """

    model: ModelShape
    layout: Layout
    training: Training
    dialect: Dialect = "now"
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu: str | None = None
    gpus_per_node: int | None = None
    tokens: int | None = None
    flags: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", read_flags(self.arguments))

    def number(self, flag: str) -> float | None:
        """Return the number after a flag; None if the flag is absent or has none."""
        values = self.flags.get(flag)
        if not values:
            return None
        try:
            return float(values[0])
        except ValueError:
            return None

    @property
    def fits(self) -> bool:
        """Return whether whole replicas of the model fill the GPUs."""
        return self.layout.gpus % self.layout.model_parallel == 0

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding that the program builds."""
        given = self.number("--padded-vocab-size") if self.dialect == "now" else None
        if given is not None:
            return int(given)
        if self.tokens is None and _DIVISOR not in self.flags:
            return self.model.vocab
        divisor = int(self.number(_DIVISOR) or 128)
        return padded_vocabulary(self.tokens or self.model.vocab, self.layout.tensor_parallel, divisor)

    @property
    def layers_per_virtual_stage(self) -> int | None:
        """Layers per virtual stage from the arguments; None without them, or if the layout sets the virtual stages."""
        value = self.number(_PER_VIRTUAL_STAGE)
        return int(value) if value and self.layout.virtual_stages == 1 else None

    @property
    def virtual_stages(self) -> int:
        """Virtual stages of the layout or of the arguments."""
        layers, layout = self.layers_per_virtual_stage, self.layout
        if layers is not None:
            return max(1, self.model.layers // layout.pipeline_parallel // layers)
        return layout.virtual_stages if layout.virtual_stages > 1 else int(self.number(_VIRTUAL_STAGES) or 1)

    @property
    def sequence_parallel(self) -> bool:
        """Return whether sequence parallelism is on: it needs tensor parallelism (arguments.py:1433)."""
        return self.layout.sequence_parallel and self.layout.tensor_parallel > 1


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `check` yields a message for each violation; `source` is the code that enforces the rule."""

    number: int
    name: str
    source: str
    check: Callable[[RuleContext], Iterator[str]]


def rule(number: int, name: str, source: str) -> Callable[[Callable[[RuleContext], Iterator[str]]], Rule]:
    """Return a decorator that makes a rule from its check."""
    return partial(Rule, number, name, source)


def read_flags(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each flag; the last one if a flag is given twice, as in argparse.

    >>> read_flags(["--save", "a b", "--lr=0.1", "--mock-data", "--lr", "0.2"])
    {'--save': ('a b',), '--lr': ('0.2',), '--mock-data': ()}
    """
    flags: dict[str, tuple[str, ...]] = {}
    flag = None
    for argument in arguments:
        if argument.startswith("--"):
            flag, given, value = argument.partition("=")
            flags[flag] = (value,) if given else ()
        elif flag is not None:
            flags[flag] += (argument,)
    return flags
