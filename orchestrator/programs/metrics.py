"""Definitions of the metrics of a job's program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from pydantic import ValidationError

from orchestrator.errors import Problem, ReproError
from orchestrator.programs.metric import SAMPLED, MetricDefinition
from orchestrator.programs.program import MetricFields, ProgramFields
from orchestrator.programs.registry import find_program, program_name


def metric_definitions(program: ProgramFields) -> Mapping[str, MetricDefinition]:
    """Return the metrics of a program by name in the order of the record, then those of GPU samples."""
    of_iterations = program.output.of_iterations
    own = {name: _definition(name, fields, name in of_iterations) for name, fields in program.metrics.items()}
    return own | {name: replace(metric, published=True) for name, metric in SAMPLED.items() if name not in own}


def definitions_of(program: str, described: Mapping[str, object] | None) -> Mapping[str, MetricDefinition]:
    """Return the metrics of a job's program: `described` is `JobSpec.program`, None for a known program."""
    if described is not None:
        return metric_definitions(recorded_program(json.dumps(described)))
    return find_program(program_name(program)).names.metrics


@lru_cache(maxsize=256)
def recorded_program(text: str) -> ProgramFields:
    """Return the described program that a job's configuration has, from its JSON. ReproError if it is damaged."""
    try:
        return ProgramFields.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ReproError(Problem(f"the record of the job's program is not valid: {where}: {first['msg']}")) from None


def _definition(name: str, fields: MetricFields, is_of_iterations: bool) -> MetricDefinition:
    label, unit = fields.label or name, fields.unit or ""
    return MetricDefinition(
        name,
        unit,
        f"{label}, {fields.take} of the iterations" if is_of_iterations else f"{label}, as the program prints it",
        fields.better,
        is_rate=fields.rate,
        take=fields.take,
        least_uncertainty=None if fields.rate else 0.0,
        published=True,
        label=f"{label} ({unit})" if unit and unit not in label else label,
    )
