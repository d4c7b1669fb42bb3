"""Plans of many cases: settings of the run, shared jobs counted once, totals, and iterations that fit a budget."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BeforeValidator

from orchestrator.catalog.case import C, Case
from orchestrator.catalog.expand import cases_to_run, unknown_programs
from orchestrator.catalog.experiment import PAPER, Experiment, scale_names
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.clusters.profile import ClusterProfile
from orchestrator.config.model import Count, Strict, TimeLimit, read_model
from orchestrator.config.yaml import Setting, dotted, parse_settings, settings_document
from orchestrator.errors import Problem, ReproError, added_to, did_you_mean, for_each, require_none
from orchestrator.money import Money, read_cost_budget
from orchestrator.paths import Folders, find_folders, short_name
from orchestrator.planning.plan import CheckedCase, cases_by_reason, check_case, job_content, refusal_problems
from orchestrator.planning.target import Target
from orchestrator.programs.command import job_command
from orchestrator.programs.output import Scalar
from orchestrator.programs.record import known_program
from orchestrator.slurm.notation import format_time_limit, time_limit_s


@dataclass(frozen=True, slots=True)
class ChosenCases:
    """Cases of an experiment and the machine to plan them for."""

    entry: Entry
    cases: tuple[Case, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A checked case of an experiment. `same_as` is the label of an earlier case that is the same job."""

    entry: Entry
    target: Target
    checked: CheckedCase
    same_as: str | None

    @property
    def case(self) -> Case:
        """The case itself."""
        return self.checked.case

    @property
    def label(self) -> str:
        """Experiment and case: `figure-13 pp=8,tp=8,gbs=32`."""
        return _label(self.entry, self.case)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The planned cases of all experiments. With a budget, the valid ones are those of `budgeted`."""

    planned: tuple[PlannedCase, ...]
    budgeted: Budgeted | None = None

    @property
    def by_experiment(self) -> list[list[PlannedCase]]:
        """The cases of each experiment, in order."""
        groups: dict[str, list[PlannedCase]] = {}
        for planned in self.planned:
            groups.setdefault(planned.entry.name, []).append(planned)
        return list(groups.values())

    @property
    def jobs(self) -> list[PlannedCase]:
        """The cases that would run, each job once."""
        return [planned for planned in self.planned if not planned.checked.refusals and planned.same_as is None]

    @property
    def refused(self) -> list[PlannedCase]:
        """The cases that cannot run."""
        return [planned for planned in self.planned if planned.checked.refusals]

    @property
    def refusals(self) -> list[Problem]:
        """Each refusal of each experiment once, with the cases that it stops."""
        return [
            problem
            for group in self.by_experiment
            for problem in refusal_problems(group[0].entry, [planned.checked for planned in group], group[0].target)
        ]

    def with_measured(self, seconds: Mapping[str, float]) -> BatchPlan:
        """Return the plan with the measured time of a job in place of its limit, by the label of its case."""

        def measured(planned: PlannedCase) -> PlannedCase:
            cost, job_s = planned.checked.cost, seconds.get(planned.label)
            if cost is None or job_s is None:
                return planned
            cost = replace(cost, job_s=job_s, gpu_hours=planned.checked.resources.gpus * job_s / 3600)
            return replace(planned, checked=replace(planned.checked, cost=cost))

        return replace(self, planned=tuple(map(measured, self.planned)))

    @property
    def without_prediction(self) -> list[PlannedCase]:
        """The jobs whose program has no prediction."""
        return [job for job in self.jobs if not job.case.record.predicts]

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the jobs whose time is predicted or measured, and of the time limit of programs without."""
        costs = [job.checked.cost for job in self.jobs]
        return sum(cost.gpu_hours for cost in costs if cost and cost.gpu_hours)

    @property
    def cost(self) -> Money | None:
        """Price of these GPU-hours; None if the profile has no price, or no time is predicted."""
        price = next((planned.target.price for planned in self.planned), None)
        return price.of(self.gpu_hours) if price is not None and self.gpu_hours else None


