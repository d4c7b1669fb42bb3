"""Catalog and plans: experiments, their cases, and what each case costs. Needs no ledger and no scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, CaseOptions, Session, with_keywords
from orchestrator.catalog.case import Case, parse_where, replacement_notes, select
from orchestrator.catalog.expand import case_count, expand, scale_fields, values_on
from orchestrator.catalog.experiment import PAPER, Difference, scale_names
from orchestrator.catalog.library import (
    Entry,
    experiment_names,
    find_entries,
    find_experiment,
    read_experiment,
    replaced,
)
from orchestrator.clusters.resolve import Cluster, cluster_names, find_cluster, layer_notes
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Value
from orchestrator.paths import Folders, find_folders
from orchestrator.planning.batch_plan import CaseSelection, plan_batch, read_budget, within_budget
from orchestrator.planning.batch_report import BatchReport, PlanRow, batch_report, budget_text, with_exact_memory
from orchestrator.planning.plan import Plan, cases_at, plan_cases, repeated, replace_workload
from orchestrator.planning.target import Target
from orchestrator.workloads import find_workload

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class ExperimentList:
    """Experiments with their sizes and progress, the known clusters, and the files that cannot be read."""

    rows: list[PlanRow]
    clusters: list[str]
    problems: list[Problem]


Done = dict[tuple[str, str, str], dict[str, bool]]
"""(scale, cluster, workload) -> job -> whether it is verified."""


def experiments(session: Session = DEFAULT) -> ExperimentList:
    """Return all experiments. The ledger is opened only if it exists."""
    folders = find_folders()
    done = _done(folders, session)
    rows: list[PlanRow] = []
    problems: list[Problem] = []
    for name, file in experiment_names(folders).items():
        with _added_to(problems):
            rows.append(_experiment_row(read_experiment(name, file), done.get(name, {})))
    return ExperimentList(rows, sorted(cluster_names(folders)), list(dict.fromkeys(problems)))


def _done(folders: Folders, session: Session) -> dict[str, Done]:
    """Return the submitted jobs of each experiment. Without a ledger, the database's modules are not loaded."""
    if session.database is None and folders.refused is None and not (folders.home / "results.db").exists():
        return {}
    from orchestrator.ledger.attempts import job_summaries
    from orchestrator.ledger.tables import VERIFIED

    ledger = session.existing_ledger()
    done: dict[str, Done] = {}
    for row in job_summaries(ledger) if ledger is not None else []:
        jobs = done.setdefault(row.experiment, {}).setdefault((row.scale, row.cluster, row.workload), {})
        jobs[row.job_id] = row.verdict == VERIFIED
    return done


def _experiment_row(entry: Entry, done: Done) -> PlanRow:
    scales = scale_names(entry.experiment)
    gpus = {scale: {int(value) for value in _values_at(entry, scale, "gpus")} for scale in scales}
    workloads = {scale: _values_at(entry, scale, "workload") for scale in {scale for scale, _, _ in done} & {*scales}}
    hours = None
    if entry.paper.machine is not None and not entry.experiment.reference_only:
        hours = round(plan_batch([CaseSelection(entry, tuple(expand(entry)), Target.of_paper(entry))]).gpu_hours, 1)
    smallest, largest = min(gpus[PAPER]), max(gpus[PAPER])
    return {
        "experiment": entry.name,
        "paper": f"{entry.paper.venue} {entry.experiment.figure}",
        "cases": case_count(scale_fields(entry, PAPER)),
        "gpus": str(smallest) if smallest == largest else f"{smallest}-{largest}",
        "gpu_hours": hours,
        "done": _done_text(done, workloads),
        "scales": ", ".join(f"{scale}:{max(sizes)}" for scale, sizes in gpus.items()),
        "title": entry.experiment.title,
    }


def _values_at(entry: Entry, scale: str, axis: str) -> set[Value]:
    """Return the values of the cases on an axis. The cases are expanded only if a rule derives the value."""
    return values_on(entry, scale_fields(entry, scale), axis) or {case.value(axis) for case in expand(entry, scale)}


