"""Cases of a figure with their measured and published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.catalog.axes import Settings, Value
from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import VERIFIED
from orchestrator.reading.failure import fails_as_published, ran_out_of_memory
from orchestrator.results.repeats import CaseMetric, together


@dataclass(frozen=True, slots=True)
class Result:
    """One case: its job and metrics when there are any, and the published number for the figure's own metric.

    `losses` are (iteration, loss) as logged, none unless they were asked for; `gpu` is the name of the cluster's GPU;
    `instead_of` is the experiment's own program where another ran: what was published is that one's. `rows` are the
    repeats that the numbers stand on, of which `row` is the one in the middle, `failed` those beside them that failed.
    `noise` says why its times scatter too much to be compared, `flag` why the numbers cannot be right.
    """

    case: Case
    row: JobRow | None
    metrics: Mapping[str, CaseMetric]
    published: PublishedPoint | None
    losses: tuple[tuple[int, float], ...] = ()
    gpu: str | None = None
    instead_of: str | None = None
    rows: tuple[JobRow, ...] = ()
    noise: str | None = None
    flag: str | None = None
    failed: tuple[JobRow, ...] = ()

    @property
    def is_verified(self) -> bool:
        return self.row is not None and self.row.verdict == VERIFIED

    @property
    def ran_out_of_memory(self) -> bool:
        return self.row is not None and ran_out_of_memory(self.row)

    @property
    def expects_oom(self) -> bool:
        """Whether the source says that the case runs out of memory."""
        return self.case.expected is not None and self.case.expected.outcome == "oom"

    @property
    def ended_as_published(self) -> bool:
        """It failed, as the source says it does."""
        return self.ran_out_of_memory and self.row is not None and fails_as_published(self.case, self.row.failure)

    def has(self, settings: Settings) -> bool:
        return settings.given().items() <= self.case.settings.items()

    def metric(self, name: str) -> CaseMetric | None:
        """What was measured; None unless the job is verified and its numbers can be right."""
        return self.metrics.get(name) if self.is_verified and self.flag is None else None

    def value(self, name: str) -> float | None:
        found = self.metric(name)
        return found.value if found else None

    @property
    def modes(self) -> tuple[str, ...]:
        """The known execution modes of its jobs: one, or two where repeats ran in different modes."""
        return modes(self.rows)

    @property
    def is_host_bound(self) -> bool | None:
        """Return whether its GPUs waited too long for the host; None unless that was measured in a verified job."""
        return is_host_bound(self.metrics) if self.metric("host_wait_percent") else None

    @property
    def host_bound(self) -> str | None:
        """Why it is host-bound; None where it is not, or where nobody knows."""
        return host_bound_reason(self.metrics) if self.is_host_bound else None


def case_results(
    entry: Entry,
    cases: Sequence[Case],
    rows: Sequence[JobRow],
    metrics: Mapping[int, Mapping[str, MeasuredMetric]],
    losses: Mapping[int, Sequence[tuple[int, float]]] | None = None,
) -> list[Result]:
    """Every case of the scale, measured or not. One that ran more than once counts as it did last, with its repeats.

    `rows` are of one cluster, oldest first; `metrics` and `losses` are by attempt.
    """
    by_name: dict[str, list[JobRow]] = {}
    for one in rows:
        by_name.setdefault(one.case_name, []).append(one)
    gpu = next(filter(None, (row.spec.gpu for row in rows)), None)
    own = cases[0].instead_of if cases else None
    found: list[Result] = []
    for case in cases:
        published = published_for(entry, case, gpu)
        if case.name not in by_name:
            found.append(Result(case, None, {}, published, gpu=gpu, instead_of=own))
            continue
        now = together(by_name[case.name], metrics)
        logged = tuple((losses or {}).get(now.row.attempt_id, ()))
        found.append(
            Result(case, now.row, now.metrics, published, logged, gpu, own, now.rows, now.noise, now.flag, now.failed)
        )
    return found


def lines(entry: Entry, found: Sequence[Result]) -> dict[Value | None, list[Result]]:
    """The figure's lines: results by their value on its series axis, or under None where there is none."""
    series = entry.experiment.axes.series
    by_value: dict[Value | None, list[Result]] = {}
    for result in found:
        by_value.setdefault(result.case.settings.get(series.of) if series else None, []).append(result)
    return by_value


def published_for(entry: Entry, case: Case, gpu: str | None = None) -> PublishedPoint | None:
    """The published number of a case for the figure's own metric; None where it was measured on another GPU."""
    metric = entry.experiment.axes.y.metric
    return next((point for point in published_on(case, gpu) if point.metric == metric), None)


def published_on(case: Case, gpu: str | None) -> list[PublishedPoint]:
    """The source's numbers that this GPU can be held against: its own first, then those that name no GPU."""
    own = [point for point in case.published if point.gpu and gpu and point.gpu in gpu]
    return own + [point for point in case.published if not point.gpu]


HOST_BOUND_PERCENT = 10.0
"""A case is host-bound if its GPUs wait for the host for more than this share of the iteration time. Ours, measured
nowhere: twice the 5 % below which a rate counts as quiet (`repeats.MOST_NOISE`)."""

NOT_RATES = frozenset({"max_memory_allocated_bytes", "gpu_memory_used_gb", "parameters_billion"})
"""Metrics that do not depend on how long a GPU waits for the host."""


def modes(rows: Iterable[JobRow]) -> tuple[str, ...]:
    """Return the execution modes that the logs of these jobs contain, each once; none where no log contains one."""
    return tuple(sorted({row.execution for row in rows if row.execution is not None}))


def host_wait_percent(metrics: Mapping[str, MeasuredMetric]) -> float | None:
    """Return the share of the iteration time for which a GPU waited for the host; None where it was not measured."""
    measured = metrics.get("host_wait_percent")
    return None if measured is None else measured.value


def is_host_bound(metrics: Mapping[str, MeasuredMetric]) -> bool | None:
    """Return whether the GPUs waited too long for the host; None where the wait was not measured."""
    percent = host_wait_percent(metrics)
    return None if percent is None else percent > HOST_BOUND_PERCENT


def host_bound_reason(metrics: Mapping[str, MeasuredMetric]) -> str | None:
    """Return why a case is host-bound: `its GPUs waited 31 % of the time for the host`; None where it is not."""
    if not is_host_bound(metrics):
        return None
    return f"its GPUs waited {host_wait_percent(metrics):.3g} % of the time for the host"
