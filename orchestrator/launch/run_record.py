"""Contents of a run in the ledger: who submitted what from which code, and the configuration of each job."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import orchestrator
from orchestrator.clusters.resolve import Cluster
from orchestrator.identity import own_start_ticks, this_machine_identity, user_name
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.runs import NewJob, NewRun
from orchestrator.masking import hidden_values, masked_tree, masked_words, secret_values
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, job_spec

_PACKAGES = ("submitit", "pydantic", "jinja2", "sqlalchemy", "torch", "megatron-core")


@dataclass(frozen=True, slots=True)
class Provenance:
    """User, host, code and package versions of a submission. The commit is None if the code is not a git checkout."""

    user: str
    host: str
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str]


def provenance(checkout: Path) -> Provenance:
    """Return who submits from which code; `checkout` is the folder of the experiments and profiles."""
    commit = git_output(checkout, "rev-parse", "HEAD")
    status = git_output(checkout, "status", "--porcelain", "--untracked-files=no") if commit else None
    return Provenance(
        user=user_name(),
        host=socket.gethostname(),
        git_commit=commit,
        git_dirty=None if status is None else bool(status),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    versions = {"repro": orchestrator.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_output(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if the folder is not a checkout, or git fails."""
    if not (folder / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def profile_secrets(cluster: Cluster) -> frozenset[str]:
    """Return the values of variables with a secret's name, from `environment:` and, by `env_from:`, from this shell."""
    profile = cluster.layered.value
    values: set[str] = set()
    for name, value in (profile.get("environment") or {}).items():
        for text in _texts(value):
            values |= secret_values({str(name): text})
    for text in _texts(profile):
        values |= hidden_values(text)
    shell_values = {name: os.environ[name] for name in cluster.profile.env_from if name in os.environ}
    return frozenset(values | secret_values(shell_values))


def _texts(value: object) -> Iterator[str]:
    """Yield every text in JSON-like data except conditions on jobs (`when`)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key != "when":
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def new_run_of(
    run_id: str, plans: Sequence[Plan], cluster: Cluster, folders: Folders, command: Sequence[str]
) -> NewRun:
    """Return the run as the ledger stores it, without secrets."""
    case, made, secret = plans[0].case, provenance(folders.shipped), profile_secrets(cluster)
    profile = cluster.layered.value | {"hardware": cluster.hardware.model_dump(exclude_none=True)}
    return NewRun(
        id=run_id,
        experiment=case.experiment,
        scale=case.scale,
        cluster=cluster.name,
        user=made.user,
        host=made.host,
        pid=os.getpid(),
        command=masked_words(command, known=secret),
        git_commit=made.git_commit,
        git_dirty=made.git_dirty,
        versions=dict(made.versions),
        profile=masked_tree(profile, known=secret),
        profile_file=str(cluster.file.absolute()),
        machine=str(this_machine_identity()),
        pid_start_ticks=own_start_ticks(),
    )


def new_jobs(plans: Sequence[Plan], cluster: Cluster) -> list[NewJob]:
    """Return the jobs of a run as the ledger stores them, without secrets."""
    by_case = {plan.case.name: plan for plan in plans}  # repeats of a case have one configuration
    secret = profile_secrets(cluster)
    specs = {name: masked_tree(job_spec(plan, cluster).to_json(), known=secret) for name, plan in by_case.items()}
    return [
        NewJob(
            id=plan.identity,
            case_name=plan.case.name,
            cluster=cluster.name,
            workload=plan.case.workload,
            code=plan.program.code,
            image=plan.program.image,
            image_digest=plan.program.image_digest,
            spec=JobSpec.from_json(specs[plan.case.name]),
            gpus=plan.case.layout.gpus,
            iterations=plan.case.training.iterations,
            scheduler="slurm" if cluster.is_slurm else "local",
            repeat=plan.repeat,
        )
        for plan in plans
    ]


def new_run_id() -> str:
    """Return a new run id. Ids sort by time, and two runs of one second differ."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
