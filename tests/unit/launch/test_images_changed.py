"""Jobs whose image is a file: the file is part of their identity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters import program
from orchestrator.launch.submit import Submitted, submit
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.tables import ENDED, FAILED, VERIFIED, Attempt
from orchestrator.megatron.axes import MEGATRON
from orchestrator.planning.plan import Plan, plan_cases
from orchestrator.reading.failure import Failure
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

pytestmark = pytest.mark.slow

CONTAINER = "container: {{runtime: pyxis, images: {{pretrain: {image}}}}}\nsite: {{login_sees_paths: {sees}}}\n"


class ImageSite:
    """A Slurm cluster whose image is a file."""

    def __init__(self, site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self.image, self.notes = site, folder / "torch.sqsh", list[str]()
        self.ledger = new_ledger(site.folder)
        self.use(self.image)
        Slurm.on_path(folder / "bin", monkeypatch)
        self.replace_image("first")

    def use(self, image: Path, sees: str = "true") -> None:
        text = PROFILE + CONTAINER.format(image=image, sees=sees)
        (self.site.folder / "clusters" / "there.yaml").write_text(text)

    def replace_image(self, content: str) -> None:
        self.image.write_text(content)
        os.utime(self.image, (len(content), len(content)))

    def plans(self, where: str | None = "gbs=4") -> list[Plan]:
        folders = self.site.folders
        entry = find_experiment(folders, "figure-13")
        cases = select(expand(entry, "cpu"), parse_where(where, MEGATRON.axes))
        return plan_cases(entry, cases, self.site.cluster("there"), folders)

    def submit(self) -> Submitted:
        self.notes.clear()
        cluster = self.site.cluster("there")
        return submit(self.plans(), cluster, self.ledger, self.site.folders, [], notify=self.notes.append)

    def end(self, verdict: str, failure: Failure | None = None) -> None:
        """End all attempts with this verdict."""
        values = {"state": "COMPLETED", "phase": ENDED, "verdict": verdict, "failure": failure and str(failure)}
        with self.ledger.writing() as session:
            session.execute(sa.update(Attempt).values(values))


@pytest.fixture
def images(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageSite:
    return ImageSite(site, tmp_path, monkeypatch)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The file of an image is replaced after its jobs failed or were verified",
    promise="Its jobs are other jobs, and `repro submit` runs them. It names the attempt since which the file changed.",
)
@pytest.mark.parametrize(
    ("verdict", "failure"), [(FAILED, Failure.CONFIGURATION), (FAILED, Failure.IMAGE), (VERIFIED, None)]
)
def test_a_replaced_image_file_is_another_job_that_runs(
    verdict: str, failure: Failure | None, images: ImageSite
) -> None:
    first = images.submit()
    assert len(first.recorded.to_submit) == len(images.plans()) > 0 and images.notes == []
    images.end(verdict, failure)
    if failure is not Failure.IMAGE:  # which a scheduler may run again
        assert not images.submit().recorded.to_submit
    images.replace_image("repaired")
    second = images.submit()
    assert len(second.recorded.to_submit) == len(images.plans())
    assert not set(first.recorded.to_submit) & set(second.recorded.to_submit)
    label, number = images.plans()[-1].label, len(second.recorded.to_submit)
    changed = f"{images.image}: image file changed since attempt 1 of {label}"
    assert images.notes == [f"note: {changed}; earlier results of {number} jobs are those of the old image"]
    images.submit()
    assert images.notes == [], "the jobs have attempts with this image now"
    assert {row.image_digest for row in job_rows(images.ledger)} == {
        "file:5:19700101T000005Z",
        "file:8:19700101T000008Z",
    }


def test_an_image_that_this_machine_does_not_see_has_no_identity(images: ImageSite) -> None:
    seen = images.plans()
    images.use(images.image, sees="false")
    unknown = images.plans()
    images.replace_image("another")
    assert [plan.program.image_digest for plan in unknown] == [None] * len(seen)
    assert [plan.identity for plan in unknown] == [plan.identity for plan in images.plans()]
    images.use(images.image.with_name("missing") / "torch.sqsh")
    images.submit()
    images.use(images.image)
    images.submit()
    assert images.notes == [], "it is not known whether the file changed"


def test_one_command_opens_an_image_file_once(images: ImageSite, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def counted(file: Path) -> str:
        opened.append(file)
        return "file:1"

    monkeypatch.setattr(program, "file_identity", counted)
    cluster, folders = images.site.cluster("there"), images.site.folders
    entry = find_experiment(folders, "figure-13")
    for _ in range(2):
        assert len(plan_cases(entry, expand(entry, "cpu"), cluster, folders)) > 1
    assert opened == [images.image]
