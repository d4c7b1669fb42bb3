"""Provenance of the numbers of a figure: attempts and their outcomes, runs, profiles and scripts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.ledger.reports import AttemptOrigin
from orchestrator.ledger.tables import FAILED, MEASURED, Run
from orchestrator.money import Money, recorded_price, totals
from orchestrator.reading.failure import POLICIES, Failure
from orchestrator.results.report.cases import Mark, shown_hours
from orchestrator.text import shown_time


@dataclass(frozen=True, slots=True)
class FailedEntry:
    """A failed attempt: class, deciding line and rank, nodes, and what `repro retry` does."""

    case: str
    job: str
    attempt: int
    failure: str
    decided_by: str
    rank: str
    nodes: str
    state: str
    policy: str
    hours: str


@dataclass(frozen=True, slots=True)
class AttemptEntry:
    """One submission of a job. `script` is the anchor of its script, empty if the page has none."""

    case: str
    job: str
    attempt: int
    run: str
    scheduler_id: str
    nodes: str
    verdict: Mark
    started: str
    hours: str
    program: str
    script: str


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One `repro submit`: time, user, command, commit and versions."""

    id: str
    at: str
    by: str
    command: str
    commit: str
    versions: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster profile as recorded, and the runs that used it."""

    file: str
    runs: str
    text: str


@dataclass(frozen=True, slots=True)
class RecordedScript:
    """Text of a script, and the jobs that ran it."""

    anchor: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hours:
    """Cost of attempts in GPU-hours, or in process-hours for the device `cpu`; `costs` in each currency."""

    device: str
    number: float
    in_failed: float
    costs: tuple[Money, ...] = ()

    @property
    def unit(self) -> str:
        """Return the unit."""
        return "process-hours on CPUs" if self.device == "cpu" else "GPU-hours"

    @property
    def spent(self) -> str:
        """Return the number for people."""
        return shown_hours(self.number)

    @property
    def summary(self) -> str:
        """Return `12.40 GPU-hours, 0.31 of them in attempts that failed`."""
        lost = f", {shown_hours(self.in_failed)} of them in attempts that failed" if self.in_failed else ""
        return f"{self.spent} {self.unit}{f' ({self.money})' if self.costs else ''}{lost}"

    @property
    def money(self) -> str:
        """Return `31.00 USD`; nothing without a price."""
        return " + ".join(map(str, self.costs))


def hours_of(attempts: Iterable[AttemptOrigin], device: str, runs: Iterable[Run]) -> Hours:
    """Return the cost of the attempts that have ended, with the prices in the profiles of their runs."""
    hours = [(attempt.gpu_hours, attempt.verdict == FAILED, attempt.run_id) for attempt in attempts]
    prices = {run.id: price for run in runs if device != "cpu" and (price := recorded_price(run.profile))}
    costs = totals(prices[run_id].of(number) for number, _, run_id in hours if number and run_id in prices)
    in_failed = sum(number for number, failed, _ in hours if failed)
    return Hours(device, sum(number for number, *_ in hours), in_failed, costs)


def failed_entries(
    attempts: Sequence[AttemptOrigin], names: Mapping[str, str], as_published: frozenset[str]
) -> tuple[FailedEntry, ...]:
    """Return every failed attempt, also if a later attempt has a result.

    `names` are the cases by job; `as_published` are the jobs that fail as the source reports.
    """
    return tuple(
        FailedEntry(
            case=names[attempt.job_id],
            job=attempt.job_id,
            attempt=attempt.number,
            failure=attempt.failure or "",
            decided_by=attempt.deciding_line or attempt.verdict_reason or "",
            rank="" if attempt.deciding_rank is None else str(attempt.deciding_rank),
            nodes=attempt.nodes or attempt.host,
            state=_state(attempt),
            policy="as published" if attempt.job_id in as_published else _policy(attempt.failure),
            hours=shown_hours(attempt.gpu_hours),
        )
        for attempt in attempts
        if attempt.verdict == FAILED
    )


def attempt_entries(
    attempts: Sequence[AttemptOrigin], names: Mapping[str, str], anchors: Mapping[str, str]
) -> tuple[AttemptEntry, ...]:
    """Return a row for each attempt."""
    return tuple(
        AttemptEntry(
            case=names[attempt.job_id],
            job=attempt.job_id,
            attempt=attempt.number,
            run=attempt.run_id,
            scheduler_id=attempt.scheduler_id or "",
            nodes=attempt.nodes or attempt.host,
            verdict=_verdict(attempt),
            started=shown_time(attempt.started_at),
            hours=shown_hours(attempt.gpu_hours),
            program=", ".join(filter(None, (attempt.workload, attempt.code, attempt.image, attempt.image_digest))),
            script=anchors.get(attempt.script_sha256, ""),
        )
        for attempt in attempts
    )


def run_entries(runs: Sequence[Run]) -> tuple[RunEntry, ...]:
    """Return a row for each run."""
    return tuple(
        RunEntry(
            id=run.id,
            at=shown_time(run.created_at),
            by=f"{run.user}@{run.host}" if run.user else "",
            command=shlex.join(run.command),
            commit=(run.git_commit or "no git checkout") + (" with changes" if run.git_dirty else ""),
            versions=", ".join(f"{name} {version}" for name, version in run.versions.items()),
        )
        for run in runs
    )


def profiles_of(runs: Sequence[Run]) -> tuple[Profile, ...]:
    """Return each profile once, with its runs."""
    used: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        text = json.dumps(run.profile, indent=2, ensure_ascii=False, default=str)
        used.setdefault((run.profile_file or "as shipped", text), []).append(run.id)
    return tuple(Profile(file, ", ".join(ids), text) for (file, text), ids in used.items())


def scripts_of(
    attempts: Sequence[AttemptOrigin], names: Mapping[str, str], texts: Mapping[str, str], anchors: Mapping[str, str]
) -> tuple[RecordedScript, ...]:
    """Return each script in `texts` once, with its jobs; `anchors` are by digest."""
    ran: dict[str, dict[str, None]] = {}
    for attempt in attempts:
        if attempt.script_sha256 in texts:
            ran.setdefault(attempt.script_sha256, {})[f"{names[attempt.job_id]} ({attempt.job_id})"] = None
    return tuple(
        RecordedScript(anchors[digest], "; ".join(jobs), texts[digest].rstrip("\n")) for digest, jobs in ran.items()
    )


def _verdict(attempt: AttemptOrigin) -> Mark:
    if attempt.verdict in MEASURED:
        return Mark("good", str(attempt.verdict))
    if attempt.verdict == FAILED:
        return Mark("bad", f"failed ({attempt.failure})" if attempt.failure else "failed")
    return Mark("open", attempt.state.lower().replace("_", " "))


def _state(attempt: AttemptOrigin) -> str:
    code = f", exit code {attempt.exit_code}" if attempt.exit_code else ""
    return attempt.state + code + (f", signal {attempt.signal}" if attempt.signal else "")


def _policy(failure: str | None) -> str:
    policy = {member.value: POLICIES[member] for member in Failure}.get(failure or "")
    if policy is None:
        return ""
    action = "retried on other nodes" if policy.exclude_node else "retried"
    return f"{policy.reason}: {action if policy.retry else 'not retried'}"
