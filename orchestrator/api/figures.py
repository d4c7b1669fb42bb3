"""Results of experiments: export, comparison, claims, plots, reports and bundles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from typing_extensions import Unpack

from orchestrator.api import DEFAULT, FigureFilter, JobFilter, Session
from orchestrator.api.jobs import job_filter, name_list, update, updated_ledger
from orchestrator.catalog.case import parse_where
from orchestrator.catalog.library import experiments_meant, find_experiment, full_name, papers
from orchestrator.errors import EXIT_FAILED, Problem, ReproError, added_to, for_each
from orchestrator.fields import Column
from orchestrator.files import names_folder, require_place, written_whole
from orchestrator.job_spec import Value, shown_changes
from orchestrator.ledger.attempts import changed_arguments, job_rows, job_summaries, result_rows, run_summaries
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.measurements import metrics_of, rows_of_output
from orchestrator.ledger.rows import JobRow, JobSummary
from orchestrator.paths import short_name
from orchestrator.programs.command import parse_changes
from orchestrator.results.bundle.verify import Verified, verify
from orchestrator.results.bundle.write import Bundled, write_bundle
from orchestrator.results.cases import Result, left_out_attempts
from orchestrator.results.comparison import (
    CaseDiff,
    ComparedNumber,
    Side,
    compare_sides,
    reference_rows,
    rows_of_side,
    side_of,
)
from orchestrator.results.export.rows import (
    CaseRow,
    Row,
    as_latex,
    as_markdown,
    chosen_columns,
    claim_rows,
    export_rows,
    figure_table,
    iteration_rows,
    pieces,
)
from orchestrator.results.outcome import FigureOutcome, judge_figure, run_named
from orchestrator.results.plot.figure import known_format, require_matplotlib
from orchestrator.results.plot.figure import plot as draw
from orchestrator.results.report import report as report_page
from orchestrator.results.report import require_folder, write_report
from orchestrator.text import counted

TABLE_FORMATS = ("md", "latex")
"""Export formats for readers: a table of cases, without iterations."""
MOST_NAMED = 3
"""Cases with a later attempt that a note names."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Measured cases and claim verdicts of an experiment. `cases` and `claims` are the exported formats.

    `attempt` is the number of the attempts that were selected; None for the results of the jobs.
    """

    outcome: FigureOutcome
    cases: list[CaseRow]
    claims: list[dict[str, str]]
    results: list[Result] = field(repr=False)
    ledger: Ledger = field(repr=False)
    attempt: int | None = None

    @property
    def rows(self) -> list[Row]:
        """Return the cases as mappings of plain values, for a DataFrame."""
        return [dict(row) for row in self.cases]

    def iterations(self) -> Iterator[Row]:
        """Yield a row for each iteration of every job of the cases, including repeats and earlier jobs."""
        self._require_iterations()
        positions = {result.job_case: position for position, result in enumerate(self.results)}
        own = [row for row in job_rows(self.ledger, experiment=self.outcome.entry.name) if self.outcome.has(row)]
        rows = [row for row in own if row.case_name in positions]
        rows = result_rows(self.ledger, rows, self.attempt, self.outcome.left_out_ids).rows
        return iteration_rows(self.ledger, sorted(rows, key=lambda row: positions[row.case_name]))

    def _require_iterations(self) -> None:
        """Raise ReproError for a described program, of which the ledger has only statistics of its iterations."""
        if self.outcome.entry.described is not None:
            what = f"--iterations: those of {self.outcome.entry.described.shown_name} are not stored"
            raise ReproError(Problem(what, hint="leave it out: the cases have the statistics of their iterations"))

    def columns(self, choice: str = "all", *, iterations: bool = False) -> list[Column]:
        """Return the columns of a choice: `main`, `all`, or names with commas between them."""
        if iterations:
            self._require_iterations()
        return chosen_columns(self.outcome.entry, choice, iterations=iterations)

    def export(self, file_format: str = "csv", *, iterations: bool = False, columns: str = "all") -> Iterator[bytes]:
        """Yield the cases and claims, or the iterations, as csv, json, jsonl, parquet, md or latex.

        `columns` is that of the method `columns`. The tables md and latex have their own columns.
        """
        outcome, chosen = self.outcome, self.columns(columns, iterations=iterations)
        if iterations:
            yield from pieces(file_format, chosen, {"iterations": self.iterations()})
        elif file_format in TABLE_FORMATS:
            lines = figure_table(outcome.entry, outcome.scale, outcome.cluster, self.cases)
            yield (as_markdown(lines) if file_format == "md" else as_latex(lines)).encode()
        else:
            yield from pieces(file_format, chosen, {"cases": self.cases, "claims": self.claims})


def outcomes(
    names: Sequence[str] | str, *, session: Session = DEFAULT, **selection: Unpack[FigureFilter]
) -> list[FigureOutcome]:
    """Return the outcome of each of these experiments, and of each experiment of these papers that has such jobs.

    ReproError has the problems of all experiments.
    """
    ledger = updated_ledger(session)
    names = _chosen(ledger, session, name_list(names), **selection)
    return for_each(names, lambda name: note_program(session, judged(ledger, session, name, **selection)))


def _chosen(ledger: Ledger, session: Session, given: Sequence[str], **selection: Unpack[FigureFilter]) -> list[str]:
    """Return the named experiments and those of named papers that have such jobs, or all that have such jobs.

    ReproError if there is none.
    """
    submitted = _submitted(ledger, selection)
    meant = experiments_meant(session.folders, given)
    names = [name or full for full, name in meant.items() if name or full in submitted] if given else submitted
    if given and not names:
        what = f"no such job of {' or '.join(papers(meant))} was submitted"
        raise ReproError(Problem(what, hint="repro status shows the jobs"))
    return names


def judged(
    ledger: Ledger, session: Session, experiment: str | None, **selection: Unpack[FigureFilter]
) -> FigureOutcome:
    """Return the outcome of an experiment; report attempts that were left out, and later ones than the results."""
    figure = judge_figure(ledger, session.folders, experiment, **selection)
    session.note(f"left out: {attempt}" for attempt in figure.left_out)
    later = figure.later
    if later is not None:
        changes = shown_changes(later.spec.argument_changes)
        what = " ".join(filter(None, [later.experiment, f"at {later.scale} on {later.cluster}", changes]))
        session.note([f"the latest run is not shown: {what}; --run {later.run_id} shows it"])
    newer = [f"{result.case.name} ({result.newer_text})" for result in figure.results if result.newer or result.later]
    if newer:
        name = figure.entry.short_name
        more = f"; ... and {len(newer) - MOST_NAMED} more: repro status {name}" if len(newer) > MOST_NAMED else ""
        what = f"{counted(len(newer), 'case')} of {name} with a later attempt than the result"
        session.note([f"{what}: {'; '.join(newer[:MOST_NAMED])}{more}"])
    return figure


def note_program(session: Session, figure: FigureOutcome) -> FigureOutcome:
    """Report another program than the published one; return the outcome."""
    if figure.program:
        session.note([f"{figure.entry.short_name} with {figure.program}"])
    return figure


def collect(
    experiment: str | None = None,
    *,
    where: str | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[FigureFilter],
) -> Collected:
    """Read the logs and return the rows and claims of the experiment."""
    ledger = updated_ledger(session, running=True)
    figure = note_program(session, judged(ledger, session, experiment, **selection))
    results = figure.having(where)
    rows = export_rows(figure.entry, results, ledger)
    return Collected(figure, rows, claim_rows(figure.claims), results, ledger, selection.get("attempt"))


def write_file(pieces: Iterator[bytes], file: Path) -> None:
    """Write a file completely or not at all."""
    with written_whole(file) as part, part.open("wb") as stream:
        stream.writelines(pieces)


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """Measured and published numbers of an experiment. `results` are the chosen cases by name."""

    outcome: FigureOutcome
    results: Mapping[str, Result]
    rows: list[ComparedNumber]

    @property
    def failures(self) -> list[JobRow]:
        """Return the chosen jobs that failed unexpectedly."""
        names = {result.job_case for result in self.results.values()}
        return [row for row in self.outcome.failures if row.case_name in names]

    @property
    def failed(self) -> bool:
        """Return whether a chosen job failed or a number is outside its tolerance."""
        return bool(self.failures) or any(row.within is False for row in self.rows)


def compare(
    experiment: str | None = None,
    *,
    where: str | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[FigureFilter],
) -> PublishedComparison:
    """Compare the measured numbers of an experiment with the published ones."""
    figure = note_program(session, judged(updated_ledger(session), session, experiment, **selection))
    results = figure.having(where)
    at = now()
    rows = [
        replace(row, cluster=figure.cluster, reused=row.result.reused_text(at))
        for row in reference_rows(figure.entry, results)
    ]
    return PublishedComparison(figure, {result.case.name: result for result in results}, rows)


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Cases of two sets of runs, A and B, with the differences beyond noise."""

    a: Side
    b: Side
    cases: list[CaseDiff]

    @property
    def regressions(self) -> list[CaseDiff]:
        """Return the cases that are slower in B beyond noise, or fail only in B."""
        return [case for case in self.cases if case.change in ("regression", "now fails")]


