"""Record of a program: its names, the fields of a profile for it, and what it needs. A plug-in defines a subclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.paths import Folders
from orchestrator.programs.axes import ProgramNames
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
    by `--workload`.
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

    def case(self, case: Case, entry: Entry, fields: ScaleFields) -> Case:  # noqa: ARG002  of programs with typed views
        """Return the program's own view of a case, from the fields of its scale."""
        return case
