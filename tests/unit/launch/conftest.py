from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.launch.stand_in import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site.make(tmp_path / "a home")
    yield site
    site.clean_up()
