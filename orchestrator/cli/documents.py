"""JSON documents of the commands: the lists of rows that each command prints with --json, and their printer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.errors import EXIT_OK, Problem
from orchestrator.text import utc_stamp


class JsonDocument:
    """Lists of rows by name. A row type is a class of `orchestrator.api`, `str`, or `object` for any value."""

    def __init__(self, about: str, **lists: str) -> None:
        self.about = about
        self.lists: Mapping[str, str] = lists


_NODES = JsonDocument("Entries of the deny list of nodes.", nodes="DeniedNode")

DOCUMENTS: dict[str, JsonDocument] = {
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
    "experiments check": JsonDocument(
        "Scales of an experiment without problems, and the numbers of an output.",
        scales="CheckedScale",
        numbers="OutputNumber",
    ),
    "config show": JsonDocument("Settings that apply to every command.", settings="ConfigRow"),
    "programs list": JsonDocument("Programs.", programs="ProgramRow"),
    "programs show": JsonDocument("A program, and what it needs.", programs="ProgramRow", needs="NeedRow"),
    "programs fetch": JsonDocument(
        "What was fetched, and the fields to set in the profile; with --offline, the commands.",
        fetched="FetchedFile",
        settings="FetchedSetting",
        commands="str",
    ),
}
"""Command -> its lists of rows. A test validates the output of each command."""


VERSION = 1
"""Version of the documents. A document of the same version may get more fields; no field changes its meaning."""


class JsonOutput:
    """The one JSON document of `command`: lists of rows by name. `finish` prints it with errors and exit code."""

    def __init__(self, print_text: Callable[[str], None]) -> None:
        self.command: str | None = None  # until --json is read
        self._print = print_text
        self._lists: Mapping[str, Sequence[object]] | None = None
        self._problems: Sequence[Problem] = ()
        self._open_list = ""
        self._is_series = False
        self._has_rows = False

    def put(self, problems: Sequence[Problem] = (), **lists: Sequence[object]) -> None:
        """Set the lists of the document, and problems that are not raised. `finish` prints them.

        A list of the command that is not given is empty. Without --json, nothing is printed.
        """
        self._lists, self._problems = lists, problems

    def print_line(self, **lists: Sequence[object]) -> None:
        """Print a document on one line now. Further documents may follow; that of `put` is the last one."""
        self._is_series = True
        self._print(_json({**self._head(), **self._complete(lists), "errors": [], "exit_code": EXIT_OK}))

    def print_rows(self, rows: Sequence[object], **lists: Sequence[object]) -> None:
        """Print more rows of the last list of the document now. `lists` are other lists, the same in each call."""
        if not self._open_list:
            complete = self._complete(lists)
            *before, self._open_list = complete
            for name, value in {**self._head(), **{name: complete[name] for name in before}}.items():
                self._print_field(name, value)
            self._print(f' "{self._open_list}": [')
        if rows:
            lines = ",\n".join(f"  {_json(row)}" for row in rows)
            self._print(f"  ,\n{lines}" if self._has_rows else lines)
            self._has_rows = True

    def finish(self, errors: Sequence[Problem], exit_code: int) -> None:
        """Print the document, or the rest of it. Without rows, all lists of the command are empty."""
        rows = [{"location": one.location, "problem": one.what, "hint": one.hint} for one in (*self._problems, *errors)]
        if self._is_series and self._lists is None and not rows:
            return
        lists = self._complete(self._lists or {})
        if self._is_series:
            self._print(_json({**self._head(), **lists, "errors": rows, "exit_code": exit_code}))
            return
        if self._open_list:
            self._print(" ],")
        else:
            for name, value in {**self._head(), **lists}.items():
                self._print_field(name, value)
        self._print_field("errors", rows)
        self._print(f' "exit_code": {exit_code}}}')

    def _head(self) -> dict[str, object]:
        return {"version": VERSION, "command": self.command}

    def _complete(self, lists: Mapping[str, Sequence[object]]) -> dict[str, Sequence[object]]:
        """Return all lists of the command; those that are not given are empty."""
        document = DOCUMENTS.get(self.command or "")
        return {name: lists.get(name, []) for name in document.lists} if document is not None else {}

    def _print_field(self, name: str, value: object) -> None:
        """Print a field; a list has a row on each line."""
        opening = "{" if name == "version" else " "
        if isinstance(value, (list, tuple)) and value:
            self._print(f'{opening}"{name}": [')
            self._print(",\n".join(f"  {_json(row)}" for row in value))
            self._print(" ],")
        else:
            self._print(f'{opening}"{name}": {_json(value)},')


def _json(value: object) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(json.loads(json.dumps(value, default=_plain))))


def _plain(value: Any) -> object:
    """Return a value of JSON: times in UTC with a Z, paths as text, dataclasses and models by their fields."""
    if isinstance(value, datetime):
        return utc_stamp(value)
    if isinstance(value, Mapping):
        return dict(value)
    if fields := getattr(value, "__dataclass_fields__", None):
        return {name: getattr(value, name) for name in fields}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes)):
        return list(value)
    return str(value)


def _finite(value: object) -> object:
    """Return the value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