def plan_batch(
    chosen: Sequence[ChosenCases], time_budget: str | None = None, cost_budget: str | None = None, repeat: int = 1
) -> BatchPlan:
    """Check and cost every chosen case, in order; with budgets, with as many iterations as fit.

    The jobs of all cases share the budgets, and so do `repeat` repeats of them. ReproError has the reasons of refused
    cases, too, if the others do not fit.
    """
    budget_s = None if time_budget is None else read_budget(time_budget) // repeat
    batch = _checked((one.entry, one.target, case) for one in chosen for case in one.cases)
    if time_budget is None and cost_budget is None:
        return batch
    machines, target = dict.fromkeys(one.target.name for one in chosen), chosen[0].target
    if len(machines) > 1:
        option = "--cost-budget" if time_budget is None else "--time-budget"
        what = f"{option}: the cases are planned for {len(machines)} machines, {' and '.join(machines)}"
        raise ReproError(Problem(what, hint="name one with --cluster"))
    money = None if cost_budget is None else read_cost_budget(cost_budget, target.price, target.name)
    valid = [planned.case for planned in batch.planned if not planned.checked.refusals]
    if not valid:
        return batch
    try:
        budgeted = within_budget(valid, target, budget_s, money and replace(money, amount=money.amount / repeat))
    except ReproError as error:
        raise ReproError(*batch.refusals, *error.problems) from None
    left = iter(budgeted.cases)
    cut = _checked((one.entry, one.target, one.case if one.checked.refusals else next(left)) for one in batch.planned)
    return replace(cut, budgeted=budgeted)


def _checked(cases: Iterable[tuple[Entry, Target, Case]]) -> BatchPlan:
    first: dict[tuple[str, str], str] = {}
    planned: list[PlannedCase] = []
    for entry, target, case in cases:
        label = _label(entry, case)
        earliest = first.setdefault((target.name, job_content(case)), label)
        same_as = None if earliest == label else earliest
        planned.append(PlannedCase(entry, target, check_case(case, target), same_as))
    return BatchPlan(tuple(planned))


def _label(entry: Entry, case: Case) -> str:
    return f"{entry.short_name} {case.name}"


LEAST_INTERVALS = 3
"""Log intervals after the warm-up that every case keeps: the fewest whose median ignores one outlier."""

