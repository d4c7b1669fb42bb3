"""The line of a whole log that states why a job failed."""

from __future__ import annotations

from orchestrator.megatron.logs.root_cause import Cause, CauseFinder


def cause(log: bytes) -> Cause | None:
    """Return the line of a whole log that states why a job failed; None if the log has no error."""
    finder = CauseFinder()
    finder.feed(log)
    best = finder.cause()
    return best if best and best.is_fault else None
