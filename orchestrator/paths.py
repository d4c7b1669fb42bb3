"""Paths of the project: the package, the home folder, run folders and user folders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from orchestrator.errors import Problem
from orchestrator.files import single_name
from orchestrator.identity import why_not_own_path

_PACKAGE = Path(__file__).resolve().parent


def short_name(experiment: str) -> str:
    """Return the name that a person types: `figure-13` for the file `sc21/figure-13`."""
    return experiment.rpartition("/")[2]


DATABASE_VARIABLE = "REPRO_DATABASE"
HOME_VARIABLE = "REPRO_HOME"
CONFIG_VARIABLE = "REPRO_CONFIG"


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of the project: `shipped` contains the data folders, `home` the results and private files.

    `home_origin` is the reason for this home folder. `refused` is the problem with a ledger in or above the working
    folder that another user can change. Such a ledger is used only if the user names it. `submitted_files` are the
    files of experiments that were submitted by a path, by full name; a session reads them from the ledger.
    """

    shipped: Path
    home: Path
    home_origin: str = field(default="", compare=False)
    refused: Problem | None = None
    submitted_files: Mapping[str, Path] = field(default_factory=dict, compare=False)

    @property
    def templates(self) -> Path:
        """Return the folder of the script templates."""
        return self.shipped / "templates"

    @property
    def runs(self) -> Path:
        """Return the folder of scripts, logs and records of all runs. Compute nodes must see it."""
        return self.home / "runs"

    def experiment_files(self) -> Iterator[Path]:
        """Yield the experiments' YAML files."""
        return self._files("experiments", "*/*.y*ml")

    def cluster_files(self) -> Iterator[Path]:
        """Yield the cluster profiles' YAML files."""
        return self._files("clusters", "*.yaml")

    def _files(self, folder: str, pattern: str) -> Iterator[Path]:
        """Yield the files of the working folder, of home and of `shipped`. The first file of a name wins."""
        seen: set[str] = set()
        for base in dict.fromkeys((Path.cwd(), self.home, self.shipped)):
            for path in sorted((base / folder).glob(pattern)):
                name = str(path.relative_to(base))
                if name not in seen:
                    seen.add(name)
                    yield path

    def run(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.runs / single_name(run_id)

    def job(self, run_id: str, slug: str) -> Path:
        """Return the folder of one job of a run. Raise ReproError if the slug leads out of the run's folder."""
        return self.run(run_id) / single_name(slug)

    def submissions(self, run_id: str) -> Path:
        """Return the folder of array scripts, queue scripts and submitit's files."""
        return self.run(run_id) / "submissions"

    def program(self, name: str) -> Path:
        """Return the folder of a version of the training program, for PYTHONPATH of a job."""
        return self.runs / "programs" / single_name(name)

    def image_import(self, name: str) -> Path:
        """Return the folder of one image import."""
        return self.runs / "images" / single_name(name)


def find_folders() -> Folders:
    """Return the folders of this checkout, else the wheel's data and the nearest folder with a results.db.

    A folder that another user can change is never home, because its ledger and profiles decide what runs.
    """
    checkout, given = _PACKAGE.parent, os.environ.get(HOME_VARIABLE)
    in_checkout = (checkout / "experiments").is_dir() and (checkout / "clusters").is_dir()
    shipped = checkout if in_checkout else _PACKAGE / "shipped"
    if given:
        return Folders(shipped, Path(given).expanduser().absolute(), HOME_VARIABLE)
    if in_checkout:
        return Folders(shipped, checkout, "top of the checkout")
    here = Path.cwd()
    nearest = next((folder for folder in (here, *here.parents) if (folder / "results.db").is_file()), None)
    if nearest is None:
        return Folders(shipped, here, "working folder")
    refused = _refused(nearest / "results.db")
    home = here if refused else nearest
    return Folders(shipped, home, "working folder" if home == here else "nearest folder with results.db", refused)


def user_config_file() -> Path | None:
    """Return the user's configuration file; None if there is none. A file that REPRO_CONFIG names must exist."""
    given = os.environ.get(CONFIG_VARIABLE)
    file = Path(given).expanduser() if given else default_config_file()
    return file if given or file.exists() else None


def default_config_file() -> Path:
    """Return `~/.config/repro/config.yaml`, or the same below XDG_CONFIG_HOME."""
    return platformdirs.user_config_path("repro") / "config.yaml"


def deny_folder() -> Path:
    """Return the folder of the user's deny lists, `nodes/` beside the configuration file."""
    return (user_config_file() or default_config_file()).with_name("nodes")


def _refused(ledger: Path) -> Problem | None:
    """Return the problem with a ledger that the user has not named, if another user can change or replace it."""
    if not ledger.is_file():
        return None
    hint = f"name it if you trust it: --database {shlex.quote(str(ledger))}, or set REPRO_HOME to a folder of your own"
    for path in dict.fromkeys((ledger.parent, ledger, ledger.resolve().parent)):
        why = why_not_own_path(path)
        if why is not None:
            return Problem(f"{why}, so it is not used", f"{path}:", hint)
    return None
