"""Selection of cases and jobs that a command is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.catalog.axes import Value
from orchestrator.catalog.case import Case, parse_where, replacement_notes, select
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import (
    Entry,
    experiment_names,
    find_entries,
    find_experiment,
    full_name,
    names_meant,
    replaced,
)
from orchestrator.cli.output import say
from orchestrator.cli.session import existing_ledger
from orchestrator.cli.time_budget import budget_line
from orchestrator.clusters.resolve import Cluster, find_cluster, layer_notes
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import CaseSelection, within_budget
from orchestrator.planning.plan import Plan, cases_at, plan_cases, run_with
from orchestrator.planning.target import Target
from orchestrator.workloads import find_workload


@dataclass(frozen=True, slots=True)
class Choice:
    """What the words of a command name: experiments, a cluster if one was given, and what cases must have."""

    entries: list[Entry]
    cluster: Cluster | None
    wanted: Mapping[str, Value]


def read_choice(
    folders: Folders,
    names: Sequence[str],
    cluster: str | None,
    where: str | None,
    workload: str | None = None,
    find: Callable[[Folders, str], list[Entry]] = find_entries,
) -> Choice:
    """Read all of it; ReproError has everything that is wrong with the files and the words."""
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    profile: Cluster | None = None
    wanted: Mapping[str, Value] = {}
    for name in names:
        try:
            entries |= {entry.name: entry for entry in find(folders, name)}
        except ReproError as error:
            problems.extend(error.problems)
    try:
        profile = find_cluster(folders, cluster) if cluster is not None else None
    except ReproError as error:
        problems.extend(error.problems)
    try:
        wanted = parse_where(where)
    except ReproError as error:
        problems.extend(error.problems)
    try:
        if workload is not None:
            find_workload(workload)
    except ReproError as error:
        problems.extend(error.problems)
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return Choice(list(entries.values()), profile, wanted)


def choose(
    folders: Folders,
    names: Sequence[str],
    cluster: str | None,
    scale: str | None,
    where: str | None,
    workload: str | None = None,
) -> tuple[list[CaseSelection], list[str]]:
    """What is to be planned, and what a person should know of the choice."""
    choice = read_choice(folders, names, cluster, where, workload)
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
        f"{entry.name} is {shown(entry.file)}, and not the shipped one"
        for entry in runnable
        if replaced(folders, entry)
    ]
    chosen = _with_cases(runnable, profile, scale, choice.wanted, workload)
    notes += [note for some in chosen for note in replacement_notes(some.cases)]
    _require_facts(chosen, profile)
    if profile is not None and profile.unfilled:
        notes.append(
            f"{profile.name} leaves {len(profile.unfilled)} values open that a submission needs; planning does not"
        )
    return chosen, notes


def _with_cases(
    entries: Sequence[Entry],
    profile: Cluster | None,
    scale: str | None,
    wanted: Mapping[str, Value],
    workload: str | None,
) -> list[CaseSelection]:
    """Of several experiments, those that have such a scale and such cases; ReproError where none has."""
    chosen: list[CaseSelection] = []
    problems: list[Problem] = []
    refused: list[Problem] = []
    for entry in entries:
        try:
            cases = select(_run_with(cases_at(entry, profile, scale, workload), workload, refused), wanted)
        except ReproError as error:
            problems.extend(error.problems)
            if len(entries) == 1 or not (scale or wanted):
                raise
            continue
        target = Target.of_cluster(profile) if profile else Target.of_paper(entry)
        chosen.append(CaseSelection(entry, tuple(cases), target))
    if refused or not chosen:
        raise ReproError(*dict.fromkeys(refused or problems))
    return chosen


def _run_with(own: list[Case], workload: str | None, refused: list[Problem]) -> list[Case]:
    """With the program asked for; an experiment that cannot have it is refused, and never left out in silence."""
    try:
        return run_with(own, workload)
    except ReproError as error:
        refused.extend(error.problems)
        return own


def _require_facts(chosen: Sequence[CaseSelection], profile: Cluster | None) -> None:
    """A plan for GPUs needs to know them; a guess would be worse than a refusal."""
    if profile is None or not any(case.device == "gpu" for some in chosen for case in some.cases):
        return
    hardware = profile.hardware
    missing = [name for name in ("gpu", "gpu_memory_gb", "peak_tflops") if not getattr(hardware, name)]
    if missing and not (profile.machine is not None and profile.machine.gpus == 0):
        hint = f"add hardware: {', '.join(f'{name}: ...' for name in missing)}"
        raise ReproError(Problem(f"{profile.name} does not say {' and '.join(missing)} of its GPUs", hint=hint))


def planned(
    folders: Folders,
    experiment: str,
    cluster: str,
    scale: str | None,
    where: str | None,
    workload: str | None,
    budget_s: int | None = None,
) -> tuple[Entry, Cluster, list[Plan]]:
    """Entry, cluster and plans; ReproError has everything that is wrong with the two files and the choice.

    With a time budget the plans are of cases with as many iterations as fit; what cannot run at all is said first.
    """
    choice = read_choice(folders, [experiment], cluster, where, workload, lambda at, name: [find_experiment(at, name)])
    (entry,), profile = choice.entries, choice.cluster
    assert profile is not None
    cases = select(run_with(cases_at(entry, profile, scale, workload), workload), choice.wanted)
    plans = plan_cases(entry, cases, profile, folders)
    for note in (*layer_notes(folders, profile), *replacement_notes(cases)):
        say(f"note: {note}")
    if budget_s is not None:
        found = within_budget(cases, Target.of_cluster(profile), budget_s)
        plans = plan_cases(entry, list(found.cases), profile, folders)
        say(f"note: {budget_line(found)}")
    return entry, profile, plans


def cases_of(entry: Entry, scale: str, workload: str) -> list[Case]:
    """An experiment's cases as they were submitted: with its own programs, or with the one that ran instead."""
    own = expand(entry, scale)
    return own if workload in {case.workload for case in own} else run_with(own, workload)


