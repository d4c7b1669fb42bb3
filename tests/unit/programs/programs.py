"""Programs and outputs of the tests."""

from __future__ import annotations

import yaml

from orchestrator.programs.program import ProgramFields

SWEEP = """
name: sweep
command: [all_reduce, -b, "{from}", -e, "{to}"]
processes: one per GPU
axes: {from: {unit: B}, to: {unit: B}, size: {unit: B}}
output:
  rows: {columns: size count type time_us busbw wrong, key: size}
  values: {out_of_bounds: 'Out of bounds values *: *{number}'}
metrics: {busbw: {unit: GB/s, better: higher}, time_us: {unit: us, better: lower}}
verified: out_of_bounds == 0 and rows == 3 and all(wrong == 0)
"""
SWEEP_OUTPUT = """\
# warm-up iterations 5, ranks 2
#   size    count    type    time   busbw  #wrong
#    (B)  (elems)            (us)  (GB/s)
       8        2   float   13.67    0.00       0
    1024      256   float   16.94    0.11       0
 1048576   262144   float   27.37   67.04       0
# Out of bounds values : 0 OK
"""
TRAINING = """
command: [python3, train_toy.py, --width, "{width}", --steps, "{steps}"]
output: {iterations: 'step={iteration} loss={loss}'}
metrics: {loss: {better: lower, take: last}}
verified: iterations == steps
"""


def program(text: str) -> ProgramFields:
    """Return the program of a YAML text."""
    return ProgramFields.model_validate(yaml.safe_load(text))