def compare_runs(
    a: str,
    b: str,
    experiment: str | None = None,
    *,
    without: Sequence[str] | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[JobFilter],
) -> RunComparison:
    """Compare two sets of runs case by case. `a` and `b` are each a cluster, a date, a commit or a run.

    `without` is that of `FigureFilter`. `where` may select rows of outputs if there is an experiment.
    """
    filters = ", ".join(filter(None, [experiment, *map(str, filter(None, selection.values()))]))
    name = full_name(session.folders, experiment) if experiment else None
    selection["where"], row_values = _of_jobs_and_rows(selection.get("where"), experiment, session)
    ledger = updated_ledger(session)
    matches = job_filter(ledger, **selection)
    left_out = left_out_attempts(ledger, without or ())
    session.note(f"left out: {attempt}" for attempt in left_out)
    ids = {attempt.attempt_id for attempt in left_out}
    rows = [row for row in job_rows(ledger, experiment=name) if matches(row)]
    rows = result_rows(ledger, rows, left_out=ids).rows
    runs, codes = run_summaries(ledger), {row.code for row in rows}
    sides = [side_of(word, runs, codes) for word in (a, b)]
    if sides[0] == sides[1]:
        raise ReproError(Problem(f"{a} and {b}: both are {sides[0]}", hint="give two that differ"))
    rows_a, rows_b = (rows_of_side(ledger, side, rows, runs, ids) for side in sides)
    if sides[0].kind == "cluster" and sides[1].kind in ("date", "commit"):  # on that cluster only
        rows_b = [row for row in rows_b if row.cluster == sides[0].name]
    if sides[1].kind == "cluster" and sides[0].kind in ("date", "commit"):
        rows_a = [row for row in rows_a if row.cluster == sides[1].name]
    attempts = [row.attempt_id for row in (*rows_a, *rows_b)]
    metrics, all_rows = metrics_of(ledger, attempts), rows_of_output(ledger, attempts).items()
    chosen = {of: [row for row in of_job if row_values.items() <= row.key.items()] for of, of_job in all_rows}

    @cache
    def metric_of(name: str) -> str:
        """Return the metric of the experiment's y axis; none if its file is gone or has an error."""
        try:
            return find_experiment(session.folders, name).experiment.plot.y.metric
        except ReproError:
            return ""

    by_cluster = not {side.kind for side in sides} & {"cluster", "run"}
    cases = compare_sides(rows_a, rows_b, metrics, metric_of, by_cluster, chosen)
    if not any(case.a_job and case.b_job for case in cases):
        what = f"{sides[0]} and {sides[1]} share no case{f' of {filters}' if filters else ''}"
        raise ReproError(Problem(what, hint="repro status shows what was run"))
    return RunComparison(sides[0], sides[1], cases)


