"""Report and README of a bundle, rendered from the bundle's own rows.

Whoever makes a bundle and whoever verifies it call the same function with the same rows, so both get the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.catalog.other_program import with_workload
from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.origins import AttemptOrigin
from orchestrator.ledger.tables import OPEN
from orchestrator.results.bundle.contents import Figure
from orchestrator.results.bundle.extract import Extract, finite_losses, job_row, latest_rows, run_origin
from orchestrator.results.bundle.readme import readme
from orchestrator.results.claims import judge_claims
from orchestrator.results.compare import results

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

    def figure(self) -> Figure:
        """Return every case and claim, as the rows have them."""
        cases = expand(self.entry, self.scale)
        if {case.workload for case in cases} != set(self.workloads):
            cases = with_workload(cases, self.workloads[0])
        rows = self._latest()
        found = results(self.entry, cases, rows, self._metrics(), finite_losses(self.iterations))
        claims = judge_claims(self.entry, self.scale, found, int(rows[-1].configuration["gpus_per_node"]))
        return Figure(self.entry, self.scale, rows[-1].cluster, found, claims)

    def report(self, figure: Figure, templates: Path) -> bytes:
        """Return the page, without who submitted."""
        from orchestrator.results.report.html import rendered
        from orchestrator.results.report.page import Records, Reported, page_from

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
        reported = Reported(self.entry, self.scale, figure.cluster, figure.found, figure.claims)
        as_of = max((event["at"] for event in extract.events), default=None)
        page = page_from([Records(reported, jobs, attempts, runs)], scripts, as_of)
        figures = tuple(
            dataclasses.replace(each, runs=tuple(dataclasses.replace(run, by="") for run in each.runs))
            for each in page.figures
        )
        return rendered(dataclasses.replace(page, figures=figures), templates).encode()

    def readme(self, figure: Figure, missing: Mapping[str, str]) -> bytes:
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
        return [
            AttemptOrigin(
                **{name: (jobs[row["job_id"]] if name in _OF_JOB else {"host": "", **row})[name] for name in names}
            )
            for row in self.extract.attempts
        ]


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
