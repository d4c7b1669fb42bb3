"""Cause of a failure and its rank, in logs with errors of all ranks.

Lines with a comment (R) are from public logs. The others follow the format strings of their programs.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.logs.reader import MEGATRON_LINES
from orchestrator.reading import causes
from orchestrator.reading.cause_kinds import TOKENS
from orchestrator.reading.causes import LONGEST_LINE, Cause, CauseFinder
from orchestrator.reading.logs import BYTES_AFTER, BYTES_BEFORE, LogLine, parse_line
from tests.causes import megatron_cause

TRAINED = (
    b"7: [2026-08-22 15:22:22.123456] iteration       10/     500 | consumed samples:         5120 |"
    b" elapsed time per iteration (ms): 3520.1 | learning rate: 1.000000E-04 | global batch size:   512 |"
    b" lm loss: 9.912345E+00 | loss scale: 8192.0 | grad norm: 2.310 | number of skipped iterations:   1 |"
    b" number of nan iterations:   0 |"
)
WORLD = (
    b"0: using world size: 8, data-parallel size: 1, context-parallel size: 1, hierarchical context-parallel sizes:"
    b" None, tensor-model-parallel size: 8, pipeline-model-parallel size: 1"
)
OOM = (  # (R), torch 2.5 and later
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 324.00 MiB. GPU 0 has a total capacity of 7.63 GiB"
    b" of which 91.25 MiB is free. Including non-PyTorch memory, this process has 7.52 GiB memory in use. Of the"
    b" allocated memory 7.29 GiB is allocated by PyTorch, and 74.34 MiB is reserved by PyTorch but unallocated."
)
OOM_2023 = (  # (R), torch 1.13 to 2.4
    b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 23.69 GiB total capacity;"
    b" 20.89 GiB already allocated; 23.69 MiB free; 22.11 GiB reserved in total by PyTorch) If reserved memory is >>"
)
WATCHDOG = (  # (R), 2025
    b"[rank1]:[E810 03:04:11.061727749 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout:"
    b" WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds"
    b" before timing out."
)
WATCHDOG_2023 = (  # (R), torch 2.1
    b"[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6463,"
    b" OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600410 milliseconds before timing out."
)
WORK = (
    b"[rank1]:[E810 03:04:11.06 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 1] Timeout at NCCL work:"
    b" 6463, last enqueued NCCL work: 6463, last completed NCCL work: 6462."
)
DUMP = (  # (R), two blanks
    b"[rank2]:[E810 03:04:11.07 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump"
    b" signal due to a collective timeout from  rank 1 and we will try our best to dump the debug info."
)
NCCL = (  # (R)
    b"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94,"
    b" unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9"
)
LOST = (
    b"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote"
    b" process exited or there was a network error, NCCL version 2.28.9"
)
LIMIT = b"slurmstepd: error: *** JOB 42221 ON clr1247 CANCELLED AT 2022-04-14T16:20:46 DUE TO TIME LIMIT ***"  # (R)
NODE_LOST = (
    b"slurmstepd: error: *** STEP 42221.0 ON n1 CANCELLED AT 2022-04-14T16:20:46 DUE TO NODE FAILURE, SEE SLURMCTLD LOG"
    b" FOR DETAILS ***"
)
EXITED = b"srun: error: node001: task 3: Exited with exit code 1"
ARGPARSE = b"pretrain_gpt.py: error: unrecognized arguments: --DDP-impl local"  # (R)


FAILURE_LINES = [
    (OOM, "out of GPU memory", None),
    (b"[rank3]: " + OOM, "out of GPU memory", 3),
    (b"11: " + OOM_2023, "out of GPU memory", 11),
    (
        b"RuntimeError: CUDA out of memory. Tried to allocate 2 GiB (GPU 5; 39.59 GiB total",
        "out of GPU memory",
        None,
    ),
    (b"torch.AcceleratorError: CUDA error: out of memory", "out of GPU memory", None),
    (b"RuntimeError: CUDA driver error: out of memory", "out of GPU memory", None),
    (b" 3: n1:77:99 [3] NCCL WARN Cuda failure 2 'out of memory'", "out of GPU memory", 3),  # (R)
    (b"Cuda failure 'out of memory'", "out of GPU memory", None),
    (
        b"[rank5]: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "out of GPU memory",
        5,
    ),
    (b"2026-01-01 10:00:05: CUDA out of memory", "out of GPU memory", None),
    (b"slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step", "out of host memory", None),
    (b"srun: error: node001: task 3: Out Of Memory", "out of host memory", 3),
    (b"[rank2]: OSError: [Errno 12] Cannot allocate memory", "out of host memory", 2),
    (ARGPARSE, "argument error", None),
    (b"pretrain: error: local rank 3 has no GPU: this process sees 2", "argument error", None),
    (b"[rank0]: AssertionError: num of iterations must be positive", "failed assertion", 0),
    (b"ModuleNotFoundError: No module named 'megatron'", "not found", None),
    (b"python: can't open file '/x/pretrain_gpt.py': [Errno 2] No such file or directory", "not found", None),
    (b"job.sh: line 20: nosuch: command not found", "not found", None),
    (b"  traceback : Signal 9 (SIGKILL) received by PID 3035", "a rank was killed", None),
    (b"srun: error: n1: task 6: Segmentation fault (core dumped)", "a rank crashed", 6),
    (
        b"mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
        "a rank was killed",
        3,
    ),
    (b"3: " + NCCL, "NCCL error", 3),
    (b"RuntimeError: NCCL error in: x.cpp:784, unhandled cuda error, NCCL version 2.7.8", "NCCL error", None),
    (b"ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "NCCL error", None),
    (LOST, "NCCL lost a rank", None),
    (b"RuntimeError: NCCL communicator was aborted on rank 4.", "NCCL lost a rank", 4),
    (
        b"DistBackendError: NCCL error in: x.cpp:1, invalid usage (run with NCCL_DEBUG=WARN for details)",
        "NCCL misused",
        None,
    ),
    (WATCHDOG, "NCCL time-out", 1),
    (WATCHDOG_2023, "NCCL time-out", 3),
    (WORK, "NCCL time-out", 1),
    (DUMP, "NCCL time-out", 1),
    (LIMIT, "time limit", None),
    (b"0: " + LIMIT, "time limit", None),
    (b"slurmstepd: *** JOB 5 ON n1 CANCELLED AT 2021-04-14T16:20:46 DUE TO TIME LIMIT ***", "time limit", None),
    (NODE_LOST, "node failure", None),
    (b"srun: error: Node failure on n8", "node failure", None),
    (
        b"slurmstepd: error: *** JOB 7 ON n CANCELLED AT 2026-01-01T10:00:00 DUE TO PREEMPTION",
        "preempted",
        None,
    ),
    (b"slurmstepd: error: pyxis: container start failed with error code: 1", "container", None),
    (b"repro: not started: job 77 runs it already", "not started", None),
    (b"repro: n3 runs the task outside its image", "outside its image", None),
    (b"[1,3]<stderr>:ValueError: num_attention_heads (24) must be a multiple", "error", 3),  # Open MPI 4
    (b"[prterun-n1-99@1,12]<stderr>: KeyError: 'x'", "error", 12),  # Open MPI 5
    (b"[default3]:RuntimeError: x", "error", None),  # a local rank, which is none
    (b"P1  3: [rank11]: ValueError: x", "error", 11),
    (EXITED, "error", 3),
    (b"srun: error: node001: tasks 0-31: Aborted (core dumped)", "error", None),
]


def test_a_line_has_the_kind_and_rank_of_a_failure() -> None:
    for line, kind, rank in FAILURE_LINES:
        result = megatron_cause(b" 3: fine\n" + line + b"\r\nmore\n")
        assert result is not None, line
        assert (result.kind, result.rank) == (kind, rank), line
        assert result.line and "\n" not in result.line and len(result.line) <= LONGEST_LINE
        assert str(result) == f"{kind}: {result.line}"


@pytest.mark.parametrize(
    "line",
    [
        b"slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
        b"srun: error: node001: task 3: Out Of Memory",
        b"[rank1]: RuntimeError: DataLoader worker is out of shared memory",
        b"CUDA_VISIBLE_DEVICES is out of range",
    ],
)
def test_the_hosts_memory_is_not_the_gpus(line: bytes) -> None:
    result = megatron_cause(TRAINED + b"\n" + line)
    assert result is None or result.kind != "out of GPU memory"


def report(root: int, *others: int, at: str = "10:12:31", how: str = "exitcode  : 1 (pid: 3035)") -> bytes:
    """Return torchrun's report of failed ranks: the root cause comes last."""
    entry = "  time      : 2026-11-21_{at}\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n{how}\n"
    entry += "  error_file: <N/A>\n  traceback : {traceback}\n"
    aborted = {"how": "  exitcode  : -6 (pid: 3031)", "traceback": "Signal 6 (SIGABRT) received by PID 3031"}
    lines = "".join(
        f"[{number}]:\n{entry.format(at='10:12:40', rank=rank, **aborted)}" for number, rank in enumerate(others, 1)
    )
    traceback = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    if "-9" in how:
        traceback = "Signal 9 (SIGKILL) received by PID 3035"
    root_cause = entry.format(at=at, rank=root, how=f"  {how}", traceback=traceback)
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"pretrain_gpt.py FAILED\nFailures:\n{lines}Root Cause (first observed failure):\n[0]:\n{root_cause}"
    ).encode()


