"""Python interface: the functions behind the commands of `repro`. docs/reference/python-api.md shows how to use them.

Functions take and return values and print nothing. Errors are ReproError. The names below are loaded on first use,
because the database, the scheduler's modules and YAML take longer to import than `repro --help` may take.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from orchestrator.errors import Problem, ReproError

if TYPE_CHECKING:
    from orchestrator.api.catalog import (
        ExperimentCases,
        ExperimentList,
        ListedExperiment,
        PaperContents,
        ShownCase,
        ShownExperiment,
        ShownPaper,
        StatedClaim,
        experiments,
        is_paper,
        show,
        show_paper,
        shown_experiment,
    )
    from orchestrator.api.configuration import ConfigRow, config_rows, default_cluster
    from orchestrator.api.figures import (
        Bundle,
        Collected,
        JudgedClaims,
        Plotted,
        PublishedComparison,
        Report,
        RunComparison,
        UnprovenBundle,
        bundle,
        bundle_file,
        claims,
        collect,
        compare,
        compare_runs,
        outcomes,
        plot,
        plot_all,
        report,
        require_bundle_name,
        require_plot_file,
        verify_bundle,
        write_file,
    )
    from orchestrator.api.jobs import (
        JobAttempt,
        JobHistory,
        JobLog,
        Status,
        history,
        job_ids,
        job_states,
        logs,
        query,
        relations,
        status,
    )
    from orchestrator.api.plans import PlannedRun, plan, plan_run, plan_runs, require_submittable
    from orchestrator.api.runs import (
        Retried,
        RetriedGroup,
        RetriedJob,
        Waited,
        canary_of,
        cancel,
        cancel_jobs,
        cancellable_jobs,
        retry,
        wait,
    )
    from orchestrator.api.search import SearchOptions, run_search, search_answer, simulate_search
    from orchestrator.api.session import DEFAULT, SILENT, Reporter, Session, Silent
    from orchestrator.api.sites import (
        DenyList,
        Fetch,
        FetchedFile,
        FetchedSetting,
        NeedRow,
        NeedStatus,
        WorkloadNeeds,
        WorkloadRow,
        allow_nodes,
        deny_nodes,
        list_denied_nodes,
        plan_fetch,
        show_workload,
        workload_needs,
    )
    from orchestrator.api.submissions import (
        Adopted,
        CaseScript,
        Rendered,
        Submission,
        SubmitOptions,
        adopt,
        render,
        submit,
        submit_all,
        supervise,
    )
    from orchestrator.catalog.case import Case, shown_value
    from orchestrator.catalog.expand import expand
    from orchestrator.catalog.experiment import Difference, PublishedPoint, scale_names
    from orchestrator.catalog.library import Entry, experiment_names, find_entries, names_meant, papers
    from orchestrator.catalog.template import experiment_schema_text, new_experiment, paper_schema_text
    from orchestrator.clusters import cluster_names
    from orchestrator.clusters.check import Finding
    from orchestrator.clusters.layers import leaves
    from orchestrator.clusters.profile import schema_text
    from orchestrator.clusters.program import ImageFile, image_rows, imported_file
    from orchestrator.clusters.resolve import Cluster, ClusterRow, ProfileField, find_cluster
    from orchestrator.config.yaml import dotted, shown
    from orchestrator.fields import row_of, rows_of
    from orchestrator.files import WrittenFile, require_place, written_files
    from orchestrator.launch.cluster_check import ClusterCheck, check_cluster, new_cluster
    from orchestrator.launch.denied_nodes import DeniedNode, denied_note, with_denied_nodes
    from orchestrator.launch.images import ImageImport, Import, import_images, import_progress, wanted_images
    from orchestrator.launch.templates import Explained
    from orchestrator.ledger.measurements import MeasuredMetric
    from orchestrator.ledger.readonly_sql import Answer, Relation
    from orchestrator.ledger.rows import JobRow
    from orchestrator.ledger.tables import OPEN, QUEUED, RUNNING, field_values
    from orchestrator.planning.batch_plan import CheckedScale, check_experiment
    from orchestrator.planning.batch_report import (
        BatchReport,
        PlanRow,
        PlanTotals,
        budget_text,
        exact_jobs,
        with_exact_memory,
    )
    from orchestrator.planning.plan import Plan, PlannedJob
    from orchestrator.planning.run_settings import read_settings
    from orchestrator.planning.target import cases_at
    from orchestrator.reading.failure import POLICIES
    from orchestrator.reading.job_status import (
        ExperimentStatus,
        JobRef,
        JobStatus,
        prints_iterations,
        running_progress,
        spent_text,
    )
    from orchestrator.results.bundle.verify import NOTHING_VERIFIED, BundleCheckRow, Verified
    from orchestrator.results.bundle.write import MissingFile
    from orchestrator.results.cases import LeftOutAttempt, Result
    from orchestrator.results.claims import Used
    from orchestrator.results.comparison import CaseDiff, ComparedNumber, Side, equation
    from orchestrator.results.evidence import Margin, shown_number
    from orchestrator.results.export.formats import csv_line, require_parquet
    from orchestrator.results.export.rows import CaseRow, Row, export_rows, main_columns
    from orchestrator.results.outcome import FigureOutcome, JudgedClaim
    from orchestrator.search.answer import (
        CandidateRow,
        NotRunReason,
        SearchAnswer,
        SearchedCase,
        SearchSummary,
        SearchWinner,
        arguments_by_program,
        fastest_text,
    )
    from orchestrator.search.candidates import Simulated, SimulatedCase, read_search_budget
    from orchestrator.search.prepare import PreparedSearch, prepare_search
    from orchestrator.slurm.notation import time_limit_s
    from orchestrator.workloads import workload_name, workloads


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


@functools.cache
def _modules() -> dict[str, str]:
    """Return the module of each name that the block above imports for type checkers. It is the only list of them."""
    block = next(node for node in ast.parse(Path(__file__).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> object:
    """Import an exported name on first use."""
    if name not in _modules():
        raise AttributeError(f"module {__name__} has no attribute {name}")
    value = getattr(importlib.import_module(_modules()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_modules(), *(name for name in globals() if name.endswith(("Filter", "Options")))])
