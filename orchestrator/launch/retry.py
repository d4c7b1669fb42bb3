"""Failed jobs planned again, with the settings of their run and those of the retry."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster, recorded_cluster
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.launch.run_options import RunPlan
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import run_record
from orchestrator.paths import Folders, short_name
from orchestrator.planning.batch_plan import with_iterations
from orchestrator.planning.plan import Plan, plan_cases, repeated
from orchestrator.planning.run_settings import read_settings
from orchestrator.planning.scales import replace_workload
from orchestrator.reading.failure import Failure
from orchestrator.slurm.notation import format_time_limit, time_limit_s
from orchestrator.workloads.argument_changes import with_changes


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed jobs of one experiment, planned again from the current profile."""

    cluster: Cluster
    plans: tuple[Plan, ...]
    settings: tuple[str, ...]


def recorded_settings(ledger: Ledger, run_id: str) -> tuple[str, ...]:
    """Return the settings of the command line that a run was submitted with."""
    return RunPlan.from_json(run_record(ledger, run_id).run_options).settings


def plan_again(
    folders: Folders,
    rows: Sequence[JobRow],
    cluster: str | None,
    new_limit: Callable[[str], str],
    settings: tuple[str, ...],
) -> Retry:
    """Return the same jobs, planned again with these settings; ReproError if one would become another job."""
    first, run_settings = rows[0], read_settings(settings)
    entry = find_experiment(folders, first.experiment)
    if cluster is None:
        profile = recorded_cluster(folders, first.cluster, first.profile_file, run_settings.of_profile)
    else:
        profile = find_cluster(folders, cluster, run_settings.of_profile)
    profile = dataclasses.replace(profile, settings=run_settings.all)
    names = {row.case_name for row in rows}
    cases = cases_to_run(entry, first.scale)
    if first.workload not in {case.workload for case in cases}:
        cases = replace_workload(cases, first.workload)
    # A time budget may have changed the number of iterations, and --arg the arguments.
    chosen = [with_iterations(case, first.iterations) for case in cases if case.name in names]
    chosen = run_settings.applied(with_changes(chosen, first.spec.argument_changes))
    plans = repeated(plan_cases(entry, chosen, profile, folders), max(row.repeat for row in rows)) if chosen else []
    by_id = {plan.identity: plan for plan in plans}
    for row in rows:
        if row.job_id not in by_id:
            why = "its experiment, profile, code or image has changed"
            hint = f"repro submit {short_name(first.experiment)} --cluster {first.cluster}"
            raise ReproError(Problem(f"{row.label} ({row.job_id}) would be another job now: {why}", hint=hint))
    return Retry(profile, tuple(_with_limit(by_id[row.job_id], new_limit) for row in rows), settings)


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
