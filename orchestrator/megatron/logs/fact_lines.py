"""Parser of the lines of Megatron-LM and its relatives that are not iteration lines.

Sizes and arguments before the first iteration, memory, timers, validation and the end. Sources: megatron/utils.py,
training.py and timers.py at 6985e58938 (2021), 77efcccb93 (2022-08-10) and up to core_v0.20; Megatron-Kwai's lines of
memory after its first two iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.megatron.logs.scan import NUMBER, last_match, line_end, matches, occurrences

# ---- world size, arguments, parameters -----------------------------------------------------------------------

DUMP_BEGINS = b"------------------------ arguments ------------------------"
DUMP_ENDS = b"-------------------- end of arguments ---------------------"

_SIZE = rb"([0-9]{1,9})"
# Some versions print no comma, or no blank, before the tensor-parallel size; some print the encoder's size after it.
_WORLD = re.compile(
    rb"using world size: " + _SIZE + rb", data-parallel[- ]size: " + _SIZE + rb"[^\r\n]{0,300}?"
    rb"tensor-model-parallel size: " + _SIZE + rb"(?:, encoder-tensor-model-parallel size: [0-9]{1,9})?"
    rb", pipeline-model-parallel size: " + _SIZE
)
_CONTEXT = re.compile(rb", context-parallel size: " + _SIZE)
_CONTEXT_BYTES = 40
"""Bytes after the match in which the context-parallel size is searched: Megatron-Kwai prints it at the end."""
_SETTING = re.compile(rb"  ([A-Za-z_][A-Za-z0-9_]{0,46}) (\.{1,47}) ([^\r\n]{0,1000})")
_SETTING_WIDTH = 48
"""Characters of a setting's name and dots together."""
_PARAMETERS = re.compile(
    rb"number of parameters on \(tensor, (?:(gtp(?:_weight)?_remat), )?pipeline\) model parallel rank "
    rb"\(([0-9]{1,9}), (?:([0-9]{1,9}), )?([0-9]{1,9})\): ([0-9]{1,18})(?![0-9])"
)
_VOCABULARY = re.compile(
    rb"padded vocab \(size: [0-9]{1,18}\) with [0-9]{1,18} dummy tokens \(new size: ([0-9]{1,18})\)"
)
_SOFTWARE = re.compile(rb" > software: (torch [^\r\n]{1,300})")
_PROGRAM = re.compile(rb" > program: (pretrain-[0-9a-f]{12}) in ([^\r\n]{1,1000})")
_EXECUTION = re.compile(rb" > execution: (graph|eager)(?=[ \t\r\n]|$)")
_COMMIT = re.compile(rb"git_hash=([0-9a-f]{7,40})(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class WorldLine:
    """Sizes that the program printed when it started.

    `context_parallel` is None if the line has no such size. Megatron-Kwai counts it into `data_parallel`.
    """

    world_size: int
    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int | None = None


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Number of parameters of a rank. `shard` is its index among the ranks that have shards of the same tensors."""

    tensor: int
    pipeline: int
    shard: int | None
    count: int


def world_line(log: bytes, start: int, end: int) -> WorldLine | None:
    """Return the first world line. Restarted programs and other ranks print the same line again."""
    match = next(matches(log, b"using world size: ", _WORLD, start, end), None)
    if match is None:
        return None
    context = _CONTEXT.search(log, match.start(), min(match.endpos, match.end() + _CONTEXT_BYTES))
    world, data, tensor, pipeline = map(int, match.groups())
    return WorldLine(world, data, tensor, pipeline, int(context[1]) if context else None)


def dump_borders(log: bytes, start: int, end: int, is_open: bool) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each dump of arguments, and whether it continues after `end`.

    `is_open`: a dump began before `start`.
    """
    while start < end:
        if not is_open:
            start = log.find(DUMP_BEGINS, start, end)
            if start < 0:
                return
            start += len(DUMP_BEGINS)
        stop = log.find(DUMP_ENDS, start, end)
        is_open = stop < 0
        yield start, end if is_open else stop, is_open
        start = end if is_open else stop + len(DUMP_ENDS)


def settings(log: bytes, start: int, end: int) -> dict[str, str]:
    """Return the arguments in a part of a dump, by name, with values as printed."""
    return {
        match[1].decode(): match[3].decode("utf-8", errors="replace").rstrip()
        for match in _SETTING.finditer(log, start, end)
        if len(match[1]) + len(match[2]) == _SETTING_WIDTH
    }


def rank_parameters(log: bytes, start: int, end: int) -> Iterator[RankParameters]:
    """Yield the parameters of each rank with data-parallel rank 0.

    Since core_v0.19 the line may name a third rank, among the ranks that have shards of the same weights.
    """
    for match in matches(log, b"number of parameters on (tensor, ", _PARAMETERS, start, end):
        if (match[1] is None) == (match[3] is None):
            shard = None if match[3] is None else int(match[3])
            yield RankParameters(int(match[2]), int(match[4]), shard, int(match[5]))


def padded_vocabulary(log: bytes, start: int, end: int) -> int | None:
    """Return the number of rows of the embedding."""
    rows = _last_text(_VOCABULARY, b"padded vocab (size: ", log, start, end)
    return None if rows is None else int(rows)


def software(log: bytes, start: int, end: int) -> str | None:
    """Return the software versions that `orchestrator.pretrain` prints."""
    return _last_text(_SOFTWARE, b" > software: torch ", log, start, end)


def programs(log: bytes, start: int, end: int) -> Iterator[tuple[str, str]]:
    """Yield the version of `orchestrator.pretrain` on each node, and the folder that it was imported from."""
    for match in matches(log, b" > program: pretrain-", _PROGRAM, start, end):
        yield match[1].decode(), match[2].decode("utf-8", errors="replace").rstrip()


def execution(log: bytes, start: int, end: int) -> str | None:
    """Return the execution mode that `orchestrator.pretrain` prints: `graph` or `eager`."""
    return _last_text(_EXECUTION, b" > execution: ", log, start, end)


def code_commit(log: bytes, start: int, end: int) -> str | None:
    """Return the commit of the code. Relatives of Megatron-LM from Megatron-DeepSpeed print it."""
    return _last_text(_COMMIT, b"git_hash=", log, start, end)


def _last_text(pattern: re.Pattern[bytes], token: bytes, log: bytes, start: int, end: int) -> str | None:
    match = last_match(log, token, pattern, start, end)
    return None if match is None else match[1].decode("utf-8", errors="replace").rstrip()


# ---- validation and end --------------------------------------------------------------------------------------

# With --exit-interval a program prints only the second text. A program that a signal or its own time limit ended prints
# neither.
TRAINING_DONE = re.compile(rb"\[after training is done\]|\[exiting program at iteration [0-9]{1,9}\]")
_DONE_TOKENS = (b"[after training is done]", b"[exiting program at iteration ")
_VALIDATION_TOKEN = b" validation loss at "
_VALIDATION = re.compile(
    rb" validation loss at (?![^|\r\n]{0,200}test )[^|\r\n]{1,200}\| lm loss value: (" + NUMBER + rb") \|"
)


def last_done(log: bytes, start: int, end: int) -> int | None:
    """Return the position of the last text that means that training is done."""
    return _last_start(log, [(token, TRAINING_DONE) for token in _DONE_TOKENS], start, end)


def _last_start(log: bytes, texts: Iterable[tuple[bytes, re.Pattern[bytes]]], start: int, end: int) -> int | None:
    """Return the position of the last match of any of the patterns, each of which begins with its token."""
    last = [last_match(log, token, pattern, start, end) for token, pattern in texts]
    return max((match.start() for match in last if match is not None), default=None)


def last_validation(log: bytes, start: int, end: int) -> tuple[int, float] | None:
    """Return the position and the value of the last validation loss."""
    match = last_match(log, _VALIDATION_TOKEN, _VALIDATION, start, end)
    return None if match is None else (match.start(), float(match[1]))


# ---- memory --------------------------------------------------------------------------------------------------

_MIB = 2**20
_LARGEST_MIB = 1e12
"""More memory than any machine has; a larger number is garbled."""

_REPORT = b"iterations) memory (MB) | allocate"
_FIELD = re.compile(rb"\| (max allocated|max reserved|total device memory used): (" + NUMBER + rb")(?![0-9.])")
_BYTES = re.compile(rb"(?:max_memory_allocated|max_memory_reserved|memory_info\.used) ([0-9]{1,18})(?![0-9.])")
_BYTES_TOKENS = (b"max_memory_allocated ", b"max_memory_reserved ", b"memory_info.used ")
_THEORY = re.compile(
    rb"Theoretical memory footprints: weight and optimizer=[^|\r\n]{1,100}? MB, total=(" + NUMBER + rb") MB"
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes of the GPU with the largest value; None if not printed. `used` includes other processes."""

    max_allocated: int | None = None
    max_reserved: int | None = None
    used: int | None = None


def reported_memory(log: bytes, start: int, end: int) -> Memory:
    """Return the largest values of the ranks' memory reports. Only ranks with data-parallel rank 0 print them.

    Megatron's MB are MiB.
    """
    largest: dict[bytes, int] = {}
    for at in occurrences(log, _REPORT, start, end):
        for match in _FIELD.finditer(log, at, line_end(log, at, end)):
            mib = float(match[2])
            if 0 <= mib <= _LARGEST_MIB:
                largest[match[1]] = max(largest.get(match[1], 0), round(mib * _MIB))
    return Memory(*(largest.get(name) for name in (b"max allocated", b"max reserved", b"total device memory used")))


def memory_of_all(log: bytes, start: int, end: int) -> Memory:
    """Return Megatron-Kwai's maximum over all ranks. It prints two sets of values; the last set counts."""
    last = (last_match(log, token, _BYTES, start, end) for token in _BYTES_TOKENS)
    return Memory(*(None if match is None else int(match[1]) for match in last))


def theoretical_memory(log: bytes, start: int, end: int) -> int | None:
    """Return Megatron's own estimate of the bytes that one GPU needs. It is not a measurement."""
    match = last_match(log, b"Theoretical memory footprints: ", _THEORY, start, end)
    mib = float(match[1]) if match is not None else -1.0
    return round(mib * _MIB) if 0 <= mib <= _LARGEST_MIB else None


# ---- timers: one line until 2022, then a block of lines in one of three shapes -------------------------------

TIMER_BLOCK_BYTES = 8192
"""Largest size of a block, with lines of other ranks in between: a hundred lines."""

_TIME = rb"([0-9]{1,15}(?:\.[0-9]{0,6})?)"
_NAME = rb"([a-z][A-Za-z0-9_/-]{0,80})"
_TIMER_LINE = re.compile(rb"time \(ms\)((?: \| [A-Za-z0-9_/-]{1,80}: [0-9]{1,15}(?:\.[0-9]{0,6})?)+)")
# `    NAME ....: (MIN, MAX)`, `    NAME ....: MAX`, `  NAME:` followed by lines `     rank  N: TIME`.
_TIMER = re.compile(
    rb"  (?:" + _NAME + rb" \.{0,48}: \(?" + _TIME + rb"(?:, " + _TIME + rb"\))?"
    rb"|" + _NAME + rb":(?=[\r\n])|   rank {1,6}[0-9]{1,6}: " + _TIME + rb")"
)
# A block begins at its timer of the forward pass: set-up and saving have blocks of their own.
_BLOCK_BEGINNINGS = (
    (b"time (ms) | forward-", _TIMER_LINE),
    (b"  forward-backward ", _TIMER),
    (b"  forward-backward:", re.compile(rb"  forward-backward:(?=[\r\n]|$)")),
)


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers of an iteration: milliseconds by name, the minimum and the maximum over the ranks.

    If a version prints only one of them, both are the same. While a block is read, `bytes_left` is the size that it may
    still have, and `name` the timer of the next `rank` lines.
    """

    ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    bytes_left: int = 0
    name: str = ""


def last_timer_block(log: bytes, start: int, end: int) -> int | None:
    """Return the position of the last block of timers."""
    return _last_start(log, _BLOCK_BEGINNINGS, start, end)


def begin_timer_block(log: bytes, start: int, end: int) -> Timers:
    """Read the block that begins at `start`."""
    line = _TIMER_LINE.match(log, start, line_end(log, start, end))
    if line is None:
        return continue_timer_block(log, start, end, Timers(bytes_left=TIMER_BLOCK_BYTES))
    pieces = (piece.split(b": ") for piece in line[1].split(b" | ")[1:])
    return Timers({name.decode(): (float(ms), float(ms)) for name, ms in pieces})


def continue_timer_block(log: bytes, start: int, end: int, timers: Timers) -> Timers:
    """Read more of a block. Lines of other kinds are ignored."""
    end = min(end, start + timers.bytes_left)
    ms, current = dict(timers.ms), timers.name
    for match in _TIMER.finditer(log, start, end):
        name, first, second, heading, of_rank = match.groups()
        if name:
            ms[name.decode()] = float(first), float(second or first)
        elif heading:
            current = heading.decode()
        elif current:
            values = *ms.get(current, ()), float(of_rank)
            ms[current] = min(values), max(values)
    return Timers(ms, timers.bytes_left - (end - start), current)
