"""Tests of the nodes that the next attempt excludes."""

from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from orchestrator.reading import failure
from orchestrator.reading.failure import Allocation, Failure, failed_nodes
from orchestrator.reading.logs import LONGEST_LINE_BYTES, log_blocks

pytestmark = pytest.mark.slow

FOUR = Allocation(("n1", "n2", "n3", "n4"), tasks_per_node=2, ranks_per_node=2)
TORCHRUN = Allocation(("n1", "n2", "n3", "n4"), tasks_per_node=1, ranks_per_node=8)
UNKNOWN = Allocation(())

# The log and batch.txt of Slurm 22.05, --kill-on-bad-exit=1, four nodes of two tasks.
ECC = b"5: [rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
ENDED = b"""\
srun: launch/slurm: _step_signal: Terminating StepId=1.0
srun: error: n3: task 4: Terminated
srun: error: n2: tasks 2-3: Terminated
srun: error: n4: tasks 6-7: Exited with exit code 143
srun: error: n1: tasks 0-1: Terminated
srun: Force Terminated StepId=1.0
"""
EXITED = b"srun: error: n3: task 5: Exited with exit code 1\n"
# Rank 2 lost its connection first, and srun saw it first.
ECHO_FIRST = b"2: [rank2]: torch.distributed.DistBackendError: NCCL error in: x.cpp:94, remote process exited\n"
LOST_IT = b"srun: error: n2: task 2: Exited with exit code 1\n"
OF_TORCHRUN = b"2: [rank17]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
UNLABELLED = b"[rank17]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
MINUTES_LATER = b"srun: error: n9: task 5: Exited with exit code 1\n"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A GPU fails, and the log names the node in another way or not at all",
    promise="Only a node that the log proves to be at fault is excluded.",
    count=0,
)
@pytest.mark.parametrize(
    ("log", "allocation", "expected"),
    [
        (ECC + EXITED + ENDED, FOUR, ("n3",)),
        (ECC + EXITED + ENDED, UNKNOWN, ("n3",)),
        (ECC, FOUR, ("n3",)),
        (ECHO_FIRST + ECC + LOST_IT + EXITED + ENDED, FOUR, ("n3",)),
        (ECHO_FIRST + ECC + LOST_IT + EXITED + ENDED, UNKNOWN, ("n3",)),
        (OF_TORCHRUN, TORCHRUN, ("n3",)),
        (UNLABELLED, TORCHRUN, ("n3",)),
        (b"CUDA error: uncorrectable ECC error encountered\n" + EXITED + ENDED, FOUR, ("n3",)),
        (b"CUDA error: uncorrectable ECC error encountered\n" + ENDED, FOUR, ()),
        (ECC, Allocation(FOUR.nodes), ()),
        (ECC.replace(b"5", b"99"), FOUR, ()),
        (ECC.replace(b"5", b"8"), FOUR, ()),
        (ECC.replace(b"5", b"7"), FOUR, ("n4",)),
        (ECC + MINUTES_LATER + EXITED, FOUR, ("n3",)),
        (ECC + MINUTES_LATER, FOUR, ()),
        (ECC + LOST_IT + b"srun: error: n3: tasks 1,4-6,9: Exited with exit code 1\n", UNKNOWN, ("n3",)),
        (ECC + b"no end of line" + EXITED, UNKNOWN, ("n3",)),
    ],
    ids=["as on Slurm", "nodes forgotten", "no line of srun", "an echo came first", "nodes forgotten after an echo",
         "task of torchrun", "rank alone", "no rank", "nothing tells", "unknown distribution", "no such rank",
         "behind the last rank", "last rank", "started twice", "on other nodes", "several tasks",
         "srun after other output"],
)  # fmt: skip
def test_gpu_fault_excludes_only_the_node_of_the_deciding_rank(
    log: bytes, allocation: Allocation, expected: tuple[str, ...]
) -> None:
    assert failed_nodes(Failure.GPU_FAULT, [log], allocation) == expected


# One node whose image is broken, and one that srun ended while it unpacked the image. `{1}` and `{2}` are the node
# names, which slurmstepd prints in some builds of Slurm only.
BROKEN = """\
2: slurmstepd{2}: error: pyxis: child 411 failed with error code: 1
2: slurmstepd{2}: error: pyxis: failed to create container filesystem for image: /images/x.sqsh
2: slurmstepd{2}: error: pyxis: printing enroot log file:
2: slurmstepd{2}: error: pyxis:     [ERROR] Invalid image format: /images/x.sqsh
3: slurmstepd{2}: error: pyxis: container was not started successfully by another task
0: slurmstepd{1}: error: pyxis: child 371 terminated with signal 15
0: slurmstepd{1}: error: pyxis: failed to create container filesystem for image: /images/x.sqsh
0: slurmstepd{1}: error: pyxis: printing enroot log file:
0: slurmstepd{1}: error: pyxis:     [INFO] Extracting squashfs filesystem...
1: slurmstepd{1}: error: pyxis: container was not started successfully by another task
"""
TWO = Allocation(("n1", "n2"), 2, 2)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A container does not start on one node, and srun ends the container of the other",
    promise="Only the node where it failed by itself is excluded.",
    count=0,
)
@pytest.mark.parametrize("ended_first", [True, False])
@pytest.mark.parametrize("has_names", [True, False])
@pytest.mark.parametrize("allocation", [TWO, UNKNOWN], ids=["nodes known", "nodes forgotten"])
def test_container_failure_excludes_only_the_node_where_it_failed_by_itself(
    allocation: Allocation, has_names: bool, ended_first: bool
) -> None:
    lines = BROKEN.replace("{1}", "-n1" if has_names else "").replace("{2}", "-n2" if has_names else "")
    lines = "".join(sorted(lines.splitlines(keepends=True))) if ended_first else lines
    srun = b"srun: error: n2: tasks 2-3: Exited with exit code 1\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n"
    assert failed_nodes(Failure.IMAGE, [lines.encode(), srun], allocation) == ("n2",)


