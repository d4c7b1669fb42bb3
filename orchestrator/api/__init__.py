"""Python interface: the functions behind the commands of `repro`. docs/python-api.md shows how to use them.

Values in, values out: nothing is printed, and errors are ReproError. The names are loaded on first use, because the
database, the scheduler's modules and YAML take longer to import than `repro --help` may take.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.api.figures import Bundle as Bundle
    from orchestrator.api.figures import BundleCheck as BundleCheck
    from orchestrator.api.figures import Collected as Collected
    from orchestrator.api.figures import JudgedClaims as JudgedClaims
    from orchestrator.api.figures import Plotted as Plotted
    from orchestrator.api.figures import PublishedComparison as PublishedComparison
    from orchestrator.api.figures import Report as Report
    from orchestrator.api.figures import RunComparison as RunComparison
    from orchestrator.api.figures import bundle as bundle
    from orchestrator.api.figures import bundle_file as bundle_file
    from orchestrator.api.figures import claims as claims
    from orchestrator.api.figures import collect as collect
    from orchestrator.api.figures import compare as compare
    from orchestrator.api.figures import compare_runs as compare_runs
    from orchestrator.api.figures import outcome as outcome
    from orchestrator.api.figures import plot as plot
    from orchestrator.api.figures import report as report
    from orchestrator.api.figures import require_plot_file as require_plot_file
    from orchestrator.api.figures import verify_bundle as verify_bundle
    from orchestrator.api.figures import write_file as write_file
    from orchestrator.api.jobs import JobHistory as JobHistory
    from orchestrator.api.jobs import JobLog as JobLog
    from orchestrator.api.jobs import Status as Status
    from orchestrator.api.jobs import history as history
    from orchestrator.api.jobs import job_ids as job_ids
    from orchestrator.api.jobs import logs as logs
    from orchestrator.api.jobs import query as query
    from orchestrator.api.jobs import relations as relations
    from orchestrator.api.jobs import status as status
    from orchestrator.api.plans import ExperimentCases as ExperimentCases
    from orchestrator.api.plans import ExperimentList as ExperimentList
    from orchestrator.api.plans import PlannedRun as PlannedRun
    from orchestrator.api.plans import experiments as experiments
    from orchestrator.api.plans import plan as plan
    from orchestrator.api.plans import plan_run as plan_run
    from orchestrator.api.plans import require_submittable as require_submittable
    from orchestrator.api.plans import show as show
    from orchestrator.api.runs import Rendered as Rendered
    from orchestrator.api.runs import Retried as Retried
    from orchestrator.api.runs import RetriedGroup as RetriedGroup
    from orchestrator.api.runs import Submission as Submission
    from orchestrator.api.runs import Waited as Waited
    from orchestrator.api.runs import cancel as cancel
    from orchestrator.api.runs import cancel_jobs as cancel_jobs
    from orchestrator.api.runs import cancellable_jobs as cancellable_jobs
    from orchestrator.api.runs import render as render
    from orchestrator.api.runs import retry as retry
    from orchestrator.api.runs import submit as submit
    from orchestrator.api.runs import supervise as supervise
    from orchestrator.api.runs import wait as wait
    from orchestrator.api.session import Reporter as Reporter
    from orchestrator.api.session import Session as Session
    from orchestrator.api.session import Silent as Silent
    from orchestrator.catalog.case import Case as Case
    from orchestrator.catalog.case import shown_value as shown_value
    from orchestrator.catalog.expand import expand as expand
    from orchestrator.catalog.experiment import scale_names as scale_names
    from orchestrator.catalog.library import Entry as Entry
    from orchestrator.catalog.library import experiment_names as experiment_names
    from orchestrator.catalog.library import find_entries as find_entries
    from orchestrator.catalog.library import names_meant as names_meant
    from orchestrator.catalog.library import papers as papers
    from orchestrator.clusters.layers import dotted as dotted
    from orchestrator.clusters.layers import leaves as leaves
    from orchestrator.clusters.profile import schema_text as schema_text
    from orchestrator.clusters.program import ImageRow as ImageRow
    from orchestrator.clusters.program import image_rows as image_rows
    from orchestrator.clusters.program import imported_file as imported_file
    from orchestrator.clusters.resolve import Cluster as Cluster
    from orchestrator.clusters.resolve import cluster_names as cluster_names
    from orchestrator.clusters.resolve import find_cluster as find_cluster
    from orchestrator.config.yaml import shown as shown
    from orchestrator.files import require_place as require_place
    from orchestrator.launch.cluster_check import ClusterCheck as ClusterCheck
    from orchestrator.launch.cluster_check import check_cluster as check_cluster
    from orchestrator.launch.cluster_check import new_cluster as new_cluster
    from orchestrator.launch.images import Import as Import
    from orchestrator.launch.images import import_images as import_images
    from orchestrator.launch.images import import_progress as import_progress
    from orchestrator.launch.images import wanted_images as wanted_images
    from orchestrator.ledger.readonly_sql import Answer as Answer
    from orchestrator.ledger.readonly_sql import Relation as Relation
    from orchestrator.ledger.reports import PastAttempt as PastAttempt
    from orchestrator.ledger.rows import JobRow as JobRow
    from orchestrator.ledger.tables import OPEN as OPEN
    from orchestrator.ledger.tables import QUEUED as QUEUED
    from orchestrator.ledger.tables import RUNNING as RUNNING
    from orchestrator.ledger.tables import field_values as field_values
    from orchestrator.planning.batch_report import BatchReport as BatchReport
    from orchestrator.planning.batch_report import budget_text as budget_text
    from orchestrator.planning.batch_report import exact_jobs as exact_jobs
    from orchestrator.planning.batch_report import with_exact_memory as with_exact_memory
    from orchestrator.planning.plan import Plan as Plan
    from orchestrator.reading.failure import POLICIES as POLICIES
    from orchestrator.reading.job_status import ExperimentStatus as ExperimentStatus
    from orchestrator.reading.job_status import JobStatus as JobStatus
    from orchestrator.reading.job_status import Tally as Tally
    from orchestrator.reading.job_status import running_progress as running_progress
    from orchestrator.results.bundle.archive import require_key as require_key
    from orchestrator.results.cases import Result as Result
    from orchestrator.results.evidence import shown_number as shown_number
    from orchestrator.results.export.formats import csv_line as csv_line
    from orchestrator.results.export.formats import require_parquet as require_parquet
    from orchestrator.results.export.rows import claim_rows as claim_rows
    from orchestrator.results.outcome import FigureOutcome as FigureOutcome
    from orchestrator.results.reference import ReferenceRow as ReferenceRow
    from orchestrator.results.reference import equation as equation
    from orchestrator.results.regression import CaseDiff as CaseDiff
    from orchestrator.workloads import workload_name as workload_name
    from orchestrator.workloads import workloads as workloads

_NAMES = {
    "api.figures": (
        "Bundle BundleCheck Collected JudgedClaims Plotted PublishedComparison Report RunComparison bundle "
        "bundle_file claims collect compare compare_runs outcome plot report require_plot_file verify_bundle "
        "write_file"
    ),
    "api.jobs": "JobHistory JobLog Status history job_ids logs query relations status",
    "api.plans": "ExperimentCases ExperimentList PlannedRun experiments plan plan_run require_submittable show",
    "api.runs": (
        "Rendered Retried RetriedGroup Submission Waited cancel cancel_jobs cancellable_jobs render retry submit "
        "supervise wait"
    ),
    "api.session": "Reporter Session Silent",
    "atomic_write": "require_place",
    "catalog.case": "Case shown_value",
    "catalog.expand": "expand",
    "catalog.experiment": "scale_names",
    "catalog.library": "Entry experiment_names find_entries names_meant papers",
    "clusters.layers": "dotted leaves",
    "clusters.profile": "schema_text",
    "clusters.program": "ImageRow image_rows imported_file",
    "clusters.resolve": "Cluster cluster_names find_cluster",
    "config.yaml": "shown",
    "launch.cluster_check": "ClusterCheck check_cluster new_cluster",
    "launch.images": "Import import_images import_progress wanted_images",
    "ledger.readonly_sql": "Answer Relation",
    "ledger.reports": "PastAttempt",
    "ledger.rows": "JobRow",
    "ledger.tables": "OPEN QUEUED RUNNING field_values",
    "planning.batch_report": "BatchReport budget_text exact_jobs with_exact_memory",
    "planning.plan": "Plan",
    "reading.failure": "POLICIES",
    "reading.job_status": "ExperimentStatus JobStatus Tally running_progress",
    "results.bundle.archive": "require_key",
    "results.cases": "Result",
    "results.evidence": "shown_number",
    "results.export.formats": "csv_line require_parquet",
    "results.export.rows": "claim_rows",
    "results.outcome": "FigureOutcome",
    "results.reference": "ReferenceRow equation",
    "results.regression": "CaseDiff",
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
    return sorted(_MODULES)
