"""Rows of an export, one per case or iteration line, their columns, and files of them for programs and people."""

from __future__ import annotations

import html
import importlib
import importlib.util
import io
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Annotated, Any

from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.fields import Column, Columns, Field, TableRow, columns_of, main_names, values_of
from orchestrator.ledger.attempts import attempt_origins, run_records
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import iterations_of
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import PARTIAL, IterationLine, Run, field_values
from orchestrator.money import recorded_price
from orchestrator.programs.axes import DEVICE, GPUS, MetricDefinition, principal_metric, shares_beside
from orchestrator.results.cases import Result
from orchestrator.results.claims import ClaimVerdict
from orchestrator.text import printable_line, utc_stamp


def _number_columns(metric: MetricDefinition) -> Iterator[Column]:
    main = metric.is_principal
    yield Column(metric.name, "number", metric.meaning, metric.unit, 6 * main)
    spread = "half the range of the middle half of the samples"
    yield Column(f"{metric.name}_spread", "number", spread, metric.unit, 7 * main)
    if main:
        yield Column(f"{metric.name}_low", "number", "lower end of the 95 % interval", metric.unit)
        yield Column(f"{metric.name}_high", "number", "upper end of the 95 % interval", metric.unit)


@dataclass(frozen=True, kw_only=True)
class CaseRow(TableRow):
    """A case with the job that is its result, its numbers, and its published number. Unknown values are None."""

    experiment: Annotated[str, Field("full name of the experiment: `sc21/figure-13`")]
    scale: Annotated[str, Field("`paper` for the published size, or a smaller scale", of="case.scale")]
    case: Annotated[str, Field("case, in the syntax of `--where`", of="case.name", main=2)]
    program: Annotated[str, Field("program that runs the case", of="case.program")]
    cluster: Annotated[str | None, Field("cluster of the run", of="row.cluster")]
    job: Annotated[str | None, Field("job id; empty if the case was never submitted", of="row.job_id", main=1)]
    run: Annotated[str | None, Field("latest `repro submit` that requested the job", of="row.run_id")]
    attempt: Annotated[
        int | None,
        Field(
            "number of the submission of the job: the last verified one, else the last partial one, else the latest",
            of="row.number",
        ),
    ]
    repeat: Annotated[
        int | None, Field("number of the repeat; with several repeats, the row is of the median one", of="row.repeat")
    ]
    scheduler_id: Annotated[str | None, Field("job id of the scheduler", of="row.scheduler_id")]
    settings: Annotated[Mapping[str, Any], Columns(())]
    state: Annotated[str | None, Field("state from the scheduler: `COMPLETED`, `RUNNING`, ...", of="row.state", main=3)]
    verdict: Annotated[
        str | None, Field("`verified`, `partial` or `failed`; empty while the job is open", of="row.verdict", main=4)
    ]
    verdict_reason: Annotated[str | None, Field("reason of the verdict", of="row.verdict_reason", main=10)]
    failure: Annotated[str | None, Field("failure class: `gpu-oom`, `timeout`, ...", of="row.failure")]
    newer: Annotated[
        str | None,
        Field(
            "state of a later attempt that is not the result: `attempt 2: failed (cancelled)`; attempts that "
            "`--without` left out, with the reason",
            of="newer_text",
            main=12,
        ),
    ]
    deciding_line: Annotated[str | None, Field("log line that decided the verdict", of="row.deciding_line")]
    deciding_rank: Annotated[int | None, Field("rank that printed this line", of="row.deciding_rank")]
    expected_outcome: Annotated[
        str | None, Field("`oom` if the source reports that the case runs out of memory", of="case.expected.outcome")
    ]
    flag: Annotated[str | None, Field("why the numbers cannot be right; they are left out", main=11)]
    noise: Annotated[str | None, Field("why the times are too noisy to be compared")]
    execution: Annotated[
        str | None, Field("execution mode: `graph` or `eager`; empty if the program does not print it")
    ]
    host_bound: Annotated[
        bool | None, Field("whether the GPUs waited too long for the host; empty if not measured", of="is_host_bound")
    ]
    submitted_at: Annotated[str | None, Field("time of the submission", of="row.submitted_at", kind="time")]
    started_at: Annotated[str | None, Field("time of the start", of="row.started_at", kind="time")]
    ended_at: Annotated[str | None, Field("time of the end", of="row.ended_at", kind="time")]
    elapsed_s: Annotated[float | None, Field("time from start to end", "s", of="row.elapsed_s")]
    gpu_hours: Annotated[float | None, Field("GPUs times elapsed time; empty on CPU cores", "h")] = None
    cost: Annotated[
        float | None, Field("GPU-hours times the profile's price at the time of the submission, in `currency`")
    ] = None
    currency: Annotated[
        str | None, Field("currency of `cost`, an ISO 4217 code; empty if the profile had no price")
    ] = None
    nodes: Annotated[str | None, Field("nodes, in the scheduler's notation", of="row.nodes")]
    gpu: Annotated[str | None, Field("GPU of the cluster")]
    repeats: Annotated[
        int | None, Field("verified and partial repeats behind the numbers", of="timing.repeats", main=5)
    ]
    iterations_used: Annotated[int | None, Field("interval lines of the logs behind the numbers", of="timing.count")]
    numbers: Annotated[Mapping[str, float | None], Columns(())]
    no_energy: Annotated[
        str | None,
        Field("why the GPU samples gave no energy; empty if they did, or there are none", of="row.no_energy"),
    ]
    figure_metric: Annotated[str, Field("metric of the figure; its numbers are repeated in the next columns")]
    figure_value: Annotated[float | None, Field("value of this metric", of="figure.value")]
    figure_spread: Annotated[float | None, Field("spread of this metric", of="figure.spread")]
    figure_low: Annotated[float | None, Field("lower end of the 95 % interval", of="figure.interval_low")]
    figure_high: Annotated[float | None, Field("upper end of the 95 % interval", of="figure.interval_high")]
    published: Annotated[
        float | None,
        Field("published number of the case, in the unit of `published_metric`", of="published.value", main=8),
    ]
    published_metric: Annotated[
        str | None, Field("metric of the published number: the figure's own metric", of="published.metric")
    ]
    published_how: Annotated[
        str | None, Field("`printed`, `derived`, `traced from the plot`, or `read off the plot`", of="published.how")
    ]
    published_confirmed: Annotated[
        bool | None, Field("whether the number was confirmed in the source", of="published.confirmed")
    ]
    published_error: Annotated[
        float | None, Field("largest error of a number from a plot, in its unit", of="published.error")
    ]
    published_source: Annotated[str | None, Field("place in the source", of="published.source")]
    published_gpu: Annotated[str | None, Field("GPU of the published number, if the source names it")] = None
    published_program: Annotated[
        str | None, Field("program of the published number, if another program ran here", of="instead_of")
    ]
    ratio_to_published: Annotated[
        float | None, Field("measured over published number; empty for another GPU or another program", main=9)
    ] = None
    measured_for: Annotated[
        str | None, Field("other experiment that submitted the attempt, if its number is reused here", main=13)
    ]
    code: Annotated[str | None, Field("code of the program: a commit or a digest", of="row.code")]
    image: Annotated[str | None, Field("container image", of="row.image")]
    image_digest: Annotated[
        str | None,
        Field("digest of the image that an import recorded, else the identity of its file", of="row.image_digest"),
    ]
    git_commit: Annotated[str | None, Field("commit of the checkout that `repro submit` ran from", of="run.git_commit")]
    git_dirty: Annotated[bool | None, Field("whether this checkout had changes", of="run.git_dirty")]


