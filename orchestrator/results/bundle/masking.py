"""Masking of the files in a bundle, block by block, without changes of lines that a verdict needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator

from orchestrator.masking import masked

# Lines that a verdict or a number may depend on.
_PROOF = re.compile(
    rb"iteration +[0-9]+/|using world size:|\[after training is done\]|\[exiting program|\(MB\)|number of parameters"
    rb"|exp_name: |DUE TO "
)

_BLOCK_BYTES = 1 << 22
_MOST_BYTES = 1 << 26
"""A longer text is cut even if the cut may separate the parts of a secret."""
_BESIDE_CUT_BYTES = 1 << 16


def masked_blocks(pieces: Iterable[bytes], secrets: Collection[str] = ()) -> Iterator[bytes]:
    """Yield a file of any size without secrets, block by block, so that memory does not grow with the file.

    A secret may span several lines (a key in PEM). A block ends only where masking both parts separately gives the same
    result as masking them together.
    """
    kept: list[bytes] = []
    enough = _BLOCK_BYTES
    for piece in pieces:
        kept.append(piece)
        if sum(map(len, kept)) < enough:
            continue
        pending = b"".join(kept)
        cut = _cut(pending, secrets)
        if cut:
            yield masked_bytes(pending[:cut], secrets)
        kept = [pending[cut:]]
        enough = len(kept[0]) + _BLOCK_BYTES
    if last := b"".join(kept):
        yield masked_bytes(last, secrets)


def masked_bytes(text: bytes, secrets: Collection[str] = ()) -> bytes:
    """Return the bytes without secrets; bytes that are not UTF-8 stay.

    A secret name with an unclosed quote hides the lines up to the next quote. If a verdict depends on one of these
    lines, each such line is masked separately.
    """
    masked_text = _masked(text, secrets)
    if masked_text.count(b"\n") == text.count(b"\n") or _proof(masked_text) == _proof(text):
        return masked_text
    parts: list[bytes] = []
    for is_proof, group in itertools.groupby(text.splitlines(keepends=True), lambda line: bool(_PROOF.search(line))):
        lines = list(group)
        parts += [_masked(part, secrets) for part in (lines if is_proof else [b"".join(lines)])]
    return b"".join(parts)


def _masked(text: bytes, secrets: Collection[str]) -> bytes:
    return masked(text.decode("utf-8", "surrogateescape"), secrets).encode("utf-8", "surrogateescape")


def _proof(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if _PROOF.search(line)]


def _cut(text: bytes, secrets: Collection[str]) -> int:
    """Return the length of the part that can be masked separately; 0 if more must be read."""
    cut = text.rfind(b"\n", 0, max(0, len(text) - _BESIDE_CUT_BYTES)) + 1
    if len(text) >= _MOST_BYTES:
        return cut or len(text) - _BESIDE_CUT_BYTES
    before, behind = text[max(0, cut - _BESIDE_CUT_BYTES) : cut], text[cut : cut + _BESIDE_CUT_BYTES]
    apart = _masked(before, secrets) + _masked(behind, secrets)
    return cut if cut and apart == _masked(before + behind, secrets) else 0
