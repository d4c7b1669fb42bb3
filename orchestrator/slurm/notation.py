"""Slurm's notation for job ids (`123_4`), node lists (`n[1-3,07]`) and time limits (`[D-]HH:MM:SS`). Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from orchestrator.errors import Problem, require_none

# Linux accepts arguments of up to 128 KiB. This limit allows about 12,000 ids in one call.
_LONGEST_LIST = 120_000

# MaxArraySize is at most 4,000,001 (slurm.conf(5)).
_MOST_TASKS = 4_000_001
_TASKS = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


_JOB_ID = re.compile(r"[0-9]+([_+][0-9]*)?")


def require_job_ids(job_ids: Iterable[str]) -> list[str]:
    """Return the ids without blanks, each once and in the given order; ReproError for texts that are not ids."""
    ids = list(dict.fromkeys(job_id.strip() for job_id in job_ids if job_id.strip()))
    wrong = (job_id for job_id in ids if not _JOB_ID.fullmatch(job_id))
    require_none(Problem(f"not a Slurm job id: {text}", hint="ids look like 123 or 123_4") for text in wrong)
    return ids


def base_id(job_id: str) -> str:
    """Return the id without array index or component: `123` for `123_4` and `123+1`."""
    return job_id.partition("_")[0].partition("+")[0]


def id_lists(job_ids: Iterable[str]) -> Iterator[str]:
    """Yield comma-separated ids, in few lists of limited length. Array tasks have the array's id."""
    line = ""
    for job_id in sorted({base_id(job_id) for job_id in job_ids}):
        if line and len(line) + len(job_id) >= _LONGEST_LIST:
            yield line
            line = ""
        line = f"{line},{job_id}" if line else job_id
    if line:
        yield line


def expand_array_id(job_id: str) -> tuple[str, ...]:
    """Return the tasks of `123_[0-4:2,7%2]`: 123_0, 123_2, 123_4, 123_7. Any other id is returned unchanged.

    A part that Slurm has cut off (`...`) is left out.
    """
    base, bracket, tasks = job_id.partition("_[")
    if not bracket:
        return (job_id,)
    ids: list[str] = []
    for part in tasks.rstrip("]").split("%")[0].split(","):
        if span := _TASKS.fullmatch(part.strip()):
            first, last, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
            ids.extend(f"{base}_{task}" for task in range(first, min(last, _MOST_TASKS) + 1, max(step, 1)))
    return tuple(ids)


MOST_NODES = 65_536
"""Nodes of a list; Slurm clusters have fewer."""

_ITEM = re.compile(r"(?:[A-Za-z0-9_.\-]|\[[0-9,\-]+\])+")
_PART = re.compile(r"\[([0-9,\-]+)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand_node_names(names: str | None) -> tuple[str, ...]:
    """Return every node name of a list, in its order; empty where the text is not a list of node names."""
    if not names or not re.fullmatch(rf"{_ITEM.pattern}(?:,{_ITEM.pattern})*", names):
        return ()
    expanded = (name for item in _ITEM.findall(names) for name in _expand(item))
    try:
        nodes = tuple(itertools.islice(expanded, MOST_NODES + 1))
    except ValueError:
        return ()
    return nodes if len(nodes) <= MOST_NODES else ()


def _expand(item: str) -> Iterator[str]:
    """Yield the names of one item, which may have several brackets; ValueError where a bracket has no range."""
    match = _PART.match(item)
    if match is None:
        yield ""
        return
    for begin in [match[2]] if match[2] else _numbers(match[1]):
        for end in _expand(item[match.end() :]):
            yield begin + end


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers of a bracket; the first number of a range sets the width."""
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"{piece}: not a range of node numbers")
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            yield f"{number:0{len(match[1])}d}"


_TIME_LIMIT = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{2})", re.ASCII)


def parse_time_limit(text: str) -> int | None:
    """Return `[D-][HH:]MM:SS` in seconds; None for other text, such as `UNLIMITED` or `Partition_Limit`."""
    match = _TIME_LIMIT.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def time_limit_s(limit: str) -> int:
    """Return a time limit in seconds; ValueError if it is not `[D-][HH:]MM:SS`."""
    seconds = parse_time_limit(limit)
    if seconds is None:
        raise ValueError(f"not a time limit: {limit}")
    return seconds


def format_time_limit(seconds: int) -> str:
    """Return seconds as `[D-]H:MM:SS`."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
