"""Caches for all unit tests, and a site with results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tests.process_caches  # noqa: F401  the import has an effect
from tests.stand_in_site import Site


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site on which figure 13 has come out; tests that share it run nothing there."""
    site = Site.create(tmp_path_factory.mktemp("finished") / "a home")
    done = site.submit("--wait")
    assert done.returncode == 0, done.stderr
    yield site
