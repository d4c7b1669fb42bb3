"""Metrics of a described program: their definitions, from its record."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.metrics import MetricDefinition
from orchestrator.programs.program import ProgramFields


def metric_definitions(program: ProgramFields) -> Mapping[str, MetricDefinition]:
    """Return the metrics of a program by name, in the order of the record."""
    return {
        name: MetricDefinition(name, fields.unit or "", fields.label or name, fields.better, label=fields.label)
        for name, fields in program.metrics.items()
    }
