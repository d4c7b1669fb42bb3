"""Plans: the chosen cases of experiments, and what each case costs. Needs no ledger and no scheduler."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from orchestrator.api import CaseOptions
from orchestrator.api.catalog import added_to
from orchestrator.catalog.case import Case, parse_where, replacement_notes, select, shown_value
from orchestrator.catalog.expand import expand, reference_notes
from orchestrator.catalog.library import Entry, find_entries, find_experiment, replaced
from orchestrator.clusters.resolve import Cluster, find_cluster, layer_notes
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Value, shown_changes
from orchestrator.money import read_cost_budget
from orchestrator.paths import Folders, find_folders
from orchestrator.planning.batch_plan import CaseSelection, read_budget, within_budget
from orchestrator.planning.batch_report import BatchReport, batch_report, budget_text, with_exact_memory
from orchestrator.planning.plan import Plan, plan_cases, repeated
from orchestrator.planning.run_settings import RunSettings, read_settings
from orchestrator.planning.scales import cases_at, replace_workload, scale_notes
from orchestrator.planning.target import Target
from orchestrator.text import counted
from orchestrator.workloads import find_workload
from orchestrator.workloads.argument_changes import parse_changes, require_known, with_changes

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class _Choice:
    """Experiments, the cluster if one was given, the axis values of `--where`, and the settings of `--set`."""

    entries: list[Entry]
    cluster: Cluster | None
    wanted: Mapping[str, Value]
    settings: RunSettings


def _choice(
    folders: Folders, names: Sequence[str], cluster: str | None, options: CaseOptions, *, papers: bool
) -> _Choice:
    """Read the files. ReproError has every problem of files and options; an unknown option is a TypeError."""
    if unknown := sorted(options.keys() - CaseOptions.__annotations__.keys()):
        raise TypeError(f"unknown keyword: {', '.join(unknown)}")
    where, workload = options.get("where"), options.get("workload")
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    profile: Cluster | None = None
    wanted: Mapping[str, Value] = {}
    settings = RunSettings()
    with added_to(problems):
        settings = _settings(options, cluster)
    for name in names:
        with added_to(problems):
            group = find_entries(folders, name) if papers else [find_experiment(folders, name)]
            entries |= {entry.name: entry for entry in group}
    with added_to(problems):
        if cluster is not None:
            found = find_cluster(folders, cluster, settings.of_profile, example=bool(options.get("example")))
            profile = replace(found, settings=settings.all)
    with added_to(problems):
        wanted = parse_where(where)
    with added_to(problems):
        if workload is not None:
            find_workload(workload)
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return _Choice(list(entries.values()), profile, wanted, settings)


def _settings(options: CaseOptions, cluster: str | None) -> RunSettings:
    """Read the settings of the command line. ReproError if one contradicts another option."""
    settings = read_settings(options.get("settings") or ())
    for name in ("time-budget", "cost-budget"):
        if settings.iterations is not None and options.get(name.replace("-", "_")) is not None:
            raise ReproError(Problem(f"--set training.iterations and --{name} exclude each other", hint="give one"))
    if settings.of_profile and cluster is None:
        what = f"--set {settings.of_profile[0].text}: a field of a cluster profile, and no cluster is given"
        raise ReproError(Problem(what, hint="add --cluster NAME"))
    return settings


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Checked cases of an experiment on a cluster, with notes for the user.

    `time_budget` and `cost_budget` are those of each repeat, as option values. `settings` are the values of `--set`.
    """

    entry: Entry
    cluster: Cluster
    plans: tuple[Plan, ...]
    notes: tuple[str, ...] = ()
    time_budget: str | None = None
    cost_budget: str | None = None
    settings: tuple[str, ...] = ()

    @property
    def scale(self) -> str:
        """Return the scale of the cases."""
        return self.plans[0].case.scale


def plan_run(
    experiment: str,
    cluster: str,
    *,
    repeat: int = 1,
    max_parallel: int | None = None,
    **options: Unpack[CaseOptions],
) -> PlannedRun:
    """Check each chosen case of an experiment against a cluster, as `plan_runs` does."""
    choice = _choice(find_folders(), [experiment], cluster, options, papers=False)
    (run,) = _planned_runs([experiment], choice, options, repeat, max_parallel)
    return run