def require_verifiable(plans: list[Plan]) -> None:
    """What could never be called good is not worth its GPU-hours; its script can be had and run by hand."""
    reasons = dict.fromkeys((plan.program.workload, plan.program.unverifiable) for plan in plans)
    found = [
        Problem(f"{workload}: {reason}", hint="`repro render` writes the scripts, to submit by hand")
        for workload, reason in reasons
        if reason is not None
    ]
    if found:
        raise ReproError(*found)


def require_known(workload: str | None) -> None:
    """Refuse a program that nobody knows, with the nearest that somebody does."""
    if workload is not None:
        from orchestrator.workloads import find_workload

        find_workload(workload)


def submitted_ledger(folders: Folders, database: str | None, *, whole: bool = False) -> Ledger:
    """The ledger, for a command that is about jobs that must be in it; else as `existing_ledger`."""
    ledger = existing_ledger(folders, database, whole=whole)
    if ledger is None:
        raise ReproError(Problem("nothing was submitted yet", hint="repro submit figure-13 --cluster local"))
    return ledger


def chosen_rows(
    ledger: Ledger,
    folders: Folders,
    targets: Sequence[str],
    where: str | None = None,
    scale: str | None = None,
    workload: str | None = None,
) -> list[JobRow]:
    """The jobs that these words mean; each is an experiment's name, a job id (or its start) or a scheduler's id."""
    wanted = parse_where(where)
    require_known(workload)
    names = experiment_names(folders)
    chosen: dict[int, JobRow] = {}
    for target in targets:
        if names_meant(names, target):
            rows = job_rows(ledger, experiment=full_name(folders, target))
        else:
            rows = _by_id(ledger, target)
        rows = [row for row in rows if scale in (None, row.scale) and workload in (None, row.workload)]
        chosen |= {row.attempt_id: row for row in rows if matches(row, wanted)}
    return list(chosen.values())


def matches(row: JobRow, wanted: Mapping[str, Value]) -> bool:
    """Whether the job has these values; one recorded before settings were kept has those that name it."""
    return all(row.spec.value(axis) == value for axis, value in wanted.items())


def _by_id(ledger: Ledger, target: str) -> list[JobRow]:
    rows = job_rows(ledger, job_prefix=target) or [row for row in job_rows(ledger) if row.scheduler_id == target]
    found = sorted({row.job_id for row in rows})
    if not found:
        raise ReproError(Problem(f"{target}: neither an experiment nor a job", hint="repro status shows the jobs"))
    if len(found) > 1:
        raise ReproError(Problem(f"{target}: could be {', '.join(found[:5])}", hint="give more of the id"))
    return rows[:1]
