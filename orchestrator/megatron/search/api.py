"""Search for the fastest layout of a model on a cluster, inside a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.api import DEFAULT, Reporter, Session
from orchestrator.api.jobs import update
from orchestrator.api.runs import submit, supervise, wait
from orchestrator.catalog.case import Case, parse_where, select
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.clusters.resolve import find_cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.supervise import may_be_resubmitted, recorded_options
from orchestrator.ledger.attempts import job_rows, result_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, metrics_of
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import ENDED, MEASURED, OPEN
from orchestrator.megatron.case import published_time, training_cases
from orchestrator.megatron.predictions import run_s
from orchestrator.megatron.search.answer import (
    CandidateRow,
    EndedTrial,
    NotRunReason,
    SearchAnswer,
    SearchedCase,
    SearchSummary,
    SearchWinner,
    answer,
    arguments_by_program,
    fastest_text,
)
from orchestrator.megatron.search.candidates import (
    OUT_OF_MEMORY,
    Budget,
    Candidate,
    Corrected,
    Decision,
    Reason,
    Simulated,
    SimulatedCase,
    candidates,
    decide,
    read_search_budget,
    simulate,
)
from orchestrator.megatron.search.prepare import PreparedSearch, prepare_search, require_one_task, write_experiment
from orchestrator.paths import find_folders
from orchestrator.planning.plan import plan_cases
from orchestrator.planning.target import Target
from orchestrator.reading.failure import ran_out_of_memory
from orchestrator.results.outcome import judge_figure
from orchestrator.text import counted

__all__ = ["CandidateRow", "NotRunReason", "PreparedSearch", "SearchAnswer", "SearchOptions", "SearchSummary"]
__all__ += ["SearchWinner", "SearchedCase", "Simulated", "SimulatedCase", "arguments_by_program", "fastest_text"]
__all__ += ["prepare_search", "read_search_budget", "run_search", "search_answer", "simulate_search"]

FINALISTS = 3
"""Number of the fastest short jobs whose cases run at full length."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How a search runs. `short_iterations` are those of the first run of each case; `at_once` jobs run in parallel."""

    budget: Budget
    at_once: int = 1
    short_iterations: int = 8
    finalists: int = FINALISTS


def run_search(prepared: PreparedSearch, options: SearchOptions, *, session: Session = DEFAULT) -> SearchAnswer:
    """Measure candidates until none can win or the budget is spent; return the answer.

    Short jobs come first, the most promising ones first. The fastest cases then run at full length. An interrupted
    search continues with the jobs of the ledger, and waits for the running ones.
    """
    session = replace(session, reporter=_EachOnce(session.reporter))
    first = prepared.candidates[0]
    plan_cases(prepared.entry, [first.case], prepared.cluster, session.folders)  # before a file changes
    short = min(options.short_iterations, prepared.iterations)
    _require_budget(prepared, options, short, session)
    write_experiment(prepared)
    _finish_open(prepared, (short, prepared.iterations), session)
    stopped = _run_short(prepared, options, short, session)
    if short < prepared.iterations:
        stopped = _run_finalists(prepared, options, short, session) or stopped
    return search_answer(prepared, stopped, session=session)


