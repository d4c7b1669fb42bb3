"""Who had a GPU's memory when a process could get no more: what torch's message says in its numbers.

Wordings: c10/cuda/CUDACachingAllocator.cpp of torch 1.1 to 2.11. Since 2.1 it asks NVML and names each process of the
GPU. It knows itself by its process id: in a container with ids of its own it calls itself `Process 4242` like any
other, and where NVML tells no sizes it prints 17179869184.00 GiB for each. What is left is arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OTHERS_LEAST_GIB = 1
"""A process with less counts for nothing: a display, a monitor, the context that a rank left on another one's GPU (0.4
GiB in a public log of torch 2.9), of which there may be many."""

NOT_TORCHS_GIB = 8
"""What a process may hold beside torch's own memory, where nothing tells: CUDA's context, NCCL's buffers, libraries'
workspaces. 2.0 GiB on two H200s with torch 2.11; how much NCCL takes on hundreds of ranks is unconfirmed."""

_GIB_IN = {"bytes": 2**30, "KiB": 2**20, "MiB": 2**10, "GiB": 1, "TiB": 2**-10}
_SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,4})?) (bytes|KiB|MiB|GiB|TiB)"

_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity")  # 2.1 writes capacty
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated|{_SIZE} cached\)")  # cached: before 1.5
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_PROCESS = re.compile(rf"\bProcess [0-9]{{1,10}} has {_SIZE} memory in use")
_ITSELF = re.compile(rf"this process has {_SIZE} memory in use")
_LIMITED = re.compile(rf"{_SIZE} allowed;")


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """A message of torch's allocator, in GiB. `others_gib`: what was neither its own nor free, nor of a process with
    little; `is_of_others`: without that it would have got what it asked for.
    """

    asked_gib: float
    total_gib: float
    others_gib: float
    is_of_others: bool


def memory_short(line: str) -> MemoryShort | None:
    """What a line says; None where it is another one, or does not say of how much memory there was how much free."""
    asked, total, free = (_gib(pattern, line) for pattern in (_ASKED, _TOTAL, _FREE))
    if asked is None or total is None or free is None:
        return None
    torchs = _gib(_RESERVED, line)
    if torchs is None:
        torchs = (_gib(_ALLOCATED, line) or 0.0) + (_gib(_UNALLOCATED, line) or 0.0)
    processes = [size for size in map(_in_gib, _PROCESS.finditer(line)) if size <= total]
    own = _own(line, torchs, total, processes)
    few = sum(size for size in processes if size < OTHERS_LEAST_GIB and size != own)
    others = max(0.0, total - free - few - (torchs if own is None else own))
    least = NOT_TORCHS_GIB if own is None else OTHERS_LEAST_GIB
    is_limited = _LIMITED.search(line) is not None  # by set_per_process_memory_fraction
    return MemoryShort(asked, total, others, not is_limited and others > max(least, asked - free))


def _own(line: str, torchs: float, total: float, processes: list[float]) -> float | None:
    """What the process holds by NVML's word: if it is not named, the least that has room for what torch has of it."""
    itself = _gib(_ITSELF, line)
    if itself is not None and itself <= total:
        return itself
    return min((size for size in processes if size >= torchs), default=None) if torchs else None


def _gib(pattern: re.Pattern[str], line: str) -> float | None:
    found = pattern.search(line)
    return _in_gib(found) if found else None


def _in_gib(found: re.Match[str]) -> float:
    number, unit = (group for group in found.groups() if group)
    return float(number) / _GIB_IN[unit]
