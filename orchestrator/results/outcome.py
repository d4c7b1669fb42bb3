"""Outcome of a figure: measured cases and claim verdicts, read from a ledger."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from orchestrator.catalog.case import parse_where, select, with_changes, with_program
from orchestrator.catalog.expand import cases_to_run, expand
from orchestrator.catalog.experiment import is_search, scale_names
from orchestrator.catalog.library import Entry, find_experiment, full_name
from orchestrator.errors import Problem, ReproError
from orchestrator.fields import Field, row_of
from orchestrator.job_spec import shown_changes
from orchestrator.ledger.attempts import (
    attempts_of_jobs,
    job_rows,
    measured_for,
    program_names,
    result_rows,
    run_summaries,
)
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import losses_of, metrics_of, rows_of_output
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import MEASURED, Run
from orchestrator.paths import Folders
from orchestrator.programs.command import changes_of, parse_changes
from orchestrator.programs.record import require_program
from orchestrator.results.cases import (
    LeftOutAttempt,
    Result,
    case_results,
    in_order_of_runs,
    latest_job,
    left_out_attempts,
)
from orchestrator.results.claims import ClaimVerdict, Used, judge_claims
from orchestrator.results.evidence import Margin
from orchestrator.text import printable_line


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """Verdict of a claim: `holds`, `fails` or `not judged`, its distance from the bound, and the numbers behind it."""

    experiment: str
    scale: str
    cluster: str
    claim: Annotated[str, Field(of="claim.id")]
    kind: Annotated[str, Field(of="claim.kind")]
    says: Annotated[str, Field(of="claim.says")]
    source: Annotated[str, Field(of="claim.source")]
    verdict: str
    because: str
    margin: Margin | None
    used: tuple[Used, ...]


@dataclass(frozen=True, slots=True)
class FigureOutcome:
    """All cases of an experiment at a scale on a cluster, and the verdicts of its claims.

    `reference` are the cases that have published numbers and no job. `later` is a job of a later run that is not shown.
    `jobs` are the ids of all jobs of the cases, also of earlier ones. `left_out` are attempts of these cases, and of
    those that claims compare with, that a user left out.
    """

    entry: Entry
    scale: str
    cluster: str
    results: Sequence[Result]
    claims: Sequence[ClaimVerdict]
    reference: Sequence[Result] = ()
    later: JobRow | None = None
    jobs: frozenset[str] = frozenset()
    left_out: tuple[LeftOutAttempt, ...] = ()

    @property
    def left_out_ids(self) -> frozenset[int]:
        """Return the ids of the attempts that a user left out."""
        return frozenset(attempt.attempt_id for attempt in self.left_out)

    @property
    def judged_claims(self) -> list[JudgedClaim]:
        """Return the claims as rows."""
        figure = {"experiment": self.entry.name, "scale": self.scale, "cluster": self.cluster}
        return [
            row_of(JudgedClaim, verdict, because=printable_line(verdict.because), **figure) for verdict in self.claims
        ]

    @property
    def programs(self) -> list[str]:
        """Return the names of the programs that run the cases, sorted."""
        return sorted({result.case.program for result in self.results})

    @property
    def replaced_program(self) -> str | None:
        """Return the experiment's own program if another program ran instead, else None."""
        return self.results[0].instead_of

    @property
    def argument_changes(self) -> tuple[str, ...]:
        """Return the options that changed the arguments of the programs."""
        return changes_of(result.case.argument_changes for result in self.results)

    @property
    def program(self) -> str | None:
        """Return `pretrain instead of megatron-2021`, with changed arguments; None if the published program ran."""
        own = self.replaced_program
        parts = [f"{self.results[0].case.program} instead of {own}"] if own else []
        parts += [shown_changes(self.argument_changes)] if self.argument_changes else []
        return ", ".join(parts) or None

    @property
    def failures(self) -> list[JobRow]:
        """Return the jobs that failed unexpectedly, each once: see `Result.failures`."""
        failures = [row for result in self.results for row in result.failures]
        return list({(row.attempt_id, row.case_name): row for row in failures}.values())

    @property
    def failed(self) -> bool:
        """Return whether a job or a judged claim failed."""
        return bool(self.failures) or any(claim.verdict == "fails" for claim in self.claims)

    def has(self, row: JobRow) -> bool:
        """Return whether a job is one of these cases, with their program and their arguments."""
        figure = (self.entry.name, self.scale, self.cluster)
        cases = {(one.job_case, one.case.program, one.case.argument_changes) for one in self.results}
        return _figure(row) == figure and (row.case_name, row.program, row.spec.argument_changes) in cases

    def file_name(self, ending: str = "", attempt: int | None = None) -> str:
        """Return the default name of a file of these results, for example `figure-13-cpu-local.png`."""
        program = f"-{self.results[0].case.program}" if self.replaced_program else ""
        program += "-changed-arguments" if self.argument_changes else ""
        program += f"-attempt-{attempt}" if attempt is not None else ""
        name = f"{self.entry.short_name}-{self.scale}-{self.cluster}{program}"
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") + ending

    def having(self, where: str | None) -> list[Result]:
        """Return the results of the cases that match a `--where` filter. Claims still refer to all cases."""
        wanted = parse_where(where, self.entry.names.axes)
        chosen = {case.name for case in select([result.case for result in self.results], wanted)}
        return [result for result in self.results if result.case.name in chosen]

    def drawn(self, where: str | None = None) -> list[Result]:
        """Return the results that a plot shows: those of `having`, and the cases that have no job."""
        wanted = parse_where(where, self.entry.names.axes).items()
        return [*self.having(where), *(one for one in self.reference if wanted <= one.case.settings.items())]


