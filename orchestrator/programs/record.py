"""Record of a program: its names, the fields of a profile for it, and what it needs. A plug-in defines a subclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.paths import Folders
from orchestrator.programs.axes import ProgramNames
from orchestrator.programs.needs import Need, WorkloadSite


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
