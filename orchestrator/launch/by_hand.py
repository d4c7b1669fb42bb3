"""Jobs that a user submits by hand: the record of each rendered script, and the job that the script started."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pydantic

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.files import read_record, tail_bytes, written_whole
from orchestrator.identity import name_of_user, this_machine_identity
from orchestrator.job_spec import JobSpec
from orchestrator.launch.run_record import new_jobs, new_run_id, new_run_of, provenance
from orchestrator.launch.sbatch import cluster_of, comment_of
from orchestrator.ledger.runs import BY_HAND, NewJob, NewRun
from orchestrator.ledger.submissions import Submitter
from orchestrator.ledger.tables import Attempt, field_values
from orchestrator.masking import hidden_values, masked_tree, without_known
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.slurm.command import cluster_identity, on_cluster
from orchestrator.slurm.query import find_by_comments

FORMAT = 1
"""Version of the record."""
_RECORD = ".repro.json"
"""Ending of a record's file name, after the name of the script."""
_LONGEST_BYTES = 1 << 24


class _StoredFields(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


def _stored(kind: type, left_out: Container[str] = (), **others: Any) -> type[pydantic.BaseModel]:
    """Return the model of a dataclass in a record, without the fields that are left out."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.name not in left_out]
    types: dict[str, Any] = {name: (others.get(name, hints[name]), ...) for name in names}
    return pydantic.create_model(kind.__name__, __base__=_StoredFields, **types)


_RUN = _stored(NewRun, {"id", *(field.name for field in fields(Submitter))})
_JOB = _stored(NewJob, spec=dict[str, Any])


class _Record(_StoredFields):
    format: Literal[1]
    script: str
    script_sha256: str
    token: str
    is_requeued: bool
    run: Annotated[dict[str, Any], pydantic.AfterValidator(lambda stored: _RUN.model_validate(stored).model_dump())]
    job: Annotated[dict[str, Any], pydantic.AfterValidator(lambda stored: _JOB.model_validate(stored).model_dump())]


@dataclass(frozen=True, slots=True)
class RenderedJob:
    """A rendered script with its record. `folder` is the folder of the job's log."""

    file: Path
    token: str
    script_sha256: str
    is_requeued: bool
    job: NewJob
    run: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """Return the folder of the job's log and records."""
        return self.file.with_suffix("")


def token_of(plan: Plan, folder: Path) -> str:
    """Return the token of a script's job: the same for each rendering of the job into the same folder."""
    return hashlib.sha256(f"by hand {plan.identity} {folder}".encode()).hexdigest()[:16]


def write_records(
    plans: Sequence[Plan], cluster: Cluster, folders: Folders, command: Sequence[str], scripts: Mapping[Path, str]
) -> None:
    """Write the record of each rendered script into its folder: the job's configuration without secrets.

    `scripts` are the texts by file, in the order of the plans.
    """
    run, slurm = new_run_of("", plans, cluster, folders, command), cluster.profile.slurm
    stored_run = masked_tree({name: getattr(run, name) for name in _RUN.model_fields})
    for plan, job, (script, text) in zip(plans, new_jobs(plans, cluster), scripts.items(), strict=True):
        record = {
            "format": FORMAT,
            "script": script.name,
            "script_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "token": token_of(plan, script.with_suffix("")),
            "is_requeued": slurm is not None and slurm.requeue,
            "run": stored_run,
            "job": masked_tree({**field_values(job), "spec": job.spec.to_json()}),
        }
        with written_whole(script.with_name(f"{script.stem}{_RECORD}")) as part:
            part.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


def read_rendered(folder: Path) -> list[RenderedJob]:
    """Return the rendered jobs of a folder; ReproError with all problems if a record cannot be used or none exists."""
    if not folder.is_dir():
        raise ReproError(Problem("no such folder", f"{folder}:", "name the folder of `repro render -o`"))
    jobs: list[RenderedJob] = []
    problems: list[Problem] = []
    for file in sorted(folder.resolve().glob(f"*{_RECORD}")):
        try:
            jobs.append(_read(file))
        except ReproError as error:
            problems += error.problems
    if not jobs and not problems:
        hint = "`repro render -o FOLDER` of this version writes them next to the scripts"
        problems.append(Problem("no records of rendered scripts", f"{folder}:", hint))
    if problems:
        raise ReproError(*problems)
    return jobs


def _read(file: Path) -> RenderedJob:
    try:
        stored = json.loads(tail_bytes(file.parent, file.name, _LONGEST_BYTES))
        if isinstance(stored, dict) and stored.get("format") != FORMAT:
            what = f"a record of format {stored.get('format')!r}, and this repro reads format {FORMAT}"
            raise ReproError(Problem(what, f"{file}:", "adopt the job with the version that rendered it"))
        record = _Record.model_validate(stored)
        job = NewJob(**{**record.job, "spec": JobSpec.from_json(record.job["spec"])})
    except (ValueError, TypeError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise ReproError(Problem(f"not a record of `repro render` ({why})", f"{file}:", "render it again")) from None
    if record.script != f"{file.name.removesuffix(_RECORD)}.sh":
        raise ReproError(Problem(f"a record of another script, {record.script}", f"{file}:", "render it again"))
    script = file.with_name(record.script)
    return RenderedJob(script, record.token, record.script_sha256, record.is_requeued, job, record.run)


@dataclass(frozen=True, slots=True)
class StartedJobs:
    """Jobs of rendered scripts that have been submitted, and what the scheduler could not answer."""

    attempts: tuple[tuple[RenderedJob, Attempt], ...]
    complaints: tuple[str, ...] = ()


def started_jobs(rendered: Sequence[RenderedJob]) -> StartedJobs:
    """Return the jobs of these scripts that have started or wait in Slurm's queue. Other scripts were not submitted."""
    by_cluster: dict[str | None, list[RenderedJob]] = {}
    for job in rendered:
        by_cluster.setdefault(cluster_of(_text(job.file) or ""), []).append(job)
    parts: list[StartedJobs] = []
    for name, jobs in by_cluster.items():
        with on_cluster(name):
            parts.append(_started_on_cluster(jobs))
    attempts = [attempt for part in parts for attempt in part.attempts]
    return StartedJobs(tuple(attempts), tuple(complaint for part in parts for complaint in part.complaints))


def _started_on_cluster(rendered: Sequence[RenderedJob]) -> StartedJobs:
    started: list[tuple[RenderedJob, Attempt]] = []
    not_started: dict[str, RenderedJob] = {}
    cluster, complaints = None, list[str]()
    if any(job.job.scheduler == "slurm" for job in rendered):
        try:
            cluster = cluster_identity()
        except Unreachable as error:
            complaints.append(str(error))
    for job in rendered:
        start = read_record(job.folder / "start")
        if start is not None:
            own_id = start.scheduler_id if start.scheduler_id != "none" else str(start.pid)
            host, user = start.host, name_of_user((job.folder / "start").stat().st_uid)
            started.append((job, _attempt(job, own_id, host, user, cluster, started_at=start.at)))
        elif job.job.scheduler == "slurm":
            not_started[comment_of(job.token)] = job
    if cluster is not None and not_started:
        try:
            answer = find_by_comments(not_started)
        except Unreachable as error:
            return StartedJobs(tuple(started), (*complaints, str(error)))
        for record in answer.records.values():
            job, user = not_started[record.comment], record.user
            submitted = record.submitted_at
            at = None if submitted is None else submitted.astimezone(timezone.utc).replace(tzinfo=None)
            attempt = _attempt(job, record.job_id, socket.gethostname(), user, cluster, submitted_at=at)
            started.append((job, attempt))
    return StartedJobs(tuple(started), tuple(complaints))


def _attempt(
    rendered: RenderedJob,
    scheduler_id: str,
    host: str,
    user: str,
    cluster: str | None,
    *,
    started_at: datetime | None = None,
    submitted_at: datetime | None = None,
) -> Attempt:
    script = _text(rendered.file)
    digest = None if script is None else hashlib.sha256(script.encode("utf-8", "surrogateescape")).hexdigest()
    origin = BY_HAND
    if digest != rendered.script_sha256:
        origin += ", script missing" if script is None else ", script edited"
    is_local = rendered.job.scheduler == "local"
    return Attempt(
        scheduler_id=scheduler_id,
        host=host,
        user=user,
        machine=str(this_machine_identity()) if is_local and host == socket.gethostname() else None,
        slurm_cluster=None if is_local else cluster,
        is_requeued=rendered.is_requeued,
        token=rendered.token,
        folder=str(rendered.folder),
        file=str(rendered.file),
        script=without_known(script or "", hidden_values(script or "")),
        script_sha256=digest or rendered.script_sha256,
        started_at=started_at,
        submitted_at=submitted_at,
        origin=origin,
    )


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReproError(Problem(f"cannot be read ({error.strerror})", f"{file}:")) from None


def runs_of(jobs: Sequence[RenderedJob], folders: Folders) -> list[tuple[NewRun, list[RenderedJob]]]:
    """Return a new run for each experiment, scale, cluster and command, with its jobs."""
    groups: dict[str, list[RenderedJob]] = {}
    for job in jobs:
        groups.setdefault(json.dumps(job.run, sort_keys=True), []).append(job)
    who = provenance(folders.shipped)
    run = NewRun(**field_values(who), id="", experiment="", scale="", cluster="", command=[], profile={})
    return [(replace(run, **group[0].run, id=new_run_id()), group) for group in groups.values()]
