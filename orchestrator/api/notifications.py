"""Messages about figures and searches that have ended: by the command that waits, or by a job after the last one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence

from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.user import Address, user_defaults
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.message_service import address_digest, require_services, send
from orchestrator.launch.notify_job import Figure, submit_notify_job
from orchestrator.launch.recover import sender_is_alive
from orchestrator.launch.run_record import this_submitter
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.notifications import (
    FigureEnd,
    claim_message,
    notify_jobs,
    promised_runs,
    record_message,
    record_promised,
    sent_at,
)
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import ENDED, OPEN
from orchestrator.masking import ADDRESS_OPTION, masked_address
from orchestrator.paths import Folders, short_name
from orchestrator.results.message import Message, message_of, spent_by_jobs
from orchestrator.results.outcome import judge_figure
from orchestrator.search.answer import SearchAnswer
from orchestrator.search.message import search_message
from orchestrator.search.prepare import PreparedSearch
from orchestrator.workloads.argument_changes import changes_of


def message_addresses(given: Sequence[str] | None) -> tuple[Address, ...]:
    """Return the addresses of `--notify`, else those of REPRO_NOTIFY or of the user's configuration.

    ReproError if no message can be sent to one of them: an unknown service, or Apprise is not installed.
    """
    addresses = user_defaults().notify if given is None else tuple(Address(url, ADDRESS_OPTION) for url in given)
    require_services(addresses)
    return addresses


class FigureMessages:
    """Messages about the figures of some jobs: one for each figure when its jobs have ended.

    A figure is due if a job had not ended before, or if an earlier command promised a message and did not send it.
    With addresses from the command line every figure is due.
    """

    def __init__(
        self,
        ledger: Ledger,
        folders: Folders,
        addresses: Sequence[Address],
        notify: Callable[[str], None],
        rows: Sequence[JobRow],
    ) -> None:
        self._ledger, self._folders, self._addresses, self._notify = ledger, folders, addresses, notify
        self._own_programs: dict[tuple[str, str], frozenset[str]] = {}
        self._done: dict[Figure, frozenset[int]] = {}
        self._due: set[Figure] = set()
        self._is_asked = any(address.origin == ADDRESS_OPTION for address in addresses)
        if not addresses:
            return
        promised = promised_runs(ledger, {row.run_id for row in rows})
        for figure, own in self._by_figure(rows).items():
            if self._is_asked or any(row.phase in OPEN or row.verdict is None or row.run_id in promised for row in own):
                self._due.add(figure)
        record_promised(ledger, {row.run_id for row in rows if row.phase in OPEN})

    def send_ended(self, rows: Sequence[JobRow], *, is_last: bool = False) -> None:
        """Send a message about each figure whose jobs have ended; with `is_last` also where jobs can never start."""
        if not self._due:
            return
        for figure, own in self._by_figure(rows).items():
            attempts = frozenset(row.attempt_id for row in own)
            is_open = any(row.phase in OPEN for row in own)
            if figure in self._due and (is_last or not is_open) and self._done.get(figure) != attempts:
                self._done[figure] = attempts
                try:
                    self._send(figure, own[0].workload)
                except ReproError as error:  # a failed message does not end the command
                    self._notify(f"warning: no message about {short_name(figure.experiment)}: {error.problems[0]}")

    def submit_jobs(self, run_id: str, cluster: Cluster, *, is_new: bool = True) -> None:
        """Submit the job that sends the message after the last job of a run's figure, or report why there is none.

        If the run submitted no job (`is_new` is false), the job of an earlier run is enough.
        """
        if not self._addresses:
            return
        for figure in self._by_figure(job_rows(self._ledger, run_id=run_id)):
            rows = [row for row in self._jobs_of(figure) if row.phase in OPEN]
            runs = {row.run_id for row in rows}
            if rows and (is_new or self._is_asked or not runs <= notify_jobs(self._ledger, runs)):
                self._submit_job(figure, rows, run_id, cluster)

    def _submit_job(self, figure: Figure, rows: Sequence[JobRow], run_id: str, cluster: Cluster) -> None:
        name = short_name(figure.experiment)
        try:
            job_id = submit_notify_job(figure, rows, cluster, self._ledger, self._folders, run_id, self._addresses)
        except (ReproError, OSError) as error:
            why = error.problems[0] if isinstance(error, ReproError) else error.strerror
            self._notify(f"note: `repro wait {name}` sends the message, but no job does: {why}")
            return
        record_promised(self._ledger, {run_id}, job_id)
        kind = "job" if cluster.is_slurm else "process"
        self._notify(f"{kind} {job_id} sends the message about {name} after its last job")

    def _send(self, figure: Figure, workload: str) -> None:
        rows = self._jobs_of(figure)
        changes = changes_of(row.spec.argument_changes for row in rows if row.run_id == rows[-1].run_id)
        outcome = judge_figure(
            *(self._ledger, self._folders, figure.experiment, figure.scale, figure.cluster, workload), changes=changes
        )
        digest = _digest_of_ended(rows)
        programs = "+".join(outcome.workloads)
        end = FigureEnd(figure.experiment, figure.scale, figure.cluster, programs, digest)
        message = message_of(outcome, spent_by_jobs(self._ledger, rows))
        for address in self._addresses:
            option = " --notify URL" if address.origin == ADDRESS_OPTION else ""
            hint = f"repro wait {short_name(figure.experiment)}{option} sends it again"
            _send_to(self._ledger, address, end, message, hint, self._notify)

    def _jobs_of(self, figure: Figure) -> list[JobRow]:
        """Return all jobs of a figure, also those that the command does not wait for."""
        rows = job_rows(self._ledger, experiment=figure.experiment)
        return [row for row in rows if self._figure_of(row) == figure]

    def _by_figure(self, rows: Sequence[JobRow]) -> dict[Figure, list[JobRow]]:
        figures: dict[Figure, list[JobRow]] = {}
        for row in rows:
            figures.setdefault(self._figure_of(row), []).append(row)
        return figures

    def _figure_of(self, row: JobRow) -> Figure:
        own = self._programs(row.experiment, row.scale)
        program = None if row.workload in own else row.workload
        return Figure(row.experiment, row.scale, row.cluster, program)

    def _programs(self, experiment: str, scale: str) -> Collection[str]:
        """Return the experiment's own programs; none if its file has changed or is gone."""
        key = experiment, scale
        if key not in self._own_programs:
            try:
                cases = cases_to_run(find_experiment(self._folders, experiment), scale)
            except ReproError:
                cases = []
            self._own_programs[key] = frozenset(case.workload for case in cases)
        return self._own_programs[key]


