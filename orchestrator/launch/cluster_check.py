"""Creation of a cluster profile, and its check against the login node, sbatch and, in a job, a compute node."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.catalog.library import Entry, find_experiment
from orchestrator.clusters import cluster_names
from orchestrator.clusters.check import Finding, check_login, path_findings
from orchestrator.clusters.generate import profile_text
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.denied_nodes import with_denied_nodes
from orchestrator.launch.preflight import check_this_machine, option_findings, submission_findings
from orchestrator.launch.probe import job_findings
from orchestrator.paths import Folders
from orchestrator.planning.run_settings import NO_SETTINGS, RunSettings
from orchestrator.planning.target import cases_at
from orchestrator.slurm import site as slurm_site
from orchestrator.slurm.command import on_cluster

_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """Findings of a profile check."""

    cluster: Cluster
    findings: list[Finding]

    @property
    def problems(self) -> list[Problem]:
        """Return what is wrong."""
        return [
            Problem(f"{finding.check}: {finding.found}", finding.location, finding.hint)
            for finding in self.findings
            if finding.is_fault
        ]


def check_cluster(
    folders: Folders,
    name: str,
    notify: Callable[[str], None],
    *,
    experiment: str | None = None,
    scale: str | None = None,
    job: bool = False,
    settings: RunSettings = NO_SETTINGS,
) -> ClusterCheck:
    """Compare a profile with the live cluster. With `job`, run a short job that checks a node.

    The job excludes the nodes of the deny list. Settings of cases apply to those of `experiment`.
    """
    cluster = with_denied_nodes(find_cluster(folders, name, settings.of_profile))
    if not cluster.is_slurm and (job or experiment):
        raise ReproError(Problem(f"{cluster.name} has no Slurm", hint="leave --job and --experiment out"))
    if scale is not None and experiment is None:
        raise ReproError(Problem("--scale needs --experiment", hint="add --experiment"))
    if experiment is None and len(settings.of_profile) < len(settings.all):
        what = "the time limit and the iterations belong to an experiment"
        raise ReproError(Problem(what, hint="add --experiment, or leave --time and --set training.iterations out"))
    cases: tuple[Entry, list[Case]] | None = None
    if experiment is not None:
        entry = find_experiment(folders, experiment)
        cases = entry, settings.applied(cases_at(entry, cluster, scale))
    if not cluster.is_slurm:
        return ClusterCheck(cluster, [*check_this_machine(cluster), *path_findings(cluster, "login")])
    with on_cluster(cluster.profile.slurm_cluster):
        return ClusterCheck(cluster, _slurm_findings(cluster, cases, folders, notify, job=job))


def _slurm_findings(
    cluster: Cluster,
    cases: tuple[Entry, list[Case]] | None,
    folders: Folders,
    notify: Callable[[str], None],
    *,
    job: bool,
) -> list[Finding]:
    site = slurm_site.read_site(getpass.getuser())
    for complaint in site.complaints:
        notify(f"note: {complaint}")
    findings = [*check_login(cluster, site), *option_findings(cluster), *path_findings(cluster, "login")]
    if cases is not None:
        findings += submission_findings(*cases, cluster, folders)
    if job and any(finding.is_fault for finding in findings):
        notify("no job was started: correct the faults first")
    elif job:
        from_node = job_findings(cluster, folders, notify)
        unchecked = ("compute", "not checked")
        findings = [*(finding for finding in findings if (finding.place, finding.result) != unchecked), *from_node]
    return findings


def new_cluster(folders: Folders, name: str, partition: str | None, notify: Callable[[str], None]) -> Path:
    """Write a commented profile from what scontrol, sacctmgr and srun report on this login node; return its path."""
    if not _NAME.fullmatch(name):
        raise ReproError(Problem(f"{name!r}: not a valid cluster name", hint="use letters, digits, - and _"))
    existing = cluster_names(folders).get(name)
    path = folders.home / "clusters" / f"{name}.yaml"
    if existing is not None and existing.parent == folders.shipped / "clusters" != path.parent:
        hint = f"use another name; private values of {name} belong to {shown(path.with_name(f'{name}.local.yaml'))}"
        raise ReproError(Problem(f"{name}: a shipped profile has this name", hint=hint))
    if existing is not None or path.exists():
        location = f"{shown(existing or path)}:"
        raise ReproError(Problem(f"a cluster {name} exists already", location, "use another name, or edit that file"))
    site = slurm_site.read_site(getpass.getuser())
    for complaint in site.complaints:
        notify(f"note: {complaint}")
    text = profile_text(site, name, partition, str(folders.shipped / "clusters" / "schema.json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
