"""Submission of queued attempts. Each attempt is claimed first, so that only one process submits it.

A scheduler that did not answer may have accepted the job. It is asked for the token before the job is submitted again.
If the queue is full, fewer jobs are submitted at a time, and the others stay queued.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.files import FOLDER_MODE, Unreadable
from orchestrator.launch.executors import QueueFull, SlurmScriptExecutor, start_queue
from orchestrator.launch.run_options import RunPlan
from orchestrator.launch.run_record import COMMENT, OwnScript, read_own_script, this_submitter, write_sent
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import AttemptRow, JobRow
from orchestrator.ledger.runs import (
    claim,
    queued_attempts,
    record_never_submitted,
    record_queued_again,
    record_submission,
    run_record,
    under_way_of,
)
from orchestrator.ledger.tables import FAILED, OPEN
from orchestrator.reading.failure import Failure
from orchestrator.slurm.command import cancel_jobs, cluster_identity, find_by_comments, on_cluster
from orchestrator.slurm.notation import base_id

PAUSES_S = (2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
"""Pauses before a scheduler that did not answer is asked again. After the last one the next command asks."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Callbacks: `notify` prints a message, `is_interrupted` reports Ctrl-C."""

    notify: Callable[[str], None]
    is_interrupted: Callable[[], bool] = lambda: False


@dataclass(slots=True)
class Sent:
    """Result of a submission: ids of the scheduler, submitted jobs, queued jobs, and why these are queued."""

    ids: list[str] = field(default_factory=list)
    jobs: int = 0
    queued: int = 0
    why: str | None = None


def cluster_of(script: str) -> str | None:
    """Return the cluster that a script names; None for the default one."""
    names = re.findall(r"^#SBATCH --clusters?=(\S+)$", script, re.MULTILINE)
    return names[-1] if names else None


def comment_of(token: str) -> str:
    """Return the comment of a Slurm job with this token."""
    return COMMENT + token


def send(ledger: Ledger, run_id: str, reporter: Callbacks) -> Sent:
    """Submit the queued attempts of a run that the scheduler has room for.

    Raise ReproError if the scheduler refuses. Jobs that it accepted before stay, and the others are recorded as not
    submitted. Raise Unreachable if the scheduler does not answer; the next command recovers the last submission.
    """
    run = run_record(ledger, run_id)
    sender = _Sender(ledger, run_id, run.cluster, RunPlan.from_json(run.run_options), reporter)
    sent = sender.sent
    for _, group in groupby(queued_attempts(ledger, run_id=run_id), key=lambda attempt: attempt.file):
        attempts = list(group)
        if sent.why is not None or reporter.is_interrupted():  # larger jobs stay behind smaller ones
            sent.queued += len(attempts)
            continue
        try:
            sender.send_file(attempts)
        except (Unreachable, Unreadable):  # the scheduler may have accepted the job
            raise
        except ReproError as error:
            why = "not submitted, because the submission before it failed"
            _record_refused(ledger, queued_attempts(ledger, run_id=run_id), why)
            problems = [_with_origin(problem, sender.run_plan) for problem in error.problems]
            if problems != list(error.problems):
                raise ReproError(*problems) from error
            raise
    return sent


def _with_origin(problem: Problem, run_plan: RunPlan) -> Problem:
    """Return the problem. Its hint names `--set` of the run instead of the profile, if that sets the hint's field."""
    for setting in run_plan.settings:
        field_name = setting.partition("=")[0].rstrip("+").rpartition(".")[2]
        if problem.hint and f"`{field_name}`" in problem.hint:
            return replace(problem, hint=problem.hint.replace("in the profile", f"in --set {setting}"))
    return problem


def _record_refused(ledger: Ledger, attempts: Sequence[AttemptRow], why: str) -> None:
    """Record those of these attempts that belong to this user as not submitted."""
    own = [attempt.attempt_id for attempt in attempts if ledger.is_own(attempt.user)]
    record_never_submitted(ledger, own, why, str(Failure.NOT_SUBMITTED))


