"""Parser of the lines before the first iteration (sizes, layout, parameters) and after the last one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.megatron.logs.scan import NUMBER, last_match, line_end, occurrences

DUMP_BEGINS = b"------------------------ arguments ------------------------"
DUMP_ENDS = b"-------------------- end of arguments ---------------------"

_WORLD_BEGINS = b"using world size: "
_SIZE = rb"([0-9]{1,9})"
# Some versions have no comma, and even no blank, before the tensor-parallel size; some put the encoder's behind it.
_WORLD = re.compile(
    rb"using world size: " + _SIZE + rb", data-parallel[- ]size: " + _SIZE + rb"[^\r\n]{0,300}?"
    rb"tensor-model-parallel size: " + _SIZE + rb"(?:, encoder-tensor-model-parallel size: [0-9]{1,9})?"
    rb", pipeline-model-parallel size: " + _SIZE
)
_CONTEXT = re.compile(rb", context-parallel size: " + _SIZE)
_BEHIND_BYTES = 40
"""Megatron-Kwai says it at the end."""
# The name and its dots are 48 characters together.
_SETTING = re.compile(rb"  ([A-Za-z_][A-Za-z0-9_]{0,46}) (\.{1,47}) ([^\r\n]{0,1000})")
_SETTING_WIDTH = 48
_PARAMETERS = re.compile(
    rb"number of parameters on \(tensor, (?:(gtp(?:_weight)?_remat), )?pipeline\) model parallel rank "
    rb"\(([0-9]{1,9}), (?:([0-9]{1,9}), )?([0-9]{1,9})\): ([0-9]{1,18})(?![0-9])"
)
_VOCABULARY = re.compile(
    rb"padded vocab \(size: [0-9]{1,18}\) with [0-9]{1,18} dummy tokens \(new size: ([0-9]{1,18})\)"
)
_SOFTWARE = re.compile(rb" > software: (torch [^\r\n]{1,300})")
_EXECUTION = re.compile(rb" > execution: (graph|eager)(?=[ \t\r\n]|$)")
_COMMIT = re.compile(rb"git_hash=([0-9a-f]{7,40})(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class WorldLine:
    """What the job says it really ran as; to be held against the plan.

    `context_parallel` is None where the program knows no such thing. Megatron-Kwai counts it into `data_parallel`.
    """

    world_size: int
    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int | None = None


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters that a rank holds; `shard` is its number among those that hold parts of the same tensors."""

    tensor: int
    pipeline: int
    shard: int | None
    count: int


def world_line(log: bytes, start: int, end: int) -> WorldLine | None:
    """The first: where a program is started again, or each rank by itself, the others say the same."""
    for at in occurrences(log, _WORLD_BEGINS, start, end):
        stop = line_end(log, at, end)
        match = _WORLD.match(log, at, stop)
        if match is not None:
            context = _CONTEXT.search(log, at, min(stop, match.end() + _BEHIND_BYTES))
            world, data, tensor, pipeline = map(int, match.groups())
            return WorldLine(world, data, tensor, pipeline, int(context[1]) if context else None)
    return None


def dump_borders(log: bytes, start: int, end: int, is_open: bool) -> Iterator[tuple[int, int, bool]]:
    """Where dumps of the arguments are, with whether the last one goes on; `is_open`: one has begun before."""
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
    """Of the dump of the arguments, or a part of it, as it prints them."""
    return {
        match[1].decode(): match[3].decode("utf-8", errors="replace").rstrip()
        for match in _SETTING.finditer(log, start, end)
        if len(match[1]) + len(match[2]) == _SETTING_WIDTH
    }


def parameters(log: bytes, start: int, end: int) -> Iterator[RankParameters]:
    """Of each rank that prints them: those with data-parallel rank 0. Since core_v0.19 with a third rank, among those
    that hold shards of the same weights.
    """
    for at in occurrences(log, b"number of parameters on (tensor, ", start, end):
        match = _PARAMETERS.match(log, at, line_end(log, at, end))
        if match is not None and (match[1] is None) == (match[3] is None):
            shard = None if match[3] is None else int(match[3])
            yield RankParameters(int(match[2]), int(match[4]), shard, int(match[5]))


def padded_vocabulary(log: bytes, start: int, end: int) -> int | None:
    """Rows of the embedding."""
    found = _last(_VOCABULARY, b"padded vocab (size: ", log, start, end)
    return None if found is None else int(found)


def software(log: bytes, start: int, end: int) -> str | None:
    """What `orchestrator.pretrain` says that it ran with."""
    return _last(_SOFTWARE, b" > software: torch ", log, start, end)


def execution(log: bytes, start: int, end: int) -> str | None:
    """Return the execution mode that `orchestrator.pretrain` prints: `graph` or `eager`."""
    return _last(_EXECUTION, b" > execution: ", log, start, end)


def code_commit(log: bytes, start: int, end: int) -> str | None:
    """The commit of the code, where it tells: relatives of Megatron-LM from Megatron-DeepSpeed do."""
    return _last(_COMMIT, b"git_hash=", log, start, end)


def _last(pattern: re.Pattern[bytes], word: bytes, log: bytes, start: int, end: int) -> str | None:
    match = last_match(log, word, pattern, start, end)
    return None if match is None else match[1].decode("utf-8", errors="replace").rstrip()


# With --exit-interval a program says the second alone. Told to end by a signal or a time of its own it is not done.
TRAINING_DONE = re.compile(rb"\[after training is done\]|\[exiting program at iteration [0-9]{1,9}\]")
_DONE_WORDS = (b"[after training is done]", b"[exiting program at iteration ")
_VALIDATION_WORD = b" validation loss at "
_VALIDATION = re.compile(
    rb" validation loss at (?![^|\r\n]{0,200}test )[^|\r\n]{1,200}\| lm loss value: (" + NUMBER + rb") \|"
)


def last_done(log: bytes, start: int, end: int) -> int | None:
    """Where it says last that training is done."""
    found = [last_match(log, word, TRAINING_DONE, start, end) for word in _DONE_WORDS]
    return max((match.start() for match in found if match is not None), default=None)


def last_validation(log: bytes, start: int, end: int) -> tuple[int, float] | None:
    """Where the last loss on other data stands, and the loss."""
    match = last_match(log, _VALIDATION_WORD, _VALIDATION, start, end)
    return None if match is None else (match.start(), float(match[1]))
