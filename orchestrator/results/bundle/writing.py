"""Everything that a reviewer of an artifact needs, in one file; `bundle_verify` holds it to its own logs.

The same ledger and the same files give the same bytes: nothing in it is about when, where or by whom it was made.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import OPEN
from orchestrator.masking import masked
from orchestrator.results.bundle.archive import Added, Archive, new_archive
from orchestrator.results.bundle.contents import Contents, Figure, Missing, add_attempts
from orchestrator.results.bundle.extract import TABLES, Extract, Row, extract_of, iterations_of, line_of
from orchestrator.results.bundle.masking import given_out, given_out_text
from orchestrator.results.bundle.readme import readme
from orchestrator.results.export.formats import as_csv, as_json
from orchestrator.results.export.rows import claim_rows, export_rows, runs_of
from orchestrator.results.written import written_whole

FORMAT = 1
ABOUT, README, MANIFEST, SUMS = "bundle.json", "README.txt", "MANIFEST", "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Bundled:
    """What was written; `under_way` counts attempts that may still change."""

    files: int
    attempts: int
    under_way: int
    missing: tuple[Missing, ...]


def write_bundle(ledger: Ledger, figure: Figure, templates: Path, file: Path) -> Bundled:
    """The figure's bundle at `file`, whole or not at all. What cannot be read is left out, which the bundle says."""
    extract = extract_of(ledger, figure.entry.name, figure.scale, figure.cluster, set(figure.workloads))
    contents = Contents()
    _add_inputs(contents, figure, extract)
    _add_rows(contents, ledger, extract, add_attempts(contents, extract, ledger))
    _add_results(contents, ledger, figure, extract)
    contents.add("report.html", _report(ledger, figure, templates, extract.users).encode())
    under_way = sum(row["phase"] in OPEN for row in extract.attempts)
    at: datetime = extract.last_run["created_at"]
    with written_whole(file) as part, new_archive(part, figure.name, at) as archive:
        added = [one for path in sorted(contents.files) if (one := _added(archive, contents, path))]
        contents.missing.sort(key=lambda one: one.path)
        missing = [{"path": one.path, "why": one.why} for one in contents.missing]
        about = {"format": FORMAT, "repro": __version__, "experiment": figure.entry.name, "scale": figure.scale}
        about |= {"cluster": figure.cluster, "workloads": figure.workloads, "under_way": under_way, "missing": missing}
        added.append(archive.add(ABOUT, [_json(about)]))
        added.append(archive.add(README, [readme(figure, extract, contents.missing, under_way).encode()]))
        added.append(archive.add(MANIFEST, [_manifest(added)]))
        archive.add(SUMS, [f"{one.sha256}  {one.path}\n".encode() for one in added])
    return Bundled(len(added) + 1, len(extract.attempts), under_way, tuple(contents.missing))


def _added(archive: Archive, contents: Contents, path: str) -> Added | None:
    """What is gone, or cannot be read, is missing from here on; nothing of it is in the archive."""
    try:
        return archive.add(path, contents.files[path]())
    except ReproError as error:
        place, is_judged = contents.places[path]
        contents.lacks(path, place, error, is_judged)
        return None


def _manifest(added: Iterable[Added]) -> bytes:
    """A line per file: bytes, SHA-256, path, with a tab between them."""
    return "".join(f"{one.size_bytes}\t{one.sha256}\t{one.path}\n" for one in added).encode()


def _add_inputs(contents: Contents, figure: Figure, extract: Extract) -> None:
    """The experiment as it reads today, the profiles as they were, and with what the runs were made."""
    name = figure.entry.name
    for path, file in ((name, figure.entry.file), (f"{name.rpartition('/')[0]}/paper", None)):
        source = file or figure.entry.file.parent / "paper.yaml"
        try:
            contents.add(f"experiment/{path}.yaml", masked(source.read_text(encoding="utf-8")).encode())
        except OSError as error:
            raise ReproError(Problem(f"{source}: cannot be read ({error.strerror})")) from None
    for run in extract.runs:
        contents.add(profile_path(run), _json(given_out(run["profile"], extract.users)))
    made_with = [{name: run[name] for name in ("id", "git_commit", "git_dirty", "versions")} for run in extract.runs]
    names = ("workload", "code", "image", "image_digest")
    ran = {tuple(job[name] for name in names) for job in extract.jobs}
    programs = [dict(zip(names, values, strict=True)) for values in sorted(ran, key=repr)]
    gpus = sorted({gpu for job in extract.jobs if (gpu := job["configuration"].get("gpu"))})
    environment = {"runs": made_with, "programs": programs, "gpus": gpus}
    contents.add("environment.json", _json(given_out(environment, extract.users)))


def profile_path(run: Row) -> str:
    return f"runs/{run['id']}/profile.json"


def _add_rows(contents: Contents, ledger: Ledger, extract: Extract, paths: dict[int, Row]) -> None:
    def paths_of(table: str, row: Row) -> Row:
        if table == "attempts":
            return paths[row["id"]]
        return {"profile": profile_path(row)} if table == "runs" else {}

    def add(table: str) -> None:
        def lines() -> Iterable[bytes]:
            rows = iterations_of(ledger, extract.attempts) if table == "iterations" else extract.of(table)
            return (line_of(table, row, paths_of(table, row), extract.users) for row in rows)

        contents.files[f"ledger/{table}.jsonl"] = lines

    for table in TABLES:
        add(table)


def _add_results(contents: Contents, ledger: Ledger, figure: Figure, extract: Extract) -> None:
    rows = [result.row for result in figure.found if result.row is not None]
    cases = given_out(export_rows(figure.entry, figure.found, runs_of(ledger, rows)), extract.users)
    contents.add("results/cases.csv", as_csv(cases).encode())
    contents.add("results/results.json", as_json(cases, claim_rows(figure.claims)).encode())


def _report(ledger: Ledger, figure: Figure, templates: Path, users: set[str]) -> str:
    """The page, without who submitted."""
    from orchestrator.results.report.html import rendered
    from orchestrator.results.report.page import Reported, page_of

    one = Reported(figure.entry, figure.scale, figure.cluster, figure.found, figure.claims)
    page = page_of(ledger, [one])
    figures = [
        dataclasses.replace(each, runs=tuple(dataclasses.replace(run, by="") for run in each.runs))
        for each in page.figures
    ]
    return given_out_text(rendered(dataclasses.replace(page, figures=tuple(figures)), templates), users)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
