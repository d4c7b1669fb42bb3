"""Waiting for conditions. No test depends on the speed of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 600.0
"""Ends a broken test."""


def wait_until(condition: Callable[[], object], *, what: str = "the condition", every_s: float = 0.02) -> None:
    """Return once the condition holds; `what` names it. Raise TimeoutError after LIMIT_S seconds."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {LIMIT_S:.0f} s")
        time.sleep(every_s)
