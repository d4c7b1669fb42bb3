from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stand_in_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site.create(tmp_path / "a;home")
    yield site
    site.end_sleepers()
