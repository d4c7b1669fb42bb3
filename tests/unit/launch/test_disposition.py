"""Whether a job is run again: every class of failure, asked for and not; and for how long it is held back."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.experiment import ExpectedOutcome
from orchestrator.identity import MachineIdentity, own_start_ticks, start_ticks, this_machine_identity
from orchestrator.launch.refresh import sender_is_alive
from orchestrator.launch.run_options import RunOptions
from orchestrator.launch.submit import disposition_of
from orchestrator.launch.supervise import may_be_resubmitted
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import now
from orchestrator.ledger.rows import AttemptRow
from orchestrator.ledger.runs import Disposition
from orchestrator.ledger.tables import (
    ENDED,
    FAILED,
    NEVER_SUBMITTED,
    OPEN,
    PARTIAL,
    QUEUED,
    RUNNING,
    SUBMITTING,
    VERIFIED,
    WAITING,
)
from orchestrator.planning.plan import Plan
from orchestrator.reading.failure import BACK_OFF_S, MOST_ATTEMPTS, POLICIES, Failure, failure_named, pause_before
from orchestrator.slurm.notation import time_limit_s
from tests.recorded_jobs import new_ledger, record_jobs
from tests.unit.render.plans import local, plans

# What comes out well on another node or another day. What is left costs GPU-hours and would fail again.
RUN_AGAIN = {
    Failure.NOT_SUBMITTED,
    Failure.REFUSED,
    Failure.NODE_FAIL,
    Failure.PREEMPTED,
    Failure.LOST,
    Failure.STOPPED,
    Failure.IMAGE,
    Failure.NCCL_ERROR,
    Failure.GPU_IN_USE,
    Failure.GPU_FAULT,
}
DONE, UNDER_WAY, LEFT, MISSING = Disposition.DONE, Disposition.UNDER_WAY, Disposition.LEFT, Disposition.MISSING
NOBODY = 2**22 + 1
"""A process id that no process has."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plans(local(tmp_path_factory.mktemp("here")), "cpu")[0]


def latest(failure: Failure | str | None = None, *, submitted: int = 1, **changes: Any) -> list[AttemptRow]:
    """Attempts of which so many were submitted. The last one failed of this, or is verified."""
    value = AttemptRow(
        job_id="job",
        run_id="run",
        token="",
        attempt_id=1,
        number=1,
        phase=ENDED,
        state="FAILED" if failure else "COMPLETED",
        verdict=FAILED if failure else VERIFIED,
        failure=str(failure) if failure else None,
        reason=None,
        scheduler="slurm",
        host=socket.gethostname(),
        pid=NOBODY,
        pid_start_ticks=None,
        machine=None,
        created_at=now(),
        folder="/runs/old/a",
        nodes="n1",
        scheduler_id="17",
    )
    earlier = replace(value, verdict=FAILED, failure="unknown")
    last = replace(value, **changes)
    return [*[earlier] * (submitted - 1), last if submitted else replace(last, scheduler_id=None)]


def test_the_classes_that_are_run_again_are_these() -> None:
    assert {failure for failure in Failure if POLICIES[failure].retry} == RUN_AGAIN


@pytest.mark.parametrize("failure", Failure)
def test_unasked_only_what_may_come_out_well_is_run_again(plan: Plan, failure: Failure) -> None:
    expected = MISSING if failure in RUN_AGAIN else LEFT
    assert disposition_of(plan, latest(failure), RunOptions()) is expected
    assert disposition_of(plan, latest(failure), RunOptions(only_failed=True)) is expected


@pytest.mark.parametrize("failure", Failure)
def test_asked_for_by_its_class_it_is_run_again_however_often_it_was_and_no_other_is(
    plan: Plan, failure: Failure
) -> None:
    others = frozenset(Failure) - {failure}
    for submitted in (0, 1, MOST_ATTEMPTS, MOST_ATTEMPTS + 5):
        for is_slurms in (False, True):
            asked, before = RunOptions(rerun_classes=frozenset({failure})), latest(failure, submitted=submitted)
            assert disposition_of(plan, before, asked, slurm_requeues=is_slurms) is MISSING
    assert disposition_of(plan, latest(failure), RunOptions(rerun_classes=others, only_failed=True)) is LEFT


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A job fails for the second and third time",
    promise="Each retry excludes all nodes that failed and starts later. Then no automatic retry follows.",
    count=0,
)
@pytest.mark.parametrize("failure", sorted(RUN_AGAIN))
def test_after_three_submissions_it_is_left_to_a_person(plan: Plan, failure: Failure) -> None:
    assert MOST_ATTEMPTS == 3
    assert disposition_of(plan, latest(failure, submitted=2, number=9), RunOptions()) is MISSING
    assert disposition_of(plan, latest(failure, submitted=3, number=3), RunOptions()) is LEFT


