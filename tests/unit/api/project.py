"""Project folder of the tests of the API, with the messages that its functions report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator import api
from orchestrator.api import JobRow
from orchestrator.errors import ReproError
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site


@dataclass
class Messages:
    """Reporter that keeps the messages."""

    texts: list[str] = field(default_factory=list)

    def message(self, text: str) -> None:
        self.texts.append(text)

    def progress(self, jobs: Sequence[JobRow]) -> None:
        pass


@dataclass
class Project:
    """The working folder and home of the test. Its cluster `here` is the local machine with the stand-in."""

    site: Site
    messages: list[str] = field(default_factory=list)

    @staticmethod
    def at(site: Site, monkeypatch: pytest.MonkeyPatch) -> Project:
        monkeypatch.chdir(site.folder)
        monkeypatch.setenv("REPRO_HOME", str(site.folder))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(site.folder / ".config"))
        monkeypatch.delenv("REPRO_DATABASE", raising=False)
        monkeypatch.setattr("orchestrator.launch.supervise.LOCAL_WAIT_S", 0.05)
        return Project(site)

    @property
    def folder(self) -> Path:
        return self.site.folder

    @property
    def ledger(self) -> Ledger:
        return new_ledger(self.folder)

    @property
    def session(self) -> api.Session:
        return api.Session(reporter=Messages(self.messages))

    def submit(self, where: str | None = None, cluster: str = "here", **options: Any) -> api.Submission:
        """Submit figure 13 at scale cpu."""
        options = {"scale": "cpu", "where": where, **options}
        return api.submit("figure-13", cluster, session=self.session, **options)

    def run(self, where: str | None = None, cluster: str = "here", **options: Any) -> api.Submission:
        """Submit figure 13 at scale cpu, and wait until its jobs have ended."""
        submission = self.submit(where, cluster, **options)
        api.supervise(submission, session=self.session)
        return submission

    def retry(self, targets: str = "figure-13", **options: Any) -> int:
        """Submit failed jobs again. Return their number."""
        return sum(group.submitted for group in api.retry(targets, session=self.session, **options).groups)

    def rows(self) -> list[JobRow]:
        return job_rows(self.ledger)

    def jobs(self, *targets: str, **selection: Any) -> dict[str, api.JobStatus]:
        """Return the status of the jobs by job id."""
        return {job.job: job for job in api.status(*targets, session=self.session, **selection).jobs}

    def verdicts(self) -> list[str | None]:
        return [job.verdict for job in self.jobs().values()]


def counts(submission: api.Submission) -> dict[str, int]:
    """Return how many jobs were done, open, failed before, or are submitted now, without zeros."""
    names = ("done", "running", "waiting", "submitted", "queued")
    numbers = {name: getattr(submission, name) for name in names} | {"left": sum(submission.left.values())}
    return {name: number for name, number in numbers.items() if number}


def problems(caught: pytest.ExceptionInfo[ReproError]) -> list[str]:
    """Return the lines that a command would print."""
    return [str(problem) for problem in caught.value.problems]