def plan_runs(
    names: Sequence[str] | str,
    cluster: str,
    *,
    repeat: int = 1,
    max_parallel: int | None = None,
    **options: Unpack[CaseOptions],
) -> list[PlannedRun]:
    """Check each chosen case of experiments or papers against a cluster; ReproError has every problem.

    Experiments of a paper that have no such scale or case are left out, with a note. A budget of time or money
    reduces the iterations, so that all jobs of all experiments, one after another, are predicted to fit it.
    """
    names = [names] if isinstance(names, str) else names
    return _planned_runs(
        names, _choice(find_folders(), names, cluster, options, papers=True), options, repeat, max_parallel
    )


def _planned_runs(
    names: Sequence[str], choice: _Choice, options: CaseOptions, repeat: int, max_parallel: int | None
) -> list[PlannedRun]:
    require_positive(repeat=repeat)
    folders, profile = find_folders(), choice.cluster
    assert profile is not None
    time_budget, cost_budget = options.get("time_budget"), options.get("cost_budget")
    # All repeats share the budget.
    budget_s = read_budget(time_budget) // repeat if time_budget is not None else None
    changes = parse_changes(options.get("arg") or (), options.get("no_arg") or ())
    chosen, common = _runnable(names, choice, options, changes)
    notes = {
        entry.name: [
            *scale_notes(entry, cases, profile, options.get("scale")),
            *replacement_notes(cases),
            *reference_notes(entry, cases[0].scale),
            *_change_notes(entry, changes),
        ]
        for entry, cases in chosen
    }
    common = [*layer_notes(folders, profile), *common]
    plans = _plans(chosen, profile, folders)  # a case that does not fit is reported before a budget that is too short
    target, money = Target.of_cluster(profile), None
    if cost_budget is not None:
        money = read_cost_budget(cost_budget, target.price, target.name)
        money = replace(money, amount=money.amount / repeat)
    if budget_s is not None or money is not None:
        budgeted = within_budget([case for _, cases in chosen for case in cases], target, budget_s, money)
        remaining = iter(budgeted.cases)
        plans = _plans([(entry, list(islice(remaining, len(cases)))) for entry, cases in chosen], profile, folders)
        common.append(budget_text(budgeted))
        if repeat > 1 and budget_s is not None:
            common.append(f"each of the {repeat} repeats has {budget_s}s of --time-budget {time_budget}")
        if repeat > 1 and money is not None:
            common.append(f"each of the {repeat} repeats has {money} of --cost-budget {cost_budget}")
    if max_parallel is not None and max_parallel > 1 and not profile.is_slurm:
        common.append(f"{profile.name} runs one job at a time; --max-parallel has no effect")
    first = chosen[0][0].name
    notes[first] = [*notes[first], *common]
    return [
        PlannedRun(
            entry,
            profile,
            tuple(repeated(of_entry, repeat)),
            tuple(notes[entry.name]),
            time_budget=None if budget_s is None else f"{budget_s}s",
            cost_budget=None if money is None else f"{money.amount:g}{money.currency}",
            settings=choice.settings.texts,
        )
        for (entry, _), of_entry in zip(chosen, plans, strict=True)
    ]


def _plans(chosen: Sequence[tuple[Entry, list[Case]]], profile: Cluster, folders: Folders) -> list[list[Plan]]:
    """Return the plans of each experiment; ReproError has the problems of all."""
    problems: list[Problem] = []
    plans: list[list[Plan]] = []
    for entry, cases in chosen:
        with added_to(problems):
            plans.append(plan_cases(entry, cases, profile, folders))
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return plans


