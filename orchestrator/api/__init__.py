"""Python interface: the functions behind the commands of `repro`. docs/reference/python-api.md shows how to use them.

Functions take and return values and print nothing. Errors are ReproError. The names below are loaded on first use,
because the database, the scheduler's modules and YAML take longer to import than `repro --help` may take.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypedDict

from orchestrator.errors import Problem, require_none

if TYPE_CHECKING:
    from orchestrator.api.catalog import *
    from orchestrator.api.figures import *
    from orchestrator.api.jobs import *
    from orchestrator.api.plans import *
    from orchestrator.api.runs import *
    from orchestrator.api.session import *
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
    from orchestrator.ledger.readonly_sql import Answer, Relation
    from orchestrator.ledger.rows import JobRow
    from orchestrator.ledger.tables import OPEN, QUEUED, RUNNING
    from orchestrator.planning.batch_plan import *
    from orchestrator.planning.batch_report import *
    from orchestrator.planning.plan import *
    from orchestrator.planning.run_settings import *
    from orchestrator.planning.target import *
    from orchestrator.programs.plug_ins import *
    from orchestrator.programs.registry import *
    from orchestrator.reading.failure import *
    from orchestrator.reading.job_status import *
    from orchestrator.results.bundle.verify import *
    from orchestrator.results.bundle.write import *
    from orchestrator.results.cases import *
    from orchestrator.results.comparison import *
    from orchestrator.results.evidence import *
    from orchestrator.results.export.formats import *
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
    "api.session": "DEFAULT SILENT Reporter Session Silent default_cluster",
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
    "planning.batch_plan": "CheckedScale check_experiment",
    "planning.batch_report": "BatchReport PlanRow PlanTotals budget_text exact_jobs with_exact_memory",
    "planning.plan": "Plan PlannedJob",
    "planning.run_settings": "read_settings",
    "planning.target": "cases_at",
    "reading.failure": "POLICIES policy_of",
    "reading.job_status": ("ExperimentStatus JobRef JobStatus iteration_of iteration_text running_progress spent_text"),
    "results.bundle.verify": "NOTHING_VERIFIED BundleCheckRow Verified",
    "results.bundle.write": "MissingFile",
    "results.cases": "LeftOutAttempt Result",
    "results.comparison": "CaseDiff ComparedNumber Side",
    "results.evidence": "Margin shown_number",
    "results.export.formats": "csv_line require_parquet",
    "results.export.rows": "CaseRow Row export_rows main_columns",
    "results.outcome": "FigureOutcome JudgedClaim",
    "programs.plug_ins": "broken_plug_ins",
    "programs.registry": "program_name programs",
}
"""Module -> its names that are exported. The imports above are for type checkers."""


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
    return sorted([*_MODULES, *(name for name in globals() if name.endswith(("Filter", "Options")))])