@pytest.mark.parametrize("failure", Failure)
def test_rerun_runs_everything_that_has_ended_again(plan: Plan, failure: Failure) -> None:
    rerun = RunOptions(rerun_verified=True)
    assert disposition_of(plan, latest(failure, submitted=MOST_ATTEMPTS), rerun) is MISSING
    assert disposition_of(plan, latest(), rerun) is MISSING
    assert disposition_of(plan, (), rerun) is MISSING


@pytest.mark.parametrize(
    "again", [RunOptions(), RunOptions(only_failed=True), RunOptions(rerun_classes=frozenset(Failure))]
)
def test_what_is_verified_or_partial_is_done(plan: Plan, again: RunOptions) -> None:
    assert disposition_of(plan, latest(), again) is DONE
    assert disposition_of(plan, latest(verdict=PARTIAL, state="TIMEOUT"), again) is DONE


@pytest.mark.fault(
    section="Ends that are expected",
    fault="A case runs out of memory as published",
    promise="The job is done and not repeated. Any other class is a failure.",
    count=0,
)
def test_what_runs_out_of_memory_as_its_source_says_is_done(plan: Plan) -> None:
    expected = ExpectedOutcome(where={}, outcome="oom", confirmed=True, source="a table")
    published = replace(plan, case=replace(plan.case, expected=expected))
    assert disposition_of(published, latest(Failure.GPU_OOM), RunOptions()) is DONE
    assert disposition_of(published, latest(Failure.GPU_OOM), RunOptions(rerun_verified=True)) is MISSING
    # It must be that memory, and that outcome.
    assert disposition_of(published, latest(Failure.HOST_OOM), RunOptions()) is LEFT
    assert disposition_of(published, latest(Failure.NODE_FAIL), RunOptions()) is MISSING
    assert disposition_of(published, latest(Failure.GPU_IN_USE), RunOptions()) is MISSING, "others had that memory"
    other = replace(plan, case=replace(plan.case, expected=None))
    assert disposition_of(other, latest(Failure.GPU_OOM), RunOptions()) is LEFT


def test_what_never_ran_is_missing_unless_only_failures_are_asked_for(plan: Plan) -> None:
    assert disposition_of(plan, (), RunOptions()) is MISSING
    assert disposition_of(plan, (), RunOptions(only_failed=True, rerun_classes=frozenset(Failure))) is LEFT


@pytest.mark.parametrize("phase", OPEN)
@pytest.mark.parametrize(
    "again", [RunOptions(), RunOptions(rerun_verified=True), RunOptions(rerun_classes=frozenset(Failure))]
)
def test_what_is_under_way_is_never_run_beside_itself(plan: Plan, phase: str, again: RunOptions) -> None:
    states = {SUBMITTING: "SUBMITTING", WAITING: "PENDING", RUNNING: "RUNNING"}
    assert disposition_of(plan, latest(phase=phase, state=states[phase], verdict=None), again) is UNDER_WAY


@pytest.mark.parametrize(
    "again", [RunOptions(), RunOptions(rerun_verified=True), RunOptions(rerun_classes=frozenset(Failure))]
)
def test_what_has_ended_and_was_not_read_yet_may_have_been_good(plan: Plan, again: RunOptions) -> None:
    assert disposition_of(plan, latest(verdict=None), again) is UNDER_WAY
    assert disposition_of(plan, latest(verdict=None, state="FAILED"), again) is UNDER_WAY


def queued_attempt(**changes: Any) -> list[AttemptRow]:
    return latest(submitted=0, **{"phase": WAITING, "state": QUEUED, "verdict": None, **changes})


def test_an_attempt_whose_sender_is_gone_is_made_anew(plan: Plan) -> None:
    assert disposition_of(plan, queued_attempt(), RunOptions()) is MISSING
    assert disposition_of(plan, queued_attempt(pid=None), RunOptions()) is MISSING
    assert disposition_of(plan, queued_attempt(), RunOptions(rerun_verified=True)) is MISSING
    # A retry is about what failed.
    assert disposition_of(plan, queued_attempt(), RunOptions(only_failed=True)) is UNDER_WAY
    # Claiming is safe whoever tries, so nobody asks whether another host's process lives.
    assert disposition_of(plan, queued_attempt(host="another", pid=os.getpid()), RunOptions()) is MISSING


def test_an_attempt_that_is_being_sent_is_left_to_its_sender(plan: Plan) -> None:
    me = {"pid": os.getpid(), "pid_start_ticks": own_start_ticks()}
    assert disposition_of(plan, queued_attempt(**me), RunOptions()) is UNDER_WAY
    assert sender_is_alive(queued_attempt(**me)[-1]) is True
    assert sender_is_alive(queued_attempt(pid=NOBODY, pid_start_ticks=own_start_ticks())[-1]) is False
    assert sender_is_alive(queued_attempt(**me, host="another")[-1]) is None
    for host in (socket.gethostname(), "another"):
        assert sender_is_alive(queued_attempt(pid=None, host=host)[-1]) is False


