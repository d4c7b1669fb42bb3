"""Every state word that Slurm prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.notation import Phase, base_state, may_run_again, phase_of

PHASES = {
    Phase.WAITING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT RESV_DEL_HOLD "
    "REQUEUED_CRON EXPEDITING POWER_UP_NODE LAUNCH_FAILED RECONFIG_FAIL",
    Phase.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING UPDATE_DB",
    Phase.ENDED: "COMPLETED FAILED CANCELLED TIMEOUT DEADLINE OUT_OF_MEMORY NODE_FAIL BOOT_FAIL PREEMPTED",
    Phase.UNKNOWN: "REVOKED",
}
CASES = [(state, phase) for phase, states in PHASES.items() for state in states.split()]


def test_a_state_has_its_phase() -> None:
    for state, phase in CASES:
        assert {phase_of(text) for text in (state, f" {state.lower()} ", f"{state}+")} == {phase}, state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1000", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("COMPLETED ", "COMPLETED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("REQUEUE_H+", "REQUEUE_HOLD"),
        ("RE+", "RE"),
        ("+", ""),
        ("", ""),
        ("NEWSTATE", "NEWSTATE"),
    ],
)
def test_the_decoration_of_a_state_is_dropped(text: str, state: str) -> None:
    assert base_state(text) == state


@pytest.mark.fault(
    section="Job states",
    fault="Slurm reports an unknown state",
    promise="The state is shown as it is and never counts as an end.",
    count=0,
)
@given(st.text())
def test_a_word_that_is_not_a_state_never_ends_a_job(text: str) -> None:
    if base_state(text) not in {state for state, _ in CASES}:
        assert phase_of(text) is Phase.UNKNOWN


def test_a_lost_node_or_a_preemption_may_be_followed_by_another_run() -> None:
    assert may_run_again("NODE_FAIL") and may_run_again("PREEMPTED")
    assert not may_run_again("FAILED") and not may_run_again("CANCELLED by 0")
