from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site.create(tmp_path / "a'home")
    yield site
    site.end_sleepers()


@pytest.fixture
def repro(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    monkeypatch.setattr("orchestrator.launch.supervise.LOCAL_WAIT_S", 0.05)
    return Caller(site, monkeypatch, capsys)


@pytest.fixture
def looking(finished: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    """`repro` where figure 13 has come out."""
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    return Caller(finished, monkeypatch, capsys)