def on_ranks(ranks: range, line: str) -> bytes:
    return "".join(line.format(rank=rank) + "\n" for rank in ranks).encode()


ALL = range(8)
TIMED_OUT = on_ranks(
    ALL,
    "{rank}: [rank{rank}]:[E810 03:04:11.06 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=78, OpType=ALLREDUCE, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for",
)
EXITS = on_ranks(ALL, "srun: error: n1: task {rank}: Exited with exit code 1")
LOST_OTHERS = on_ranks(ALL, f"{{rank}}: [rank{{rank}}]: {LOST.decode()}")
TRACE = b'3: [rank3]: Traceback (most recent call last):\n3: [rank3]:   File "x.py", line 3, in forward\n'
BAD_VALUE = TRACE + b"3: [rank3]: ValueError: num_attention_heads (24) must be a multiple of 5\n"
REJOINED = b"5: [rank5]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients.\n"

WHOLE_LOGS = {
    # name -> (log, kind, how the deciding line begins, rank)
    "GPU memory behind all its echoes": (
        WORLD + b"\n" + TIMED_OUT + LOST_OTHERS + EXITS + b"3: [rank3]: " + OOM + b"\n",
        ("out of GPU memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 324.00 MiB", 3),
    ),
    "GPU memory before them": (
        WORLD + b"\n3: [rank3]: " + OOM + b"\n" + LOST_OTHERS + TIMED_OUT + EXITS,
        ("out of GPU memory", "torch.OutOfMemoryError", 3),
    ),
    "GPU memory on two ranks, of which torchrun saw the second first": (
        b"[rank2]: " + OOM + b"\n[rank5]: " + OOM_2023 + b"\n" + report(5, 2),
        ("out of GPU memory", "torch.cuda.OutOfMemoryError", 5),
    ),
    "GPU memory of an old torch that names no rank": (
        b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 39.59 GiB total)\n" + report(3, 0, 1),
        ("out of GPU memory", "RuntimeError: CUDA out of memory", 3),
    ),
    "GPU memory that NCCL could not have, before torch could not": (
        b"2: n1:7:9 [2] NCCL WARN Cuda failure 2 'out of memory'\n5: [rank5]: " + OOM + b"\n" + EXITS,
        ("out of GPU memory", "n1:7:9 [2] NCCL WARN Cuda failure 2 'out of memory'", 2),
    ),
    "GPU memory that NCCL asked for": (
        b"2: [rank2]: " + NCCL + b"\n2: [rank2]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
        b"2: [rank2]: Last error:\n2: [rank2]: Cuda failure 2 'out of memory'\n" + EXITS,
        ("out of GPU memory", "Cuda failure 2 'out of memory'", 2),
    ),
    "the host's memory, which kills a rank": (
        LOST_OTHERS + EXITS + b"srun: error: n1: task 6: Out Of Memory\n"
        b"slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=4.0.\n",
        ("out of host memory", "srun: error: n1: task 6: Out Of Memory", 6),
    ),
    "an argument": (
        b"usage: pretrain_gpt.py [-h]\n" + ARGPARSE + b"\n" + EXITS,
        ("argument error", "pretrain_gpt.py: error: unrecognized arguments: --DDP-impl local", None),
    ),
    "an assertion on the arguments": (
        on_ranks(ALL, "{rank}: [rank{rank}]: AssertionError: world size (8) is not divisible by 3") + EXITS,
        ("failed assertion", "AssertionError: world size (8) is not divisible by 3", 0),
    ),
    "an assertion in the middle of training": (
        WORLD + b"\n" + TRAINED + b"\n3: [rank3]: AssertionError: the batch is empty\n" + EXITS,
        ("error", "AssertionError: the batch is empty", 3),
    ),
    "an exception, while the others waited": (
        WORLD + b"\n" + REJOINED + TIMED_OUT + BAD_VALUE + LOST_OTHERS + EXITS,
        ("error", "ValueError: num_attention_heads (24) must be a multiple of 5", 3),
    ),
    "an exception under torchrun, whose task is that of a node": (
        b"1: ValueError: bad\n0: " + report(9, 12).replace(b"\n", b"\n0: "),
        ("error", "ValueError: bad", 9),
    ),
    "exceptions on two nodes, of which the number of one is that of the first rank": (
        b"0: ValueError: bad\n1: ValueError: worse\n" + report(1, 0),
        ("error", "ValueError: bad", 1),
    ),
    "exceptions on all ranks, of which torchrun saw the third first": (
        on_ranks(ALL, "[rank{rank}]: KeyError: 'layer {rank}'") + report(3, 0),
        ("error", "KeyError: 'layer 3'", 3),
    ),
    "a program that is not there, under torchrun on one node": (
        b"python: can't open file '/x.py': [Errno 2] No such file or directory\n" + report(0, 1),
        ("not found", "python: can't open file", 0),
    ),
    "a killed rank": (
        TIMED_OUT + report(3, 0, 1, how="exitcode  : -9 (pid: 3035)"),
        ("a rank was killed", "Signal 9 (SIGKILL) received by PID 3035", 3),
    ),
    "two nodes' reports, of which the later one stands first": (
        report(12, at="10:13:00") + b"ValueError: bad\n" + report(4, at="10:12:30"),
        ("error", "ValueError: bad", 4),
    ),
    "NCCL's network": (
        WORLD + b"\n" + LOST_OTHERS + b"5: [rank5]: " + NCCL + b"\n" + TIMED_OUT + EXITS,
        ("NCCL error", "torch.distributed.DistBackendError: NCCL error in: ", 5),
    ),
    "NCCL's time-out, whose culprit another rank names": (
        TIMED_OUT.replace(b"4: ", b"") + LOST_OTHERS + DUMP.replace(b"rank 1 ", b"rank 6 ") + b"\n" + EXITS,
        ("NCCL time-out", "[E810 03:04:11.06 ProcessGroupNCCL.cpp:683] [Rank 6] Watchdog caught", 6),
    ),
    "NCCL's time-out, whose culprit says nothing itself": (
        WATCHDOG_2023 + b"\n" + DUMP + b"\nsrun: error: n1: tasks 0-7: Aborted (core dumped)\n",
        ("NCCL time-out", "[E810 03:04:11.07 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0(default_pg) Rank 2] R", 1),
    ),
    "NCCL's time-out under torchrun": (
        WATCHDOG + b"\n" + report(1, 0, how="exitcode  : -6 (pid: 3035)"),
        ("NCCL time-out", "[E810", 1),
    ),
    "only lost connections": (LOST_OTHERS + EXITS, ("NCCL lost a rank", "torch.distributed.DistBackendError", 0)),
    "the time limit, and what ranks say when they are ended": (
        WORLD + b"\n" + TRAINED + b"\n" + LIMIT + b"\n" + LOST_OTHERS + BAD_VALUE + EXITS,
        ("time limit", "slurmstepd: error: *** JOB 42221 ON clr1247 CANCELLED AT", None),
    ),
    "a hang that lasted until the time limit": (
        TRAINED + b"\n" + TIMED_OUT + b"0: " + LIMIT + b"\n",
        ("NCCL time-out", "[E810", 0),
    ),
    "a lost node": (EXITS + NODE_LOST + b"\n", ("node failure", "slurmstepd: error: *** STEP 42221.0 ON n1", None)),
    "one process of Open MPI": (
        b"[1,0]<stderr>:RuntimeError: a\n[1,2]<stderr>:RuntimeError: b\nmpirun detected that one or more processes\n"
        b"exited with non-zero status, thus causing the job to be terminated. The first process to do so was:\n\n"
        b"  Process name: [[40437,1],2]\n  Exit code:    1\n",
        ("error", "RuntimeError: b", 2),
    ),
    "nothing but exit codes": (b"srun: Job step aborted\n" + EXITS, ("error", "srun: error: n1: task 0: Exited", 0)),
    "a word of a set-up line, and then the program's own": (
        b"bash: line 3: module: command not found\n" + BAD_VALUE,
        ("error", "ValueError: num", 3),
    ),
    "what torch's data loader says at any end": (
        b"AssertionError: can only test a child process\n" + WATCHDOG + b"\n",
        ("NCCL time-out", "[E810 03:04:11.061727749 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog", 1),
    ),
    "a start that was requeued, and another that failed of something else": (
        WORLD + b"\n3: [rank3]: " + OOM + b"\n" + WORLD + b"\n" + TRAINED + b"\n" + BAD_VALUE,
        ("error", "ValueError: num", 3),
    ),
    "a start that was requeued, and another that says nothing": (
        WORLD + b"\n3: [rank3]: " + OOM + b"\n" + WORLD + b"\n" + TRAINED + b"\n",
        ("out of GPU memory", "torch.OutOfMemoryError", 3),
    ),
}


