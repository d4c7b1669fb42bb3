"""Reading Megatron-LM's log lines of every era. The samples are the format strings of the version that they name."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.log_lines import (
    TRAINING_DONE,
    IterationLine,
    WorldLine,
    cause,
    iteration_lines,
    world_line,
)

E2021 = (
    b" iteration        5/     500 | consumed samples:         2560 | elapsed time per iteration (ms): 3520.1 |"
    b" learning rate: 1.000E-04 | global batch size:   512 | lm loss: 1.042536E+01 | loss scale: 8192.0 |"
    b" grad norm: 4.157 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
V0_5 = (
    b" iteration       10/     500 | consumed samples:         5120 | elapsed time per iteration (ms): 3520.1 |"
    b" throughput per GPU (TFLOP/s/GPU): 104.4 | learning rate: 1.000E-04 | global batch size:   512 |"
    b" lm loss: 9.912345E+00 | loss scale: 8192.0 | grad norm: 2.310 | number of skipped iterations:   0 |"
    b" number of nan iterations:   0 |"
)
V0_6 = b" [2024-04-18 10:11:12]" + V0_5.replace(b"1.000E-04", b"1.000000E-04")
NEWEST = (
    b" [2026-08-22 15:22:22.123456] iteration       10/     500 | consumed samples:         5120 |"
    b" skipped samples:          512 | elapsed time per iteration (ms): 3520.1 |"
    b" throughput per GPU (TFLOP/s/GPU): 98.1 | energy per GPU (J/iter/GPU): 1290.4 | power per GPU (W/GPU): 366.6 |"
    b" learning rate: 1.000000E-04 | global batch size:   512 | lm loss: 9.912345E+00 | loss scale: 8192.0 |"
    b" grad norm: 2.310 | num zeros: 12 | params norm: 812.345 | number of skipped iterations:   1 |"
    b" number of nan iterations:   0 |"
)
FIVE = IterationLine(5, 500, 3520.1, 10.42536, 4.157, 0, 0)
TEN = IterationLine(10, 500, 3520.1, 9.912345, 2.310, 0, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (E2021, FIVE),
        (V0_5, TEN),
        (V0_6, TEN),
        (NEWEST, IterationLine(10, 500, 3520.1, 9.912345, 2.310, 1, 0)),
    ],
    ids=["2021", "core_v0.5", "core_v0.6", "newest"],
)
def test_the_iteration_line_of_every_era_is_read(line: bytes, expected: IterationLine) -> None:
    assert list(iteration_lines(line + b"\n")) == [expected]
    assert expected.is_finite


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"63: ", b"\n"),
        (b"   7: ", b"\n"),
        (b"P1  3: ", b"\n"),
        (b"", b"\r\n"),
        (b"\x1b[32m", b"\x1b[0m\n"),
        (b"\xff\xfe ", b"\xc3\n"),
    ],
    ids=["label", "padded label", "heterogeneous label", "CRLF", "ANSI", "not UTF-8"],
)
def test_what_stands_around_a_line_does_not_hide_it(before: bytes, after: bytes) -> None:
    log = b"".join(before + line + after for line in (b" > setting up", E2021, b"[Rank 8] memory | x", E2021))
    assert list(iteration_lines(log)) == [FIVE, FIVE]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_last_line_that_is_still_being_written_is_left_for_the_next_reading(cut: int) -> None:
    assert list(iteration_lines(E2021 + b"\n" + E2021[:-cut])) == [FIVE]


def test_a_missing_loss_is_none_and_a_nan_iteration_is_not_finite() -> None:
    without = E2021.replace(b" lm loss: 1.042536E+01 |", b"").replace(b"nan iterations:   0", b"nan iterations:   2")
    (line,) = iteration_lines(without)
    assert (line.loss, line.nan, line.is_finite) == (None, 2, False)


@pytest.mark.parametrize("word", [b"nan", b"inf", b"-inf"])
@pytest.mark.parametrize("number", [b"1.042536E+01", b"4.157", b"3520.1"])
def test_a_printed_nan_or_infinity_is_not_finite(word: bytes, number: bytes) -> None:
    (line,) = iteration_lines(E2021.replace(number, word))
    assert not line.is_finite


@pytest.mark.parametrize(
    "line",
    [
        E2021.replace(b"3520.1", b"..."),
        E2021.replace(b"3520.1", b"1.2.3"),
        E2021.replace(b"3520.1", b"0.0"),
        E2021.replace(b"nan iterations:   0", b"nan iterations:   ."),
        E2021.replace(b"     500", b"5" * 5000),
    ],
    ids=["dots", "two points", "no time", "no count", "5000 digits"],
)
def test_a_spoilt_number_makes_no_line_and_no_crash(line: bytes) -> None:
    assert list(iteration_lines(line)) == []


def test_a_count_that_is_no_number_counts_as_bad() -> None:
    (line,) = iteration_lines(E2021.replace(b"nan iterations:   0", b"nan iterations: nan"))
    assert line.nan == 1 and not line.is_finite


def test_the_validation_line_is_no_iteration() -> None:
    text = b" validation loss at iteration 10 | lm loss value: 9.9E+00 | lm loss PPL: 2.0E+04 | \n"
    assert list(iteration_lines(text)) == []


@pytest.mark.parametrize(
    "line",
    [
        b"using world size: 64, data-parallel-size: 2, tensor-model-parallel size: 8, pipeline-model-parallel size: 4 ",
        b" 0: using world size: 64, data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel"
        b" sizes: None, tensor-model-parallel size: 8, pipeline-model-parallel size: 4\r",
    ],
    ids=["2021", "newest"],
)
def test_the_world_a_job_really_ran_as_is_read(line: bytes) -> None:
    assert world_line(b"x\n" + line + b"\n") == WorldLine(64, 2, 8, 4)


def test_a_world_of_another_line_is_not_taken_for_it() -> None:
    text = (
        b"using world size: 64, data-parallel-size: 2, \ntensor-model-parallel size: 8, pipeline-model-parallel size: 4"
    )
    assert world_line(text) is None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 324.00 MiB. GPU 0 has a", "out of GPU memory"),
        (b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0;", "out of GPU memory"),
        (b"RuntimeError: CUDA out of memory. Tried to allocate 2 GiB (GPU 0;", "out of GPU memory"),
        (b"CUDA error: out of memory", "out of GPU memory"),
        (b"pretrain_gpt.py: error: unrecognized arguments: --DDP-impl local", "argument error"),
        (b"pretrain: error: local rank 3 has no GPU: this process sees 2", "argument error"),
        (b"  traceback : Signal 9 (SIGKILL) received by PID 3035", "a rank was killed"),
        (b"slurmstepd: error: pyxis: container start failed with error code: 1", "container"),
        (b"slurmstepd: error: *** JOB 42221 ON n CANCELLED AT 2022-04-14T16:20:46 DUE TO TIME LIMIT ***", "time limit"),
        (b"slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "out of host memory"),
        (b"srun: error: node001: task 3: Out Of Memory", "out of host memory"),
        (b"torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error", "NCCL error"),
        (b"[rank1]:[E810] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78", "NCCL error"),
        (b"AssertionError: num of iterations must be positive", "error"),
        (b"srun: error: node001: task 3: Exited with exit code 1", "error"),
    ],
)
def test_the_kind_of_a_failure_is_told_from_its_line(line: bytes, kind: str) -> None:
    found = cause(b" 3: fine\n" + line + b"\r\nmore\n")
    assert found is not None and found.startswith(f"{kind}: ")
    assert "\n" not in found and len(found) < 240


def test_memory_is_named_although_other_ranks_cry_louder_and_earlier() -> None:
    log = (
        b"Watchdog caught collective operation timeout: x\nsrun: error: n: task 3: Exited\nCUDA out of memory. Tried\n"
    )
    assert (cause(log) or "").startswith("out of GPU memory: ")


def test_the_rank_that_was_killed_is_named_and_not_those_that_torchrun_ended_after_it() -> None:
    log = (
        b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        b"  traceback : Signal 15 (SIGTERM) received by PID 3032\n"
        b"Root Cause (first observed failure):\n  traceback : Signal 9 (SIGKILL) received by PID 3035\n"
    )
    assert cause(log) == "a rank was killed: Signal 9 (SIGKILL) received by PID 3035"


# As pyxis 0.24.0 with enroot 4.1.2 printed it on two nodes; the numbers are process ids.
NO_IMAGE = b"""\
slurmstepd-n1: error: pyxis: child 6815 failed with error code: 1
slurmstepd-n2: error: pyxis: child 6813 failed with error code: 1
srun: error: n1: task 0: Exited with exit code 1
slurmstepd-n1: error: pyxis: failed to create container filesystem for image: /images/x.sqsh
slurmstepd-n1: error: pyxis: printing enroot log file:
slurmstepd-n1: error: pyxis:     [ERROR] No such file or directory: /images/x.sqsh
slurmstepd-n1: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd-n1: error: pyxis: child 6852 failed with error code: 1
"""
NO_MOUNT = b"""\
slurmstepd-n1: error: pyxis: --container-mounts: source path does not exist: /nosuch
slurmstepd-n1: error: pyxis: couldn't create enroot start configuration script
slurmstepd-n1: error: pyxis: printing enroot log file:
slurmstepd-n1: error: pyxis:     [INFO] Extracting squashfs filesystem...
slurmstepd-n1: error: pyxis: container was not started successfully by another task
"""
NO_REGISTRY = b"""\
0: slurmstepd-n1: error: pyxis: child 3508 failed with error code: 6
0: slurmstepd-n1: error: pyxis: failed to import docker image: docker://registry.example#a/b:1
0: slurmstepd-n1: error: pyxis: printing enroot log file:
0: slurmstepd-n1: error: pyxis:     [INFO] Querying registry for permission grant
0: slurmstepd-n1: error: pyxis:     curl: (6) Could not resolve host: registry.example
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            NO_IMAGE,
            "failed to create container filesystem for image: /images/x.sqsh; [ERROR] No such file or directory",
        ),
        (NO_MOUNT, "--container-mounts: source path does not exist: /nosuch"),
        (
            NO_REGISTRY,
            "failed to import docker image: docker://registry.example#a/b:1; "
            "curl: (6) Could not resolve host: registry.example",
        ),
        (b"slurmstepd: error: pyxis: couldn't chdir to /work: No such file or directory", None),
        (b"slurmstepd: error: pyxis: child 1 failed with error code: 1", None),
    ],
    ids=["no image", "no mount", "no registry", "no folder", "nothing else"],
)
def test_of_pyxis_lines_the_one_that_went_wrong_is_named_with_its_reason(log: bytes, said: str | None) -> None:
    assert cause(log) == f"container: pyxis: {said or log.decode().partition('pyxis: ')[2]}"


