"""The closed form of memory against shipped cases that ran on four H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.catalog.case import Case
from orchestrator.planning.cost import memory_of
from tests.unit.catalog.entries import find_case

# 2026-11-21, scale quad, `repro submit NAME --cluster local` with megatron-core 0.16.1 and torch 2.11: the most that
# torch.cuda.max_memory_allocated came to on any rank, in MiB as the log prints it, and how near the closed form is.
# The tutorial's rows ran with the distributed optimizer.
MEASURED = [
    ("table-1", "case=1.7B", 48172.74, 0.003),
    ("table-1", "case=3.6B", 44843.77, 0.003),
    ("table-1", "case=7.5B", 45962.43, 0.003),
    ("tutorial-cp", "case=302", 47171.07, 0.003),
    ("tutorial-cp", "case=304", 30488.30, 0.003),
    ("atc-demo", "case=no-recompute", 86088.16, 0.025),
]


def as_it_ran(experiment: str, name: str) -> Case:
    case = find_case(experiment, name, "quad")
    return replace(case, training=replace(case.training, distributed_optimizer=True))


@pytest.mark.parametrize(("experiment", "name", "measured_mib", "within"), MEASURED)
def test_a_case_that_ran_held_what_was_predicted(
    experiment: str, name: str, measured_mib: float, within: float
) -> None:
    predicted = memory_of(as_it_ran(experiment, name)).total_bytes
    assert predicted == pytest.approx(measured_mib * 2**20, rel=within)
