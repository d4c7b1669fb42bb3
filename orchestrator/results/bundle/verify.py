"""Verification of a bundle: checksums, and the numbers and verdicts that its own logs give. It needs the file only.

The ledger's rows are not believed. The script of a job writes a record at its start and at its end. Slurm prints a line
into a log when it ends a job.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from orchestrator import __version__
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Field
from orchestrator.files import read_record, single_name
from orchestrator.ledger.attempts import rows_of_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import Measurement, record_measurements
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import LOST, MEASURED, NEVER_SUBMITTED, OPEN, field_values
from orchestrator.reading import cause_kinds as kinds
from orchestrator.reading.collect import measure
from orchestrator.reading.logs import log_files
from orchestrator.reading.reader import reader_of
from orchestrator.results.bundle.extract import (
    Extract,
    changed_files,
    memory_ledger,
    path_within,
    read_entry,
    read_extract,
    read_rows,
    text_of,
    unpacked,
)
from orchestrator.results.bundle.write import ABOUT, FORMAT, README, REPORT, SCRIPT, code_sha256, readme
from orchestrator.results.cases import NEVER_RAN, words_of
from orchestrator.results.claims import JUDGING_RULES
from orchestrator.results.export.rows import Row, case_columns, claim_rows, export_rows, pieces
from orchestrator.results.outcome import judge_stored, needs_losses
from orchestrator.results.plot.figure import matplotlib_version
from orchestrator.results.report import report, without_picture
from orchestrator.text import counted

NOTHING_VERIFIED = "no case is verified: the bundle proves no measurement"
BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of values of the wrong type in a file of the bundle."""
_MASKED_WITH_LOG = ("verdict_reason", "deciding_line", "deciding_rank")
"""Columns with text of a log line. The line alone may be masked differently from the same line in the whole log."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check: what was compared, and one line per difference.

    `unchecked` are the parts for which there was nothing to compare with. `notes` are facts for the reader that
    are no differences.
    """

    name: str
    what: str
    differences: tuple[str, ...]
    unchecked: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Return whether everything was compared."""
        return self.unchecked is None


@dataclass(frozen=True, slots=True)
class BundleCheckRow:
    """A check of a bundle as a row. `proven` is false if there was nothing to compare with."""

    check: Annotated[str, Field(of="name")]
    what: str
    proven: Annotated[bool, Field(of="is_proven")]
    differences: Sequence[str]
    notes: Sequence[str]


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
    def proven(self) -> str:
        """Return what follows from the logs if no check found a difference: `numbers, claims, report and README`."""
        parts = {"numbers": ["numbers"], "results": ["claims"], "pages": ["report", "README"]}
        *others, last = [part for check in self.checks if check.is_proven for part in parts.get(check.name, ())]
        return f"{', '.join(others)} and {last}" if others else last


@dataclass(frozen=True, slots=True)
class About:
    """Content of bundle.json.

    `missing` are paths that should be in the bundle, with the reasons. `code_sha256` is the digest of the code that
    made the bundle, and `matplotlib` the version that drew its picture, None without one. `judging_rules` is the
    version of the rules by which its claims were judged. `left_out` are the values of `--without`.
    """

    experiment: str
    scale: str
    programs: tuple[str, ...]
    missing: Mapping[str, str]
    code_sha256: str
    matplotlib: str | None
    judging_rules: int
    left_out: tuple[str, ...]


def verify(file: Path, templates: Path) -> Verified:
    """Return every check of a bundle; ReproError if the file is not a bundle. `templates` are those of the report."""
    with unpacked(file) as (folder, paths):
        made_by, about = _about(file, folder)
        checks = [Check("files", f"{len(paths)} of them", tuple(changed_files(folder, paths)))]
        try:
            checks += _rederived(folder, about, templates)
        except ReproError as error:
            texts = (str(problem).replace(f"{folder.resolve()}/", "") for problem in error.problems)
            problems = tuple(text.replace(f"{folder}/", "") for text in texts)
            checks.append(Check("contents", "not read to their end", problems))
        return Verified(made_by, tuple(checks))


def _about(file: Path, folder: Path) -> tuple[str, About]:
    """Return the version that made a bundle, and its bundle.json; names that become parts of paths are checked."""
    about = None
    try:
        content = json.loads(text_of(folder, ABOUT))
        made_by = str(content["repro"])[:20]
        if content["format"] == FORMAT:
            paper, _, name = content["experiment"].partition("/")
            about = About(
                experiment=f"{single_name(paper)}/{single_name(name)}",
                scale=content["scale"],
                programs=tuple(content["programs"]),
                missing={str(item["path"]): str(item["why"]) for item in content["missing"]},
                code_sha256=content["code_sha256"],
                matplotlib=content["matplotlib"],
                judging_rules=int(content.get("judging_rules", 1)),
                left_out=tuple(words_of(content["left_out"])),
            )
    except (*BROKEN, OSError, ReproError):
        raise ReproError(Problem(f"not a bundle: it has no readable {ABOUT}", f"{file}:")) from None
    if about is None:
        what = f"its format is {content['format']} of repro {made_by}, and this is {FORMAT} of repro {__version__}"
        raise ReproError(Problem(what, f"{file}:", "verify it with that version"))
    return made_by, about


def _rederived(folder: Path, about: About, templates: Path) -> Iterator[Check]:
    """Yield the checks of the numbers, the results and the pages; ReproError if the files do not fit together."""
    try:
        extract = read_extract(folder)
        entry = read_entry(folder, about.experiment)
        left_out = {word.partition("=")[0] for word in about.left_out}
        derived = read_logs(folder, extract, about.missing, left_out, keeps_iterations=needs_losses(entry))
        yield Check("numbers", derived.what, (*derived.differences, *_missing_attempts(extract)))
        yield _check_results(folder, about, entry, derived.ledger)
        yield _check_pages(folder, about, entry, extract, templates)
    except (*BROKEN, OSError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ReproError(Problem(f"do not belong together ({reason})", "ledger, experiment and results:")) from None


# ---- results and pages --------------------------------------------------------------------------------------------


def _check_results(folder: Path, about: About, entry: Entry, ledger: Ledger) -> Check:
    """Judge cases and claims from the derived numbers, and compare them with results/."""
    outcome = judge_stored(ledger, entry, about.scale, about.left_out)
    stored = json.loads(text_of(folder, "results/results.json"))
    names = {column["name"] for column in stored["columns"]}  # an older bundle has fewer
    rows = export_rows(entry, outcome.results, ledger)
    cases = [{name: value for name, value in row.items() if name in names} for row in rows]
    claims, same_rules = claim_rows(outcome.claims), about.judging_rules == JUDGING_RULES
    differences = [
        *_row_differences("case", stored["cases"], cases),
        *_row_differences("claim", stored["claims"], claims, () if same_rules else ("claim", "says", "source")),
    ]
    if sorted(about.programs) != outcome.programs:
        programs = f"{', '.join(about.programs)}, not {', '.join(outcome.programs)}"
        differences.append(f"bundle.json: programs are {programs}")
    columns = [column for column in case_columns(entry) if column.name in names]
    if text_of(folder, "results/cases.csv") != b"".join(pieces("csv", columns, {"cases": stored["cases"]})).decode():
        differences.append("results/cases.csv: rows differ from results/results.json")
    notes, changed = [], []
    if not same_rules:
        before = {row["claim"]: row["verdict"] for row in stored["claims"]}
        after = {row["claim"]: row["verdict"] for row in claims}
        changed = [name for name in after if before.get(name) != after[name]]
        what = f"{counted(len(changed), 'verdict')} changed with the rules" if changed else "all verdicts are the same"
        rules = f"rules {about.judging_rules} judged the claims in the bundle, rules {JUDGING_RULES} judge them here"
        notes = [f"{rules}: {what}"]
        notes += [f"claim {name}: {_shown(before.get(name))} -> {after[name]}" for name in changed]
    notes += [f"left out: {attempt}" for attempt in outcome.left_out]
    if not any(row["verdict"] in MEASURED for row in cases):
        notes.append(NOTHING_VERIFIED)
    what = f"{counted(len(cases), 'case')} and {counted(len(claims), 'claim')} judged again"
    unchecked = "verdicts of claims that other rules judged" if changed else None
    return Check("results", what, tuple(differences), unchecked, tuple(notes))


def _row_differences(
    key: str, stored: Sequence[Row], derived: Sequence[Row], only: Collection[str] = ()
) -> Iterator[str]:
    """Yield the differences of two tables; with `only`, of these columns."""
    before, after = (
        {
            row[key]: {name: row[name] for name in row if (name in only if only else name not in _MASKED_WITH_LOG)}
            for row in rows
        }
        for rows in (stored, derived)
    )
    if list(before) != list(after) or len(before) != len(stored):
        yield f"results/results.json: other {key}s than its logs give"
    for name in (name for name in after if name in before):
        location, rows_of_name = f"results/results.json: {key} {name}", ({"": before[name]}, {"": after[name]})
        yield from _first_of(list(_differences_of(location, *rows_of_name, "{}, and {} by its logs")), location)


def _check_pages(folder: Path, about: About, entry: Entry, extract: Extract, templates: Path) -> Check:
    """Render report and README from the bundle's rows, which the other checks compare with its logs.

    Another version of repro may render other pages. Another matplotlib draws another picture, and none draws none.
    """

    def text(path: str) -> str | None:
        file = folder / path_within(path)
        is_lost = path.endswith(f"/{SCRIPT}") and not file.is_file()
        return None if is_lost else file.read_bytes().decode("utf-8", "replace")

    iterations = read_rows(folder, "iterations") if needs_losses(entry) else ()
    ledger = memory_ledger(extract, iterations, Path(), text)
    outcome = judge_stored(ledger, entry, about.scale, about.left_out)
    page = report(ledger, [outcome], templates)
    rendered = {REPORT: page, README: readme(outcome, extract, about.missing, templates)}
    stored = {path: (folder / path).read_bytes().decode(errors="surrogateescape") for path in rendered}
    pages = " and ".join(rendered)
    differing = [path for path in rendered if stored[path] != rendered[path]]
    unlike = [path for path in differing if without_picture(stored[path]) != without_picture(rendered[path])]
    here = matplotlib_version()
    if differing and not unlike and (here is None or here != about.matplotlib):
        drawn_by = f"matplotlib {about.matplotlib or 'of unknown version'} drew it"
        why = drawn_by if here else "matplotlib is not installed"
        what = f"{pages} rendered again: no difference; the picture is not compared, because {why}"
        return Check("pages", what, (), unchecked=f"the picture of {' and '.join(differing)}")
    if differing and about.code_sha256 != code_sha256(templates):
        what = f"{' and '.join(differing)} not compared: another version of repro made the bundle"
        return Check("pages", what, (), unchecked=pages)
    differences = tuple(f"{path}: differs from what the ledger in the bundle gives" for path in differing)
    return Check("pages", f"{pages} rendered again", differences)


# ---- numbers of attempts ------------------------------------------------------------------------------------------

_FOLDER = re.compile(r"jobs/[A-Za-z0-9][A-Za-z0-9._-]{0,200}/attempt-[0-9]{1,9}")
_CLOSE = 1e-9
"""Relative; two machines may differ in the last digits of a median."""
_MOST_SHOWN = 5
"""Differences that are listed per attempt or per case."""


@dataclass(slots=True)
class Derived:
    """Ledger with the numbers that the logs give, and the differences from the numbers in the bundle."""

    ledger: Ledger
    differences: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def what(self) -> str:
        """Return how much was compared."""
        number = self.counts
        text = f"{counted(number['attempt'], 'attempt')} read again: {number['iteration']} iterations"
        text += f", {number['metric']} metrics" + (f", {counted(number['row'], 'row')}" if number["row"] else "")
        return text + "".join(f"; {number[what]} {what}" for what in ("never ran", "not judged yet") if number[what])


def read_logs(
    folder: Path, extract: Extract, missing: Mapping[str, str], left_out: Collection[str], *, keeps_iterations: bool
) -> Derived:
    """Read the log of each attempt, compare it with the stored numbers, and record it in a ledger in memory.

    The logs of the attempts `left_out`, as `--without` names them, are not read: they may be gone.
    """
    for attempt in extract.attempts:
        own = f"-{attempt['job_id']}/attempt-{attempt['number']}"
        if not _FOLDER.fullmatch(attempt["folder"]) or not attempt["folder"].endswith(own):
            what = f"{attempt['folder'][:80]!r} is not the folder of attempt {attempt['number']}"
            raise ReproError(Problem(what, "ledger/attempts.jsonl:"))
    derived = Derived(memory_ledger(dataclasses.replace(extract, metrics=[], output_rows=[]), (), folder))
    rows = {row.attempt_id: row for row in rows_of_attempts(derived.ledger, [row["id"] for row in extract.attempts])}
    metrics: dict[int, dict[str, Row]] = {}
    for metric in extract.metrics:
        numbers = {name: value for name, value in metric.items() if name != "attempt_id"}
        metrics.setdefault(metric["attempt_id"], {})[metric["name"]] = numbers
    for output in extract.output_rows:
        numbers = {"position": output["position"], **output["metrics"]}
        metrics.setdefault(output["attempt_id"], {})[f"row {json.dumps(output['row_key'])}"] = numbers
    of_attempts = itertools.groupby(read_rows(folder, "iterations"), key=lambda row: row["attempt_id"])
    groups = (list(rows) for _, rows in of_attempts)
    group = next(groups, None)
    for attempt in extract.attempts:
        lines: list[Row] = []
        if group and group[0]["attempt_id"] == attempt["id"]:
            lines, group = group, next(groups, None)
        row, numbers = rows[attempt["id"]], metrics.pop(attempt["id"], {})
        if f"{row.job_id}:{row.number}" in left_out:
            continue
        differences = _read_log(derived, row, attempt, numbers, lines, keeps_iterations)
        own = f"{attempt['folder']}/"
        lost = [f"{path}: not in the bundle ({why})" for path, why in missing.items() if f"{path}/".startswith(own)]
        derived.differences += lost if differences and lost else differences
    if group or metrics:
        derived.differences.append("ledger/: numbers of attempts that are missing or out of order")
    folders = {path.relative_to(folder).as_posix() for path in folder.glob("jobs/*/*")}
    for path in sorted(folders - {attempt["folder"] for attempt in extract.attempts}):
        derived.differences.append(f"{path}: files of no attempt in ledger/attempts.jsonl")
    return derived


def _missing_attempts(extract: Extract) -> Iterator[str]:
    """Yield the attempts before the last one of each job that the ledger in the bundle lacks."""
    numbers: dict[str, set[int]] = {}
    for attempt in extract.attempts:
        numbers.setdefault(attempt["job_id"], set()).add(attempt["number"])
    for job, of_job in numbers.items():
        for number in sorted(set(range(1, max(of_job))) - of_job):
            yield f"ledger/attempts.jsonl: attempt {number} of job {job} is missing"


def _read_log(
    derived: Derived,
    row: JobRow,
    attempt: Row,
    metrics: Mapping[str, Row],
    lines: Sequence[Row],
    keeps_iterations: bool,
) -> list[str]:
    """Record the numbers of an attempt's files in the derived ledger; return the differences from the stored ones."""
    location = f"{attempt['folder']} ({row.label})"
    try:
        differences = [f"{location}: {difference}" for difference in end_differences(row)]
        measured = measure(row)
    except ReproError as error:
        return [f"{attempt['folder']}: {error.problems[0].what.replace(row.folder, 'its folder')}"]
    has_run = row.state != NEVER_SUBMITTED
    if row.phase in OPEN:
        derived.counts["not judged yet"] += 1
    else:
        if not has_run and attempt["failure"] in NEVER_RAN:
            measured = dataclasses.replace(measured, failure=attempt["failure"])
        derived.counts["attempt" if has_run else "never ran"] += 1
        numbers = {"iteration": measured.iterations, "metric": measured.metrics, "row": measured.rows}
        derived.counts.update({name: len(of_attempt) for name, of_attempt in numbers.items()})
        recorded = measured if keeps_iterations else dataclasses.replace(measured, iterations=())
        record_measurements(derived.ledger, [recorded])
    return [*differences, *_log_differences(location, attempt, metrics, lines, measured, row.phase in OPEN)]


