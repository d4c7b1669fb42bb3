"""The plans that the words of `submit` and `render` mean: everything that can be wrong, before anything is touched."""

from __future__ import annotations

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.catalog.other_program import replacement_notes
from orchestrator.catalog.selection import select
from orchestrator.cli.choosing import read_choice
from orchestrator.cli.output import say
from orchestrator.cli.time_budget import budget_line
from orchestrator.clusters.resolve import Cluster, layer_notes
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.planning.budget import within_budget
from orchestrator.planning.plan import Plan, choose_scale, plan_cases, run_with
from orchestrator.planning.target import Target


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
    own = expand(entry, choose_scale(entry, profile, scale, workload))
    cases = select(run_with(own, workload), choice.wanted)
    plans = plan_cases(entry, cases, profile, folders)
    for note in (*layer_notes(folders, profile), *replacement_notes(entry, cases)):
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
        Problem(f"{workload}: {reason}", mend="`repro render` writes the scripts, to submit by hand")
        for workload, reason in reasons
        if reason is not None
    ]
    if found:
        raise ReproError(*found)
