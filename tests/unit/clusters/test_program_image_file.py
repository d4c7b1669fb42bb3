"""Identity of image files: what changes it, and what does not."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from orchestrator.clusters.program import file_identity

CREATED = 1_764_000_000  # 2025-11-24T16:00:00Z


def squashfs(created: int = CREATED, files: int = 7, rest: bytes = b"content") -> bytes:
    head = struct.pack("<4sIII", b"hsqs", files, created, 131072)
    return head.ljust(40, b"\0") + struct.pack("<Q", 96 + len(rest)).ljust(56, b"\0") + rest


def sif(created: int = CREATED, image_id: bytes = b"0123456789abcdef") -> bytes:
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + image_id
    return (head + struct.pack("<qq", created, created)).ljust(128, b"\0") + b"content"


@pytest.mark.parametrize(
    ("content", "start"),
    [(squashfs(), "squashfs:103:20251124T160000Z:"), (sif(), "sif:135:20251124T160000Z:")],
)
def test_an_image_keeps_its_identity_if_it_is_copied_or_touched(content: bytes, start: str, tmp_path: Path) -> None:
    image, copy = tmp_path / "image", tmp_path / "copy"
    image.write_bytes(content)
    shutil.copy(image, copy)
    os.utime(image, (0, 0))
    assert file_identity(image) == file_identity(copy)
    assert str(file_identity(image)).startswith(start)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (squashfs(), squashfs(CREATED + 1)),
        (squashfs(), squashfs(files=8)),
        (squashfs(), squashfs(rest=b"more content")),
        (squashfs(), squashfs()[:-1]),  # a copy that is not complete
        (sif(), sif(CREATED + 1)),
        (sif(), sif(image_id=b"fedcba9876543210")),
        (squashfs(), sif()),
        (squashfs(), b"random bytes"),
        (b"random bytes", b"other bytes that are longer"),
        (squashfs()[:95], squashfs()),
    ],
)
def test_another_image_in_its_place_has_another_identity(before: bytes, after: bytes, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(before)
    first = file_identity(image)
    image.write_bytes(after)
    assert None is not first != file_identity(image)


def test_a_file_of_another_format_has_the_time_of_its_last_change(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"random bytes")
    os.utime(image, ns=(0, CREATED * 10**9 + 5))
    assert file_identity(image) == "file:12:20251124T160000.000000005Z"


def test_a_garbled_creation_time_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(sif(created=2**62))
    assert str(file_identity(tmp_path / "image")).startswith(f"sif:135:{2**62}Z:")


def test_what_is_no_readable_file_has_no_identity(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "loop", tmp_path / "none", tmp_path / "none" / "below"):
        assert file_identity(path) is None
