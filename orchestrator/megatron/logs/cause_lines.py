"""Lines of Megatron-LM that are no errors, and show why a job failed: where it started, what ran, and NaN."""

from __future__ import annotations

import re

NOT_A_NUMBER, WHAT_RAN = "not a number", "what ran"

KINDS = (
    (
        NOT_A_NUMBER,
        re.compile(r"\biteration +[0-9].{0,900}(?:number of nan iterations: {1,3}[1-9]|: [-+]?(?:nan|inf) \|)"),
    ),
    (WHAT_RAN, re.compile(r"using world size: [0-9]")),
)
"""Kinds of lines that explain why a job that ended well is not verified."""

WORLD = b"using world size: "
"""Text of the line that a start of the program prints."""

TRAINED = b"elapsed time per iteration"
"""Text of the lines after the start-up."""

TOKENS = (b" nan |", b"inf |", WORLD)
NAN_ITERATIONS = re.compile(rb"number of nan iterations: {1,3}[1-9]")
"""Lines of NaN iterations have no literal of their own."""