@pytest.mark.fault(
    section="Submissions",
    fault="A submitting process runs in another container, or the host name or the clock changes",
    promise="The process is identified by boot, PID namespace and start time.",
)
def test_a_sender_is_known_by_its_boot_and_start_time_whatever_the_host_is_called_and_the_clock_says(
    plan: Plan,
) -> None:
    long_ago, here = now() - timedelta(hours=1), this_machine_identity()
    own = {"pid": os.getpid(), "pid_start_ticks": own_start_ticks(), "machine": str(here), "created_at": long_ago}
    assert sender_is_alive(queued_attempt(host="renamed", **own)[-1]) is True
    assert disposition_of(plan, queued_attempt(host="renamed", **own), RunOptions()) is UNDER_WAY
    assert sender_is_alive(queued_attempt(**own | {"pid_start_ticks": 1})[-1]) is False, (
        "the number was given out again"
    )
    other_namespace = str(replace(here, pid_namespace="1"))
    assert sender_is_alive(queued_attempt(**own | {"machine": other_namespace})[-1]) is None, (
        "its processes cannot be seen"
    )
    rebooted = str(MachineIdentity(here.machine_id or "some-id", "another-boot", here.pid_namespace))
    assert sender_is_alive(queued_attempt(**own | {"machine": rebooted})[-1]) is (False if here.machine_id else None)


def test_a_younger_process_that_was_given_a_dead_senders_number_does_not_send_for_it(plan: Plan) -> None:
    with subprocess.Popen(["sleep", "60"]) as repro:
        try:
            own = {"pid": repro.pid, "pid_start_ticks": start_ticks(repro.pid)}
            younger = {**own, "pid_start_ticks": own_start_ticks()}
            assert sender_is_alive(queued_attempt(**own)[-1]) is True
            assert sender_is_alive(queued_attempt(**younger)[-1]) is False
            assert disposition_of(plan, queued_attempt(**own), RunOptions()) is UNDER_WAY
            assert disposition_of(plan, queued_attempt(**younger), RunOptions()) is MISSING
        finally:
            repro.kill()


@pytest.mark.parametrize("failure", Failure)
def test_where_slurm_itself_runs_again_what_lost_a_node_repro_does_not(plan: Plan, failure: Failure) -> None:
    expected = MISSING if failure in RUN_AGAIN - {Failure.NODE_FAIL, Failure.PREEMPTED} else LEFT
    assert disposition_of(plan, latest(failure), RunOptions(), slurm_requeues=True) is expected


def test_a_failure_without_a_class_or_of_one_that_is_gone_is_the_programs(plan: Plan) -> None:
    """As an older repro, or a newer one, has recorded it."""
    assert failure_named(None) is failure_named("no-such-class") is Failure.PROGRAM
    for name in (None, "no-such-class"):
        failed, asked = (
            queued_attempt(phase=ENDED, state="FAILED", verdict=FAILED, failure=name),
            RunOptions(rerun_classes=frozenset({Failure.PROGRAM})),
        )
        assert disposition_of(plan, failed, RunOptions()) is LEFT and disposition_of(plan, failed, asked) is MISSING


# ---- how soon ------------------------------------------------------------------------------------------------


def test_each_further_submission_is_held_back_longer() -> None:
    pauses = [pause_before(submitted, Failure.NODE_FAIL) for submitted in range(1, 6)]
    assert pauses[:3] == list(BACK_OFF_S) and pauses[3:] == [BACK_OFF_S[-1]] * 2
    assert pauses == sorted(pauses) and pauses[1] >= 60 and pauses[-1] <= time_limit_s("0:10:00")


@pytest.mark.parametrize("failure", Failure)
def test_what_never_was_submitted_or_was_asked_for_by_name_is_not_held_back(failure: Failure) -> None:
    assert pause_before(0, failure) == 0
    if failure not in RUN_AGAIN:
        assert pause_before(2, failure) == 0


# ---- while somebody waits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", Failure)
def test_while_somebody_waits_only_what_was_not_its_fault_and_began_is_run_again(
    tmp_path: Path, failure: Failure
) -> None:
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a")
    failed = replace(job_rows(ledger)[0], verdict=FAILED, failure=str(failure), phase=ENDED, state="FAILED")
    mends = failure in (Failure.NODE_FAIL, Failure.PREEMPTED, Failure.LOST, Failure.IMAGE, Failure.GPU_FAULT)
    assert may_be_resubmitted(failed) is mends
    assert not may_be_resubmitted(replace(failed, number=MOST_ATTEMPTS))
    assert not may_be_resubmitted(replace(failed, verdict=VERIFIED))
    assert not may_be_resubmitted(replace(failed, verdict=None, state=NEVER_SUBMITTED))
