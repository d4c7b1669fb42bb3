"""Plans: the chosen cases of experiments, what each case costs, and its program. Needs no ledger and no scheduler.

`plan` shows the cases of `_planned`, and `submit` and `render` bind the same cases to their programs. `check_output`
reads an output of a described program before there is a job.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typing_extensions import Unpack

from orchestrator.api import DEFAULT, CaseOptions, Session
from orchestrator.api.catalog import require_experiment
from orchestrator.catalog.case import (
    Case,
    parse_where,
    replacement_notes,
    require_changeable,
    select,
    shown_value,
    with_changes,
)
from orchestrator.catalog.expand import expand, reference_notes
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry, absolute_path, find_entries, replaced
from orchestrator.clusters.resolve import Cluster, find_cluster, layer_notes
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError, added_to, for_each, require_none
from orchestrator.fields import Field
from orchestrator.job_spec import Value, shown_changes
from orchestrator.paths import Folders, find_folders
from orchestrator.planning.batch_plan import BatchPlan, ChosenCases, PlannedCase, RunSettings, plan_batch, read_settings
from orchestrator.planning.batch_report import BatchReport, batch_report, budget_text, with_exact_memory
from orchestrator.planning.plan import Plan, bind, repeated, require_jobs
from orchestrator.planning.target import Target, cases_at, replace_program, scale_notes
from orchestrator.programs.command import parse_changes
from orchestrator.programs.output import LONGEST_LINE, OutputValue, Scalar, key_text
from orchestrator.programs.program import JudgedOutput, judge_output
from orchestrator.programs.record import find_program
from orchestrator.text import counted


def _read(
    folders: Folders, names: Sequence[str], cluster: str | None, options: CaseOptions
) -> tuple[list[Entry], Cluster | None, Sequence[str], RunSettings]:
    """Return the experiments, the cluster, the changes by `--arg`, and the settings.

    ReproError has every problem of files and options; an unknown option is a TypeError.
    """
    if unknown := sorted(options.keys() - CaseOptions.__annotations__.keys()):
        raise TypeError(f"unknown keyword: {', '.join(unknown)}")
    program = options.get("program")
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    profile: Cluster | None = None
    changes: Sequence[str] = ()
    settings = RunSettings()
    with added_to(problems):
        settings = read_settings(options.get("settings") or ())
        for name in ("time-budget", "cost-budget"):
            if settings.iterations is not None and options.get(name.replace("-", "_")) is not None:
                raise ReproError(Problem(f"--set training.iterations and --{name} exclude each other", hint="give one"))
        if settings.of_profile and cluster is None:
            what = f"--set {settings.of_profile[0].text}: a field of a cluster profile, and no cluster is given"
            raise ReproError(Problem(what, hint="add --cluster NAME"))
    for name in names:
        with added_to(problems):
            entries |= {entry.name: entry for entry in find_entries(folders, name)}
    with added_to(problems):
        if cluster is not None:
            found = find_cluster(folders, cluster, settings.of_profile, example=bool(options.get("example")))
            profile = replace(found, settings=settings.all)
    with added_to(problems):
        changes = parse_changes(options.get("arg") or (), options.get("no_arg") or ())
    with added_to(problems):
        if program is not None:
            find_program(program)
    require_none(dict.fromkeys(problems))
    return list(entries.values()), profile, changes, settings


@dataclass(frozen=True, slots=True)
class _Planned:
    """The chosen cases, checked and costed, the cluster if one was given, and notes on the choice."""

    chosen: list[ChosenCases]
    batch: BatchPlan
    cluster: Cluster | None
    notes: list[str]
    settings: RunSettings


def _planned(names: Sequence[str] | str, cluster: str | None, options: CaseOptions, *, repeat: int = 1) -> _Planned:
    """Choose and check the cases of experiments or papers, for a cluster or the paper's machine.

    An experiment of a paper that has no such scale or case, or no job, is left out, with a note. ReproError has the
    problems of all others.
    """
    require_positive(repeat=repeat)
    names, folders = [names] if isinstance(names, str) else names, find_folders()
    entries, profile, changes, settings = _read(folders, names, cluster, options)
    chosen, left_out = _chosen(names, entries, profile, changes, settings, options)
    notes: list[str] = []
    for one in chosen:
        if replaced(folders, one.entry):
            notes.append(f"{one.entry.name} is {shown(one.entry.file)}, not the shipped file")
        if profile is not None:
            notes += scale_notes(one.entry, one.cases, profile, options.get("scale"))
        notes += [*replacement_notes(one.cases), *reference_notes(one.entry, one.cases[0].scale)]
        if changes:
            notes.append(f"{one.entry.short_name} with {shown_changes(changes)}: other arguments than published")
    if profile is not None:
        notes += layer_notes(folders, profile)
    batch = plan_batch(chosen, options.get("time_budget"), options.get("cost_budget"), repeat)
    return _Planned(chosen, batch, profile, [*notes, *left_out], settings)


def _chosen(
    names: Sequence[str],
    entries: Sequence[Entry],
    cluster: Cluster | None,
    changes: Sequence[str],
    settings: RunSettings,
    options: CaseOptions,
) -> tuple[list[ChosenCases], list[str]]:
    """Return the chosen cases of each experiment, and a note for each experiment of a paper that has none."""
    program = options.get("program")
    chosen: list[ChosenCases] = []
    of_programs: list[Case] = []
    problems: list[Problem] = []
    left_out: list[Problem] = []
    notes: list[str] = []
    for entry in entries:
        is_of_paper = entry.name.rpartition("/")[0] in names and not {entry.name, entry.short_name} & set(names)
        try:
            require_jobs(entry)
            wanted = _wanted(entry, options.get("where"))
            at_scale = cases_at(entry, cluster, options.get("scale"), program, wanted)
            at_scale = replace_program(at_scale, program)
            selected = with_changes(_selected(entry, at_scale, wanted), changes)
            target = Target.of_paper(entry) if cluster is None else Target.of_cluster(cluster)
        except ReproError as error:
            if is_of_paper:
                notes.append(f"{entry.short_name} is left out: {error.problems[0].what}")
            (left_out if is_of_paper else problems).extend(error.problems)
            continue
        of_programs += at_scale
        chosen.append(ChosenCases(entry, tuple(settings.applied(selected)), target))
    if problems or not chosen:
        raise ReproError(*dict.fromkeys(problems or left_out))
    require_changeable(of_programs, changes)
    return chosen, notes


def _wanted(entry: Entry, where: str | None) -> dict[str, Value]:
    """Return the values of `--where`. ReproError for an axis that names rows of an output: a job gives all of them."""
    wanted = parse_where(where, entry.names.axes)
    keys = entry.described.output.key if entry.described is not None else ()
    if key := next((axis for axis in wanted if axis in keys), None):
        what = f"--where {key}=...: {key} names rows of the output of a job"
        raise ReproError(Problem(what, hint="leave it out; commands that show results accept it"))
    return wanted


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


def plan_run(experiment: str, cluster: str, **options: Unpack[CaseOptions]) -> PlannedRun:
    """Check each chosen case of an experiment against a cluster, as `plan_runs` does."""
    require_experiment(experiment)
    (run,) = plan_runs(experiment, cluster, **options)
    return run


def plan_runs(
    names: Sequence[str] | str,
    cluster: str,
    *,
    repeat: int = 1,
    max_parallel: int | None = None,
    **options: Unpack[CaseOptions],
) -> list[PlannedRun]:
    """Bind each chosen case of experiments or papers to its program on a cluster; ReproError has every problem.

    The cases are those of `plan`. The first run has the notes. All jobs of all experiments share a budget.
    """
    return _runs(_planned(names, cluster, options, repeat=repeat), options, repeat, max_parallel)


def _runs(planned: _Planned, options: CaseOptions, repeat: int, max_parallel: int | None) -> list[PlannedRun]:
    """Return the runs of the planned cases; ReproError has each reason why one cannot be submitted."""
    cluster, budgeted, folders = planned.cluster, planned.batch.budgeted, find_folders()
    assert cluster is not None

    def run_of(group: Sequence[PlannedCase]) -> PlannedRun:
        plans = bind(group[0].entry, [one.checked for one in group], cluster, folders)
        return PlannedRun(group[0].entry, cluster, tuple(repeated(plans, repeat)))

    runs = for_each(planned.batch.by_experiment, run_of)
    notes = list(planned.notes)
    budget_s, money = (budgeted.budget_s, budgeted.cost_budget) if budgeted is not None else (None, None)
    if budgeted is not None:
        notes.append(budget_text(budgeted))
    if repeat > 1 and budget_s is not None:
        notes.append(f"each of the {repeat} repeats has {budget_s}s of --time-budget {options.get('time_budget')}")
    if repeat > 1 and money is not None:
        notes.append(f"each of the {repeat} repeats has {money} of --cost-budget {options.get('cost_budget')}")
    if max_parallel is not None and max_parallel > 1 and not cluster.is_slurm:
        notes.append(f"{cluster.name} runs one job at a time; --max-parallel has no effect")
    return [
        replace(
            run,
            notes=() if i else tuple(notes),
            time_budget=None if budget_s is None else f"{budget_s}s",
            cost_budget=None if money is None else f"{money.amount:g}{money.currency}",
            settings=planned.settings.texts,
        )
        for i, run in enumerate(runs)
    ]


def require_positive(**numbers: int | None) -> None:
    """Raise ReproError for a number below 1."""
    require_none(
        Problem(f"--{name.replace('_', '-')} {number}: must be at least 1")
        for name, number in numbers.items()
        if number is not None and number < 1
    )


def require_submittable(planned: Sequence[PlannedRun], *, warm_up: bool = False) -> None:
    """Raise ReproError if no job has kernels to compile first with `warm_up`."""
    plans, is_slurm = [plan for run in planned for plan in run.plans], planned[0].cluster.is_slurm
    if warm_up and not (is_slurm and any(plan.program.warm_up for plan in plans)):
        names = " and ".join(sorted({plan.program.name for plan in plans}))
        why = f"{names} compiles no kernels first" if is_slurm else "local jobs run one after another"
        raise ReproError(Problem(f"--depends-on warm-up: {why}", hint="leave it out"))


def plan(
    names: Sequence[str] | str,
    cluster: str | None = None,
    *,
    solve_alpha: bool = False,
    exact: bool = False,
    session: Session = DEFAULT,
    **options: Unpack[CaseOptions],
) -> BatchReport:
    """Check and cost the cases of experiments or papers, for a cluster or the paper's machine.

    A job whose program has no prediction costs what its last measured run in the ledger did, else its time limit.
    """
    planned = _planned(names, cluster, options)
    notes, profile = list(planned.notes), planned.cluster
    if profile is not None:
        _require_gpu_facts(planned.chosen, profile)
        if profile.unfilled:
            open_values = counted(len(profile.unfilled), "open value")
            notes.append(f"{profile.name} has {open_values} that a submission needs and planning does not")
    batch = planned.batch
    if profile is not None and batch.without_prediction:
        batch = batch.with_measured(_measured_s(batch.without_prediction, profile, session))
    report = batch_report(planned.chosen, batch, notes, solve_alpha=solve_alpha)
    return with_exact_memory(report) if exact else report


def _measured_s(jobs: Sequence[PlannedCase], cluster: Cluster, session: Session) -> dict[str, float]:
    """Return the seconds of the last measured run of each of these jobs that has one, by the label of its case."""
    ledger = session.existing_ledger()
    if ledger is None:
        return {}
    from orchestrator.ledger.attempts import attempts_of_jobs  # only here: other plans need no database
    from orchestrator.ledger.tables import MEASURED

    labels: dict[str, str] = {}
    for job in jobs:
        with contextlib.suppress(ReproError):  # without an image, say: it never ran
            (plan,) = bind(job.entry, [job.checked], cluster, session.folders)
            labels[plan.identity] = job.label
    seconds = {}
    for job_id, attempts in attempts_of_jobs(ledger, labels).items():
        for row in attempts:
            if row.verdict in MEASURED and row.started_at and row.ended_at:
                seconds[labels[job_id]] = (row.ended_at - row.started_at).total_seconds()
    return seconds


def _require_gpu_facts(chosen: Sequence[ChosenCases], cluster: Cluster) -> None:
    """Raise ReproError if the profile does not describe the GPUs that the cases need."""
    cases = [case for one in chosen for case in one.cases if case.record.predicts]
    if not any(case.device == "gpu" for case in cases):
        return
    missing = [name for name in ("gpu", "gpu_memory_gb", "peak_tflops") if not getattr(cluster.hardware, name)]
    if missing and not (cluster.machine is not None and cluster.machine.gpus == 0):
        hint = f"add hardware: {', '.join(f'{name}: ...' for name in missing)}"
        raise ReproError(Problem(f"{cluster.name} does not define {' and '.join(missing)} of its GPUs", hint=hint))


@dataclass(frozen=True, slots=True)
class OutputNumber:
    """A number of an output."""

    line: Annotated[int, Field("line of the output, from 1")]
    at: Annotated[str | None, Field("row or iteration of the number; none for a number of the whole output")]
    name: Annotated[str, Field("name of the number")]
    value: Annotated[Scalar, Field("the number, or a text")]
    unit: Annotated[str | None, Field("unit of a metric")]


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """Numbers of an output, judged as the output of a job of `case` that ended with exit code 0."""

    file: Path
    case: Case
    numbers: tuple[OutputNumber, ...]
    problems: tuple[Problem, ...]


def check_output(
    entry: Entry, log: str | None = None, scale: str | None = None, where: str | None = None
) -> CheckedOutput | None:
    """Read an output as that of a job of the experiment: of the first case at a scale, or of the first with `where`.

    Without `log` it is the example of the experiment, of the first case at any scale that it verifies, else of the one
    with the fewest problems; None if there is no example. ReproError if the experiment describes no program, or the
    file cannot be read.
    """
    program = entry.described
    if program is None or program.output.reader is not None:
        if log is None:
            return None
        what = "describes no program" if program is None else "has a reader of a package"
        hint = "repro logs shows what was read of the log of a job"
        raise ReproError(Problem(f"{entry.short_name} {what}, so its output is not declared", hint=hint))
    example = program.output.example
    if log is None and example is None:
        return None
    file = absolute_path(log) if log is not None else entry.file.parent / str(example)
    wanted = parse_where(where, entry.names.axes)
    if log is not None:
        cases = select(expand(entry, scale or PAPER), wanted)[:1]
    else:
        scales = scale_names(entry.experiment) if scale is None else [scale]
        cases = select([case for name in scales for case in expand(entry, name)], wanted)
    best: tuple[Case, JudgedOutput] | None = None
    for case in cases:
        try:
            judged = judge_output(program, {"gpus": case.gpus, **case.settings}, lines_of(file))
        except OSError as error:
            at = entry.location("program", "output", "example") if log is None else f"{log}:"
            raise ReproError(Problem(f"cannot be read ({error.strerror})", at, "correct the path")) from None
        if best is None or len(judged.problems) < len(best[1].problems):
            best = case, judged
        if not judged.problems:
            break
    assert best is not None
    case, judged = best
    problems = tuple(Problem(problem.text, f"{file.name}:") for problem in judged.problems)
    return CheckedOutput(file, case, tuple(_numbers(entry, judged)), problems)


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file; the rest of a long line is left out."""
    with file.open("rb") as opened:
        while line := opened.readline(8 * LONGEST_LINE):
            yield line
            while line and not line.endswith(b"\n"):
                line = opened.readline(8 * LONGEST_LINE)


def _numbers(entry: Entry, judged: JudgedOutput) -> Iterator[OutputNumber]:
    """Yield the numbers in the order of their lines."""
    assert entry.described is not None
    output, key = judged.output, entry.described.output.key
    found: list[tuple[str | None, str, OutputValue]] = [(None, name, one) for name, one in output.values.items()]
    for row, columns in output.rows.items():
        found += [(key_text(key, row), name, one) for name, one in columns.items() if name not in key]
    for number, metrics in output.iterations.items():
        found += [(f"iteration {number}", name, one) for name, one in metrics.items()]
    for at, name, one in sorted(found, key=lambda each: each[2].line):
        metric = entry.metrics.get(name)
        yield OutputNumber(one.line, at, name, one.value, (metric.unit or None) if metric is not None else None)
