"""Data sets of Megatron-LM, PREFIX.bin and PREFIX.idx: random tokens.

The format is version 1 of Megatron-LM's indexed data set (megatron/data/indexed_dataset.py, now
megatron/core/datasets/indexed_dataset.py). PREFIX.bin has the tokens of all documents. PREFIX.idx has their lengths,
their positions in bytes, and the number of each document's first sequence.
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

DOCUMENTS = 1000
"""Documents of random data: the least number of which the smallest part of SC21's --split 969,30,1 is a document."""

DOCUMENT_TOKENS = 16_385
"""A sample of 16,384 tokens and its last label. With one token fewer, the only document of the
smallest part has no whole sample of the tutorials' longest sequence, and Megatron-LM stops."""

_SEED = 1234
_UINT16, _UINT16_BYTES = 8, 2
"""Code and size of the tokens' type. Megatron-LM uses it for vocabularies of fewer than 65,500 entries."""

HEADER = b"MMIDIDX\x00\x00"


def write_random_tokens(vocabulary: int, data: Path, index: Path) -> None:
    """Write 1,000 documents of 16,385 random tokens below `vocabulary`: 33 MB, the same bytes on each machine.

    All documents have the same tokens, each in another rotation.
    """
    generator = random.Random(_SEED)
    # random() has the same sequence in all versions of Python; randrange() need not.
    tokens = [int(generator.random() * vocabulary) for _ in range(DOCUMENT_TOKENS)]
    document = _little_endian(array("H", tokens))
    with data.open("wb") as file:
        for i in range(DOCUMENTS):
            start = _UINT16_BYTES * (i * 16 % DOCUMENT_TOKENS)
            file.write(document[start:] + document[:start])
    lengths = [DOCUMENT_TOKENS] * DOCUMENTS
    index.write_bytes(b"".join(_index(lengths)))


def _index(lengths: list[int]) -> Iterator[bytes]:
    """Yield the parts of the index of documents with these numbers of tokens, one sequence in each document."""
    yield HEADER + struct.pack("<QBQQ", 1, _UINT16, len(lengths), len(lengths) + 1)
    yield _little_endian(array("i", lengths))
    ends = list(accumulate(lengths, initial=0))
    yield _little_endian(array("q", [_UINT16_BYTES * end for end in ends[:-1]]))
    yield _little_endian(array("q", range(len(lengths) + 1)))


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
