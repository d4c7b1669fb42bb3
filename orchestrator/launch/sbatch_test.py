"""What sbatch and srun say of a profile before there is a job: to its free options, and to jobs of an experiment."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import scale_names
from orchestrator.catalog.library import Entry
from orchestrator.clusters.check_result import Finding, Result
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import KeyPath
from orchestrator.errors import Problem, ReproError, Unreachable, did_you_mean
from orchestrator.launch.executors import clean_env_prefix
from orchestrator.launch.render import render_job
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, check_case, plan_cases, refusal_problems
from orchestrator.planning.target import Target
from orchestrator.slurm.command import run_slurm
from orchestrator.slurm.rejections import explain_rejection, own_words
from orchestrator.slurm.site import parse_options
from orchestrator.text import counted

_ON_SRUN = ("cpu_bind", "gpu_bind")
_SIMILAR_OPTIONS = 0.75
"""Similarity from which an option is proposed for an unknown one. srun has more than 100 options, so that each word
is a little similar to one of them."""


def option_findings(cluster: Cluster) -> list[Finding]:
    """Whether srun and sbatch know the profile's words for them, and read their values.

    Each is followed by --help, on which a command that has read so far without a fault ends and does nothing.
    """
    return [_option(cluster, path, command, word) for path, command, word in _options(cluster)]


def submission_findings(entry: Entry, cases: Sequence[Case], cluster: Cluster, folders: Folders) -> list[Finding]:
    """Whether sbatch would take the smallest and the largest of these jobs that this hardware can hold.

    Nothing is submitted. What planning refuses is a finding, too: a fault where it leaves no case.
    """
    target = Target.of_cluster(cluster)
    checked = [check_case(case, target) for case in cases]
    fitting = [plan.case for plan in checked if not plan.refusals]
    result: Result = "not checked" if fitting else "wrong"
    other = f"another --scale, of {', '.join(scale_names(entry.experiment))}" if not fitting else None
    found = [Finding("plan", "login", result, one.what, hint=other) for one in refusal_problems(entry, checked)]
    plans: list[Plan] = []
    for workload in dict.fromkeys(case.workload for case in fitting):
        try:
            plans += plan_cases(entry, [case for case in fitting if case.workload == workload], cluster, folders)
        except ReproError as error:
            found += faults("plan", error)
    by_size = sorted(plans, key=lambda plan: (plan.resources.nodes, plan.case.layout.gpus))
    ends = {plan.identity: plan for plan in (*by_size[:1], *by_size[-1:])}
    return [*found, *(one for plan in ends.values() for one in _tested(plan, cluster, folders))]


def _options(cluster: Cluster) -> Iterator[tuple[KeyPath, str, str]]:
    """Where a word stands in the profile, the command that is given it, and the word."""
    slurm = cluster.profile.slurm
    assert slurm is not None
    for field in _ON_SRUN:
        value = getattr(slurm, field)
        if value is not None:
            yield ("slurm", field), "srun", f"--{field.replace('_', '-')}={value}"
    for command in ("srun", "sbatch"):
        for i, word in enumerate(getattr(slurm, command)):
            if "<" not in word:
                yield ("slurm", command, i), command, word


def _option(cluster: Cluster, path: KeyPath, command: str, word: str) -> Finding:
    check, where = f"slurm.{path[1]}", cluster.layered.where(path)
    if word == "--":  # behind it --help would be what is to be run
        return Finding(check, "login", "wrong", "--: no option", where, "take it out")
    answer = run_slurm([*clean_env_prefix(), command, word, "--help"])
    if answer.returncode == 0:
        return Finding(check, "login", "ok", word, where)
    name = word.partition("=")[0]
    if "unrecognized option" not in answer.stderr and "invalid option" not in answer.stderr:
        found = f"{word}: {command} says: {own_words(answer.stderr)}"
        return Finding(check, "login", "wrong", found, where, f"{command} --help lists what it takes")
    known = parse_options(run_slurm([command, "--help"]).stdout).names
    hint = did_you_mean(name, [f"--{one}" for one in sorted(known)], _SIMILAR_OPTIONS) or "take it out"
    return Finding(check, "login", "wrong", f"{command} has no {name}", where, hint)


def _tested(plan: Plan, cluster: Cluster, folders: Folders) -> list[Finding]:
    check = f"sbatch --test-only {plan.case.experiment} {plan.case.name}"
    nodes = plan.resources.nodes
    size = f"{counted(nodes, 'node')} for {plan.resources.time_limit}"
    with tempfile.TemporaryDirectory(prefix="repro-check-") as base:
        script = Path(base) / "job.sh"
        try:
            text = render_job(plan, cluster, Path(base) / "job", folders.templates)
        except ReproError as error:
            return faults(check, error)
        script.write_text(text, encoding="utf-8")
        answer = run_slurm([*clean_env_prefix(), "sbatch", "--test-only", str(script)])
    if answer.returncode == 0:
        return [Finding(check, "login", "ok", f"{size}: {own_words(answer.stderr)}")]
    return [refused(check, cluster, explain_rejection(answer.stderr), f"{size}: ")]


def refused(check: str, cluster: Cluster, problem: Problem, size: str = "") -> Finding:
    """Slurm's words and their mend; with the place of the profile's field that the mend names."""
    named = [word for i, word in enumerate((problem.hint or "").split("`")) if i % 2]
    slurm = cluster.profile.slurm
    field = next((name for name in named if getattr(slurm, name, None)), None)
    where = cluster.layered.where(("slurm", field)) if field else problem.location
    return Finding(check, "login", "wrong", f"{size}{problem.what}", where, problem.hint)


def faults(check: str, error: ReproError) -> list[Finding]:
    """A refusal as findings; what is out of reach stays an error."""
    if isinstance(error, Unreachable):
        raise error
    return [Finding(check, "login", "wrong", one.what, one.location, one.hint) for one in error.problems]
