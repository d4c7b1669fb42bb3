"""Options and markers of all tests, set by folder and by fixture. pyproject.toml lists what a test with each marker needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.examples import register_profiles

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/unit/render/golden from rendered files")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in _needs(item):
            item.add_marker(marker)


def _needs(item: pytest.Item) -> Iterator[str]:
    """Yield the marker of each thing that the test needs."""
    parameters = getattr(item, "callspec", None)
    if "postgresql" in getattr(item, "fixturenames", ()) or (parameters and "postgresql" in parameters.params.values()):
        yield "postgresql"
