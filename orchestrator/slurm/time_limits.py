"""Parser and printer of Slurm's time limits, `[D-]HH:MM:SS`."""

from __future__ import annotations

import re

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
