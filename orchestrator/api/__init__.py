"""Python interface: the functions behind the commands of `repro`. docs/reference/python-api.md shows how to use them.

Functions take and return values and print nothing. Errors are ReproError. The names of `_NAMES` are loaded on first
use, because the database, the scheduler's modules and YAML take longer to import than `repro --help` may take.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar, get_type_hints

from orchestrator.errors import Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.api.bundles import Bundle as Bundle
    from orchestrator.api.bundles import UnprovenBundle as UnprovenBundle
    from orchestrator.api.bundles import bundle as bundle
    from orchestrator.api.bundles import bundle_file as bundle_file
    from orchestrator.api.bundles import require_bundle_name as require_bundle_name
    from orchestrator.api.bundles import verify_bundle as verify_bundle
    from orchestrator.api.catalog import ExperimentCases as ExperimentCases
    from orchestrator.api.catalog import ExperimentList as ExperimentList
    from orchestrator.api.catalog import ListedExperiment as ListedExperiment
    from orchestrator.api.catalog import PaperContents as PaperContents
    from orchestrator.api.catalog import ShownCase as ShownCase
    from orchestrator.api.catalog import ShownExperiment as ShownExperiment
    from orchestrator.api.catalog import ShownPaper as ShownPaper
    from orchestrator.api.catalog import StatedClaim as StatedClaim
    from orchestrator.api.catalog import experiments as experiments
    from orchestrator.api.catalog import is_paper as is_paper
    from orchestrator.api.catalog import show as show
    from orchestrator.api.catalog import show_paper as show_paper
    from orchestrator.api.catalog import shown_experiment as shown_experiment
    from orchestrator.api.configuration import ConfigRow as ConfigRow
    from orchestrator.api.configuration import config_rows as config_rows
    from orchestrator.api.configuration import default_cluster as default_cluster
    from orchestrator.api.figures import Collected as Collected
    from orchestrator.api.figures import JudgedClaims as JudgedClaims
    from orchestrator.api.figures import Plotted as Plotted
    from orchestrator.api.figures import PublishedComparison as PublishedComparison
    from orchestrator.api.figures import Report as Report
    from orchestrator.api.figures import RunComparison as RunComparison
    from orchestrator.api.figures import claims as claims
    from orchestrator.api.figures import collect as collect
    from orchestrator.api.figures import compare as compare
    from orchestrator.api.figures import compare_runs as compare_runs
    from orchestrator.api.figures import outcomes as outcomes
    from orchestrator.api.figures import plot as plot
    from orchestrator.api.figures import plot_all as plot_all
    from orchestrator.api.figures import report as report
    from orchestrator.api.figures import require_plot_file as require_plot_file
    from orchestrator.api.figures import write_file as write_file
    from orchestrator.api.jobs import JobAttempt as JobAttempt
    from orchestrator.api.jobs import JobHistory as JobHistory
    from orchestrator.api.jobs import JobLog as JobLog
    from orchestrator.api.jobs import Status as Status
    from orchestrator.api.jobs import history as history
    from orchestrator.api.jobs import job_ids as job_ids
    from orchestrator.api.jobs import job_states as job_states
    from orchestrator.api.jobs import logs as logs
    from orchestrator.api.jobs import query as query
    from orchestrator.api.jobs import relations as relations
    from orchestrator.api.jobs import status as status
    from orchestrator.api.needs import Fetch as Fetch
    from orchestrator.api.needs import FetchedFile as FetchedFile
    from orchestrator.api.needs import FetchedSetting as FetchedSetting
    from orchestrator.api.needs import NeedRow as NeedRow
    from orchestrator.api.needs import NeedStatus as NeedStatus
    from orchestrator.api.needs import WorkloadNeeds as WorkloadNeeds
    from orchestrator.api.needs import WorkloadRow as WorkloadRow
    from orchestrator.api.needs import offline_fetch as offline_fetch
    from orchestrator.api.needs import plan_fetch as plan_fetch
    from orchestrator.api.needs import show_workload as show_workload
    from orchestrator.api.needs import workload_needs as workload_needs
    from orchestrator.api.nodes import DenyList as DenyList
    from orchestrator.api.nodes import allow_nodes as allow_nodes
    from orchestrator.api.nodes import deny_nodes as deny_nodes
    from orchestrator.api.nodes import list_denied_nodes as list_denied_nodes
    from orchestrator.api.plans import PlannedRun as PlannedRun
    from orchestrator.api.plans import plan as plan
    from orchestrator.api.plans import plan_run as plan_run
    from orchestrator.api.plans import plan_runs as plan_runs
    from orchestrator.api.plans import require_submittable as require_submittable
    from orchestrator.api.runs import Retried as Retried
    from orchestrator.api.runs import RetriedGroup as RetriedGroup
    from orchestrator.api.runs import RetriedJob as RetriedJob
    from orchestrator.api.runs import Waited as Waited
    from orchestrator.api.runs import canary_of as canary_of
    from orchestrator.api.runs import cancel as cancel
    from orchestrator.api.runs import cancel_jobs as cancel_jobs
    from orchestrator.api.runs import cancellable_jobs as cancellable_jobs
    from orchestrator.api.runs import retry as retry
    from orchestrator.api.runs import wait as wait
    from orchestrator.api.scripts import Adopted as Adopted
    from orchestrator.api.scripts import CaseScript as CaseScript
    from orchestrator.api.scripts import Rendered as Rendered
    from orchestrator.api.scripts import adopt as adopt
    from orchestrator.api.scripts import render as render
    from orchestrator.api.search import SearchOptions as SearchOptions
    from orchestrator.api.search import run_search as run_search
    from orchestrator.api.search import search_answer as search_answer
    from orchestrator.api.search import simulate_search as simulate_search
    from orchestrator.api.session import DEFAULT as DEFAULT
    from orchestrator.api.session import SILENT as SILENT
    from orchestrator.api.session import Reporter as Reporter
    from orchestrator.api.session import Session as Session
    from orchestrator.api.session import Silent as Silent
    from orchestrator.api.submissions import Submission as Submission
    from orchestrator.api.submissions import submit as submit
    from orchestrator.api.submissions import submit_all as submit_all
    from orchestrator.api.submissions import supervise as supervise
    from orchestrator.catalog.case import Case as Case
    from orchestrator.catalog.case import shown_value as shown_value
    from orchestrator.catalog.expand import expand as expand
    from orchestrator.catalog.experiment import scale_names as scale_names
    from orchestrator.catalog.experiment_schema import experiment_schema_text as experiment_schema_text
    from orchestrator.catalog.experiment_schema import paper_schema_text as paper_schema_text
    from orchestrator.catalog.library import Entry as Entry
    from orchestrator.catalog.library import find_entries as find_entries
    from orchestrator.catalog.names import experiment_names as experiment_names
    from orchestrator.catalog.names import names_meant as names_meant
    from orchestrator.catalog.names import papers as papers
    from orchestrator.catalog.published import Difference as Difference
    from orchestrator.catalog.published import PublishedPoint as PublishedPoint
    from orchestrator.catalog.template import new_experiment as new_experiment
    from orchestrator.clusters import cluster_names as cluster_names
    from orchestrator.clusters.check import CheckRow as CheckRow
    from orchestrator.clusters.layers import leaves as leaves
    from orchestrator.clusters.profile import schema_text as schema_text
    from orchestrator.clusters.program import ImageFile as ImageFile
    from orchestrator.clusters.program import ImageRow as ImageRow
    from orchestrator.clusters.program import image_rows as image_rows
    from orchestrator.clusters.program import imported_file as imported_file
    from orchestrator.clusters.resolve import Cluster as Cluster
    from orchestrator.clusters.resolve import ClusterRow as ClusterRow
    from orchestrator.clusters.resolve import ProfileField as ProfileField
    from orchestrator.clusters.resolve import find_cluster as find_cluster
    from orchestrator.config.yaml import dotted as dotted
    from orchestrator.config.yaml import shown as shown
    from orchestrator.fields import row_of as row_of
    from orchestrator.fields import rows_of as rows_of
    from orchestrator.files import WrittenFile as WrittenFile
    from orchestrator.files import require_place as require_place
    from orchestrator.files import written_files as written_files
    from orchestrator.launch.cluster_check import ClusterCheck as ClusterCheck
    from orchestrator.launch.cluster_check import check_cluster as check_cluster
    from orchestrator.launch.cluster_check import new_cluster as new_cluster
    from orchestrator.launch.denied_nodes import DeniedNode as DeniedNode
    from orchestrator.launch.denied_nodes import denied_note as denied_note
    from orchestrator.launch.denied_nodes import with_denied_nodes as with_denied_nodes
    from orchestrator.launch.images import ImageImport as ImageImport
    from orchestrator.launch.images import Import as Import
    from orchestrator.launch.images import import_images as import_images
    from orchestrator.launch.images import import_progress as import_progress
    from orchestrator.launch.images import wanted_images as wanted_images
    from orchestrator.launch.templates import Explained as Explained
    from orchestrator.ledger.measurements import MeasuredMetric as MeasuredMetric
    from orchestrator.ledger.readonly_sql import Answer as Answer
    from orchestrator.ledger.readonly_sql import Relation as Relation
    from orchestrator.ledger.rows import JobRow as JobRow
    from orchestrator.ledger.tables import OPEN as OPEN
    from orchestrator.ledger.tables import QUEUED as QUEUED
    from orchestrator.ledger.tables import RUNNING as RUNNING
    from orchestrator.ledger.tables import field_values as field_values
    from orchestrator.planning.batch_plan import CheckedScale as CheckedScale
    from orchestrator.planning.batch_plan import check_experiment as check_experiment
    from orchestrator.planning.batch_report import BatchReport as BatchReport
    from orchestrator.planning.batch_report import PlanRow as PlanRow
    from orchestrator.planning.batch_report import PlanTotals as PlanTotals
    from orchestrator.planning.batch_report import budget_text as budget_text
    from orchestrator.planning.batch_report import exact_jobs as exact_jobs
    from orchestrator.planning.batch_report import with_exact_memory as with_exact_memory
    from orchestrator.planning.plan import Plan as Plan
    from orchestrator.planning.plan import PlannedJob as PlannedJob
    from orchestrator.planning.run_settings import read_settings as read_settings
    from orchestrator.planning.scales import cases_at as cases_at
    from orchestrator.reading.failure import POLICIES as POLICIES
    from orchestrator.reading.job_status import ExperimentStatus as ExperimentStatus
    from orchestrator.reading.job_status import JobRef as JobRef
    from orchestrator.reading.job_status import JobStatus as JobStatus
    from orchestrator.reading.job_status import prints_iterations as prints_iterations
    from orchestrator.reading.job_status import running_progress as running_progress
    from orchestrator.reading.job_status import spent_text as spent_text
    from orchestrator.results.bundle.verify import NOTHING_VERIFIED as NOTHING_VERIFIED
    from orchestrator.results.bundle.verify import BundleCheckRow as BundleCheckRow
    from orchestrator.results.bundle.verify import Verified as Verified
    from orchestrator.results.bundle.write import MissingFile as MissingFile
    from orchestrator.results.cases import LeftOutAttempt as LeftOutAttempt
    from orchestrator.results.cases import Result as Result
    from orchestrator.results.claims import Used as Used
    from orchestrator.results.comparison import CaseDiff as CaseDiff
    from orchestrator.results.comparison import ComparedNumber as ComparedNumber
    from orchestrator.results.comparison import Side as Side
    from orchestrator.results.comparison import equation as equation
    from orchestrator.results.evidence import Margin as Margin
    from orchestrator.results.evidence import shown_number as shown_number
    from orchestrator.results.export.formats import csv_line as csv_line
    from orchestrator.results.export.formats import require_parquet as require_parquet
    from orchestrator.results.export.rows import CaseRow as CaseRow
    from orchestrator.results.export.rows import Row as Row
    from orchestrator.results.export.rows import export_rows as export_rows
    from orchestrator.results.export.rows import main_columns as main_columns
    from orchestrator.results.outcome import FigureOutcome as FigureOutcome
    from orchestrator.results.outcome import JudgedClaim as JudgedClaim
    from orchestrator.search.answer import CandidateRow as CandidateRow
    from orchestrator.search.answer import NotRunReason as NotRunReason
    from orchestrator.search.answer import SearchAnswer as SearchAnswer
    from orchestrator.search.answer import SearchedCase as SearchedCase
    from orchestrator.search.answer import SearchSummary as SearchSummary
    from orchestrator.search.answer import SearchWinner as SearchWinner
    from orchestrator.search.answer import arguments_by_program as arguments_by_program
    from orchestrator.search.answer import fastest_text as fastest_text
    from orchestrator.search.candidates import Simulated as Simulated
    from orchestrator.search.candidates import SimulatedCase as SimulatedCase
    from orchestrator.search.candidates import read_search_budget as read_search_budget
    from orchestrator.search.prepare import PreparedSearch as PreparedSearch
    from orchestrator.search.prepare import prepare_search as prepare_search
    from orchestrator.slurm.notation import time_limit_s as time_limit_s
    from orchestrator.workloads import workload_name as workload_name
    from orchestrator.workloads import workloads as workloads


class RunFilter(TypedDict, total=False):
    """Keywords that select runs of an experiment. None, the default, matches everything."""

    scale: str | None
    cluster: str | None
    workload: str | None


class JobFilter(RunFilter, total=False):
    """Keywords that select jobs and cases. `where` has axis values: `pp=8,gbs=32`."""

    where: str | None


class FigureFilter(RunFilter, total=False):
    """Keywords that select runs of an experiment for its results.

    `arg` are changed arguments as in `CaseOptions`, `run` is the beginning of a run's id. Without both, measured jobs
    with the published arguments come first, then the latest measured ones. `without` has attempts that do not count,
    each with the reason: `3f2a:1=a slow node`.
    """

    arg: Sequence[str] | None
    run: str | None
    without: Sequence[str] | None


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
    workload: str | None
    time_budget: str | None
    cost_budget: str | None
    arg: Sequence[str] | None
    no_arg: Sequence[str] | None
    settings: Sequence[str] | None
    example: bool | None


P = ParamSpec("P")
R = TypeVar("R")


def with_keywords(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that replaces `**name: Unpack[options]` by its keywords in a function's signature.

    `help`, notebooks and Typer read the signature, and another keyword is a TypeError. The keywords come before the
    function's own keyword-only parameters.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        [unpacked] = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD]
        del function.__annotations__[unpacked]
        plain = inspect.signature(function, eval_str=True)
        own = [parameter for parameter in plain.parameters.values() if parameter.name != unpacked]
        positional = [parameter for parameter in own if parameter.kind is not parameter.KEYWORD_ONLY]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in get_type_hints(options, include_extras=True).items()
        ]
        signature = plain.replace(parameters=[*positional, *keywords, *own[len(positional) :]])

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            signature.bind(*args, **kwargs)
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    return decorate


def require_text(words: Iterable[str]) -> None:
    """Raise ReproError for words with a NUL, or that are not UTF-8 and thus cannot be written into a script."""
    problems: list[Problem] = []
    for word in words:
        if "\0" in word:
            problems.append(Problem("contains a NUL character", f"{word!r}:", "remove it"))
        try:
            word.encode()
        except UnicodeEncodeError:
            problems.append(Problem("is not UTF-8 text", f"{word!r}:", "use UTF-8 characters"))
    if problems:
        raise ReproError(*problems)


_NAMES = {
    "api.bundles": "Bundle UnprovenBundle bundle bundle_file require_bundle_name verify_bundle",
    "api.catalog": (
        "ExperimentCases ExperimentList ListedExperiment PaperContents ShownCase ShownExperiment "
        "ShownPaper StatedClaim experiments is_paper show show_paper shown_experiment"
    ),
    "api.configuration": "ConfigRow config_rows default_cluster",
    "api.figures": (
        "Collected JudgedClaims Plotted PublishedComparison Report RunComparison claims collect compare "
        "compare_runs outcomes plot plot_all report require_plot_file write_file"
    ),
    "api.jobs": "JobAttempt JobHistory JobLog Status history job_ids job_states logs query relations status",
    "api.needs": (
        "Fetch FetchedFile FetchedSetting NeedRow NeedStatus WorkloadNeeds WorkloadRow offline_fetch "
        "plan_fetch show_workload workload_needs"
    ),
    "api.nodes": "DenyList allow_nodes deny_nodes list_denied_nodes",
    "api.plans": "PlannedRun plan plan_run plan_runs require_submittable",
    "api.runs": "Retried RetriedGroup RetriedJob Waited canary_of cancel cancel_jobs cancellable_jobs retry wait",
    "api.scripts": "Adopted CaseScript Rendered adopt render",
    "api.search": "SearchOptions run_search search_answer simulate_search",
    "api.session": "DEFAULT Reporter SILENT Session Silent",
    "api.submissions": "Submission submit submit_all supervise",
    "catalog.case": "Case shown_value",
    "catalog.expand": "expand",
    "catalog.experiment": "scale_names",
    "catalog.experiment_schema": "experiment_schema_text paper_schema_text",
    "catalog.library": "Entry find_entries",
    "catalog.names": "experiment_names names_meant papers",
    "catalog.published": "Difference PublishedPoint",
    "catalog.template": "new_experiment",
    "clusters": "cluster_names",
    "clusters.check": "CheckRow",
    "clusters.layers": "leaves",
    "clusters.profile": "schema_text",
    "clusters.program": "ImageFile ImageRow image_rows imported_file",
    "clusters.resolve": "Cluster ClusterRow ProfileField find_cluster",
    "config.yaml": "dotted shown",
    "fields": "row_of rows_of",
    "files": "WrittenFile require_place written_files",
    "launch.cluster_check": "ClusterCheck check_cluster new_cluster",
    "launch.denied_nodes": "DeniedNode denied_note with_denied_nodes",
    "launch.images": "ImageImport Import import_images import_progress wanted_images",
    "launch.templates": "Explained",
    "ledger.measurements": "MeasuredMetric",
    "ledger.readonly_sql": "Answer Relation",
    "ledger.rows": "JobRow",
    "ledger.tables": "OPEN QUEUED RUNNING field_values",
    "planning.batch_plan": "CheckedScale check_experiment",
    "planning.batch_report": "BatchReport PlanRow PlanTotals budget_text exact_jobs with_exact_memory",
    "planning.plan": "Plan PlannedJob",
    "planning.run_settings": "read_settings",
    "planning.scales": "cases_at",
    "reading.failure": "POLICIES",
    "reading.job_status": "ExperimentStatus JobRef JobStatus prints_iterations running_progress spent_text",
    "results.bundle.verify": "BundleCheckRow NOTHING_VERIFIED Verified",
    "results.bundle.write": "MissingFile",
    "results.cases": "LeftOutAttempt Result",
    "results.claims": "Used",
    "results.comparison": "CaseDiff ComparedNumber Side equation",
    "results.evidence": "Margin shown_number",
    "results.export.formats": "csv_line require_parquet",
    "results.export.rows": "CaseRow Row export_rows main_columns",
    "results.outcome": "FigureOutcome JudgedClaim",
    "search.answer": (
        "CandidateRow NotRunReason SearchAnswer SearchSummary SearchWinner SearchedCase "
        "arguments_by_program fastest_text"
    ),
    "search.candidates": "Simulated SimulatedCase read_search_budget",
    "search.prepare": "PreparedSearch prepare_search",
    "slurm.notation": "time_limit_s",
    "workloads": "workload_name workloads",
}
"""Module -> its exported names. A test compares it with the imports above."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import an exported name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    value = getattr(importlib.import_module(f"orchestrator.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_MODULES, "CaseOptions", "JobFilter", "RunFilter", "StateFilter"])
