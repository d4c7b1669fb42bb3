"""Texts for others without secrets: logs of any size and of any bytes, and rows without whose they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from orchestrator.masking import masked, masked_tree

SOMEBODY = "user"
"""What stands for a user's name in a path."""

# Lines that a verdict or a number stands on; which of them do is told where they are read.
_PROOF = re.compile(
    rb"iteration +[0-9]+/|using world size:|\[after training is done\]|\[exiting program|\(MB\)|number of parameters"
)

_BLOCK_BYTES = 1 << 22
_MOST_BYTES = 1 << 26
"""Where no good place for a cut is found in so much, it is cut all the same."""
_BESIDE_CUT_BYTES = 1 << 16


def masked_blocks(pieces: Iterable[bytes], known: Collection[str] = ()) -> Iterator[bytes]:
    """A file, in pieces of any size, without what looks secret, block by block: memory does not grow with the file.

    A secret may stand on several lines (a key in PEM), so that a block ends only where masking what is before and
    behind gives what masking both at once does.
    """
    kept: list[bytes] = []
    enough = _BLOCK_BYTES
    for piece in pieces:
        kept.append(piece)
        if sum(map(len, kept)) < enough:
            continue
        pending = b"".join(kept)
        cut = _cut(pending, known)
        if cut:
            yield masked_bytes(pending[:cut], known)
        kept = [pending[cut:]]
        enough = len(kept[0]) + _BLOCK_BYTES
    if last := b"".join(kept):
        yield masked_bytes(last, known)


def masked_bytes(text: bytes, known: Collection[str] = ()) -> bytes:
    """The same of what is there as a whole; what is no UTF-8 stays as it is.

    A name with a quote behind it that nobody closes takes in the lines up to the next quote. Where a verdict stands on
    one of these, each such line is masked by itself, and what is between them by itself.
    """
    found = _masked(text, known)
    if found.count(b"\n") == text.count(b"\n") or _proof(found) == _proof(text):
        return found
    parts: list[bytes] = []
    for is_proof, group in itertools.groupby(text.splitlines(keepends=True), lambda line: bool(_PROOF.search(line))):
        lines = list(group)
        parts += [_masked(part, known) for part in (lines if is_proof else [b"".join(lines)])]
    return b"".join(parts)


def _masked(text: bytes, known: Collection[str]) -> bytes:
    return masked(text.decode("utf-8", "surrogateescape"), known).encode("utf-8", "surrogateescape")


def _proof(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if _PROOF.search(line)]


def _cut(text: bytes, known: Collection[str]) -> int:
    """How much of it can be masked by itself; 0 where more has to be read."""
    cut = text.rfind(b"\n", 0, max(0, len(text) - _BESIDE_CUT_BYTES)) + 1
    if len(text) >= _MOST_BYTES:
        return cut or len(text) - _BESIDE_CUT_BYTES
    before, behind = text[max(0, cut - _BESIDE_CUT_BYTES) : cut], text[cut : cut + _BESIDE_CUT_BYTES]
    apart = _masked(before, known) + _masked(behind, known)
    return cut if cut and apart == _masked(before + behind, known) else 0


def given_out(value: Any, names: Collection[str], known: Collection[str] = ()) -> Any:
    """A row, or whatever JSON holds: without secrets, and without these users' names in its paths."""
    return _nameless(masked_tree(value, known=known), _paths_of(names))


def _paths_of(names: Collection[str]) -> re.Pattern[str] | None:
    """What is a whole part of a path: of `/home/me/x` and `/scratch/me` the `me`."""
    written = "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)) if name)
    return re.compile(rf"(?<=/)(?:{written})(?![\w.@-])") if written else None


def _nameless(value: Any, pattern: re.Pattern[str] | None) -> Any:
    if pattern is None:
        return value
    if isinstance(value, str):
        return pattern.sub(SOMEBODY, value)
    if isinstance(value, dict):
        return {key: _nameless(one, pattern) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nameless(one, pattern) for one in value]
    return value
