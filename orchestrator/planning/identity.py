"""A job's identity: the hash of what it runs, so that submitting twice finds it again.

Only what differs from a default is hashed: a field that is added later, with a default, changes no old identity.
What only says how a result is read or queued (warm-up, time limit, names) is no part of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from orchestrator.catalog.case import Case
from orchestrator.workloads.program import Program

_NOT_WHAT_RUNS = {"warmup_iterations"}


def identity(case: Case, program: Program, cluster: str, repeat: int = 1) -> str:
    """Twelve hexadecimal digits. A repeat is a job of its own; the first has the identity that it always had."""
    what = {**_parts(case), "cluster": cluster, "code": program.code}
    what |= {"image": program.image, "image_digest": program.image_digest}
    if repeat > 1:
        what["repeat"] = repeat
    return hashlib.sha256(_canonical(what).encode()).hexdigest()[:12]


def what_runs(case: Case) -> str:
    """What of a job's identity the case itself decides: equal for two cases that are the same job on any cluster."""
    return _canonical(_parts(case))


def _parts(case: Case) -> dict[str, Any]:
    return {
        "workload": case.workload,
        "device": case.device,
        "model": non_default(case.model),
        "layout": non_default(case.layout),
        "training": non_default(case.training),
        "arguments": list(case.arguments) or None,
    }


def _canonical(what: dict[str, Any]) -> str:
    given = {name: value for name, value in what.items() if value is not None}
    return json.dumps(given, sort_keys=True, separators=(",", ":"))


def non_default(value: Any) -> dict[str, Any]:
    """The fields of a flat dataclass whose value is not the field's default."""
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.name not in _NOT_WHAT_RUNS and getattr(value, field.name) != field.default
    }
