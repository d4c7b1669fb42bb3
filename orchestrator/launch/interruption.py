"""Ctrl-C and TERM wait until what was begun is recorded, then take effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[Callable[[], bool]]:
    """Inside the block a signal only makes the given function say True; behind it the signal is raised."""
    pending: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def later(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    before = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(pending)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
