"""Queries of jobs (squeue, sacct) and their cancellation (scancel)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm.command import (
    AccountingUnreachable,
    CommandResult,
    NoAccounting,
    keeps_comments,
    last_words,
    run_slurm,
    settings_if_allowed,
)
from orchestrator.slurm.notation import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    JobRecord,
    base_id,
    by_id,
    expand_array_id,
    id_lists,
    parse_accounting,
    parse_queue,
    require_job_ids,
)

# Seconds since the epoch, since local times are ambiguous, and an array's tasks in full, not the first 64 characters.
_PLAIN = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
_SQUEUE = ("squeue", "--array", "--states=all", "--Format=" + f":{SEPARATOR},".join(QUEUE_FIELDS) + ":")
_SACCT = (
    "sacct",
    "--allocations",
    "--duplicates",  # every run of a job that was put back into the queue, and every job that had the id
    "--parsable2",
    f"--delimiter={SEPARATOR}",
    "--format=" + ",".join(ACCOUNTING_FIELDS),
)
_DAYS_BACK = 30
"""Days for which sacct looks back for a comment."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Records by job id, and a complaint about each source that did not answer.

    `unknown` are the ids that no source lists as ours, if every source gave a complete list; a cluster without
    accounting has only squeue. An array task that was cancelled alone before it started leaves no trace (Slurm
    22.05.8), so its id is unknown. `unclear` are records that may be ours or not. `lists_queue`: squeue gave a complete
    list, so only jobs that have left the queue can be missing.
    """

    records: Mapping[str, JobRecord]
    complaints: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    unclear: Mapping[str, JobRecord] = field(default_factory=dict)
    lists_queue: bool = True


IsOurs = Callable[[JobRecord], bool | None]


def query_jobs(job_ids: Collection[str], is_ours: IsOurs = lambda _: True) -> QueryAnswer:
    """Return Slurm's records of these jobs: for each job the newest record for which `is_ours` is true.

    If `is_ours` returns None, the record may be that of another job with this id.

    squeue is called for all jobs, then sacct for those that squeue does not list. If accounting does not answer, that
    is a complaint, and no id is unknown, unless the cluster has no accounting. An id is `123`, `123_4` (one task), or
    `123` of an array: the tasks that squeue lists, else all tasks. Raise ReproError for a text that is not a job id,
    and Unreachable if slurmctld does not answer squeue.
    """
    ids = require_job_ids(job_ids)
    queue = _ask(_SQUEUE, parse_queue, ids, is_ours)
    records, accounting = _wanted(queue.records, ids), QueryAnswer({})
    unlisted = _unanswered(ids, records)
    complaints: tuple[str, ...] = ()
    is_complete = True
    try:
        accounting = _ask(_SACCT, parse_accounting, unlisted, is_ours)
    except Unreachable as error:
        complaints, is_complete = (str(error),), isinstance(error, NoAccounting)
    records |= _wanted(accounting.records, unlisted)
    missing = _unanswered(ids, records)
    unclear = _wanted({**accounting.unclear, **queue.unclear}, missing)
    doubts = (*queue.complaints, *accounting.complaints)
    if missing and doubts:
        return QueryAnswer(records, (*complaints, *dict.fromkeys(doubts)), unclear=unclear)
    unknown = frozenset(_unanswered(missing, unclear)) if is_complete else frozenset()
    return QueryAnswer(records, complaints, unknown, unclear)


def require_controller() -> None:
    """Raise Unreachable unless slurmctld answers. Call this before anything is recorded for a submission."""
    answer = run_slurm(["scontrol", "ping"])
    if " is UP" not in answer.stdout:
        message = answer.stdout.strip() or last_words(answer.stderr) or "no answer"
        raise Unreachable(Problem(f"scontrol ping: {message}", hint="try again when slurmctld answers"))


def find_by_comments(comments: Collection[str]) -> QueryAnswer:
    """Return the current user's jobs with one of these comments, from squeue, else from sacct.

    A missing comment proves that there is no such job only if there are no complaints. There is a complaint if
    accounting does not answer or does not store comments. Raise Unreachable if slurmctld does not answer or does not
    accept the user.
    """
    missing = set(comments)
    if not missing:
        return QueryAnswer({})
    user = f"--user={os.getuid()}"
    # Without --all, squeue omits jobs in hidden partitions, unless --jobs names them.
    queue = _checked(run_slurm([*_SQUEUE, "--all", user], variables=_PLAIN))
    if "invalid user" in queue.stderr.lower():  # on stderr, with exit code 0 and an empty list
        raise Unreachable(Problem(f"squeue: {last_words(queue.stderr)}"))
    jobs = [job for job in parse_queue(queue.stdout) if job.comment in missing]
    missing -= {job.comment for job in jobs}
    if not missing:
        return _by_comment(jobs)
    doubts = list(filter(None, [_doubt(queue)]))
    lists_queue = not doubts
    try:
        # Accounting has the comment only after the end of the job. squeue has it until some time after the end.
        accounting = _checked(run_slurm([*_SACCT, user, f"--starttime=now-{_DAYS_BACK}days"], variables=_PLAIN))
    except Unreachable as error:
        doubts.append(str(error))
    else:
        jobs += [job for job in parse_accounting(accounting.stdout) if job.comment in missing]
        if not missing - {job.comment for job in jobs}:
            return _by_comment(jobs)
        doubts += filter(None, [_doubt(accounting)])
        if not keeps_comments(settings_if_allowed()):
            doubts.append("sacct: accounting stores no comments here, so a job that has left the queue cannot be found")
    return replace(_by_comment(jobs, *doubts), lists_queue=lists_queue)


def _by_comment(jobs: Collection[JobRecord], *complaints: str) -> QueryAnswer:
    """Return the answer, with each id once. Two jobs with the same id, which Slurm used again, are a complaint."""
    records = by_id(jobs)
    replaced = {job.comment: job.job_id for job in jobs if records[job.job_id].comment != job.comment}
    return QueryAnswer(
        records, (*complaints, *(f"sacct: job {job_id} is a newer one, of the same id" for job_id in replaced.values()))
    )


def _ask(
    command: Sequence[str],
    parse: Callable[[str], Iterator[JobRecord]],
    job_ids: Collection[str],
    is_ours: IsOurs,
) -> QueryAnswer:
    """Return what squeue or sacct lists of these jobs, and why its list may be incomplete."""
    listed: dict[bool | None, list[JobRecord]] = {True: [], None: [], False: []}
    doubts: list[str | None] = []
    for ids in id_lists(job_ids):
        answer = run_slurm([*command, f"--jobs={ids}"], variables=_PLAIN)
        # With one id, an unknown job is an error of squeue; with several, it is left out.
        if answer.returncode == 0 or "invalid job id specified" not in answer.stderr.lower():
            for record in parse(_checked(answer).stdout):
                listed[is_ours(record)].append(record)
            doubts.append(_doubt(answer))
    return QueryAnswer(by_id(listed[True]), tuple(filter(None, doubts)), unclear=by_id(listed[None]))


# The column names of squeue or sacct. squeue prints the cluster first if SLURM_CLUSTERS is set.
_HEADER = re.compile(rf"\A\s*(?:CLUSTER: .*\n)?JOBID.*{SEPARATOR}", re.IGNORECASE)


def _doubt(answer: CommandResult) -> str | None:
    """Return why the list of a command that ended with 0 may be incomplete; None if there is no reason."""
    if message := last_words(answer.stderr):
        return f"{answer.argv[0]}: {message}"
    return None if _HEADER.search(answer.stdout) else f"{answer.argv[0]}: its answer is no list of jobs"


def _checked(answer: CommandResult) -> CommandResult:
    """Return the answer of a command. Raise Unreachable if the command failed: its output is no answer then."""
    if answer.returncode == 0:
        return answer
    kind = AccountingUnreachable if answer.argv[0] == "sacct" else Unreachable
    raise kind(Problem(f"{answer.argv[0]}: {answer.failure}"))


def _unanswered(ids: Collection[str], records: Collection[str]) -> list[str]:
    """Return the ids that have no record, neither of their own nor of one of their tasks."""
    listed = set(records) | {base_id(job_id) for job_id in records}
    return [job_id for job_id in ids if job_id not in listed]


def _wanted(records: Mapping[str, JobRecord], ids: Collection[str]) -> dict[str, JobRecord]:
    """Return the records of the requested ids: jobs, single tasks, and all tasks of requested arrays.

    Tasks that were cancelled before they started share the row of the array under its bare id. A row under the bare id
    with any other state belongs to one task that ran.
    """
    requested = set(ids)
    result = {job_id: job for job_id, job in records.items() if job_id in requested or base_id(job_id) in requested}
    for job_id in requested - set(result):
        whole = records.get(base_id(job_id))
        if whole is not None and whole.state == "CANCELLED" and not whole.nodes:
            result[job_id] = replace(whole, job_id=job_id)
    return result


# All arguments together may have 2 MiB on most systems, and at least 128 KiB (execve(2)). An id takes about 10
# characters and a pointer.
_MOST_IDS = 5_000
# scancel sends a request for each id, ten at a time (MAX_THREADS of scancel.c), and repeats it for up to 95 s while the
# job changes its state.
_SECONDS, _SECONDS_EACH = 120.0, 0.05

_REFUSED = re.compile(r"^(?:scancel: )?error: Kill job error on job id (?P<id>\S+): (?P<why>.+)$", re.MULTILINE)
# Messages for a job that has ended: ESLURM_ALREADY_DONE and ESLURM_INVALID_JOB_ID of slurm_errno.c.
_OVER = ("already completing or completed", "invalid job id")


def cancel_jobs(job_ids: Collection[str]) -> dict[str, str]:
    """Cancel these jobs in the given order. Return the scheduler's message for each id that it refused.

    Jobs that have ended or that Slurm does not list are not refusals. A refusal does not affect the other jobs. A
    cancelled job may be listed for some seconds until its processes have ended. Raise ReproError for a text that is not
    a job id before any job is cancelled, and Unreachable if slurmctld does not answer: some jobs may be cancelled then.
    """
    ids = require_job_ids(job_ids)
    refused: dict[str, str] = {}
    for start in range(0, len(ids), _MOST_IDS):
        refused |= _cancel(ids[start : start + _MOST_IDS])
    return refused


def _cancel(job_ids: Sequence[str]) -> dict[str, str]:
    answer = run_slurm(["scancel", *job_ids], timeout_s=_SECONDS + _SECONDS_EACH * len(job_ids))
    # The exit code of scancel is that of only one id, cut to eight bits.
    refusals = list(_REFUSED.finditer(answer.stderr))
    if answer.returncode != 0 and not refusals:
        raise Unreachable(Problem(f"scancel: {answer.failure}"))
    return {
        job_id: line["why"].strip()
        for line in refusals
        if not any(phrase in line["why"].lower() for phrase in _OVER)
        for job_id in _asked_as(line["id"], job_ids)
    }


def _asked_as(named: str, job_ids: Sequence[str]) -> Iterator[str]:
    """Yield the requested ids that the id in a message covers: the id itself, its tasks, or its array."""
    tasks = {named, *expand_array_id(named)}
    whole = base_id(named)
    return (job_id for job_id in job_ids if job_id in tasks or job_id == whole)