def _done_text(done: Done, workloads: Mapping[str, set[Value]]) -> str:
    """Return `2/10 paper@selene`. Jobs of another program than the figure's own have a count of their own."""
    counts: dict[str, list[bool]] = {}
    for (scale, cluster, workload), verified in done.items():
        label = f"{scale}@{cluster}" + ("" if workload in workloads.get(scale, ()) else f" with {workload}")
        counts.setdefault(label, []).extend(verified.values())
    return ", ".join(f"{sum(verified)}/{len(verified)} {label}" for label, verified in sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class ExperimentCases:
    """An experiment and its cases at a scale. `replaces_shipped`: a user's file has the place of a shipped one."""

    entry: Entry
    scale: str
    cases: list[Case]
    replaces_shipped: bool

    @property
    def differences(self) -> list[Difference]:
        """Return the differences between paper, scripts and jobs that apply to these cases."""
        of_paper = self.entry.paper.differences if self.scale == PAPER else []
        return [
            difference
            for difference in [*self.entry.experiment.differences, *of_paper]
            if any(difference.where.given().items() <= case.settings.items() for case in self.cases)
        ]


def show(experiment: str, scale: str = PAPER, *, where: str | None = None) -> ExperimentCases:
    """Return an experiment and its cases at a scale."""
    wanted, folders = parse_where(where), find_folders()
    entry = find_experiment(folders, experiment)
    return ExperimentCases(entry, scale, select(expand(entry, scale), wanted), replaced(folders, entry) is not None)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Experiments, the cluster if one was given, and the axis values of `--where`."""

    entries: list[Entry]
    cluster: Cluster | None
    wanted: Mapping[str, Value]


@contextmanager
def _added_to(problems: list[Problem]) -> Iterator[None]:
    """Add the problems of the block's ReproError to the list, and continue after the block."""
    try:
        yield
    except ReproError as error:
        problems.extend(error.problems)


def _choice(
    folders: Folders, names: Sequence[str], cluster: str | None, where: str | None, workload: str | None, papers: bool
) -> _Choice:
    """Read the files; ReproError has every problem of the files and of the options."""
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    profile: Cluster | None = None
    wanted: Mapping[str, Value] = {}
    for name in names:
        with _added_to(problems):
            group = find_entries(folders, name) if papers else [find_experiment(folders, name)]
            entries |= {entry.name: entry for entry in group}
    with _added_to(problems):
        profile = find_cluster(folders, cluster) if cluster is not None else None
    with _added_to(problems):
        wanted = parse_where(where)
    with _added_to(problems):
        if workload is not None:
            find_workload(workload)
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return _Choice(list(entries.values()), profile, wanted)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Checked cases of an experiment on a cluster, with notes for the user.

    `budget` is the time budget of each repeat, as an option value.
    """

    entry: Entry
    cluster: Cluster
    plans: tuple[Plan, ...]
    notes: tuple[str, ...] = ()
    budget: str | None = None

    @property
    def scale(self) -> str:
        """Return the scale of the cases."""
        return self.plans[0].case.scale


@with_keywords(CaseOptions)
def plan_run(
    experiment: str,
    cluster: str,
    *,
    repeat: int = 1,
    max_parallel: int | None = None,
    **options: Unpack[CaseOptions],
) -> PlannedRun:
    """Check each chosen case against a cluster; ReproError has every problem of the files, options and cases.

    A time budget reduces the iterations, so that all jobs one after another are predicted to fit it.
    """
    require_positive(repeat=repeat)
    workload, time_budget = options.get("workload"), options.get("time_budget")
    # All repeats share the budget.
    budget_s = read_budget(time_budget) // repeat if time_budget is not None else None
    folders = find_folders()
    choice = _choice(folders, [experiment], cluster, options.get("where"), workload, papers=False)
    (entry,), profile = choice.entries, choice.cluster
    assert profile is not None
    cases = select(replace_workload(cases_at(entry, profile, options.get("scale"), workload), workload), choice.wanted)
    plans = plan_cases(entry, cases, profile, folders)
    notes = [*layer_notes(folders, profile), *replacement_notes(cases)]
    if budget_s is not None:
        budgeted = within_budget(cases, Target.of_cluster(profile), budget_s)
        plans = plan_cases(entry, list(budgeted.cases), profile, folders)
        notes.append(budget_text(budgeted))
        if repeat > 1:
            notes.append(f"each of the {repeat} repeats has {budget_s}s of --time-budget {time_budget}")
    if max_parallel is not None and max_parallel > 1 and not profile.is_slurm:
        notes.append(f"{profile.name} runs one job at a time; --max-parallel has no effect")
    budget = None if budget_s is None else f"{budget_s}s"
    return PlannedRun(entry, profile, tuple(repeated(plans, repeat)), tuple(notes), budget)


def require_positive(**numbers: int | None) -> None:
    """Raise ReproError for a number below 1."""
    problems = [
        Problem(f"--{name.replace('_', '-')} {number}: must be at least 1")
        for name, number in numbers.items()
        if number is not None and number < 1
    ]
    if problems:
        raise ReproError(*problems)


def require_submittable(planned: PlannedRun, *, warm_up: bool = False) -> None:
    """Raise ReproError if jobs cannot be verified, or have no kernels to compile first with `warm_up`."""
    programs = dict.fromkeys((plan.program.workload, plan.program.unverifiable) for plan in planned.plans)
    problems = [
        Problem(f"{workload}: {reason}", hint="`repro render` writes the scripts, to submit by hand")
        for workload, reason in programs
        if reason is not None
    ]
    if problems:
        raise ReproError(*problems)
    if warm_up and not (planned.cluster.is_slurm and any(plan.program.warm_up for plan in planned.plans)):
        names = " and ".join(sorted({plan.program.workload for plan in planned.plans}))
        why = f"{names} compiles no kernels first" if planned.cluster.is_slurm else "local jobs run one after another"
        raise ReproError(Problem(f"--depends-on warm-up: {why}", hint="leave it out"))


@with_keywords(CaseOptions)
def plan(
    names: Sequence[str] | str,
    cluster: str | None = None,
    *,
    solve_alpha: bool = False,
    exact: bool = False,
    **options: Unpack[CaseOptions],
) -> BatchReport:
    """Check and cost the cases of experiments or papers, for a cluster or the paper's machine."""
    selections, notes = _selections([names] if isinstance(names, str) else names, cluster, options)
    report = batch_report(selections, notes, options.get("time_budget"), solve_alpha=solve_alpha)
    return with_exact_memory(report) if exact else report


def _selections(
    names: Sequence[str], cluster: str | None, options: CaseOptions
) -> tuple[list[CaseSelection], list[str]]:
    """Return the cases to plan with their machine, and notes on the choice."""
    folders, workload = find_folders(), options.get("workload")
    choice = _choice(folders, names, cluster, options.get("where"), workload, papers=True)
    profile = choice.cluster
    runnable = [entry for entry in choice.entries if not entry.experiment.reference_only]
    notes = [
        f"{entry.short_name} is reference only: {entry.experiment.reference_only}"
        for entry in choice.entries
        if entry.experiment.reference_only
    ]
    if not runnable:
        raise ReproError(*notes)
    notes += [
        f"{entry.name} is {shown(entry.file)}, not the shipped file" for entry in runnable if replaced(folders, entry)
    ]
    selections = _with_cases(runnable, profile, options.get("scale"), choice.wanted, workload)
    notes += [note for selection in selections for note in replacement_notes(selection.cases)]
    _require_gpu_facts(selections, profile)
    if profile is not None and profile.unfilled:
        open_values = f"{len(profile.unfilled)} open values"
        notes.append(f"{profile.name} has {open_values} that a submission needs and planning does not")
    return selections, notes


def _with_cases(
    entries: Sequence[Entry],
    cluster: Cluster | None,
    scale: str | None,
    wanted: Mapping[str, Value],
    workload: str | None,
) -> list[CaseSelection]:
    """Return the experiments that have the scale and the cases; ReproError if none has."""
    selections: list[CaseSelection] = []
    problems: list[Problem] = []
    refused: list[Problem] = []
    for entry in entries:
        try:
            cases = cases_at(entry, cluster, scale, workload)
            try:
                cases = replace_workload(cases, workload)
            except ReproError as error:  # never left out silently
                refused.extend(error.problems)
            cases = select(cases, wanted)
        except ReproError as error:
            problems.extend(error.problems)
            if len(entries) == 1 or not (scale or wanted):
                raise
            continue
        selections.append(
            CaseSelection(entry, tuple(cases), Target.of_cluster(cluster) if cluster else Target.of_paper(entry))
        )
    if refused or not selections:
        raise ReproError(*dict.fromkeys(refused or problems))
    return selections


def _require_gpu_facts(selections: Sequence[CaseSelection], cluster: Cluster | None) -> None:
    """Raise ReproError if the profile does not describe the GPUs that the cases need."""
    if cluster is None or not any(case.device == "gpu" for selection in selections for case in selection.cases):
        return
    missing = [name for name in ("gpu", "gpu_memory_gb", "peak_tflops") if not getattr(cluster.hardware, name)]
    if missing and not (cluster.machine is not None and cluster.machine.gpus == 0):
        hint = f"add hardware: {', '.join(f'{name}: ...' for name in missing)}"
        raise ReproError(Problem(f"{cluster.name} does not define {' and '.join(missing)} of its GPUs", hint=hint))