@pytest.mark.fault(
    section="Faults of jobs",
    fault="All ranks print errors, most of them before the rank with the root cause",
    promise="The line and the rank of the root cause are found.",
    count=0,
)
@pytest.mark.parametrize(("log", "expected"), WHOLE_LOGS.values(), ids=WHOLE_LOGS)
def test_the_root_cause_and_its_rank_among_the_errors_of_all_ranks(
    log: bytes, expected: tuple[str, str, int | None]
) -> None:
    kind, begins, rank = expected
    result = megatron_cause(log)
    assert result is not None
    assert (result.kind, result.line[: len(begins)], result.rank) == (kind, begins, rank)


@pytest.mark.parametrize("log", [log for log, _ in WHOLE_LOGS.values()], ids=WHOLE_LOGS)
def test_a_log_read_line_by_line_has_the_cause_that_it_has_as_a_whole(log: bytes) -> None:
    finder = CauseFinder(MEGATRON_LINES)
    for line in log.splitlines(keepends=True):
        finder.feed(line)
    result, whole = finder.cause(), megatron_cause(log)
    assert result == whole and result is not None and whole is not None and result.others == whole.others


# Texts around the lines of a log, and all deciding lines, in any order.
LINES = st.sampled_from(
    [line for log, _ in WHOLE_LOGS.values() for line in log.splitlines(keepends=True)]
    + [TRAINED + b"\n", TRAINED.replace(b"9.912345E+00", b"nan") + b"\n", b"\r", b"\n", b"\xff\xfe\x1b[31m"]
    + [token + b" 1 \n" for token in TOKENS]
)


