"""Choice of the scale of an experiment, and of the program that runs its cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.catalog.case import Case, with_workload
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry
from orchestrator.clusters.program import is_offered
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Value
from orchestrator.paths import short_name
from orchestrator.planning.target import Target, fit_refusals
from orchestrator.workloads import find_workload


def replace_workload(cases: list[Case], workload: str | None) -> list[Case]:
    """Return the cases with the given workload, if any; ReproError if it is unknown or cannot run them."""
    if workload is None:
        return cases
    runs_on_cpu = find_workload(workload).runs_on_cpu
    replaced = with_workload(cases, workload)
    if not runs_on_cpu and any(case.device == "cpu" for case in replaced):
        figure = f"{short_name(cases[0].experiment)} at scale {cases[0].scale}"
        what = f"--workload {workload}: {figure} runs on CPU cores, and {workload} on GPUs only"
        raise ReproError(Problem(what, hint="leave --workload out, or choose another --scale"))
    return replaced


def cases_at(
    entry: Entry,
    cluster: Cluster | None,
    scale: str | None,
    workload: str | None = None,
    wanted: Mapping[str, Value] | None = None,
) -> list[Case]:
    """Return the experiment's own cases at a scale: the given one, else the largest that fits the cluster.

    With `workload` it is the largest scale that this program can run. Of its cases, those with the values `wanted`
    must fit. Without a cluster it is the published scale; so it is if none fits a cluster of several machines, whose
    refusal then has the reasons.
    """
    if scale is not None or cluster is None:
        return cases_to_run(entry, scale or PAPER)
    wanted = wanted or {}
    scales = [cases_to_run(entry, name) for name in scale_names(entry.experiment)]
    fitting = [own for own in scales if _can_run(own, cluster, workload, wanted)]
    offered = [
        own for own in fitting if all(is_offered(workload or case.workload, cluster) for case in _chosen(own, wanted))
    ]
    if cluster.machine is not None and offered:
        return offered[0]
    if fitting:  # its refusal names the missing program
        return fitting[0]
    if cluster.machine is None:
        return cases_to_run(entry, PAPER)
    names = ", ".join(scale_names(entry.experiment))
    program = f" with {workload}" if workload else ""
    what = f"no scale of {entry.short_name} ({names}) fits {cluster.name}{program}"
    hint = f"--cluster NAME selects another machine; `repro plan {entry.short_name}` plans for that of the paper"
    raise ReproError(Problem(what, hint=hint))


def _can_run(cases: list[Case], cluster: Cluster, workload: str | None, wanted: Mapping[str, Value]) -> bool:
    try:
        cases = replace_workload(cases, workload)
    except ReproError:  # this scale compares programs or has no GPUs; a smaller one may fit
        return False
    chosen = _chosen(cases, wanted)
    return bool(chosen) and _fit(chosen, Target.of_cluster(cluster))


def _chosen(cases: Sequence[Case], wanted: Mapping[str, Value]) -> list[Case]:
    """Return the cases with these values."""
    return [case for case in cases if wanted.items() <= case.settings.items()]


def _fit(cases: Sequence[Case], target: Target) -> bool:
    """Return whether the target's hardware can hold all cases."""
    return not any(reason for case in cases for reason in fit_refusals(case, target))


def scale_hint(entry: Entry, target: Target) -> str | None:
    """Return the hint that names the scales that fit; None if none does."""
    names = [name for name in scale_names(entry.experiment) if _fit(cases_to_run(entry, name), target)]
    if not names:
        return None
    return f"--scale {', '.join(names[:-1])} or {names[-1]} fits" if len(names) > 1 else f"--scale {names[0]} fits"


def scale_notes(entry: Entry, cases: Sequence[Case], cluster: Cluster, scale: str | None) -> list[str]:
    """Return a note if a smaller scale than the published one was chosen for a cluster of several machines."""
    chosen = cases[0].scale
    if scale is not None or cluster.machine is not None or chosen == PAPER:
        return []
    return [f"{entry.short_name} at scale {chosen}, the largest that fits {cluster.name}; --scale selects another"]
