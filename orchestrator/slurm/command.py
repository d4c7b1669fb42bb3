"""Slurm commands: the cluster that they ask, its identity and limits, queries of jobs, and their cancellation."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm.notation import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    JobRecord,
    base_id,
    by_id,
    comment_pattern,
    expand_array_id,
    id_lists,
    parse_accounting,
    parse_queue,
    require_job_ids,
)

_LOGIN_NODE = "run this on a login node of the cluster"

# Variables that change what a command prints, which jobs it selects, or (scancel) whether it asks first. Variables that
# select the cluster (SLURM_CONF, SLURM_CLUSTERS) and those of sbatch (SBATCH_*) stay.
_FORMATS = re.compile("(SQUEUE|SACCT|SINFO|SCONTROL|SPRIO|SSTAT|SCANCEL)_|SLURM_(TIME_FORMAT|BITSTR_LEN|DEBUG_FLAGS)$")

# Errors of a connection. Slurm prints their texts, for instance if the controller dies during a request.
_CONNECTION_ERRORS = (
    *("ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "ENOTCONN", "ESHUTDOWN", "EPIPE", "ETIMEDOUT"),
    *("EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENETRESET"),
)


class AccountingUnreachable(Unreachable):
    """Accounting (slurmdbd) is off or does not answer; the queue itself may be fine."""


class NoAccounting(AccountingUnreachable):
    """The cluster has no accounting."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a command that ran to its end."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def failure(self) -> str:
        """Message of a command that failed."""
        return last_words(self.stderr) or f"failed with exit code {self.returncode}"


_ASKED: ContextVar[str | None] = ContextVar("asked Slurm cluster", default=None)
_OF_CLUSTERS = frozenset({"squeue", "sacct", "scontrol", "scancel", "sinfo"})
"""Commands with the option --clusters."""


@contextmanager
def on_cluster(name: str | None) -> Iterator[None]:
    """Send the Slurm commands inside the block to this cluster of a site with several; None changes nothing."""
    before = _ASKED.set(name or _ASKED.get())
    try:
        yield
    finally:
        _ASKED.reset(before)


def _asked_cluster() -> str | None:
    return _ASKED.get() or os.environ.get("SLURM_CLUSTERS") or None