def case_columns(entry: Entry) -> tuple[Column, ...]:
    """Return the columns of an experiment's cases: its axes and metrics, and what cases of all programs have.

    The column of an axis or a metric whose name is taken ends with `_axis` or `_metric`.
    """
    settings = entry.names.exported or tuple(_axis_columns(entry).values())
    return columns_of(CaseRow, settings=settings, numbers=_metric_columns(entry))


_SHARED = {column.name: column for column in columns_of(CaseRow)}


def _axis_columns(entry: Entry) -> dict[str, Column]:
    """Return the column of each axis that has values, and of the device and its number."""
    device = {column.name: column for column in (DEVICE, GPUS)}
    given = entry.names.given.union(entry.described.output.key if entry.described is not None else ())
    return device | {
        axis: replace(column, name=f"{axis}_axis") if column.name in _SHARED else column
        for axis, column in entry.axes.items()
        if (not given or axis in given) and axis not in device and axis != "program"
    }


def metric_column(entry: Entry, metric: str) -> str:
    """Return the name of the column of a metric."""
    if entry.names.exported:
        return metric
    taken = {*_SHARED, *(column.name for column in _axis_columns(entry).values())}
    is_taken = metric in taken or metric.removesuffix("_spread") in entry.metrics.keys() - {metric}
    return f"{metric}_metric" if is_taken else metric


