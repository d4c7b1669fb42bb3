"""Job ids as Slurm writes them: `123`, a task `123_4`, a part of a heterogeneous job `123+1`; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from orchestrator.errors import Problem, ReproError

# Linux takes no argument longer than 128 KiB; this is some 12,000 ids in one call.
_LONGEST_LIST = 120_000

# An array with more tasks than this is none: MaxArraySize is at most 4,000,001 (slurm.conf(5)).
_MOST_TASKS = 4_000_001
_TASKS = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


def is_job_id(text: str) -> bool:
    """Whether this is one job's id and nothing else that could stand on a command line."""
    base, _, task = text.replace("+", "_", 1).partition("_")
    return base.isascii() and base.isdecimal() and (not task or (task.isascii() and task.isdecimal()))


def require_job_ids(job_ids: Iterable[str]) -> list[str]:
    """The ids without blanks and doubles, in the order given; raises ReproError with every one that is none."""
    asked = list(dict.fromkeys(job_id.strip() for job_id in job_ids if job_id.strip()))
    if wrong := [job_id for job_id in asked if not is_job_id(job_id)]:
        raise ReproError(*(Problem(f"not a Slurm job id: {text}", hint="ids look like 123 or 123_4") for text in wrong))
    return asked


def base_id(job_id: str) -> str:
    """The id of the whole: `123` of `123_4` and of `123+1`."""
    return job_id.partition("_")[0].partition("+")[0]


def id_lists(job_ids: Iterable[str]) -> Iterator[str]:
    """Comma-separated ids, as few lists as an argument's length allows; an array's tasks are asked for by its base."""
    line = ""
    for job_id in sorted({base_id(job_id) for job_id in job_ids}):
        if line and len(line) + len(job_id) >= _LONGEST_LIST:
            yield line
            line = ""
        line = f"{line},{job_id}" if line else job_id
    if line:
        yield line


def expand_array_id(job_id: str) -> tuple[str, ...]:
    """`123_[0-4:2,7%2]` -> 123_0, 123_2, 123_4, 123_7; any other id as it is. A part cut off (`...`) is left out."""
    base, bracket, tasks = job_id.partition("_[")
    if not bracket:
        return (job_id,)
    found: list[str] = []
    for part in tasks.rstrip("]").split("%")[0].split(","):
        if span := _TASKS.fullmatch(part.strip()):
            first, last, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
            found.extend(f"{base}_{task}" for task in range(first, min(last, _MOST_TASKS) + 1, max(step, 1)))
    return tuple(found)
