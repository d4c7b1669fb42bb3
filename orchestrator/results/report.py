"""Report of results as one HTML page: outcomes, pictures, and the provenance of each number."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import jinja2

from orchestrator import __version__
from orchestrator.catalog.expand import case_count, scale_fields
from orchestrator.catalog.experiment import is_search
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.files import written_whole
from orchestrator.job_spec import shown_changes
from orchestrator.ledger.attempts import attempt_origins, job_summaries, latest_moment, run_records, script_texts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import AttemptOrigin
from orchestrator.ledger.tables import FAILED, MEASURED, Run
from orchestrator.money import Money, recorded_price, totals
from orchestrator.programs.axes import MetricDefinition, shares_beside
from orchestrator.reading.failure import POLICIES, Failure
from orchestrator.results.cases import Result
from orchestrator.results.comparison import NOT_MEASURED, ComparedNumber, measured_number, reference_rows
from orchestrator.results.outcome import FigureOutcome
from orchestrator.results.plot.figure import label_on, picture
from orchestrator.results.plot.panels import SERIES, SERIES_ON_DARK
from orchestrator.text import counted, shown_time, with_symbols

_MOST_DRAWN = 2000
"""Cases in a picture on the page. More do not fit side by side, and a browser draws them slowly."""


# ---- cases and claims -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of cases and claims by outcome; each is counted once."""

    cases: int = 0
    verified: int = 0
    partial: int = 0
    as_published: int = 0
    failed: int = 0
    missing: int = 0
    holds: int = 0
    fails: int = 0
    not_judged: int = 0

    @property
    def claims(self) -> int:
        """Return the number of claims."""
        return self.holds + self.fails + self.not_judged

    @property
    def summary(self) -> str:
        """Return `4 of 6 cases are verified, 1 failed, 1 is missing. 2 of 3 claims hold, none fails.`."""

        def is_(number: int) -> str:
            return f"{number} {'is' if number == 1 else 'are'}"

        verified = is_(self.verified).replace(" ", f" of {counted(self.cases, 'case')} ")
        parts = [f"{f'All {self.cases} cases are' if self.verified == self.cases > 1 else verified} verified"]
        parts += [f"{is_(self.partial)} partial"] if self.partial else []
        parts += [f"{self.as_published} ran out of memory as published"] if self.as_published else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{is_(self.missing)} missing"] if self.missing else []
        claims: list[str] = []
        if self.claims:
            claims = [f"{self.holds or 'None'} of {counted(self.claims, 'claim')} hold{'s' * (self.holds < 2)}"]
            claims.append(f"{self.fails or 'none'} fail{'s' * (self.fails < 2)}")
            claims += [f"{is_(self.not_judged)} not judged"] if self.not_judged else []
        return " ".join(f"{', '.join(sentence)}." for sentence in (parts, claims) if sentence)


def counts_of(figures: Iterable[FigureOutcome]) -> Counts:
    """Count cases and claims; a case that ran out of memory as published is neither failed nor verified."""
    cases, claims = Counter[str](), Counter[str]()
    for figure in figures:
        cases.update(map(_outcome, figure.results))
        claims.update(claim.verdict.replace(" ", "_") for claim in figure.claims)
    return Counts(cases.total(), **cases, **claims)


def _outcome(result: Result) -> str:
    """Return the count of `Counts` to which a case belongs."""
    if result.is_measured:
        return "verified" if result.is_verified else "partial"
    if result.ended_as_published:
        return "as_published"
    return "failed" if result.row is not None and result.row.verdict == FAILED else "missing"


class Mark(NamedTuple):
    """Verdict on the page: its word, and the kind that selects sign and colour."""

    kind: Literal["good", "bad", "open"]
    word: str


