"""What Megatron-LM and Megatron-Kwai say of the GPUs' memory.

Sources: `report_memory` and `report_theoretical_memory` of megatron/utils.py and training.py, 2021 to core_v0.20; the
lines that Megatron-Kwai prints after its first two iterations. What Megatron calls MB are MiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.megatron.logs.scan import NUMBER, last_match, line_end, occurrences

_MIB = 2**20
_LARGEST_MIB = 1e12
"""More than any machine has; a number beyond it is garbled."""

_REPORT = b"iterations) memory (MB) | allocate"
_FIELD = re.compile(rb"\| (max allocated|max reserved|total device memory used): (" + NUMBER + rb")(?![0-9.])")
_BYTES = re.compile(rb"(max_memory_allocated|max_memory_reserved|memory_info\.used) ([0-9]{1,18})(?![0-9.])")
_BYTES_WORDS = (b"max_memory_allocated ", b"max_memory_reserved ", b"memory_info.used ")
_THEORY = re.compile(
    rb"Theoretical memory footprints: weight and optimizer=[^|\r\n]{1,100}? MB, total=(" + NUMBER + rb") MB"
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the GPU that has used most; None where nothing was said. `used` is the whole device's, torch or not."""

    max_allocated: int | None = None
    max_reserved: int | None = None
    used: int | None = None


def reported_memory(log: bytes, start: int, end: int) -> Memory:
    """The largest of what each rank with data-parallel rank 0 reports, over all of its lines."""
    largest: dict[bytes, int] = {}
    for at in occurrences(log, _REPORT, start, end):
        for match in _FIELD.finditer(log, at, line_end(log, at, end)):
            mib = float(match[2])
            if 0 <= mib <= _LARGEST_MIB:
                largest[match[1]] = max(largest.get(match[1], 0), round(mib * _MIB))
    return Memory(*(largest.get(name) for name in (b"max allocated", b"max reserved", b"total device memory used")))


def memory_of_all(log: bytes, start: int, end: int) -> Memory:
    """Megatron-Kwai's: in bytes, the largest over all ranks. It prints two sets, of which the last counts."""
    last: dict[bytes, int] = {}
    for word in _BYTES_WORDS:
        match = last_match(log, word, _BYTES, start, end)
        if match is not None:
            last[word.strip()] = int(match[2])
    return Memory(*(last.get(word.strip()) for word in _BYTES_WORDS))


def theoretical_memory(log: bytes, start: int, end: int) -> int | None:
    """Bytes that Megatron expects one GPU to need: an estimate, and no measurement."""
    match = last_match(log, b"Theoretical memory footprints: ", _THEORY, start, end)
    mib = float(match[1]) if match is not None else -1.0
    return round(mib * _MIB) if 0 <= mib <= _LARGEST_MIB else None
