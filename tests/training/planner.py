"""Processes of the exact planner that all tests of a pytest process share. A start takes seconds."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.megatron import exact


class _SharedChild(exact._Child):
    """Process that stays when a plan is complete."""

    def stop(self) -> None:
        """Leave the process running."""

    def end(self) -> None:
        """End the process."""
        super().stop()


_CHILDREN: list[_SharedChild] = []


@contextmanager
def shared_processes() -> Iterator[None]:
    """Let `exact_memory` plan in the shared processes. It starts at most two at a time."""
    unused = list(_CHILDREN)

    def take() -> _SharedChild:
        if unused:
            return unused.pop(0)
        child = _SharedChild()
        atexit.register(child.end)
        _CHILDREN.append(child)
        return child

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_Child", take)
        yield