@dataclass(frozen=True, slots=True)
class CaseLine:
    """A case with one of its numbers. It has several lines if the source has several numbers for it.

    Time per iteration, execution mode, host wait, and the reason for a missing number accompany the figure's own metric
    (`is_own`). Unknown values are empty.
    """

    result: Result
    number: ComparedNumber
    is_own: bool
    metrics: Mapping[str, MetricDefinition]

    @property
    def verdict(self) -> Mark:
        """Return the verdict of the case."""
        row, outcome = self.result.row, _outcome(self.result)
        if outcome == "missing":
            return Mark("open", "not submitted" if row is None else _state(row.state))
        words = {"partial": f"partial, {self.result.partial}", "as_published": "out of memory, as published"}
        return Mark("bad" if outcome == "failed" else "good", words.get(outcome, outcome))

    @property
    def iteration_ms(self) -> str:
        """Return the time of an iteration, unless it is the number."""
        timing = self.result.metric("iteration_ms") if self.is_own and self.number.metric != "iteration_ms" else None
        return with_spread(timing.value, timing.spread) if timing else ""

    @property
    def host_wait(self) -> str:
        """Return `12.3, 4.1 %`: the host wait in ms, and its share of the iteration time."""
        wait, percent = self.result.value("host_wait_ms"), self.result.value("host_wait_percent")
        return f"{shown_number(wait)}, {percent:.3g} %" if self.is_own and None not in (wait, percent) else ""

    @property
    def shares(self) -> str:
        """Return `62.2 % of the peak by equation 3, 54.1 % computed, MFU 44.5 %`, for rates in TFLOP/s."""
        shares = shares_beside(self.metrics, self.number.metric)
        values = {share.phrase: self.result.value(share.name) for share in shares}
        return ", ".join(text.format(f"{value:.1f} %") for text, value in values.items() if value is not None)

    @property
    def used(self) -> str:
        """Return how many samples or repeats are behind the number."""
        metric = self.result.metric(self.number.metric)
        if metric is None:
            return NOT_MEASURED if self.number.missing == NOT_MEASURED else ""
        if metric.interval_low is not None:
            ends = f"{shown_number(metric.interval_low)} to {shown_number(metric.interval_high)}"
            return f"mean of {metric.repeats} repeats, 95 % in {ends}"
        return "" if metric.count is None else f"{metric.count} iterations"

    @property
    def tolerance(self) -> str:
        """Return `± 5 %, the source's`, or the reason why the number was not judged."""
        number = self.number
        if number.within is None or number.tolerance is None:
            return (number.because or "") if number.ratio is not None else ""
        return f"± {100 * number.tolerance:.4g} %" + (f", {number.tolerance_from}" if number.tolerance_from else "")

    @property
    def why(self) -> str:
        """Return the reasons why the number is missing or not comparable, each once."""
        result, row = self.result, self.result.row
        reason = (row.verdict_reason or (row.reason if row.verdict is None else None)) if row else None
        return "; ".join(filter(None, (reason, result.flag, result.noise, result.newer_text))) if self.is_own else ""


def case_lines(entry: Entry, results: Sequence[Result]) -> list[CaseLine]:
    """Return the lines of each case, the figure's own number first."""
    own = entry.experiment.plot.y.metric
    references: dict[str, list[ComparedNumber]] = {}
    for reference in reference_rows(entry, results):
        references.setdefault(reference.case, []).append(reference)
    lines: list[CaseLine] = []
    for result in results:
        numbers = sorted(references.get(result.case.name, []), key=lambda reference: reference.metric != own)
        if not numbers or numbers[0].metric != own:
            numbers.insert(0, replace(measured_number(entry, result, own), missing=None, because=None))
        lines += [CaseLine(result, number, number.metric == own, entry.metrics) for number in numbers]
    return lines


