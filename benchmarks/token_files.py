"""Tokens of `pretrain` as an indexed data set of Megatron-LM (PREFIX.bin, PREFIX.idx), for `--data-path PREFIX`.

Each sequence is a document of `seq` tokens. Megatron-LM joins the documents in a random order and takes a sample every
`seq` tokens. So each sample is one of `pretrain`'s sequences, in another order. Only its last label differs: it is the
first token of the next document.
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
    """Write the first sequences of `pretrain` in their order."""
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