def judge_figure(
    ledger: Ledger,
    folders: Folders,
    experiment: str | None = None,
    scale: str | None = None,
    cluster: str | None = None,
    program: str | None = None,
    attempt: int | None = None,
    arg: Sequence[str] | None = None,
    run: str | None = None,
    changes: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
) -> FigureOutcome:
    """Return the outcome of the figure of `shown_job`, of the jobs that match the arguments; None matches everything.

    `arg` are words of `--arg` that a job must have been submitted with, `changes` all changes of its arguments. With
    `run`, the beginning of a run's id, only its jobs count. The result of a job is that of `ledger.attempts`;
    with `attempt`, the attempt of this number, for the jobs that have it. The attempts of `without` do not count.
    Raises ReproError if no job matches or has this attempt, or if the name of the experiment, the program, the run or
    an attempt of `without` is unknown.
    """
    left_out = left_out_attempts(ledger, without or ())
    name = full_name(folders, experiment) if experiment else None
    wanted = set(parse_changes(arg or (), ()))
    if program is not None:
        require_program(program, program_names(ledger))
    runs = run_summaries(ledger)
    rows = [
        row
        for row in job_rows(ledger, experiment=name, run_id=run_named(runs, run) if run else None)
        if scale in (None, row.scale) and cluster in (None, row.cluster)
    ]
    matching = [
        row
        for row in rows
        if program in (None, row.program) and _has_changes(row, changes) and wanted <= set(row.spec.argument_changes)
    ]
    if not matching:
        machine, changed = cluster or ("local" if scale in (None, "cpu") else "NAME"), shown_changes(wanted)
        filters = [("at", scale, f"--scale {scale}"), ("on", cluster, ""), ("with", program, f"--program {program}")]
        filters += [("with", changed, changed), ("in run", run, "")]
        raise ReproError(_never_submitted(experiment, machine, filters))
    matching = in_order_of_runs(matching, runs)
    ids = {attempt.attempt_id for attempt in left_out}
    shown = shown_job(result_rows(ledger, matching, left_out=ids).rows or matching)
    if run is not None:
        changes = changes_of(row.spec.argument_changes for row in matching)
    entry = find_experiment(folders, experiment or shown.experiment)
    outcome = _judged(ledger, entry, rows, shown, attempt, changes, left_out)
    return outcome if outcome.has(matching[-1]) else replace(outcome, later=matching[-1])


def _never_submitted(experiment: str | None, machine: str, filters: Sequence[tuple[str, str | None, str]]) -> Problem:
    """Return the problem. Its hint submits to the machine, with the option of each filter that has a value."""
    used = [(f"{word} {value}", option) for word, value, option in filters if value]
    end = "was never submitted" if experiment else "was submitted"
    command = [f"repro submit {experiment or 'figure-13'} --cluster {machine}", *(option for _, option in used)]
    what = [experiment or "nothing", *(text for text, _ in used), end]
    return Problem(" ".join(what), hint=" ".join(filter(None, command)))


def _has_changes(row: JobRow, changes: Sequence[str] | None) -> bool:
    """Return whether the job ran with the changes, or with those that affect it; without any if there are none."""
    own = row.spec.argument_changes
    return changes is None or (set(own) <= set(changes) and bool(own) == bool(changes))


def shown_job(rows: Sequence[JobRow]) -> JobRow:
    """Return the job whose figure and arguments are shown, of jobs in the order of their runs.

    The latest job with numbers and the published arguments, else the latest one with numbers, else `latest_job`.
    """
    measured = [row for row in rows if row.verdict in MEASURED]
    published = [row for row in measured if not row.spec.argument_changes]
    return latest_job(published or measured or rows)


def run_named(runs: Sequence[Run], beginning: str) -> str:
    """Return the id of the only run that begins so; ReproError if there is none or more than one."""
    ids = [run.id for run in runs if run.id.startswith(beginning)]
    if len(ids) != 1:
        what = f"--run {beginning}: {'several runs begin' if ids else 'no run begins'} so"
        raise ReproError(Problem(what, hint="repro sql 'SELECT id, experiment, created_at FROM runs' lists the runs"))
    return ids[0]


def _figure(row: JobRow) -> tuple[str, str, str]:
    return row.experiment, row.scale, row.cluster


