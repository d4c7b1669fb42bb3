"""Which jobs a command is about: by experiment, by job id, by scale and cluster, by --where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, experiment_names, find_experiment, names_meant
from orchestrator.catalog.other_program import with_workload
from orchestrator.catalog.selection import parse_where, select
from orchestrator.catalog.settings import Value
from orchestrator.cli.opening import existing_ledger
from orchestrator.cli.options import as_typed
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import JobRow, job_rows
from orchestrator.ledger.measurements import losses_of, metrics_of
from orchestrator.results.against import in_order_of_runs, known_runs
from orchestrator.results.claims import ClaimVerdict, judge_claims
from orchestrator.results.compare import Result, results


@dataclass(frozen=True, slots=True)
class Outcome:
    """A figure as it stands: its cases with what was measured, and what became of its claims."""

    entry: Entry
    scale: str
    cluster: str
    found: list[Result]
    claims: list[ClaimVerdict]

    @property
    def program(self) -> str | None:
        """What ran, where it is not the experiment's own: `pretrain instead of megatron-2021`."""
        some = self.found[0]
        return f"{some.case.workload} instead of {some.instead_of}" if some.instead_of else None

    @property
    def failures(self) -> list[JobRow]:
        """Jobs that failed, other than as the source says they would; of repeats also those beside a good one."""
        unexpected = [result for result in self.found if not result.ended_as_published]
        rows = [row for result in unexpected for row in (result.row, *result.failed)]
        return [row for row in rows if row is not None and row.verdict == "failed"]

    @property
    def failed(self) -> bool:
        """A job failed, or a claim that could be judged does not hold."""
        return bool(self.failures) or any(claim.verdict == "fails" for claim in self.claims)

    def having(self, where: str | None) -> list[Result]:
        """The cases with these values; the claims are still about all of them."""
        chosen = {case.name for case in select([result.case for result in self.found], parse_where(where))}
        return [result for result in self.found if result.case.name in chosen]


def read_outcome(
    ledger: Ledger,
    folders: Folders,
    experiment: str | None,
    scale: str | None,
    cluster: str | None,
    workload: str | None = None,
) -> Outcome:
    """The experiment (else the latest run's) at the latest run's scale, cluster and program, unless they are given.

    Jobs of one program only: a figure's own, of which there may be several, or the one that ran instead of them.
    """
    wanted = full_name(folders, experiment) if experiment else None
    require_known(workload)
    rows = [
        row
        for row in job_rows(ledger, experiment=wanted)
        if scale in (None, row.scale) and cluster in (None, row.cluster)
    ]
    of_program = [row for row in rows if workload in (None, row.workload)]
    if not of_program:
        asked = [scale and f"at {scale}", cluster and f"on {cluster}", workload and f"with {workload}"]
        what = " ".join(filter(None, [experiment or "anything", *asked]))
        mend = f"repro submit {experiment or 'figure-13'} --cluster {cluster or 'local'}{as_typed(workload)}"
        raise ReproError(Problem(f"{what} was never submitted", mend=mend))
    runs = known_runs(ledger)
    rows, last = in_order_of_runs(rows, runs), in_order_of_runs(of_program, runs)[-1]
    entry = find_experiment(folders, last.experiment)
    cases: list[Case] = expand(entry, last.scale)
    if last.workload not in {case.workload for case in cases}:
        cases = with_workload(cases, last.workload)
    programs = {case.workload for case in cases}
    same = (last.experiment, last.scale, last.cluster)
    rows = [row for row in rows if (row.experiment, row.scale, row.cluster) == same and row.workload in programs]
    ids = [row.attempt_id for row in rows]
    wants_losses = any(claim.kind == "loss curves" for claim in entry.experiment.claims)
    losses = losses_of(ledger, ids) if wants_losses else None
    found = results(entry, cases, rows, metrics_of(ledger, ids), losses)
    claims = judge_claims(entry, last.scale, found, int(last.configuration["gpus_per_node"]))
    return Outcome(entry, last.scale, last.cluster, found, claims)


def require_known(workload: str | None) -> None:
    """Refuse a program that nobody knows, with the nearest that somebody does."""
    if workload is not None:
        from orchestrator.workloads.traits import traits_of

        traits_of(workload)


def full_name(folders: Folders, name: str) -> str:
    """`figure-13` -> `sc21/figure-13`; unknown names are refused with the nearest."""
    full = names_meant(experiment_names(folders), name)
    return full[0] if len(full) == 1 else find_experiment(folders, name).name


def submitted_ledger(folders: Folders, database: str | None, *, whole: bool = False) -> Ledger:
    """The ledger, for a command that is about jobs that must be in it; else as `existing_ledger`."""
    ledger = existing_ledger(folders, database, whole=whole)
    if ledger is None:
        raise ReproError(Problem("nothing was submitted yet", mend="repro submit figure-13 --cluster local"))
    return ledger


def chosen_rows(
    ledger: Ledger,
    folders: Folders,
    targets: Sequence[str],
    where: str | None = None,
    scale: str | None = None,
    workload: str | None = None,
) -> list[JobRow]:
    """The jobs that these words mean; each is an experiment's name, a job id (or its start) or a scheduler's id."""
    wanted = parse_where(where)
    require_known(workload)
    names = experiment_names(folders)
    chosen: dict[int, JobRow] = {}
    for target in targets:
        if names_meant(names, target):
            rows = job_rows(ledger, experiment=full_name(folders, target))
        else:
            rows = _by_id(ledger, target)
        rows = [row for row in rows if scale in (None, row.scale) and workload in (None, row.workload)]
        chosen |= {row.attempt_id: row for row in rows if matches(row, wanted)}
    return list(chosen.values())


def matches(row: JobRow, wanted: Mapping[str, Value]) -> bool:
    """Whether the job has these values; one recorded before settings were kept has those that name it."""
    settings = row.configuration.get("settings") or row.configuration["point"]
    return all(settings.get(axis) == value for axis, value in wanted.items())


def _by_id(ledger: Ledger, target: str) -> list[JobRow]:
    rows = job_rows(ledger, job_prefix=target) or [row for row in job_rows(ledger) if row.scheduler_id == target]
    found = sorted({row.job_id for row in rows})
    if not found:
        raise ReproError(Problem(f"{target}: neither an experiment nor a job", mend="repro status shows the jobs"))
    if len(found) > 1:
        raise ReproError(Problem(f"{target}: could be {', '.join(found[:5])}", mend="give more of the id"))
    return rows[:1]
