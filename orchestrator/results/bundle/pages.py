"""Report and README of a bundle, rendered from the rows in the bundle."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.catalog.selection import with_workload
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import AttemptOrigin, JobRow
from orchestrator.ledger.tables import OPEN
from orchestrator.results.bundle.contents import SCRIPT, bundle_name, submit_command
from orchestrator.results.bundle.extract import Extract, finite_losses, job_row, latest_rows, run_origin
from orchestrator.results.cases import case_results
from orchestrator.results.claims import judge_claims
from orchestrator.results.outcome import FigureOutcome

REPORT, README = "report.html", "README.txt"
_OF_JOB = ("gpus", "workload", "code", "image", "image_digest")


@dataclasses.dataclass(frozen=True, slots=True)
class Pages:
    """What both pages are rendered from: the experiment, the rows of a bundle, and its other files by path.

    `profile_of` returns the profile of a run, `script_of` the text of an attempt's script, or None where it is missing.
    """

    entry: Entry
    scale: str
    workloads: Sequence[str]
    extract: Extract
    iterations: Iterable[dict[str, Any]]
    profile_of: Callable[[dict[str, Any]], dict[str, Any]]
    script_of: Callable[[dict[str, Any]], str | None]

    def figure(self) -> FigureOutcome:
        """Return every case and claim, as the rows have them."""
        cases = expand(self.entry, self.scale)
        if {case.workload for case in cases} != set(self.workloads):
            cases = with_workload(cases, self.workloads[0])
        rows = self._latest()
        found = case_results(self.entry, cases, rows, self._metrics(), finite_losses(self.iterations))
        claims = judge_claims(self.entry, self.scale, found, rows[-1].spec.gpus_per_node or 0)
        return FigureOutcome(self.entry, self.scale, rows[-1].cluster, found, claims)

    def report(self, figure: FigureOutcome, templates: Path) -> bytes:
        """Return the page, without who submitted."""
        from orchestrator.results.report.html import rendered
        from orchestrator.results.report.page import Records, page_from

        extract, jobs = self.extract, self._latest()
        order = {row.job_id: place for place, row in reversed(list(enumerate(jobs)))}
        attempts = sorted(self._attempts(), key=lambda one: (order[one.job_id], one.number))
        made = {one.run_id for one in attempts}
        runs = [
            dataclasses.replace(run_origin(run), profile=self.profile_of(run))
            for run in extract.runs
            if run["id"] in made
        ]
        scripts: dict[str, str] = {}
        for row in extract.attempts:
            if row["script_sha256"] not in scripts and (text := self.script_of(row)):
                scripts[row["script_sha256"]] = text
        as_of = max((event["at"] for event in extract.events), default=None)
        page = page_from([Records(figure, jobs, attempts, runs)], scripts, as_of)
        figures = tuple(
            dataclasses.replace(each, runs=tuple(dataclasses.replace(run, by="") for run in each.runs))
            for each in page.figures
        )
        return rendered(dataclasses.replace(page, figures=figures), templates).encode()

    def readme(self, figure: FigureOutcome, missing: Mapping[str, str]) -> bytes:
        """Return the README; `missing` are paths that the bundle lacks, each with the reason."""
        under_way = sum(row["phase"] in OPEN for row in self.extract.attempts)
        return readme(figure, self.extract, missing, under_way).encode()

    def _latest(self) -> list[JobRow]:
        extract = self.extract
        runs, jobs = ({row["id"]: row for row in rows} for rows in (extract.runs, extract.jobs))
        names = {row["job_id"]: row["case_name"] for row in extract.run_jobs}
        rows = {
            row["id"]: job_row(runs[row["run_id"]], names[row["job_id"]], jobs[row["job_id"]], row, Path())
            for row in extract.attempts
        }
        return latest_rows(extract, rows)

    def _metrics(self) -> dict[int, dict[str, MeasuredMetric]]:
        metrics: dict[int, dict[str, MeasuredMetric]] = {}
        for row in self.extract.metrics:
            known = {field.name: row[field.name] for field in dataclasses.fields(MeasuredMetric)}
            metrics.setdefault(row["attempt_id"], {})[row["name"]] = MeasuredMetric(**known)
        return metrics

    def _attempts(self) -> list[AttemptOrigin]:
        jobs = {row["id"]: row for row in self.extract.jobs}
        names = [field.name for field in dataclasses.fields(AttemptOrigin)]
        attempts = []
        for row in self.extract.attempts:
            known = {name: jobs[row["job_id"]][name] for name in _OF_JOB} | {"host": "", "token": "", **row}
            known |= {"attempt_id": row["id"]}
            attempts.append(AttemptOrigin(**{name: known[name] for name in names if name in known}))
        return attempts


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
    ("results/", "what came out: a row per case as CSV and JSON, and what became of each claim"),
    ("report.html", "the same as a page, with all that stands behind it; for any browser"),
    ("experiment/", "the figure as a program: cases, axes, published numbers and claims, with their sources"),
    ("jobs/", "of each job each attempt: its script, its logs, the records of its start and its end"),
    ("runs/", "of each `repro submit` the cluster's profile, and what the scheduler was given"),
    ("ledger/", "what was recorded: a file per table, a line of JSON per row"),
    ("environment.json", "versions, commits, images"),
    ("MANIFEST", "bytes, SHA-256 and path of each file"),
)


def readme(figure: FigureOutcome, extract: Extract, missing: Mapping[str, str], under_way: int) -> str:
    """Plain text, with every command filled in."""
    entry = figure.entry
    text = [
        f"{entry.paper.title} ({entry.paper.venue})",
        f"{entry.experiment.figure}: {entry.experiment.title}",
        "",
        f"At scale {figure.scale} on {figure.cluster}: {len(extract.attempts)} attempts of {len(extract.jobs)} jobs.",
    ]
    text += [f"Not final: {under_way} of the attempts were still under way."] if under_way else []
    text += ["", "To check it, without a cluster, a ledger or a network:", ""]
    text += [f"    repro bundle verify {bundle_name(figure)}.tar.zst", "    sha256sum --check SHA256SUMS", ""]
    text += [
        "The first reads every number from the logs again, judges the claims again, and renders this page and the",
        "report again. The second, typed in this folder, compares each file with its checksum. Neither proves who made",
        "the bundle: a signature does (--allowed-signers).",
    ]
    text += [
        "",
        "To run it again, all of it or one job by hand:",
        "",
        f"    {submit_command(figure)}",
        *_by_hand(extract),
        "",
    ]
    text += [f"Elsewhere than on {figure.cluster}, --cluster is another profile, and paths in a script are other ones."]
    text += ["", "What is in it:", "", *(f"    {path:<18}{what}" for path, what in _CONTENTS), ""]
    text += [
        "Scripts and logs are as they ran, with *** for what looks like a secret; script_sha256 is a script's before",
        "that. Times are UTC. Who submitted is left out; scripts and logs may still name somebody's folder.",
    ]
    if missing:
        text += ["", "What is missing:", "", *(f"    {path}: {why}" for path, why in missing.items())]
    return "\n".join(text) + "\n"


def _by_hand(extract: Extract) -> list[str]:
    """A script is complete; the paths in it are the site's."""
    if not extract.attempts:
        return []
    row = extract.attempts[-1]
    starts = "sbatch" if row["scheduler"] == "slurm" else "bash"
    return [f"    {starts} {row['folder']}/{SCRIPT} FOLDER   # its log goes there"]
