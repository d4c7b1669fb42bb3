"""The fields of Megatron-LM's iteration line, and the pattern for those that have them in the order printed.

Sources: the format strings of megatron/training.py at 6985e58938 (2021) to core_v0.20, of Megatron-Kwai and of
`orchestrator.pretrain`. Which fields a line has differs by version and by option; their order does not.
"""

from __future__ import annotations

import re

ITERATION_WORD = b"| elapsed time per iteration (ms)"
"""Stands once in every iteration line, and is quick to search for. Its bar is one of those that `telling` goes by."""

ITERATION, PLANNED, ELAPSED, LOSS, GRAD_NORM, SKIPPED, NAN, SCALE, TFLOPS, TOKENS, POWER, HOST_WAIT = range(12)
"""Columns of `IterationLines`."""

# Counts of at most 9 digits: they are kept in 32 bits.
_COUNT = rb"[0-9]{1,9}"
_VALUE = rb"[-+.0-9eEnaif]{1,40}"

HEAD = re.compile(rb"iteration {1,12}([0-9]{1,9})/ {0,12}([0-9]{1,9}) \|")
"""What a line begins with."""

# What follows, in the order printed: the field's name, whether every version has it, and which column of
# `IterationLines` it is; None for those that are passed over.
FIELDS: tuple[tuple[bytes, bool, int | None], ...] = (
    (b"consumed samples", True, None),
    (b"skipped samples", False, None),
    (b"elapsed time per iteration (ms)", True, ELAPSED),
    (b"host wait per iteration (ms)", False, HOST_WAIT),
    (b"throughput per GPU (TFLOP/s/GPU)", False, TFLOPS),
    (b"tokens per sec per gpu", False, TOKENS),
    (b"energy per GPU (J/iter/GPU)", False, None),
    (b"power per GPU (W/GPU)", False, POWER),
    (b"learning rate", False, None),
    (b"decoupled learning rate", False, None),
    (b"global batch size", False, None),
    (b"lm loss", False, LOSS),
    (b"loss scale", False, SCALE),
    (b"grad norm", False, GRAD_NORM),
    (b"num zeros", False, None),
    (b"params norm", False, None),
    (b"number of skipped iterations", True, SKIPPED),
    (b"number of nan iterations", True, NAN),
)
COUNTS = (ITERATION, PLANNED, SKIPPED, NAN)
GROUPS = (ITERATION, PLANNED, *(column for _, _, column in FIELDS if column is not None))
"""The columns in the order printed."""


def field_pattern(name: bytes, column: int | None) -> bytes:
    """Of one field with its bar; what is a column is a group."""
    value = _COUNT if column in COUNTS else _VALUE
    return b" " + re.escape(name) + b": {1,12}" + (b"(" + value + b")" if column is not None else value) + rb" \|"


def _in_order(name: bytes, always: bool, column: int | None) -> bytes:
    return field_pattern(name, column) if always else b"(?:" + field_pattern(name, column) + b")?"


OTHERS = rb"(?: (?!lm loss|loss scale|grad norm)[^|/\r\n]{1,200}\|){0,24}?"
"""What a mixture of experts says behind its loss: more losses, and free text. Not a column that is garbled, and not
another line's head, which has a /.
"""

_BEFORE_OTHERS = next(place for place, field in enumerate(FIELDS) if field[0] == b"lm loss") + 1

IN_ORDER = re.compile(
    HEAD.pattern
    + b"".join(_in_order(*field) for field in FIELDS[:_BEFORE_OTHERS])
    + OTHERS
    + b"".join(_in_order(*field) for field in FIELDS[_BEFORE_OTHERS:])
)
"""A whole iteration line; its groups are `GROUPS`, empty where a field is missing."""
