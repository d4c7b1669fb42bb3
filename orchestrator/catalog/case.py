"""One case of a figure, as every other room sees it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from orchestrator.catalog.axes import Value
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.training import Training

_NOT_CASES = ("submissions", "warm-up-")
"""What else has a folder beside those of the cases."""
_LONGEST_SLUG = 100
"""Bytes; a name may have 255, and more than the slug stands in it."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """How the source says a case ends, other than well."""

    outcome: str
    confirmed: bool
    source: str


@dataclass(frozen=True, slots=True)
class Case:
    """One point of an experiment, at one scale.

    `point` has its value on every axis that names it, `settings` on every axis there is. `arguments` are given to the
    program beside those that follow from model, layout and training. `published` are the source's numbers for it.
    `instead_of` is the experiment's own workload where `--workload` replaces it.
    """

    experiment: str
    scale: str
    point: tuple[tuple[str, Value], ...]
    workload: str
    model: ModelShape
    layout: Layout
    training: Training
    device: str = "gpu"
    time_limit: str | None = None
    gpu_memory_gb: int | None = None
    arguments: tuple[str, ...] = ()
    expected: Expectation | None = None
    published: tuple[PublishedPoint, ...] = ()
    note: str | None = None
    instead_of: str | None = field(default=None, compare=False)
    settings: dict[str, Value] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """As a person filters for it: `pp=8,tp=8,gbs=32`."""
        return ",".join(f"{axis}={shown_value(value)}" for axis, value in self.point)

    @property
    def slug(self) -> str:
        """The same for file names: `pp8-tp8-gbs32`; a row goes by its own name."""
        text = "-".join(f"{'' if axis == 'case' else axis}{shown_value(value)}" for axis, value in self.point)
        safe = "".join(character if character.isalnum() or character in "-._" else "_" for character in text)
        own = not safe[:1].isalnum() or safe.startswith(_NOT_CASES)
        short = safe.encode()[:_LONGEST_SLUG].decode(errors="ignore")
        if safe == text and not own and short == safe:
            return safe
        # Two names may have become one, or one that leads elsewhere: a digest of the whole tells them apart.
        digest = hashlib.sha256(self.name.encode(errors="surrogatepass")).hexdigest()[:6]
        return f"{'case-' if own else ''}{short}-{digest}"

    def value(self, axis: str) -> Value:
        """What the case has on any axis; KeyError for what it has none on."""
        return self.settings[axis]

    def number(self, axis: str) -> float:
        """The same where it is a number; true counts as 1."""
        value = self.value(axis)
        if isinstance(value, str):
            raise TypeError(f"{axis} is {value}, not a number")
        return value


def shown_value(value: Value) -> str:
    """As a person types it after `axis=`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
