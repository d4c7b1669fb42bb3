"""Recovery of interrupted submissions, and of attempts that the ledger does not have.

A submission writes the record `TOKEN.sent` into its run folder, and `render -o` writes `SCRIPT.repro.json` beside each
script. Slurm has the token of the record as the comment of the job. So the attempts of a lost ledger and those of
scripts that a user submitted are found in the same way.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pydantic

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError, Unreachable, for_each
from orchestrator.files import ScriptRecord, read_record, tail_bytes, written_whole
from orchestrator.identity import (
    ProcessLocation,
    name_of_user,
    place_of,
    seconds_since_boot,
    start_ticks,
    this_machine_identity,
)
from orchestrator.launch.executors import find_process, is_alive
from orchestrator.launch.run_record import COMMENT, new_jobs, new_run_id, new_run_of, provenance, sent_of_run
from orchestrator.launch.sbatch import cluster_of, comment_of, keep_first_cancel_rest
from orchestrator.ledger.database import Ledger, utc
from orchestrator.ledger.rows import AttemptRow
from orchestrator.ledger.runs import BY_HAND, NewJob, NewRun, Provenance, run_ids
from orchestrator.ledger.submissions import (
    interrupted_submissions,
    record_queued_again,
    record_submission,
    time_unsettled_s,
)
from orchestrator.ledger.tables import ENDED, VERIFIED, Attempt, field_values
from orchestrator.masking import hidden_values, masked_tree, without_known
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from orchestrator.reading.collect import is_verified
from orchestrator.slurm.command import at, cluster_identity, find_by_comments, on_cluster
from orchestrator.slurm.notation import JobRecord, Phase, base_id

GRACE = timedelta(minutes=5)
"""Time for a submission by a process that is not visible, and for a job's first record if only the queue answers."""
WHY_QUEUED = "interrupted before the scheduler had it; `repro submit` or `repro wait` submits it"


@dataclass(frozen=True, slots=True)
class Settled:
    """Result of a recovery. `has_news` if a submission was recovered; `complaints` are about the others."""

    has_news: bool
    complaints: tuple[str, ...]


def settle(ledger: Ledger, schedulers: Collection[str]) -> Settled:
    """Find the results of submissions that were interrupted.

    Only the submitting user can ask reliably: a site may hide the jobs of one user from another.
    """
    interrupted = [
        attempts
        for attempts in interrupted_submissions(ledger)
        if attempts[0].scheduler in schedulers and not is_being_made(ledger, attempts)
    ]
    own = [attempts for attempts in interrupted if ledger.is_own(attempts[0].user)]
    complaints = [
        f"a submission of {user} was cut off; {user}'s next command finds out what became of it"
        for user in sorted({str(attempts[0].user) for attempts in interrupted if attempts not in own})
    ]
    for attempts in own:
        complaints += _settle_here(ledger, attempts) if attempts[0].scheduler == "local" else []
    complaints += _settle_slurm(ledger, [attempts for attempts in own if attempts[0].scheduler == "slurm"])
    return Settled(bool(own), tuple(complaints))


def is_here(machine: str | None, host: str) -> bool:
    """Return whether the processes of local jobs of this machine are visible here; a reboot has ended them."""
    return place_of(machine, host) is not ProcessLocation.ELSEWHERE


def is_being_made(ledger: Ledger, attempts: Sequence[AttemptRow]) -> bool:
    """Return whether the process that submits these attempts, or its sbatch, runs or may run out of sight."""
    first, alive = attempts[0], sender_is_alive(attempts[0])
    if alive is not None:
        return alive or (first.scheduler == "slurm" and find_process(comment_of(first.token)) is not None)
    return first.scheduler == "slurm" and _waited_s(ledger, attempts) < GRACE.total_seconds()


def _waited_s(ledger: Ledger, attempts: Sequence[AttemptRow]) -> float:
    """Return for how many seconds this machine has waited for an answer about a submission."""
    ids = [attempt.attempt_id for attempt in attempts]
    waited = time_unsettled_s(ledger, ids, this_machine_identity().boot_id, seconds_since_boot())
    return min(waited.values(), default=0.0)