def _metric_columns(entry: Entry) -> tuple[Column, ...]:
    renamed = (replace(metric, name=metric_column(entry, metric.name)) for metric in entry.metrics.values())
    return tuple(column for metric in renamed for column in _number_columns(metric))


JOB_COLUMNS = (
    *("experiment", "scale", "case", "program", "cluster", "job", "run", "attempt", "repeat", "state", "verdict"),
)
"""Columns of cases that the rows of iterations have, too."""

ITERATION_COLUMNS: tuple[Column, ...] = (
    *(_SHARED[name] for name in JOB_COLUMNS),
    *sorted(columns_of(IterationLine), key=lambda column: column.name == "used"),  # it is the last one
)
"""One row per interval line of a log."""

_MAIN_ITERATION_COLUMNS = ("case", "iteration", "elapsed_ms", "loss", "grad_norm", "used")


def main_columns(entry: Entry) -> list[str]:
    """Return the columns that readers look at first, in their order.

    The metric of the figure and its shares come before the published number.
    """
    columns, metric = case_columns(entry), entry.experiment.plot.y.metric
    names = main_names(columns)
    numbers = (metric_column(entry, metric), *(share.name for share in shares_beside(entry.metrics, metric)))
    before = names.index("published")
    return list(dict.fromkeys((*names[:before], *numbers, *names[before:])))


def chosen_columns(entry: Entry, choice: str, *, iterations: bool = False) -> list[Column]:
    """Return the columns of a choice: `main`, `all`, or names with commas between them. ReproError for other names."""
    known = {column.name: column for column in (ITERATION_COLUMNS if iterations else case_columns(entry))}
    if choice == "all":
        return list(known.values())
    main = _MAIN_ITERATION_COLUMNS if iterations else main_columns(entry)
    names = list(main) if choice == "main" else list(dict.fromkeys(name.strip() for name in choice.split(",")))
    problems = [
        Problem(f'--columns: unknown column "{name}"', hint=did_you_mean(name, known) or "--columns all has all")
        for name in names
        if name not in known
    ]
    if problems:
        raise ReproError(*problems)
    return [known[name] for name in names]


Row = dict[str, Any]
"""Value, or None, of each column by its name."""

_JOB_FIELDS = {"case": "case_name", "job": "job_id", "run": "run_id", "attempt": "number"}


def export_rows(entry: Entry, results: Sequence[Result], ledger: Ledger | None = None) -> list[CaseRow]:
    """Return one row of plain values per case; unverified jobs have no numbers.

    The ledger gives the commits of the runs. Text from logs and schedulers is without escape sequences.
    """
    runs = _runs_of_attempts(ledger, [result.row for result in results if result.row]) if ledger else {}
    rows = (_row(entry, result, runs) for result in results)
    return [CaseRow(**{name: _plain(value) for name, value in row.items()}) for row in rows]


def _runs_of_attempts(ledger: Ledger, rows: Sequence[JobRow]) -> dict[int, Run]:
    """Return the run that made each attempt, by attempt id.

    A later run that reuses a finished job makes no attempt. An attempt is missing if the ledger cannot give its run.
    """
    run_ids = {origin.attempt_id: origin.run_id for origin in attempt_origins(ledger, {row.job_id for row in rows})}
    runs = {run.id: run for run in run_records(ledger, set(run_ids.values()))}
    return {attempt_id: runs[run_id] for attempt_id, run_id in run_ids.items() if run_id in runs}


def claim_rows(claims: Sequence[ClaimVerdict]) -> list[dict[str, str]]:
    """Return one row per claim with its verdict."""
    return [
        {"claim": verdict.claim.id, "says": verdict.claim.says, "source": verdict.claim.source}
        | {"verdict": verdict.verdict, "because": printable_line(verdict.because)}
        | {"margin": "" if verdict.margin is None else str(verdict.margin)}
        for verdict in claims
    ]