def _of_jobs_and_rows(
    where: str | None, experiment: str | None, session: Session
) -> tuple[str | None, dict[str, Value]]:
    """Return the part of a filter that selects jobs, and the values that select rows of their outputs."""
    entry = find_experiment(session.folders, experiment) if experiment and where else None
    if where is None or entry is None or entry.described is None:
        return where, {}
    keys = entry.described.output.key
    of_rows = {axis: value for axis, value in parse_where(where, entry.names.axes).items() if axis in keys}
    return ",".join(part for part in where.split(",") if part.partition("=")[0].strip() not in keys), of_rows


@dataclass(frozen=True, slots=True)
class JudgedClaims:
    """Outcomes of experiments with their claim verdicts, and the problems of experiments that cannot be read."""

    outcomes: list[FigureOutcome]
    problems: list[Problem]

    @property
    def failed(self) -> bool:
        """Return whether a job or a judged claim failed."""
        return any(figure.failed for figure in self.outcomes)


def claims(
    experiments: Sequence[str] | str = (), *, session: Session = DEFAULT, **selection: Unpack[FigureFilter]
) -> JudgedClaims:
    """Judge the claims of these experiments or papers, or of all submitted ones."""
    ledger = updated_ledger(session)
    names = _chosen(ledger, session, name_list(experiments), **selection)
    if not names:
        raise ReproError(Problem("no such jobs were submitted", hint="repro status shows the jobs"))
    claims = JudgedClaims([], [])
    for name in names:
        with added_to(claims.problems):  # the claims of the others are judged all the same
            claims.outcomes.append(judged(ledger, session, name, **selection))
    return claims


