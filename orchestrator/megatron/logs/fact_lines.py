"""Parser of the lines of Megatron-LM and its relatives that are not iteration lines.

Sizes and arguments before the first iteration, memory and the end. Sources: megatron/utils.py and training.py at
6985e58938 (2021), 77efcccb93 (2022-08-10) and up to core_v0.20; Megatron-Kwai's lines of memory after its first two
iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# ---- search for the few relevant lines of a large log --------------------------------------------------------

NUMBER = rb"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][-+]?[0-9]{1,9})?|nan|inf)"
"""A number as Python prints it, of bounded length."""

WIDTH = 2000
"""Bytes of a line that are searched before and after a token."""


_WINDOW_BYTES = 1024 * 1024
_SAMPLE_BYTES = 16 * 1024
_BYTES_PER_BAR = 250
"""With more bars than one in this number of bytes it is faster to search for tokens."""


def occurrences(log: bytes, token: bytes, start: int, end: int) -> Iterator[int]:
    """Yield the positions of a token in a part of the log."""
    at = log.find(token, start, end)
    while at >= 0:
        yield at
        at = log.find(token, at + len(token), end)


def line_end(log: bytes, at: int, end: int) -> int:
    """Return the end of the line that contains `at`, at most `WIDTH` bytes after it."""
    end = min(end, at + WIDTH)
    newline = log.find(b"\n", at, end)
    return end if newline < 0 else newline


def matches(log: bytes, token: bytes, pattern: re.Pattern[bytes], start: int, end: int) -> Iterator[re.Match[bytes]]:
    """Yield each match of a pattern, which begins with the token, within a line of a part of the log."""
    for at in occurrences(log, token, start, end):
        match = pattern.match(log, at, line_end(log, at, end))
        if match is not None:
            yield match


def last_match(log: bytes, token: bytes, pattern: re.Pattern[bytes], start: int, end: int) -> re.Match[bytes] | None:
    """Return the last match of a pattern, which begins with the token, within a line of a part of the log."""
    at = log.find(token, start, end)  # a search backwards is slower, and usually there is no match
    at = log.rfind(token, at, end) if at >= 0 else -1
    while at >= 0:
        match = pattern.match(log, at, line_end(log, at, end))
        if match is not None:
            return match
        at = log.rfind(token, start, at)
    return None


def candidate_lines(log: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield windows of a part of a log as (text, start, end). The part begins at the beginning of a line.

    If few lines of a window contain a bar, the window has only those lines: all lines that Megatron-LM repeats contain
    bars, and the search for a single character is the fastest.
    """
    while start < end:
        stop = log.find(b"\n", min(end, start + _WINDOW_BYTES), end) + 1 or end
        few = _barred_lines(log, start, stop)
        yield (log, start, stop) if few is None else (few, 0, len(few))
        start = stop


def _barred_lines(log: bytes, start: int, end: int) -> bytes | None:
    """Return the lines with a bar; None if there are many."""
    if log.count(b"|", start, min(end, start + _SAMPLE_BYTES)) > _SAMPLE_BYTES // _BYTES_PER_BAR:
        return None
    lines: list[bytes] = []
    most = (end - start) // _BYTES_PER_BAR
    at = log.find(b"|", start, end)
    while at >= 0:
        if len(lines) > most:
            return None
        stop = log.find(b"\n", at, end) + 1 or end
        lines.append(log[log.rfind(b"\n", start, at) + 1 or start : stop])
        at = log.find(b"|", stop, end)
    return b"".join(lines)


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


# ---- end -----------------------------------------------------------------------------------------------------

# With --exit-interval a program prints only the second text. A program that a signal or its own time limit ended prints
# neither.
TRAINING_DONE = re.compile(rb"\[after training is done\]|\[exiting program at iteration [0-9]{1,9}\]")
_DONE_TOKENS = (b"[after training is done]", b"[exiting program at iteration ")


def last_done(log: bytes, start: int, end: int) -> int | None:
    """Return the position of the last text that means that training is done."""
    last = [last_match(log, token, TRAINING_DONE, start, end) for token in _DONE_TOKENS]
    return max((match.start() for match in last if match is not None), default=None)


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


MEMORY_SIZES = ("max_allocated_bytes", "max_reserved_bytes", "device_used_bytes")
"""Sizes of a GPU's memory in bytes. The last one includes other processes."""
_REPORTED_SIZES = dict(zip((b"max allocated", b"max reserved", b"total device memory used"), MEMORY_SIZES, strict=True))
_SIZES_OF_ALL = dict(zip(_BYTES_TOKENS, MEMORY_SIZES, strict=True))


def reported_memory(log: bytes, start: int, end: int) -> dict[str, int]:
    """Return the largest sizes in the ranks' memory reports. Only ranks with data-parallel rank 0 print them.

    Megatron's MB are MiB.
    """
    largest: dict[str, int] = {}
    for at in occurrences(log, _REPORT, start, end):
        for match in _FIELD.finditer(log, at, line_end(log, at, end)):
            mib = float(match[2])
            if 0 <= mib <= _LARGEST_MIB:
                name = _REPORTED_SIZES[match[1]]
                largest[name] = max(largest.get(name, 0), round(mib * _MIB))
    return largest


def memory_of_all(log: bytes, start: int, end: int) -> dict[str, int]:
    """Return Megatron-Kwai's maxima over all ranks. It prints two sets of values; the last set counts."""
    found = {name: last_match(log, token, _BYTES, start, end) for token, name in _SIZES_OF_ALL.items()}
    return {name: int(match[1]) for name, match in found.items() if match is not None}


def theoretical_memory(log: bytes, start: int, end: int) -> int | None:
    """Return Megatron's own estimate of the bytes that one GPU needs. It is not a measurement."""
    match = last_match(log, b"Theoretical memory footprints: ", _THEORY, start, end)
    mib = float(match[1]) if match is not None else -1.0
    return round(mib * _MIB) if 0 <= mib <= _LARGEST_MIB else None
