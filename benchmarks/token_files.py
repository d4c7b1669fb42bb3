"""`pretrain`'s tokens as Megatron-LM's indexed data set (PREFIX.bin, PREFIX.idx), for `--data-path PREFIX`.

Each sequence is a document of `seq` tokens. Megatron-LM joins its documents in an order that it draws from its seed
and cuts a sample every `seq` tokens, so each sample is one of `pretrain`'s sequences, though not in `pretrain`'s order;
only its last label is another: the first token of the document that comes next.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

from benchmarks.plain_gpt import Sizes, sequences

_HEADER = b"MMIDIDX\x00\x00"
_INT32 = 4
"""DType's code of the tokens (megatron/core/datasets/indexed_dataset.py)."""


def write_token_files(prefix: Path, sizes: Sizes, documents: int) -> None:
    """So many of `pretrain`'s sequences, those of its first iteration first."""
    lengths = array("i", [sizes.seq]) * documents
    pointers = array("q", range(0, 4 * sizes.seq * documents, 4 * sizes.seq))
    ends = array("q", range(documents + 1))
    head = _HEADER + struct.pack("<QBQQ", 1, _INT32, documents, documents + 1)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(
        head + b"".join(part.tobytes() for part in (lengths, pointers, ends))
    )
    with prefix.with_name(f"{prefix.name}.bin").open("wb") as file:
        for iteration in range(-(-documents // sizes.global_batch_size)):
            left = documents - iteration * sizes.global_batch_size
            rows = sequences(sizes, iteration)[:left, :-1]
            file.write(array("i", rows.flatten().tolist()).tobytes())
