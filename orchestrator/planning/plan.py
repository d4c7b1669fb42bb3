"""Plans of jobs: a case checked against a machine and costed, then bound to its program on a cluster.

`identity` is the hash of what a job runs, so that a second submission finds the job again. It covers only values that
differ from a default: a field that is added later, with a default, changes no existing identity. Values that only
affect how a result is read or queued (warm-up, time limit, names) are left out.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from orchestrator.catalog.case import Case
from orchestrator.catalog.library import Entry
from orchestrator.clusters.program import described_program, image_of, program_for
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError, for_each
from orchestrator.fields import Field
from orchestrator.job_spec import JobSpec, Resources
from orchestrator.paths import Folders
from orchestrator.planning.target import (
    Target,
    fit_refusals,
    job_size,
    refusals,
    scale_hint,
    start_refusals,
    start_warnings,
    warnings,
)
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.record import PredictedMemory, PredictedTime
from orchestrator.slurm.notation import time_limit_s

Fit = Literal["fits", "tight", "OOM"]
"""Verdict of a case's memory: within the usable share of a GPU, within the whole GPU, or more than a GPU has. A
published run of the tutorials needs 99 % of its GPU, so a tight case may run."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted cost of a case. None is unknown: on CPU cores, or if the profile does not describe the GPU.

    For a program without predictions, `gpu_hours` are those of the time limit, or of a measured run.
    `usable_bytes` is the GPU memory that tensors can use. `job_s` includes the start-up; for a job that runs out of
    memory it is the start-up alone, and `duration` is the time that it would take with enough memory.
    """

    nodes: int
    memory: PredictedMemory | None
    usable_bytes: float | None
    fit: Fit | None
    duration: PredictedTime | None
    job_s: float | None
    gpu_hours: float | None
    warnings: tuple[str, ...] = ()


def cost_of(case: Case, target: Target) -> Cost:
    """Return the cost of a case that the target does not refuse."""
    nodes, record, resources = target.nodes_of(case), case.record, resources_of(case, target)
    if not record.predicts:
        limit_h = time_limit_s(resources.time_limit) / 3600
        return Cost(nodes, None, None, None, None, None, resources.gpus * limit_h or None)
    made = record.predict(case, target)
    memory, usable, duration = made.memory, made.usable_bytes, made.duration
    fit = None if memory is None or usable is None else fit_of(memory.total_bytes, usable, target)
    job_s = None if duration is None else record.run_s(case, 0.0 if fit == "OOM" else duration.iteration_ms)
    hours = None if job_s is None else case.gpus * job_s / 3600
    return Cost(nodes, memory, usable, fit, duration, job_s, hours, made.warnings)


def fit_of(needed_bytes: float, usable_bytes: float, target: Target) -> Fit:
    """Compare the needed memory with the memory that tensors can usually use, and with the whole memory of a GPU."""
    if needed_bytes <= usable_bytes:
        return "fits"
    return "tight" if needed_bytes <= 1e9 * (target.hardware.gpu_memory_gb or 0) else "OOM"


@dataclass(frozen=True, slots=True)
class CheckedCase:
    """A case checked against a machine and costed. `cluster` is the name of the machine, `cost` None if refused."""

    case: Case
    cluster: str
    resources: Resources
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    cost: Cost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(CheckedCase):
    """A checked and costed case with its program on a cluster, not yet submitted.

    `identity` finds the same job again; `repeat` counts from 1.
    """

    identity: str
    program: BoundProgram
    repeat: int = 1

    @property
    def label(self) -> str:
        """Name of the case and number of its repeat: `pp=8,gbs=32 #2`."""
        return self.case.name if self.repeat == 1 else f"{self.case.name} #{self.repeat}"

    @property
    def slug(self) -> str:
        """Label for file names."""
        return self.case.slug if self.repeat == 1 else f"{self.case.slug}.repeat-{self.repeat}"

    @property
    def gpus(self) -> int:
        """Return the GPUs of the job; 0 on CPU cores."""
        return self.resources.gpus

    @property
    def planned_iterations(self) -> int | None:
        """Return the iterations of the job; None if the program has no such number."""
        return self.case.iterations or None

    @property
    def time_limit_s(self) -> int:
        """Return the time limit in seconds."""
        return time_limit_s(self.resources.time_limit)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of a dry run, with the program that it would run."""

    job: Annotated[str, Field(of="identity")]
    experiment: Annotated[str, Field(of="case.experiment")]
    scale: Annotated[str, Field(of="case.scale")]
    cluster: str
    case: Annotated[str, Field(of="case.name")]
    repeat: int
    nodes: Annotated[int, Field(of="resources.nodes")]
    tasks: Annotated[int, Field(of="resources.tasks")]
    gpus: int
    microbatches: Annotated[int | None, Field(of="case.microbatches")]
    bubble: Annotated[float | None, Field(of="case.bubble")]
    iterations: Annotated[int | None, Field(of="planned_iterations")]
    time_limit_s: int
    warnings: Sequence[str]
    program: Annotated[str, Field(of="program.name")]
    code: Annotated[str, Field(of="program.code")]
    image: Annotated[str | None, Field(of="program.image_path")]
    image_digest: Annotated[str | None, Field(of="program.image_digest")]
    data: Annotated[str | None, Field(of="program.data")]