def run_slurm(
    argv: Sequence[str], *, timeout_s: float = 60.0, variables: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a Slurm command without a shell, in the C locale, with Slurm's own output formats.

    `variables` are added to its environment. `on_cluster`, or else SLURM_CLUSTERS, selects the cluster. A command that
    ran and failed is a result, not an error. Raise AccountingUnreachable if accounting is off or does not answer. Raise
    Unreachable if the command is not on this machine, does not end within `timeout_s` seconds, or cannot reach
    slurmctld.
    """
    name, cluster = argv[0], _asked_cluster()
    if cluster is not None and name in _OF_CLUSTERS:  # sacct does not read SLURM_CLUSTERS
        argv = [name, f"--clusters={cluster}", *argv[1:]]
    kept = {word: value for word, value in os.environ.items() if not _FORMATS.match(word)}
    try:
        done = subprocess.run(
            list(argv),
            env={**kept, "LC_ALL": "C", **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        raise Unreachable(Problem(f"{name}: there is no such command on this machine", hint=_LOGIN_NODE)) from None
    except subprocess.TimeoutExpired as late:
        raise _timed_out(name, timeout_s, _decoded(late.stderr or b"")) from None
    result = CommandResult(tuple(argv), done.returncode, _decoded(done.stdout), _decoded(done.stderr))
    if result.returncode != 0 and (unreachable := unreachable_from(name, result.stderr)):
        raise unreachable
    return result


# Error, hint, and the texts that clients print on stderr, in lower case.
_UNREACHABLE: tuple[tuple[type[Unreachable], str, tuple[str, ...]], ...] = (
    (
        NoAccounting,
        "only the queue can be asked on this cluster",
        ("accounting storage is disabled", "not running a supported accounting_storage plugin"),
    ),
    (
        AccountingUnreachable,
        "try again when slurmdbd answers",
        (
            *("slurm_persist_conn_open", "sending persistinit msg", "problem talking to the database"),
            *("unable to contact slurm database", "database is busy or waiting for lock", "slurmdbd: connection"),
        ),
    ),
    (
        Unreachable,
        f"{_LOGIN_NODE}, or set SLURM_CONF to its slurm.conf",
        (
            *("unable to process configuration file", "could not establish a configuration source"),
            "s_p_parse_file: cannot stat file",
        ),
    ),
    (
        Unreachable,
        "try again when slurmctld answers; `scontrol ping` asks it",
        (
            *("unable to contact slurm controller", "socket timed out", "zero bytes were transmitted"),
            *("unable to establish controller machine", "munge encode failed", "protocol authentication error"),
            "invalid authentication credential",
            *(os.strerror(getattr(errno, name)).lower() for name in _CONNECTION_ERRORS),
        ),
    ),
)


def unreachable_from(name: str, stderr: str) -> Unreachable | None:
    """Return the error for a stderr that shows an unreachable scheduler; None for other failures."""
    text, message = stderr.lower(), f"{name}: {last_words(stderr)}"
    found = ((kind, hint) for kind, hint, phrases in _UNREACHABLE if any(phrase in text for phrase in phrases))
    return next((kind(Problem(message, hint=hint)) for kind, hint in found), None)


def checked(
    answer: CommandResult, kind: type[Unreachable] = Unreachable, name: str | None = None, hint: str | None = None
) -> CommandResult:
    """Return the answer of a command. Raise an error of this kind if the command failed: its output is no answer then.

    `name` is the command in the message, by default its first word.
    """
    if answer.returncode == 0:
        return answer
    raise kind(Problem(f"{name or answer.argv[0]}: {answer.failure}", hint=hint))


def last_words(stderr: str) -> str:
    """Return the last line of stderr that is not blank, without `command: error:` in front; "" if there is none."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines:
        return ""
    head, mark, tail = lines[-1].partition(": error: ")
    return tail if mark and " " not in head else lines[-1]


def _timed_out(name: str, timeout_s: float, stderr: str) -> Unreachable:
    unreachable, tail = unreachable_from(name, stderr), last_words(stderr)
    message = f"{name}: no answer within {timeout_s:g} s" + (f" ({tail})" if tail else "")
    if unreachable is not None:
        return type(unreachable)(Problem(message, hint=unreachable.problems[0].hint))
    kind = AccountingUnreachable if name in ("sacct", "sacctmgr") else Unreachable
    return kind(Problem(message, hint="try again when the scheduler answers"))


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


_SETTING = re.compile(r"(\S+)\s*=[ \t]*(.*)")
DEFAULT_MAX_ARRAY_SIZE = 1001
"""MaxArraySize where the cluster does not set it (slurm.conf(5))."""


def read_settings(*, if_allowed: bool = False) -> dict[str, str]:
    """Return the cluster's settings by name; with `if_allowed`, none if the site does not show them to this user.

    Raise Unreachable if slurmctld does not answer or, without `if_allowed`, does not show them.
    """
    answer = run_slurm(("scontrol", "show", "config"))
    if not if_allowed:
        checked(answer, name="scontrol show config", hint=_LOGIN_NODE)
    return parse_settings(answer.stdout)


def parse_settings(stdout: str) -> dict[str, str]:
    """Parse the output of `scontrol show config`. If a name comes twice, the first value counts."""
    settings: dict[str, str] = {}
    for line in stdout.splitlines():
        if match := _SETTING.fullmatch(line):
            settings.setdefault(match[1], match[2].strip())
    return settings


def most_in_array() -> int:
    """Return how many elements an array may have: Slurm's default if the site does not show its limit.

    MaxArraySize is one more than the largest index, so an array that counts from 0 has that many elements. Raise
    Unreachable if slurmctld does not answer.
    """
    size = read_settings(if_allowed=True).get("MaxArraySize", "")
    return max(int(size) if size.isascii() and size.isdecimal() else DEFAULT_MAX_ARRAY_SIZE, 1)


def keeps_comments(settings: Mapping[str, str]) -> bool:
    """Return whether accounting stores job comments. Slurm before 21.08 has another setting for it."""
    stored = settings.get("AccountingStoreFlags", "").lower()
    return "job_comment" in stored or settings.get("AccountingStoreJobComment", "").lower() == "yes"


def cluster_identity() -> str:
    """Return the cluster as `name@host:port` of its first controller. Raise Unreachable if slurmctld does not answer.

    Two clusters may have one name, and two may have one login node.
    """
    return _identity(os.environ.get("SLURM_CONF"), _asked_cluster())


@contextmanager
def at(identity: str | None, here: str) -> Iterator[bool]:
    """Send the Slurm commands inside the block to the cluster with this identity. Yield whether that is possible.

    `here` is the identity of the default cluster, which is used for None. Another cluster is asked by its name.
    """
    if identity in (None, here):
        yield True
        return
    with on_cluster(str(identity).partition("@")[0]):
        try:
            is_reached = cluster_identity() == identity
        except Unreachable:
            is_reached = False
        yield is_reached


@cache
def _identity(_conf: str | None, asked: str | None) -> str:
    settings = {name: value.split()[0] for name, value in read_settings().items() if value}
    name, host = settings.get("ClusterName"), settings.get("SlurmctldHost[0]") or settings.get("ControlMachine")
    if name is None or host is None:
        raise Unreachable(Problem("scontrol show config: the answer names no cluster", hint=_LOGIN_NODE))
    if asked is not None and asked.lower() != name.lower():
        raise Unreachable(Problem(f"scontrol --clusters={asked} show config: the answer is of cluster {name}"))
    return f"{name}@{host.partition('(')[0]}:{settings.get('SlurmctldPort', '')}"


# ---- jobs: queries and cancellation ------------------------------------------------------------------------------

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
_SIBLINGS = ("--federation", "--sibling")
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
    records |= _of_siblings([job_id for job_id, record in records.items() if record.state == "REVOKED"], is_ours)
    missing = _unanswered(ids, records)
    unclear = _wanted({**accounting.unclear, **queue.unclear}, missing)
    doubts = (*queue.complaints, *accounting.complaints)
    if missing and doubts:
        return QueryAnswer(records, (*complaints, *dict.fromkeys(doubts)), unclear=unclear)
    unknown = frozenset(_unanswered(missing, unclear)) if is_complete else frozenset()
    return QueryAnswer(records, complaints, unknown, unclear)


def _of_siblings(job_ids: Collection[str], is_ours: IsOurs) -> dict[str, JobRecord]:
    """Return the records of revoked jobs: another cluster of the federation has started them under the same id."""
    records: dict[str, JobRecord] = {}
    for command, parse in (((*_SACCT, "--federation"), parse_accounting), ((*_SQUEUE, *_SIBLINGS), parse_queue)):
        with suppress(Unreachable):  # the jobs stay revoked, which is not an end
            listed = _ask(command, parse, job_ids, lambda record: record.state != "REVOKED" and is_ours(record))
            records |= _wanted(listed.records, job_ids)
    return records


def require_controller() -> None:
    """Raise Unreachable unless slurmctld answers. Call this before anything is recorded for a submission."""
    answer = run_slurm(["scontrol", "ping"])
    if " is UP" not in answer.stdout:
        message = answer.stdout.strip() or last_words(answer.stderr) or "no answer"
        raise Unreachable(Problem(f"scontrol ping: {message}", hint="try again when slurmctld answers"))


def find_by_comments(comments: Collection[str]) -> QueryAnswer:
    """Return the current user's jobs with one of these comments, from squeue, else from sacct.

    The comment of a record is the one of these that it contains, without the site's text.
    A missing comment proves that there is no such job only if there are no complaints. There is a complaint if
    accounting does not answer or does not store comments. Raise Unreachable if slurmctld does not answer or does not
    accept the user.
    """
    missing = set(comments)
    if not missing:
        return QueryAnswer({})
    user = f"--user={os.getuid()}"
    # Without --all, squeue omits jobs in hidden partitions, unless --jobs names them.
    queue = checked(run_slurm([*_SQUEUE, "--all", user], variables=_PLAIN))
    if "invalid user" in queue.stderr.lower():  # on stderr, with exit code 0 and an empty list
        raise Unreachable(Problem(f"squeue: {last_words(queue.stderr)}"))
    wanted = comment_pattern(missing)

    def ours(listed: Iterator[JobRecord]) -> list[JobRecord]:
        return [replace(job, comment=found[0]) for job in listed if (found := wanted.search(job.comment))]

    jobs = ours(parse_queue(queue.stdout))
    missing -= {job.comment for job in jobs}
    if not missing:
        return _by_comment(jobs)
    doubts = list(filter(None, [_doubt(queue)]))
    lists_queue = not doubts
    try:
        # Accounting has the comment only after the end of the job. squeue has it until some time after the end.
        answer = run_slurm([*_SACCT, user, f"--starttime=now-{_DAYS_BACK}days"], variables=_PLAIN)
        accounting = checked(answer, AccountingUnreachable)
    except Unreachable as error:
        doubts.append(str(error))
    else:
        jobs += [job for job in ours(parse_accounting(accounting.stdout)) if job.comment in missing]
        if not missing - {job.comment for job in jobs}:
            return _by_comment(jobs)
        doubts += filter(None, [_doubt(accounting)])
        if not keeps_comments(read_settings(if_allowed=True)):
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
            for record in parse(checked(answer, AccountingUnreachable if command is _SACCT else Unreachable).stdout):
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
        part = ids[start : start + _MOST_IDS]
        answer = run_slurm(["scancel", *part], timeout_s=_SECONDS + _SECONDS_EACH * len(part))
        # The exit code of scancel is that of only one id, cut to eight bits.
        refusals = list(_REFUSED.finditer(answer.stderr))
        if not refusals:
            checked(answer)
        for line in refusals:
            if not any(phrase in line["why"].lower() for phrase in _OVER):
                refused |= dict.fromkeys(_asked_as(line["id"], part), line["why"].strip())
    return refused


def _asked_as(named: str, job_ids: Sequence[str]) -> Iterator[str]:
    """Yield the requested ids that the id in a message covers: the id itself, its tasks, or its array."""
    tasks = {named, *expand_array_id(named)}
    whole = base_id(named)
    return (job_id for job_id in job_ids if job_id in tasks or job_id == whole)
