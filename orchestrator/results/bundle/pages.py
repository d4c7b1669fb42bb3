"""Report and README of a bundle, rendered from the rows in the bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import orchestrator
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.reports import run_summaries
from orchestrator.ledger.tables import OPEN
from orchestrator.results.bundle.contents import SCRIPT, bundle_name, submit_command
from orchestrator.results.bundle.extract import Extract
from orchestrator.results.outcome import FigureOutcome, outcome_of
from orchestrator.results.regression import in_order_of_runs

REPORT, README = "report.html", "README.txt"


def stored_outcome(ledger: Ledger, entry: Entry, scale: str) -> FigureOutcome:
    """Return the outcome of a bundle's experiment from the ledger that contains the bundle's rows."""
    rows = [row for row in job_rows(ledger, experiment=entry.name) if row.scale == scale]
    if not rows:
        raise ReproError(Problem(f"no job of {entry.name} at scale {scale}", "ledger/:"))
    return outcome_of(ledger, entry, rows, in_order_of_runs(rows, run_summaries(ledger))[-1])


def code_sha256(templates: Path) -> str:
    """Return the digest of this program's code and of the report's templates: equal where they render the same."""
    package = Path(orchestrator.__file__).parent
    files = [path for path in package.rglob("*.py") if "shipped" not in path.relative_to(package).parts]
    digest = hashlib.sha256()
    for root, paths in ((package, files), (templates, templates.glob("report.*"))):
        for path in sorted(paths):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


_CONTENTS = (
    ("results/", "a row per case as CSV and JSON, and the verdict of each claim"),
    ("report.html", "the results as a page, with their provenance; for any browser"),
    ("experiment/", "the figure as a program: cases, axes, published numbers and claims, with their sources"),
    ("jobs/", "script, logs, start and end records of each attempt of each job"),
    ("runs/", "for each `repro submit`: the cluster profile, and the files that the scheduler received"),
    ("ledger/", "the recorded rows: a file per table, a line of JSON per row"),
    ("environment.json", "versions, commits, images"),
    ("MANIFEST", "bytes, SHA-256 and path of each file"),
)


def readme(outcome: FigureOutcome, extract: Extract, missing: Mapping[str, str]) -> str:
    """Return the README as plain text; `missing` are paths that the bundle lacks, each with the reason."""
    entry, scale, cluster = outcome.entry, outcome.scale, outcome.cluster
    under_way = sum(row["phase"] in OPEN for row in extract.attempts)
    text = [
        f"{entry.paper.title} ({entry.paper.venue})",
        f"{entry.experiment.figure}: {entry.experiment.title}",
        "",
        f"Scale {scale} on {cluster}: {len(extract.attempts)} attempts of {len(extract.jobs)} jobs.",
    ]
    text += [f"Not final: {under_way} attempts were still under way."] if under_way else []
    text += ["", "To check the bundle without a cluster, a ledger or a network:", ""]
    text += [f"    repro bundle verify {bundle_name(outcome)}.tar.zst", "    sha256sum --check SHA256SUMS", ""]
    text += [
        "The first command reads every number from the logs, judges the claims, renders this page and the report, and",
        "compares the results with the bundle. The second command compares each file in this folder with its checksum.",
        "Neither proves who made the bundle: a signature does (--allowed-signers).",
    ]
    text += ["", "To run everything again, or one job by hand:", "", f"    {submit_command(outcome)}"]
    text += [*_by_hand(extract), ""]
    text += [f"On a cluster other than {cluster}, give another --cluster and change the paths in the script."]
    text += ["", "Contents:", "", *(f"    {path:<18}{what}" for path, what in _CONTENTS), ""]
    text += [
        "Scripts and logs are as they ran, with *** in place of secrets; script_sha256 is the digest of the script",
        "before. Times are UTC. The bundle leaves out who submitted; logs may still contain a user's folder.",
    ]
    if missing:
        text += ["", "Missing files:", "", *(f"    {path}: {why}" for path, why in missing.items())]
    return "\n".join(text) + "\n"


def _by_hand(extract: Extract) -> list[str]:
    """Return the command that runs the last script by hand."""
    if not extract.attempts:
        return []
    row = extract.attempts[-1]
    starts = "sbatch" if row["scheduler"] == "slurm" else "bash"
    return [f"    {starts} {row['folder']}/{SCRIPT} FOLDER   # its log goes there"]
