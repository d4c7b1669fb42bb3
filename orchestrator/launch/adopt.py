"""Records of rendered scripts, and the jobs of scripts that a user submitted.

`render -o` writes `SCRIPT.repro.json` beside each script. The token in it is also the comment of the Slurm job.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import pydantic

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError, Unreachable, for_each
from orchestrator.files import read_record, tail_bytes, written_whole
from orchestrator.identity import name_of_user, this_machine_identity
from orchestrator.launch.refresh import jobs_by_token
from orchestrator.launch.run_record import new_jobs, new_run_id, new_run_of, provenance
from orchestrator.launch.sbatch import cluster_of
from orchestrator.ledger.database import utc
from orchestrator.ledger.runs import BY_HAND, NewJob, NewRun, Provenance
from orchestrator.ledger.tables import Attempt, field_values
from orchestrator.masking import hidden_values, masked_tree, without_known
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.slurm.command import cluster_identity, on_cluster

FORMAT = 2
"""Version of the record of a rendered script."""
_RECORD = ".repro.json"
"""Ending of a record's file name, after the name of the script."""
_LONGEST_BYTES = 1 << 24

Rendered = tuple[NewRun, NewJob, Attempt]
"""Run, job and attempt of a rendered script, to be recorded. An attempt without a scheduler id was not submitted."""


@dataclass(frozen=True)
class _ScriptFile:
    """Content of a record. The fields of `run` that identify the submitter are those of the process that reads it."""

    format: Literal[2]
    script: str
    script_sha256: str
    token: str
    is_requeued: bool
    run: NewRun
    job: NewJob


def token_of(plan: Plan, folder: Path) -> str:
    """Return the token of a script's job: the same for each rendering of the job into the same folder."""
    return hashlib.sha256(f"by hand {plan.identity} {folder}".encode()).hexdigest()[:16]


def write_records(
    plans: Sequence[Plan], cluster: Cluster, folders: Folders, command: Sequence[str], scripts: Mapping[Path, str]
) -> None:
    """Write the record of each rendered script into its folder: the job's configuration without secrets.

    `scripts` are the texts by file, in the order of the plans.
    """
    run, slurm = field_values(new_run_of("", plans, cluster, folders, command)), cluster.profile.slurm
    for name in ("id", *(field.name for field in fields(Provenance))):
        del run[name]
    run = masked_tree(run)
    for plan, job, (script, text) in zip(plans, new_jobs(plans, cluster), scripts.items(), strict=True):
        spec = {**field_values(job.spec), "resources": job.spec.resources and asdict(job.spec.resources)}
        record = {
            "format": FORMAT,
            "script": script.name,
            "script_sha256": _sha256(text),
            "token": token_of(plan, script.with_suffix("")),
            "is_requeued": slurm is not None and slurm.requeue,
            "run": run,
            "job": masked_tree({**field_values(job), "spec": spec}),
        }
        with written_whole(script.with_name(f"{script.stem}{_RECORD}")) as part:
            part.write_text(json.dumps(record, default=str) + "\n", encoding="utf-8")


def read_rendered(folder: Path, folders: Folders) -> list[Rendered]:
    """Return the rendered jobs of a folder; ReproError with all problems if a record cannot be used or none exists.

    Jobs of one experiment, scale, cluster and command have one run.
    """
    if not folder.is_dir():
        raise ReproError(Problem("no such folder", f"{folder}:", "name the folder of `repro render -o`"))
    by_hand = {**field_values(provenance(folders.shipped)), "id": ""}
    runs: dict[str, NewRun] = {}

    def read(file: Path) -> Rendered:
        record = _read_script_file(file, by_hand)
        run = runs.setdefault(repr(record.run), replace(record.run, id=new_run_id()))
        return run, record.job, _attempt(record, file.with_name(record.script))

    jobs = for_each(sorted(folder.resolve().glob(f"*{_RECORD}")), read)
    if not jobs:
        hint = "`repro render -o FOLDER` of this version writes them next to the scripts"
        raise ReproError(Problem("no records of rendered scripts", f"{folder}:", hint))
    return jobs


def _read_script_file(file: Path, by_hand: Mapping[str, object]) -> _ScriptFile:
    try:
        stored = json.loads(tail_bytes(file.parent, file.name, _LONGEST_BYTES))
        if isinstance(stored, dict) and stored.get("format") != FORMAT:
            what = f"a record of format {stored.get('format')!r}, and this repro reads format {FORMAT}"
            raise ReproError(Problem(what, f"{file}:", "adopt the job with the version that rendered it"))
        whole = {**stored, "run": {**by_hand, **stored.get("run", {})}}
        record = pydantic.TypeAdapter(_ScriptFile).validate_python(whole)
    except (ValueError, TypeError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise ReproError(Problem(f"not a record of `repro render` ({why})", f"{file}:", "render it again")) from None
    if record.script != f"{file.name.removesuffix(_RECORD)}.sh":
        raise ReproError(Problem(f"a record of another script, {record.script}", f"{file}:", "render it again"))
    return record


def _attempt(record: _ScriptFile, file: Path) -> Attempt:
    try:
        script = file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        script = ""
    except OSError as error:
        raise ReproError(Problem(f"cannot be read ({error.strerror})", f"{file}:")) from None
    digest = _sha256(script) if script else record.script_sha256
    origin = BY_HAND if script else f"{BY_HAND}, script missing"
    return Attempt(
        scheduler=record.job.scheduler,
        is_requeued=record.is_requeued,
        token=record.token,
        folder=str(file.with_suffix("")),
        file=str(file),
        script=without_known(script, hidden_values(script)),
        script_sha256=digest,
        origin=origin if digest == record.script_sha256 else f"{BY_HAND}, script edited",
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def find_started(rendered: Iterable[Rendered]) -> list[str]:
    """Complete the attempts that have started or wait in Slurm's queue. Return what the scheduler could not answer."""
    by_cluster: dict[str | None, list[Attempt]] = {}
    for _, _, attempt in rendered:
        by_cluster.setdefault(cluster_of(attempt.script), []).append(attempt)
    complaints: list[str] = []
    for name, attempts in by_cluster.items():
        waiting = [attempt for attempt in attempts if not _has_started(attempt) and attempt.scheduler == "slurm"]
        with on_cluster(name):
            try:
                own = [attempt for attempt in attempts if attempt.scheduler == "slurm"]
                cluster = cluster_identity() if own else None
                for attempt in own:
                    attempt.slurm_cluster = cluster
                jobs = jobs_by_token([attempt.token for attempt in waiting])
                for attempt in waiting:
                    if job := jobs.get((attempt.token, None)):
                        attempt.scheduler_id, attempt.user, attempt.host = job.job_id, job.user, socket.gethostname()
                        attempt.submitted_at = utc(job.submitted_at)
            except Unreachable as error:
                complaints.append(str(error))
    return complaints


def _has_started(attempt: Attempt) -> bool:
    """Return whether the job has a start record, and complete the attempt from it."""
    record = Path(attempt.folder) / "start"
    start = read_record(record)
    if start is None:
        return False
    attempt.scheduler_id = start.scheduler_id if start.scheduler_id != "none" else str(start.pid)
    attempt.host, attempt.user, attempt.started_at = start.host, name_of_user(record.stat().st_uid), start.at
    is_here = attempt.scheduler == "local" and start.host == socket.gethostname()
    attempt.machine = str(this_machine_identity()) if is_here else None
    return True