def _plain(value: Any) -> Any:
    """Return a value that every format supports: times and text on one line, None for NaN."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime):
        return utc_stamp(value, "milliseconds")
    return printable_line(value) if isinstance(value, str) else value


def _row(entry: Entry, result: Result, runs: Mapping[int, Run]) -> Row:
    """Return the fields of the row of a case."""
    row = result.row
    settings = _settings(entry, result)
    run = runs.get(row.attempt_id) if row is not None else None
    on_gpus = settings["device"] == "gpu"
    metric = entry.experiment.plot.y.metric
    timing = result.metric(principal_metric(entry.metrics, metric).name)
    named = SimpleNamespace(figure=result.metric(metric), timing=timing, run=run)
    hours = row.gpu_hours if row and on_gpus else None
    values: Row = {"experiment": entry.name, "settings": settings, "gpu": result.gpu if row and on_gpus else None}
    numbers = _numbers(entry, result)
    values |= {"figure_metric": metric, "numbers": numbers, "gpu_hours": hours} | _published(entry, result)
    values |= _money(hours, run) if run is not None else {}
    return values_of(CaseRow, named, result, **values)


def _settings(entry: Entry, result: Result) -> Row:
    """Return the settings of the job, or the planned ones. A row of the output has those of its key, too."""
    spec = result.row.spec if result.row else None
    if entry.record is not None and entry.names.exported:
        return dict(entry.record.exported_settings(result.case, spec))
    device = (spec.device if spec else None) or result.case.device
    values = {**(spec.settings if spec else {}), **result.case.settings, "device": device}
    return {column.name: values.get(axis) for axis, column in _axis_columns(entry).items()}


def _money(hours: float | None, run: Run) -> Row:
    price = recorded_price(run.profile)
    if price is None or hours is None:
        return {}
    money = price.of(hours)
    return {"cost": money.amount, "currency": money.currency}


def _numbers(entry: Entry, result: Result) -> dict[str, float | None]:
    """Return the numbers of the columns of `_metric_columns`, in their order."""
    numbers: list[float | None] = []
    for definition in entry.metrics.values():
        metric = result.metric(definition.name)
        numbers += [metric.value, metric.spread] if metric else [None, None]
        if definition.is_principal:
            numbers += [metric.interval_low, metric.interval_high] if metric else [None, None]
    return {column.name: value for column, value in zip(_metric_columns(entry), numbers, strict=True)}


def _published(entry: Entry, result: Result) -> Row:
    point = result.published
    if point is None:
        return {}
    gpu = point.gpu or (entry.paper.machine.gpu if entry.paper.machine else None)
    value = result.value(point.metric)
    is_same_program = result.instead_of is None and not result.case.argument_changes
    is_same_setup = is_same_program and bool(gpu and result.gpu and gpu in result.gpu)
    return {
        "published_gpu": gpu,
        "ratio_to_published": value / point.value if value is not None and is_same_setup else None,
    }


def iteration_rows(ledger: Ledger, rows: Sequence[JobRow]) -> Iterator[Row]:
    """Yield every iteration of these jobs, job by job, so that memory does not grow with their number.

    Jobs that run or failed are included: state and verdict are in each row.
    """
    names = [column.name for column in ITERATION_COLUMNS]
    for row in rows:
        shared = {name: _plain(getattr(row, _JOB_FIELDS.get(name, name))) for name in JOB_COLUMNS}
        for line in iterations_of(ledger, row.attempt_id):
            values = shared | {name: _plain(value) for name, value in field_values(line).items()}
            yield {name: values[name] for name in names}


Cells = Mapping[str, Any]
"""Value, or None, of each column by its name, in a row of any kind."""

_ROWS_AT_ONCE = 10_000
"""Rows per write of a Parquet file; memory does not grow with the number of rows."""


def pieces(name: str, columns: Sequence[Column], parts: Mapping[str, Iterable[Cells]]) -> Iterator[bytes]:
    """Yield a file of the format `name`; JSON has all `parts`, other formats only the first, with these columns."""
    (title, complete), *others = parts.items()
    names = [column.name for column in columns]
    rows = ({name: row[name] for name in names} for row in complete)
    if name == "parquet":
        yield as_parquet(rows, columns)
    elif name == "csv":
        yield from map(str.encode, _csv_pieces(rows, columns))
    elif name == "json":
        meanings = ({"name": one.name, "type": one.kind, "unit": one.unit, "meaning": one.meaning} for one in columns)
        yield from map(str.encode, _json_pieces({"columns": meanings, title: rows, **dict(others)}))
    else:
        yield from (json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)


def _csv_pieces(rows: Iterable[Cells], columns: Sequence[Column]) -> Iterator[str]:
    """Yield CSV by RFC 4180: lines end with CR LF, an empty field is a missing value, numbers are exact.

    A text that a spreadsheet would read as a formula starts with an apostrophe. Python's csv module does not quote `;`,
    tabs and blanks at the ends, which spreadsheets of other languages need.
    """
    yield csv_line(column.name for column in columns) + "\r\n"
    for row in rows:
        yield csv_line(row.values()) + "\r\n"


def csv_line(values: Iterable[object]) -> str:
    """Return the values as one line of CSV, without its end."""
    return ",".join(map(_cell, values))


# Semicolons too: a spreadsheet of a country with decimal commas splits at them.
_QUOTED = re.compile(r'[",;\t\r\n]|^\s|\s$')


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text_cell(value) if isinstance(value, str) else str(value)


@lru_cache(maxsize=1000)  # the lines of a log repeat the texts of their job
def _text_cell(value: str) -> str:
    text = f"'{value}" if is_formula(value) else value
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may run the text, by its first visible character in any width."""
    first = next((c for c in text if c.isprintable() and not c.isspace()), "")
    return text[:1] in ("\t", "\r", "\n") or unicodedata.normalize("NFKC", first)[:1] in ("=", "+", "-", "@")


