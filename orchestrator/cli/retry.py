"""`repro retry`: failed jobs once more, by what they failed of."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from orchestrator.cli.options import ClusterName, Database, OnlyScale, OnlyWorkload, Targets, Where
from orchestrator.cli.output import data, next_command, say
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.paths import short_name
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.clusters.resolve import Cluster
    from orchestrator.ledger.database import Ledger
    from orchestrator.ledger.rows import JobRow
    from orchestrator.paths import Folders
    from orchestrator.planning.plan import Plan
    from orchestrator.reading.failure import Failure

Classes = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--class", help="node-fail,preempted,timeout,...; else those that may come out well."),
]
Time = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--time", help="Another time limit: +50%, +0:30:00 or 2:00:00."),
]


def retry(
    targets: Targets,
    classes: Classes = None,
    limit: Time = None,
    where: Where = None,
    scale: OnlyScale = None,
    workload: OnlyWorkload = None,
    cluster: ClusterName = None,
    database: Database = None,
) -> None:
    """Run failed jobs again, planned anew from today's profile: on other nodes, or with more time."""
    from orchestrator.cli.selection import chosen_rows, submitted_ledger
    from orchestrator.cli.session import bring_up_to_date
    from orchestrator.ledger.tables import FAILED
    from orchestrator.paths import find_folders

    wanted, new_limit = _classes(classes), _new_limit(limit)
    folders = find_folders()
    ledger = submitted_ledger(folders, database)
    for complaint in bring_up_to_date(ledger):
        say(f"note: {complaint}")
    rows = [row for row in chosen_rows(ledger, folders, targets, where, scale, workload) if row.verdict == FAILED]
    chosen = [row for row in rows if _is_chosen(row, wanted)]
    if not chosen:
        _say_nothing_to_retry(rows, targets)
        return
    groups: dict[tuple[str, ...], list[JobRow]] = {}
    for row in chosen:
        key = (row.experiment, row.scale, row.profile_file or row.cluster, row.workload, str(row.iterations))
        groups.setdefault(key, []).append(row)
    planned = [_plans(folders, some, cluster, new_limit) for some in groups.values()]
    for profile, plans in planned:
        _submit(ledger, folders, profile, plans, wanted)
    next_command(f"repro status {short_name(chosen[0].experiment)} --watch", "until they have ended")


def _submit(ledger: Ledger, folders: Folders, profile: Cluster, plans: list[Plan], wanted: frozenset[Failure]) -> None:
    from orchestrator.launch.preflight import require_ready
    from orchestrator.launch.run_options import RunOptions
    from orchestrator.launch.submit import submit as submit_plans

    require_ready(plans, profile, folders)
    options = RunOptions(rerun_classes=wanted, only_failed=True)
    done = submit_plans(plans, profile, ledger, folders, sys.argv, options, say)
    names = {plan.identity: plan.label for plan in plans}
    for job_id, number in done.recorded.to_submit.items():
        data(f"{job_id}  {names[job_id]}  attempt {number}")
    left = len(done.recorded.left)
    said = f"; {left} left alone, after too many attempts or to Slurm: --class says which to run all the same"
    say(f"{counted(done.sent.jobs, 'job')} submitted again{said if left else ''}")


def _plans(
    folders: Folders, rows: list[JobRow], cluster: str | None, new_limit: Callable[[str], str]
) -> tuple[Cluster, list[Plan]]:
    """The same jobs, planned from the files as they are now; ReproError where one would be another job."""
    from orchestrator.catalog.library import find_experiment
    from orchestrator.cli.selection import cases_of
    from orchestrator.clusters.resolve import find_cluster, recorded_cluster
    from orchestrator.planning.batch_plan import trained_for
    from orchestrator.planning.plan import plan_cases, repeated

    first = rows[0]
    entry = find_experiment(folders, first.experiment)
    profile = (
        recorded_cluster(folders, first.cluster, first.profile_file)
        if cluster is None
        else find_cluster(folders, cluster)
    )
    names = {row.case_name for row in rows}
    own = [case for case in cases_of(entry, first.scale, first.workload) if case.name in names]
    cases = [trained_for(case, first.iterations) for case in own]  # a --time-budget may have left fewer
    plans = repeated(plan_cases(entry, cases, profile, folders), max(row.repeat for row in rows)) if cases else []
    by_id = {plan.identity: plan for plan in plans}
    other = [row for row in rows if row.job_id not in by_id]
    if other:
        changed = "its experiment, profile, code or image has changed"
        what = f"{other[0].label} ({other[0].job_id}) would be another job now: {changed}"
        hint = f"repro submit {short_name(first.experiment)} --cluster {first.cluster}"
        raise ReproError(Problem(what, hint=hint))
    chosen = [by_id[row.job_id] for row in rows]
    return profile, [
        dataclasses.replace(
            plan, resources=dataclasses.replace(plan.resources, time_limit=new_limit(plan.resources.time_limit))
        )
        for plan in chosen
    ]


def _is_chosen(row: JobRow, wanted: frozenset[Failure]) -> bool:
    from orchestrator.reading.failure import POLICIES, failure_named

    failure = failure_named(row.failure)
    return failure in wanted if wanted else POLICIES[failure].again


def _say_nothing_to_retry(rows: list[JobRow], targets: list[str]) -> None:
    from orchestrator.reading.failure import POLICIES, failure_named

    say("nothing to run again")
    left = sorted({failure_named(row.failure) for row in rows})
    for failure in left:
        say(f"failed ({failure}): {POLICIES[failure].why}")
    if left:
        classes = ",".join(str(failure) for failure in left)
        next_command(f"repro retry {' '.join(targets)} --class {classes}", "to run them again all the same")
    else:
        next_command("repro status", "how they stand")


def _classes(text: str | None) -> frozenset[Failure]:
    from orchestrator.reading.failure import Failure

    known = {one.value: one for one in Failure}
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    problems = [
        Problem(f"--class {word}: no such class", hint=did_you_mean(word, known) or f"there are {', '.join(known)}")
        for word in words
        if word not in known
    ]
    if problems:
        raise ReproError(*problems)
    return frozenset(known[word] for word in words)


def _new_limit(text: str | None) -> Callable[[str], str]:
    """From the old time limit to the new one; ReproError where the text is neither a limit nor an addition."""
    from orchestrator.slurm.notation import format_time_limit, time_limit_s

    if text is None:
        return lambda old: old
    if share := re.fullmatch(r"\+([0-9]{1,4})%", text):
        return lambda old: format_time_limit(time_limit_s(old) * (100 + int(share[1])) // 100)
    if clock := re.fullmatch(r"(\+?)((?:[0-9]{1,3}-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9])", text):
        return lambda old: format_time_limit(time_limit_s(clock[2]) + (time_limit_s(old) if clock[1] else 0))
    raise ReproError(Problem(f"--time {text}: no time limit", hint="for example --time +50%, +0:30:00 or 2:00:00"))
