"""Experiments that describe their program, and jobs of them in the ledger, with the numbers of their outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.library import Entry, read_experiment
from orchestrator.job_spec import JobSpec, Value
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric, MeasuredRow, Measurement, record_measurements
from orchestrator.ledger.runs import Disposition, run_ids
from orchestrator.ledger.tables import Attempt, Run
from orchestrator.programs.program import metric_definitions
from tests.recorded_jobs import START, new_attempts, new_job, new_run, record_run

SWEEP = """\
figure: all-reduce
title: Bus bandwidth of all-reduce by message size
program:
  name: nccl-tests
  command: [all_reduce_perf, -b, "{from}", -e, "{to}", -f, "2"]
  processes: one per GPU
  axes: {from: {unit: B}, to: {unit: B}, size: {unit: B, about: size of the message}}
  output:
    rows: {columns: size count type time_us busbw wrong, key: size}
    values: {out_of_bounds: 'Out of bounds values *: *{number}'}
  metrics:
    busbw: {unit: GB/s, better: higher, label: Bus bandwidth}
    time_us: {unit: us, better: lower}
  verified: out_of_bounds == 0 and all(wrong == 0)
matrix: {gpus: [4, 8]}
fixed: {from: 8, to: 16G}
plot:
  x: {label: Message size, of: [size], scale: log2}
  y: {label: Bus bandwidth (GB/s), metric: busbw, scale: log2}
  also: [{label: Time (us), metric: time_us, scale: log2}]
  series: {label: GPUs, of: gpus}
published:
  - {where: {gpus: 8, size: 16G}, metric: busbw, value: 480, how: printed, confirmed: true, source: a table, gpu: H100}
  - {where: {gpus: 8, size: 1M}, metric: busbw, value: 72, how: printed, confirmed: true, source: a table, gpu: H100}
claims:
  - {id: rises, kind: trend, says: It rises., source: a figure, stated: derived, judged_at: [paper], along: size,
     direction: rises, tolerance: 0.2}
  - {id: largest-is-best, kind: peak, says: The largest is best., source: a figure, stated: derived,
     judged_at: [paper], at: {size: 16G}}
  - {id: wide, kind: spread, says: It differs., source: a figure, stated: derived, judged_at: [paper], at_least: 10}
  - {id: gain, kind: gain, says: Size pays., source: a figure, stated: derived, judged_at: [paper], along: size,
     where_largest: gpus}
  - {id: eight, kind: ratio, says: 8 are like 4., source: a figure, stated: derived, judged_at: [paper],
     of: {gpus: 8}, over: {gpus: 4}, at_least: 0.5, where: {size: 16G}}
  - {id: pairs, kind: ratio, says: Pairs have one size., source: a figure, stated: derived, judged_at: [paper],
     of: {gpus: 8}, over: {gpus: 4}, at_least: 0.1, at_most: 10}
  - {id: closes, kind: closes, says: The gap closes., source: a figure, stated: derived, judged_at: [paper],
     of: {gpus: 8}, over: {gpus: 4}, along: size}
  - {id: as-published, kind: published, says: As published., source: a table, stated: printed, judged_at: [paper],
     metrics: [busbw], tolerance: 0.1}
  - {id: ends, kind: outcome, says: It ends., source: a text, stated: printed, judged_at: [paper], outcome: ok}
"""
LOSS = """\
figure: Figure 1
title: Loss by width
program:
  command: [python3, train_toy.py, --width, "{width}", --steps, "{steps}"]
  output: {iterations: 'step={iteration} loss={loss}'}
  metrics: {loss: {better: lower, take: last, rate: false}}
  verified: iterations == steps
matrix: {width: [64, 128, 256]}
fixed: {steps: 10}
plot: {x: {label: Width, of: [width]}, y: {label: Loss, metric: loss}}
claims:
  - {id: wider-is-better, kind: trend, says: The loss falls with the width., source: a figure, stated: derived,
     judged_at: [paper], along: width, direction: falls}
