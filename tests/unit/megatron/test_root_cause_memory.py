"""Numbers in torch's message about a full GPU, which show whether other processes used its memory.

Lines with a comment (R) are from public logs or from our own. The others have the same format and other numbers.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.reading.cause_kinds import NOT_TORCHS_GIB, OTHERS_LEAST_GIB, memory_short
from tests.causes import megatron_cause

OURS = (  # (R), torch 2.11 on an H200
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.80 GiB"
    " of which 980.06 MiB is free. Including non-PyTorch memory, this process has 138.84 GiB memory in use. Of the"
    " allocated memory 136.82 GiB is allocated by PyTorch, and 57.31 MiB is reserved by PyTorch but unallocated."
)
BUSY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139.80 GiB"
    " of which 980.06 MiB is free. Process 1234 has 100.00 GiB memory in use. Including non-PyTorch memory, this"
    " process has 38.84 GiB memory in use. Of the allocated memory 36.82 GiB is allocated by PyTorch, and 57.31 MiB is"
    " reserved by PyTorch but unallocated."
)
CONTEXTS = (  # (R), torch 2.9: contexts that the other ranks left on this rank's GPU
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 572.00 MiB. GPU 0 has a total capacity of 39.49 GiB"
    " of which 321.31 MiB is free. Process 3721648 has 414.00 MiB memory in use. Including non-PyTorch memory, this"
    " process has 37.46 GiB memory in use. Process 1374765 has 414.00 MiB memory in use. Process 1374763 has 414.00 MiB"
    " memory in use. Process 1374764 has 414.00 MiB memory in use. Of the allocated memory 36.04 GiB is allocated by"
    " PyTorch, and 321.37 MiB is reserved by PyTorch but unallocated."
)
CONTAINER = (  # (R), 2025, in a container: one of the processes is this one
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 39.39 GiB"
    " of which 9.25 MiB is free. Process 25454 has 3.86 GiB memory in use. Process 104554 has 4.29 GiB memory in use."
    " Process 30427 has 31.20 GiB memory in use. Of the allocated memory 30.21 GiB is allocated by PyTorch, with 26.00"
    " MiB allocated in private pools (e.g., CUDA Graphs), and 217.48 MiB is reserved by PyTorch but unallocated."
)
ALONE_IN_CONTAINER = OURS.replace("Including non-PyTorch memory, this process has", "Process 4242 has")
UNTOLD = OURS.replace("138.84 GiB memory in use", "17179869184.00 GiB memory in use")
UNTOLD_AND_BUSY = UNTOLD.replace("136.82 GiB is allocated", "36.82 GiB is allocated")
NO_NVML = OURS.replace("Including non-PyTorch memory, this process has 138.84 GiB memory in use. ", "")
CAPACTY = (  # (R), torch 2.1, with its misspelling
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 138.00 MiB. GPU 0 has a total capacty of 15.90"
    " GiB of which 8.44 MiB is free. Process 1246069 has 577.00 MiB memory in use. Including non-PyTorch memory, this"
    " process has 15.32 GiB memory in use. Of the allocated memory 14.12 GiB is allocated by PyTorch, and 410.41 MiB is"
    " reserved by PyTorch but unallocated."
)
BUSY_2023 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.35 GiB total capacity;"
    " 17.39 GiB already allocated; 19.19 MiB free; 17.42 GiB reserved in total by PyTorch) If reserved memory is >>"
)
OURS_2023 = (  # (R), torch 1.13 to 2.0
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 23.69 GiB total capacity;"
    " 20.89 GiB already allocated; 23.69 MiB free; 22.11 GiB reserved in total by PyTorch) If reserved memory is >>"
)
CACHED_2019 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 31.75 GiB total capacity; 9.53 GiB already"
    " allocated; 18.56 MiB free; 231.50 MiB cached)"
)
LIMITED = (  # (R), with a fraction of the memory set for the process
    "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 47.37 GiB of which 46.57 GiB is"
    " free. Including non-PyTorch memory, this process has 772.00 MiB memory in use. 800.55 MiB allowed; Of the"
    " allocated memory 245.48 MiB is allocated by PyTorch, and 16.52 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Another process uses a GPU's memory when the job runs",
    promise="Class `gpu-in-use`, by the numbers in torch's message. It never counts as the published end.",
    count=0,
)
@pytest.mark.parametrize(
    ("line", "others_gib", "is_of_others"),
    [
        (OURS, 0.0, False),
        (BUSY, 100.0, True),
        (CONTEXTS, 0.1, False),
        (CONTAINER, 8.2, True),
        (ALONE_IN_CONTAINER, 0.0, False),
        (UNTOLD, 2.0, False),
        (UNTOLD_AND_BUSY, 102.0, True),
        (NO_NVML, 2.0, False),
        (CAPACTY, 0.0, False),
        (BUSY_2023, 61.9, True),
        (OURS_2023, 1.6, False),
        (CACHED_2019, 22.0, True),
        (LIMITED, 0.0, False),
        (LIMITED.replace("46.57 GiB is free", "2.00 GiB is free"), 44.6, False),
        (BUSY.replace("Tried to allocate 1.50", "Tried to allocate 120.00"), 100.0, False),
    ],
)
def test_numbers_of_the_message_show_whether_other_processes_used_the_memory(
    line: str, others_gib: float, is_of_others: bool
) -> None:
    short = memory_short(line)
    assert short is not None
    assert (round(short.others_gib, 1), short.is_of_others) == (others_gib, is_of_others)


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory.",
        "torch.AcceleratorError: CUDA error: out of memory",
        "n1:77:99 [3] NCCL WARN Cuda failure 2 'out of memory'",
        "Tried to allocate 2.00 GiB",
        "",
    ],
)
def test_a_line_without_numbers_has_no_result(line: str) -> None:
    assert memory_short(line) is None


@given(
    st.floats(20, 200),
    st.floats(0.1, 15),
    st.floats(0, 0.09),
    st.floats(0.1, 4),
)
def test_a_process_that_fills_its_gpu_alone_is_out_of_memory(
    total: float, besides: float, free: float, asked: float
) -> None:
    """Check any memory beside torch's, as long as NVML names the process's own memory."""
    own = total - free
    line = (
        f"CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total capacity of {total:.2f} GiB of which"
        f" {free:.2f} GiB is free. Including non-PyTorch memory, this process has {own:.2f} GiB memory in use. Of the"
        f" allocated memory {max(0.0, own - besides):.2f} GiB is allocated by PyTorch, and 0 bytes is reserved by"
        " PyTorch but unallocated."
    )
    short = memory_short(line)
    assert short is not None and not short.is_of_others


def test_a_little_memory_of_other_processes_is_ignored() -> None:
    assert OTHERS_LEAST_GIB < 2 < NOT_TORCHS_GIB, "2.0 GiB beside torch's own were seen on two H200s"


@pytest.mark.parametrize(
    ("lines", "kind", "rank"),
    [
        ([(0, BUSY)], "GPU in use", 0),
        ([(3, OURS)], "out of GPU memory", 3),
        ([(0, BUSY), (1, "torch.AcceleratorError: CUDA error: out of memory")], "GPU in use", 0),
        ([(1, "torch.AcceleratorError: CUDA error: out of memory"), (0, BUSY)], "GPU in use", 0),
        ([(0, BUSY), (1, OURS)], "out of GPU memory", 1),
        ([(1, OURS), (0, BUSY)], "out of GPU memory", 1),
    ],
)
def test_a_gpu_in_use_decides_unless_another_rank_filled_its_own(
    lines: list[tuple[int, str]], kind: str, rank: int
) -> None:
    result = megatron_cause("".join(f"[rank{rank}]: {line}\n" for rank, line in lines).encode())
    assert result is not None
    assert (result.kind, result.rank) == (kind, rank)
