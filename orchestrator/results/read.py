"""A job's log -> what it says about itself. Reading is pure; the file may still be growing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.job_files import read_job_file
from orchestrator.megatron.log_lines import TRAINING_DONE, IterationLine, WorldLine, cause, iteration_lines, world_line

OUT_OF_MEMORY = "out of memory on the GPU"
"""What the reason of a job that ran out of device memory starts with."""

# torch says it in three ways, by its age and by who asked for the memory, and NCCL in its own. The host's memory
# (`oom_kill`, `Out Of Memory`) is another matter.
_NO_MEMORY = re.compile(rb"OutOfMemoryError|CUDA (?:error: )?out of memory|Cuda failure [^\r\n]{0,9}out of memory")
_ALLOCATING = re.compile(rb"Tried to allocate ([0-9.]{1,9} [KMGT]?i?B)", re.IGNORECASE)
# What torch and `srun -l` put before a line of rank N.
_RANK = re.compile(rb"\[rank([0-9]{1,9})\]|^(?:P[0-9]{1,9} )? *([0-9]{1,9}): ")


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a log holds; `cause` is the line that says best why a job failed, if it did.

    `out_of_memory` starts with `OUT_OF_MEMORY` where a GPU had none left, with the rank and what it asked for.
    """

    iterations: tuple[IterationLine, ...]
    world: WorldLine | None
    says_done: bool
    cause: str | None
    out_of_memory: str | None = None

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
        out_of_memory=_out_of_memory(log),
    )


def _out_of_memory(log: bytes) -> str | None:
    """The first such line in short; a rank that dies of it takes the others with it, whose lines say nothing."""
    found = _NO_MEMORY.search(log)
    if found is None:
        return None
    start = max(log.rfind(b"\n", 0, found.start()), log.rfind(b"\r", 0, found.start())) + 1
    rank, asked = _RANK.search(log[start : found.start()]), _ALLOCATING.search(log[found.start() : found.end() + 200])
    said = [f"rank {(rank[1] or rank[2]).decode()}"] if rank else []
    said += [f"tried to allocate {asked[1].decode()}"] if asked else []
    return f"{OUT_OF_MEMORY} ({', '.join(said)})" if said else OUT_OF_MEMORY


def log_bytes(folder: Path) -> bytes:
    """The job's log, then what its script printed beside it; empty while there is neither.

    Unreadable where one may not be read, which says nothing of the job; ReproError where it is no file.
    """
    parts = (read_job_file(folder, name) for name in ("log.txt", "batch.txt"))
    return b"\n".join(part for part in parts if part is not None)
