"""Rows of the kinds of causes, each with the text of a program as an example."""

from __future__ import annotations

import pytest

from orchestrator.reading import cause_kinds as kinds
from orchestrator.reading.causes import cause
from orchestrator.reading.failure import POLICIES, Ending, Failure, failing_line, failure_of

RETRIED = {kinds.CONTAINER, kinds.LAUNCH_FAILED, kinds.NCCL_ERROR, kinds.NETWORK_ERROR}
NOTICES = (
    "srun: job 321 queued and waiting for resources\n"
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="srun, the network, a container runtime or a NaN ends the program with a text of its own",
    promise="The line and its class are those of the text, not of a notice of srun; the class decides the retry.",
)
@pytest.mark.parametrize("row", [row for row in kinds.ROWS if row.example], ids=lambda row: f"{row.source}-{row.kind}")
def test_the_example_of_each_row_has_its_kind_and_outranks_notices(row: kinds.CauseRow) -> None:
    found = cause(f"{NOTICES}{row.example}\nsrun: error: n2: task 0: Exited with exit code 1\n".encode())
    assert found is not None and found.kind == row.kind and found.line in row.example and row.source
    failure = failure_of(Ending("ended", "FAILED", 1, None, "no proof", nodes_inside=0), found.kind)
    assert POLICIES[failure].retry == (row.kind in RETRIED)
    if failure is not Failure.CONFIGURATION:
        assert failing_line(failure, found) == found