def send_about_search(
    ledger: Ledger,
    addresses: Sequence[Address],
    notify: Callable[[str], None],
    prepared: PreparedSearch,
    answer: SearchAnswer,
) -> None:
    """Send the message about a search that has ended. Each address gets one for the same jobs."""
    if not addresses:
        return
    entry, case = prepared.entry, prepared.candidates[0].case
    rows = [row for row in job_rows(ledger, experiment=entry.name) if row.cluster == prepared.cluster.name]
    digest = _digest_of_ended(rows)
    end = FigureEnd(entry.name, case.scale, prepared.cluster.name, f"search of {case.workload}", digest)
    message = search_message(prepared, answer)
    for address in addresses:
        _send_to(ledger, address, end, message, "the same command sends it again", notify)


def _digest_of_ended(rows: Sequence[JobRow]) -> str:
    """Return the digest of the attempts that have ended, which identifies an end."""
    ended = sorted({row.attempt_id for row in rows if row.phase == ENDED})
    return hashlib.sha256(",".join(map(str, ended)).encode()).hexdigest()[:16]


def _send_to(
    ledger: Ledger, address: Address, end: FigureEnd, message: Message, hint: str, notify: Callable[[str], None]
) -> None:
    """Send a message unless this address has it. Report that it was sent, or why not with the hint."""
    shown, name = masked_address(address.url), short_name(end.experiment)
    key = address_digest(address.url, end.experiment)
    message_id = claim_message(ledger, end, shown, key, this_submitter(), sender_is_alive)
    if message_id is None:
        if address.origin == ADDRESS_OPTION and (at := sent_at(ledger, end, key)):
            notify(f"note: the message about {name} was sent to {shown} before, {at:%Y-%m-%d %H:%M:%S} UTC")
        return
    error = send(address.url, message)
    record_message(ledger, message_id, message.title, error)
    if error is None:
        notify(f"message about {name} sent to {shown}")
    else:
        notify(f"warning: {Problem(f'no message about {name} to {shown} ({error})', hint=hint)}")
