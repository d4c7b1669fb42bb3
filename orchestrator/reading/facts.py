"""All that a log says beside its iterations, as one value that can be stored and gone on from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from orchestrator.megatron.logs.alpa import AlpaRow
from orchestrator.megatron.logs.setup import WorldLine

VERSION = 2
"""Version of the stored facts. Facts of another version are not used: their log is read again from its beginning."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What the next piece of the same log must know of those before it.

    `lines`: iteration lines so far, of which only the first few are counted; `..._since`: since that was said.
    `dump_is_open`: the arguments are being listed. `timer_...`: of a block of timers, how much more of the log it may
    be in, and whose ranks come next.
    """

    lines: int = 0
    dump_is_open: bool = False
    shards: dict[tuple[int, int, int], int] = field(default_factory=dict)
    done_since: int | None = None
    validated_since: int | None = None
    timed_since: int | None = None
    timer_bytes: int = 0
    timer_name: str = ""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log says of the program that it is of; a program that is started again in the same log says it again.

    `settings` are the arguments as it lists them, secrets masked; `parameters` are by (tensor, pipeline) rank. Sizes
    are of the GPU that used most; with `memory_is_of_all` the program has compared all of them, else those with
    data-parallel rank 0. `timers_ms` are the last ones of an iteration, the least and the most over the ranks.
    `says_done`, `validation_loss` and `timers_ms` are those with less than two iteration lines after them.
    `execution` is the execution mode, `graph` or `eager`, None where the program does not print it.
    `restarts`: how often a program began anew in the log. `odd_lines`: iteration lines with a number that cannot be
    true, `first_odd` which.
    """

    world: WorldLine | None = None
    says_done: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    padded_vocab: int | None = None
    parameters: dict[tuple[int, int], int] = field(default_factory=dict)
    max_allocated_bytes: int | None = None
    max_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    memory_is_of_all: bool = False
    theoretical_memory_bytes: int | None = None
    timers_ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    validation_loss: float | None = None
    restarts: int = 0
    last_iteration: int | None = None
    odd_lines: int = 0
    first_odd: str | None = None
    code_commit: str | None = None
    software: str | None = None
    execution: str | None = None
    alpa: AlpaRow | None = None
    unfinished: Unfinished = field(default_factory=Unfinished)

    def as_json(self) -> dict[str, Any]:
        """All of it in types of JSON; a number that is none is text."""
        plain: dict[str, Any] = _plain(asdict(self))
        return {"version": VERSION} | plain

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> LogFacts:
        """What `as_json` gave; ValueError where another version of the program wrote it."""
        if stored.get("version") != VERSION:
            raise ValueError(f"facts of version {stored.get('version')}")
        world, alpa, loss = stored["world"], stored["alpa"], stored["validation_loss"]
        told = {one.name: stored[one.name] for one in fields(cls)}
        told |= {
            "world": None if world is None else WorldLine(**world),
            "alpa": None
            if alpa is None
            else AlpaRow(**{**alpa, **{name: _number(alpa[name]) for name in _ALPAS_NUMBERS}}),
            "parameters": {(ranks[0], ranks[1]): count for ranks, count in _by_ranks(stored["parameters"])},
            "timers_ms": _times(stored["timers_ms"]),
            "validation_loss": _number(loss),
            "unfinished": _unfinished(stored["unfinished"]),
        }
        return cls(**told)


_ALPAS_NUMBERS = ("tflops", "parameters_billion")


def together(facts: Sequence[LogFacts]) -> LogFacts:
    """Of the files of one log, such as each rank's own: what any of them says, and of sizes the largest.

    Where one file has compared the memory of all ranks, its sizes hold. It is not to be gone on from.
    """
    if len(facts) == 1:
        return facts[0]
    memory = [one for one in facts if one.memory_is_of_all] or facts

    def first(name: str) -> Any:
        return next((value for one in facts if (value := getattr(one, name))), None)

    def largest(of: Sequence[LogFacts], name: str) -> Any:
        return max((value for one in of if (value := getattr(one, name)) is not None), default=None)

    parameters: dict[tuple[int, int], int] = {}
    for one in facts:
        parameters |= one.parameters
    sizes = ("max_allocated_bytes", "max_reserved_bytes", "device_used_bytes")
    return LogFacts(
        says_done=any(one.says_done for one in facts),
        settings=first("settings") or {},
        parameters=parameters,
        memory_is_of_all=any(one.memory_is_of_all for one in facts),
        timers_ms=first("timers_ms") or {},
        odd_lines=sum(one.odd_lines for one in facts),
        restarts=max((one.restarts for one in facts), default=0),
        last_iteration=largest(facts, "last_iteration"),
        **{name: largest(memory, name) for name in sizes},
        **{name: first(name) for name in ("world", "padded_vocab", "theoretical_memory_bytes", "validation_loss")},
        **{name: first(name) for name in ("first_odd", "code_commit", "software", "execution", "alpa")},
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {",".join(map(str, k)) if isinstance(k, tuple) else k: _plain(one) for k, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _by_ranks(stored: Mapping[str, int]) -> Iterator[tuple[tuple[int, ...], int]]:
    return ((tuple(map(int, ranks.split(","))), count) for ranks, count in stored.items())


def _times(stored: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {name: (least, most) for name, (least, most) in stored.items()}


def _unfinished(stored: Mapping[str, Any]) -> Unfinished:
    shards = {(ranks[0], ranks[1], ranks[2]): count for ranks, count in _by_ranks(stored["shards"])}
    return Unfinished(**{**stored, "shards": shards})
