"""Tests that cannot run on this machine, because software is missing."""

from __future__ import annotations

import importlib
import os
from typing import Any, NoReturn

import pytest


def give_up(reason: str) -> NoReturn:
    """Skip the test. In CI, where everything must be available, fail it."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def installed(module: str) -> Any:
    """Return a module of a package; skip the test if the package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        give_up(f"{module.partition('.')[0]} is not installed")