@given(st.lists(st.one_of(LINES, st.binary(max_size=40)), max_size=40), st.data())
def test_no_log_crashes_the_search_or_depends_on_its_parts(pieces: list[bytes], data: st.DataObject) -> None:
    log = b"".join(pieces)
    ends = [end + 1 for end in range(len(log)) if log[end : end + 1] == b"\n"]
    cuts = sorted(data.draw(st.sets(st.sampled_from(ends), max_size=6))) if ends else []
    finder, whole = CauseFinder(MEGATRON_LINES), CauseFinder(MEGATRON_LINES)
    for start, end in itertools.pairwise([0, *cuts, len(log)]):
        finder.feed(log[start:end])
    whole.feed(log)
    result, other = whole.cause(), finder.cause()
    causes = (result, *result.others) if result else ()
    assert causes == ((other, *other.others) if other else ())
    for item in causes:
        assert item.line.isprintable() and len(item.line) <= LONGEST_LINE


def finder_of(*lines: bytes) -> CauseFinder:
    finder = CauseFinder(MEGATRON_LINES)
    finder.feed(b"".join(line + b"\n" for line in lines))
    return finder


def test_a_log_without_a_fault_has_no_cause_but_its_world_and_nan() -> None:
    done = b"0: [after training is done] datetime: 2026-08-22 10:00:00 "
    assert megatron_cause(b"\n".join([WORLD, TRAINED, done])) is None
    shown = finder_of(WORLD, TRAINED, done).cause()
    assert shown == Cause("what ran", WORLD.decode()[3:], 0) and not shown.is_fault
    for bad in (
        TRAINED.replace(b"9.912345E+00", b"nan"),
        TRAINED.replace(b"2.310", b"inf"),
        TRAINED.replace(b"nan iterations:   0", b"nan iterations:  12"),
    ):
        shown = finder_of(WORLD, TRAINED, bad, done).cause()
        assert shown is not None and not shown.is_fault
        assert (shown.kind, shown.rank) == ("not a number", 7)
        assert shown.line.startswith("[2026-08-22 15:22:22.123456] iteration       10/     500 |")


