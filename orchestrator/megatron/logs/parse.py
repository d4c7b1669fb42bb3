"""Parser of a job's log, and the facts that it finds beside the iterations. Pure; the log may still be growing.

A log is read in parts. Two values are passed from part to part: the iterations by column, and `LogFacts`, which are
stored as JSON. Parts that end at ends of lines give the same result as the whole log.

Most of a large log is irrelevant. Texts that a program prints once are searched only up to the first few iterations;
the end only around the last two. Lines that are searched in the whole log contain a bar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from typing import Any

from orchestrator.ledger.tables import IterationLine
from orchestrator.masking import masked_tree
from orchestrator.megatron.logs import fact_lines
from orchestrator.megatron.logs.alpa import AlpaRow, printed_row
from orchestrator.megatron.logs.fact_lines import MEMORY_SIZES, WorldLine, candidate_lines, occurrences
from orchestrator.megatron.logs.iteration_lines import (
    ITERATION_TOKEN,
    IterationLines,
    add_iterations,
    effective_lines,
    last_line_time,
    line_time,
    plausible_lines,
)

VERSION = 6
"""Version of the stored facts. Facts of another version are not used: their log is read again from its beginning."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """State that the next part of the same log needs.

    `lines`: number of iteration lines so far; only the first few are counted. `dump_is_open`: a dump of arguments is
    not complete. `shards`: parameters by tensor rank, pipeline rank and shard. `done_since`: number of iteration lines
    after the last text that training is done.
    """

    lines: int = 0
    dump_is_open: bool = False
    shards: dict[tuple[int, int, int], int] = field(default_factory=dict)
    done_since: int | None = None


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts of a log beside its iterations.

    `settings` are the arguments of the program as printed, with secrets masked. `programs` are the versions of
    `orchestrator.pretrain` that ran, each with the first folder that it was imported from. `parameters` are by (tensor,
    pipeline) rank. Sizes of memory are those of the GPU that used most: of all GPUs if `memory_is_of_all`, else of
    those with data-parallel rank 0. `says_done` needs less than two iteration lines after the text.

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
        """Return all facts in types of JSON."""
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
        source = with_memory_of_all if name in MEMORY_SIZES else files
        present = [value for facts in source if (value := getattr(facts, name))]
        if not present:
            continue
        if name in (*MEMORY_SIZES, "restarts", "last_iteration"):
            merged[name] = max(present)
        elif name == "odd_lines":
            merged[name] = sum(present)
        elif name in ("parameters", "programs"):
            merged[name] = {key: value for values in reversed(present) for key, value in values.items()}
        else:
            merged[name] = present[0]
    return LogFacts(**merged)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {",".join(map(str, key)) if isinstance(key, tuple) else key: _plain(part) for key, part in value.items()}
    return value


def _by_ranks(stored: Mapping[str, int]) -> Iterator[tuple[tuple[int, ...], int]]:
    return ((tuple(map(int, ranks.split(","))), count) for ranks, count in stored.items())


EARLY = 4
"""Number of iteration lines up to which set-up texts are searched: Megatron-Kwai prints memory after its second."""
LATE = 2
"""End texts have fewer iteration lines than this after them; more than 0 when ranks print at the same time."""
MOST_NAMES = 10_000
"""Limit of settings and of ranks: Megatron-LM has some 600 settings."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Content of one part of a log.

    `iterations` are the lines of this part that count, in rising order. A line replaces an earlier one with its number.
    `is_restarted`: the program restarted within this part, so that lines of earlier parts do not count any more.
    `consumed` is the number of bytes up to the end of the last whole line.
    """

    facts: LogFacts
    iterations: IterationLines
    consumed: int
    is_restarted: bool = False


@dataclass(frozen=True, slots=True)
class LogReport:
    """Content of a whole log. `table_row` is the last row of the table that Alpa's benchmark writes beside it."""

    iterations: Sequence[IterationLine]
    facts: LogFacts
    table_row: AlpaRow | None = None

    @property
    def last_iteration(self) -> int | None:
        """The last iteration number; None without iteration lines."""
        return self.iterations[-1].iteration if self.iterations else None


def read_log(log: bytes) -> LogReport:
    """Read a whole log. If the program was restarted within the log, only its last start counts."""
    part = read_part(log, LogFacts(), final=True)
    return LogReport(part.iterations, part.facts)


def read_part(part: bytes, facts: LogFacts, final: bool, warmup_iterations: int = 0) -> LogPart:
    """Read the next part of a log. `facts` are those of the parts before.

    An incomplete last line is left for the next part unless this part is `final`.
    """
    consumed = len(part) if final else part.rfind(b"\n") + 1
    facts = _with_beginning(facts, part, consumed)
    lines, line_count = IterationLines(), 0
    for text, start, end in candidate_lines(part, 0, consumed):
        line_count += add_iterations(lines, text, start, end)
        facts = _with_memory(facts, fact_lines.reported_memory(text, start, end))
    plausible, odd = plausible_lines(lines)
    effective, restarts = effective_lines(plausible, facts.last_iteration)
    measured_from = _measured_from(facts, part, consumed, plausible.numbers, warmup_iterations)
    facts = replace(
        facts,
        measured_from=measured_from,
        measured_until=last_line_time(part, 0, consumed) if line_count else facts.measured_until,
        restarts=facts.restarts + restarts,
        last_iteration=effective.numbers[-1] if effective else facts.last_iteration,
        odd_lines=facts.odd_lines + len(odd),
        first_odd=facts.first_odd or next(iter(odd), None),
        unfinished=replace(facts.unfinished, lines=min(EARLY, facts.unfinished.lines + line_count)),
    )
    return LogPart(_with_end(facts, part, consumed, line_count), effective, consumed, restarts > 0)


