"""Record of a program: its names, the fields of a profile for it, and what it needs. A plug-in defines a subclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.paths import Folders
from orchestrator.programs.axes import ProgramNames
from orchestrator.programs.changes import read_flags
from orchestrator.programs.needs import Need, WorkloadSite

if TYPE_CHECKING:
    from orchestrator.catalog.case import Case
    from orchestrator.catalog.experiment import ScaleFields
    from orchestrator.catalog.library import Entry


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A program that a case can run.

    `about` describes it, and `needs` are the code and data that a site must have. `names` are its axes and metrics,
    which all programs of its `family` share. `site` has the fields of its block in a profile. `runs_on_cpu`: it runs on
    CPU cores, too. `write_files` writes the files that jobs import, into the run's folders. `other_names` are accepted
    by `--workload`. `reader` is the class that reads its output (a `reading.reader.LogReader`), as `module:name`, and
    None if only the end of a job and the errors in its log decide. `output_files` are files that it reads beside the
    log.
    """

    name: str
    about: str
    family: str
    names: ProgramNames
    site: type[WorkloadSite] = WorkloadSite
    needs: tuple[Need, ...] = ()
    runs_on_cpu: bool = False
    write_files: Callable[[Folders], None] = lambda _folders: None
    other_names: tuple[str, ...] = ()
    reader: str | None = None
    output_files: tuple[str, ...] = ()

    def fixed_argument(self, _flag: str) -> Problem | None:
        """Return why `--arg` cannot change this flag: the case or the profile sets it. None if `--arg` can."""
        return None

    def flags_of(self, case: Case) -> Mapping[str, tuple[str, ...]]:
        """Return the flags that the program gets for a case, with their values."""
        return read_flags(case.arguments)

    def case(self, case: Case, entry: Entry, fields: ScaleFields) -> Case:  # noqa: ARG002  of programs with typed views
        """Return the program's own view of a case, from the fields of its scale."""
        return case