"""

Numbers = Mapping[str, float]


def write_described(folder: Path, text: str, name: str = "figure") -> Entry:
    """Write an experiment into the folder `experiments/own` of a home folder, and read it."""
    file = folder / "experiments" / "own" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return read_experiment(f"own/{name}", file, {f"own/{one.stem}": one for one in file.parent.glob("*.yaml")})


def record_described(
    ledger: Ledger,
    entry: Entry,
    outputs: Mapping[str, Sequence[tuple[Value, Numbers]] | Numbers | None],
    *,
    at: datetime = START,
    repeat: int = 1,
    cluster: str = "here",
    gpu: str | None = "NVIDIA H100 80GB HBM3",
    nodes: str = "n1",
) -> str:
    """Record a run of the named cases, and return its id.

    An output is the rows of a table by the value of their key, or single numbers, or None for a job that failed.
    """
    assert entry.described is not None
    cases = {case.name: case for case in cases_to_run(entry)}
    record = entry.described.model_dump(mode="json", by_alias=True, exclude_unset=True)
    run_id = f"{at:%Y%m%d-%H%M%S}-{len(run_ids(ledger)):04x}"
    run = replace(new_run(entry.name, "paper"), id=run_id, cluster=cluster)
    jobs = {
        name: replace(
            new_job(name, "slurm"),
            id=hashlib.sha256(f"{cluster} {name} {repeat}".encode()).hexdigest()[:12],
            cluster=cluster,
            program=cases[name].program,
            gpus=cases[name].gpus,
            iterations=0,
            repeat=repeat,
            spec=JobSpec(
                point=dict(cases[name].point), settings=cases[name].settings, device="gpu", program=record, gpu=gpu
            ),
        )
        for name in outputs
    }
    record_run(ledger, run, list(jobs.values()), lambda *_: Disposition.MISSING, new_attempts("/runs"))
    with ledger.writing() as session:
        ids = dict(session.execute(sa.select(Attempt.job_id, Attempt.id).where(Attempt.run_id == run_id)).all())
        ended = {"phase": "ended", "state": "COMPLETED", "started_at": at, "ended_at": at + timedelta(minutes=6)}
        session.execute(sa.update(Attempt).where(Attempt.run_id == run_id).values(nodes=nodes, **ended))
        session.execute(sa.update(Run).where(Run.id == run_id).values(created_at=at))
    record_measurements(ledger, [_measurement(entry, ids[jobs[name].id], output) for name, output in outputs.items()])
    return run_id


def _measurement(
    entry: Entry, attempt_id: int, output: Sequence[tuple[Value, Numbers]] | Numbers | None
) -> Measurement:
    assert entry.described is not None
    units = {name: metric.unit for name, metric in metric_definitions(entry.described).items()}

    def metrics(numbers: Numbers) -> tuple[MeasuredMetric, ...]:
        return tuple(MeasuredMetric(name, value, units[name]) for name, value in numbers.items())

    if output is None:
        return Measurement(attempt_id, None, "failed", "exit code 1", (), (), "program")
    if isinstance(output, Mapping):
        return Measurement(attempt_id, None, "verified", None, (), metrics(output))
    (key,) = entry.described.output.key
    rows = tuple(MeasuredRow({key: value}, metrics(numbers)) for value, numbers in output)
    return Measurement(attempt_id, None, "verified", None, (), (), rows=rows)


SIZES = [2**power for power in range(3, 35)]


def sweep(largest: float, sizes: Sequence[int] = SIZES) -> list[tuple[Value, Numbers]]:
    """Return the rows of a sweep whose bandwidth approaches `largest` in GB/s. Small sizes take 13 us."""
    times = {size: 13.0 + size / largest / 1e3 for size in sizes}
    return [
        (float(size), {"busbw": round(size / time / 1e3, 2), "time_us": round(time, 2)}) for size, time in times.items()
    ]
