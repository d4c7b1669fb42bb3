"""Ask Slurm about jobs: squeue for what lives and has just ended, sacct for what squeue has forgotten.

A job that neither knows is absent from the answer. Nothing follows from that: accounting lags, forgets, or is off.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, last_words, run_slurm
from orchestrator.slurm.records import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    JobRecord,
    by_id,
    parse_accounting,
    parse_queue,
)
from orchestrator.slurm.states import Phase

__all__ = [
    "JobRecord",
    "QueryAnswer",
    "ask_accounting",
    "find_by_comment",
    "keeps_comments",
    "query_jobs",
    "require_controller",
]

_SECONDS = {"SLURM_TIME_FORMAT": "%s"}
_SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--Format=" + f":{SEPARATOR},".join(QUEUE_FIELDS) + ":")
_SACCT = (
    "sacct",
    "--noheader",
    "--allocations",
    "--parsable2",
    f"--delimiter={SEPARATOR}",
    "--format=" + ",".join(ACCOUNTING_FIELDS),
)

# Linux takes no argument longer than 128 KiB; this is some 12,000 ids in one call.
_LONGEST_ID_LIST = 120_000


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """What was found, by job id, and one line for each source that could not be asked."""

    records: Mapping[str, JobRecord]
    complaints: tuple[str, ...] = ()


def query_jobs(job_ids: Collection[str]) -> QueryAnswer:
    """What Slurm knows about these jobs: one squeue, and one sacct if squeue does not know them all.

    An id is `123`, `123_4` (one task) or `123` of an array, which stands for those tasks that squeue still knows,
    or else for all. Raises Unreachable when slurmctld does not answer; accounting that does not is a complaint.
    """
    asked = sorted({job_id.strip() for job_id in job_ids if job_id.strip()})
    if wrong := [job_id for job_id in asked if not _is_job_id(job_id)]:
        raise ReproError(*(Problem(f"not a Slurm job id: {text}", mend="ids look like 123 or 123_4") for text in wrong))
    found = _wanted(_ask_queue(asked), asked)
    known = set(found) | {_base(job_id) for job_id in found}
    rest = [job_id for job_id in asked if job_id not in known]
    try:
        return QueryAnswer({**_wanted(ask_accounting(rest), rest), **found})
    except AccountingUnreachable as away:
        return QueryAnswer(found, (str(away),))


def require_controller() -> None:
    """Raise Unreachable unless a slurmctld answers: to be asked before anything is written for it."""
    answer = run_slurm(["scontrol", "ping"])
    if " is UP" not in answer.stdout:
        words = answer.stdout.strip() or last_words(answer.stderr) or "no answer"
        raise Unreachable(Problem(f"scontrol ping: {words}", mend="try again when slurmctld answers"))


def find_by_comment(comment: str, *, days_back: int = 30) -> QueryAnswer:
    """This user's jobs whose comment is exactly this one: from squeue, or else from sacct of the last days.

    An empty answer proves that there is no such job only if it has no complaints: it has one where accounting is
    away or does not keep comments. Raises Unreachable when slurmctld does not answer.
    """
    user = str(os.getuid())
    live = _checked(run_slurm([*_SQUEUE, f"--user={user}"], variables=_SECONDS))
    found = {job.job_id: job for job in parse_queue(live.stdout) if job.comment == comment}
    if found:
        return QueryAnswer(found)
    try:
        # Accounting has the comment only from the job's end on; until then, and for a while after, squeue has it.
        past = _checked(run_slurm([*_SACCT, f"--uid={user}", f"--starttime=now-{days_back}days"], variables=_SECONDS))
    except AccountingUnreachable as away:
        return QueryAnswer({}, (str(away),))
    found = {job.job_id: job for job in parse_accounting(past.stdout) if job.comment == comment}
    if found or keeps_comments(run_slurm(["scontrol", "show", "config"]).stdout):
        return QueryAnswer(found)
    return QueryAnswer({}, ("sacct: accounting keeps no comments here, so a job that has left the queue is not found",))


def ask_accounting(job_ids: Collection[str]) -> dict[str, JobRecord]:
    """What sacct alone knows about these jobs: the past, some seconds late. Raises AccountingUnreachable."""
    found: dict[str, JobRecord] = {}
    for ids in _id_lists(job_ids):
        answer = _checked(run_slurm([*_SACCT, f"--jobs={ids}"], variables=_SECONDS))
        found.update(by_id(parse_accounting(answer.stdout)))
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


def _ask_queue(job_ids: Collection[str]) -> dict[str, JobRecord]:
    found: dict[str, JobRecord] = {}
    for ids in _id_lists(job_ids):
        answer = run_slurm([*_SQUEUE, f"--jobs={ids}"], variables=_SECONDS)
        # With one id, an unknown job is an error; with several, it is left out.
        if answer.returncode == 0 or "invalid job id specified" not in answer.stderr.lower():
            found.update(by_id(parse_queue(_checked(answer).stdout)))
    return found


def _checked(answer: CommandResult) -> CommandResult:
    """The answer itself; raises Unreachable when the command failed, since then its output says nothing."""
    if answer.returncode == 0:
        return answer
    words = last_words(answer.stderr) or f"failed with exit code {answer.returncode}"
    kind = AccountingUnreachable if answer.argv[0] == "sacct" else Unreachable
    raise kind(Problem(f"{answer.argv[0]}: {words}"))


def _id_lists(job_ids: Collection[str]) -> Iterator[str]:
    """Comma-separated ids, as few lists as an argument's length allows; an array's tasks are asked for by its base."""
    line = ""
    for job_id in sorted({_base(job_id) for job_id in job_ids}):
        if line and len(line) + len(job_id) >= _LONGEST_ID_LIST:
            yield line
            line = ""
        line = f"{line},{job_id}" if line else job_id
    if line:
        yield line


def _wanted(found: Mapping[str, JobRecord], asked: Collection[str]) -> dict[str, JobRecord]:
    """Of the tasks of an array only those asked for, by themselves or by the array's id.

    Tasks that were cancelled before they started have no row of their own: the array's, under its bare id, is theirs.
    """
    wanted = set(asked)
    result = {job_id: job for job_id, job in found.items() if job_id in wanted or _base(job_id) in wanted}
    for job_id in wanted - set(result):
        whole = found.get(_base(job_id))
        if whole is not None and whole.phase is Phase.ENDED:
            result[job_id] = replace(whole, job_id=job_id)
    return result


def _base(job_id: str) -> str:
    return job_id.partition("_")[0].partition("+")[0]


def _is_job_id(text: str) -> bool:
    base, _, task = text.replace("+", "_", 1).partition("_")
    return base.isascii() and base.isdecimal() and (not task or (task.isascii() and task.isdecimal()))