def _log_differences(
    location: str, attempt: Row, metrics: Mapping[str, Row], lines: Sequence[Row], measured: Measurement, is_open: bool
) -> Iterator[str]:
    """Yield the differences of an attempt's rows from its log.

    The log of an attempt under way may be longer than the part that the ledger has. The next line shows whether the
    first ones are used.
    """
    names = ("verdict", "failure") if is_open else ("verdict", "failure", "iteration", "execution")
    recorded, read = {name: attempt[name] for name in names}, {name: getattr(measured, name) for name in names}
    yield from _differences_of(location, {"": recorded}, {"": read})
    numbers = {metric.name: field_values(metric) for metric in measured.metrics}
    for position, output in enumerate(measured.rows, 1):
        values = {metric.name: metric.value for metric in output.metrics}
        numbers[f"row {json.dumps(dict(output.key))}"] = {"position": position, **values}
    different = list(_differences_of(location, metrics, numbers))
    yield from _first_of(different, location) if measured.rows else different
    left_out = ("attempt_id", "used") if is_open else ("attempt_id",)
    stored, derived = (
        {f"iteration {row['iteration']}": {name: row[name] for name in row if name not in left_out} for row in rows}
        for rows in (lines, map(field_values, measured.iterations))
    )
    derived = {name: row for name, row in derived.items() if name in stored} if is_open else derived
    yield from _first_of(list(_differences_of(location, stored, derived)), location)


