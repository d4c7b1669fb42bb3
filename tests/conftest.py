"""Command-line options of the tests. This folder is above all tests, so every call of pytest knows the options."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/unit/render/golden from rendered files")
