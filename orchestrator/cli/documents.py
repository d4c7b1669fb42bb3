"""JSON documents of the commands: `DOCUMENTS` has the lists of rows that each command prints with --json.

`json_output.py` adds `version`, `command`, `errors` and `exit_code`. docs/reference/json.md describes the documents.
docs/reference/json.schema.json is generated from the types of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping


class JsonDocument:
    """Lists of rows by name. A row type is a class of `orchestrator.api`, `str`, or `object` for any value."""

    def __init__(self, about: str, **lists: str) -> None:
        self.about = about
        self.lists: Mapping[str, str] = lists


_NODES = JsonDocument("Entries of the deny list of nodes.", nodes="DeniedNode")

DOCUMENTS: Mapping[str, JsonDocument] = {
    "list": JsonDocument(
        "All experiments, and the names of the clusters.", experiments="ListedExperiment", clusters="str"
    ),
    "show": JsonDocument(
        "An experiment with its cases and claims, or a paper with its experiments.",
        papers="ShownPaper",
        experiments="ShownExperiment",
        cases="ShownCase",
        claims="StatedClaim",
    ),
    "plan": JsonDocument(
        "Checked cases with their cost. Refused cases are errors.",
        cases="PlanRow",
        totals="PlanTotals",
        warnings="str",
        notes="str",
    ),
    "render": JsonDocument(
        "Batch scripts; with --explain, the lines of the first one.", scripts="CaseScript", lines="Explained"
    ),
    "status": JsonDocument(
        "Jobs, and their number by verdict and state for each experiment, scale and cluster.",
        jobs="JobStatus",
        experiments="ExperimentStatus",
        notes="str",
    ),
    "logs": JsonDocument("Lines of a log.", lines="str"),
    "history": JsonDocument("Attempts of a job, the first one first.", attempts="JobAttempt"),
    "sql": JsonDocument(
        "Rows of a query, or the views and tables of the ledger without one.",
        relations="Relation",
        columns="str",
        rows="object",
    ),
    "submit": JsonDocument(
        "Planned jobs with --dry-run, else the jobs; with --wait, also the cases and claims.",
        plans="PlannedJob",
        jobs="JobRef",
        cases="CaseRow",
        claims="JudgedClaim",
    ),
    "search": JsonDocument(
        "The search, its cases, the measured ones first, and the winner; with --simulate only the simulated cases.",
        searches="SearchSummary",
        candidates="SearchedCase",
        reasons="NotRunReason",
        winners="SearchWinner",
        simulated="SimulatedCase",
    ),
    "adopt": JsonDocument(
        "Jobs that were read, and the scripts of jobs that were read before or never submitted.",
        jobs="JobRef",
        adopted_before="str",
        not_submitted="str",
    ),
    "wait": JsonDocument("Jobs that have ended; after a timeout, also open ones.", jobs="JobStatus"),
    "retry": JsonDocument("Jobs that were submitted again; with --dry-run, those that would be.", jobs="RetriedJob"),
    "cancel": JsonDocument("Jobs that the scheduler was asked to end. Refused ones are errors.", jobs="JobRef"),
    "collect": JsonDocument(
        "Cases with all columns of docs/reference/export.md, or iterations, and claims; with -o, the file.",
        cases="CaseRow",
        iterations="object",
        claims="JudgedClaim",
        files="WrittenFile",
    ),
    "compare": JsonDocument(
        "Measured and published numbers; for two sets of runs A and B, their names and the cases.",
        numbers="ComparedNumber",
        sides="Side",
        cases="CaseDiff",
    ),
    "claims": JsonDocument("Judged claims, and the jobs that failed.", claims="JudgedClaim", failed_jobs="JobRef"),
    "plot": JsonDocument("The pictures, and the claims that they show.", files="WrittenFile", claims="JudgedClaim"),
    "report": JsonDocument("The page, and the claims on it.", files="WrittenFile", claims="JudgedClaim"),
    "bundle": JsonDocument(
        "The bundles, the files that are not in them, and the attempts that do not count.",
        files="WrittenFile",
        missing="MissingFile",
        left_out="LeftOutAttempt",
    ),
    "bundle verify": JsonDocument("Checks of a bundle.", checks="BundleCheckRow"),
    "clusters list": JsonDocument("Cluster profiles.", clusters="ClusterRow"),
    "clusters show": JsonDocument(
        "A profile, and each of its fields with its place.",
        clusters="ClusterRow",
        fields="ProfileField",
        profiles="object",
    ),
    "clusters check": JsonDocument("Checks of a profile. Wrong and open ones are also errors.", checks="Finding"),
    "clusters new": JsonDocument("The profile that was written.", files="WrittenFile"),
    "images list": JsonDocument("Images of a profile.", images="ImageFile"),
    "images import": JsonDocument("Imports that were started.", imports="ImageImport"),
    "nodes deny": _NODES,
    "nodes list": _NODES,
    "nodes allow": _NODES,
    "experiments new": JsonDocument("Files that were written.", files="WrittenFile"),
    "experiments check": JsonDocument("Scales of an experiment without problems.", scales="CheckedScale"),
    "config show": JsonDocument("Settings that apply to every command.", settings="ConfigRow"),
    "workloads list": JsonDocument("Programs.", workloads="WorkloadRow"),
    "workloads show": JsonDocument("A program, and what it needs.", workloads="WorkloadRow", needs="NeedRow"),
    "workloads fetch": JsonDocument(
        "What was fetched, and the fields to set in the profile; with --offline, the commands.",
        fetched="FetchedFile",
        settings="FetchedSetting",
        commands="str",
    ),
}
"""Command -> its lists of rows. A test validates the output of each command."""
