"""Lines of Megatron-LM that are no errors, and show why a job failed: where it started, what ran, and NaN."""

from __future__ import annotations

import re

from orchestrator.reading.cause_kinds import NOT_A_NUMBER, WHAT_RAN
from orchestrator.reading.causes import ProgramLines

WORLD = b"using world size: "

MEGATRON_LINES = ProgramLines(
    kinds=(
        (
            NOT_A_NUMBER,
            re.compile(r"\biteration +[0-9].{0,900}(?:number of nan iterations: {1,3}[1-9]|: [-+]?(?:nan|inf) \|)"),
        ),
        (WHAT_RAN, re.compile(r"using world size: [0-9]")),
    ),
    tokens=(b" nan |", b"inf |", WORLD),
    rare=re.compile(rb"number of nan iterations: {1,3}[1-9]"),
    starts=WORLD,
    works=b"elapsed time per iteration",
)
"""Lines of the Megatron family. Lines of NaN iterations have no literal of their own."""
