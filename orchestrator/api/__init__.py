"""Python interface: the functions behind the commands of `repro`. docs/reference/python-api.md shows how to use them.

Functions take and return values and print nothing. Errors are ReproError. The names below are loaded on first use,
because the database, the scheduler's modules and YAML take longer to import than `repro --help` may take.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

from orchestrator.errors import Problem, ReproError, require_none
from orchestrator.paths import DATABASE_VARIABLE, Folders, find_folders, user_config_file

if TYPE_CHECKING:
    from orchestrator.api.catalog import *
    from orchestrator.api.figures import *
    from orchestrator.api.jobs import *
    from orchestrator.api.plans import *
    from orchestrator.api.runs import *
    from orchestrator.api.sites import *
    from orchestrator.catalog.case import *
    from orchestrator.catalog.expand import *
    from orchestrator.catalog.experiment import *
    from orchestrator.catalog.library import *
    from orchestrator.catalog.template import *
    from orchestrator.clusters import *
    from orchestrator.clusters.check import *
    from orchestrator.clusters.profile import *
    from orchestrator.clusters.program import *
    from orchestrator.clusters.resolve import *
    from orchestrator.config.yaml import *
    from orchestrator.files import *
    from orchestrator.launch.cluster_check import *
    from orchestrator.launch.denied_nodes import *
    from orchestrator.launch.images import *
    from orchestrator.launch.templates import *
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.readonly_sql import Answer, Relation
    from orchestrator.ledger.rows import JobRow
    from orchestrator.ledger.tables import OPEN, QUEUED, RUNNING
    from orchestrator.planning.batch_plan import *
    from orchestrator.planning.batch_report import *
    from orchestrator.planning.plan import *
    from orchestrator.planning.target import *
    from orchestrator.programs.plug_ins import *
    from orchestrator.programs.record import *
    from orchestrator.reading.failure import *
    from orchestrator.reading.job_status import *
    from orchestrator.results.bundle.verify import *
    from orchestrator.results.bundle.write import *
    from orchestrator.results.cases import *
    from orchestrator.results.comparison import *
    from orchestrator.results.evidence import *
    from orchestrator.results.export.rows import *
    from orchestrator.results.outcome import *

_NAMES = {
    "api.catalog": (
        "ExperimentCases ExperimentList ListedExperiment ShownCase ShownExperiment ShownPaper "
        "StatedClaim experiments is_paper show shown_experiment"
    ),
    "api.figures": (
        "Bundle Collected JudgedClaims Plotted PublishedComparison Report RunComparison UnprovenBundle bundle "
        "bundle_file claims collect compare compare_runs outcomes plot plot_all report require_bundle_name "
        "require_plot_file verify_bundle write_file"
    ),
    "api.jobs": (
        "JobAttempt JobHistory JobLog Status history job_ids job_states logs query relations status submitted_programs"
    ),
    "api.plans": ("CheckedOutput OutputNumber PlannedRun check_output plan plan_run plan_runs require_submittable"),
    "api.runs": (
        "Adopted CaseScript Rendered Retried RetriedGroup RetriedJob Submission SubmitOptions Waited adopt canary_of "
        "cancel cancel_jobs cancellable_jobs render retry submit submit_all supervise wait"
    ),
    "api.sites": (
        "ConfigRow DenyList Fetch FetchedFile FetchedSetting NeedRow ProgramNeeds ProgramRow allow_nodes config_rows "
        "deny_nodes list_denied_nodes plan_fetch show_program program_needs"
    ),
    "catalog.case": "Case shown_value",
    "catalog.expand": "expand",
    "catalog.experiment": "Difference PublishedPoint scale_names",
    "catalog.library": "Entry experiment_names find_entries names_meant papers",
    "catalog.template": "experiment_schema_text new_experiment",
    "clusters": "cluster_names",
    "clusters.check": "Finding",
    "clusters.profile": "schema_text",
    "clusters.program": "ImageFile image_rows imported_file",
    "clusters.resolve": "Cluster ClusterRow ProfileField find_cluster leaves",
    "config.yaml": "dotted shown",
    "files": "WrittenFile",
    "launch.cluster_check": "ClusterCheck check_cluster new_cluster",
    "launch.denied_nodes": "DeniedNode denied_note with_denied_nodes",
    "launch.images": "ImageImport Import import_images import_progress wanted_images",
    "launch.templates": "Explained",
    "ledger.readonly_sql": "Answer Relation",
    "ledger.rows": "JobRow",
    "ledger.tables": "OPEN QUEUED RUNNING",
    "planning.batch_plan": "CheckedScale check_experiment read_settings",
    "planning.batch_report": "BatchReport PlanRow PlanTotals budget_text exact_jobs with_exact_memory",
    "planning.plan": "Plan PlannedJob",
    "planning.target": "cases_at",
    "reading.failure": "POLICIES policy_of",
    "reading.job_status": ("ExperimentStatus JobRef JobStatus iteration_of iteration_text running_progress spent_text"),
    "results.bundle.verify": "NOTHING_VERIFIED BundleCheckRow Verified",
    "results.bundle.write": "MissingFile",
    "results.cases": "LeftOutAttempt Result",
    "results.comparison": "CaseDiff ComparedNumber Side",
    "results.evidence": "Margin shown_number",
    "results.export.rows": "CaseRow Row csv_line export_rows main_columns require_parquet",
    "results.outcome": "FigureOutcome JudgedClaim",
    "programs.plug_ins": "broken_plug_ins",
    "programs.record": "program_name programs",
}
"""Module -> its names that are exported. The imports above are for type checkers."""


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
        from orchestrator.ledger.runs import experiment_files  # loads the database

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


class RunFilter(TypedDict, total=False):
    """Keywords that select runs of an experiment. None, the default, matches everything."""

    scale: str | None
    cluster: str | None
    program: str | None


class JobFilter(RunFilter, total=False):
    """Keywords that select jobs and cases. `where` has axis values: `pp=8,gbs=32`."""

    where: str | None


class FigureFilter(RunFilter, total=False):
    """Keywords that select runs of an experiment for its results.

    `arg` are changed arguments as in `CaseOptions`, `run` is the beginning of a run's id. Without both, measured jobs
    with the published arguments come first, then the latest measured ones. `without` has attempts that do not count,
    each with the reason: `3f2a:1=a slow node`. `attempt` selects the attempts of this number, where jobs have one,
    instead of the last verified ones.
    """

    arg: Sequence[str] | None
    run: str | None
    without: Sequence[str] | None
    attempt: int | None


class StateFilter(JobFilter, total=False):
    """Keywords that select jobs. `state` has states and verdicts, in any case: `running,timeout` or `verified`."""

    state: str | None


class CaseOptions(TypedDict, total=False):
    """Keywords that select the cases to plan, and what they may take together: `10m` or `0:10:00`, and `50USD`.

    `arg` are arguments of the program that are added or replaced, `--lr=0.001`, and `no_arg` flags that are left out.
    `settings` are fields of the profile or the experiment, `slurm.qos=high` or `training.iterations=50`.
    `example` fills open values of the profile with examples; such a plan cannot be submitted.
    """

    scale: str | None
    where: str | None
    program: str | None
    time_budget: str | None
    cost_budget: str | None
    arg: Sequence[str] | None
    no_arg: Sequence[str] | None
    settings: Sequence[str] | None
    example: bool | None


def require_text(words: Iterable[str]) -> None:
    """Raise ReproError for words with a NUL, or that are not UTF-8 and thus cannot be written into a script."""
    problems: list[Problem] = []
    for word in words:
        if "\0" in word:
            problems.append(Problem("contains a NUL character", f"{word!r}:", "remove it"))
        if word.encode(errors="ignore").decode() != word:
            problems.append(Problem("is not UTF-8 text", f"{word!r}:", "use UTF-8 characters"))
    require_none(problems)


_MODULES = {name: f"orchestrator.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import an exported name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = ("DEFAULT", "SILENT", "Reporter", "Session", "Silent", "default_cluster")
    return sorted([*_MODULES, *own, *(name for name in globals() if name.endswith(("Filter", "Options")))])