class _EachOnce:
    """Reporter that prints each message once: all jobs of a search have the same notes."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._printed: set[str] = set()

    def message(self, text: str) -> None:
        """Pass a line on if it is new."""
        if text not in self._printed:
            self._printed.add(text)
            self._reporter.message(text)

    def progress(self, jobs: Sequence[JobRow]) -> None:
        """Pass the jobs on."""
        self._reporter.progress(jobs)


def _require_budget(prepared: PreparedSearch, options: SearchOptions, iterations: int, session: Session) -> None:
    """Raise ReproError if the budget of a search without measurements is below its first job."""
    first = prepared.candidates[0]
    trials = _trials(prepared, session)
    if trials or affordable([Corrected(first, first.iteration_ms, first.iteration_ms)], trials, options, iterations):
        return
    job_s = run_s(replace(first.case.training, iterations=iterations), first.iteration_ms, first.case.program)
    gpus = first.case.gpus
    what = f"the budget is below one job: {first.name} is predicted to take {job_s:.0f} s on {counted(gpus, 'GPU')}"
    raise ReproError(Problem(f"{what}, {gpus * job_s / 3600:.2g} GPU-hours", hint="give a larger --budget"))


def _finish_open(prepared: PreparedSearch, iterations: Sequence[int], session: Session) -> None:
    """Wait for the open jobs of an earlier start of this search, which may have been killed.

    Without them the next decision could leave out a case whose job runs, and the answer would not count it.
    """
    ledger = session.existing_ledger()
    if ledger is None:
        return
    update(ledger)
    own_settings = {_settings(prepared, number) for number in iterations}
    rows = [
        row
        for row in _job_rows(prepared, ledger)
        if row.phase in OPEN and recorded_options(ledger, row.run_id)[0] in own_settings
    ]
    if rows:
        names = ", ".join(row.case_name for row in rows)
        session.reporter.message(f"waiting for {counted(len(rows), 'open job')} of this search: {names}")
        wait([row.job_id for row in rows], session=session)


def _run_short(prepared: PreparedSearch, options: SearchOptions, short: int, session: Session) -> str:
    """Measure cases with short jobs; return why the search stops."""
    tried: set[str] = set()
    while True:
        trials = _trials(prepared, session)
        decision = decide(prepared.candidates, _times(trials))
        failed = {trial.name for trial in trials if trial.iteration_ms is None}
        failed -= {trial.name for trial in trials if trial.is_repeatable} - tried
        order = [one for one in decision.order if one.candidate.name not in failed]
        if not order:
            return "no other candidate can be faster within its uncertainty"
        batch = affordable(order[: options.at_once], trials, options, short)
        if not batch:
            return "the budget is spent"
        session.reporter.message(_progress(decision, order, trials))
        tried |= {one.candidate.name for one in batch}
        _measure(prepared, [one.candidate for one in batch], short, session)


def _run_finalists(prepared: PreparedSearch, options: SearchOptions, short: int, session: Session) -> str | None:
    """Run the cases with the fastest short jobs at full length; return why some of them did not run, else None."""
    times = _times([trial for trial in _trials(prepared, session) if trial.iterations == short])
    finite = [name for name, time in times.items() if time != OUT_OF_MEMORY]
    fastest = sorted(finite, key=lambda name: times[name])[: options.finalists]
    by_name = {one.name: one for one in prepared.candidates}
    chosen = [Corrected(by_name[name], times[name], times[name]) for name in fastest]
    for i in range(0, len(chosen), options.at_once):
        batch = affordable(chosen[i : i + options.at_once], _trials(prepared, session), options, prepared.iterations)
        if not batch:
            return "the budget is spent; not all of the fastest cases ran at full length"
        names = ", ".join(one.candidate.name for one in batch)
        session.reporter.message(f"at full length, {counted(prepared.iterations, 'iteration')}: {names}")
        _measure(prepared, [one.candidate for one in batch], prepared.iterations, session)
    return None


def _progress(decision: Decision, order: Sequence[Corrected], trials: Sequence[EndedTrial]) -> str:
    measured = len(_times(trials))
    pruned = f", {len(decision.pruned)} need no run" if decision.pruned else ""
    return f"{measured} measured, {len(order)} left{pruned}; next: {order[0].candidate.name}"


def affordable(
    order: Sequence[Corrected], trials: Sequence[EndedTrial], options: SearchOptions, iterations: int
) -> list[Corrected]:
    """Return the first cases whose jobs fit the rest of the budget by their corrected predictions."""
    hours = sum(trial.hours for trial in trials)
    seconds = sum(trial.job_s for trial in trials)
    chosen: list[Corrected] = []
    for one in order:
        case = one.candidate.case
        if not one.candidate.has_unit:  # on CPU cores the last job is the prediction
            job_s = trials[-1].job_s if trials else 0.0
        else:
            job_s = run_s(replace(case.training, iterations=iterations), one.iteration_ms, case.program)
        hours, seconds = hours + job_s * case.gpus / 3600, seconds + job_s
        if options.budget.allows(hours, seconds):
            chosen.append(one)
    return chosen


def _measure(prepared: PreparedSearch, chosen: Sequence[Candidate], iterations: int, session: Session) -> None:
    """Submit a job for each case, and wait until all have ended."""
    settings = _settings(prepared, iterations)
    submitted = [
        submit(prepared.entry.name, prepared.profile, where=one.name, settings=settings, session=session)
        for one in chosen
    ]
    supervise(submitted, session=session)


def _settings(prepared: PreparedSearch, iterations: int) -> tuple[str, ...]:
    """Return the settings of the jobs with this number of iterations."""
    return (*prepared.settings, f"training.iterations={iterations}")


def _times(trials: Sequence[EndedTrial]) -> dict[str, float]:
    """Return the time of each case, that of its longest job."""
    chosen = sorted((trial for trial in trials if trial.iteration_ms is not None), key=lambda trial: trial.iterations)
    return {trial.name: trial.iteration_ms for trial in chosen if trial.iteration_ms is not None}


def _trials(prepared: PreparedSearch, session: Session) -> list[EndedTrial]:
    """Return the jobs of the candidates that have ended, oldest first."""
    ledger = session.existing_ledger()
    if ledger is None:
        return []
    update(ledger)
    rows = [row for row in result_rows(ledger, _job_rows(prepared, ledger)).rows if row.phase == ENDED]
    metrics = metrics_of(ledger, [row.attempt_id for row in rows])
    return [_trial(row, metrics.get(row.attempt_id, {})) for row in rows]


def _job_rows(prepared: PreparedSearch, ledger: Ledger) -> list[JobRow]:
    """Return the jobs of the candidates on the cluster with their latest attempts."""
    names = {one.name for one in prepared.candidates}
    rows = job_rows(ledger, experiment=prepared.entry.name)
    return [row for row in rows if row.cluster == prepared.cluster.name and row.case_name in names]


def _trial(row: JobRow, metrics: Mapping[str, MeasuredMetric]) -> EndedTrial:
    time, rate = metrics.get("iteration_ms"), metrics.get("sequences_per_s")
    measured = row.verdict in MEASURED and time is not None
    time_ms = time.value if measured and time is not None else None
    if not measured and ran_out_of_memory(row.failure):
        time_ms = OUT_OF_MEMORY
    return EndedTrial(
        name=row.case_name,
        job_id=row.job_id,
        iterations=row.iterations,
        iteration_ms=time_ms,
        spread_ms=time.spread if measured and time is not None else None,
        sequences_per_s=rate.value if measured and rate is not None else None,
        job_s=row.elapsed_s or 0.0,
        hours=row.gpu_hours or 0.0,
        why=None if measured else row.verdict_reason,
        is_repeatable=may_be_resubmitted(row),
    )


def search_answer(prepared: PreparedSearch, stopped: str | None, *, session: Session = DEFAULT) -> SearchAnswer:
    """Return the answer from the jobs that have ended.

    `stopped` is the reason why no more cases are measured. None: the search has not stopped.
    """
    trials = _trials(prepared, session)
    decision = decide(prepared.candidates, _times(trials))
    left = {one.candidate.name: Reason(stopped) for one in decision.order if stopped}
    return answer(prepared.candidates, prepared.left_out, trials, {**left, **decision.pruned}, stopped)


def simulate_search(
    experiment: str, cluster: str | None = None, where: str | None = None, *, session: Session = DEFAULT
) -> tuple[Entry, Simulated]:
    """Run a search against known times of an experiment, without any job.

    The candidates are its cases that have a known time: with a cluster, those that were measured there by its latest
    run, else those that have a published time, on the machine of the paper.
    """
    if cluster is None:
        entry, target, known = _published_times(experiment, where)
    else:
        entry, target, known = _measured_times(experiment, cluster, where, session)
    if len(known) < 2:
        what = f"{entry.short_name}: {counted(len(known), 'case')} with a {'measured' if cluster else 'published'} time"
        raise ReproError(Problem(what, hint="a simulation needs two or more"))
    cases = training_cases(case for case, _ in known)
    require_one_task(entry, cases)
    chosen, _ = candidates(cases, target)
    return entry, simulate(chosen, {case.name: time for case, time in known})


def _published_times(experiment: str, where: str | None) -> tuple[Entry, Target, list[tuple[Case, float]]]:
    entry = find_experiment(find_folders(), experiment)
    target = Target.of_paper(entry)
    cases = training_cases(select(cases_to_run(entry, PAPER), parse_where(where, entry.names.axes)))
    times = [(case, published_time(case, target.hardware.gpu)) for case in cases]
    return entry, target, [(case, time[1]) for case, time in times if time is not None]


def _measured_times(
    experiment: str, cluster: str, where: str | None, session: Session
) -> tuple[Entry, Target, list[tuple[Case, float]]]:
    profile = find_cluster(session.folders, cluster)
    figure = judge_figure(session.ledger(), session.folders, experiment, cluster=profile.name)
    known: list[tuple[Case, float]] = []
    for result in figure.having(where):
        time = OUT_OF_MEMORY if result.ran_out_of_memory else result.value("iteration_ms")
        if time is not None:
            known.append((result.case, time))
    return figure.entry, Target.of_cluster(profile), known
