"""Which cases a plan is for, and on which machine: experiments or whole papers, a cluster or the paper's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import PAPER
from orchestrator.catalog.library import Entry, find_entries, replaced
from orchestrator.catalog.other_program import replacement_notes
from orchestrator.catalog.selection import parse_where, select
from orchestrator.catalog.settings import Value
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.documents.source import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.planning.campaign import Chosen
from orchestrator.planning.plan import choose_scale, run_with
from orchestrator.planning.target import Target
from orchestrator.workloads.traits import traits_of


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
            traits_of(workload)
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
) -> tuple[list[Chosen], list[str]]:
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
    notes += [note for some in chosen for note in replacement_notes(some.entry, some.cases)]
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
) -> list[Chosen]:
    """Of several experiments, those that have such a scale and such cases; ReproError where none has."""
    chosen: list[Chosen] = []
    problems: list[Problem] = []
    refused: list[Problem] = []
    for entry in entries:
        try:
            size = scale or (choose_scale(entry, profile, None, workload) if profile else PAPER)
            cases = select(_run_with(expand(entry, size), workload, refused), wanted)
        except ReproError as error:
            problems.extend(error.problems)
            if len(entries) == 1 or not (scale or wanted):
                raise
            continue
        chosen.append(Chosen(entry, tuple(cases), Target.of_cluster(profile) if profile else Target.of_paper(entry)))
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


def _require_facts(chosen: Sequence[Chosen], profile: Cluster | None) -> None:
    """A plan for GPUs needs to know them; a guess would be worse than a refusal."""
    if profile is None or not any(case.device == "gpu" for some in chosen for case in some.cases):
        return
    hardware = profile.hardware
    missing = [name for name in ("gpu", "gpu_memory_gb", "peak_tflops") if not getattr(hardware, name)]
    if missing and not (profile.machine is not None and profile.machine.gpus == 0):
        mend = f"add hardware: {', '.join(f'{name}: ...' for name in missing)}"
        raise ReproError(Problem(f"{profile.name} does not say {' and '.join(missing)} of its GPUs", mend=mend))
