"""Cause of a failure in a log of the Megatron family."""

from __future__ import annotations

from orchestrator.megatron.logs.reader import MEGATRON_LINES
from orchestrator.reading.causes import Cause, cause


def megatron_cause(log: bytes) -> Cause | None:
    """Return the line of a whole log that states why a job failed."""
    return cause(log, MEGATRON_LINES)