def _settle_here(ledger: Ledger, attempts: Sequence[AttemptRow]) -> list[str]:
    first = attempts[0]
    if not is_here(first.machine, first.host):
        return [f"jobs were being started on {first.host}, which alone can see them"]
    try:
        starts = [read_record(Path(attempt.folder) / "start") for attempt in attempts]
    except ReproError as error:
        return [str(error)]
    started = [start.scheduler_id.partition("_")[0] for start in starts if start is not None]
    queue = started[0] if started else find_process(Path(first.file).name)
    if queue is None:
        record_queued_again(ledger, first.token, WHY_QUEUED)
    else:
        record_submission(ledger, first.token, queue)
    return []


def _settle_slurm(ledger: Ledger, submissions: Sequence[Sequence[AttemptRow]]) -> list[str]:
    complaints: list[str] = []
    try:
        here = cluster_identity() if submissions else ""
        for cluster in dict.fromkeys(attempts[0].slurm_cluster for attempts in submissions):
            same = [attempts for attempts in submissions if attempts[0].slurm_cluster == cluster]
            with at(cluster, here) as is_reached:
                if is_reached:
                    complaints += _settle_on_cluster(ledger, same)
                    continue
            complaints += [
                f"a submission to Slurm cluster {cluster} was cut off; SLURM_CONF here means {here}" for _ in same
            ]
    except Unreachable as error:
        complaints.append(str(error))
    return complaints


def _settle_on_cluster(ledger: Ledger, submissions: Sequence[Sequence[AttemptRow]]) -> list[str]:
    complaints: list[str] = []
    answer = find_by_comments([comment_of(attempts[0].token) for attempts in submissions])
    for attempts in submissions:
        token, comment = attempts[0].token, comment_of(attempts[0].token)
        ids = {base_id(job_id) for job_id, record in answer.records.items() if record.comment == comment}
        try:
            recorded = recorded_ids([attempt.folder for attempt in attempts])
        except ReproError as error:
            complaints.append(str(error))
            continue
        if ids:
            record_submission(ledger, token, keep_first_cancel_rest(ids))
        elif recorded:  # no further id is cancelled: what a folder contains is no proof for that
            record_submission(ledger, token, min(recorded, key=int))
        elif not answer.complaints or (answer.lists_queue and _waited_s(ledger, attempts) >= GRACE.total_seconds()):
            # A job that left the queue would have left a record. If it is late all the same, its claim keeps a second
            # copy in the same folder from starting.
            record_queued_again(ledger, token, WHY_QUEUED)
        else:
            complaints.append(f"whether submission {token} reached the scheduler is not known yet")
    return [*answer.complaints, *complaints]


def recorded_ids(folders: Sequence[str]) -> set[str]:
    """Return the scheduler's ids, without array indexes, that jobs wrote into their own folders when they started."""
    ids: set[str] = set()
    for folder in folders:
        claimed = tail_bytes(Path(folder), "claimed", 100).decode(errors="replace").strip()
        if re.fullmatch(r"[0-9]+(_[0-9]+)?", claimed):
            ids.add(base_id(claimed))
    return ids


def unrecorded_attempts(ledger: Ledger, jobs: Sequence[NewJob]) -> list[AttemptRow]:
    """Return the attempts of these jobs that wait, run or are verified in runs that the ledger does not contain.

    A verified one has its verdict, and the others are not ended. Unreachable where Slurm has to be asked and does not
    answer.
    """
    by_id = {job.id: job for job in jobs}
    recorded_runs = run_ids(ledger)
    sent = [
        attempt
        for runs in ledger.runs
        for run in _folders(runs)
        if run.name not in recorded_runs
        for attempt in sent_of_run(run)
        if attempt.job_id in by_id
    ]
    ended = {attempt.folder: end for attempt in sent if (end := _read(attempt, "end")) is not None}
    unended = [attempt for attempt in sent if attempt.folder not in ended]
    in_slurm = _ask_slurm({attempt.token for attempt in unended if attempt.scheduler == "slurm"})
    found: dict[Path, AttemptRow] = {}  # once, where a folder of runs is reached by two names
    for attempt in sent:
        end = ended.get(attempt.folder)
        if end is None:
            seen = _under_way(attempt, in_slurm.get((attempt.token, attempt.array_index)))
        elif _is_verified(by_id[attempt.job_id], attempt, end):
            seen = replace(attempt, scheduler_id=end.scheduler_id, phase=ENDED, verdict=VERIFIED)
        else:
            continue
        if seen is not None:
            found[Path(seen.folder).resolve()] = seen
    return list(found.values())


