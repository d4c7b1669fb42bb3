"""Report page: its content as plain values, and its HTML file."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

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
from orchestrator.ledger.rows import AttemptOrigin, JobSummary
from orchestrator.ledger.tables import Run
from orchestrator.results.outcome import FigureOutcome
from orchestrator.results.plot.figure import label_on, picture
from orchestrator.results.plot.panels import SERIES, SERIES_ON_DARK
from orchestrator.results.report.cases import (
    CaseLine,
    Counts,
    Hours,
    RecordedScript,
    attempt_mark,
    case_lines,
    counts_of,
    hours_of,
    policy_text,
    profiles_of,
    scripts_of,
    shown_hours,
    shown_number,
    with_spread,
)
from orchestrator.text import counted, shown_time, with_symbols

_MOST_DRAWN = 2000
"""Cases in a picture on the page. More do not fit side by side, and a browser draws them slowly."""


@dataclass(frozen=True)
class FigureSection:
    """Figure on the page: its outcome, all attempts of its jobs, and the runs that made them.

    `names` are the cases by job id, `anchors` those of the scripts by digest; `scripts` are not on the page before.
    `picture` is an <svg> element with the id `plot`, or empty: see `no_picture`.
    """

    number: int
    outcome: FigureOutcome
    attempts: Sequence[AttemptOrigin]
    runs: Sequence[Run]
    names: Mapping[str, str]
    as_published: frozenset[str]
    anchors: Mapping[str, str]
    scripts: tuple[RecordedScript, ...]
    picture: str
    no_picture: str

    @property
    def entry(self) -> Entry:
        """Return the experiment."""
        return self.outcome.entry

    @property
    def device(self) -> str:
        """Return the device of the cases: gpu or cpu."""
        return self.outcome.results[0].case.device

    @property
    def anchor(self) -> str:
        """Return the anchor of the section."""
        name = f"{self.entry.short_name}-{self.outcome.scale}-{self.outcome.cluster}"
        return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-{self.number}"

    @property
    def about(self) -> str:
        """Return the description of the scale; for a search the number of candidates that have a job."""
        if is_search(self.entry.name):
            candidates = case_count(scale_fields(self.entry, self.outcome.scale), to_run=True)
            return f"{len(self.outcome.results):,} of {counted(candidates, 'candidate')} had a job"
        return self.entry.experiment.about_scale(self.outcome.scale) or ""

    @property
    def metric(self) -> str:
        """Return the label of the figure's own metric."""
        return label_on(self.device, self.entry.experiment.axes.y.label)

    @cached_property
    def counts(self) -> Counts:
        """Return the number of its cases and claims by outcome."""
        return counts_of(self.outcome.results, self.outcome.claims)

    @cached_property
    def hours(self) -> Hours:
        """Return the hours of its attempts."""
        return hours_of(self.attempts, self.device, self.runs)

    @cached_property
    def cases(self) -> list[CaseLine]:
        """Return the lines of the table of cases."""
        return case_lines(self.entry, self.outcome.results)

    @property
    def picture_size(self) -> tuple[str, ...]:
        """Return width and height of the picture in its own unit; empty without a picture."""
        size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', self.picture)
        return size.groups() if size else ()

    def shows(self, column: str) -> bool:
        """Return whether a case has a value in this column."""
        return any(getattr(row, column) for row in self.cases)


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
    counts = sum((section.counts for section in sections), Counts())
    return Page(__version__, shown_time(latest_moment(ledger)), counts, _all_hours(sections), sections)


def _section(ledger: Ledger, outcome: FigureOutcome, number: int, anchors: dict[str, str]) -> FigureSection:
    """Return the section of a figure; its new scripts are added to `anchors`."""
    figure = (outcome.scale, outcome.cluster)
    rows = job_summaries(ledger, experiment=outcome.entry.name)
    jobs = [row for row in rows if (row.scale, row.cluster) == figure and row.program in outcome.programs]
    order = {row.job_id: position for position, row in reversed(list(enumerate(jobs)))}
    attempts = sorted(attempt_origins(ledger, order), key=lambda attempt: (order[attempt.job_id], attempt.number))
    published = {result.job_case for result in outcome.results if result.ended_as_published}
    names, known = _names(jobs), len(anchors)
    new = dict.fromkeys(attempt.script_sha256 for attempt in attempts if attempt.script_sha256 not in anchors)
    anchors |= {digest: f"script-{script}" for script, digest in enumerate(new, known + 1)}
    drawn, not_drawn = _picture(outcome, f"plot-{number}")
    return FigureSection(
        number=number,
        outcome=outcome,
        attempts=attempts,
        runs=run_records(ledger, {attempt.run_id for attempt in attempts}),
        names=names,
        as_published=frozenset(row.job_id for row in jobs if row.case_name in published),
        anchors=anchors,
        scripts=scripts_of(attempts, names, script_texts(ledger, new), anchors),
        picture=drawn,
        no_picture=not_drawn,
    )


def _names(jobs: Sequence[JobSummary]) -> dict[str, str]:
    """Return the case and repeat of each job; several cases may share a job."""
    names: dict[str, dict[str, None]] = {}
    for row in jobs:
        names.setdefault(row.job_id, {})[row.label] = None
    return {job: "; ".join(labels) for job, labels in names.items()}


def _picture(outcome: FigureOutcome, plot: str) -> tuple[str, str]:
    """Return the picture as an <svg> element, or the reason why there is none."""
    if len(outcome.results) > _MOST_DRAWN:
        return "", f"{len(outcome.results):,} cases do not fit side by side; repro plot draws them"
    try:
        drawn = picture(outcome.entry, outcome.scale, outcome.cluster, outcome.drawn(), prefix=plot)
    except ReproError as error:
        return "", f"{error.problems[0]}"
    return drawn, ""


_PICTURE = re.compile(r'(<svg [^>]*\bid="plot.*?</svg>|  <p class="empty">No picture: .*?</p>)\n*', re.DOTALL)


def without_picture(page: str) -> str:
    """Return the HTML of a page with one figure, without its picture or the reason why there is none.

    A second picture stays, because no page of one figure has two.
    """
    return _PICTURE.sub("", page, count=1)


def _all_hours(sections: Sequence[FigureSection]) -> tuple[Hours, ...]:
    """Return the hours of all figures by device, each attempt once; figures may share a job."""
    by_device: dict[str, dict[int, AttemptOrigin]] = {}
    runs = [run for section in sections for run in section.runs]
    for section in sections:
        by_device.setdefault(section.device, {}).update({attempt.attempt_id: attempt for attempt in section.attempts})
    return tuple(hours_of(attempts.values(), device, runs) for device, attempts in by_device.items())


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
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {_digest(script)}"
    template = environment.get_template("report.html.j2")
    text: str = template.render(page=page, style=style, script=script, policy=policy)
    return text


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


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _is_ours(path: Path) -> bool:
    """Return whether the file is an earlier page, or what an interrupted command left."""
    if path.is_symlink() or not path.is_file():
        return False
    if path.name.startswith(f".{PAGE}."):
        return True
    with path.open("rb") as file:
        return path.name == PAGE and _GENERATOR in file.read(_GENERATOR_WITHIN)