def judge_stored(ledger: Ledger, entry: Entry, scale: str, without: Sequence[str] = ()) -> FigureOutcome:
    """Return the outcome of an experiment at a scale from a ledger that has the rows of a bundle only.

    The attempts of `without` do not count.
    """
    rows = [row for row in job_rows(ledger, experiment=entry.name) if row.scale == scale]
    if not rows:
        raise ReproError(Problem(f"no job of {entry.name} at scale {scale}", "ledger/:"))
    left_out = left_out_attempts(ledger, without)
    last = shown_job(in_order_of_runs(rows, run_summaries(ledger)))
    return _judged(ledger, entry, rows, last, left_out=left_out)


def _judged(
    ledger: Ledger,
    entry: Entry,
    rows: Sequence[JobRow],
    last: JobRow,
    attempt: int | None = None,
    changes: Sequence[str] | None = None,
    left_out: Sequence[LeftOutAttempt] = (),
) -> FigureOutcome:
    """Return the outcome of an experiment from the jobs with the experiment, scale and cluster of the job `last`.

    All cases run the experiment's own programs, or all cases run the program that replaced them in `last`. `changes`
    are those of the arguments, by default those of the run of `last`. The attempts `left_out` do not count.
    """
    own_programs = {case.program for case in cases_to_run(entry, last.scale)}
    program = None if last.program in own_programs else last.program
    rows = [row for row in rows if _figure(row) == _figure(last)]
    if changes is None:
        programs = {program} if program else own_programs
        of_run = (row for row in rows if row.run_id == last.run_id and row.program in programs)
        changes = changes_of(row.spec.argument_changes for row in of_run) if last.spec.argument_changes else ()
    with_losses = needs_losses(entry)
    results, rows = _results(ledger, entry, last, rows, program, changes, with_losses, left_out, attempt)
    if is_search(entry.name):  # it runs only some of its candidates
        results = [result for result in results if result.row is not None] or results
    others: dict[str, list[Result]] = {}
    for name, other in entry.others.items():
        jobs = job_rows(ledger, experiment=other.name)
        others[name], _ = _results(ledger, other, last, jobs, program, changes, with_losses, left_out)
    claims = judge_claims(entry, last.scale, results, last.spec.gpus_per_node or 0, others)
    without_job = [case for case in expand(entry, last.scale) if case.reference_only]
    reference = case_results(entry, without_job, rows, {}) if program is None else []
    own = [one for of_figure in (results, *others.values()) for result in of_figure for one in result.left_out]
    job_ids, named = frozenset(row.job_id for row in rows), tuple(dict.fromkeys(own))
    return FigureOutcome(entry, last.scale, last.cluster, results, claims, reference, jobs=job_ids, left_out=named)


def _results(
    ledger: Ledger,
    entry: Entry,
    last: JobRow,
    rows: Sequence[JobRow],
    program: str | None,
    changes: Sequence[str],
    with_losses: bool,
    left_out: Sequence[LeftOutAttempt],
    attempt: int | None = None,
) -> tuple[list[Result], list[JobRow]]:
    """Return the results of an experiment at the scale and on the cluster of the job `last`, and their jobs.

    `program` is the program that replaces the experiment's own programs, if any, and `changes` are those of the
    arguments.
    """
    if last.scale not in scale_names(entry.experiment):
        return [], []
    cases = cases_to_run(entry, last.scale)
    cases = with_changes(with_program(cases, program) if program is not None else cases, changes)
    programs, figure = {case.program for case in cases}, (last.scale, last.cluster)
    rows = [row for row in rows if (row.scale, row.cluster) == figure and row.program in programs]
    own = {case.name: case.argument_changes for case in cases}
    rows = [row for row in rows if row.spec.argument_changes == own.get(row.case_name, ())]
    rows = in_order_of_runs(rows, run_summaries(ledger))
    if attempt is not None:
        attempts = attempts_of_jobs(ledger, {row.job_id for row in rows if row.number >= attempt}).values()
        if not any(one.number == attempt for of_job in attempts for one in of_job):
            number = max(row.number for row in rows)
            several = f"1 to {number}; repro history JOB shows the attempts of a job"
            hint = several if number > 1 else "there is only the first"
            raise ReproError(
                Problem(f"--attempt {attempt}: no job of {entry.short_name} has such an attempt", hint=hint)
            )
    chosen = result_rows(ledger, rows, attempt, {one.attempt_id for one in left_out})
    ids = [row.attempt_id for row in chosen.rows]
    losses = losses_of(ledger, ids) if with_losses else None
    made_for = measured_for(ledger, chosen.rows)
    metrics, output_rows = metrics_of(ledger, ids), rows_of_output(ledger, ids)
    results = case_results(entry, cases, chosen.rows, metrics, losses, chosen.newer, made_for, output_rows)
    jobs = {(row.case_name, row.job_id) for row in rows}
    return [
        replace(result, left_out=tuple(one for one in left_out if (result.job_case, one.job) in jobs))
        for result in results
    ], rows


def needs_losses(entry: Entry) -> bool:
    """Return whether a claim of the experiment is about losses."""
    return any(claim.compares == "losses" for claim in entry.experiment.claims)
