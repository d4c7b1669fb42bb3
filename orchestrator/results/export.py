"""Results as files for others: one row per case, the same rows in every format."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.catalog.claims import PublishedClaim
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.masking import masked
from orchestrator.results.claims import ClaimVerdict
from orchestrator.results.compare import Result

_METRICS = ("iteration_ms", "tflops_per_gpu", "percent_of_peak", "sequences_per_s")
_AXIS_COLUMNS = {"case": "row"}
"""Axes whose own name is that of another column."""


@contextlib.contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """A path to write to; it takes the file's place at the end, so that an interrupted command leaves no half of it."""
    part = file.with_name(f".{file.name}.part{file.suffix}")
    try:
        yield part
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ReproError(Problem(f"{file}: cannot be written ({error.strerror})")) from None


def export_rows(entry: Entry, found: Sequence[Result]) -> list[dict[str, Any]]:
    """Plain values, None where there is nothing; a number of an unverified job is not given out as a result.

    Where another program than the experiment's own ran, two more columns say which, and whose number was published.
    What a log or a scheduler said (a reason is often a line of a log) is given out without what looks secret.
    """
    return [_without_secrets(_row(entry, result)) for result in found]


def _without_secrets(row: dict[str, Any]) -> dict[str, Any]:
    return {name: masked(value) if isinstance(value, str) else value for name, value in row.items()}


def _row(entry: Entry, result: Result) -> dict[str, Any]:
    case, row = result.case, result.row
    known: dict[str, Any] = {"experiment": entry.name, "scale": case.scale, "case": case.name}
    known |= {_AXIS_COLUMNS.get(axis, axis): value for axis, value in case.point}
    known |= {
        "gpus": case.layout.gpus,
        "microbatches": case.layout.microbatches,
        "cluster": row.cluster if row else None,
        "job": row.job_id if row else None,
        "run": row.run_id if row else None,
        "attempt": row.number if row else None,
        "scheduler_id": row.scheduler_id if row else None,
        "state": row.state if row else None,
        "verdict": row.verdict if row else None,
        "verdict_reason": row.verdict_reason if row else None,
        "nodes": row.nodes if row else None,
    }
    for name in _metrics(entry):
        known[name] = result.value(name)
    timing = result.metric("iteration_ms")
    known["iteration_ms_spread"] = timing.spread if timing else None
    known["iterations_used"] = timing.count if timing else None
    known["published"] = result.published.value if result.published else None
    known["published_how"] = result.published.how if result.published else None
    known["published_confirmed"] = result.published.confirmed if result.published else None
    if result.instead_of is not None:
        known |= {"workload": case.workload, "published_workload": result.instead_of}
    return known


def _metrics(entry: Entry) -> list[str]:
    """What every figure has, then what this one and its claims are about."""
    own: list[str] = [entry.experiment.axes.y.metric]
    for claim in entry.experiment.claims:
        own += claim.metrics if isinstance(claim, PublishedClaim) else []
        own += [claim.metric] if claim.metric else []
    return list(dict.fromkeys([*_METRICS, *own]))


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """CSV by RFC 4180; an empty field is a value that is not there."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def claim_rows(claims: Sequence[ClaimVerdict]) -> list[dict[str, str]]:
    return [
        {"claim": verdict.claim.id, "says": verdict.claim.says, "source": verdict.claim.source}
        | {"verdict": verdict.verdict, "because": masked(verdict.because)}
        for verdict in claims
    ]


def as_json(rows: Sequence[dict[str, Any]], claims: Sequence[ClaimVerdict]) -> str:
    return json.dumps({"cases": list(rows), "claims": claim_rows(claims)}, indent=2, allow_nan=False) + "\n"
