"""Ask Slurm about jobs: squeue for what lives and has just ended, sacct for what squeue has forgotten.

A job that neither knows is absent from the answer. Nothing follows from that: accounting lags, forgets, or is off.
A cluster may also have used an id again, for anybody's job: `is_ours` says of a record whether it is the one meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, last_words, run_slurm
from orchestrator.slurm.job_ids import base_id, id_lists, require_job_ids
from orchestrator.slurm.records import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    JobRecord,
    by_id,
    parse_accounting,
    parse_queue,
)
from orchestrator.slurm.shown_jobs import parse_shown
from orchestrator.slurm.states import Phase

__all__ = [
    "JobRecord",
    "QueryAnswer",
    "ask_accounting",
    "find_by_comment",
    "find_by_comments",
    "keeps_comments",
    "query_jobs",
    "require_controller",
]

# Seconds since the epoch, since local times are ambiguous, and an array's tasks in full, not the first 64 characters.
_PLAIN = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
_SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--Format=" + f":{SEPARATOR},".join(QUEUE_FIELDS) + ":")
_SACCT = (
    "sacct",
    "--noheader",
    "--allocations",
    "--duplicates",  # every run of a job that was put back into the queue, and every job that had the id
    "--parsable2",
    f"--delimiter={SEPARATOR}",
    "--format=" + ",".join(ACCOUNTING_FIELDS),
)
_SCONTROL = ("scontrol", "--all", "--oneliner", "show", "job")


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """What was found, by job id, and one line for each source that could not be asked.

    `unknown` are the ids that every source which answered was asked about and none knew as ours; where `complaints`
    are, one of the sources did not answer, and might have known them. A task of an array that is cancelled by itself
    before it starts leaves no trace (Slurm 22.05.8) and is among them.
    """

    records: Mapping[str, JobRecord]
    complaints: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()


def _anyones(_: JobRecord) -> bool:
    return True


def query_jobs(job_ids: Collection[str], is_ours: Callable[[JobRecord], bool] = _anyones) -> QueryAnswer:
    """What Slurm knows about these jobs: of each the newest record that is ours.

    One squeue for all; one sacct for those of which squeue has no record that is ours; and where accounting is off
    or away, one scontrol for the same. An id is `123`, `123_4` (one task) or `123` of an array, which stands for
    those tasks that squeue still knows, or else for all. Raises ReproError for what is no job id, and Unreachable
    when slurmctld does not answer squeue; any other source that does not is a complaint.
    """
    asked = require_job_ids(job_ids)
    found = _wanted(_ask_queue(asked, is_ours), asked)
    rest = _unanswered(asked, found)
    complaints: list[str] = []
    try:
        found |= _wanted(ask_accounting(rest, is_ours), rest)
    except AccountingUnreachable as away:
        complaints.append(str(away))
        try:
            found |= _wanted(_ask_controller(is_ours), rest)
        except Unreachable as gone:
            return QueryAnswer(found, (*complaints, str(gone)))
    return QueryAnswer(found, tuple(complaints), frozenset(_unanswered(asked, found)))


def require_controller() -> None:
    """Raise Unreachable unless a slurmctld answers: to be asked before anything is written for it."""
    answer = run_slurm(["scontrol", "ping"])
    if " is UP" not in answer.stdout:
        words = answer.stdout.strip() or last_words(answer.stderr) or "no answer"
        raise Unreachable(Problem(f"scontrol ping: {words}", mend="try again when slurmctld answers"))


def find_by_comment(comment: str, *, user: str | None = None, days_back: int = 30) -> QueryAnswer:
    """The jobs whose comment is exactly this one: `find_by_comments` for one."""
    return find_by_comments([comment], user=user, days_back=days_back)


def find_by_comments(comments: Collection[str], *, user: str | None = None, days_back: int = 30) -> QueryAnswer:
    """A user's jobs whose comment is exactly one of these: from squeue, and of those it lacks from sacct.

    The user is this one unless named; sacct looks back `days_back` days. A comment that is not in the answer proves
    that there is no such job only if there are no complaints: there is one where accounting is away or does not keep
    comments. Raises Unreachable when slurmctld does not answer, or does not know the user.
    """
    missing = set(comments)
    if not missing:
        return QueryAnswer({})
    whose = f"--user={os.getuid() if user is None else user}"
    # Without --all a job in a hidden partition is left out, which --jobs would not do.
    live = _checked(run_slurm([*_SQUEUE, "--all", whose], variables=_PLAIN))
    if "invalid user" in live.stderr.lower():  # squeue says so, prints nothing, and ends with 0
        raise Unreachable(Problem(f"squeue: {last_words(live.stderr)}"))
    found = [job for job in parse_queue(live.stdout) if job.comment in missing]
    missing -= {job.comment for job in found}
    if not missing:
        return _by_comment(found)
    try:
        # Accounting has the comment only from the job's end on; until then, and for a while after, squeue has it.
        past = _checked(run_slurm([*_SACCT, whose, f"--starttime=now-{days_back}days"], variables=_PLAIN))
    except AccountingUnreachable as away:
        return _by_comment(found, str(away))
    found += [job for job in parse_accounting(past.stdout) if job.comment in missing]
    missing -= {job.comment for job in found}
    if not missing or keeps_comments(run_slurm(["scontrol", "show", "config"]).stdout):
        return _by_comment(found)
    return _by_comment(found, "sacct: accounting keeps no comments here, so a job that has left the queue is not found")


def _by_comment(found: Collection[JobRecord], *complaints: str) -> QueryAnswer:
    """The answer, in which an id stands once: two of the jobs with one id, used again, are a complaint."""
    records = by_id(found)
    lost = {job.comment: job.job_id for job in found if records[job.job_id].comment != job.comment}
    return QueryAnswer(
        records, (*complaints, *(f"sacct: job {job_id} is a newer one, of the same id" for job_id in lost.values()))
    )


def ask_accounting(job_ids: Collection[str], is_ours: Callable[[JobRecord], bool] = _anyones) -> dict[str, JobRecord]:
    """What sacct alone knows about these jobs: the past, some seconds late. Raises AccountingUnreachable.

    A task cancelled before it started may still be `PENDING` here for as long as its array is in the queue.
    """
    found: dict[str, JobRecord] = {}
    for ids in id_lists(job_ids):
        answer = _checked(run_slurm([*_SACCT, f"--jobs={ids}"], variables=_PLAIN))
        found |= by_id(filter(is_ours, parse_accounting(answer.stdout)))
    return found


def keeps_comments(config: str) -> bool:
    """Whether accounting stores job comments, from `scontrol show config`."""
    for line in config.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "AccountingStoreFlags" and "job_comment" in value.lower():
            return True
        if name.strip() == "AccountingStoreJobComment" and value.strip().lower() == "yes":  # before Slurm 21.08
            return True
    return False


def _ask_queue(job_ids: Collection[str], is_ours: Callable[[JobRecord], bool]) -> dict[str, JobRecord]:
    found: dict[str, JobRecord] = {}
    for ids in id_lists(job_ids):
        answer = run_slurm([*_SQUEUE, f"--jobs={ids}"], variables=_PLAIN)
        # With one id, an unknown job is an error; with several, it is left out.
        if answer.returncode == 0 or "invalid job id specified" not in answer.stderr.lower():
            found |= by_id(filter(is_ours, parse_queue(_checked(answer).stdout)))
    return found


def _ask_controller(is_ours: Callable[[JobRecord], bool]) -> dict[str, JobRecord]:
    """All jobs that slurmctld still has: scontrol takes one id or none."""
    answer = _checked(run_slurm(_SCONTROL, variables=_PLAIN))
    return by_id(filter(is_ours, parse_shown(answer.stdout)))


def _checked(answer: CommandResult) -> CommandResult:
    """The answer itself; raises Unreachable when the command failed, since then its output says nothing."""
    if answer.returncode == 0:
        return answer
    words = last_words(answer.stderr) or f"failed with exit code {answer.returncode}"
    kind = AccountingUnreachable if answer.argv[0] == "sacct" else Unreachable
    raise kind(Problem(f"{answer.argv[0]}: {words}"))


def _unanswered(asked: Collection[str], found: Collection[str]) -> list[str]:
    """The ids without a record, either their own or one of their tasks'."""
    known = set(found) | {base_id(job_id) for job_id in found}
    return [job_id for job_id in asked if job_id not in known]


def _wanted(found: Mapping[str, JobRecord], asked: Collection[str]) -> dict[str, JobRecord]:
    """Of the tasks of an array only those asked for, by themselves or by the array's id.

    Tasks that were cancelled before they started have no row of their own: the array's, under its bare id, is theirs.
    """
    wanted = set(asked)
    result = {job_id: job for job_id, job in found.items() if job_id in wanted or base_id(job_id) in wanted}
    for job_id in wanted - set(result):
        whole = found.get(base_id(job_id))
        if whole is not None and whole.phase is Phase.ENDED:
            result[job_id] = replace(whole, job_id=job_id)
    return result
