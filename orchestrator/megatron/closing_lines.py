"""How a training says that it is done, and how well it then does on other data.

Sources: the format strings of megatron/training.py at 6985e58938 (2021) to core_v0.20.
"""

from __future__ import annotations

import re

from orchestrator.megatron.searching import NUMBER, last_match

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