def test_the_reason_of_a_requeue_is_not_the_cause_of_the_next_failure() -> None:
    requeued = b"slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***"
    result = finder_of(WORLD, TRAINED, requeued, WORLD, TRAINED).cause()
    assert result is not None and result.kind == "what ran"


def test_a_cause_has_the_best_lines_of_all_other_kinds() -> None:
    result = finder_of(WORLD, TRAINED, WATCHDOG, b"3: " + OOM, LIMIT).cause()
    assert result is not None and [item.kind for item in (result, *result.others)] == [
        "out of GPU memory",
        "NCCL time-out",
        "time limit",
        "what ran",
    ]
    ran = result.of("what ran", "time limit")
    assert ran is not None and ran.kind == "time limit"
    assert result.of("container") is None


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
UNREADABLE = NO_IMAGE.replace(b"No such file or directory:", b"Invalid image format:")
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
# As pyxis prints it on a node where srun ended the step while enroot unpacked the image.
ENDED_ON_N1 = b"""\
0: slurmstepd-n1: error: pyxis: child 371 terminated with signal 15
0: slurmstepd-n1: error: pyxis: failed to create container filesystem for image: /images/x.sqsh
0: slurmstepd-n1: error: pyxis: printing enroot log file:
0: slurmstepd-n1: error: pyxis:     [INFO] Extracting squashfs filesystem...
1: slurmstepd-n1: error: pyxis: container was not started successfully by another task
"""
# Tasks of one node share a container: one names the error, and another one prints that the removal failed.
REASON_OF_A_THIRD_TASK = b"""\
0: slurmstepd-n1: error: pyxis: container was not started successfully by another task
2: slurmstepd-n1: error: pyxis: child 23913 failed with error code: 1
2: slurmstepd-n1: error: pyxis: failed to create container filesystem for image: /images/x.sqsh
2: slurmstepd-n1: error: pyxis: printing enroot log file:
2: slurmstepd-n1: error: pyxis:     [ERROR] No such file or directory: /images/x.sqsh
0: slurmstepd-n1: error: pyxis: child 23904 failed with error code: 1
"""
# srun can lose the first lines of a task.
FIRST_LINES_LOST = b"""\
0: slurmstepd-n1: error: pyxis: couldn't start container
1: slurmstepd-n1: error: pyxis: container start failed with error code: 1
1: slurmstepd-n1: error: pyxis: printing enroot log file:
1: slurmstepd-n1: error: pyxis:     enroot-mount: failed to mount: /nosuch at /run/x/data: No such file or directory
"""
STARTED = "container start failed with error code: 1"