@dataclass(frozen=True, slots=True)
class SideCase:
    """Values in the script of a job that is not a case of an experiment."""

    experiment: str
    slug: str
    time_limit: str
    scale: str = "one node"
    device: str = "gpu"
    layout_text: None = None
    arguments: tuple[str, ...] = ()
    argument_changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SidePlan:
    """Plan of a job that is not a case: a program on one node of a cluster."""

    case: SideCase
    cluster: str
    resources: Resources
    program: BoundProgram
    identity: str
    label: str


def repeated(plans: Sequence[Plan], times: int) -> list[Plan]:
    """Return each plan `times` times. Each repeat is a job of its own."""
    return [
        replace(plan, repeat=number, identity=identity(plan.case, plan.program, plan.cluster, number, plan.resources))
        for number in range(1, times + 1)
        for plan in plans
    ]


def check_case(case: Case, target: Target) -> CheckedCase:
    """Check a case against a machine and cost it. Pure: no scheduler, no torch, no file is touched."""
    reasons = tuple(refusals(case, target))
    resources = resources_of(case, target)
    cost = None if reasons else cost_of(case, target)
    notes = (*warnings(case, target), *_cost_warnings(case, cost, resources.time_limit))
    return CheckedCase(case, target.name, resources, reasons, notes, cost)


def _cost_warnings(case: Case, cost: Cost | None, time_limit: str) -> Iterator[str]:
    if cost is None:
        return
    oom_published = case.expected is not None and case.expected.outcome == "oom"
    if cost.fit == "OOM" and not oom_published:
        yield "does not fit into the GPU's memory"
    elif cost.fit == "tight":
        yield "needs more than the usable memory of a GPU, may run out of memory"
    elif cost.fit == "fits" and oom_published:
        yield "fits by the prediction, ran out of memory in the source"
    if cost.job_s is not None and cost.job_s > time_limit_s(time_limit):
        yield f"predicted to take {cost.job_s / 60:.0f} minutes, asks for {time_limit}"
    yield from cost.warnings


def plan_cases(entry: Entry, cases: Sequence[Case], cluster: Cluster, folders: Folders) -> list[Plan]:
    """Return a plan for each case; ReproError has every reason of every case that cannot run."""
    require_jobs(entry)
    target = Target.of_cluster(cluster)
    return bind(entry, [check_case(case, target) for case in cases], cluster, folders)


def require_jobs(entry: Entry) -> None:
    """Raise ReproError for an experiment that is for reference only."""
    if entry.experiment.reference_only:
        raise ReproError(Problem(f"reference only: {entry.experiment.reference_only}", f"{entry.short_name}:"))


def bind(entry: Entry, checked: Sequence[CheckedCase], cluster: Cluster, folders: Folders) -> list[Plan]:
    """Return the plan of each checked case: with its program on the cluster, and its identity.

    ReproError has every reason of every case that cannot run, and what the profile lacks for its program.
    """
    target = Target.of_cluster(cluster)
    problems = refusal_problems(entry, checked, target)
    for case in {plan.case.program: plan.case for plan in checked}.values():
        problems += _site_problems(entry, case, cluster)
    if problems:
        raise ReproError(*dict.fromkeys(problems))
    plans = _plans(entry, checked, cluster, folders)
    problems = refusal_problems(entry, plans, target)
    if problems:
        raise ReproError(*problems)
    _require_different_jobs(entry, plans)
    return plans


def refusal_problems(entry: Entry, checked: Sequence[CheckedCase], target: Target) -> list[Problem]:
    """Return each refusal once, with all the cases that it stops. `checked` are all cases, refused or not.

    If cases are too large for the target, the hint names the scales that fit, or how to select another machine.
    """
    reasons = [(reason, plan.case.name) for plan in checked for reason in plan.refusals]
    too_large = {reason for plan in checked if plan.refusals for reason in fit_refusals(plan.case, target)}
    other_machine = "--cluster NAME selects another machine" if target.machine is not None else None
    hint = scale_hint(entry, target) or other_machine if too_large else None
    return [
        Problem(f"{entry.short_name} {cases}: {reason}", hint=hint if reason in too_large else None)
        for reason, cases in cases_by_reason(reasons, len(checked)).items()
    ]


def cases_by_reason(reasons: Iterable[tuple[str, str]], count: int) -> dict[str, str]:
    """Return each reason once, with the names of its cases, or `all 6 cases` of `count` cases."""
    cases: dict[str, list[str]] = {}
    for reason, name in reasons:
        cases.setdefault(reason, []).append(name)
    return {
        reason: f"all {count} cases" if len(names) == count > 1 else " and ".join(names)
        for reason, names in cases.items()
    }