def _under_way(attempt: AttemptRow, job: JobRecord | None) -> AttemptRow | None:
    """Return the attempt with the scheduler's id, if it may wait or run. `job` is what Slurm has of it.

    A local job of another machine is under way, once it has started.
    """
    start = _read(attempt, "start")
    if job is not None:
        return replace(attempt, scheduler_id=job.job_id) if job.phase is not Phase.ENDED else None
    if attempt.scheduler == "slurm" or attempt.host != socket.gethostname():
        is_under_way = start is not None
    elif start is not None:
        is_under_way = is_alive(start.pid, attempt.folder)
    else:
        is_under_way = not (Path(attempt.folder) / "cancelled").exists() and find_process(attempt.file) is not None
    return replace(attempt, scheduler_id=start.scheduler_id if start else None) if is_under_way else None


def _folders(runs: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in runs.iterdir() if path.is_dir())
    except OSError:  # no run yet, or none that this user may see
        return


def _read(attempt: AttemptRow, name: str) -> ScriptRecord | None:
    try:
        return read_record(Path(attempt.folder) / name)
    except ReproError:
        return None


def _ask_slurm(tokens: Collection[str]) -> Mapping[tuple[str, int | None], JobRecord]:
    """Return what Slurm has of the submissions with these tokens, by token and element."""
    records = find_by_comments([comment_of(token) for token in tokens]).records if tokens else {}
    by_element: dict[tuple[str, int | None], JobRecord] = {}
    for job_id, record in records.items():
        element = job_id.partition("_")[2]
        by_element[record.comment.removeprefix(COMMENT), int(element) if element.isdecimal() else None] = record
    return by_element


def _is_verified(job: NewJob, attempt: AttemptRow, end: ScriptRecord) -> bool:
    """Return whether the log of the job is verified, judged as for the ledger."""
    try:
        return is_verified(job, Path(attempt.folder), end)
    except ReproError:
        return False


def sender_is_alive(sent: AttemptRow) -> bool | None:
    """Return whether the process that recorded this still runs; None if its processes cannot be seen from here.

    A process with the same number and another start time is another process.
    """
    if sent.pid is None:
        return False
    location = place_of(sent.machine, sent.host)
    if location is not ProcessLocation.HERE:
        return None if location is ProcessLocation.ELSEWHERE else False
    return sent.pid_start_ticks is not None and start_ticks(sent.pid) == sent.pid_start_ticks


# ---- jobs of rendered scripts ---------------------------------------------------------------------------------

FORMAT = 1
"""Version of the record of a rendered script."""
_RECORD = ".repro.json"
"""Ending of a record's file name, after the name of the script."""
_LONGEST_BYTES = 1 << 24

Rendered = tuple[NewRun, NewJob, Attempt]
"""Run, job and attempt of a rendered script, to be recorded. An attempt without a scheduler id was not submitted."""


@dataclass(frozen=True)
class _ScriptFile:
    """Content of a record. The fields of `run` that identify the submitter are those of the process that reads it."""

    format: Literal[1]
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
    for plan, job, (script, text) in zip(plans, new_jobs(plans, cluster), scripts.items(), strict=True):
        record = {
            "format": FORMAT,
            "script": script.name,
            "script_sha256": _sha256(text),
            "token": token_of(plan, script.with_suffix("")),
            "is_requeued": slurm is not None and slurm.requeue,
            "run": masked_tree(run),
            "job": masked_tree({**field_values(job), "spec": job.spec.to_json()}),
        }
        with written_whole(script.with_name(f"{script.stem}{_RECORD}")) as part:
            part.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


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
                if any(attempt.scheduler == "slurm" for attempt in attempts):
                    _find_in_slurm(attempts, waiting)
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


def _find_in_slurm(attempts: Sequence[Attempt], waiting: Sequence[Attempt]) -> None:
    """Complete the attempts of one cluster from Slurm. `waiting` have not started."""
    cluster = cluster_identity()
    for attempt in attempts:
        attempt.slurm_cluster = cluster if attempt.scheduler == "slurm" else None
    jobs = _ask_slurm([attempt.token for attempt in waiting])
    for attempt in waiting:
        job = jobs.get((attempt.token, None))
        if job is not None:
            attempt.scheduler_id, attempt.user, attempt.host = job.job_id, job.user, socket.gethostname()
            attempt.submitted_at = utc(job.submitted_at)
