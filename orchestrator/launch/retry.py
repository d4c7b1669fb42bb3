"""Retry of failed jobs: planned again from the current experiment, profile and code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster, recorded_cluster
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.ledger.rows import JobRow
from orchestrator.paths import Folders, short_name
from orchestrator.planning.batch_plan import with_iterations
from orchestrator.planning.plan import Plan, plan_cases, repeated, replace_workload
from orchestrator.reading.failure import Failure
from orchestrator.slurm.notation import format_time_limit, time_limit_s


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed jobs of one experiment, planned again from the current profile."""

    cluster: Cluster
    plans: tuple[Plan, ...]


def plan_again(folders: Folders, rows: Sequence[JobRow], cluster: str | None, new_limit: Callable[[str], str]) -> Retry:
    """Return the same jobs, planned again; ReproError if one would become another job."""
    first = rows[0]
    entry = find_experiment(folders, first.experiment)
    if cluster is None:
        profile = recorded_cluster(folders, first.cluster, first.profile_file)
    else:
        profile = find_cluster(folders, cluster)
    names = {row.case_name for row in rows}
    cases = expand(entry, first.scale)
    if first.workload not in {case.workload for case in cases}:
        cases = replace_workload(cases, first.workload)
    # A time budget may have changed the number of iterations.
    chosen = [with_iterations(case, first.iterations) for case in cases if case.name in names]
    plans = repeated(plan_cases(entry, chosen, profile, folders), max(row.repeat for row in rows)) if chosen else []
    by_id = {plan.identity: plan for plan in plans}
    for row in rows:
        if row.job_id not in by_id:
            why = "its experiment, profile, code or image has changed"
            hint = f"repro submit {short_name(first.experiment)} --cluster {first.cluster}"
            raise ReproError(Problem(f"{row.label} ({row.job_id}) would be another job now: {why}", hint=hint))
    return Retry(profile, tuple(_with_limit(by_id[row.job_id], new_limit) for row in rows))


def _with_limit(plan: Plan, new_limit: Callable[[str], str]) -> Plan:
    resources = dataclasses.replace(plan.resources, time_limit=new_limit(plan.resources.time_limit))
    return dataclasses.replace(plan, resources=resources)


def failure_classes(text: str | None) -> frozenset[Failure]:
    """Return the failure classes of a list such as `node-fail,timeout`; ReproError if one is unknown."""
    classes = {failure.value: failure for failure in Failure}
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    problems = [
        Problem(f"--class {name}: no such class", hint=did_you_mean(name, classes) or f"classes: {', '.join(classes)}")
        for name in names
        if name not in classes
    ]
    if problems:
        raise ReproError(*problems)
    return frozenset(classes[name] for name in names)


def changed_limit(text: str | None) -> Callable[[str], str]:
    """Return the function from an old time limit to a new one; ReproError if the text is not a limit."""
    if text is None:
        return lambda old: old
    if share := re.fullmatch(r"\+([0-9]{1,4})%", text):
        return lambda old: format_time_limit(time_limit_s(old) * (100 + int(share[1])) // 100)
    if clock := re.fullmatch(r"(\+?)((?:[0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9])", text):
        return lambda old: format_time_limit(time_limit_s(clock[2]) + (time_limit_s(old) if clock[1] else 0))
    raise ReproError(Problem(f"--time {text}: not a time limit", hint="for example +50%, +0:30:00 or 2:00:00"))
