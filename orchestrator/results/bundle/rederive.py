"""A bundle's numbers read from its own logs again, and its claims judged from these; held against what it says."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import read_experiment
from orchestrator.catalog.selection import with_workload
from orchestrator.errors import Problem, ReproError
from orchestrator.job_dir import single_name
from orchestrator.ledger.measurements import MeasuredMetric, Measurement
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import FAILED, NEVER_SUBMITTED
from orchestrator.reading.collect import measure
from orchestrator.results.bundle.extract import Extract, Row, job_row, latest_rows, read_extract, read_rows, run_origin
from orchestrator.results.bundle.masking import given_out
from orchestrator.results.bundle.pages import README, REPORT, Pages, code_sha256
from orchestrator.results.cases import case_results
from orchestrator.results.claims import judge_claims
from orchestrator.results.export.columns import CASE_COLUMNS
from orchestrator.results.export.formats import as_csv
from orchestrator.results.export.rows import claim_rows, export_rows

CLOSE = 1e-9
"""Relative; two machines may differ in the last digits of a median."""
BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading values of the wrong kind ends in."""
_MOST_SHOWN = 5
"""Of the iterations of one attempt, or of the columns of one case."""
_LARGEST_TEXT_BYTES = 1 << 26
_FOLDER = re.compile(r"jobs/[A-Za-z0-9][A-Za-z0-9._-]{0,200}/attempt-[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class About:
    """What a bundle says of itself; `missing` are paths that should be in it, and why they are not."""

    made_by: str
    experiment: str
    scale: str
    workloads: tuple[str, ...]
    missing: Mapping[str, str]
    code_sha256: str | None = None
    """The digest of the code that made it; older bundles have none."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked, how much of it, and every difference, one line each.

    `is_proven` is false where there was nothing to compare with: then the check concludes nothing.
    """

    name: str
    what: str
    differences: tuple[str, ...]
    is_proven: bool = True


def text_of(folder: Path, name: str) -> str:
    """A file of the bundle that is read as a whole; ValueError for one that is too long, or no UTF-8."""
    with (folder / name).open("rb") as file:
        text = file.read(_LARGEST_TEXT_BYTES + 1)
    if len(text) > _LARGEST_TEXT_BYTES:
        raise ValueError(f"{name} is too long")
    return text.decode()


@dataclass(slots=True)
class _Derived:
    """What the logs say now: by attempt the row with its verdict, its metrics and its losses."""

    rows: dict[int, JobRow] = field(default_factory=dict)
    metrics: dict[int, dict[str, MeasuredMetric]] = field(default_factory=dict)
    losses: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    read: int = 0
    older: int = 0
    never_ran: int = 0
    under_way: int = 0
    iterations: int = 0

    @property
    def what(self) -> str:
        values = sum(len(one) for one in self.metrics.values())
        said = f"{self.read} attempts read again: {self.iterations} iterations, {values} metrics"
        said += f", {self.older} of them only as far as an older repro had read them" if self.older else ""
        said += f"; {self.never_ran} never ran" if self.never_ran else ""
        return said + (f"; {self.under_way} not judged yet" if self.under_way else "")


def again(folder: Path, about: About, templates: Path) -> Iterator[Check]:
    """Yield the checks of the numbers, the results and the pages.

    ReproError where the files are not such that they could be held together.
    """
    try:
        extract = read_extract(folder)
        derived = _read_again(folder, extract, about.missing)
        yield Check("numbers", derived.what, tuple(derived.differences))
        yield _judged_again(folder, about, extract, derived)
        yield _rendered_again(folder, about, extract, templates)
    except (*BROKEN, OSError) as error:
        why = " ".join(f"{type(error).__name__} {error}".split())
        raise ReproError(Problem(f"ledger, experiment and results: do not belong together ({why})")) from None


def _read_again(folder: Path, extract: Extract, missing: Mapping[str, str]) -> _Derived:
    derived = _Derived()
    runs, jobs = ({row["id"]: row for row in rows} for rows in (extract.runs, extract.jobs))
    names = {row["job_id"]: row["case_name"] for row in extract.run_jobs}
    metrics: dict[int, dict[str, Row]] = {}
    for metric in extract.metrics:
        metrics.setdefault(metric["attempt_id"], {})[metric["name"]] = metric
    lines = _by_attempt(folder)
    stored_of, stored = next(lines, (None, []))
    for attempt in extract.attempts:
        if not _FOLDER.fullmatch(attempt["folder"]):
            raise ReproError(Problem(f"ledger/attempts.jsonl: {attempt['folder'][:80]!r} is no folder of an attempt"))
        row = job_row(runs[attempt["run_id"]], names[attempt["job_id"]], jobs[attempt["job_id"]], attempt, folder)
        derived.rows[row.attempt_id] = row
        own: list[Row] = []
        if stored_of == row.attempt_id:
            own, (stored_of, stored) = stored, next(lines, (None, []))
        differences = _attempt_again(derived, row, attempt, metrics.pop(row.attempt_id, {}), own)
        lost = [
            f"{path}: not in the bundle ({why})"
            for path, why in missing.items()
            if path.startswith(f"{attempt['folder']}/")
        ]
        derived.differences += lost if differences and lost else differences
    if stored_of is not None or metrics:
        derived.differences.append("ledger/: numbers of attempts that are not there, or not in their order")
    return derived


def _by_attempt(folder: Path) -> Iterator[tuple[int | None, list[Row]]]:
    for one, rows in itertools.groupby(read_rows(folder, "iterations"), key=lambda row: row["attempt_id"]):
        yield one, list(rows)


def _attempt_again(
    derived: _Derived, row: JobRow, attempt: Row, metrics: Mapping[str, Row], lines: Sequence[Row]
) -> list[str]:
    """What the attempt's own log says, and where the ledger says otherwise."""
    if row.verdict is None or row.state == NEVER_SUBMITTED:
        derived.never_ran += row.state == NEVER_SUBMITTED
        derived.under_way += row.verdict is None
        return []
    path = attempt["folder"]
    try:
        measured = measure(row)
    except ReproError as error:
        return [f"{path}: {error.problems[0].what.replace(row.folder, 'its folder')}"]
    if _is_of_older(attempt, lines):
        measured = _as_older(measured, attempt, metrics)
        derived.older += 1
    elif row.spec.computes is None:
        measured = _before_computes(measured, metrics)
    derived.read += 1
    derived.iterations += len(measured.iterations)
    derived.rows[row.attempt_id] = dataclasses.replace(
        row,
        **{name: getattr(measured, name) for name in _OF_ATTEMPT},
        verdict_reason=measured.verdict_reason,
        deciding_line=measured.deciding_line,
        deciding_rank=measured.deciding_rank,
    )
    derived.metrics[row.attempt_id] = {metric.name: metric for metric in measured.metrics}
    losses = [(line.iteration, line.loss) for line in measured.iterations if line.loss is not None]
    derived.losses[row.attempt_id] = [(number, loss) for number, loss in losses if math.isfinite(loss)]
    where = f"{path} ({row.label})"
    found = [
        f"{where}: {name} is {_said(attempt[name])} in the ledger, {_said(getattr(measured, name))} from its log"
        for name in _OF_ATTEMPT
        if attempt[name] != getattr(measured, name)
    ]
    return [*found, *_of_metrics(where, metrics, measured), *_of_iterations(where, lines, measured)]


_OF_ATTEMPT = ("verdict", "failure", "iteration", "execution")
_LATER = (
    *("loss_scale", "skipped", "nan", "reported_tflops_per_gpu", "reported_tokens_per_s_per_gpu", "power_w"),
    "host_wait_ms",
)


def _is_of_older(attempt: Row, lines: Sequence[Row]) -> bool:
    """Whether a repro read it that did not keep so much yet: each line has a count now, each failure a class."""
    if lines:
        return all(line["skipped"] is None for line in lines)
    return attempt["verdict"] == FAILED and attempt["failure"] is None


def _as_older(measured: Measurement, attempt: Row, metrics: Mapping[str, Row]) -> Measurement:
    """What that one would have kept of it."""
    nothing: dict[str, Any] = dict.fromkeys(_LATER)
    return dataclasses.replace(
        measured,
        iterations=tuple(dataclasses.replace(line, **nothing, is_finite=True) for line in measured.iterations),
        metrics=tuple(metric for metric in measured.metrics if metric.name in metrics),
        failure=measured.failure if attempt["failure"] is not None else None,
    )


def _before_computes(measured: Measurement, metrics: Mapping[str, Row]) -> Measurement:
    """Return the measurement of a repro that recorded no `computes` with a job: it gave MFU for Llama models only."""
    kept = tuple(metric for metric in measured.metrics if metric.name != "mfu_percent" or metric.name in metrics)
    return dataclasses.replace(measured, metrics=kept)


def _of_metrics(where: str, stored: Mapping[str, Row], measured: Measurement) -> Iterator[str]:
    now = {metric.name: metric for metric in measured.metrics}
    for name in [*stored, *(one for one in now if one not in stored)]:
        if name not in now or name not in stored:
            has, lacks = ("the ledger", "its log") if name in stored else ("its log", "the ledger")
            yield f"{where}: {name} is in {has} and not in {lacks}"
            continue
        for part in ("value", "unit", "spread", "count"):
            before, after = stored[name][part], getattr(now[name], part)
            if not _same(before, after):
                of = "" if part == "value" else f", its {part},"
                yield f"{where}: {name}{of} is {_said(before)} in the ledger, {_said(after)} from its log"


def _of_iterations(where: str, stored: Sequence[Row], measured: Measurement) -> Iterator[str]:
    before = {row["iteration"]: row for row in stored}
    now = {line.iteration: line for line in measured.iterations}
    differ: list[str] = []
    for number in sorted(before.keys() | now.keys()):
        if number not in before or number not in now:
            has, lacks = ("the ledger", "its log") if number in before else ("its log", "the ledger")
            differ.append(f"{where}: iteration {number} is in {has} and not in {lacks}")
            continue
        for name, value in before[number].items():
            if name not in ("attempt_id", "iteration") and not _same(value, getattr(now[number], name)):
                said = f"{name} is {_said(value)} in the ledger, {_said(getattr(now[number], name))} in its log"
                differ.append(f"{where}: iteration {number}: {said}")
    yield from _first_of(differ, where)


def _first_of(differ: Sequence[str], where: str) -> Iterator[str]:
    yield from differ[:_MOST_SHOWN]
    if len(differ) > _MOST_SHOWN:
        yield f"{where}: {len(differ) - _MOST_SHOWN} more like these"


def _said(value: Any) -> str:
    return "nothing" if value is None else str(value)


def _same(stored: Any, derived: Any) -> bool:
    """Numbers to within a rounding; a number that is none is kept as nothing."""
    if isinstance(derived, float):
        if not math.isfinite(derived):
            return stored is None
        return isinstance(stored, (int, float)) and math.isclose(stored, derived, rel_tol=CLOSE)
    return bool(stored == derived)


def _judged_again(folder: Path, about: About, extract: Extract, derived: _Derived) -> Check:
    entry = read_experiment(about.experiment, folder / "experiment" / f"{about.experiment}.yaml")
    cases = expand(entry, about.scale)
    if {case.workload for case in cases} != set(about.workloads):
        cases = with_workload(cases, about.workloads[0])
    rows = latest_rows(extract, derived.rows)
    found = case_results(entry, cases, rows, derived.metrics, derived.losses)
    gpus_per_node = rows[-1].spec.gpus_per_node or 0
    runs = {run["id"]: run_origin(run) for run in extract.runs}
    made = {attempt["id"]: runs[attempt["run_id"]] for attempt in extract.attempts}
    claims = claim_rows(judge_claims(entry, about.scale, found, gpus_per_node))
    now = {"cases": given_out(export_rows(entry, found, made), ()), "claims": claims}
    stored = json.loads(text_of(folder, "results/results.json"))
    differences = [
        *_of_rows("case", stored["cases"], now["cases"]),
        *_of_rows("claim", stored["claims"], now["claims"]),
    ]
    names = {column["name"] for column in stored["columns"]}
    columns = [column for column in CASE_COLUMNS if column.name in names]  # an older bundle has fewer
    if text_of(folder, "results/cases.csv") != as_csv(stored["cases"], columns):
        differences.append("results/cases.csv: has other rows than results/results.json")
    what = f"{len(now['cases'])} cases and {len(now['claims'])} claims judged again"
    return Check("results", what, tuple(differences))


def _rendered_again(folder: Path, about: About, extract: Extract, templates: Path) -> Check:
    """Render report and README from the bundle's rows, which the other checks compare with its logs."""

    def script_of(row: Row) -> str | None:
        path = row["script"]
        if path is None or not (folder / _path_within(path)).is_file():
            return None
        return (folder / str(path)).read_bytes().decode("utf-8", "replace")

    pages = Pages(
        entry=read_experiment(about.experiment, folder / "experiment" / f"{about.experiment}.yaml"),
        scale=about.scale,
        workloads=about.workloads,
        extract=extract,
        iterations=read_rows(folder, "iterations"),
        profile_of=lambda run: dict(json.loads(text_of(folder, _path_within(run["profile"])))),
        script_of=script_of,
    )
    figure = pages.figure()
    now = {REPORT: pages.report(figure, templates), README: pages.readme(figure, about.missing)}
    differ = [path for path, text in now.items() if (folder / path).read_bytes() != text]
    if differ and about.code_sha256 != code_sha256(templates):
        return Check("pages", f"{' and '.join(differ)} not compared, as other code of repro made them", (), False)
    differences = tuple(f"{path}: differs from what the ledger in the bundle gives" for path in differ)
    return Check("pages", f"{' and '.join(now)} rendered again", differences)


def _path_within(path: str) -> str:
    """Return the path where it leads to a place in the bundle; ReproError where it leads elsewhere."""
    for part in path.split("/"):
        single_name(part)
    return path


def _of_rows(key: str, stored: Sequence[Row], now: Sequence[Row]) -> Iterator[str]:
    before, after = ({row[key]: row for row in rows} for rows in (stored, now))
    if list(before) != list(after) or len(before) != len(stored):
        yield f"results/results.json: other {key}s than its logs give"
    for name in (one for one in after if one in before):
        where = f"results/results.json: {key} {name}"
        both = ((one, before[name].get(one), after[name].get(one)) for one in {**before[name], **after[name]})
        differ = [
            f"{where}: {column} is {_said(said)}, and {_said(found)} by its logs"
            for column, said, found in both
            if column not in _WORDS and not _same(said, found)
        ]
        yield from _first_of(differ, where)


_WORDS = ("verdict_reason", "deciding_line", "deciding_rank")
"""Told in the words of one line of a log, which may be masked otherwise than the log as a whole."""
