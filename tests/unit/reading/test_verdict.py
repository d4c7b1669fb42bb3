"""Tests of verdicts and their reasons."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import ENDED, RUNNING, IterationLine
from orchestrator.megatron.logs.fact_lines import WorldLine
from orchestrator.megatron.logs.iteration_lines import IterationLines
from orchestrator.megatron.logs.parse import LogFacts, LogReport, read_log
from orchestrator.megatron.logs.reader import MEGATRON_LINES
from orchestrator.megatron.logs.statistics import with_used
from orchestrator.megatron.logs.verdict import Expected, expected_of, judge
from orchestrator.reading.causes import Cause, CauseFinder
from orchestrator.reading.collect import measure
from orchestrator.reading.failure import (
    OUT_OF_MEMORY,
    Ending,
    Failure,
    Judgement,
    fails_as_published,
    ran_out_of_memory,
)
from orchestrator.reading.statistics import ENOUGH_SAMPLES
from tests.recorded_jobs import job_row, job_spec
from tests.unit.catalog.entries import shipped

WELL = Ending(ENDED, "COMPLETED", 0, None)
LIMIT = Ending(ENDED, "TIMEOUT", 124, "the time limit")
FAILED = Ending(ENDED, "FAILED", 1, None)
PLANNED = Expected(8, {"gpus": 4, "tensor_parallel": 2, "pipeline_parallel": 2})
WARMUP_ITERATIONS = 2
WORLD = WorldLine(4, 1, 2, 2)
EIGHT = tuple(IterationLine(n, 100.0, 6.9, 1.0, skipped=0, nan=0) for n in range(1, 9))


def log_of(lines: Sequence[IterationLine] = EIGHT, world: WorldLine | None = WORLD, done: bool = True) -> LogReport:
    last = lines[-1].iteration if lines else None
    printed = IterationLines.of(lines, max(8, last or 0))
    facts = LogFacts(world=world, says_done=done, last_iteration=last)
    return LogReport(with_used(printed, WARMUP_ITERATIONS), facts)


GOOD = log_of()
EMPTY = log_of((), None)


def nothing() -> None:
    return None


def never() -> Cause | None:
    raise AssertionError("a good log is not searched for errors")


def finder_of(kind: str, line: str, rank: int | None = None, *others: Cause) -> Callable[[], Cause | None]:
    return lambda: Cause(kind, line, rank, others)


NO_MEMORY = finder_of("out of GPU memory", "CUDA out of memory. Tried to allocate 2.00 GiB", 3)


def judged(
    report: LogReport = GOOD,
    ending: Ending = WELL,
    find: Callable[[], Cause | None] = nothing,
    expected: Expected = PLANNED,
) -> Judgement:
    judgement = judge(report, expected, ending, find)
    assert judgement is not None
    return judgement


def reason(report: LogReport = GOOD, ending: Ending = WELL, find: Callable[[], Cause | None] = nothing) -> str:
    judgement = judged(report, ending, find)
    assert judgement.verdict == "failed" and judgement.reason and judgement.failure
    return judgement.reason


def test_complete_job_is_verified_without_searching_for_errors() -> None:
    assert judge(GOOD, PLANNED, WELL, never) == Judgement("verified", None, None, None)
    assert judge(GOOD, PLANNED, replace(WELL, exit_code=None), never) == Judgement("verified", None, None, None)


def test_job_without_proof_of_its_image_is_not_verified() -> None:
    outside = "0 of 2 nodes ran it inside torch:1"
    assert reason(ending=replace(WELL, outside_image=outside)) == outside
    failed = reason(ending=Ending(ENDED, "FAILED", 97, None, outside))
    assert failed == f"FAILED with exit code 97; {outside}"
    assert outside in reason(GOOD, replace(LIMIT, outside_image=outside))
    assert outside not in reason(log_of(EIGHT[:2]), replace(LIMIT, outside_image=outside))


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A program crashes before the last node's container has started",
    promise="The class and line of the crash are reported, not the missing proof of the image.",
    count=0,
)
@pytest.mark.parametrize(
    ("kind", "nodes_inside", "failure", "adds_proof"),
    [("container", 0, "image", False), ("error", 1, "program", False), ("error", 0, "configuration", True)],
)
def test_deciding_line_of_container_and_program_failures(
    kind: str, nodes_inside: int, failure: str, adds_proof: bool
) -> None:
    outside = f"{nodes_inside} of 2 nodes ran it inside torch:1"
    line = finder_of(kind, "the line that decided")
    judgement = judged(log_of([]), Ending(ENDED, "FAILED", 1, None, outside, None, nodes_inside), line)
    proof = f"; {outside}" if adds_proof else ""
    assert judgement.reason == f"FAILED with exit code 1 ({line()}); the log has no iteration{proof}"
    assert (str(judgement.failure), judgement.cause) == (failure, line())


def test_a_good_end_without_proof_of_the_image_is_a_wrong_configuration_whatever_the_log_contains() -> None:
    """An error line of a run that completed on the host says nothing about a run inside the image."""
    outside = "0 of 2 nodes ran it inside torch:1"
    ending = replace(WELL, outside_image=outside, nodes_inside=0)
    judgement = judged(log_of(EIGHT[:6]), ending, finder_of("error", "a harmless error"))
    assert judgement.failure is Failure.CONFIGURATION and judgement.cause is None
    assert judgement.reason == f"the log ends at iteration 6 of 8; {outside}"
    coded = judged(log_of(EIGHT[:6]), replace(ending, exit_code=3), finder_of("error", "a harmless error"))
    assert str(coded.reason).startswith("COMPLETED with exit code 3; ")
    no_memory = judged(log_of(EIGHT[:6]), ending, NO_MEMORY)
    assert no_memory.failure is Failure.GPU_OOM and str(no_memory.reason).endswith(f"; {outside}")


@pytest.mark.parametrize(
    ("report", "find", "cause", "expected"),
    [
        (EMPTY, finder_of("argument error", "x", 3), Cause("argument error", "x", 3),
         "FAILED with exit code 1 (argument error: x); the log has no iteration"),
        (log_of(world=replace(WORLD, world_size=1)), nothing, None,
         "FAILED with exit code 1; ran with world size 1, not 4"),
        (log_of([]), finder_of("what ran", "using world size: 4", 0), None,
         "FAILED with exit code 1; the log has no iteration; 0 of 2 nodes ran it inside torch:1"),
    ],
    ids=["its own line", "another configuration", "no error"],
)  # fmt: skip
def test_missing_proof_of_the_image_is_a_reason_only_if_there_is_no_other(
    report: LogReport, find: Callable[[], Cause | None], cause: Cause | None, expected: str
) -> None:
    ending = replace(FAILED, outside_image="0 of 2 nodes ran it inside torch:1", nodes_inside=0)
    judgement = judged(report, ending, find)
    assert (judgement.reason, judgement.failure) == (expected, Failure.CONFIGURATION)
    assert judgement.cause == cause


def test_errors_of_a_cancelled_job_are_not_its_reason() -> None:
    """The signal that ends a job makes its ranks print errors."""
    ending = Ending(ENDED, "CANCELLED", None, "by repro cancel")
    for report in (log_of(EIGHT[:6]), log_of(world=WorldLine(4, 1, 4, 1))):
        judgement = judged(report, ending, finder_of("GPU fault", "CUDA error: unspecified launch failure", 2))
        assert judgement.failure is Failure.CANCELLED and judgement.cause is None
        assert str(judgement.reason).startswith("CANCELLED (by repro cancel)")


def test_errors_after_a_node_failure_are_not_its_reason() -> None:
    ending = Ending(ENDED, "NODE_FAIL", None, "n2 is down")
    report = log_of(world=WorldLine(4, 1, 4, 1))
    judgement = judged(report, ending, finder_of("GPU fault", "CUDA error: unspecified launch failure", 2))
    assert judgement.failure is Failure.NODE_FAIL and str(judgement.reason).startswith("NODE_FAIL (n2 is down)")
    lost = Cause("node failure", "srun: error: Node failure on n2", None)
    judgement = judged(report, ending, finder_of("GPU fault", "x", 2, lost, RAN))
    assert judgement.cause == lost, "another layout was not the cause"


def test_job_that_was_not_started_fails_with_the_reason_for_it() -> None:
    dependency = judged(EMPTY, Ending(ENDED, "CANCELLED", None, "DependencyNeverSatisfied"))
    assert dependency == Judgement("failed", "not started: DependencyNeverSatisfied", Failure.STOPPED)
    line = finder_of("not started", "repro: not started: job 4 runs it already")
    judgement = judged(EMPTY, Ending(ENDED, "FAILED", 95, None), line)
    assert judgement.reason == f"FAILED with exit code 95 ({line()}); the log has no iteration"
    assert (judgement.failure, judgement.cause) == (Failure.STOPPED, line())


@pytest.mark.parametrize("phase", ["submitting", "waiting", RUNNING])
def test_running_job_has_no_verdict(phase: str) -> None:
    assert judge(GOOD, PLANNED, replace(WELL, phase=phase), never) is None
    assert judge(log_of(world=None), PLANNED, replace(WELL, phase=phase), never) is None


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Ending(ENDED, "FAILED", 7, None), "FAILED with exit code 7"),
        (Ending(ENDED, "NODE_FAIL", None, "its process is gone"), "NODE_FAIL (its process is gone)"),
        (Ending(ENDED, "CANCELLED", None, None), "CANCELLED"),
        (Ending(ENDED, "COMPLETED", 3, None), "COMPLETED with exit code 3"),
        (Ending(ENDED, "A_NEW_WORD", 0, None), "A_NEW_WORD"),
    ],
)
def test_job_with_a_failed_state_is_failed(ending: Ending, expected: str) -> None:
    assert reason(ending=ending) == expected


LONG = tuple(IterationLine(n, 100.0, 6.9, 1.0, skipped=0, nan=0) for n in range(1, 400))
LONGER = replace(PLANNED, iterations=400)
ENOUGH = WARMUP_ITERATIONS + ENOUGH_SAMPLES
"""The iteration after which a job has enough samples, at one line an iteration."""


@pytest.mark.fault(
    section="Ends that are expected",
    fault="A job reaches its time limit after its last iteration, or with 10 samples",
    promise="The job is partial: its numbers count, and it is not repeated.",
    count=0,
)
def test_job_at_its_time_limit_is_partial_if_done_or_measured_enough() -> None:
    line = Cause("time limit", "*** JOB 5 CANCELLED DUE TO TIME LIMIT ***", None)
    assert judged(ending=LIMIT) == Judgement("partial", "reached its time limit after its training was done")
    assert judged(ending=Ending(ENDED, "DEADLINE", None, None)).verdict == "partial"
    for upto in (ENOUGH, 363):
        judgement = judged(log_of(LONG[:upto], done=False), LIMIT, lambda: replace(line, others=(line,)), LONGER)
        why = f"reached its time limit at iteration {upto} of 400, with {upto - 2} samples"
        assert judgement == Judgement("partial", why, None, line)
    assert judged(log_of(done=False), LIMIT).reason == "reached its time limit at iteration 8 of 8, with 6 samples"


@pytest.mark.fault(
    section="Ends that are expected",
    fault="A job reaches its time limit with less, not as planned, or while ranks waited for a failed rank",
    promise="The job failed.",
    count=0,
)
def test_job_at_its_time_limit_fails_if_measured_too_little_or_not_as_planned() -> None:
    report = log_of(LONG[: ENOUGH - 1], done=False)
    judgement = judged(report, LIMIT, expected=LONGER)
    assert judgement.failure is Failure.TIMEOUT
    assert judgement.reason == "TIMEOUT with exit code 124 (the time limit); the log ends at iteration 11 of 400"
    skipped = [replace(line, skipped=line.iteration % 40 == 0) for line in LONG[:45]]
    assert judged(log_of([*LONG[: ENOUGH - 1], replace(LONG[ENOUGH], skipped=1)]), LIMIT, expected=LONGER).failure
    assert judged(log_of(skipped), LIMIT, expected=LONGER).verdict == "partial"
    assert "world size" in reason(log_of(world=replace(WORLD, world_size=1)), LIMIT)
    assert "NaN" in reason(log_of([*EIGHT[:5], replace(EIGHT[5], nan=1), *EIGHT[6:]]), LIMIT)
    assert "the log has no iteration" in reason(log_of((), WORLD, done=False), LIMIT)


@pytest.mark.fault(
    section="Ends that are expected",
    fault="A job reaches its time limit with less, not as planned, or while ranks waited for a failed rank",
    promise="The job failed.",
    count=0,
)
@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("out of GPU memory", Failure.GPU_OOM),
        ("out of host memory", Failure.HOST_OOM),
        ("GPU in use", Failure.GPU_IN_USE),
        ("GPU fault", Failure.GPU_FAULT),
        ("GPU cannot be used", Failure.CONFIGURATION),
        ("a rank was killed", None),
        ("NCCL error", Failure.NCCL_ERROR),
        ("NCCL time-out", Failure.NCCL_TIMEOUT),
        ("argument error", Failure.CONFIGURATION),
        ("error", None),
        ("NCCL lost a rank", None),
        ("time limit", None),
    ],
)
def test_ranks_that_wait_for_a_failed_rank_until_the_limit_fail(kind: str, failure: Failure | None) -> None:
    judgement = judged(log_of(LONG[:ENOUGH], done=False), LIMIT, finder_of(kind, "x", 3), LONGER)
    assert (judgement.verdict, judgement.failure) == (("failed", failure) if failure else ("partial", None))
    done = judged(GOOD, LIMIT, finder_of(kind, "x", 3))
    assert done.verdict == "partial", "what a rank says of others at the end of a training that is done"


def test_completed_job_without_its_last_iteration_fails() -> None:
    assert reason(log_of(EIGHT[:7])) == "the log ends at iteration 7 of 8"
    assert judged(log_of(EIGHT[:7])).failure is Failure.INCOMPLETE


def test_cause_in_the_log_replaces_the_reason_of_the_scheduler() -> None:
    judgement = judged(
        ending=Ending(ENDED, "FAILED", 1, "NonZeroExitCode"), find=finder_of("error", "ValueError: x", 3)
    )
    assert judgement.reason == "FAILED with exit code 1 (error: ValueError: x)"
    assert (judgement.failure, judgement.cause) == (Failure.PROGRAM, Cause("error", "ValueError: x", 3))
    lost = judged(ending=Ending(ENDED, "NODE_FAIL", None, "n8 is gone"), find=finder_of("NCCL error", "x", 3))
    assert (lost.reason, lost.failure, lost.cause) == ("NODE_FAIL (n8 is gone)", Failure.NODE_FAIL, None)


def test_cancelled_job_reports_who_cancelled_it() -> None:
    judgement = judged(EMPTY, Ending(ENDED, "CANCELLED", 15, "by repro"), finder_of("NCCL error", "x", 3))
    assert judgement.reason == "CANCELLED with exit code 15 (by repro); the log has no iteration"
    assert (judgement.failure, judgement.cause) == (Failure.CANCELLED, None)


RAN = Cause("what ran", "using world size: 1, data-parallel size: 1", 0)


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (replace(WORLD, world_size=1), "ran with world size 1, not 4"),
        (replace(WORLD, tensor_parallel=1), "ran with tensor-parallel size 1, not 2"),
        (replace(WORLD, pipeline_parallel=4), "ran with pipeline-parallel size 4, not 2"),
    ],
)
def test_job_with_another_configuration_fails_with_its_line(world: WorldLine, expected: str) -> None:
    judgement = judged(log_of(world=world), find=lambda: RAN)
    assert (judgement.verdict, judgement.reason, judgement.failure) == ("failed", expected, Failure.CONFIGURATION)
    assert judgement.cause == RAN


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The job ran with another layout, model, batch, data type or commit than planned",
    promise="The verdict names every difference.",
    count=0,
)
def test_every_mismatch_is_in_the_reason() -> None:
    facts = LogFacts(world=WORLD, settings={"num_layers": "12", "hidden_size": "64"}, says_done=True, last_iteration=8)
    report = LogReport(IterationLines.of(EIGHT, 8), facts)
    judgement = judged(
        report, find=lambda: RAN, expected=replace(PLANNED, sizes={**PLANNED.sizes, "layers": 24, "hidden": 128})
    )
    assert judgement.reason == "ran with layers 12, not 24; ran with hidden size 64, not 128"
    assert (judgement.failure, judgement.cause) == (Failure.CONFIGURATION, None)
    failed = judged(report, FAILED, lambda: RAN, replace(PLANNED, sizes={**PLANNED.sizes, "gpus": 8, "layers": 24}))
    assert failed.reason == "FAILED with exit code 1; ran with world size 4, not 8; ran with layers 12, not 24"
    assert failed.cause == RAN, "the line of the world size shows one of the differences"


def test_other_checkout_is_a_mismatch() -> None:
    planned = replace(PLANNED, commit="6985e58938d40ad91ac07b0fddcfad8132e1447e")
    other = replace(WELL, commit="d98e8a64ddf34856e74b24714e3bedb2f5a39553")
    assert judged(ending=other, expected=planned).reason == "ran commit d98e8a64ddf3, not 6985e58938d4"
    assert judged(ending=other).verdict == judged(expected=planned).verdict == "verified"
    assert judged(ending=replace(WELL, commit=planned.commit), expected=planned).verdict == "verified"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The job imported another version of `pretrain` than the recorded one",
    promise="It is never verified. The class is `configuration`; the verdict names both versions and the folder.",
)
def test_other_program_than_the_recorded_one_fails_and_names_both() -> None:
    planned = replace(PLANNED, program="pretrain-0123456789ab")
    log = log_of()
    other = replace(log, facts=replace(log.facts, programs={"pretrain-ba9876543210": "/edited"}))
    judgement = judged(other, expected=planned)
    assert judgement.reason == "ran pretrain-ba9876543210 in /edited, not pretrain-0123456789ab"
    assert (judgement.verdict, judgement.failure) == ("failed", Failure.CONFIGURATION)
    assert judged(log, expected=planned).verdict == "verified", "logs of older versions have no such line"


@pytest.mark.fault(
    section="Ends that are expected",
    fault="A case runs out of memory in another layout than planned",
    promise="This is a failure.",
    count=0,
)
def test_out_of_memory_in_another_layout_is_not_the_published_outcome() -> None:
    judgement = judged(log_of((), replace(WORLD, pipeline_parallel=1)), FAILED, NO_MEMORY)
    assert judgement.failure is Failure.CONFIGURATION
    assert judgement.reason == (
        "FAILED with exit code 1 (out of GPU memory: CUDA out of memory. Tried to allocate 2.00 GiB);"
        " ran with pipeline-parallel size 1, not 2; the log has no iteration"
    )


def test_log_with_iterations_needs_a_world_size() -> None:
    judgement = judged(log_of(world=None))
    assert (judgement.reason, judgement.failure) == ("the log has no world size", Failure.INCOMPLETE)
    facts = LogFacts(settings={"world_size": "4"}, says_done=True, last_iteration=8)
    assert judged(LogReport(IterationLines.of(EIGHT, 8), facts)).verdict == "verified"


def test_completed_job_without_iterations_fails() -> None:
    assert reason(log_of(())) == "the log has no iteration"
    assert reason(EMPTY) == "the log has no iteration"


@pytest.mark.parametrize("bad", [{"loss": math.nan}, {"grad_norm": math.inf}, {"nan": 1}])
def test_nan_fails_a_completed_job_with_its_line(bad: dict[str, float]) -> None:
    broken = replace(EIGHT[1], **bad)  # type: ignore[arg-type]
    shown = Cause("not a number", "iteration        2/       8 | lm loss: nan |", 3)
    judgement = judged(log_of((EIGHT[0], broken, *EIGHT[2:])), find=finder_of("error", "srun: x", None, shown))
    assert (judgement.reason, judgement.failure) == ("NaN, infinite or missing numbers at iteration 2", Failure.NUMBERS)
    assert judgement.cause == shown


def skipping(*skipped: int, nan: int = 0) -> LogReport:
    """A log with an interval of 5 iterations whose lines have these numbers of skipped ones, as Megatron prints it."""
    losses = [None if count == 5 else 6.9 for count in skipped]
    lines = [
        IterationLine(5 * index, 100.0, loss, None, skipped=count, nan=nan)
        for index, (count, loss) in enumerate(zip(skipped, losses, strict=True), start=1)
    ]
    return log_of(lines)


@pytest.mark.parametrize("skipped", [(5, 5, 0, 0, 0), (2, 1, 0, 1, 0), (5, 2, 0, 0, 5)])
def test_iterations_that_a_loss_scale_skips_are_no_fault(skipped: Sequence[int]) -> None:
    expected = replace(PLANNED, iterations=25)
    assert judge(skipping(*skipped), expected, WELL, never) == Judgement("verified", None)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A constant loss scale overflows in each iteration, so that the optimizer never runs; exit code 0",
    promise="The job failed (numbers): most iterations were skipped.",
)
@pytest.mark.parametrize("skipped", [(5, 5, 5, 5, 5), (5, 5, 3, 0, 0)])
def test_a_run_that_skipped_most_iterations_is_not_verified(skipped: Sequence[int]) -> None:
    judgement = judged(skipping(*skipped), expected=replace(PLANNED, iterations=25))
    assert (judgement.verdict, judgement.failure) == ("failed", Failure.NUMBERS)
    assert judgement.reason == f"{sum(skipped)} of 25 iterations were skipped"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The loss is NaN, and the program prints no loss in its lines; exit code 0",
    promise="The job failed (numbers).",
)
@pytest.mark.parametrize("upto", [1, 2, 5])
def test_a_line_without_a_loss_is_nan_unless_all_of_its_iterations_were_skipped(upto: int) -> None:
    gone = [replace(line, loss=None) for line in EIGHT[upto:]]
    judgement = judged(log_of([*EIGHT[:upto], *gone]))
    assert judgement.failure is Failure.NUMBERS
    assert judgement.reason == f"NaN, infinite or missing numbers at iteration {upto + 1}"
    partly = IterationLine(15, 100.0, None, None, skipped=4, nan=0)
    longer = [*skipping(0, 0).iterations, partly, *(replace(partly, iteration=n, skipped=5) for n in (20, 25))]
    assert "at iteration 15" in str(judged(log_of(longer), expected=replace(PLANNED, iterations=25)).reason)


def test_reasons_begin_with_the_first_cause() -> None:
    report = log_of(EIGHT[:1], replace(WORLD, world_size=1), done=False)
    assert reason(report, FAILED, finder_of("error", "it broke")) == (
        "FAILED with exit code 1 (error: it broke); ran with world size 1, not 4; the log ends at iteration 1 of 8"
    )


GPU = "out of memory on the GPU (rank 3, tried to allocate 2.00 GiB)"


@pytest.mark.parametrize(
    ("ending", "expected"),
    [(FAILED, "FAILED with exit code 1"), (replace(LIMIT, exit_code=None), "TIMEOUT"), (WELL, None)],
)
def test_out_of_memory_is_the_first_reason(ending: Ending, expected: str | None) -> None:
    reason_text = "; ".join(filter(None, [GPU, expected, "the log has no iteration"]))
    judgement = judged(log_of(()), ending, NO_MEMORY)
    assert (judgement.reason, judgement.failure, judgement.cause) == (reason_text, Failure.GPU_OOM, NO_MEMORY())


@pytest.mark.parametrize(
    ("line", "rank", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 324.00 MiB. GPU 0", 11, "rank 11, tried to"),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 5; 39.59 GiB",
            None,
            "tried to allocate 2.",
        ),
        ("Cuda failure 2 'out of memory'", 3, "rank 3)"),
    ],
)
def test_memory_reason_has_rank_and_requested_size(line: str, rank: int | None, expected: str) -> None:
    assert reason(EMPTY, FAILED, finder_of("out of GPU memory", line, rank)).startswith(
        f"out of memory on the GPU ({expected}"
    )
    assert reason(EMPTY, FAILED, finder_of("out of GPU memory", "CUDA error")).startswith("out of memory on the GPU; F")


IN_USE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.80 GiB"
    " of which 980.06 MiB is free. Process 1234 has 100.00 GiB memory in use. Including non-PyTorch memory, this"
    " process has 38.84 GiB memory in use."
)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Another process uses a GPU's memory when the job runs",
    promise="Class `gpu-in-use`, by the numbers in torch's message. It never counts as the published end.",
    count=0,
)
@pytest.mark.parametrize(
    ("line", "of"), [(IN_USE, "rank 0, others had 100.0 of its 139.8 GiB, tried to"), ("x", "rank")]
)
def test_memory_used_by_others_is_not_the_published_outcome(line: str, of: str) -> None:
    judgement = judged(log_of(()), FAILED, finder_of("GPU in use", line, 0))
    assert judgement.reason is not None and judgement.reason.startswith(f"a GPU was in use by another process ({of}")
    assert judgement.failure is Failure.GPU_IN_USE and judgement.cause is not None and judgement.cause.line == line
    assert not judgement.reason.startswith(OUT_OF_MEMORY), "what an expected end is known by"


def test_complete_job_is_verified_after_a_temporary_memory_shortage() -> None:
    assert judge(GOOD, PLANNED, WELL, NO_MEMORY) == Judgement("verified", None)
    assert "out of memory" not in reason(log_of((*EIGHT[:7], replace(EIGHT[7], nan=1))), find=NO_MEMORY)


def test_only_gpu_oom_is_the_published_outcome() -> None:
    case = next(case for case in expand(shipped("figure-17"), "paper") if case.expected is not None)
    assert ran_out_of_memory("gpu-oom") and fails_as_published(case, "gpu-oom")
    assert not fails_as_published(replace(case, expected=None), "gpu-oom")
    for other in ("host-oom", "gpu-in-use", "timeout", None):
        assert not ran_out_of_memory(other) and not fails_as_published(case, other)


# ---- whole logs, as ranks and Slurm print them -----------------------------------------------------------------------

WORLD_LINE = (
    "0: using world size: 4, data-parallel size: 1, context-parallel size: 1, hierarchical context-parallel sizes:"
    " None, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
)


def log(upto: int) -> str:
    tail = "learning rate: 1.0E-04 | global batch size:     4 | lm loss: 6.9E+00 | loss scale: 1.0 | grad norm: 1.0 |"
    tail += " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    return WORLD_LINE + "".join(
        f"3:  iteration {n:8d}/       8 | consumed samples: {4 * n:12d} |"
        f" elapsed time per iteration (ms): {100 + n}.0 | {tail}"
        for n in range(1, upto + 1)
    )


ECHOES = "".join(
    f"{rank}: [rank{rank}]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective"
    f" operation timeout: WorkNCCL(SeqNum=78)\nsrun: error: n1: task {rank}: Exited with exit code 1\n"
    for rank in range(4)
)
OOM = "1: [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity\n"
BAD_VALUE = "2: [rank2]: ValueError: bad\n"
CANCELLED = "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\n"
ONE = log(1).replace("size: 4,", "size: 1,").replace("parallel size: 2", "parallel size: 1")


@pytest.mark.parametrize(
    ("text", "state", "verdict", "failure", "line", "rank"),
    [
        (log(8), "COMPLETED", "verified", None, None, None),
        (log(8) + ECHOES, "COMPLETED", "verified", None, None, None),
        (log(2) + ECHOES + OOM, "FAILED", "failed", "gpu-oom", "torch.OutOfMemoryError: CUDA", 1),
        (log(2) + ECHOES + OOM, "TIMEOUT", "failed", "gpu-oom", "torch.OutOfMemoryError: CUDA", 1),
        (log(2) + ECHOES, "FAILED", "failed", "nccl-timeout", "[E1121 10:00:00.1 ProcessGroupNCCL.cpp:683] [R", 0),
        (log(6) + ECHOES + CANCELLED, "TIMEOUT", "failed", "nccl-timeout", "[E1121 10:00:00.1 Pro", 0),
        (log(8) + CANCELLED + ECHOES, "TIMEOUT", "partial", None, "slurmstepd: error: *** STEP 5.0 ON n1", None),
        (log(3) + CANCELLED + ECHOES, "TIMEOUT", "failed", "timeout", "slurmstepd: error: *** STEP 5.0 ON n1", None),
        (log(2) + ECHOES + BAD_VALUE, "FAILED", "failed", "program", "ValueError: bad", 2),
        (log(8).replace("6.9E+00", "nan", 1), "COMPLETED", "failed", "numbers", "iteration        1/       8 |", 3),
        (ONE + OOM, "FAILED", "failed", "configuration", "using world size: 1, data-parallel size: 1, ", 0),
        (log(7), "COMPLETED", "failed", "incomplete", None, None),
        ("", "FAILED", "failed", "program", None, None),
    ],
)
def test_verdict_class_line_and_rank_of_whole_logs(
    text: str, state: str, verdict: str, failure: str | None, line: str | None, rank: int | None
) -> None:
    def find() -> Cause | None:
        finder = CauseFinder(MEGATRON_LINES)
        for part in text.encode().splitlines(keepends=True):
            finder.feed(part)
        return finder.cause()

    exit_code = 0 if state == "COMPLETED" else 1
    judgement = judged(read_log(text.encode()), Ending(ENDED, state, exit_code, None), find)
    assert (judgement.verdict, str(judgement.failure) if judgement.failure else None) == (verdict, failure)
    assert (judgement.cause.line.strip()[: len(line)] if judgement.cause and line else judgement.cause) == line
    assert (judgement.cause.rank if judgement.cause else None) == rank


# ---- with the folder of a job ----------------------------------------------------------------------------------------


@pytest.fixture
def row(tmp_path: Path) -> JobRow:
    """Return a successful job of eight iterations with its log in `tmp_path`."""
    return replace(job_row(tmp_path), folder=str(tmp_path), exit_code=0, verdict=None, iteration=None)


def test_attempt_out_of_memory_has_class_gpu_oom(row: JobRow, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(log(1) + "[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    judgement = measure(replace(row, state="FAILED", exit_code=1))
    assert judgement.verdict_reason == (
        "out of memory on the GPU (rank 1); FAILED with exit code 1; the log ends at iteration 1 of 8"
    )
    assert (judgement.failure, judgement.deciding_rank) == ("gpu-oom", 1)
    assert judgement.deciding_line == "torch.OutOfMemoryError: CUDA out of memory."
    assert ran_out_of_memory(judgement.failure)


def test_job_with_only_warm_up_iterations_fails(row: JobRow, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(log(8))
    training = {"recompute": "full", "warmup_iterations": 8}
    measured = measure(replace(row, spec=job_spec(training=training)))
    assert (measured.verdict, measured.verdict_reason) == ("failed", "no iteration is left after the warm-up")


@pytest.mark.parametrize("none", ["nan", "inf", "-inf", "1e999"])
def test_nan_fails_a_job(row: JobRow, tmp_path: Path, none: str) -> None:
    (tmp_path / "log.txt").write_text(log(8).replace("6.9E+00", none).replace("(ms): 104.0", f"(ms): {none}"))
    measured = measure(row)
    assert (measured.verdict, measured.verdict_reason) == ("failed", "NaN, infinite or missing numbers at iteration 1")


TINY = "impossible number at iteration 4: {} ms per iteration"


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("1e-320", TINY.format("9.99989e-321")),
        ("1E-300", TINY.format("1e-300")),
        ("0.00003", TINY.format("3e-05")),
        ("-5.0", TINY.format("-5")),
        ("0.0", TINY.format("0")),
        ("1e308", TINY.format("1e+308")),
    ],
)
def test_an_impossible_time_fails_a_job_with_its_line_and_no_number_is_kept(
    row: JobRow, tmp_path: Path, printed: str, why: str
) -> None:
    (tmp_path / "log.txt").write_text(log(8).replace("(ms): 104.0", f"(ms): {printed}"))
    measured = measure(row)
    assert (measured.verdict, measured.verdict_reason, measured.failure) == ("failed", why, "numbers")
    assert measured.deciding_line is not None
    assert "iteration        4/       8 |" in measured.deciding_line and printed in measured.deciding_line
    assert all(math.isfinite(metric.value) and math.isfinite(metric.spread or 0) for metric in measured.metrics)


def test_an_impossible_rate_fails_a_job_with_the_line_of_the_fastest_iteration(row: JobRow, tmp_path: Path) -> None:
    """Each time is possible, and no GPU computes a model of this size in that time."""
    model = {"layers": 105, "hidden": 20480, "heads": 128, "seq": 2048, "vocab": 51200}
    text = re.sub(r"\(ms\): [0-9.]+", "(ms): 0.01", log(8)).replace("0.01 | learning", "0.002 | learning", 1)
    (tmp_path / "log.txt").write_text(text.replace("0.01", "0.005", 4))
    measured = measure(replace(row, spec=job_spec(model=model)))
    assert (measured.verdict, measured.failure, measured.metrics) == ("failed", "numbers", ())
    assert re.fullmatch(
        r"impossible number at iteration 3: 0\.005 ms per iteration give tflops_per_gpu \S+ TFLOP/s",
        str(measured.verdict_reason),
    )
    assert "iteration        3/" in str(measured.deciding_line)


def test_an_impossible_number_that_a_program_reports_is_no_metric(row: JobRow, tmp_path: Path) -> None:
    reported = " | throughput per GPU (TFLOP/s/GPU): {} | learning"
    (tmp_path / "log.txt").write_text(log(8).replace(" | learning", reported.format("1e308")))
    measured = measure(row)
    assert measured.verdict == "verified"
    assert "reported_tflops_per_gpu" not in {metric.name for metric in measured.metrics}
    (tmp_path / "log.txt").write_text(log(8).replace(" | learning", reported.format("41.0")))
    assert "reported_tflops_per_gpu" in {metric.name for metric in measure(row).metrics}


@pytest.mark.parametrize(
    ("lines", "verdict", "why"),
    [
        (["image=torch:1", "inside_image=2/2"], "verified", None),
        (["image=torch:1", "inside_image=1/2"], "failed", "1 of 2 nodes ran it inside torch:1"),
        ([], "failed", "its end record does not prove that it ran inside torch:1"),
        (None, "failed", "its end record does not prove that it ran inside torch:1"),
    ],
)
def test_proof_of_the_image_is_read_from_the_end_record(
    row: JobRow, tmp_path: Path, lines: list[str] | None, verdict: str, why: str | None
) -> None:
    (tmp_path / "log.txt").write_text(log(8))
    if lines is not None:
        own = ["exit_code=0", "at=2026-11-21T16:00:00Z", "host=n1", "scheduler_id=1", "pid=1", *lines]
        (tmp_path / "end").write_text("".join(f"{line}\n" for line in own))
    measured = measure(replace(row, image="torch:1", scheduler="slurm"))
    assert (measured.verdict, measured.verdict_reason) == (verdict, why)


def test_expected_configuration_comes_from_the_ledger(row: JobRow) -> None:
    expected = expected_of(row)
    assert (expected.sizes["gpus"], expected.iterations) == (4, 8)
