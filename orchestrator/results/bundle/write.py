"""Writer of a bundle.

The same ledger and the same files give the same bytes: a bundle contains no time, place or author of its own.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.errors import Problem, ReproError
from orchestrator.files import written_whole
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import OPEN
from orchestrator.masking import masked
from orchestrator.results.bundle.archive import Added, Archive, new_archive
from orchestrator.results.bundle.contents import (
    README,
    REPORT,
    Contents,
    MissingFile,
    add_attempts,
    bundle_name,
    code_sha256,
    readme,
    stored_outcome,
)
from orchestrator.results.bundle.extract import (
    TABLES,
    Extract,
    Row,
    extract_of,
    given_out,
    iterations_of,
    line_of,
    memory_ledger,
    row_of,
)
from orchestrator.results.export.formats import as_csv, as_json
from orchestrator.results.export.rows import claim_rows, export_rows, runs_of
from orchestrator.results.outcome import FigureOutcome, needs_losses
from orchestrator.results.report.page import report

FORMAT = 1
ABOUT, MANIFEST, SUMS = "bundle.json", "MANIFEST", "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Bundled:
    """Number of files and attempts that were written; `under_way` attempts may still change."""

    files: int
    attempts: int
    under_way: int
    missing: tuple[MissingFile, ...]


def write_bundle(ledger: Ledger, figure: FigureOutcome, templates: Path, file: Path) -> Bundled:
    """Write the bundle of a figure, whole or not at all; the bundle lists unreadable files as missing."""
    extract = extract_of(ledger, figure.entry.name, figure.scale, figure.cluster, set(figure.workloads))
    contents = Contents()
    paths = add_attempts(contents, extract, ledger)  # first: with the scripts the secrets in them are known
    _add_inputs(contents, figure, extract)
    lines = _Lines(ledger, extract, paths, contents.secrets)
    for table in TABLES:
        contents.files[f"ledger/{table}.jsonl"] = functools.partial(lines.of, table)
    _add_results(contents, ledger, figure, extract)
    masked_ledger, masked_extract = _ledger_of_bundle(contents, figure, lines)
    shown = stored_outcome(masked_ledger, figure.entry, figure.scale)
    contents.add(REPORT, report(masked_ledger, [shown], templates).encode())
    under_way = sum(row["phase"] in OPEN for row in extract.attempts)
    at: datetime = extract.last_run["created_at"]
    with written_whole(file) as part, new_archive(part, bundle_name(figure), at) as archive:
        added = [one for path in sorted(contents.files) if (one := _added(archive, contents, path))]
        contents.missing.sort(key=lambda one: one.path)
        missing = [{"path": one.path, "why": one.why} for one in contents.missing]
        about = {"format": FORMAT, "repro": __version__, "experiment": figure.entry.name, "scale": figure.scale}
        about |= {"code_sha256": code_sha256(templates)}
        about |= {"cluster": figure.cluster, "workloads": figure.workloads, "under_way": under_way, "missing": missing}
        added.append(archive.add(ABOUT, [_json(about)]))
        reasons = {one.path: one.why for one in contents.missing}
        added.append(archive.add(README, [readme(shown, masked_extract, reasons).encode()]))
        added.append(archive.add(MANIFEST, [_manifest(added)]))
        archive.add(SUMS, [f"{one.sha256}  {one.path}\n".encode() for one in added])
    return Bundled(len(added) + 1, len(extract.attempts), under_way, tuple(contents.missing))


def _added(archive: Archive, contents: Contents, path: str) -> Added | None:
    """Add a file to the archive; record it as missing if it cannot be read."""
    try:
        return archive.add(path, contents.files[path]())
    except ReproError as error:
        place, is_judged = contents.places[path]
        contents.lacks(path, place, error, is_judged)
        return None


def _manifest(added: Iterable[Added]) -> bytes:
    """Return a line per file: bytes, SHA-256 and path, separated by tabs."""
    return "".join(f"{one.size_bytes}\t{one.sha256}\t{one.path}\n" for one in added).encode()


def _add_inputs(contents: Contents, figure: FigureOutcome, extract: Extract) -> None:
    """Add the experiment as it is now, the profiles as recorded, and the environment of the runs."""
    name = figure.entry.name
    for path, file in ((name, figure.entry.file), (f"{name.rpartition('/')[0]}/paper", None)):
        source = file or figure.entry.file.parent / "paper.yaml"
        try:
            contents.add(
                f"experiment/{path}.yaml", masked(source.read_text(encoding="utf-8"), contents.secrets).encode()
            )
        except OSError as error:
            raise ReproError(Problem(f"{source}: cannot be read ({error.strerror})")) from None
    for run in extract.runs:
        contents.add(profile_path(run), _json(given_out(run["profile"], extract.users, contents.secrets)))
    made_with = [{name: run[name] for name in ("id", "git_commit", "git_dirty", "versions")} for run in extract.runs]
    names = ("workload", "code", "image", "image_digest")
    ran = {tuple(job[name] for name in names) for job in extract.jobs}
    programs = [dict(zip(names, values, strict=True)) for values in sorted(ran, key=repr)]
    gpus = sorted({gpu for job in extract.jobs if (gpu := job["configuration"].get("gpu"))})
    environment = {"runs": made_with, "programs": programs, "gpus": gpus}
    contents.add("environment.json", _json(given_out(environment, extract.users, contents.secrets)))


def profile_path(run: Row) -> str:
    """Return the path of the profile of a run."""
    return f"runs/{run['id']}/profile.json"


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines of the files of all tables; `paths` are the paths in the rows of attempts."""

    ledger: Ledger
    extract: Extract
    paths: Mapping[int, Row]
    secrets: Collection[str]

    def of(self, table: str) -> Iterator[bytes]:
        """Yield the lines of a table."""
        rows = iterations_of(self.ledger, self.extract.attempts) if table == "iterations" else self.extract.of(table)
        return (line_of(table, row, self._paths_of(table, row), self.extract.users, self.secrets) for row in rows)

    def read_back(self, table: str) -> Iterator[Row]:
        """Return the rows that whoever verifies the bundle reads."""
        return (row_of(table, line) for line in self.of(table))

    def _paths_of(self, table: str, row: Row) -> Row:
        if table == "attempts":
            return self.paths[row["id"]]
        return {"profile": profile_path(row)} if table == "runs" else {}


def _add_results(contents: Contents, ledger: Ledger, figure: FigureOutcome, extract: Extract) -> None:
    rows = [result.row for result in figure.results if result.row is not None]
    cases = given_out(export_rows(figure.entry, figure.results, runs_of(ledger, rows)), extract.users, contents.secrets)
    contents.add("results/cases.csv", as_csv(cases).encode())
    contents.add("results/results.json", as_json(cases, claim_rows(figure.claims)).encode())


def _ledger_of_bundle(contents: Contents, figure: FigureOutcome, lines: _Lines) -> tuple[Ledger, Extract]:
    """Return the rows that a reader of the bundle gets: masked, without users, and with the bundle's paths."""

    def text_of(path: str) -> str:
        return b"".join(contents.files[path]()).decode("utf-8", "replace")

    extract = Extract(**{table: list(lines.read_back(table)) for table in TABLES if table != "iterations"})
    iterations = lines.read_back("iterations") if needs_losses(figure.entry) else ()
    ledger = memory_ledger(
        extract,
        iterations,
        Path(),
        profile_of=lambda run: dict(json.loads(text_of(run["profile"]))),
        script_of=lambda row: text_of(row["script"]) if row["script"] else None,
    )
    return ledger, extract


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
