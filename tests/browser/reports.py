"""Experiments in the report of these tests: reproduced cases, failed cases, and hostile texts."""

from __future__ import annotations

from pathlib import Path

from orchestrator.megatron.case import TrainingCase
from tests.recorded_jobs import GPU_OOM, PENDING, Outcome
from tests.unit.catalog.entries import write_experiment

SECRET = "hf_" + "abcdefghij0123456789ABCDEF"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)><a href='javascript:alert(3)'>\x1b[31m\u202e"
_IN_YAML = HOSTILE.replace("'", "''").replace("\x1b", "").replace("\u202e", "")

HOSTILE_FIGURE = f"""\
figure: 'Figure {_IN_YAML}'
title: '{_IN_YAML}'
program: megatron-2021
gpus: 8
model: {{layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}}
cases:
  - {{case: '{_IN_YAML}'}}
  - {{case: 'second {_IN_YAML}'}}
fixed: {{mbs: 1, gbs: 8, tp: 8}}
plot:
  x: {{label: 'X {_IN_YAML}', of: [case]}}
  y: {{label: 'Y {_IN_YAML}', metric: tflops_per_gpu}}
"""


def hostile_experiment(home: Path) -> None:
    write_experiment(home, HOSTILE_FIGURE)


def in_turn(place: int, _case: TrainingCase) -> Outcome:
    """Return ten numbers whose order differs in the file, as texts, and as version numbers."""
    return Outcome({3: 9.5, 4: 9.25, 7: 1000.0}.get(place, 100.0 + 7 * (place % 4) + place))


def failing(place: int, case: TrainingCase) -> Outcome:
    """Return an experiment with failed and pending jobs.

    Every third job fails with a hostile line that has a secret, and the second is pending.
    """
    line = f"{HOSTILE} {SECRET}"
    if place % 3 == 0:
        return Outcome(columns=GPU_OOM | {"deciding_line": line, "verdict_reason": line, "reason": line})
    return Outcome(columns=PENDING) if place == 1 else Outcome(100.0 + case.layout.gpus / 100)