def test_unlabelled_container_failure_excludes_the_node_of_the_first_failed_task() -> None:
    lines = re.sub(r"(?m)^[0-9]: ", "", BROKEN.replace("{1}", "").replace("{2}", ""))
    srun = b"srun: error: n2: tasks 2-3: Exited with exit code 1\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n"
    for log in (lines, "".join(sorted(lines.splitlines(keepends=True)))):
        assert failed_nodes(Failure.IMAGE, [log.encode(), srun], TWO) == ("n2",)


def test_node_that_printed_the_line_is_excluded_and_not_the_first_whose_task_failed() -> None:
    log = b"slurmstepd-n3: error: pyxis: couldn't start container\nsrun: error: n1: task 0: Exited with exit code 1\n"
    assert failed_nodes(Failure.IMAGE, [log], FOUR) == ("n3",)


def test_every_node_with_a_failed_container_is_excluded() -> None:
    lines = "".join(f"{task}: slurmstepd: error: pyxis: couldn't start container\n" for task in (0, 5, 4))
    assert failed_nodes(Failure.IMAGE, [lines.encode()], FOUR) == ("n1", "n3")


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A GPU fails, and the log names the node in another way or not at all",
    promise="Only a node that the log proves to be at fault is excluded.",
    count=0,
)
def test_without_a_deciding_line_the_node_of_the_first_failed_task_is_excluded() -> None:
    log = b"srun: error: Unable to create step\nsrun: error: n3: task 5: Segmentation fault\n" + ENDED
    assert failed_nodes(Failure.KILLED, [log], FOUR) == ("n3",)


def test_nodes_that_srun_reports_lost_are_excluded() -> None:
    log = b"srun: error: Node failure on n2\nsrun: error: Node failure on n4\nsrun: error: n1: task 0: Exited with 1\n"
    assert failed_nodes(Failure.NODE_FAIL, [log], FOUR) == ("n2", "n4")
    assert failed_nodes(Failure.NODE_FAIL, [b"srun: error: Node failure on (null)\n" + log], FOUR) == ("n2", "n4")
    assert failed_nodes(Failure.NODE_FAIL, [EXITED + ENDED], FOUR) == ()


@pytest.mark.fault(
    section="Faults of jobs",
    fault="srun cannot launch the tasks of some nodes",
    promise="These nodes are excluded, not those whose launch srun ended.",
)
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"Task launch for StepId=9.0 failed on node n2: Job credential expired", ("n2",)),
        (b"Task launch for 9.0 failed on node n3: Communication connection failure", ("n3",)),
        (b"Task launch for StepId=9.0 failed on node n22: No such process", ()),
        (b"task 5 launch failed: Slurmd could not execve job", ("n3",)),
        (b"task 99 launch failed: Slurmd could not execve job", ()),
        (
            b"task 7 launch failed: x\nsrun: error: task 6 launch failed: x\nsrun: error: Node failure on n1",
            ("n4", "n1"),
        ),
    ],
)
def test_nodes_where_srun_launches_no_task_are_excluded(lines: bytes, expected: tuple[str, ...]) -> None:
    assert failed_nodes(Failure.NODE_FAIL, [b"srun: error: " + lines + b"\n" + EXITED], FOUR) == expected


def test_single_node_is_excluded_without_reading_its_log() -> None:
    def never() -> bytes:
        raise AssertionError("the log was read")

    assert failed_nodes(Failure.GPU_FAULT, (never() for _ in range(1)), Allocation(("n7",))) == ("n7",)


def test_lines_about_more_nodes_than_the_limit_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_MOST_LINES", 2)
    lost = b"".join(b"srun: error: Node failure on n%d\n" % number for number in (1, 2, 3))
    assert failed_nodes(Failure.NODE_FAIL, [lost], UNKNOWN) == ("n1", "n2")
    ended = b"".join(b"srun: error: n%d: task %d: Terminated\n" % node for node in ((1, 0), (2, 2), (3, 5)))
    assert failed_nodes(Failure.GPU_FAULT, [ECC + ended], UNKNOWN) == ()


MOST_MEMORY = 24 * LONGEST_LINE_BYTES
SIZE = 3 * MOST_MEMORY


def write_plain(folder: Path) -> None:
    """Write a sparse file, which takes no disk space."""
    with (folder / "log.txt").open("wb") as file:
        file.truncate(SIZE)
        file.seek(SIZE)
        file.write(b"\n" + ECC)


def write_packed(folder: Path) -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    lines = b"3:  iteration 1 and nothing else that anybody would look for\n" * 16384
    with (folder / "log.txt.zst").open("wb") as file:
        for _ in range(SIZE // len(lines)):
            file.write(packer.compress(lines))
        file.write(packer.compress(ECC) + packer.flush())


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A failed job has a log of any size, plain or compressed",
    promise="The nodes at fault are found in constant memory.",
)
@pytest.mark.parametrize("write", [write_plain, write_packed], ids=["plain", "packed"])
def test_failed_nodes_of_a_log_of_any_size_take_constant_memory(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    (tmp_path / "batch.txt").write_bytes(EXITED + ENDED)
    on_disk = sum(file.stat().st_blocks * 512 for file in os.scandir(tmp_path))
    assert on_disk < MOST_MEMORY
    tracemalloc.start()
    try:
        nodes_at_fault = failed_nodes(Failure.GPU_FAULT, log_blocks(tmp_path), UNKNOWN)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert nodes_at_fault == ("n3",)