def _json_pieces(parts: Mapping[str, Iterable[Cells]]) -> Iterator[str]:
    """Yield an object of lists, one element per line; ValueError for NaN, which JSON does not have."""
    yield "{"
    for number, (name, rows) in enumerate(parts.items()):
        yield f"{',' if number else ''}\n{json.dumps(name)}: ["
        for position, row in enumerate(rows):
            yield f"{',' if position else ''}\n  {json.dumps(dict(row), allow_nan=False)}"
        yield "\n]"
    yield "\n}\n"


def require_parquet() -> None:
    """Raise ReproError if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ReproError(Problem("parquet needs pyarrow", hint="pip install '.[parquet]'"))


def as_parquet(rows: Iterable[Cells], columns: Sequence[Column]) -> bytes:
    """Return a Parquet file: each column with its own type, its unit and meaning as metadata of the field."""
    require_parquet()
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    types = {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("ms", tz="UTC"),
    }
    meanings = [{"meaning": column.meaning} | ({"unit": column.unit} if column.unit else {}) for column in columns]
    fields = ((column.name, types[column.kind]) for column in columns)
    schema = pyarrow.schema(pyarrow.field(*one, metadata=each) for one, each in zip(fields, meanings, strict=True))
    times = [column.name for column in columns if column.kind == "time"]
    file = io.BytesIO()
    remaining = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while batch := list(itertools.islice(remaining, _ROWS_AT_ONCE)):
            batch = [
                dict(row)
                | {name: row[name] and datetime.fromisoformat(row[name].replace("Z", "+00:00")) for name in times}
                for row in batch
            ]
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
    return file.getvalue()


_NONE = "-"


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Table of a figure; the first two columns are text, the others numbers."""

    caption: str
    heading: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    label: str


