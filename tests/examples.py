"""Profiles of hypothesis: `quick`, the default, and `full`, which `make test` uses. Neither has a deadline."""

from __future__ import annotations

from hypothesis import settings

_FULL = 100
_QUICK = 20


def register_profiles() -> None:
    """Register both profiles and load `quick`. The option --hypothesis-profile replaces it later."""
    settings.register_profile("full", max_examples=_FULL, deadline=None)
    settings.register_profile("quick", max_examples=_QUICK, deadline=None)
    settings.load_profile("quick")


def examples(full: int) -> int:
    """Return the number of examples in the loaded profile for a test that has `full` examples in profile `full`."""
    return max(1, full * settings().max_examples // _FULL)
