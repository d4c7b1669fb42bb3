"""Tests of failure classes. A wrong class costs GPU-hours or a result."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from orchestrator.errors import ReproError
from orchestrator.launch.supervise import failure_classes
from orchestrator.ledger.tables import ENDED
from orchestrator.megatron.logs.reader import MEGATRON_LINES
from orchestrator.reading.causes import Cause, CauseFinder
from orchestrator.reading.failure import (
    DECIDES_ANY_END,
    POLICIES,
    PREEMPTED_IN_GRACE,
    Ending,
    Failure,
    LogFindings,
    Mismatch,
    class_named,
    failing_line,
    fails_as_published,
    failure_of,
    is_of_classes,
    judgement_of,
    other_commit,
    pause_before,
    policy_of,
)
from tests.causes import megatron_cause

# As a real Slurm 22.05 and pyxis 0.24 print them.
NODE_LOST = b"srun: error: Node failure on n8\nsrun: Job step aborted\nsrun: error: n7: task 0: Terminated\n"
HOST_OOM = (
    b"srun: error: n1: task 0: Out Of Memory\nslurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=4.0.\n"
)
GPU_OOM = (
    b"2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nsrun: error: n2: task 2: Exited\n"
)
BUSY = (
    b"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of"
    b" 139.80 GiB of which 980.06 MiB is free. Process 1234 has 100.00 GiB memory in use. Including non-PyTorch memory,"
    b" this process has 38.84 GiB memory in use. Of the allocated memory 36.82 GiB is allocated by PyTorch\n"
)
NCCL = b"3: torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error, NCCL version 2.28.9\n"
HUNG = b"[rank1]:[E810] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78\n"
LIMIT = b"slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT ***\n"
MISUSED = b"DistBackendError: NCCL error in: x.cpp:94, invalid usage (run with NCCL_DEBUG=WARN), NCCL version 2.28.9\n"
LOST = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
NO_IMAGE = b"slurmstepd-n3: error: pyxis: couldn't start container\nsrun: error: n3: task 4: Exited with exit code 1\n"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Slurm's and pyxis's messages for each fault",
    promise="Each has its class.",
    count=0,
)
@pytest.mark.parametrize(
    ("state", "exit_code", "log", "expected"),
    [
        ("NODE_FAIL", None, NODE_LOST, "node-fail"),
        ("BOOT_FAIL", None, b"", "node-fail"),
        ("LAUNCH_FAILED", None, b"", "node-fail"),
        ("PREEMPTED", None, HOST_OOM, "preempted"),
        ("LOST", None, b"", "lost"),
        ("CANCELLED", None, b"", "cancelled"),
        ("CANCELLED", 1, b"slurmstepd: Job 6398 exceeded memory limit (50385 > 49152), being killed\n", "host-oom"),
        ("CANCELLED", None, GPU_OOM, "cancelled"),
        ("NEVER_SUBMITTED", None, b"", "not-submitted"),
        ("TIMEOUT", None, b"", "timeout"),
        ("DEADLINE", None, b"", "deadline"),
        ("DEADLINE", None, GPU_OOM, "gpu-oom"),
        ("TIMEOUT", None, GPU_OOM, "gpu-oom"),
        ("TIMEOUT", None, LIMIT + NCCL, "timeout"),
        ("TIMEOUT", None, NCCL + LIMIT, "nccl-error"),
        ("TIMEOUT", None, HUNG + LIMIT, "nccl-timeout"),
        ("TIMEOUT", None, HOST_OOM, "host-oom"),
        ("TIMEOUT", None, b"AssertionError: 3 ranks\n", "configuration"),
        ("TIMEOUT", None, b"RuntimeError: something else\n", "timeout"),
        ("TIMEOUT", None, b"bash: line 3: module: command not found\n", "timeout"),
        ("FAILED", 1, NCCL, "nccl-error"),
        ("FAILED", 1, b"ncclRemoteError: A call failed possibly due to a network error\n", "nccl-error"),
        ("FAILED", 134, HUNG + NCCL.replace(b"unhandled system", b"remote process exited or there was a network"),
         "nccl-timeout"),
        ("FAILED", 1, MISUSED, "configuration"),
        ("FAILED", 1, b"AssertionError: world size (8) is not divisible by 3\n", "configuration"),
        ("FAILED", 1, NODE_LOST, "node-fail"),
        ("FAILED", 15, LIMIT.replace(b"TIME LIMIT", b"PREEMPTION"), "preempted"),
        ("COMPLETED", 0, b"pretrain_gpt.py: error: unrecognized arguments: --no-such\n", "configuration"),
        ("COMPLETED", 0, GPU_OOM, "gpu-oom"),
        ("COMPLETED", 0, b"RuntimeError: something else\n", "incomplete"),
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
        ("FAILED", 137, b"", "killed"),
        ("FAILED", 137, b"job.sh: line 52: 1234 Killed                  timeout --foreground 60 x\n", "killed"),
        ("FAILED", 1, b"  traceback : Signal 9 (SIGKILL) received by PID 1688\n", "killed"),
        ("FAILED", 137, b"srun: error: n2: task 3: Killed\nsrun: error: n1: tasks 0-2: Terminated\n", "killed"),
        ("FAILED", 1, b"srun: error: n1: tasks 0-2: Killed\nsrun: error: n2: task 3: Exited with exit code 1\n",
         "program"),
        ("FAILED", 1, b"  traceback : Signal 11 (SIGSEGV) received by PID 1688\n", "program"),
        ("FAILED", 1, BUSY, "gpu-in-use"),
        ("TIMEOUT", None, BUSY, "gpu-in-use"),
        ("FAILED", 1, BUSY + GPU_OOM, "gpu-in-use"),
        ("FAILED", 1, BUSY + BUSY.replace(b"has 100.00 GiB", b"has 0.10 GiB").replace(b"38.84", b"138.74"), "gpu-oom"),
        ("FAILED", 1, b"[rank1]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n",
         "gpu-fault"),
        ("FAILED", 1, b"RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
         "configuration"),
        ("COMPLETED", 0, b"", "incomplete"),
    ],
)  # fmt: skip
def test_each_fault_has_its_class(state: str, exit_code: int | None, log: bytes, expected: str) -> None:
    assert str(classed(log, Ending(ENDED, state, exit_code, None))) == expected


def classed(log: bytes, ending: Ending) -> Failure:
    line = megatron_cause(log)
    return failure_of(ending, line.kind if line else None)


def test_job_with_a_failed_dependency_is_stopped_not_cancelled() -> None:
    ending = Ending(ENDED, "CANCELLED", None, "DependencyNeverSatisfied")
    assert failure_of(ending, None) is Failure.STOPPED
    assert failure_of(replace(ending, state="FAILED"), None) is Failure.PROGRAM, "it has run"


def test_job_that_ended_within_its_grace_is_preempted() -> None:
    log = b"srun: error: n3: tasks 0-3: Terminated\n"
    assert classed(log, Ending(ENDED, "FAILED", 143, PREEMPTED_IN_GRACE)) is Failure.PREEMPTED
    assert classed(log, Ending(ENDED, "FAILED", 143, "NonZeroExitCode")) is Failure.PROGRAM


def test_nan_and_an_incomplete_log_have_different_classes() -> None:
    well = Ending(ENDED, "COMPLETED", 0, None)
    assert failure_of(well, None, is_finite=False) is Failure.NUMBERS
    assert failure_of(well, "error", is_finite=False, is_whole=True) is Failure.NUMBERS
    assert failure_of(well, "error") is Failure.INCOMPLETE


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A program crashes before the last node's container has started",
    promise="The class and line of the crash are reported, not the missing proof of the image.",
    count=0,
)
@pytest.mark.parametrize(
    ("state", "exit_code", "nodes_inside", "log", "expected"),
    [
        ("COMPLETED", 0, 0, b"", "configuration"),
        ("COMPLETED", 0, 0, b"ValueError: the answer is 41\n", "configuration"),
        ("COMPLETED", 0, 1, b"ValueError: the answer is 41\n", "configuration"),
        ("COMPLETED", 0, 0, BUSY, "gpu-in-use"),
        ("FAILED", 1, 0, NO_IMAGE, "image"),
        ("FAILED", 1, 1, NO_IMAGE, "image"),
        ("FAILED", 1, 1, b"ValueError: the answer is 41\n", "program"),
        ("FAILED", 1, None, b"ValueError: the answer is 41\n", "program"),
        ("FAILED", 1, 1, NCCL, "nccl-error"),
        ("FAILED", 1, 0, b"CUDA error: uncorrectable ECC error encountered\n", "gpu-fault"),
        ("FAILED", 97, 0, b"repro: n3 runs the task outside its image\n", "configuration"),
        ("FAILED", 255, 0, b"srun: unrecognized option '--container-image=/x'\n", "configuration"),
        ("FAILED", 255, 0, b"srun: error: pyxis: could not add mount entry: a:b\n", "configuration"),
        ("FAILED", 1, 0, b"srun: error: Couldn't find the specified plugin name for mpi/pmix\n", "configuration"),
        ("FAILED", 1, 1, b"", "configuration"),
        ("FAILED", 137, None, b"", "killed"),
        ("FAILED", 137, None, b"using world size: 4\n", "killed"),
    ],
)  # fmt: skip
def test_the_cause_decides_before_the_missing_proof_of_the_image(
    state: str, exit_code: int, nodes_inside: int | None, log: bytes, expected: str
) -> None:
    ending = Ending(ENDED, state, exit_code, None, "1 of 2 nodes ran it inside torch:1", None, nodes_inside)
    finder = CauseFinder(MEGATRON_LINES)
    finder.feed(log)
    line = finder.cause()
    assert str(failure_of(ending, line.kind if line else None)) == expected


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A task fails, srun ends the others, and Slurm reports the code of an ended task",
    promise="The reason has the code of the first task that ended by itself.",
)
@pytest.mark.parametrize(
    ("exit_code", "ends", "shown"),
    [
        (143, ["n1: tasks 0-1: Exited with exit code 143", "n2: task 2: Exited with exit code 1"], 1),
        (137, ["n2: tasks 2-3: Exited with exit code 2", "n2: task 4: Exited with exit code 1"], 2),
        (143, ["n1: tasks 0-1: Exited with exit code 143", "n2: task 2: Terminated"], 143),
        (3, ["n1: tasks 0-1: Exited with exit code 1"], 3),
        (143, ["n2: task 2: Exited with exit code 137", "n2: task 3: Exited with exit code 14"], 14),
    ],
)
def test_the_reason_has_the_code_of_the_task_that_ended_by_itself(exit_code: int, ends: list[str], shown: int) -> None:
    log = "ValueError: bad\n" + "".join(f"srun: error: {end}\n" for end in ends)
    ending = Ending(ENDED, "FAILED", exit_code, None)
    judged = judgement_of(LogFindings(), ending, lambda: megatron_cause(log.encode()))
    assert judged.reason == f"FAILED with exit code {shown} (error: ValueError: bad)"


@pytest.mark.parametrize("line", ["task: line 14: 1234 Killed  python", "srun: error: n2: task 3: Out Of Memory"])
def test_the_reason_of_a_killed_task_has_the_code_of_its_signal(line: str) -> None:
    log = f"{line}\n0: {LOST}\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n"
    judged = judgement_of(LogFindings(), Ending(ENDED, "FAILED", 137, None), lambda: megatron_cause(log.encode()))
    assert judged.failure in {"killed", "host-oom"} and str(judged.reason).startswith("FAILED with exit code 137 (")


@pytest.mark.parametrize("kind", [None, "out of GPU memory", "out of host memory", "NCCL time-out", "error"])
@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"])
def test_job_with_another_configuration_has_class_configuration(state: str, kind: str | None) -> None:
    """For example not that it ran out of memory as published."""
    assert failure_of(Ending(ENDED, state, None, None), kind, differs=True) is Failure.CONFIGURATION


@pytest.mark.parametrize("state", ["NEVER_SUBMITTED", "NODE_FAIL", "PREEMPTED", "LOST", "CANCELLED"])
def test_state_set_by_others_decides_before_the_log(state: str) -> None:
    ending = Ending(ENDED, state, None, None)
    assert failure_of(ending, "out of GPU memory", differs=True) is failure_of(ending, None)


def test_temporary_memory_shortage_does_not_decide_a_complete_job() -> None:
    well = Ending(ENDED, "COMPLETED", 0, None)
    assert failure_of(well, "out of GPU memory", is_whole=True, is_finite=False) is Failure.NUMBERS


LIMIT_LINE = Cause("time limit", "DUE TO TIME LIMIT", None)
FOUND = Cause(
    "NCCL error", "NCCL error in", 3, (LIMIT_LINE, Cause("not a number", "nan", 7), Cause("what ran", "w", 0))
)


@pytest.mark.parametrize(
    ("failure", "best", "line"),
    [
        (Failure.NCCL_ERROR, FOUND, "NCCL error in"),
        (Failure.TIMEOUT, FOUND, "DUE TO TIME LIMIT"),
        (Failure.DEADLINE, FOUND, "DUE TO TIME LIMIT"),
        (Failure.NUMBERS, FOUND, "nan"),
        (Failure.PROGRAM, FOUND, "NCCL error in"),
        (Failure.CANCELLED, FOUND, None),
        (Failure.NODE_FAIL, FOUND, None),
        (Failure.GPU_OOM, FOUND, None),
        (Failure.TIMEOUT, Cause("error", "ValueError: x", 3), "ValueError: x"),
        (Failure.LOST, Cause("error", "ValueError: x", 3), "ValueError: x"),
        (Failure.INCOMPLETE, Cause("error", "ValueError: x", 3), "ValueError: x"),
        (Failure.INCOMPLETE, Cause("what ran", "w", 0), None),
        (Failure.PROGRAM, None, None),
    ],
)
def test_shown_line_belongs_to_the_failure_class(failure: Failure, best: Cause | None, line: str | None) -> None:
    shown = failing_line(failure, best)
    assert (shown.line if shown else None) == line


def test_every_class_has_a_policy_and_only_external_failures_are_retried() -> None:
    assert set(POLICIES) == set(Failure)
    again = {str(failure) for failure, policy in POLICIES.items() if policy.retry}
    of_gpus = {"gpu-in-use", "gpu-fault"}
    of_others = {"not-submitted", "refused", "node-fail", "preempted", "lost", "stopped", "image", "nccl-error"}
    assert again == of_others | of_gpus
    elsewhere = {str(failure) for failure, policy in POLICIES.items() if policy.exclude_node}
    assert elsewhere == {"node-fail", "image"} | of_gpus


def test_lines_of_terminated_ranks_never_decide_any_end() -> None:
    assert DECIDES_ANY_END.isdisjoint(
        {"error", "a rank was killed", "a rank crashed", "NCCL lost a rank", "not found", "time limit"}
    )


def test_a_class_of_a_described_program_has_the_policy_of_the_program() -> None:
    assert class_named("bad-link") == "bad-link" and class_named("timeout") is Failure.TIMEOUT
    assert class_named(None) is Failure.PROGRAM
    assert policy_of("bad-link") is POLICIES[Failure.PROGRAM] and policy_of("lost") is POLICIES[Failure.LOST]
    assert is_of_classes("bad-link", frozenset({"bad-link"})) and is_of_classes("bad-link", {Failure.PROGRAM})
    assert not is_of_classes("bad-link", {Failure.TIMEOUT}) and not is_of_classes(None, {"bad-link"})


def test_retry_accepts_the_classes_of_described_programs() -> None:
    assert failure_classes("bad-link, timeout", ["bad-link", Failure.LOST]) == {"bad-link", Failure.TIMEOUT}
    with pytest.raises(ReproError, match='no such class. Did you mean "bad-link"?'):
        failure_classes("bad-lnk", ["bad-link"])


@pytest.mark.parametrize(
    ("submitted", "failure", "seconds"),
    [
        (0, Failure.NODE_FAIL, 0),
        (1, Failure.NODE_FAIL, 0),
        (2, Failure.NODE_FAIL, 60),
        (3, Failure.IMAGE, 300),
        (9, Failure.IMAGE, 300),
        (3, Failure.TIMEOUT, 0),
    ],
)
def test_the_pause_grows_with_the_failures_that_are_retried(submitted: int, failure: Failure, seconds: int) -> None:
    assert pause_before(submitted, failure) == seconds


@pytest.mark.parametrize(
    ("ran", "planned", "differs"),
    [
        ("abcdef0123", "abcdef0", False),
        ("abcdef0", "abcdef0123", False),
        ("abcdef0", "abcdef1", True),
        ("v2.1-dirty", "abcdef1", False),
        (None, "abcdef1", False),
        ("abcdef0", None, False),
    ],
)
def test_a_commit_differs_only_from_another_commit(ran: str | None, planned: str | None, differs: bool) -> None:
    assert [found.reason for found in other_commit(ran, planned)] == [f"ran commit {ran}, not {planned}"] * differs


@pytest.mark.parametrize(
    ("outcome", "failure", "published"),
    [("oom", "gpu-oom", True), ("oom", "host-oom", False), ("oom", None, False), ("ok", "gpu-oom", False)],
)
def test_a_case_fails_as_published_only_for_lack_of_gpu_memory(
    outcome: str, failure: str | None, published: bool
) -> None:
    case = Mock(expected=Mock(outcome=outcome))
    assert fails_as_published(case, failure) is published
    assert not fails_as_published(Mock(expected=None), failure)


FAILED_WELL = Ending(ENDED, "FAILED", 1, None)


def test_a_failure_class_of_the_program_replaces_the_class_of_the_log_only() -> None:
    own = Cause("bad-link", "link 3 is bad", None)
    findings = LogFindings(lacking=["the log has no row"], own_failure=lambda: own)
    judged = judgement_of(findings, FAILED_WELL, lambda: Cause("error", "ValueError: x", 0))
    assert (judged.failure, judged.cause) == ("bad-link", own)
    assert judged.reason == "FAILED with exit code 1 (bad-link: link 3 is bad); the log has no row"
    for ending in (replace(FAILED_WELL, state="NODE_FAIL"), replace(FAILED_WELL, reason="cancelled by user")):
        assert judgement_of(findings, ending, lambda: None).failure in {"node-fail", "cancelled"}
    other = replace(findings, differs=[Mismatch("ran in fp16, not bf16")])
    assert judgement_of(other, FAILED_WELL, lambda: None).failure == "configuration"


@pytest.mark.parametrize(
    ("ending", "cause", "reason"),
    [
        (
            Ending(ENDED, "CANCELLED", 15, "cancelled by user at 10:00"),
            Cause("error", "Terminated", 0),
            "cancelled by user at 10:00",
        ),
        (Ending(ENDED, "CANCELLED", 15, "by an administrator"), Cause("error", "ValueError: x", 0),
         "CANCELLED with exit code 15 (by an administrator)"),
        (Ending(ENDED, "CANCELLED", 1, "not by repro"), Cause("out of host memory", "slurmstepd: x", None),
         "CANCELLED with exit code 1 (out of host memory: slurmstepd: x)"),
        (FAILED_WELL, Cause("what ran", "world size 3", 0), "FAILED with exit code 1"),
        (FAILED_WELL, megatron_cause(BUSY),
         "a GPU was in use by another process (rank 0, others had 100.0 of its 139.8 GiB, tried to allocate 1.50 GiB);"
         " FAILED with exit code 1"),
        (FAILED_WELL, megatron_cause(BUSY.replace(b"has 100.00 GiB", b"has 0.10 GiB").replace(b"38.84", b"138.74")),
         "out of memory on the GPU (rank 0, tried to allocate 1.50 GiB); FAILED with exit code 1"),
        (FAILED_WELL, Cause("out of GPU memory", "OutOfMemoryError", None),
         "out of memory on the GPU; FAILED with exit code 1"),
    ],
)  # fmt: skip
def test_the_reason_has_the_state_the_code_and_what_is_known(ending: Ending, cause: Cause | None, reason: str) -> None:
    findings = LogFindings(lacking=["the log has no row"])
    assert judgement_of(findings, ending, lambda: cause).reason == f"{reason}; the log has no row"