def enroot(*lines: str) -> bytes:
    """Return the lines of pyxis 0.11 to 0.23 about a container that did not start, with lines of enroot's log."""
    words = [STARTED, "printing enroot log file:", *(f"    {line}" for line in lines), "couldn't start container"]
    return "".join(f"0: slurmstepd: error: pyxis: {line}\n" for line in words).encode()


@pytest.mark.fault(
    section="Faults of jobs",
    fault="enroot fails without marking its line as an error",
    promise="Its line is the reason.",
    count=0,
)
@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            NO_IMAGE,
            "failed to create container filesystem for image: /images/x.sqsh; [ERROR] No such file or directory",
        ),
        (
            UNREADABLE,
            "failed to create container filesystem for image: /images/x.sqsh; [ERROR] Invalid image format "
            "(or this user may not read it)",
        ),
        (
            REASON_OF_A_THIRD_TASK,
            "failed to create container filesystem for image: /images/x.sqsh; [ERROR] No such file or directory",
        ),
        (NO_MOUNT, "--container-mounts: source path does not exist: /nosuch"),
        (
            NO_REGISTRY,
            "failed to import docker image: docker://registry.example#a/b:1; "
            "curl: (6) Could not resolve host: registry.example",
        ),
        (enroot("enroot-mount: failed to mount: /nosuch at /run/x/data: No such file or directory"),
         f"{STARTED}; enroot-mount: failed to mount: /nosuch at /run/x/data: No such file or directory"),
        (enroot("mkdir: cannot create directory '/run/x/data': Read-only file system"),
         f"{STARTED}; mkdir: cannot create directory '/run/x/data': Read-only file system"),
        (enroot("/etc/rc: line 2: exec: sh: not found"), f"{STARTED}; /etc/rc: line 2: exec: sh: not found"),
        (enroot("Parallel unsquashfs: Using 8 processors", "Write on output file failed: No space left on device",
                "FATAL ERROR: writer: failed to write data block 0"),
         f"{STARTED}; Write on output file failed: No space left on device"),
        (ENDED_ON_N1 + NO_IMAGE.replace(b"n2", b"n4").replace(b"n1", b"n3"),
         "failed to create container filesystem for image: /images/x.sqsh; [ERROR] No such file or directory"),
        (FIRST_LINES_LOST,
         f"{STARTED}; enroot-mount: failed to mount: /nosuch at /run/x/data: No such file or directory"),
        (b"slurmstepd: error: pyxis: couldn't chdir to /work: No such file or directory", None),
        (b"slurmstepd: error: pyxis: child 1 failed with error code: 1", None),
    ],
    ids=["no image", "unreadable", "third task", "no mount", "no registry", "no mount source", "no mount target",
         "no shell", "disk full", "one ended, one failed", "lines lost", "no folder", "nothing else"],
)  # fmt: skip
def test_the_failed_container_among_pyxis_lines_has_its_reason(log: bytes, reason: str | None) -> None:
    finder = CauseFinder(MEGATRON_LINES)
    for line in log.splitlines(keepends=True):
        finder.feed(line)
    for result in (megatron_cause(log), finder.cause()):
        assert str(result) == f"container: pyxis: {reason or log.decode().partition('pyxis: ')[2]}"