def _differences_of(
    location: str,
    stored: Mapping[str, Row],
    derived: Mapping[str, Row],
    text: str = "{} in the ledger, {} from its log",
) -> Iterator[str]:
    """Yield the differences of two tables by the names of their rows. `text` has the places of the two values."""
    for name in dict.fromkeys([*stored, *derived]):
        place = f"{location}: {name}" if name else location
        if name not in stored or name not in derived:
            has, lacks = ("the ledger", "its log") if name in stored else ("its log", "the ledger")
            yield f"{place} is in {has} and not in {lacks}"
            continue
        for column in {**stored[name], **derived[name]}:
            before, after = stored[name].get(column), derived[name].get(column)
            if not _is_same(before, after):
                yield f"{place}: {column} is {text.format(_shown(before), _shown(after))}"


def _first_of(differences: Sequence[str], location: str) -> Iterator[str]:
    """Yield the first differences, and the number of the others."""
    yield from differences[:_MOST_SHOWN]
    if len(differences) > _MOST_SHOWN:
        yield f"{location}: {len(differences) - _MOST_SHOWN} more like these"


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def _is_same(stored: object, derived: object) -> bool:
    """Return whether two values are equal; numbers up to rounding, and NaN is stored as nothing."""
    if isinstance(derived, float):
        if not math.isfinite(derived):
            return stored is None
        return isinstance(stored, (int, float)) and math.isclose(stored, derived, rel_tol=_CLOSE)
    return bool(stored == derived)


