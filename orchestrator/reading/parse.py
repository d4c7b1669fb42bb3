"""A job's log -> what it says about itself. Reading is pure; the file may still be growing.

A log is read piece by piece, and two values go from one to the next: the iterations by column, and `LogFacts`. Cut at
any ends of lines, the pieces give what the whole gives.

Most of a big log says nothing that is wanted. What a program says once is looked for only up to its first few
iterations; timers, validation and the end, around the last two. What is looked for in all of it has a bar, and of the
rest of a log the bytes are hardly touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from orchestrator.masking import masked_tree
from orchestrator.megatron.logs import alpa, memory, setup, timers
from orchestrator.megatron.logs.iteration import (
    ITERATION_WORD,
    IterationLine,
    IterationLines,
    counting,
    drop_implausible,
)
from orchestrator.megatron.logs.iteration_lines import add_iterations
from orchestrator.megatron.logs.memory import Memory
from orchestrator.megatron.logs.scan import candidate_lines, occurrences
from orchestrator.megatron.logs.setup import WorldLine
from orchestrator.megatron.logs.timers import Timers
from orchestrator.reading.facts import LogFacts

EARLY = 4
"""Iteration lines; what a program says once is said before that many: Megatron-Kwai's memory after its second."""
LATE = 2
"""Iteration lines that what is said at an end may have after it, when ranks print at the same time; fewer."""
MOST_NAMES = 10_000
"""Of settings and of ranks: Megatron-LM has some 600 settings."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one piece of a log adds: `iterations` are those of this piece that count, each once and in rising order.

    `begins_anew`: the program started over within it, so that the lines of earlier pieces count no longer; else a line
    takes the place of an earlier one with its number. `consumed`: bytes, up to the end of the last whole line.
    """

    facts: LogFacts
    iterations: IterationLines
    consumed: int
    begins_anew: bool = False


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a whole log holds."""

    iterations: Sequence[IterationLine]
    facts: LogFacts

    @property
    def world(self) -> WorldLine | None:
        return self.facts.world

    @property
    def says_done(self) -> bool:
        return self.facts.says_done

    @property
    def last_iteration(self) -> int | None:
        return self.iterations[-1].iteration if self.iterations else None


def read_log(log: bytes) -> LogReport:
    """Read a whole log. Of an iteration that is reported twice the last report counts, and of a program that was
    started again in the same log what it did since.
    """
    part = read_part(log, LogFacts(), final=True)
    return LogReport(part.iterations, part.facts)


def read_part(part: bytes, facts: LogFacts, final: bool) -> Part:
    """Read on, after what gave `facts`. An incomplete last line is left to the next part unless this is `final`."""
    consumed = len(part) if final else part.rfind(b"\n") + 1
    facts = _with_beginning(facts, part, consumed)
    read, words = IterationLines(), 0
    for text, start, end in candidate_lines(part, 0, consumed):
        words += add_iterations(read, text, start, end)
        facts = _with_memory(facts, memory.reported_memory(text, start, end))
    possible, odd, first_odd = drop_implausible(read)
    lines, begins_anew, restarts = counting(possible, facts.last_iteration)
    unfinished = replace(facts.unfinished, lines=min(EARLY, facts.unfinished.lines + words))
    facts = replace(
        facts,
        restarts=facts.restarts + restarts,
        last_iteration=lines.numbers[-1] if lines else facts.last_iteration,
        odd_lines=facts.odd_lines + odd,
        first_odd=facts.first_odd or first_odd,
        unfinished=unfinished,
    )
    return Part(_with_end(facts, part, consumed, words), lines, consumed, begins_anew)


def latest(parts: Iterable[Part]) -> IterationLines:
    """The lines that count of the parts of one log, in its order."""
    lines = IterationLines()
    for part in parts:
        if part.begins_anew:
            lines = IterationLines()
        lines.go_on(part.iterations)
    return lines


def _with_beginning(facts: LogFacts, log: bytes, end: int) -> LogFacts:
    """What is said before the first iteration, or among the first few."""
    left = EARLY - facts.unfinished.lines
    if left == 0:
        return facts
    first = list(islice(occurrences(log, ITERATION_WORD, 0, end), left))
    end = first[-1] if len(first) == left else end
    return _with_first_memory(_with_setup(facts, log, end), log, end)


def _with_setup(facts: LogFacts, log: bytes, end: int) -> LogFacts:
    """What a program says of itself; each rank in its turn, so perhaps not all before the first iteration."""
    settings, is_open = dict(facts.settings), facts.unfinished.dump_is_open
    for begin, stop, goes_on in setup.dump_borders(log, 0, end, is_open):
        is_open = goes_on
        for name, value in setup.settings(log, begin, stop).items():
            if name in settings or len(settings) < MOST_NAMES:
                settings |= masked_tree({name: value})
    parameters, shards = dict(facts.parameters), dict(facts.unfinished.shards)
    for rank in setup.parameters(log, 0, end):
        ranks, shard = (rank.tensor, rank.pipeline), (rank.tensor, rank.pipeline, rank.shard or 0)
        if rank.shard is None:
            others = 0
        elif shard in shards or len(shards) < MOST_NAMES:
            others = parameters.get(ranks, 0) - shards.get(shard, 0)
            shards[shard] = rank.count
        if ranks in parameters or len(parameters) < MOST_NAMES:
            parameters[ranks] = others + rank.count
    return replace(
        facts,
        world=facts.world or setup.world_line(log, 0, end),
        settings=settings,
        parameters=parameters,
        padded_vocab=_or(setup.padded_vocabulary(log, 0, end), facts.padded_vocab),
        software=_or(setup.software(log, 0, end), facts.software),
        execution=_or(setup.execution(log, 0, end), facts.execution),
        code_commit=_or(setup.code_commit(log, 0, end), facts.code_commit),
        theoretical_memory_bytes=_or(memory.theoretical_memory(log, 0, end), facts.theoretical_memory_bytes),
        alpa=_or(alpa.printed_row(log, 0, end), facts.alpa),
        unfinished=replace(facts.unfinished, dump_is_open=is_open, shards=shards),
    )


def _with_first_memory(facts: LogFacts, log: bytes, end: int) -> LogFacts:
    """The memory of all GPUs, which Megatron-Kwai says after its first two iterations."""
    of_all = memory.memory_of_all(log, 0, end)
    if of_all == Memory():
        return facts
    known = facts if facts.memory_is_of_all else LogFacts()
    return replace(
        facts,
        memory_is_of_all=True,
        max_allocated_bytes=_or(of_all.max_allocated, known.max_allocated_bytes),
        max_reserved_bytes=_or(of_all.max_reserved, known.max_reserved_bytes),
        device_used_bytes=_or(of_all.used, known.device_used_bytes),
    )


def _with_memory(facts: LogFacts, memory: Memory) -> LogFacts:
    """What single ranks say of their memory, where nobody has compared all of them."""
    if facts.memory_is_of_all or memory == Memory():
        return facts
    return replace(
        facts,
        max_allocated_bytes=_larger(memory.max_allocated, facts.max_allocated_bytes),
        max_reserved_bytes=_larger(memory.max_reserved, facts.max_reserved_bytes),
        device_used_bytes=_larger(memory.used, facts.device_used_bytes),
    )


def _with_end(facts: LogFacts, log: bytes, end: int, words: int) -> LogFacts:
    """What has less than `LATE` iteration lines after it; `words` are there in this piece."""
    late = 0
    if words >= LATE:
        late = end
        for _ in range(LATE):
            late = log.rfind(ITERATION_WORD, 0, late)

    def since(at: int | None, before: int | None) -> int | None:
        """Iteration lines since it was said last; None once they are too many."""
        if at is None and before is None:
            return None
        lines = (before or 0) + words if at is None else log.count(ITERATION_WORD, at, end)
        return lines if lines < LATE else None

    unfinished = facts.unfinished
    done = since(setup.last_done(log, late, end), unfinished.done_since)
    validation = setup.last_validation(log, late, end)
    validated = since(None if validation is None else validation[0], unfinished.validated_since)
    loss = facts.validation_loss if validation is None else validation[1]
    block = timers.last_block(log, late, end)
    timed = since(block, unfinished.timed_since)
    last = Timers(facts.timers_ms, unfinished.timer_bytes, unfinished.timer_name)
    if timed is None:
        last = Timers()
    elif block is not None:
        last = timers.begin_block(log, block, end)
    elif last.bytes_left:
        last = timers.read_block(log, 0, end, last)
    return replace(
        facts,
        says_done=done is not None,
        validation_loss=loss if validated is not None else None,
        timers_ms=last.ms,
        unfinished=replace(
            unfinished,
            done_since=done,
            validated_since=validated,
            timed_since=timed,
            timer_bytes=last.bytes_left,
            timer_name=last.name,
        ),
    )


_T = TypeVar("_T")


def _or(found: _T | None, known: _T | None) -> _T | None:
    return known if found is None else found


def _larger(found: int | None, known: int | None) -> int | None:
    return found if known is None or (found is not None and found > known) else known