def test_a_container_that_slurm_ended_is_not_a_cause() -> None:
    missing = b"3: task: line 14: /opt/conda/bin/python: No such file or directory\n"
    result = megatron_cause(ENDED_ON_N1 + missing)
    assert result is not None and (result.kind, result.rank) == ("not found", 3)
    assert "pyxis" not in str(megatron_cause(ENDED_ON_N1 + b"srun: error: n2: task 3: Exited with exit code 1\n"))


@pytest.mark.parametrize(
    "line",
    [
        "/opt/conda/bin/python: No such file or directory",
        "exec: /opt/conda/bin/python: cannot execute: Permission denied",
        "/opt/conda/bin/python: cannot execute: required file not found",
        "/opt/conda/bin/python: cannot execute binary file: Exec format error",
        "exec: python: not found",
    ],
)
def test_a_program_that_is_not_in_the_image_is_named(line: str) -> None:
    """Compare with lines of bash 4 and 5, which precede srun's line about the exit code."""
    result = megatron_cause(
        f"1: task: line 14: {line}\nsrun: error: n1: tasks 0-1: Exited with exit code 127\n".encode()
    )
    assert result is not None and (result.kind, result.line, result.rank) == ("not found", f"task: line 14: {line}", 1)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"3: \x1b[31m[rank3]: ValueError\x1b[0m: b\x1b]8;;x\x07ad\x1b[K", "ValueError: bad"),
        (b"3: [rank3]: ValueError: bad\r", "ValueError: bad"),
        (b" 12%\r 50%\r[rank3]: ValueError: bad\r 99%", "ValueError: bad"),
        (b"3: ValueError: b\xffad \xc3", "ValueError: b\ufffdad \ufffd"),
        (b"3: ValueError: b\tad\x00", "ValueError: b ad"),
        (b"3: ValueError: " + b"b" * 5000, "ValueError: " + "b" * (LONGEST_LINE - len("ValueError: "))),
    ],
    ids=["terminal", "CRLF", "progress bar", "not UTF-8", "control characters", "long"],
)
def test_the_deciding_line_is_clean_and_short(raw: bytes, shown: str) -> None:
    assert megatron_cause(b"x\n" + raw + b"\n") == Cause("error", shown, 3)