def test_a_log_without_a_fault_has_no_cause() -> None:
    assert cause(E2021 + b"\n[after training is done] datetime: 2021-08-18 10:00:00 \n") is None


@pytest.mark.parametrize(
    "line", [b"[after training is done] datetime: x", b"[exiting program at iteration 20] datetime: x"]
)
def test_the_end_of_training_is_seen(line: bytes) -> None:
    assert TRAINING_DONE.search(b"0: " + line)


@given(st.binary(), st.binary())
def test_no_bytes_crash_the_reader(before: bytes, after: bytes) -> None:
    log = before + E2021 + after
    list(iteration_lines(log))
    world_line(log)
    cause(log)


VALUES = st.text(alphabet="0123456789.eE+-naif |:", max_size=12).map(str.encode)


@given(VALUES, VALUES, VALUES)
def test_no_field_crashes_the_reader(elapsed: bytes, loss: bytes, count: bytes) -> None:
    line = (
        E2021.replace(b"3520.1", elapsed)
        .replace(b"1.042536E+01", loss)
        .replace(b"iterations:   0", b"iterations: " + count)
    )
    for read in iteration_lines(line):
        assert read.elapsed_ms and read.nan >= 0


@pytest.mark.parametrize(
    "text", [b"a" * 300_000, b"a: " * 100_000, b"task " * 20_000, b"iteration 1/ 2 |" * 20_000, b"1" * 300_000]
)
def test_a_line_without_end_is_read_in_reasonable_time(text: bytes) -> None:
    started = time.perf_counter()
    log = b"iteration 1/ 2 |" + text + b"|"
    list(iteration_lines(log))
    world_line(log)
    cause(log)
    assert time.perf_counter() - started < 5