def _plans(entry: Entry, checked: Sequence[CheckedCase], cluster: Cluster, folders: Folders) -> list[Plan]:
    """Bind each case to its program; ReproError has every case that the program does not support."""

    def bound(plan: CheckedCase) -> Plan:
        if plan.case.described is not None:
            program = described_program(plan.case, entry, cluster, folders, plan.resources)
        else:
            program = program_for(plan.case, entry.paper, cluster, folders)
        return Plan(
            case=plan.case,
            cluster=cluster.name,
            resources=plan.resources,
            refusals=tuple(start_refusals(program, cluster)),
            warnings=(*plan.warnings, *start_warnings(program, cluster)),
            cost=plan.cost,
            identity=identity(plan.case, program, cluster.name, resources=plan.resources),
            program=program,
        )

    return for_each(checked, bound)


def _require_different_jobs(entry: Entry, plans: Sequence[Plan]) -> None:
    """Refuse cases that differ only in settings that their program ignores: their jobs would compare nothing."""
    first: dict[object, Plan] = {}
    pairs: list[str] = []
    for plan in plans:
        other = first.setdefault((plan.program, plan.resources), plan)
        if other.identity != plan.identity:
            pairs.append(f"{plan.case.program} would run {other.case.name} and {plan.case.name} identically")
    if pairs:
        more = f", and {len(pairs) - 1} more such pairs" if len(pairs) > 1 else ""
        is_described = plans[0].case.described is not None
        hint = "name the axis in the command" if is_described else "it has no option for the difference"
        raise ReproError(Problem(f"{entry.short_name}: {pairs[0]}{more}", hint=hint))


def resources_of(case: Case, target: Target) -> Resources:
    """Return the resources of a job: whole nodes, and tasks of each: one per GPU or CPU place, or as described."""
    per_node = min(case.gpus, target.places_per_node(case))
    nodes, tasks = target.nodes_of(case), per_node
    if case.record.processes is not None:
        size = job_size(case, target.places_per_node(case))
        per_node, tasks = size.places_per_node, size.processes_per_node
    return Resources(
        nodes=nodes,
        tasks_per_node=tasks,
        gpus_per_node=per_node if case.device == "gpu" else 0,
        time_limit=case.time_limit or target.time_limit or "0:30:00",
    )


def _site_problems(entry: Entry, case: Case, cluster: Cluster) -> list[Problem]:
    """Return what the profile or the local host lacks for the program of a case."""
    name, path = image_of(case, entry.paper, cluster)
    problems = cluster.require_filled(case.program, name)
    if name is not None and path is None:
        hint = f"add container: images: {name}: PATH.sqsh to {shown(cluster.overlay)}"
        hint += f", or image: to {entry.location('program')}" if case.described is not None else ""
        problems.append(Problem(f"{cluster.name} has no container image for {name}", hint=hint))
    if cluster.profile.scheduler == "local":
        absent, install_command = case.record.absent_packages()
        if absent and cluster.profile.programs.python(case.program) in (None, sys.executable):
            problems.append(Problem(f"training here needs {' and '.join(absent)}", hint=install_command))
    return problems


def job_spec(plan: Plan, cluster: Cluster) -> JobSpec:
    """Return the configuration that the ledger stores with the job."""
    case, hardware = plan.case, cluster.hardware
    return JobSpec(
        point=dict(case.point),
        settings=case.settings,
        device=case.device,
        resources=plan.resources,
        arguments=tuple(plan.program.arguments),
        argument_changes=case.argument_changes,
        program=case.described.stored() if case.described is not None else None,
        data=plan.program.data,
        image_path=plan.program.image_path,
        gpus_per_node=hardware.gpus_per_node,
        gpu=hardware.gpu if plan.gpus else None,
        own=case.record.spec_values(case, plan.program, hardware),
    )


def identity(
    case: Case, program: BoundProgram, cluster: str, repeat: int = 1, resources: Resources | None = None
) -> str:
    """Return the identity of a job: twelve hexadecimal digits. Each repeat from the second on has its own.

    The resources of a job that an experiment describes are part of it, without the time limit.
    """
    parts = {**_parts(case), "cluster": cluster, "code": program.code}
    parts |= {"image": program.image, "image_digest": program.image_digest}
    if case.record.processes is not None and resources is not None:
        parts["resources"] = [resources.nodes, resources.tasks_per_node, resources.gpus_per_node]
    if repeat > 1:
        parts["repeat"] = repeat
    return hashlib.sha256(_canonical(parts).encode()).hexdigest()[:12]


def job_content(case: Case) -> str:
    """Return the part of a job's identity that the case decides: equal for two cases that are the same job."""
    return _canonical(_parts(case))


def _parts(case: Case) -> dict[str, object]:
    return {
        "workload": case.program,
        "device": case.device,
        **case.identity_parts(),
        "arguments": list(case.arguments) or None,
        "argument_changes": list(case.argument_changes) or None,
    }


def _canonical(parts: Mapping[str, object]) -> str:
    given = {name: value for name, value in parts.items() if value is not None}
    return json.dumps(given, sort_keys=True, separators=(",", ":"))
