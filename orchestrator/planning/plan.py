"""A case bound to a cluster: how many nodes, which program, and every reason why it cannot run there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry
from orchestrator.catalog.selection import with_workload
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Resources
from orchestrator.paths import Folders, short_name
from orchestrator.planning.exact import absent_packages
from orchestrator.planning.identity import identity
from orchestrator.planning.target import Target, fit_refusals, refusals, start_refusals, start_warnings, warnings
from orchestrator.workloads.program import Program, image_of, is_offered, program_for
from orchestrator.workloads.traits import traits_of

INSTALL = "pip install 'torch>=2.6,<2.14' megatron-core==0.16.1"


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked case, not yet submitted. `identity` finds the same job again; `repeat` counts from 1."""

    identity: str
    case: Case
    cluster: str
    program: Program
    resources: Resources
    warnings: tuple[str, ...]
    repeat: int = 1

    @property
    def label(self) -> str:
        """The case, and which repeat of it: `pp=8,gbs=32 #2`."""
        return self.case.name if self.repeat == 1 else f"{self.case.name} #{self.repeat}"

    @property
    def slug(self) -> str:
        """The same for file names."""
        return self.case.slug if self.repeat == 1 else f"{self.case.slug}.repeat-{self.repeat}"


def repeated(plans: Sequence[Plan], times: int) -> list[Plan]:
    """Each plan so many times, as jobs of their own: what is measured once more is another job."""
    return [
        replace(plan, repeat=number, identity=identity(plan.case, plan.program, plan.cluster, number))
        for number in range(1, times + 1)
        for plan in plans
    ]


def run_with(cases: list[Case], workload: str | None) -> list[Case]:
    """An experiment's cases with this program, if one is asked for; ReproError where it is unknown or cannot be."""
    if workload is None:
        return cases
    traits_of(workload)
    found = with_workload(cases, workload)
    if workload != "pretrain" and any(case.device == "cpu" for case in found):
        figure = f"{short_name(cases[0].experiment)} at scale {cases[0].scale}"
        what = f"--workload {workload}: {figure} runs on CPU cores, and {workload} on GPUs only"
        raise ReproError(Problem(what, hint="leave --workload out, or say another --scale"))
    return found


def choose_scale(entry: Entry, cluster: Cluster, asked: str | None, workload: str | None = None) -> str:
    """The scale a person asked for, else the largest whose GPUs and memory the cluster has.

    With `workload` it is the largest that this program can run instead of the experiment's own.
    """
    if asked is not None:
        return asked
    if cluster.machine is None:
        return PAPER
    target = Target.of_cluster(cluster)
    for scale in scale_names(entry.experiment):
        own = expand(entry, scale)
        try:
            cases = run_with(own, workload)
        except ReproError:  # this scale compares programs, or has no GPUs: another may do
            continue
        fits = not any(list(fit_refusals(case, target)) for case in cases)
        if fits and all(is_offered(case.workload, cluster) for case in cases):
            return scale
    names = ", ".join(scale_names(entry.experiment))
    program = f" with {workload}" if workload else ""
    raise ReproError(Problem(f"no scale of {entry.short_name} ({names}) fits {cluster.name}{program}"))


def plan_cases(entry: Entry, cases: list[Case], cluster: Cluster, folders: Folders) -> list[Plan]:
    """A plan for each case, or ReproError with every reason of every case that cannot run."""
    if entry.experiment.reference_only:
        raise ReproError(Problem(f"{entry.short_name} is reference only: {entry.experiment.reference_only}"))
    target = Target.of_cluster(cluster)
    problems = refusal_problems(entry, [(case, refusals(case, target)) for case in cases])
    for workload in dict.fromkeys(case.workload for case in cases):
        problems += _site_problems(entry, workload, cluster)
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    plans = _plans(entry, cases, cluster, folders)
    refused = refusal_problems(entry, [(plan.case, list(start_refusals(plan.program, cluster))) for plan in plans])
    if refused:
        raise ReproError(*refused)
    _require_unlike(entry, plans)
    return plans


def refusal_problems(entry: Entry, refused: Sequence[tuple[Case, Sequence[str]]]) -> list[Problem]:
    """Each reason once, with all the cases that it stops; `refused` has every case, with its reasons if it has any."""
    by_reason: dict[str, list[Case]] = {}
    for case, reasons in refused:
        for reason in reasons:
            by_reason.setdefault(reason, []).append(case)
    return [_refusal(entry, reason, cases, len(refused)) for reason, cases in by_reason.items()]


def _plans(entry: Entry, cases: Sequence[Case], cluster: Cluster, folders: Folders) -> list[Plan]:
    """Each case in its program's words; ReproError has every case that the program cannot be told."""
    target = Target.of_cluster(cluster)
    plans: list[Plan] = []
    problems: list[Problem] = []
    for case in cases:
        try:
            program = program_for(case, entry.paper, cluster, folders)
        except ReproError as error:
            problems.extend(error.problems)
            continue
        found = (*warnings(case, target), *start_warnings(program, cluster))
        resources = resources_of(case, target)
        plans.append(Plan(identity(case, program, cluster.name), case, cluster.name, program, resources, found))
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    return plans


def _require_unlike(entry: Entry, plans: Sequence[Plan]) -> None:
    """Refuse cases that differ by what their program cannot be told: as two jobs they would compare nothing."""
    first: dict[object, Plan] = {}
    pairs: list[str] = []
    for plan in plans:
        other = first.setdefault((plan.program, plan.case.layout.gpus), plan)
        if other.identity != plan.identity:
            pairs.append(f"{plan.case.workload} would run {other.case.name} and {plan.case.name} alike")
    if pairs:
        more = f", and {len(pairs) - 1} more such pairs" if len(pairs) > 1 else ""
        hint = "it cannot be told in what they differ"
        raise ReproError(Problem(f"{entry.short_name}: {pairs[0]}{more}", hint=hint))


def resources_of(case: Case, target: Target) -> Resources:
    """Whole nodes, with as many tasks on each as it has places."""
    per_node = min(case.layout.gpus, target.places_per_node(case))
    return Resources(
        nodes=target.nodes_of(case),
        tasks_per_node=per_node,
        gpus_per_node=per_node if case.device == "gpu" else 0,
        time_limit=case.time_limit or target.time_limit or "0:30:00",
    )


def _refusal(entry: Entry, reason: str, refused: Iterable[Case], total: int) -> Problem:
    names = [case.name for case in refused]
    which = f"all {total} cases" if len(names) == total > 1 else " and ".join(names)
    return Problem(f"{entry.short_name} {which}: {reason}")


def _site_problems(entry: Entry, workload: str, cluster: Cluster) -> list[Problem]:
    """What the profile, or this machine, lacks for the workload."""
    name, path = image_of(workload, entry.paper, cluster)
    problems = cluster.require_filled(workload, name)
    if name is not None and path is None:
        hint = f"add container: images: {name}: PATH.sqsh to {shown(cluster.overlay)}"
        problems.append(Problem(f"{cluster.name} names no container image for {name}", hint=hint))
    if cluster.profile.scheduler == "local" and workload == "pretrain":
        site = cluster.profile.workloads.pretrain
        absent = absent_packages()
        if absent and site.python in (None, sys.executable):
            problems.append(Problem(f"training here needs {' and '.join(absent)}", hint=INSTALL))
    return problems