def _submitted(ledger: Ledger, selection: FigureFilter) -> list[str]:
    """Return the experiments that have such a job, in the order of their first runs. ReproError for `without`."""
    left_out_attempts(ledger, selection.get("without") or ())
    matches = job_filter(ledger, None, selection.get("scale"), selection.get("cluster"), selection.get("program"))
    rows: Sequence[JobSummary] = job_summaries(ledger)
    if (run := selection.get("run")) is not None:
        rows = job_rows(ledger, run_id=run_named(run_summaries(ledger), run))
    if arg := selection.get("arg"):
        changed, wanted = changed_arguments(ledger), set(parse_changes(arg, ()))
        rows = [row for row in rows if wanted <= set(changed.get(row.job_id, ()))]
    return list(dict.fromkeys(row.experiment for row in rows if matches(row)))


@dataclass(frozen=True, slots=True)
class Report:
    """An HTML page and the outcomes on it."""

    file: Path
    outcomes: list[FigureOutcome]


def report(
    output: Path | str,
    experiments: Sequence[str] | str = (),
    *,
    force: bool = False,
    session: Session = DEFAULT,
    **selection: Unpack[FigureFilter],
) -> Report:
    """Write `index.html` into a folder: the outcomes of these experiments, or of all submitted ones."""
    output = Path(output)
    ledger = session.ledger()
    require_folder(output, force)
    session.note(update(ledger).complaints)
    given = name_list(experiments)
    names = _chosen(ledger, session, given, **selection)
    outcomes = []
    for name in names if given else sorted(names):
        try:
            outcomes.append(judged(ledger, session, name, **selection))
        except ReproError as error:
            if given:
                raise
            session.note([f"{name} is left out: {error.problems[0]}"])
    if not outcomes:
        words = {"scale": "at", "cluster": "on", "program": "with"}
        filters = [f" {words[name]} {value}" for name, value in selection.items() if value and name in words]
        what = f"no submitted experiment can be reported{''.join(filters)}"
        raise ReproError(Problem(what, hint="repro status shows the jobs"))
    return Report(write_report(report_page(ledger, outcomes, session.folders.templates), output), outcomes)


@dataclass(frozen=True, slots=True)
class Plotted:
    """A figure file and the outcome that it shows."""

    file: Path
    outcome: FigureOutcome


def plot(
    experiment: str | None = None,
    output: Path | str | None = None,
    *,
    where: str | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[FigureFilter],
) -> Plotted:
    """Draw an experiment on the paper's axes as png, svg or pdf. Replaces the file. Needs matplotlib.

    In a folder, or without `output`, the file is a png with the name of the figure. A folder whose name ends with a
    slash is made.
    """
    place, is_folder = Path(output or "."), names_folder(output)
    if not is_folder:
        require_plot_file(place)
    figure = note_program(session, judged(updated_ledger(session), session, experiment, **selection))
    if problem := _unverified(figure, where):
        raise ReproError(problem)
    (plotted,) = _drawn([figure], where, place, is_folder, selection.get("attempt"))
    return plotted


