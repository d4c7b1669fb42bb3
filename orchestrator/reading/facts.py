"""Facts of a log beside its iterations. They are stored as JSON, and reading continues from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from orchestrator.megatron.logs.alpa import AlpaRow
from orchestrator.megatron.logs.fact_lines import WorldLine

VERSION = 5
"""Version of the stored facts. Facts of another version are not used: their log is read again from its beginning."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """State that the next part of the same log needs.

    `lines`: number of iteration lines so far; only the first few are counted. `..._since`: number of iteration lines
    after the last such text. `dump_is_open`: a dump of arguments is not complete. `shards`: parameters by tensor rank,
    pipeline rank and shard. `timer_bytes`, `timer_name`: the rest of a block of timers, as in `Timers`.
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
    """Facts of a log beside its iterations.

    `settings` are the arguments of the program as printed, with secrets masked. `programs` are the versions of
    `orchestrator.pretrain` that ran, each with the first folder that it was imported from. `parameters` are by (tensor,
    pipeline) rank. Sizes of memory are those of the GPU that used most: of all GPUs if `memory_is_of_all`, else of
    those with data-parallel rank 0. `timers_ms` are the timers of the last iteration: minimum and maximum over the
    ranks. `says_done`, `validation_loss` and `timers_ms` need less than two iteration lines after them.

    `measured_from` and `measured_until` are the local times of the last warm-up line (else of the first line) and of
    the last line, as the program prints them. `restarts` is the number of restarts within the log. `odd_lines` is the
    number of iteration lines with an implausible number, and `first_odd` describes the first one. `execution` is the
    execution mode, `graph` or `eager`. `alpa` is the last result row of Alpa's benchmark after its list of arguments.
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
    measured_from: str | None = None
    measured_until: str | None = None
    restarts: int = 0
    last_iteration: int | None = None
    odd_lines: int = 0
    first_odd: str | None = None
    code_commit: str | None = None
    software: str | None = None
    programs: dict[str, str] = field(default_factory=dict)
    execution: str | None = None
    alpa: AlpaRow | None = None
    unfinished: Unfinished = field(default_factory=Unfinished)

    def as_json(self) -> dict[str, object]:
        """Return all facts in types of JSON. NaN and infinity become text."""
        return {"version": VERSION} | {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> LogFacts:
        """Return the facts that `as_json` gave. Raise ValueError for those of another version."""
        if stored.get("version") != VERSION:
            raise ValueError(f"facts of version {stored.get('version')}")
        values: dict[str, Any] = {fact.name: stored[fact.name] for fact in fields(cls)}
        world, alpa, unfinished = values["world"], values["alpa"], values["unfinished"]
        shards = {(ranks[0], ranks[1], ranks[2]): count for ranks, count in _by_ranks(unfinished["shards"])}
        values |= {
            "world": WorldLine(**world) if world is not None else None,
            "alpa": AlpaRow(**alpa) if alpa is not None else None,
            "parameters": {(ranks[0], ranks[1]): count for ranks, count in _by_ranks(values["parameters"])},
            "timers_ms": {name: (least, most) for name, (least, most) in values["timers_ms"].items()},
            "validation_loss": _number(values["validation_loss"]),
            "unfinished": Unfinished(**unfinished | {"shards": shards}),
        }
        return cls(**values)


def merged_facts(files: Sequence[LogFacts]) -> LogFacts:
    """Merge the facts of a job's log files, such as one file for each rank. Reading does not continue from them.

    A fact that only one file has is kept, and of others that of the first file. Of sizes of memory the largest counts,
    but if a file has the memory of all ranks, only its sizes count.
    """
    if len(files) == 1:
        return files[0]
    with_memory_of_all = [facts for facts in files if facts.memory_is_of_all] or files
    merged: dict[str, Any] = {}
    for name in (fact.name for fact in fields(LogFacts) if fact.name != "unfinished"):
        source = with_memory_of_all if name in _SIZES else files
        present = [value for facts in source if (value := getattr(facts, name))]
        if not present:
            continue
        if name in (*_SIZES, "restarts", "last_iteration"):
            merged[name] = max(present)
        elif name == "odd_lines":
            merged[name] = sum(present)
        elif name in ("parameters", "programs"):
            merged[name] = {key: value for values in reversed(present) for key, value in values.items()}
        else:
            merged[name] = present[0]
    return LogFacts(**merged)


_SIZES = ("max_allocated_bytes", "max_reserved_bytes", "device_used_bytes")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {",".join(map(str, key)) if isinstance(key, tuple) else key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(stored: str | float | None) -> float | None:
    return None if stored is None else float(stored)


def _by_ranks(stored: Mapping[str, int]) -> Iterator[tuple[tuple[int, ...], int]]:
    return ((tuple(map(int, ranks.split(","))), count) for ranks, count in stored.items())
