"""Session of a function of the api: its ledger, its home folder and the receiver of its messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import Problem, ReproError
from orchestrator.paths import DATABASE_VARIABLE, Folders, find_folders, user_config_file

if TYPE_CHECKING:
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.rows import JobRow


class Reporter(Protocol):
    """Receiver of messages while a function works."""

    def message(self, text: str) -> None:
        """Receive a line for the user: a note, a warning or what was done."""

    def progress(self, jobs: Sequence[JobRow]) -> None:
        """Receive the jobs that a function waits for, each time their states were read."""


class Silent:
    """Reporter that does nothing."""

    def message(self, text: str) -> None:
        """Ignore the line."""

    def progress(self, jobs: Sequence[JobRow]) -> None:
        """Ignore the jobs."""


SILENT = Silent()


@dataclass(frozen=True, slots=True)
class Session:
    """Ledger and reporter of a function. `database` is a file or a URL.

    None is the ledger of REPRO_DATABASE or the user's configuration, else `results.db` in the home folder.

    `command` is the command line that is recorded with new runs; without one, it is the same command of `repro`.
    """

    database: str | None = None
    reporter: Reporter = SILENT
    command: tuple[str, ...] = ()
    _opened: dict[str, Ledger] = field(default_factory=dict, repr=False, compare=False)

    @property
    def given_ledger(self) -> str | None:
        """Return the ledger of the session, else that of REPRO_DATABASE or of the user's configuration; else None."""
        given = self.database or os.environ.get(DATABASE_VARIABLE)
        if given or DATABASE_VARIABLE in os.environ or user_config_file() is None:
            return given
        from orchestrator.config.user import user_defaults  # reads YAML

        return user_defaults().database

    @property
    def ledger_file(self) -> Path | None:
        """Return the file of the ledger, which may not exist; None for a URL."""
        given = self.given_ledger
        if given and "://" in given:
            return None
        return Path(given).expanduser().absolute() if given else find_folders().home / "results.db"

    @property
    def folders(self) -> Folders:
        """Return the folders of the project as seen from the working folder, with files that the ledger records."""
        folders, given = find_folders(), self.given_ledger
        is_missing = given is None and (folders.refused is not None or not (folders.home / "results.db").exists())
        ledger = None if is_missing else self.existing_ledger()
        if ledger is None:
            return folders
        from orchestrator.ledger.submissions import experiment_files  # loads the database

        return replace(folders, submitted_files=experiment_files(ledger))

    def existing_ledger(self, *, create: bool = False) -> Ledger | None:
        """Return the ledger; None if it does not exist and is not created."""
        folders, given = find_folders(), self.given_ledger
        if not given and folders.refused is not None:
            raise ReproError(folders.refused)
        # Only here: a dry run must start without the database's modules.
        from orchestrator.ledger.database import ledger_url, open_ledger

        url = ledger_url(given, folders.home)
        ledger = self._opened.get(str(url)) or open_ledger(url, create=create, home=folders.home)
        if ledger is not None:
            self._opened[str(url)] = ledger
        return ledger

    def ledger(self, *, create: bool = False) -> Ledger:
        """Return the ledger; raise ReproError if it does not exist and is not created."""
        ledger = self.existing_ledger(create=create)
        if ledger is None:
            raise ReproError(self.no_jobs())
        return ledger

    def no_jobs(self) -> Problem:
        """Return the problem that the ledger has no jobs, with its file and how to use another one."""
        given, file = self.given_ledger, self.ledger_file
        name = str(file)
        if file is None:
            from orchestrator.masking import masked  # not for `status`

            name = masked(str(given))
        missing = ", which does not exist" if file is not None and not file.exists() else ""
        elsewhere = "correct the name (repro config show)" if given else "cd there or set REPRO_HOME"
        hint = f"if you submitted elsewhere, {elsewhere}; else: repro submit figure-13 --cluster local --wait"
        return Problem(f"no jobs in {name}{missing}", hint=hint)

    def note(self, texts: Iterable[str]) -> None:
        """Report notes."""
        for text in texts:
            self.reporter.message(f"note: {text}")


DEFAULT = Session()


def default_cluster() -> str | None:
    """Return the default of `--cluster`; None if there is none. ReproError if the configured cluster does not exist."""
    from orchestrator.clusters.resolve import profile_file  # loads YAML
    from orchestrator.config.user import user_defaults
    from orchestrator.config.yaml import shown

    defaults = user_defaults()
    if defaults.cluster is None:
        return None
    origin = defaults.origins["cluster"]
    location = origin if ":" in origin else f"{origin}:"
    try:
        file = profile_file(find_folders(), defaults.cluster)
    except ReproError as error:
        raise ReproError(*(Problem(f"cluster: {p.what}", location, p.hint) for p in error.problems)) from None
    if not file.is_file():
        hint = "correct the path, or give the name of a cluster: repro clusters list"
        raise ReproError(Problem(f"cluster: {shown(file)}: no such file", location, hint))
    return defaults.cluster
