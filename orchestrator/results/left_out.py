"""Attempts that `--without JOB:ATTEMPT=REASON` leaves out of results, although they may be verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.attempts import job_rows, rows_of_attempts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.reports import attempts_of_jobs
from orchestrator.masking import masked
from orchestrator.text import counted, printable_line

_HINT = "for example --without 3f2a:1='a slow node'; repro history JOB shows the attempts of a job"


@dataclass(frozen=True, slots=True)
class LeftOutAttempt:
    """An attempt that is left out of results, with the reason. `outcome` is its verdict, else its state."""

    attempt_id: int
    job: str
    attempt: int
    case: str
    outcome: str
    reason: str

    def __str__(self) -> str:
        return f"{self.case}: attempt {self.attempt} of job {self.job} ({self.outcome}): {self.reason}"


def words_of(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the values of `--without` for the `job`, `attempt` and `reason` of rows in a bundle."""
    return [f"{row['job']}:{row['attempt']}={row['reason']}" for row in rows]


def left_out_attempts(ledger: Ledger, words: Sequence[str]) -> tuple[LeftOutAttempt, ...]:
    """Return the attempts that the values of `--without` name. ReproError has the problems of all values."""
    problems: list[Problem] = []
    chosen: dict[int, LeftOutAttempt] = {}
    for word in words:
        try:
            attempt = _left_out(ledger, word)
            chosen[attempt.attempt_id] = attempt
        except ReproError as error:
            problems += error.problems
    if problems:
        raise ReproError(*problems)
    return tuple(chosen.values())


def _left_out(ledger: Ledger, word: str) -> LeftOutAttempt:
    address, _, reason = word.partition("=")
    prefix, _, number = address.partition(":")
    option = f"--without {address}"
    if not (prefix and number.isascii() and number.isdigit()):
        raise ReproError(Problem(f"{option}: not JOB:NUMBER", hint=_HINT))
    if not reason.strip():
        raise ReproError(Problem(f"{option}: no reason", hint=_HINT))
    jobs = sorted({row.job_id for row in job_rows(ledger, job_prefix=prefix)})
    if len(jobs) != 1:
        what = f"matches several jobs: {', '.join(jobs[:5])}" if jobs else "no such job"
        raise ReproError(Problem(f"{option}: {what}", hint=_HINT))
    attempts = {attempt.number: attempt for attempt in attempts_of_jobs(ledger, jobs).get(jobs[0], ())}
    if int(number) not in attempts:
        raise ReproError(Problem(f"{option}: job {jobs[0]} has {counted(len(attempts), 'attempt')}", hint=_HINT))
    [row] = rows_of_attempts(ledger, [attempts[int(number)].attempt_id])
    outcome = " ".join(filter(None, (row.verdict or row.state, row.failure)))
    why = printable_line(masked(reason.strip()))
    return LeftOutAttempt(row.attempt_id, row.job_id, row.number, row.label, outcome, why)