def figure_table(entry: Entry, scale: str, cluster: str, rows: Sequence[Cells]) -> FigureTable:
    """Return case, verdict, the principal and the figure's own metric, shares, and published numbers as a table.

    Shares stand beside their metric if a case has them.
    """
    y = entry.experiment.plot.y
    principal = principal_metric(entry.metrics, y.metric)
    shown = {principal.name: principal.label or principal.name}
    shown |= {y.metric: y.label} if y.metric not in shown or not principal.is_principal else {}
    columns: list[tuple[str, Callable[[Cells], str]]] = [("Case", lambda row: str(row["case"])), ("Verdict", _verdict)]
    columns += [(label, partial(_measured, column=metric_column(entry, name))) for name, label in shown.items()]
    beside = shares_beside(entry.metrics, y.metric)
    shares = [share for share in beside if any(row[share.name] is not None for row in rows)]
    columns += [(share.label or share.name, partial(_value, name=share.name)) for share in shares]
    if any(row["published"] is not None for row in rows):
        columns += [("Published", _published_text), ("Ratio", partial(_value, name="ratio_to_published"))]
    replaced = sorted({(row["program"], row["published_program"]) for row in rows if row["published_program"]})
    programs = " and ".join(f"{program} instead of {own}" for program, own in replaced)
    return FigureTable(
        caption=f"{entry.experiment.figure} ({entry.name}) on {cluster} at scale {scale}"
        f"{f' with {programs}' if programs else ''}; ± is the spread over the iterations",
        heading=tuple(name for name, _ in columns),
        body=tuple(tuple(cell(row) for _, cell in columns) for row in rows),
        label=re.sub(r"[^A-Za-z0-9-]+", "-", f"{entry.short_name}-{scale}-{cluster}"),
    )


def _verdict(row: Cells) -> str:
    if row["verdict"] is None:
        return str(row["state"] or "not submitted").lower()
    if row["verdict"] == PARTIAL:
        return f"{PARTIAL}, {row['iterations_used']} samples"
    marks = {"flag": "flagged", "noise": "noisy", "host_bound": "host-bound"}
    detail = row["failure"] or next((mark for name, mark in marks.items() if row[name]), None)
    return f"{row['verdict']}, {detail}" if detail else str(row["verdict"])


def _measured(row: Cells, column: str) -> str:
    value, spread = row[column], row[f"{column}_spread"]
    return f"{_number(value)} ± {_number(spread)}" if value is not None and spread is not None else _number(value)


def _published_text(row: Cells) -> str:
    """Return the published number with its error, and the reason if it is not compared: unconfirmed, or another GPU."""
    if row["published"] is None:
        return _NONE
    notes = [f"±{row['published_error']:g}"] if row["published_error"] else []
    notes += [] if row["published_confirmed"] else ["unconfirmed"]
    if row["gpu"] and row["published_gpu"] and row["published_gpu"] not in row["gpu"]:
        notes.append(row["published_gpu"])
    return _number(row["published"]) + (f" ({', '.join(notes)})" if notes else "")


def _value(row: Cells, name: str) -> str:
    return _number(row[name])


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def as_markdown(table: FigureTable) -> str:
    """Return a table in GitHub's Markdown, with its caption above."""
    heading, *body = ([markdown_escaped(cell) for cell in line] for line in (table.heading, *table.body))
    rows = [heading, ["---", "---", *["---:"] * (len(heading) - 2)], *body]
    return f"{markdown_escaped(table.caption)}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


_MARKDOWN = re.compile(r"[\\`*_\[\]{}|~$#]")


def markdown_escaped(text: str) -> str:
    """Return the text so that Markdown prints it as it is: no column, emphasis, link or HTML."""
    return html.escape(_MARKDOWN.sub(r"\\\g<0>", " ".join(text.splitlines())), quote=False)


def as_latex(table: FigureTable) -> str:
    """Return a floating LaTeX table that needs the package booktabs only."""
    columns = "ll" + "r" * (len(table.heading) - 2)
    heading, *body = ("    " + " & ".join(map(latex_escaped, line)) + r" \\" for line in (table.heading, *table.body))
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_escaped(table.caption)}}}",
        rf"  \label{{tab:{table.label}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        heading,
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


# After the \\ of the previous row, TeX reads * and [ as arguments. Its default encoding has other signs for < > |.
# Two hyphens are a dash, and two quotes are another quote. babel may redefine the double quote.
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "*[]`"},
    **{sign: f"{sign}{{}}" for sign in "-'"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    "±": r"$\pm$",
}
_SPECIAL = re.compile(r"-(?=-)|'(?=')|[&%$#_{}*\[\]`~^\\<>|\"±]")


def latex_escaped(text: str) -> str:
    """Return the text so that LaTeX prints it as it is in a cell or a caption."""
    return _SPECIAL.sub(lambda match: _LATEX[match[0]], " ".join(text.splitlines()))