def _runnable(
    names: Sequence[str], choice: _Choice, options: CaseOptions, changes: Sequence[str]
) -> tuple[list[tuple[Entry, list[Case]]], list[str]]:
    """Return the chosen cases of each experiment, and a note for each experiment of a paper that has none."""
    workload = options.get("workload")
    chosen: list[tuple[Entry, list[Case]]] = []
    problems: list[Problem] = []
    left_out: list[Problem] = []
    notes: list[str] = []
    for entry in choice.entries:
        is_of_paper = entry.name.rpartition("/")[0] in names and not {entry.name, entry.short_name} & set(names)
        try:
            at_scale = cases_at(entry, choice.cluster, options.get("scale"), workload, choice.wanted)
            at_scale = replace_workload(at_scale, workload)
            selected = _selected(entry, at_scale, choice.wanted)
        except ReproError as error:
            if is_of_paper:
                notes.append(f"{entry.short_name} is left out: {error.problems[0].what}")
            (left_out if is_of_paper else problems).extend(error.problems)
            continue
        with added_to(problems):
            require_known(at_scale, changes)
            chosen.append((entry, choice.settings.applied(with_changes(selected, changes))))
    if problems or not chosen:
        raise ReproError(*dict.fromkeys(problems or left_out))
    return chosen, notes


def _selected(entry: Entry, cases: list[Case], wanted: Mapping[str, Value]) -> list[Case]:
    """Return the cases with these values; ReproError if there is none, or only cases without a job."""
    try:
        return select(cases, wanted)
    except ReproError:
        reasons = {
            case.reference_only: None
            for case in expand(entry, cases[0].scale)
            if case.reference_only and wanted.items() <= case.settings.items()
        }
        if not reasons:
            raise
        option = ",".join(f"{axis}={shown_value(value)}" for axis, value in wanted.items())
        what = f"--where {option}: {entry.short_name} has these cases for reference only: {'; '.join(reasons)}"
        raise ReproError(Problem(what, hint=f"repro show {shlex.quote(entry.argument)} has their numbers")) from None


def _change_notes(entry: Entry, changes: Sequence[str]) -> list[str]:
    return [f"{entry.short_name} with {shown_changes(changes)}: other arguments than published"] if changes else []


def require_positive(**numbers: int | None) -> None:
    """Raise ReproError for a number below 1."""
    problems = [
        Problem(f"--{name.replace('_', '-')} {number}: must be at least 1")
        for name, number in numbers.items()
        if number is not None and number < 1
    ]
    if problems:
        raise ReproError(*problems)


def require_submittable(planned: Sequence[PlannedRun], *, warm_up: bool = False) -> None:
    """Raise ReproError if no job has kernels to compile first with `warm_up`."""
    plans, is_slurm = [plan for run in planned for plan in run.plans], planned[0].cluster.is_slurm
    if warm_up and not (is_slurm and any(plan.program.warm_up for plan in plans)):
        names = " and ".join(sorted({plan.program.workload for plan in plans}))
        why = f"{names} compiles no kernels first" if is_slurm else "local jobs run one after another"
        raise ReproError(Problem(f"--depends-on warm-up: {why}", hint="leave it out"))


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
    time_budget, cost_budget = options.get("time_budget"), options.get("cost_budget")
    report = batch_report(selections, notes, time_budget, cost_budget, solve_alpha=solve_alpha)
    return with_exact_memory(report) if exact else report


def _selections(
    names: Sequence[str], cluster: str | None, options: CaseOptions
) -> tuple[list[CaseSelection], list[str]]:
    """Return the cases to plan with their machine, and notes on the choice."""
    folders, workload = find_folders(), options.get("workload")
    choice = _choice(folders, names, cluster, options, papers=True)
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
    changes = parse_changes(options.get("arg") or (), options.get("no_arg") or ())
    selections = _with_cases(runnable, profile, options.get("scale"), choice.wanted, workload)
    require_known([case for selection in selections for case in selection.cases], changes)
    selections = [
        replace(one, cases=tuple(choice.settings.applied(with_changes(one.cases, changes)))) for one in selections
    ]
    notes += [note for selection in selections for note in _change_notes(selection.entry, changes)]
    for selection in selections:
        if profile is not None:
            notes += scale_notes(selection.entry, selection.cases, profile, options.get("scale"))
        notes += replacement_notes(selection.cases)
        notes += reference_notes(selection.entry, selection.cases[0].scale)
    _require_gpu_facts(selections, profile)
    if profile is not None and profile.unfilled:
        open_values = counted(len(profile.unfilled), "open value")
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
            cases = cases_at(entry, cluster, scale, workload, wanted)
            try:
                cases = replace_workload(cases, workload)
            except ReproError as error:  # never left out silently
                refused.extend(error.problems)
            cases = _selected(entry, cases, wanted)
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
