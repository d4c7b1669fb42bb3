"""Tests of log files: their order, and blocks that together are the file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ReproError
from orchestrator.files import Unreadable
from orchestrator.reading import logs as module
from orchestrator.reading.logs import LogFile, RankLines, log_blocks, log_files, parse_line

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
LINES = b"".join(b"a line of a log, number %d\n" % number for number in range(2000))


def only(folder: Path) -> LogFile:
    (file,) = log_files(folder)
    return file


def read(file: LogFile, offset: int = 0) -> tuple[bytes, list[str]]:
    blocks = file.blocks(offset)
    return b"".join(blocks), blocks.warnings


def test_log_files_are_listed_in_reading_order(tmp_path: Path) -> None:
    for name in ("batch.txt", "log.10.txt", "log.9.txt.gz", "rank-3.log", "log.txt", "gpus.n1.csv", "script", "a9.log"):
        (tmp_path / name).write_bytes(b"x")
    assert [file.name for file in log_files(tmp_path)] == [
        "log.txt",
        "rank-3.log",
        "log.9.txt.gz",
        "log.10.txt",
        "batch.txt",
    ]


def test_log_file_has_its_identity_and_size(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"12345")
    status = (tmp_path / "log.txt").stat()
    assert only(tmp_path) == LogFile(tmp_path, "log.txt", status.st_dev, status.st_ino, 5)


def test_missing_and_empty_folders_have_no_log(tmp_path: Path) -> None:
    assert log_files(tmp_path) == log_files(tmp_path / "never") == ()
    (tmp_path / "log.txt").touch()
    assert read(only(tmp_path)) == (b"", [])


@pytest.mark.parametrize("name", ["log.txt", "rank-3.log", "log.txt.gz"])
def test_log_that_is_not_a_regular_file_is_reported(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ReproError, match=f"{name}: is a pipe and not a file, so it is not read$"):
        log_files(tmp_path)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("named", [True, False])
def test_compressed_log_gives_its_content(tmp_path: Path, packer: str, named: bool) -> None:
    (tmp_path / (f"log.txt.{packer}" if named else "log.txt")).write_bytes(PACKERS[packer](LINES))
    assert read(only(tmp_path)) == (LINES, []) and b"".join(log_blocks(tmp_path)) == LINES
    assert read(only(tmp_path), 1000) == (LINES[1000:], [])


def test_original_is_read_while_it_is_being_compressed(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(LINES)
    (tmp_path / "log.txt.gz").write_bytes(gzip.compress(LINES)[:100])
    assert read(only(tmp_path)) == (LINES, [])


@pytest.mark.parametrize("packer", PACKERS)
def test_concatenated_archives_with_padding_are_one_log(tmp_path: Path, packer: str) -> None:
    packed = PACKERS[packer](LINES)
    (tmp_path / "log.txt").write_bytes(packed + packed + b"\0" * 2000)
    assert read(only(tmp_path)) == (LINES + LINES, [])


@pytest.mark.parametrize("packer", PACKERS)
def test_truncated_archive_is_read_up_to_its_end(tmp_path: Path, packer: str) -> None:
    text = os.urandom(1_000_000).hex("\n", 40).encode()  # several blocks of bzip2
    packed = PACKERS[packer](text)
    (tmp_path / "log.txt").write_bytes(packed[: len(packed) * 2 // 3])
    content, warnings = read(only(tmp_path))
    assert text.startswith(content) and len(content) > len(text) // 4
    assert warnings == [f"{tmp_path}/log.txt: truncated archive, read only up to its end"]


@pytest.mark.parametrize("packer", PACKERS)
def test_damaged_archive_is_read_up_to_the_damage(tmp_path: Path, packer: str) -> None:
    packed = PACKERS[packer](LINES)
    (tmp_path / "log.txt").write_bytes(packed + b"and more that is no archive")
    content, (warning,) = read(only(tmp_path))
    assert content == LINES and warning.startswith(f"{tmp_path}/log.txt: damaged archive, read only up to the damage (")
    assert "\n" not in warning


@pytest.mark.slow
@pytest.mark.parametrize("packer", PACKERS)
def test_decompression_takes_constant_memory(tmp_path: Path, packer: str) -> None:
    (tmp_path / "log.txt").write_bytes(PACKERS[packer](b"\n" * 100_000_000))
    file, size = only(tmp_path), 0
    tracemalloc.start()
    try:
        for block in file.blocks():
            size += len(block)
        assert size == 100_000_000 and tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_too_long_line_is_ignored_in_constant_memory(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("wb") as log:
        log.write(b"before\n")
        log.truncate(len(b"before\n") + 30 * module.LONGEST_LINE_BYTES)  # a hole: no disk is written
        log.seek(0, os.SEEK_END)
        log.write(b"\nbehind\n")
    file, size, kept = only(tmp_path), 0, b""
    tracemalloc.start()
    try:
        blocks = file.blocks()
        for block in blocks:
            size, kept = size + len(block), kept + block.replace(b"\n", b"")
        assert tracemalloc.get_traced_memory()[1] < 8 * module.LONGEST_LINE_BYTES
    finally:
        tracemalloc.stop()
    assert (kept, size) == (b"beforebehind", file.size)
    assert blocks.warnings == [
        f"{tmp_path}/log.txt: 1 line of 31,457,281 bytes ignored, as no program writes such a line"
    ]


TEXTS = st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"\n\n", b"x" * 9, b"x" * 40]), max_size=12).map(
    b"".join
)


@given(text=TEXTS, offset=st.integers(0, 60), packer=st.sampled_from(["", *PACKERS]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_are_whole_lines_and_together_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, offset: int, packer: str
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 10)
    (tmp_path / "log.txt").write_bytes(PACKERS.get(packer, bytes)(text))
    if not packer and text.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return
    blocks = list(only(tmp_path).blocks(offset))
    lines = text[offset:].split(b"\n")
    kept = [line + b"\n" for line in lines[:-1]] + [lines[-1]]
    wanted = [line if len(line) <= 10 else b"\n" * len(line) for line in kept]
    assert b"".join(blocks) == b"".join(wanted)
    assert all(block.endswith(b"\n") for block in blocks[:-1])


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The disk fails while a log that bzip2 compressed is read",
    promise="It is reported, and not taken for a damaged archive.",
)
def test_disk_error_in_a_bzip2_archive_is_not_a_damaged_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.txt.bz2").write_bytes(bz2.compress(LINES))
    file = only(tmp_path)

    class Failing(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            if size == module._COMPRESSED_BYTES:
                raise OSError(5, "Input/output error")
            return super().read(size)

    monkeypatch.setattr(module, "open_job_file", lambda folder, name: Failing(io.FileIO(folder / name)))
    with pytest.raises(Unreadable, match=r"log.txt.bz2: cannot be read \(Input/output error\)$"):
        list(file.blocks())


def test_a_log_whose_first_word_begins_as_a_bzip2_archive_is_text(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"BZh9 is a host\n")
    assert read(only(tmp_path)) == (b"BZh9 is a host\n", [])


def test_replaced_file_is_not_read_from_an_old_offset(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"one\n")
    file = only(tmp_path)
    (tmp_path / "other").write_bytes(b"two\n")
    (tmp_path / "other").replace(tmp_path / "log.txt")
    assert read(file) == (b"", [f"{tmp_path}/log.txt: replaced by another file before it was read"])
    (tmp_path / "log.txt").unlink()
    assert read(file) == (b"", [])


def test_log_truncated_while_reading_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 100_000)
    (tmp_path / "log.txt").write_bytes(LINES * 10)
    blocks = only(tmp_path).blocks()
    first = next(blocks)
    os.truncate(tmp_path / "log.txt", 10)
    assert first and (LINES * 10).startswith(first + b"".join(blocks))


def test_disk_error_is_reported_and_is_not_an_empty_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.txt").write_bytes(LINES)
    file = only(tmp_path)

    class Failing(io.BufferedReader):
        def read(self, _: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    def failing(folder: Path, name: str) -> Failing:
        return Failing(io.FileIO(folder / name))

    monkeypatch.setattr(module, "open_job_file", failing)
    with pytest.raises(Unreadable, match=r"log.txt: cannot be read \(Input/output error\)$"):
        list(file.blocks())


SRUN = b" 0: start\n 1: start\n11: start\n 1: [rank1]: Traceback\n 1:   File\n11: bad\nslurmstepd: error: x\n 1: end"
TORCHRUN = b"0: [default0]: a\n1: [default0]: b\n1: [default3]: c\n1: torchrun says\n1: [rank5]: d\n0: [rank2]:[W] e\n"


def of_rank(rank: int, log: bytes, ranks_per_task: int = 1, piece: int = 1 << 20) -> list[bytes]:
    lines = RankLines(rank, ranks_per_task)
    found = b"".join(lines.feed(log[at : at + piece]) for at in range(0, len(log), piece)) + lines.end()
    return found.splitlines()


def test_a_rank_of_one_task_each_has_the_lines_that_srun_has_labelled_so() -> None:
    assert of_rank(1, SRUN) == [b" 1: start", b" 1: [rank1]: Traceback", b" 1:   File", b" 1: end"]
    assert of_rank(11, SRUN) == [b"11: start", b"11: bad"]
    assert of_rank(2, SRUN) == []


def test_lines_of_a_task_with_several_ranks_are_selected_by_their_own_label() -> None:
    assert of_rank(0, TORCHRUN, 4) == [b"0: [default0]: a"]
    assert of_rank(4, TORCHRUN, 4) == [b"1: [default0]: b"]
    assert of_rank(7, TORCHRUN, 4) == [b"1: [default3]: c"]
    assert of_rank(5, TORCHRUN, 4) == [b"1: [rank5]: d"]
    assert of_rank(2, TORCHRUN, 4) == [b"0: [rank2]:[W] e"]
    assert of_rank(1, TORCHRUN, 4) == []  # "1:" is a node here


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=0, max_value=11))
def test_a_line_that_comes_in_pieces_is_the_same_line(piece: int, rank: int) -> None:
    assert of_rank(rank, SRUN, piece=piece) == of_rank(rank, SRUN)


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.reading.logs.LONGEST_LINE_BYTES", 1000)
    lines = RankLines(0)
    printed = b"".join(lines.feed(b"0: " + b"x" * 497) for _ in range(10))
    assert len(printed) + len(lines.end()) == 5000 and len(printed) > 3000


@pytest.mark.parametrize(
    ("line", "text", "rank"),
    [
        ("[node3321:2]:ValueError: bad", "ValueError: bad", None),
        ("[node3321:2]:[rank2]: ValueError: bad", "ValueError: bad", 2),
        ("[trainer-0:3]:  torch.cuda.OutOfMemoryError: bad", "torch.cuda.OutOfMemoryError: bad", None),
        ("3: trainer_3: AssertionError", "AssertionError", 3),
        ("2026-10-26 21:31:16,318 [Rank 15]: ValueError: bad", "ValueError: bad", 15),
        ("2026-01-01 10:00:00,123 - megatron.training - ERROR - ValueError: bad", "ValueError: bad", None),
        ("2026-01-01 10:00:00.123 | ERROR    | mod.x:func:12 - ValueError: bad", "ValueError: bad", None),
        ("[2026-07-18 15:06:29,684] torch.distributed.api: [ERROR] ValueError: bad", "ValueError: bad", None),
        ("ERROR:root:ValueError: bad", "ValueError: bad", None),
        ("E0101 10:00:00.123456 12345 file.cc:12] ValueError: bad", "ValueError: bad", None),
        ("(Worker pid=123, ip=192.0.2.1) ValueError: bad", "ValueError: bad", None),
        ("pod-0 | KeyError: 'x'", "KeyError: 'x'", None),
        ("WARNING:root:ValueError: bad", None, None),
        ("[2026-07-18 15:06:29] [warning] ValueError: bad", None, None),
        ("W0101 10:00:00.123456 12345 file.cc:12] ValueError: bad", None, None),
        ("[20260612 10:00:37][rank-7/8][INFO ] [--trainer.py:2120] :  ValueError: bad", None, None),
        ("2026-01-01 10:00:00,123 - megatron.training - WARNING - ValueError: bad", None, None),
        ("RuntimeError: [Errno 3] ValueError: bad", None, None),
        ("caught ValueError: bad", None, None),
        ("[node3321:2]: loss 3.1", None, None),
    ],
)
def test_labels_before_an_exception_are_removed(line: str, text: str | None, rank: int | None) -> None:
    parsed = parse_line(line.encode())
    assert (parsed.text, parsed.rank) == (text or line, rank)