# ---- the end of an attempt ----------------------------------------------------------------------------------------

_TIMED_OUT = 124
"""Exit code of timeout(1), which ends a local job at its time limit."""
_SIGNALLED = 128
"""A shell adds this to the number of the signal that ended a process. sacct subtracts it from exit codes."""
_TOLERANCE = timedelta(seconds=5)
"""Slurm and records have whole seconds, and a clock may be corrected while a job runs."""
_SLURM_LINES = {
    "TIMEOUT": kinds.TIME_LIMIT,
    "DEADLINE": kinds.TIME_LIMIT,
    "PREEMPTED": kinds.PREEMPTED,
    "NODE_FAIL": kinds.NODE_FAILURE,
    "OUT_OF_MEMORY": kinds.NO_HOST_MEMORY,
}
"""Kind of the line that Slurm prints when it ends a job with this state."""


def end_differences(row: JobRow) -> Iterator[str]:
    """Yield the differences between an attempt's end in the ledger and the files in its folder."""
    folder, is_local = Path(row.folder), row.scheduler == "local"
    start, end = read_record(folder / "start"), read_record(folder / "end")
    for name, record in (("start", start), ("end", end)):
        if record is None and (folder / name).exists():
            yield f"its {name} record cannot be parsed"
        if record is not None and record.scheduler_id not in (row.scheduler_id, "none"):
            yield f"scheduler_id is {row.scheduler_id} in the ledger, {record.scheduler_id} in its {name} record"
    if row.state == NEVER_SUBMITTED:
        # The script's own output is no trace of a run: a copy that Slurm accepted late prints a refusal.
        traces = [name for name in ("start", "end", "claimed") if (folder / name).exists()]
        traces += [log.name for log in log_files(folder) if log.name != "batch.txt"]
        if traces:
            yield f"state is {NEVER_SUBMITTED} in the ledger, and its folder contains {', '.join(traces)}"
        return
    yield from _state_differences(row, folder, end.exit_code if end else None)
    if end is None or row.phase in OPEN:
        return
    if is_local or row.state in ("COMPLETED", "FAILED"):
        code, signal = end.exit_code, end.exit_code - _SIGNALLED
        if row.exit_code not in ((code,) if is_local else (code, signal, None)):
            yield f"exit_code is {row.exit_code} in the ledger, {code} in its end record"
        if row.signal not in ((None,) if is_local else (None, 0, signal)):
            yield f"signal is {row.signal} in the ledger, and its end record has exit code {code}"
    if start is not None and row.started_at is not None and row.ended_at is not None:
        # Durations, as two machines may have different clocks. Slurm's also include prolog and epilog.
        recorded, by_ledger = end.at - start.at, row.ended_at - row.started_at
        if by_ledger < recorded - _TOLERANCE or (is_local and by_ledger > recorded + _TOLERANCE):
            times = f"{by_ledger.total_seconds():.0f} s in the ledger, {recorded.total_seconds():.0f} s by its records"
            yield f"its duration is {times}"


