"""Paths of the project: the package, the home folder, run folders and user folders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Problem
from orchestrator.job_dir import single_name
from orchestrator.ownership import why_not_own_path

_PACKAGE = Path(__file__).resolve().parent


def short_name(experiment: str) -> str:
    """What a person types: `figure-13` for the file `sc21/figure-13`."""
    return experiment.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Folders:
    """`shipped` holds the three data folders; `home` is where results and private files go.

    `refused` is a ledger that lies in or above the working folder and that another user can change: it is not used
    unless it is named.
    """

    shipped: Path
    home: Path
    refused: Problem | None = None

    @property
    def templates(self) -> Path:
        return self.shipped / "templates"

    @property
    def runs(self) -> Path:
        """Scripts, logs and end records of everything submitted; must be visible from the compute nodes."""
        return self.home / "runs"

    def experiment_files(self) -> Iterator[Path]:
        return self._files("experiments", "*/*.y*ml")

    def cluster_files(self) -> Iterator[Path]:
        return self._files("clusters", "*.yaml")

    def _files(self, folder: str, pattern: str) -> Iterator[Path]:
        """Files of the working folder, of home, then the shipped ones; the first of a name wins."""
        seen: set[str] = set()
        for base in dict.fromkeys((Path.cwd(), self.home, self.shipped)):
            for path in sorted((base / folder).glob(pattern)):
                name = str(path.relative_to(base))
                if name not in seen:
                    seen.add(name)
                    yield path

    def run(self, run_id: str) -> Path:
        return self.runs / single_name(run_id)

    def job(self, run_id: str, slug: str) -> Path:
        """Script, log and records of one job of a run; ReproError for a slug that would be no folder in the run's."""
        return self.run(run_id) / single_name(slug)

    def submissions(self, run_id: str) -> Path:
        """What went to the scheduler: array and queue scripts, submitit's own files."""
        return self.run(run_id) / "submissions"

    def program(self, name: str) -> Path:
        """The folder that PYTHONPATH of a job needs to import this version of our training program."""
        return self.runs / "programs" / single_name(name)

    def image_import(self, name: str) -> Path:
        """Script, log and record of one import of an image."""
        return self.runs / "images" / single_name(name)


def find_folders() -> Folders:
    """The checkout this package runs from, else the wheel's data and the nearest folder that has a results.db.

    A folder that another user can change is never home, as a ledger and profiles in it decide what runs.
    """
    checkout, given = _PACKAGE.parent, os.environ.get("REPRO_HOME")
    wanted = Path(given).expanduser().absolute() if given else None
    if (checkout / "experiments").is_dir() and (checkout / "clusters").is_dir():
        return Folders(shipped=checkout, home=wanted or checkout)
    shipped = _PACKAGE / "shipped"
    if wanted is not None:
        return Folders(shipped=shipped, home=wanted)
    here = Path.cwd()
    found = next((folder for folder in (here, *here.parents) if (folder / "results.db").is_file()), here)
    refused = _refused(found / "results.db")
    return Folders(shipped=shipped, home=here if refused else found, refused=refused)


def _refused(ledger: Path) -> Problem | None:
    """Why a ledger that nobody has named is not used: another user can change it, or replace it."""
    if not ledger.is_file():
        return None
    hint = f"name it if you trust it: --database {shlex.quote(str(ledger))}, or set REPRO_HOME to a folder of your own"
    for path in dict.fromkeys((ledger.parent, ledger, ledger.resolve().parent)):
        why = why_not_own_path(path)
        if why is not None:
            return Problem(f"{why}, so it is not used", f"{path}:", hint)
    return None
