"""JSON documents of the commands: `DOCUMENTS` has the lists of rows that each command prints with --json.

`json_output.py` adds `schema_version`, `command`, `errors` and `exit_code`. docs/reference/json.md describes the
documents, and docs/reference/json.schema.json is generated from these types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict  # pydantic cannot read the one of Python 3.10

from orchestrator import api
from orchestrator.cli.json_plan_rows import CheckedCase, PlannedJob
from orchestrator.cli.json_rows import (
    AttemptRow,
    CaseOutcome,
    ChangedCase,
    ComparedNumber,
    ErrorRow,
    JobRef,
    JudgedClaim,
    NotRunReason,
    RetriedJob,
    SearchedCase,
    SearchSummary,
    SearchWinner,
    ShownCase,
    ShownExperiment,
    ShownPaper,
    SimulatedCase,
    StatedClaim,
)
from orchestrator.cli.json_site_rows import (
    BundleCheckRow,
    CheckRow,
    ClusterRow,
    FetchedFile,
    FileRow,
    ImageFile,
    ImageImport,
    NeedRow,
    ProfileField,
    ScriptLine,
    ScriptRow,
    Setting,
    WorkloadRow,
    WrittenFile,
)


class Envelope(TypedDict):
    """Fields of every document. `errors` are the problems behind exit codes 2 and 3."""

    schema_version: int
    command: str
    errors: Sequence[ErrorRow]
    exit_code: int


class ListDocument(TypedDict):
    """All experiments, and the names of the clusters."""

    experiments: Sequence[api.ListedExperiment]
    clusters: Sequence[str]


class ShowDocument(TypedDict):
    """An experiment with its cases and claims, or a paper with its experiments."""

    papers: Sequence[ShownPaper]
    experiments: Sequence[ShownExperiment]
    cases: Sequence[ShownCase]
    claims: Sequence[StatedClaim]


class PlanDocument(TypedDict):
    """Checked cases with their cost. Refused cases are errors."""

    cases: Sequence[CheckedCase]
    totals: Sequence[api.PlanTotals]
    warnings: Sequence[str]
    notes: Sequence[str]


class RenderDocument(TypedDict):
    """Batch scripts; with --explain, the lines of the first one."""

    scripts: Sequence[ScriptRow]
    lines: Sequence[ScriptLine]


class StatusDocument(TypedDict):
    """Jobs, and their number by verdict and state for each experiment, scale and cluster."""

    jobs: Sequence[api.JobStatus]
    experiments: Sequence[api.ExperimentStatus]
    notes: Sequence[str]


class LogsDocument(TypedDict):
    """Lines of a log."""

    lines: Sequence[str]


class HistoryDocument(TypedDict):
    """Attempts of a job, the first one first."""

    attempts: Sequence[AttemptRow]


class SqlDocument(TypedDict):
    """Rows of a query, or the views and tables of the ledger without one."""

    relations: Sequence[api.Relation]
    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


class SubmitDocument(TypedDict):
    """Planned jobs with --dry-run, else the jobs; with --wait, also the cases and claims."""

    plans: Sequence[PlannedJob]
    jobs: Sequence[JobRef]
    cases: Sequence[CaseOutcome]
    claims: Sequence[JudgedClaim]


class SearchDocument(TypedDict):
    """The search, its cases, the measured ones first, and the winner; with --simulate only the simulated cases."""

    searches: Sequence[SearchSummary]
    candidates: Sequence[SearchedCase]
    reasons: Sequence[NotRunReason]
    winners: Sequence[SearchWinner]
    simulated: Sequence[SimulatedCase]


class AdoptDocument(TypedDict):
    """Jobs that were read, and the scripts of jobs that were read before or never submitted."""

    jobs: Sequence[JobRef]
    adopted_before: Sequence[str]
    not_submitted: Sequence[str]


class WaitDocument(TypedDict):
    """Jobs that have ended; after a timeout, also open ones."""

    jobs: Sequence[api.JobStatus]


class RetryDocument(TypedDict):
    """Jobs that were submitted again; with --dry-run, those that would be."""

    jobs: Sequence[RetriedJob]


class CancelDocument(TypedDict):
    """Jobs that the scheduler was asked to end. Refused ones are errors."""

    jobs: Sequence[JobRef]


class ForgetDocument(TypedDict):
    """Attempts that were hidden or shown again. Refused ones are errors."""

    attempts: Sequence[JobRef]


class CollectDocument(TypedDict):
    """Cases with all columns of docs/reference/export.md, or iterations, and claims; with -o, the file."""

    cases: Sequence[Mapping[str, Any]]
    iterations: Sequence[Mapping[str, Any]]
    claims: Sequence[JudgedClaim]
    files: Sequence[FileRow]


class CompareDocument(TypedDict):
    """Measured and published numbers; for two sets of runs A and B, their names and the cases."""

    numbers: Sequence[ComparedNumber]
    sides: Sequence[api.Side]
    cases: Sequence[ChangedCase]


class ClaimsDocument(TypedDict):
    """Judged claims, and the jobs that failed."""

    claims: Sequence[JudgedClaim]
    failed_jobs: Sequence[JobRef]


class PlotDocument(TypedDict):
    """The pictures, and the claims that they are about."""

    files: Sequence[FileRow]
    claims: Sequence[JudgedClaim]


class ReportDocument(TypedDict):
    """The page, and the claims on it."""

    files: Sequence[FileRow]
    claims: Sequence[JudgedClaim]


class BundleDocument(TypedDict):
    """The bundles, and the files and the forgotten attempts that are not in them."""

    files: Sequence[FileRow]
    missing: Sequence[api.MissingFile]
    forgotten: Sequence[api.ForgottenAttempt]


class BundleVerifyDocument(TypedDict):
    """Checks of a bundle."""

    checks: Sequence[BundleCheckRow]


class ClustersListDocument(TypedDict):
    """Cluster profiles."""

    clusters: Sequence[ClusterRow]


class ClustersShowDocument(TypedDict):
    """A profile, and each of its fields with its place."""

    clusters: Sequence[ClusterRow]
    fields: Sequence[ProfileField]
    profiles: Sequence[Mapping[str, Any]]


class ClustersCheckDocument(TypedDict):
    """Checks of a profile. Wrong and open ones are also errors."""

    checks: Sequence[CheckRow]


class ClustersNewDocument(TypedDict):
    """The profile that was written."""

    files: Sequence[FileRow]


class ImagesListDocument(TypedDict):
    """Images of a profile."""

    images: Sequence[ImageFile]


class ImagesImportDocument(TypedDict):
    """Imports that were started."""

    imports: Sequence[ImageImport]


class NodesDocument(TypedDict):
    """Entries of the deny list of nodes."""

    nodes: Sequence[api.DeniedNode]


class ExperimentsNewDocument(TypedDict):
    """Files that were written."""

    files: Sequence[WrittenFile]


class ExperimentsCheckDocument(TypedDict):
    """Scales of an experiment without problems."""

    scales: Sequence[api.CheckedScale]


class ConfigShowDocument(TypedDict):
    """Settings that apply to every command."""

    settings: Sequence[api.ConfigRow]


class WorkloadsListDocument(TypedDict):
    """Programs."""

    workloads: Sequence[WorkloadRow]


class WorkloadsShowDocument(TypedDict):
    """A program, and what it needs."""

    workloads: Sequence[WorkloadRow]
    needs: Sequence[NeedRow]


class WorkloadsFetchDocument(TypedDict):
    """What was fetched, and the fields to set in the profile; with --offline, the commands."""

    fetched: Sequence[FetchedFile]
    settings: Sequence[Setting]
    commands: Sequence[str]


DOCUMENTS: Mapping[str, type] = {
    "list": ListDocument,
    "show": ShowDocument,
    "plan": PlanDocument,
    "render": RenderDocument,
    "status": StatusDocument,
    "logs": LogsDocument,
    "history": HistoryDocument,
    "sql": SqlDocument,
    "submit": SubmitDocument,
    "search": SearchDocument,
    "adopt": AdoptDocument,
    "wait": WaitDocument,
    "retry": RetryDocument,
    "cancel": CancelDocument,
    "forget": ForgetDocument,
    "collect": CollectDocument,
    "compare": CompareDocument,
    "claims": ClaimsDocument,
    "plot": PlotDocument,
    "report": ReportDocument,
    "bundle": BundleDocument,
    "bundle verify": BundleVerifyDocument,
    "clusters list": ClustersListDocument,
    "clusters show": ClustersShowDocument,
    "clusters check": ClustersCheckDocument,
    "clusters new": ClustersNewDocument,
    "images list": ImagesListDocument,
    "images import": ImagesImportDocument,
    "nodes deny": NodesDocument,
    "nodes list": NodesDocument,
    "nodes allow": NodesDocument,
    "experiments new": ExperimentsNewDocument,
    "experiments check": ExperimentsCheckDocument,
    "config show": ConfigShowDocument,
    "workloads list": WorkloadsListDocument,
    "workloads show": WorkloadsShowDocument,
    "workloads fetch": WorkloadsFetchDocument,
}
"""Command -> its lists of rows. A test validates the output of each command."""