def _state_differences(row: JobRow, folder: Path, code: int | None) -> Iterator[str]:
    """Yield how the state contradicts the exit code in the end record, or lacks Slurm's line."""
    is_in_ledger = f"state is {row.state} in the ledger"
    if row.phase in OPEN:
        if code is not None and not row.is_requeued:  # Slurm runs a requeued job again, which replaces the record
            yield f"{is_in_ledger}, and its end record has exit code {code}"
        return
    # Only Slurm's line proves the state of a job that ended well, or whose numbers count at its limit.
    needs_line = row.scheduler == "slurm" and (row.state == "TIMEOUT" or (code == 0 and row.state != "COMPLETED"))
    if code is None and (row.state == "COMPLETED" or (row.state == "TIMEOUT" and row.scheduler == "local")):
        yield f"{is_in_ledger}, and it has no end record"
    elif code is not None and not _allows(row, folder, code):
        yield f"{is_in_ledger}, and its end record has exit code {code}"
    elif needs_line and not _is_ended_by_slurm(row, folder):
        yield f"{is_in_ledger}, and no log has Slurm's line about it"


def _allows(row: JobRow, folder: Path, code: int) -> bool:
    """Return whether a job whose end record has this exit code can have the row's state."""
    if row.scheduler == "local":
        by_code = "COMPLETED" if code == 0 else "TIMEOUT" if code == _TIMED_OUT else "FAILED"
        return row.state == by_code or (row.state == "CANCELLED" and code != 0 and (folder / "cancelled").exists())
    if row.state in ("COMPLETED", "FAILED"):
        return (code == 0) == (row.state == "COMPLETED")
    return row.state != LOST  # the state of a job without an end record


def _is_ended_by_slurm(row: JobRow, folder: Path) -> bool:
    """Return whether a log has Slurm's line for the row's state, or the job's folder the mark of a cancellation."""
    if row.state == "CANCELLED":
        return (folder / "cancelled").exists()
    cause = reader_of(row.program, row.spec.program).cause(folder)
    return cause is not None and row.state in _SLURM_LINES and cause.of(_SLURM_LINES[row.state]) is not None
