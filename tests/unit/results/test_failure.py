"""The class of a failure: it decides what is run again, so a wrong one costs GPU-hours or a result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.ledger.tables import ENDED
from orchestrator.megatron.log_lines import IterationLine
from orchestrator.results.failure import MADE_WAY, POLICIES, Failure, failed_nodes, failure_of
from orchestrator.results.outcome import Ending
from orchestrator.results.read import read_log

# As a real Slurm 22.05 and pyxis 0.24 print them.
NODE_LOST = b"srun: error: Node failure on n8\nsrun: Job step aborted\nsrun: error: n7: task 0: Terminated\n"
HOST_OOM = (
    b"srun: error: n1: task 0: Out Of Memory\nslurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=4.0.\n"
)
GPU_OOM = (
    b"2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nsrun: error: n2: task 2: Exited\n"
)
NO_IMAGE = b"slurmstepd-n3: error: pyxis: couldn't start container\nsrun: error: n3: task 4: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("state", "exit_code", "log", "expected"),
    [
        ("NODE_FAIL", None, NODE_LOST, "node-fail"),
        ("BOOT_FAIL", None, b"", "node-fail"),
        ("PREEMPTED", None, HOST_OOM, "preempted"),
        ("LOST", None, b"", "lost"),
        ("CANCELLED", None, b"", "cancelled"),
        ("NEVER_SUBMITTED", None, b"", "not-submitted"),
        ("TIMEOUT", None, b"", "timeout"),
        ("DEADLINE", None, b"", "timeout"),
        ("TIMEOUT", None, GPU_OOM, "gpu-oom"),
        ("OUT_OF_MEMORY", 0, b"", "host-oom"),
        ("FAILED", 137, HOST_OOM, "host-oom"),
        ("COMPLETED", 0, HOST_OOM, "host-oom"),
        ("FAILED", 1, GPU_OOM, "gpu-oom"),
        ("FAILED", 1, NO_IMAGE, "image"),
        ("FAILED", 97, b"repro: n3 runs the task outside its image\n", "configuration"),
        ("FAILED", 2, b"pretrain: error: unrecognized arguments: --no-such\n", "configuration"),
        ("FAILED", 1, b"ModuleNotFoundError: No module named 'megatron'\n", "configuration"),
        ("FAILED", 127, b"job.sh: line 20: nosuch: command not found\n", "configuration"),
        ("FAILED", 1, b"job.sh: line 3: HF_TOKEN: must be exported in the shell that submits\n", "configuration"),
        ("FAILED", 95, b"repro: not started: 3 jobs of this run have ended with exit code 1\n", "stopped"),
        ("FAILED", 1, b"RuntimeError: something else\n", "program"),
        ("FAILED", 139, b"", "program"),
        ("COMPLETED", 0, b"", "incomplete"),
    ],
)  # fmt: skip
def test_each_fault_has_its_class(state: str, exit_code: int | None, log: bytes, expected: str) -> None:
    assert str(failure_of(read_log(log), Ending(ENDED, state, exit_code, None))) == expected


def test_a_job_that_a_failed_one_kept_from_starting_was_stopped_and_not_cancelled_by_a_person() -> None:
    ending = Ending(ENDED, "CANCELLED", None, "DependencyNeverSatisfied")
    assert failure_of(read_log(b""), ending) is Failure.STOPPED


def test_a_job_that_ended_within_its_grace_made_way_though_slurm_calls_it_failed() -> None:
    log = read_log(b"srun: error: n3: tasks 0-3: Terminated\n")
    assert failure_of(log, Ending(ENDED, "FAILED", 143, MADE_WAY)) is Failure.PREEMPTED
    assert failure_of(log, Ending(ENDED, "FAILED", 143, "NonZeroExitCode")) is Failure.PROGRAM


def test_numbers_that_are_none_are_told_from_a_log_that_ends_early() -> None:
    nan = IterationLine(1, 1, 100.0, float("nan"), 1.0, 0, 0)
    report = replace(read_log(b""), iterations=(nan,))
    assert failure_of(report, Ending(ENDED, "COMPLETED", 0, None)) is Failure.NUMBERS


def test_a_job_outside_its_image_that_ended_well_is_a_matter_of_configuration() -> None:
    ending = Ending(ENDED, "COMPLETED", 0, None, "0 of 2 nodes ran it inside torch:1")
    assert failure_of(read_log(b""), ending) is Failure.CONFIGURATION


@pytest.mark.parametrize(
    ("log", "nodes", "expected"),
    [
        (NODE_LOST, "n[7-8]", ("n8",)),
        (NO_IMAGE, "n[3-4]", ("n3",)),
        (GPU_OOM, "n[1-2]", ("n2",)),
        (b"", "n4", ("n4",)),
        (b"", "n[1-4]", ()),
        (b"", None, ()),
    ],
)
def test_only_the_node_at_fault_is_avoided(log: bytes, nodes: str | None, expected: tuple[str, ...]) -> None:
    assert failed_nodes(log, nodes) == expected


def test_every_class_has_a_policy_and_what_would_fail_again_is_never_run_again_unasked() -> None:
    assert set(POLICIES) == set(Failure)
    again = {str(failure) for failure, policy in POLICIES.items() if policy.again}
    assert again == {"not-submitted", "refused", "node-fail", "preempted", "lost", "stopped", "image"}
    assert {str(failure) for failure, policy in POLICIES.items() if policy.elsewhere} == {"node-fail", "image"}
