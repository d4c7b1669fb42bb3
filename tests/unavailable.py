"""Tests that cannot run on this machine."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def give_up(reason: str) -> NoReturn:
    """Skip the test. In CI, where everything must be available, fail it."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
