"""`pytest tests/unit/render --update-golden` writes golden/*.sh anew; read the difference before committing it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/unit/render/golden anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    # The option is known only where this folder was named on the command line.
    return bool(request.config.getoption("--update-golden", default=False))