def plot_all(
    names: Sequence[str] | str,
    folder: Path | str | None = None,
    *,
    where: str | None = None,
    session: Session = DEFAULT,
    **selection: Unpack[FigureFilter],
) -> list[Plotted]:
    """Draw one png for each of these experiments, into a folder that exists or whose name ends with a slash.

    Replaces the files.

    Of a paper, each experiment with a verified case is drawn. ReproError has the problems of all experiments, before
    the first picture.
    """
    place = Path(folder or ".")
    if not names_folder(folder):
        raise ReproError(Problem("no such folder", f"{place}:", f"several pictures need a folder: -o {place}/"))
    meant = experiments_meant(session.folders, name_list(names))
    figures = outcomes(names, session=session, **selection)
    problems = {figure.entry.name: problem for figure in figures if (problem := _unverified(figure, where))}
    named = [problem for name, problem in problems.items() if meant[name]]
    if named or len(problems) == len(figures):
        raise ReproError(*(named or problems.values()))
    session.note(f"{short_name(name)} is left out: no verified case" for name in problems)
    verified = [figure for figure in figures if figure.entry.name not in problems]
    return _drawn(verified, where, place, True, selection.get("attempt"))


def _unverified(figure: FigureOutcome, where: str | None) -> Problem | None:
    """Return the problem of a figure without a verified case."""
    if any(result.is_measured for result in figure.having(where)):
        return None
    name = figure.entry.short_name
    return Problem(f"{name} at scale {figure.scale}: no verified case", hint=f"repro status {name}")


def _drawn(
    figures: Sequence[FigureOutcome], where: str | None, place: Path, is_folder: bool, attempt: int | None
) -> list[Plotted]:
    """Draw each figure into a folder, or the only one into a file."""
    require_matplotlib()
    if is_folder:
        place.mkdir(parents=True, exist_ok=True)
    files = [place / figure.file_name(".png", attempt) if is_folder else place for figure in figures]
    for file in files:
        require_place(file)
    for figure, file in zip(figures, files, strict=True):
        draw(figure.entry, figure.scale, figure.cluster, figure.drawn(where), file)
    return list(map(Plotted, files, figures))


def require_plot_file(file: Path) -> None:
    """Raise ReproError if the name has no known ending or no file can be written there."""
    known_format(file)
    require_place(file)


_ENDING = ".tar.zst"


class UnprovenBundle(ReproError):
    """A bundle that does not verify, and was not written (exit code 1)."""

    exit_code = EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle file and what it contains."""

    file: Path
    contents: Bundled


def bundle_file(figure: FigureOutcome) -> Path:
    """Return the default file of a bundle: `figure-13-cpu-local.tar.zst`."""
    return Path(figure.file_name(_ENDING))


def require_bundle_name(file: Path) -> None:
    """Raise ReproError if the name of a file promises another format than that of a bundle."""
    if not file.name.endswith(_ENDING):
        stem = re.sub(r"\.(?:tar|tgz|gz|xz|bz2|zip|zst|tar\..{1,9})$", "", file.name)
        what = f"a bundle is a tar file compressed with zstd, and its name ends with {_ENDING}"
        raise ReproError(Problem(what, f"{file}:", f"-o {file.with_name(stem + _ENDING)}"))


def bundle(figure: FigureOutcome, output: Path | None = None, *, session: Session = DEFAULT) -> Bundle:
    """Write everything a reviewer needs into one file. Replaces the file.

    Raise UnprovenBundle if the bundle does not verify. The file is then not written.
    """
    file = output or bundle_file(figure)
    require_bundle_name(file)
    ledger, templates = session.ledger(), session.folders.templates
    with written_whole(file) as part:
        contents = write_bundle(ledger, figure, templates, part)
        if problems := _unproven(file, contents, verify(part, templates)):
            again = f"repro submit {figure.entry.name} --rerun measures again"
            hint = f"{again}; --without JOB:NUMBER=REASON leaves an attempt out, and the bundle names it"
            raise UnprovenBundle(*problems, Problem("not written, because it does not verify", f"{file}:", hint))
    return Bundle(file, contents)


def _unproven(file: Path, contents: Bundled, verified: Verified) -> list[Problem]:
    """Return why a bundle does not verify. A missing file has its place on this machine."""
    differences = [difference for check in verified.checks for difference in check.differences]
    if not differences:
        return []
    absent = {f"{missing.path}: not in the bundle": missing for missing in contents.missing}
    places = {place: Problem(missing.why, f"{missing.place}:") for place, missing in absent.items()}
    return [places.get(difference.partition(" (")[0]) or Problem(difference, f"{file}:") for difference in differences]


def verify_bundle(file: Path) -> Verified:
    """Recompute the numbers and claims of a bundle from its own logs and compare them with what it stores."""
    return verify(file, DEFAULT.folders.templates)
