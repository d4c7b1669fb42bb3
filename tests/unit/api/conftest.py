from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorded_jobs import SimulatedSlurm
from tests.stand_in_site import Site
from tests.unit.api.project import Project
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    site = Site.create(tmp_path / "a'home")
    yield Project.at(site, monkeypatch)
    site.end_sleepers()


@pytest.fixture
def simulated(project: Project, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    """Slurm jobs of the project whose states the test writes."""
    monkeypatch.setattr("orchestrator.launch.supervise.SLURM_WAIT_S", 0.0)
    for name in ("READ_EVERY_S", "SLURM_REFRESH_S"):
        monkeypatch.setattr(f"orchestrator.api.jobs.{name}", 0.0)
    return SimulatedSlurm.install(project.folder, monkeypatch)


@pytest.fixture
def slurm(project: Project, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Stand-ins for Slurm's programs. `there` is their cluster."""
    (project.folder / "clusters" / "there.yaml").write_text(PROFILE)
    return Slurm.on_path(project.folder.parent / "bin", monkeypatch)