_UNITS_S = {"s": 1, "m": 60, "h": 3600}
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class BudgetedJob:
    """A job in a time budget: its case as the experiment has it, and the predicted time of an iteration."""

    case: Case
    iteration_ms: float

    def iterations(self, measured: int) -> int:
        """Return the iterations of the job for a number of measured ones, in whole log intervals.

        Not measured are the warm-up and the first interval, which contains the start-up (`reading/statistics`).
        """
        every = int(self.case.effective("log_interval") or 1)
        not_measured = max(1, math.ceil(self.case.warmup_iterations / every))
        intervals = not_measured + max(LEAST_INTERVALS, measured // every)
        return min(self.case.iterations, intervals * every)

    def run_s(self, measured: int) -> float:
        """Return the seconds from start to end with this number of measured iterations."""
        case = self.case.with_iterations(self.iterations(measured))
        return case.record.run_s(case, self.iteration_ms)

    def gpu_hours(self, measured: int) -> float:
        """Return the GPU-hours with this number of measured iterations."""
        return self.case.gpus * self.run_s(measured) / 3600


@dataclass(frozen=True, slots=True)
class Budgeted:
    """Cases with as many iterations as fit a time budget, a cost budget, or both.

    For each case, in order, `own` has the experiment's iterations and `run_s` the seconds of its job. `total_s` and
    `cost` count a shared job once. `uncertainty` is the largest relative uncertainty of the predictions.
    """

    cases: tuple[Case, ...]
    own: tuple[int, ...]
    run_s: tuple[float, ...]
    jobs: int
    total_s: float
    budget_s: int | None
    uncertainty: float
    cost: Money | None = None
    cost_budget: Money | None = None


def seconds_with_unit(text: str) -> int | None:
    """Return `10m`, `600s` or `1h` in seconds; None for other text."""
    plain = re.fullmatch(r"([0-9]{1,7})([smh])", text)
    return int(plain[1]) * _UNITS_S[plain[2]] if plain else None


def read_budget(text: str, option: str = "--time-budget") -> int:
    """Parse `10m`, `600s`, `1h` or `0:10:00` to seconds; ReproError for any other text of the option."""
    is_limit = re.fullmatch(r"(?:[0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]", text)
    budget_s = time_limit_s(text) if is_limit else seconds_with_unit(text)
    if not budget_s:
        raise ReproError(Problem(f"{option} {text}: not a time", hint="for example 10m, 600s, 1h or 0:10:00"))
    return budget_s


def within_budget(
    cases: Sequence[Case], target: Target, budget_s: int | None, cost_budget: Money | None = None
) -> Budgeted:
    """Return the cases, none of which the target refuses, with as many iterations as fit the budgets.

    All jobs, one after another, keep the same number of measured iterations, the largest that fits; a case with fewer
    iterations keeps its own. The result depends only on cases, machine and budgets. ReproError if the time of a case is
    not predicted, or if the smallest number of iterations does not fit. A cost budget needs the price of the target.
    """
    options = [*(["--time-budget"] if budget_s is not None else []), *(["--cost-budget"] if cost_budget else [])]
    runs, uncertainty = _runs(cases, target, " and ".join(options))
    jobs, price = list(runs.values()), target.price
    budgets: list[_SharedBudget] = []
    if budget_s is not None:
        option, shown = f"--time-budget {budget_s}s", lambda s: f"{math.ceil(s)} s"
        budgets.append(_SharedBudget(option, budget_s, BudgetedJob.run_s, shown, "take", "longest", "time"))
    if cost_budget is not None:
        assert price is not None
        option, hours = f"--cost-budget {cost_budget}", cost_budget.amount / price.value
        words = "cost", "most expensive", "money"
        budgets.append(_SharedBudget(option, hours, BudgetedJob.gpu_hours, lambda h: str(price.of(h)), *words))
    measured = min(for_each(budgets, lambda budget: budget.measured(jobs)))
    of_each = [runs[job_content(case)] for case in cases]
    return Budgeted(
        cases=tuple(case.with_iterations(run.iterations(measured)) for case, run in zip(cases, of_each, strict=True)),
        own=tuple(case.iterations for case in cases),
        run_s=tuple(run.run_s(measured) for run in of_each),
        jobs=len(runs),
        total_s=total(jobs, measured),
        budget_s=budget_s,
        uncertainty=uncertainty,
        cost=price.of(total(jobs, measured, BudgetedJob.gpu_hours)) if price is not None else None,
        cost_budget=cost_budget,
    )


def total(
    runs: Sequence[BudgetedJob], measured: int, of_job: Callable[[BudgetedJob, int], float] = BudgetedJob.run_s
) -> float:
    """Return the seconds of all jobs, one after another, or their GPU-hours."""
    return sum(of_job(run, measured) for run in runs)


def most_measured(
    runs: Sequence[BudgetedJob], budget: float, of_job: Callable[[BudgetedJob, int], float] = BudgetedJob.run_s
) -> int | None:
    """Return the largest common number of measured iterations whose total fits the budget; None if none fits."""
    enough = max((run.case.iterations for run in runs), default=0)
    fitting = bisect_right(range(enough + 1), budget, key=lambda measured: total(runs, measured, of_job))
    return fitting - 1 if fitting else None


def _runs(cases: Sequence[Case], target: Target, options: str) -> tuple[dict[str, BudgetedJob], float]:
    """Return every job once, by the part of its identity that the case decides, and the largest uncertainty.

    `options` are the names of the budgets, for messages.
    """
    runs: dict[str, BudgetedJob] = {}
    uncertainty = 0.0
    for case in cases:
        if not case.record.predicts:
            what = f"{short_name(case.experiment)}: the time of {case.program} is not predicted"
            raise ReproError(Problem(f"{options}: {what}", hint="leave it out"))
        if case.device == "cpu":
            what = f"{short_name(case.experiment)} at scale {case.scale} runs on CPU cores, whose time is not predicted"
            raise ReproError(Problem(f"{options}: {what}", hint="leave it out; --where selects fewer cases"))
        duration = case.record.predict(case, target).duration
        if duration is None:
            what = f"no time is predicted on {target.name}: the GPUs' peak in {case.dtype} is unknown"
            hint = f"add hardware: peak_tflops: {{{case.dtype}: ...}}, or leave it out"
            raise ReproError(Problem(f"{options}: {what}", hint=hint))
        runs.setdefault(job_content(case), BudgetedJob(case, duration.iteration_ms))
        uncertainty = max(uncertainty, duration.uncertainty)
    return runs, uncertainty


@dataclass(frozen=True, slots=True)
class _SharedBudget:
    """Budget of all jobs together: its option, its amount, what a job uses of it, and words of its message."""

    option: str
    amount: float
    of_job: Callable[[BudgetedJob, int], float]
    shown: Callable[[float], str]
    verb: str
    largest: str
    resource: str

    def measured(self, runs: Sequence[BudgetedJob]) -> int:
        """Return `most_measured`. ReproError if nothing fits: it has what would suffice, and the largest jobs."""
        measured = most_measured(runs, self.amount, self.of_job)
        if measured is not None:
            return measured
        most = sorted(runs, key=lambda run: -self.of_job(run, 0))[:_MOST_NAMED]
        named = ", ".join(f"{run.case.name} ({self.shown(self.of_job(run, 0))})" for run in most)
        jobs = f"the job {self.verb}s" if len(runs) == 1 else f"the {len(runs)} jobs {self.verb}"
        needed = self.shown(total(runs, 0, self.of_job))
        what = f"{jobs} {needed} even with no more than {LEAST_INTERVALS} measured intervals each"
        hint = f"give more {self.resource}, or select fewer cases with --where"
        raise ReproError(Problem(f"{self.option}: {what}; {self.largest}: {named}", hint=hint))


# ---- check of an experiment -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckedScale:
    """A scale of an experiment and the number of its cases that have a job."""

    scale: str
    cases: int


def check_experiment(name: str, folders: Folders | None = None) -> tuple[Entry, list[CheckedScale]]:
    """Return an experiment and its scales; ReproError has every problem of its file, scales and cases.

    The published cases are also checked on the machine of the paper, if paper.yaml describes it.
    """
    entry = find_experiment(folders or find_folders(), name)
    scales: list[CheckedScale] = []
    problems = list(unknown_programs(entry))
    for scale in scale_names(entry.experiment):
        try:
            cases = [] if entry.experiment.reference_only else cases_to_run(entry, scale)
        except ReproError as error:
            problems += error.problems
            continue
        with added_to(problems):
            for_each(cases, lambda case: _require_files(entry, case))
        cases = [case for case in cases if case.described is not None or known_program(case.program) is not None]
        problems += _unsupported(entry, scale, cases)
        if scale == PAPER and entry.paper.machine is not None:
            target = Target.of_paper(entry)
            problems += refusal_problems(entry, [check_case(case, target) for case in cases], target)
        scales.append(CheckedScale(scale, len(cases)))
    require_none(dict.fromkeys(problems))
    return entry, scales


def _require_files(entry: Entry, case: Case) -> None:
    """Raise ReproError for the files that a described program needs and that are not beside the experiment."""
    if case.described is not None:
        settings: dict[str, Scalar] = {"nodes": 1, "processes": 1, **case.settings, "gpus": case.gpus}
        job_command(case.described, settings, entry.file.parent, lambda path: entry.location("program", *path))


def _unsupported(entry: Entry, scale: str, cases: list[Case]) -> list[Problem]:
    """Return each reason why a program cannot run cases of a scale, with the cases."""
    found = ((case.record.unsupported_settings(case), case.name) for case in cases)
    reasons = [(reason, name) for reason, name in found if reason is not None]
    location = entry.scale_location(scale, "program")
    return [
        Problem(f"{named} at scale {scale}: {reason}", location)
        for reason, named in cases_by_reason(reasons, len(cases)).items()
    ]


def _in_slurms_form(value: object) -> object:
    """Return a time with a unit, such as `1h`, in the syntax of Slurm; other values unchanged."""
    seconds = seconds_with_unit(value) if isinstance(value, str) else None
    return value if seconds is None else format_time_limit(seconds)


class _TrainingSettings(Strict):
    iterations: Count | None = None


class _CaseSettings(Strict):
    """Settings of cases that change the length of a job and not what it measures."""

    training: _TrainingSettings = _TrainingSettings()
    time_limit: Annotated[TimeLimit | None, BeforeValidator(_in_slurms_form)] = None


_OF_FILES = {"extends", "about", "scheduler"}
_OF_PROFILE = ClusterProfile.model_fields.keys() - _OF_FILES


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a run. `iterations` and `time_limit` replace those of every case."""

    all: tuple[Setting, ...] = ()
    of_profile: tuple[Setting, ...] = ()
    iterations: int | None = None
    time_limit: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the values of `--set`."""
        return tuple(setting.text for setting in self.all)

    def applied(self, cases: Sequence[C]) -> list[C]:
        """Return the cases with these iterations and this time limit.

        ReproError if the program of a case has no planned number of iterations.
        """
        if self.iterations is not None and (other := next((case for case in cases if not case.iterations), None)):
            what = f"--set training.iterations={self.iterations}: {other.program} has no such setting"
            raise ReproError(Problem(what, hint="leave it out, or change an axis in the experiment"))
        changed = [case if self.iterations is None else case.with_iterations(self.iterations) for case in cases]
        return changed if self.time_limit is None else [replace(case, time_limit=self.time_limit) for case in changed]


NO_SETTINGS = RunSettings()


def read_settings(texts: Sequence[str]) -> RunSettings:
    """Parse values of `--set`. ReproError has every problem of their form, and unknown fields of experiments."""
    settings = parse_settings(texts)
    of_profile = tuple(setting for setting in settings if setting.path[0] in _OF_PROFILE)
    of_cases = [setting for setting in settings if setting.path[0] in _CaseSettings.model_fields]
    problems = [_unknown(setting) for setting in settings if setting not in of_profile and setting not in of_cases]
    cases = _CaseSettings()
    with added_to(problems):
        document = settings_document(of_cases)
        cases = read_model(_CaseSettings, document, lambda path: document.place(path).in_message)
    require_none(problems)
    return RunSettings(settings, of_profile, cases.training.iterations, cases.time_limit)


def _unknown(setting: Setting) -> Problem:
    field, location = str(setting.path[0]), setting.location.in_message
    in_file = f"{dotted(setting.path)} can be changed in a file only"
    if field in _OF_FILES:
        return Problem(in_file, location, "write a profile of your own with extends:")
    if field in Experiment.model_fields:
        return Problem(in_file, location, "write an experiment of your own; --arg changes arguments of the program")
    known = sorted({*_OF_PROFILE, *_CaseSettings.model_fields})
    return Problem(f"{field}: no such field", location, did_you_mean(field, known) or f"fields: {', '.join(known)}")


def over(recorded: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return recorded settings with given ones over them: a given path replaces recorded ones at or below it."""
    paths = [setting.path for setting in parse_settings(given)]
    earlier = parse_settings(recorded)
    kept = [one.text for one in earlier if not any(one.path[: len(path)] == path for path in paths)]
    return (*kept, *given)
