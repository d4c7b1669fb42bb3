"""Verification of a bundle: checksums, and the numbers and verdicts that its own logs give. It needs the file only."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import __version__
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.files import single_name
from orchestrator.ledger.attempts import rows_of_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import Measurement, record_measurements
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import FAILED, NEVER_SUBMITTED
from orchestrator.megatron.logs.columns import IterationLine
from orchestrator.reading.collect import measure
from orchestrator.reading.energy import ENERGY_METRICS
from orchestrator.results.bundle.archive import changed_files, path_within, text_of, unpacked
from orchestrator.results.bundle.check import Check, check_of_pages
from orchestrator.results.bundle.experiments import read_entry
from orchestrator.results.bundle.extract import Extract, anonymized, memory_ledger, read_extract, read_rows
from orchestrator.results.bundle.readme import readme
from orchestrator.results.bundle.write import ABOUT, FORMAT, README, REPORT, code_sha256
from orchestrator.results.export.columns import CASE_COLUMNS
from orchestrator.results.export.formats import as_csv
from orchestrator.results.export.rows import Row, claim_rows, export_rows
from orchestrator.results.outcome import needs_losses, stored_outcome
from orchestrator.results.report.page import report
from orchestrator.text import counted

CLOSE = 1e-9
"""Relative; two machines may differ in the last digits of a median."""
BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of values of the wrong type in a file of the bundle."""
_MOST_SHOWN = 5
"""Differences that are listed per attempt or per case."""
_FOLDER = re.compile(r"jobs/[A-Za-z0-9][A-Za-z0-9._-]{0,200}/attempt-[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class About:
    """Content of bundle.json.

    `missing` are paths that should be in the bundle, with the reasons. `code_sha256` is the digest of the code that
    made the bundle, and `matplotlib` the version that drew its picture; older bundles have neither.
    """

    made_by: str
    experiment: str
    scale: str
    workloads: tuple[str, ...]
    missing: Mapping[str, str]
    code_sha256: str | None = None
    matplotlib: str | None = None


@dataclass(slots=True)
class _Derived:
    """Ledger with the numbers that the logs give, and the differences from the numbers in the bundle."""

    ledger: Ledger
    differences: list[str] = field(default_factory=list)
    attempts: int = 0
    older: int = 0
    never_ran: int = 0
    under_way: int = 0
    iterations: int = 0
    metrics: int = 0

    @property
    def what(self) -> str:
        """Return how much was compared."""
        text = f"{counted(self.attempts, 'attempt')} read again: {self.iterations} iterations, {self.metrics} metrics"
        text += f"; {self.older} compared only in what an older repro recorded" if self.older else ""
        text += f"; {self.never_ran} never ran" if self.never_ran else ""
        return text + (f"; {self.under_way} not judged yet" if self.under_way else "")


def rederive(folder: Path, about: About, templates: Path) -> Iterator[Check]:
    """Yield the checks of the numbers, the results and the pages; ReproError if the files do not fit together."""
    try:
        extract = read_extract(folder)
        entry = read_entry(folder, about.experiment)
        derived = _read_logs(folder, extract, entry, about.missing)
        yield Check("numbers", derived.what, tuple(derived.differences))
        yield _check_results(folder, about, entry, derived.ledger)
        yield _check_pages(folder, about, entry, extract, templates)
    except (*BROKEN, OSError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ReproError(Problem(f"do not belong together ({reason})", "ledger, experiment and results:")) from None


def _read_logs(folder: Path, extract: Extract, entry: Entry, missing: Mapping[str, str]) -> _Derived:
    """Read the log of each attempt, compare it with the stored numbers, and record it in a ledger in memory."""
    for attempt in extract.attempts:
        if not _FOLDER.fullmatch(attempt["folder"]):
            what = f"{attempt['folder'][:80]!r} is not a folder of an attempt"
            raise ReproError(Problem(what, "ledger/attempts.jsonl:"))
    without_numbers = dataclasses.replace(extract, metrics=[])
    derived = _Derived(memory_ledger(without_numbers, (), folder, lambda _run: {}, lambda _attempt: None))
    rows = {row.attempt_id: row for row in rows_of_attempts(derived.ledger, [row["id"] for row in extract.attempts])}
    metrics: dict[int, dict[str, Row]] = {}
    for metric in extract.metrics:
        metrics.setdefault(metric["attempt_id"], {})[metric["name"]] = metric
    groups = _lines_by_attempt(folder)
    group = next(groups, None)
    for attempt in extract.attempts:
        lines: list[Row] = []
        if group and group[0]["attempt_id"] == attempt["id"]:
            lines, group = group, next(groups, None)
        row = rows[attempt["id"]]
        differences = _read_log(derived, row, attempt, metrics.pop(row.attempt_id, {}), lines, needs_losses(entry))
        lost = [
            f"{path}: not in the bundle ({reason})"
            for path, reason in missing.items()
            if path.startswith(f"{attempt['folder']}/")
        ]
        derived.differences += lost if differences and lost else differences
    if group or metrics:
        derived.differences.append("ledger/: numbers of attempts that are missing or out of order")
    return derived


def _lines_by_attempt(folder: Path) -> Iterator[list[Row]]:
    """Yield the stored iterations of each attempt."""
    for _, rows in itertools.groupby(read_rows(folder, "iterations"), key=lambda row: row["attempt_id"]):
        yield list(rows)


def _read_log(
    derived: _Derived,
    row: JobRow,
    attempt: Row,
    metrics: Mapping[str, Row],
    lines: Sequence[Row],
    keeps_iterations: bool,
) -> list[str]:
    """Record the numbers of an attempt's log in the derived ledger; return the differences from the stored ones."""
    if row.verdict is None or row.state == NEVER_SUBMITTED:
        derived.never_ran += row.state == NEVER_SUBMITTED
        derived.under_way += row.verdict is None
        return []
    path = attempt["folder"]
    try:
        measured = measure(row)
    except ReproError as error:
        return [f"{path}: {error.problems[0].what.replace(row.folder, 'its folder')}"]
    if _is_of_older_repro(attempt, lines):
        measured = _as_older_repro(measured, attempt, metrics)
        derived.older += 1
    elif row.spec.computes is None:  # that repro gave MFU for Llama models only
        measured = _without_new(measured, metrics, ("mfu_percent",))
    measured = _without_new(measured, metrics, ENERGY_METRICS)
    derived.attempts += 1
    derived.iterations += len(measured.iterations)
    derived.metrics += len(measured.metrics)
    recorded = measured if keeps_iterations else dataclasses.replace(measured, iterations=())
    record_measurements(derived.ledger, [recorded])
    location = f"{path} ({row.label})"
    differences = [
        f"{location}: {name} is {_shown(attempt[name])} in the ledger, {_shown(getattr(measured, name))} from its log"
        for name in _OF_ATTEMPT
        if attempt[name] != getattr(measured, name)
    ]
    differences += _metric_differences(location, metrics, measured)
    return [*differences, *_iteration_differences(location, lines, measured)]


_OF_ATTEMPT = ("verdict", "failure", "iteration", "execution")


def _is_of_older_repro(attempt: Row, lines: Sequence[Row]) -> bool:
    """Return whether an older repro read the log: lines without counts, or a failure without a class."""
    if lines:
        return all(line["skipped"] is None for line in lines)
    return attempt["verdict"] == FAILED and attempt["failure"] is None


def _as_older_repro(measured: Measurement, attempt: Row, metrics: Mapping[str, Row]) -> Measurement:
    """Return the part of a measurement that an older repro recorded."""
    lines = (
        IterationLine(line.iteration, line.elapsed_ms, line.loss, line.grad_norm, line.used)
        for line in measured.iterations
    )
    return dataclasses.replace(
        measured,
        iterations=tuple(lines),
        metrics=tuple(metric for metric in measured.metrics if metric.name in metrics),
        failure=measured.failure if attempt["failure"] is not None else None,
    )


def _without_new(measured: Measurement, metrics: Mapping[str, Row], names: Collection[str]) -> Measurement:
    """Return the measurement without those of these metrics that an older repro did not record."""
    kept = tuple(metric for metric in measured.metrics if metric.name not in names or metric.name in metrics)
    return dataclasses.replace(measured, metrics=kept)


def _metric_differences(location: str, stored: Mapping[str, Row], measured: Measurement) -> Iterator[str]:
    derived = {metric.name: metric for metric in measured.metrics}
    for name in dict.fromkeys([*stored, *derived]):
        if name not in derived or name not in stored:
            yield _only_in_one(location, name, name in stored)
            continue
        for part in ("value", "unit", "spread", "count"):
            before, after = stored[name][part], getattr(derived[name], part)
            if not _same(before, after):
                of = "" if part == "value" else f", its {part},"
                yield f"{location}: {name}{of} is {_shown(before)} in the ledger, {_shown(after)} from its log"


def _iteration_differences(location: str, stored: Sequence[Row], measured: Measurement) -> Iterator[str]:
    rows = {row["iteration"]: row for row in stored}
    derived = {line.iteration: line for line in measured.iterations}
    differences: list[str] = []
    for number in sorted(rows.keys() | derived.keys()):
        if number not in rows or number not in derived:
            differences.append(_only_in_one(location, f"iteration {number}", number in rows))
            continue
        for name, value in rows[number].items():
            if name not in ("attempt_id", "iteration") and not _same(value, getattr(derived[number], name)):
                values = f"{_shown(value)} in the ledger, {_shown(getattr(derived[number], name))} in its log"
                differences.append(f"{location}: iteration {number}: {name} is {values}")
    yield from _first_of(differences, location)


def _only_in_one(location: str, name: str, in_ledger: bool) -> str:
    has, lacks = ("the ledger", "its log") if in_ledger else ("its log", "the ledger")
    return f"{location}: {name} is in {has} and not in {lacks}"


def _first_of(differences: Sequence[str], location: str) -> Iterator[str]:
    yield from differences[:_MOST_SHOWN]
    if len(differences) > _MOST_SHOWN:
        yield f"{location}: {len(differences) - _MOST_SHOWN} more like these"


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def _same(stored: object, derived: object) -> bool:
    """Return whether two values are equal; numbers up to rounding, and NaN is stored as nothing."""
    if isinstance(derived, float):
        if not math.isfinite(derived):
            return stored is None
        return isinstance(stored, (int, float)) and math.isclose(stored, derived, rel_tol=CLOSE)
    return bool(stored == derived)


def _check_results(folder: Path, about: About, entry: Entry, ledger: Ledger) -> Check:
    """Judge cases and claims from the derived numbers, and compare them with results/."""
    outcome = stored_outcome(ledger, entry, about.scale)
    stored = json.loads(text_of(folder, "results/results.json"))
    names = {column["name"] for column in stored["columns"]}  # an older bundle has fewer
    rows = anonymized(export_rows(entry, outcome.results, ledger), ())
    cases = [{name: value for name, value in row.items() if name in names} for row in rows]
    claims = claim_rows(outcome.claims)
    differences = [
        *_row_differences("case", stored["cases"], cases),
        *_row_differences("claim", stored["claims"], claims),
    ]
    if sorted(about.workloads) != outcome.workloads:
        differences.append(
            f"bundle.json: workloads are {', '.join(about.workloads)}, not {', '.join(outcome.workloads)}"
        )
    columns = [column for column in CASE_COLUMNS if column.name in names]
    if text_of(folder, "results/cases.csv") != as_csv(stored["cases"], columns):
        differences.append("results/cases.csv: rows differ from results/results.json")
    what = f"{counted(len(cases), 'case')} and {counted(len(claims), 'claim')} judged again"
    what += "" if outcome.is_measured else "; no case is verified"
    return Check("results", what, tuple(differences))


def _check_pages(folder: Path, about: About, entry: Entry, extract: Extract, templates: Path) -> Check:
    """Render report and README from the bundle's rows, which the other checks compare with its logs."""

    def script_of(row: Row) -> str | None:
        path = row["script"]
        if path is None or not (folder / path_within(path)).is_file():
            return None
        return (folder / str(path)).read_bytes().decode("utf-8", "replace")

    iterations = read_rows(folder, "iterations") if needs_losses(entry) else ()
    ledger = memory_ledger(
        extract,
        iterations,
        Path(),
        profile_of=lambda run: dict(json.loads(text_of(folder, path_within(run["profile"])))),
        script_of=script_of,
    )
    outcome = stored_outcome(ledger, entry, about.scale)
    rendered = {REPORT: report(ledger, [outcome], templates), README: readme(outcome, extract, about.missing)}
    stored = {path: (folder / path).read_bytes().decode(errors="surrogateescape") for path in rendered}
    return check_of_pages(
        stored, rendered, same_code=about.code_sha256 == code_sha256(templates), drawn_with=about.matplotlib
    )


def _row_differences(key: str, stored: Sequence[Row], derived: Sequence[Row]) -> Iterator[str]:
    before, after = ({row[key]: row for row in rows} for rows in (stored, derived))
    if list(before) != list(after) or len(before) != len(stored):
        yield f"results/results.json: other {key}s than its logs give"
    for name in (name for name in after if name in before):
        location = f"results/results.json: {key} {name}"
        columns = [column for column in {**before[name], **after[name]} if column not in _MASKED_WITH_LOG]
        values = {column: (before[name].get(column), after[name].get(column)) for column in columns}
        differences = [
            f"{location}: {column} is {_shown(old)}, and {_shown(new)} by its logs"
            for column, (old, new) in values.items()
            if not _same(old, new)
        ]
        yield from _first_of(differences, location)


_MASKED_WITH_LOG = ("verdict_reason", "deciding_line", "deciding_rank")
"""Columns with text of a log line. The line alone may be masked differently from the same line in the whole log."""


@dataclass(frozen=True, slots=True)
class Verified:
    """All checks, and the version of repro that made the bundle."""

    made_by: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Return whether no check found a difference."""
        return not any(check.differences for check in self.checks)

    @property
    def is_proven(self) -> bool:
        """Return whether every check could compare its files."""
        return all(check.is_proven for check in self.checks)


def verify(file: Path, templates: Path) -> Verified:
    """Return every check of a bundle; ReproError if the file is not a bundle. `templates` are those of the report."""
    with unpacked(file) as (folder, paths):
        about = _about(file, folder)
        checks = [Check("files", f"{len(paths)} of them", tuple(changed_files(folder, paths)))]
        try:
            checks += rederive(folder, about, templates)
        except ReproError as error:
            problems = tuple(_without_folder(str(problem), folder) for problem in error.problems)
            checks.append(Check("contents", "not read to their end", problems))
        return Verified(about.made_by, tuple(checks))


class _OtherFormat(ReproError):
    """Error for a bundle of another format."""


def _about(file: Path, folder: Path) -> About:
    """Return the content of bundle.json; names that become parts of paths are checked."""
    try:
        about = json.loads(text_of(folder, ABOUT))
        made_by = str(about["repro"])[:20]
        if about["format"] != FORMAT:
            what = f"its format differs: repro {made_by} made it, and this is repro {__version__}"
            raise _OtherFormat(Problem(what, f"{file}:", "verify it with that version"))
        paper, _, name = about["experiment"].partition("/")
        return About(
            made_by=made_by,
            experiment=f"{single_name(paper)}/{single_name(name)}",
            scale=about["scale"],
            workloads=tuple(about["workloads"]),
            missing={str(item["path"]): str(item["why"]) for item in about["missing"]},
            code_sha256=about.get("code_sha256"),
            matplotlib=about.get("matplotlib"),
        )
    except _OtherFormat:
        raise
    except (*BROKEN, OSError, ReproError):
        raise ReproError(Problem(f"not a bundle: it has no readable {ABOUT}", f"{file}:")) from None


def _without_folder(text: str, folder: Path) -> str:
    """Return the text without the temporary folder."""
    return text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
