"""A job's log -> what it says about itself. Reading is pure; the file may still be growing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.megatron.log_lines import TRAINING_DONE, IterationLine, WorldLine, cause, iteration_lines, world_line


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a log holds; `cause` is the line that says best why a job failed, if it did."""

    iterations: tuple[IterationLine, ...]
    world: WorldLine | None
    says_done: bool
    cause: str | None

    @property
    def last_iteration(self) -> int | None:
        return self.iterations[-1].iteration if self.iterations else None


def read_log(log: bytes) -> LogReport:
    """Read a whole log. An iteration that is reported twice counts once, as reported last."""
    lines = {line.iteration: line for line in iteration_lines(log)}
    return LogReport(
        iterations=tuple(lines[number] for number in sorted(lines)),
        world=world_line(log),
        says_done=TRAINING_DONE.search(log) is not None,
        cause=cause(log),
    )


def log_bytes(folder: Path) -> bytes:
    """The job's log, then what its script printed beside it; empty while there is neither."""
    parts = []
    for name in ("log.txt", "batch.txt"):
        try:
            parts.append((folder / name).read_bytes())
        except OSError:
            continue
    return b"\n".join(parts)
