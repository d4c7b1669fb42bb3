"""Budget of a search."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from orchestrator.errors import Problem, ReproError
from orchestrator.planning.batch_plan import read_budget


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit of a search: GPU-hours, or seconds of all jobs one after another. None is no limit."""

    gpu_hours: float | None = None
    job_s: float | None = None

    def allows(self, hours: float, job_s: float) -> bool:
        """Return whether jobs with these sums are inside the limit."""
        return hours <= (self.gpu_hours or math.inf) and job_s <= (self.job_s or math.inf)


def read_search_budget(text: str | None) -> Budget:
    """Parse `6gpu-hours`, or the time of all jobs as `30m` or `0:30:00`; ReproError for any other text."""
    if text is None:
        return Budget()
    if match := re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?gpu-hours?", text):
        hours = float(match[1])
        if hours > 0:
            return Budget(gpu_hours=hours)
    try:
        return Budget(job_s=read_budget(text))
    except ReproError:
        hint = "for example 6gpu-hours, or the time of all jobs: 30m, 1h or 0:30:00"
        raise ReproError(Problem(f"--budget {text}: not a budget", hint=hint)) from None
