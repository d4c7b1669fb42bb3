"""Ask Slurm to end jobs: one scancel for many."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm.command import last_words, run_slurm
from orchestrator.slurm.job_ids import base_id, expand_array_id, require_job_ids

# All arguments together may have 2 MiB on most systems and always 128 KiB (execve(2)); an id has some 10 characters,
# and each also costs a pointer.
_MOST_IDS = 5_000
# scancel asks for each id by itself, ten at a time (MAX_THREADS of scancel.c), and asks again for up to 95 s about one
# that is just changing its state.
_SECONDS, _SECONDS_EACH = 120.0, 0.05

_REFUSED = re.compile(r"^(?:scancel: )?error: Kill job error on job id (?P<id>\S+): (?P<why>.+)$", re.MULTILINE)
# What is said of a job that is over already: slurm_errno.c's ESLURM_ALREADY_DONE and ESLURM_INVALID_JOB_ID.
_OVER = ("already completing or completed", "invalid job id")


def cancel_jobs(job_ids: Collection[str]) -> dict[str, str]:
    """Cancel these jobs, begun in the order given; the scheduler's own words for each id that it refused.

    As few calls as the arguments' length allows. A job that has ended, or that Slurm does not know, is no refusal, and
    those beside a refused one are cancelled all the same. A job of which the scheduler took note may still be seen
    for some seconds, until its processes are gone. Raises ReproError for what is no job id, before any is cancelled,
    and Unreachable when slurmctld does not answer; some of the jobs may then have been cancelled.
    """
    asked = require_job_ids(job_ids)
    refused: dict[str, str] = {}
    for start in range(0, len(asked), _MOST_IDS):
        refused |= _cancel(asked[start : start + _MOST_IDS])
    return refused


def _cancel(job_ids: Sequence[str]) -> dict[str, str]:
    answer = run_slurm(["scancel", *job_ids], timeout_s=_SECONDS + _SECONDS_EACH * len(job_ids))
    # Its exit code is that of one of the ids only, cut to eight bits.
    said = list(_REFUSED.finditer(answer.stderr))
    if answer.returncode != 0 and not said:
        words = last_words(answer.stderr) or f"failed with exit code {answer.returncode}"
        raise Unreachable(Problem(f"scancel: {words}"))
    return {
        job_id: line["why"].strip()
        for line in said
        if not any(words in line["why"].lower() for words in _OVER)
        for job_id in _asked_as(line["id"], job_ids)
    }


def _asked_as(named: str, job_ids: Sequence[str]) -> Iterator[str]:
    """The ids that were asked for of the one that a message names: that one, tasks it lists, or the whole of them."""
    tasks = {named, *expand_array_id(named)}
    whole = base_id(named)
    return (job_id for job_id in job_ids if job_id in tasks or job_id == whole)