@pytest.mark.slow
def test_memory_of_the_search_does_not_grow_with_the_log() -> None:
    finder = CauseFinder(MEGATRON_LINES)
    for number in range(20_000):
        finder.feed(b"%d: ValueError: bad\n%d: error: odd\n" % (number, number))
    lines = len(finder._start._first)
    assert lines == 16384
    assert finder.cause() == Cause("error", "ValueError: bad", 0)


WITHOUT_END = {
    "a": b"a" * 300_000,
    "labels": b"3: " * 100_000,
    "errors": b"error" * 60_000,
    "exceptions": b"Error: " * 40_000,
    "NaN": b"iteration 1 " + b": nan |" * 40_000,
    "NCCL": b"NCCL error in" * 20_000,
    "modules": b"a." * 150_000 + b"Error: ",
    "digits": b"1" * 300_000,
    "reports": b"Root Cause (first" * 20_000,
    "tasks": b"error: n: tasks " + b"0," * 100_000,
    "memory": b"cuda out of memory" * 15_000,
    "worlds": b"using world size: " * 15_000,
    "carriage returns": b"error\r" * 40_000,
}


@pytest.mark.parametrize("text", WITHOUT_END.values(), ids=WITHOUT_END)
def test_an_endless_line_is_read_about_once(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def counted(line: bytes) -> LogLine:
        lengths.append(len(line))
        return parse_line(line)

    monkeypatch.setattr(causes, "parse_line", counted)
    megatron_cause(text)
    assert max(lengths, default=0) <= BYTES_BEFORE + BYTES_AFTER
    assert sum(lengths) <= 6 * len(text) + BYTES_BEFORE + BYTES_AFTER, (
        "two words of the search are in it, and what is around"
    )


def test_a_folder_that_the_node_cannot_enter_is_the_cause_and_not_the_exit_code_of_srun() -> None:
    line = "slurmstepd-n1: error: couldn't chdir to `/home/me/work': Permission denied"
    found = megatron_cause(f"{line}\nsrun: error: n1: tasks 0-3: Exited with exit code 1\n".encode())
    assert found is not None and found.line == line


FIRST_FAILED = b"Root Cause (first observed failure):\n"
PARTS = {
    # name -> (parts of a log, kind, line, rank)
    "an assertion between iterations": (
        [TRAINED + b"\n", b"3: [rank3]: AssertionError: the batch is empty\n" + TRAINED + b"\n"],
        ("error", "AssertionError: the batch is empty", 3),
    ),
    "an error between two messages of an end": (
        [LIMIT + b"\n", b"3: " + NCCL + b"\n" + LIMIT + b"\n"],
        ("time limit", LIMIT.decode(), None),
    ),
    "an earlier line with the time-out of a rank, found by a later literal": (
        [DUMP + b"\n[rank3]: error: collective timeout from  rank 6\n"],
        ("NCCL time-out", DUMP.decode().removeprefix("[rank2]:"), 1),
    ),
    "a start without a fault, and another with a NaN": (
        [WORLD + b"\n", WORLD.replace(b"0: ", b"1: ") + b"\n" + TRAINED.replace(b"9.912345E+00", b"nan") + b"\n"],
        ("not a number", TRAINED.decode()[3:].replace("9.912345E+00", "nan")[:LONGEST_LINE], 7),
    ),
    "a report that ends without a line end": (
        [
            FIRST_FAILED
            + b"[0]:\n  rank      : 5 (local_rank: 1)\n  traceback : Signal 9 (SIGKILL) received by PID 3035"
        ],
        ("a rank was killed", "Signal 9 (SIGKILL) received by PID 3035", 5),
    ),
    "a report with a blank line in the next part": (
        [FIRST_FAILED, b"\n  rank      : 5 (local_rank: 1)\n  traceback : Signal 9 (SIGKILL) received by PID 3035\n"],
        ("a rank was killed", "Signal 9 (SIGKILL) received by PID 3035", 5),
    ),
}


@pytest.mark.parametrize(("parts", "expected"), PARTS.values(), ids=PARTS)
def test_a_log_read_in_parts_has_its_cause(parts: list[bytes], expected: tuple[str, str, int | None]) -> None:
    finder = CauseFinder(MEGATRON_LINES)
    for part in parts:
        finder.feed(part)
    result = finder.cause()
    assert result is not None and (result.kind, result.line, result.rank) == expected
