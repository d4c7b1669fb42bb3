"""The cases of a figure beside what was measured and what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.catalog.settings import Value
from orchestrator.ledger.jobs import JobRow
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.tables import VERIFIED


@dataclass(frozen=True, slots=True)
class Result:
    """One case: its job and metrics when there are any, and the published number for the figure's own metric."""

    case: Case
    row: JobRow | None
    metrics: Mapping[str, MeasuredMetric]
    published: PublishedPoint | None

    @property
    def is_verified(self) -> bool:
        return self.row is not None and self.row.verdict == VERIFIED

    def metric(self, name: str) -> MeasuredMetric | None:
        """What was measured; None unless the job is verified."""
        return self.metrics.get(name) if self.is_verified else None

    def value(self, name: str) -> float | None:
        found = self.metric(name)
        return found.value if found else None


def results(
    entry: Entry, cases: Sequence[Case], rows: Sequence[JobRow], metrics: Mapping[int, Mapping[str, MeasuredMetric]]
) -> list[Result]:
    """Every case of the scale, measured or not; a case that ran more than once counts as it did last."""
    by_name = {row.case_name: row for row in rows}
    found: list[Result] = []
    for case in cases:
        row = by_name.get(case.name)
        measured = metrics.get(row.attempt_id, {}) if row else {}
        found.append(Result(case, row, measured, published_for(entry, case)))
    return found


def lines(entry: Entry, found: Sequence[Result]) -> dict[Value | None, list[Result]]:
    """The figure's lines: results by their value on its series axis, or all under None where it has none."""
    series = entry.experiment.axes.series
    by_value: dict[Value | None, list[Result]] = {}
    for result in found:
        by_value.setdefault(result.case.value(series.of) if series else None, []).append(result)
    return by_value


def published_for(entry: Entry, case: Case, gpu: str | None = None) -> PublishedPoint | None:
    """The published number of a case for the figure's own metric, measured on this GPU if it was on several."""
    metric = entry.experiment.axes.y.metric
    found = [point for point in case.published if point.metric == metric]
    own = [point for point in found if point.gpu and gpu and point.gpu in gpu]
    return next(iter(own or found), None)