def shown_number(value: float | None) -> str:
    """Return a number with four digits, or with all digits before the decimal point: `1.042`, `14,974`."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_spread(value: float | None, spread: float | None) -> str:
    """Return `142.3 ± 1.2`, with as many decimals as the value, or the first digit of a smaller spread."""
    shown = shown_number(value)
    if not shown or spread is None or not math.isfinite(spread):
        return shown
    rounded = f"{spread:,.{len(shown.partition('.')[2])}f}"
    return f"{shown} ± {rounded if float(rounded.replace(',', '')) or not spread else f'{spread:.1g}'}"


def _state(state: str) -> str:
    return state.lower().replace("_", " ")


# ---- attempts: cost, verdict, scripts -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hours:
    """Cost of attempts in GPU-hours, or in process-hours for the device `cpu`; `costs` in each currency."""

    device: str
    number: float
    in_failed: float
    costs: tuple[Money, ...]

    @property
    def unit(self) -> str:
        """Return the unit."""
        return "process-hours on CPUs" if self.device == "cpu" else "GPU-hours"

    @property
    def spent(self) -> str:
        """Return the number for people."""
        return shown_hours(self.number)

    @property
    def money(self) -> str:
        """Return `31.00 USD`; nothing without a price."""
        return " + ".join(map(str, self.costs))

    @property
    def summary(self) -> str:
        """Return `12.40 GPU-hours, 0.31 of them in attempts that failed`."""
        lost = f", {shown_hours(self.in_failed)} of them in attempts that failed" if self.in_failed else ""
        return f"{self.spent} {self.unit}{f' ({self.money})' if self.costs else ''}{lost}"


def hours_of(attempts: Iterable[AttemptOrigin], device: str, runs: Iterable[Run]) -> Hours:
    """Return the cost of the attempts that have ended, with the prices in the profiles of their runs."""
    hours = [(max(0.0, attempt.gpu_hours or 0.0), attempt.verdict == FAILED, attempt.run_id) for attempt in attempts]
    prices = {run.id: price for run in runs if device != "cpu" and (price := recorded_price(run.profile))}
    costs = totals(prices[run_id].of(number) for number, _, run_id in hours if number and run_id in prices)
    in_failed = sum(number for number, failed, _ in hours if failed)
    return Hours(device, sum(number for number, *_ in hours), in_failed, costs)


def shown_hours(hours: float | None) -> str:
    """Return hours with two decimals; `< 0.01` for less, 0.00 if a clock went backwards, nothing before the end."""
    if hours is None:
        return ""
    return "< 0.01" if 0 < hours < 0.01 else f"{max(0.0, hours):,.2f}"


def profiles_of(runs: Sequence[Run]) -> Mapping[tuple[str, str], list[str]]:
    """Return the file and the text of each profile, with the ids of its runs."""
    used: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        text = json.dumps(run.profile, indent=2, ensure_ascii=False, default=str)
        used.setdefault((run.profile_file or "as shipped", text), []).append(run.id)
    return used


def attempt_mark(attempt: AttemptOrigin) -> Mark:
    """Return the verdict of an attempt, else its state."""
    if attempt.verdict in MEASURED:
        return Mark("good", str(attempt.verdict))
    if attempt.verdict == FAILED:
        return Mark("bad", f"failed ({attempt.failure})" if attempt.failure else "failed")
    return Mark("open", _state(attempt.state))


def policy_text(failure: str | None) -> str:
    """Return what `repro retry` does about a failure class."""
    policy = {member.value: POLICIES[member] for member in Failure}.get(failure or "")
    if policy is None:
        return ""
    action = "retried on other nodes" if policy.exclude_node else "retried"
    return f"{policy.reason}: {action if policy.retry else 'not retried'}"


# ---- the page -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FigureSection:
    """Figure on the page: its outcome, all attempts of its jobs, and the runs that made them.

    `names` are the cases by job id. `anchors` are those of all scripts by digest. `scripts` are the texts that are not
    on the page before, by digest. `picture` is an <svg> element with the id `plot`, or empty: see `no_picture`.
    """

    number: int
    outcome: FigureOutcome
    attempts: Sequence[AttemptOrigin]
    runs: Sequence[Run]
    names: Mapping[str, str]
    as_published: frozenset[str]
    anchors: Mapping[str, str]
    scripts: Mapping[str, str]
    picture: str
    no_picture: str

    @property
    def device(self) -> str:
        """Return the device of the cases: gpu or cpu."""
        return self.outcome.results[0].case.device

    @property
    def anchor(self) -> str:
        """Return the anchor of the section."""
        name = f"{self.outcome.entry.short_name}-{self.outcome.scale}-{self.outcome.cluster}"
        return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-{self.number}"

    @property
    def about(self) -> str:
        """Return the description of the scale; for a search the number of candidates that have a job."""
        if is_search(self.outcome.entry.name):
            candidates = case_count(scale_fields(self.outcome.entry, self.outcome.scale), to_run=True)
            return f"{len(self.outcome.results):,} of {counted(candidates, 'candidate')} had a job"
        return self.outcome.entry.experiment.about_scale(self.outcome.scale) or ""

    @property
    def metric(self) -> str:
        """Return the label of the figure's own metric."""
        return label_on(self.device, self.outcome.entry.experiment.plot.y.label)

    @cached_property
    def counts(self) -> Counts:
        """Return the number of its cases and claims by outcome."""
        return counts_of([self.outcome])

    @cached_property
    def hours(self) -> Hours:
        """Return the hours of its attempts."""
        return hours_of(self.attempts, self.device, self.runs)

    @cached_property
    def cases(self) -> list[CaseLine]:
        """Return the lines of the table of cases."""
        return case_lines(self.outcome.entry, self.outcome.results)

    @property
    def picture_size(self) -> tuple[str, ...]:
        """Return width and height of the picture in its own unit; empty without a picture."""
        size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', self.picture)
        return size.groups() if size else ()

    def shows(self, column: str) -> bool:
        """Return whether a case has a value in this column."""
        return any(getattr(row, column) for row in self.cases)

    def jobs_of(self, digest: str) -> str:
        """Return the cases and jobs that ran a script."""
        jobs = dict.fromkeys(attempt.job_id for attempt in self.attempts if attempt.script_sha256 == digest)
        return "; ".join(f"{self.names[job]} ({job})" for job in jobs)


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page. `hours` are of all figures, by device.

    `as_of` is the time of the last entry of the ledger (UTC), so that the same ledger gives the same page.
    """

    version: str
    as_of: str
    counts: Counts
    hours: tuple[Hours, ...]
    figures: tuple[FigureSection, ...]


def page_of(ledger: Ledger, outcomes: Sequence[FigureOutcome]) -> Page:
    """Return everything that the page contains about these figures, in their order."""
    anchors: dict[str, str] = {}
    sections = tuple(_section(ledger, outcome, number, anchors) for number, outcome in enumerate(outcomes, 1))
    by_device: dict[str, dict[int, AttemptOrigin]] = {}
    for section in sections:  # each attempt once, because figures may share a job
        by_device.setdefault(section.device, {}).update({attempt.attempt_id: attempt for attempt in section.attempts})
    runs = [run for section in sections for run in section.runs]
    hours = tuple(hours_of(attempts.values(), device, runs) for device, attempts in by_device.items())
    return Page(__version__, shown_time(latest_moment(ledger)), counts_of(outcomes), hours, sections)


def _section(ledger: Ledger, outcome: FigureOutcome, number: int, anchors: dict[str, str]) -> FigureSection:
    """Return the section of a figure; its new scripts are added to `anchors`."""
    figure = (outcome.scale, outcome.cluster)
    rows = job_summaries(ledger, experiment=outcome.entry.name)
    jobs = [row for row in rows if (row.scale, row.cluster) == figure and row.program in outcome.programs]
    order = {row.job_id: position for position, row in reversed(list(enumerate(jobs)))}
    attempts = sorted(attempt_origins(ledger, order), key=lambda attempt: (order[attempt.job_id], attempt.number))
    published = {result.job_case for result in outcome.results if result.ended_as_published}
    names: dict[str, dict[str, None]] = {}  # several cases may share a job
    for row in jobs:
        names.setdefault(row.job_id, {})[row.label] = None
    new = dict.fromkeys(attempt.script_sha256 for attempt in attempts if attempt.script_sha256 not in anchors)
    anchors |= {digest: f"script-{script}" for script, digest in enumerate(new, len(anchors) + 1)}
    texts = script_texts(ledger, new)
    drawn, not_drawn = _picture(outcome, f"plot-{number}")
    return FigureSection(
        number=number,
        outcome=outcome,
        attempts=attempts,
        runs=run_records(ledger, {attempt.run_id for attempt in attempts}),
        names={job: "; ".join(labels) for job, labels in names.items()},
        as_published=frozenset(row.job_id for row in jobs if row.case_name in published),
        anchors=anchors,
        scripts={digest: texts[digest].rstrip("\n") for digest in new if digest in texts},
        picture=drawn,
        no_picture=not_drawn,
    )


def _picture(outcome: FigureOutcome, plot: str) -> tuple[str, str]:
    """Return the picture as an <svg> element, or the reason why there is none."""
    if len(outcome.results) > _MOST_DRAWN:
        return "", f"{len(outcome.results):,} cases do not fit side by side; repro plot draws them"
    try:
        return picture(outcome.entry, outcome.scale, outcome.cluster, outcome.drawn(), prefix=plot), ""
    except ReproError as error:
        return "", f"{error.problems[0]}"


_PICTURE = re.compile(r'(<svg [^>]*\bid="plot.*?</svg>|  <p class="empty">No picture: .*?</p>)\n*', re.DOTALL)


def without_picture(page: str) -> str:
    """Return the HTML of a page with one figure, without its picture or the reason why there is none.

    A second picture stays, because no page of one figure has two.
    """
    return _PICTURE.sub("", page, count=1)


PAGE = "index.html"
_GENERATOR = b'<meta name="generator" content="repro '
_GENERATOR_WITHIN = 300
"""Bytes at the start of the page that contain the generator."""


def report(ledger: Ledger, figures: Sequence[FigureOutcome], templates: Path) -> str:
    """Return the page about these figures; the same ledger and the same version give the same text."""
    return rendered(page_of(ledger, figures), templates)


def rendered(page: Page, templates: Path) -> str:
    """Return the HTML of the page: every text is escaped, without secrets, with symbols for control characters.

    The page loads nothing and runs only its own script: its security policy contains the digest of the script.
    """
    environment = _environment(templates)
    colours = list(zip(SERIES, SERIES_ON_DARK, strict=True))
    style, script = (environment.get_template(f"report.{kind}.j2").render(colours=colours) for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    template = environment.get_template("report.html.j2")
    text: str = template.render(page=page, style=style, script=script, policy=policy)
    return text


@lru_cache
def _environment(templates: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_printable,
    )
    environment.filters |= {
        "arguments": shown_changes,
        "hours": shown_hours,
        "mark": attempt_mark,
        "moment": shown_time,
        "number": shown_number,
        "policy": policy_text,
        "profiles": profiles_of,
        "shell": shlex.join,
        "with_spread": with_spread,
    }
    return environment


def _printable(value: object) -> object:
    """Return a value of `{{ }}` before it is escaped, with symbols for control characters."""
    return with_symbols(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def require_folder(folder: Path, force: bool) -> None:
    """Raise ReproError unless the folder is new, empty, or contains only an earlier page."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ReproError(Problem("is a file, not a folder", f"{folder}:", "give -o a folder of its own"))
    others = sorted(path.name for path in folder.iterdir() if not _is_ours(path))
    if others and not force:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        hint = f"give -o a folder of its own; --force writes {PAGE} beside the other files"
        raise ReproError(Problem(f"contains other files ({others[0]}{more})", f"{folder}:", hint))


def _is_ours(path: Path) -> bool:
    """Return whether the file is an earlier page, or what an interrupted command left."""
    if path.is_symlink() or not path.is_file():
        return False
    if path.name.startswith(f".{PAGE}."):
        return True
    with path.open("rb") as file:
        return path.name == PAGE and _GENERATOR in file.read(_GENERATOR_WITHIN)


def write_report(text: str, folder: Path) -> Path:
    """Write the page into its folder, whole or not at all; return its path."""
    file = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReproError(Problem(f"cannot be created ({error.strerror})", f"{folder}:")) from None
    with written_whole(file) as part:
        part.write_text(text, encoding="utf-8")
    return file