@dataclass(frozen=True, slots=True)
class _Sender:
    """Submission of the attempts of one run, whose jobs exclude the denied nodes."""

    ledger: Ledger
    run_id: str
    cluster: str
    run_plan: RunPlan
    reporter: Callbacks
    sent: Sent = field(default_factory=Sent)

    def send_file(self, attempts: Sequence[AttemptRow]) -> None:
        """Submit the attempts of one file, in several submissions if the queue has too little room for one.

        The jobs exclude also the nodes that were denied after the file was written.
        """
        try:
            script = read_own_script(self.ledger, attempts)
        except ReproError as refused:
            _record_refused(self.ledger, attempts, str(refused.problems[0]))
            raise
        if attempts[0].scheduler == "local":
            token = self._claim(attempts, script)
            if token is not None:
                queue = start_queue(script.file)
                record_submission(self.ledger, token, queue)
                self._count(queue, attempts)
            return
        rest, size = list(attempts), len(attempts)
        canary = self._canary_of(attempts)
        if canary is not None and canary.phase in OPEN and canary.scheduler_id is None:
            self.sent.queued, self.sent.why = self.sent.queued + len(rest), "its canary is not in the queue yet"
            return
        while rest:
            part = rest[:size]
            options = self._dependencies(part)
            if options is None:
                ids = [attempt.attempt_id for attempt in rest]
                record_never_submitted(self.ledger, ids, "its canary failed", str(Failure.STOPPED))
                return
            try:
                with on_cluster(cluster_of(script.text)):
                    scheduler_id = self._send_part(part, script, [*_array(part, self.run_plan), *options])
            except QueueFull as full:
                if size > 1:
                    size = max(1, size // 2)
                    continue
                self.sent.queued, self.sent.why = self.sent.queued + len(rest), full.problems[0].what
                return
            if scheduler_id is not None:
                self._count(scheduler_id, part)
            rest = rest[len(part) :]

    def _count(self, scheduler_id: str, attempts: Sequence[AttemptRow]) -> None:
        self.sent.ids.append(scheduler_id)
        self.sent.jobs += len(attempts)

    def _canary_of(self, attempts: Sequence[AttemptRow]) -> JobRow | None:
        """Return the row of the canary that these jobs wait for."""
        canary = self.run_plan.canary
        if canary is None or any(attempt.job_id == canary for attempt in attempts):
            return None
        return canary_row(self.ledger, self.run_id, canary)

    def _dependencies(self, attempts: Sequence[AttemptRow]) -> list[str] | None:
        """Return the --dependency options of these jobs; None if their canary failed."""
        jobs, run_plan = {attempt.job_id for attempt in attempts}, self.run_plan
        dependencies = [f"afterany:{job_id}" for job_id in run_plan.after]
        dependencies += [f"afterok:{warm_up}" for warm_up, needy in run_plan.warm_ups.items() if jobs & set(needy)]
        canary = self._canary_of(attempts)
        if canary is not None and canary.phase in OPEN:
            # Not afterok: Slurm has no state for a partial job, so the jobs check the canary.
            dependencies.append(f"afterany:{canary.scheduler_id}")
        elif canary is not None and canary.verdict == FAILED:
            return None  # before the verdict its log may not be visible here, and the jobs make this check themselves
        # The limit of an array is its own. Jobs that were cut off it, or share --max-parallel with others, start later.
        file = None if run_plan.max_parallel is not None else attempts[0].file
        before = under_way_of(self.ledger, self.run_id, file)
        dependencies += [f"afterany:{max(before, key=int)}"] if before else []
        if not dependencies:
            return []
        # A job that depends on a failed job would stay in the queue for ever.
        kill = ["--kill-on-invalid-dep=yes"] if any(word.startswith("afterok") for word in dependencies) else []
        return [f"--dependency={','.join(dict.fromkeys(dependencies))}", *kill]

    def _claim(self, attempts: Sequence[AttemptRow], script: OwnScript, cluster: str | None = None) -> str | None:
        """Claim the attempts and write the record of their submission; return its token.

        None if another sender has taken them over. If the record cannot be written, nothing is submitted.
        """
        token, ids = secrets.token_hex(8), [attempt.attempt_id for attempt in attempts]
        if not claim(self.ledger, ids, token, this_submitter(), file=attempts[0].file, slurm_cluster=cluster):
            return None
        try:
            write_sent(script.file.parent.parent, attempts, token)
        except ReproError as error:
            record_queued_again(self.ledger, token, str(error.problems[0]))
            raise
        return token

    def _send_part(self, attempts: Sequence[AttemptRow], script: OwnScript, dependencies: Sequence[str]) -> str | None:
        """Submit these attempts. Return the scheduler's id; None if another sender has taken them over."""
        cluster, executor = cluster_identity(), SlurmScriptExecutor(script.file.parent)
        token = self._claim(attempts, script, cluster)
        if token is None:
            return None
        try:
            options = [*attempts[0].options, *dependencies]
            scheduler_id = self._sbatch_without_failed_nodes(executor, script, token, options)
        except QueueFull as full:
            record_queued_again(self.ledger, token, full.problems[0].what)
            raise
        except (Unreachable, Unreadable):  # the scheduler may have accepted the job
            raise
        except ReproError as error:
            ids = [attempt.attempt_id for attempt in attempts]
            record_never_submitted(self.ledger, ids, error.problems[0].what, str(Failure.REFUSED))
            raise
        if not record_submission(self.ledger, token, scheduler_id, _accepting(executor.cluster, cluster)):
            # Another login node has given this submission up and submits the attempts under its own token.
            cancel_jobs([scheduler_id])
            what = "another host gave up its submission and made it again"
            self.reporter.notify(f"job {scheduler_id} was cancelled: {what}")
            return None
        return scheduler_id

    def _sbatch_without_failed_nodes(
        self, executor: SlurmScriptExecutor, script: OwnScript, token: str, words: Sequence[str]
    ) -> str:
        """Submit without the nodes that failed before; if there are not enough others, with these nodes.

        The nodes of the profile and of the deny list are always excluded. `words` are further options.
        """
        from orchestrator.launch.denied_nodes import denied_nodes, exclude_options  # only Slurm can exclude nodes

        denied = {entry.node for entry in denied_nodes(self.cluster)}
        options, anywhere = exclude_options(words, script.text, denied)
        try:
            return _sbatch(executor, script, token, options, self.reporter)
        except ReproError as error:
            if anywhere == options or isinstance(error, (QueueFull, Unreachable)):
                raise
            what = error.problems[0].what
            self.reporter.notify(f"{what}; submitted again without excluding the nodes that failed")
        return _sbatch(executor, script, token, anywhere, self.reporter)


def _accepting(name: str | None, asked: str) -> str:
    """Return the identity of the cluster that accepted a job. A program of the site may have chosen another one."""
    if name is None or name.lower() == asked.partition("@")[0].lower():
        return asked
    try:
        with on_cluster(name):
            return cluster_identity()
    except Unreachable:
        return f"{name}@"  # no cluster has this identity, so nothing is concluded about the job


def _sbatch(
    executor: SlurmScriptExecutor, script: OwnScript, token: str, options: Sequence[str], reporter: Callbacks
) -> str:
    """Submit until the scheduler answers. Before each repetition it is asked whether it has the job."""
    comment, pauses = comment_of(token), iter(PAUSES_S)
    sent_again = False
    while True:
        try:
            job_id = executor.submit_script(script.text, comment, options, script.arguments)
        except Unreachable as unreachable:
            ids = _wait_for_jobs_of(comment, unreachable, pauses, reporter)
            if ids:
                return keep_first_cancel_rest(ids)
            sent_again = True
            continue
        # A copy that is accepted even later finds the job's folder claimed and does not start (templates/job.sh.j2).
        ids = {job_id}
        with contextlib.suppress(Unreachable):
            ids |= _ids_of(comment) if sent_again else set()
        return keep_first_cancel_rest(ids)


def _wait_for_jobs_of(comment: str, unreachable: Unreachable, pauses: Iterator[float], reporter: Callbacks) -> set[str]:
    """Return the ids of the jobs with this comment when the scheduler answers again; Unreachable after the last pause.

    A restarted controller may answer before it accepts a job that was submitted earlier, so it is asked twice.
    """
    answers = 0
    for pause_s in pauses:
        reporter.notify(f"{unreachable.problems[0].what}; asking again in {pause_s:.0f} s")
        end = time.monotonic() + pause_s
        while time.monotonic() < end:
            if reporter.is_interrupted():
                raise unreachable
            time.sleep(0.1)
        try:
            ids = _ids_of(comment)
        except Unreachable as error:
            unreachable, answers = error, 0
            continue
        answers += 1
        if ids or answers == 2:
            return ids
    raise unreachable


def _ids_of(comment: str) -> set[str]:
    return {base_id(job_id) for job_id in find_by_comments([comment]).records}


def keep_first_cancel_rest(ids: set[str]) -> str:
    """Return the first id of the submissions under one token, and cancel the others."""
    first, *late = sorted(ids, key=int)
    if late:
        cancel_jobs(late)
    return first


def mark_cancelled(folder: str) -> None:
    """Keep the job of this folder from starting."""
    with contextlib.suppress(OSError):  # the run folder is gone, and with it the script
        Path(folder).mkdir(FOLDER_MODE, exist_ok=True)  # the folder of a repeat may not exist yet
        os.close(os.open(Path(folder) / "cancelled", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o640))


def _array(attempts: Sequence[AttemptRow], run_plan: RunPlan) -> Iterator[str]:
    """Yield the --array option of these attempts. The file lists all elements."""
    indexes = [attempt.array_index for attempt in attempts if attempt.array_index is not None]
    if not indexes:
        return
    # Consecutive indexes have the same difference to their position.
    numbered = groupby(enumerate(sorted(indexes)), lambda pair: pair[1] - pair[0])
    spans = [[index for _, index in span] for _, span in numbered]
    text = ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    yield f"--array={text}%{run_plan.at_once}"


def canary_row(ledger: Ledger, run_id: str, job_id: str) -> JobRow:
    """Return the row of the canary of a run."""
    return next(row for row in job_rows(ledger, run_id=run_id) if row.job_id == job_id)