def effective_of(parts: Iterable[LogPart]) -> IterationLines:
    """Return the lines that count of consecutive parts of one log."""
    lines = IterationLines()
    for part in parts:
        if part.is_restarted:
            lines = IterationLines()
        lines.append_later(part.iterations)
    return lines


def _with_beginning(facts: LogFacts, log: bytes, end: int) -> LogFacts:
    """Add the facts that a program prints before its first few iterations."""
    left = EARLY - facts.unfinished.lines
    if left == 0:
        return facts
    first = list(islice(occurrences(log, ITERATION_TOKEN, 0, end), left))
    end = first[-1] if len(first) == left else end
    return _with_memory_of_all(_with_setup(facts, log, end), log, end)


def _with_setup(facts: LogFacts, log: bytes, end: int) -> LogFacts:
    """Add sizes, arguments and parameters. Some ranks may print them after the first iteration of others."""
    settings, is_open = dict(facts.settings), facts.unfinished.dump_is_open
    for begin, stop, continues in fact_lines.dump_borders(log, 0, end, is_open):
        is_open = continues
        for name, value in fact_lines.settings(log, begin, stop).items():
            if name in settings or len(settings) < MOST_NAMES:
                settings |= masked_tree({name: value})
    parameters, shards = dict(facts.parameters), dict(facts.unfinished.shards)
    for rank in fact_lines.rank_parameters(log, 0, end):
        ranks, shard = (rank.tensor, rank.pipeline), (rank.tensor, rank.pipeline, rank.shard or 0)
        other_shards = 0
        if rank.shard is not None and (shard in shards or len(shards) < MOST_NAMES):
            other_shards = parameters.get(ranks, 0) - shards.get(shard, 0)
            shards[shard] = rank.count
        if ranks in parameters or len(parameters) < MOST_NAMES:
            parameters[ranks] = other_shards + rank.count
    programs = dict(facts.programs)
    for version, folder in fact_lines.programs(log, 0, end):
        if version not in programs and len(programs) < MOST_NAMES:
            programs |= masked_tree({version: folder})
    read = ((name, value_in(log, 0, end)) for name, value_in in _LAST_VALUES.items())
    last_values: dict[str, Any] = {name: value for name, value in read if value is not None}
    return replace(
        facts,
        **last_values,
        world=facts.world or fact_lines.world_line(log, 0, end),
        settings=settings,
        parameters=parameters,
        programs=programs,
        alpa=_alpa_row(facts, log, end),
        unfinished=replace(facts.unfinished, dump_is_open=is_open, shards=shards),
    )


_LAST_VALUES: Mapping[str, Callable[[bytes, int, int], str | int | None]] = {
    "padded_vocab": fact_lines.padded_vocabulary,
    "software": fact_lines.software,
    "execution": fact_lines.execution,
    "code_commit": fact_lines.code_commit,
    "theoretical_memory_bytes": fact_lines.theoretical_memory,
}
"""Facts whose last line in the log counts."""


def _alpa_row(facts: LogFacts, log: bytes, end: int) -> AlpaRow | None:
    """Return the last row after the last list of arguments. A program that starts again has not printed its row yet."""
    start = log.rfind(fact_lines.DUMP_BEGINS, 0, end)
    row = printed_row(log, max(start, 0), end)
    return facts.alpa if row is None and start < 0 else row


def _with_memory_of_all(facts: LogFacts, log: bytes, end: int) -> LogFacts:
    """Add the memory of all GPUs, which Megatron-Kwai prints after its first two iterations."""
    of_all = fact_lines.memory_of_all(log, 0, end)
    if not of_all:
        return facts
    sizes: dict[str, Any] = {} if facts.memory_is_of_all else dict.fromkeys(MEMORY_SIZES)
    return replace(facts, memory_is_of_all=True, **sizes | of_all)


def _with_memory(facts: LogFacts, sizes: Mapping[str, int]) -> LogFacts:
    """Add the memory that single ranks print, unless the memory of all ranks is known."""
    if facts.memory_is_of_all or not sizes:
        return facts
    largest: dict[str, Any] = {name: max(size, getattr(facts, name) or 0) for name, size in sizes.items()}
    return replace(facts, **largest)


def _measured_from(facts: LogFacts, log: bytes, end: int, numbers: Sequence[int], warmup_iterations: int) -> str | None:
    """Return the time of the last warm-up line so far, else of the first line. `numbers`: iterations of this part."""
    if not numbers:
        return facts.measured_from
    if min(numbers) <= warmup_iterations:
        last_of_warmup = next(number for number in reversed(numbers) if number <= warmup_iterations)
        return line_time(log, last_of_warmup, 0, end, first=False)
    is_first = facts.last_iteration is None
    return line_time(log, numbers[0], 0, end, first=True) if is_first else facts.measured_from


def _with_end(facts: LogFacts, log: bytes, end: int, line_count: int) -> LogFacts:
    """Add whether training is done, with less than `LATE` iteration lines after it. This part has `line_count`."""
    late = 0
    if line_count >= LATE:
        late = end
        for _ in range(LATE):
            late = log.rfind(ITERATION_TOKEN, 0, late)
    done, since = fact_lines.last_done(log, late, end), facts.unfinished.done_since
    if done is not None:
        since = log.count(ITERATION_TOKEN, done, end)
    elif since is not None:
        since += line_count
    since = since if since is not None and since < LATE else None
    return replace(facts, says_done=since is not None, unfinished=replace(facts.unfinished, done_since=since))
