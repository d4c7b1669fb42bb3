"""Bundles as files: the same bytes for the same content, and nothing but files below one folder out of any bytes."""

from __future__ import annotations

import io
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ReproError
from orchestrator.results.bundle import extract as bundle_archive
from orchestrator.results.bundle.extract import new_archive, unpacked
from tests.examples import examples

pytestmark = pytest.mark.slow

AT = datetime(2026, 1, 2, 3, 4, 5, 678)
CONTENT = {"README.txt": b"read me\n", "jobs/a/log.txt": b"line\n" * 9, "jobs/b/log.txt": b"\xff\x00", "empty": b""}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are unpacked."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def written(file: Path, content: Mapping[str, bytes] = CONTENT, top: str = "top") -> Path:
    with new_archive(file, top, AT) as archive:
        for path, text in content.items():
            archive.add(path, [text[:3], text[3:]])
    return file


def read(file: Path) -> dict[str, bytes]:
    with unpacked(file) as (folder, paths):
        assert len(set(paths)) == len(paths)
        return {path: (folder / path).read_bytes() for path in paths}


def packed(members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT, level: int = 1) -> bytes:
    """Any tar at all, as a .tar.zst."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form) as tar:
        for member, text in members:
            tar.addfile(member, io.BytesIO(text))
    return zstandard.ZstdCompressor(level=level).compress(raw.getvalue())


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.size, found.linkname = kind, size, link
    return found


def test_the_same_content_is_the_same_bytes_wherever_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = written(tmp_path / "a.tar.zst").read_bytes()
    monkeypatch.setattr(bundle_archive, "_IN_MEMORY_BYTES", 4)  # so that its members stand on the disk for a while
    assert written(tmp_path / "elsewhere" / "b.tar.zst").read_bytes() == first
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["a.tar.zst", "b.tar.zst"]


def test_a_member_belongs_to_nobody_and_is_of_the_moment_given(tmp_path: Path) -> None:
    raw = zstandard.ZstdDecompressor().stream_reader(written(tmp_path / "a.tar.zst").open("rb"))
    with tarfile.open(fileobj=raw, mode="r|") as tar:
        found = {(m.uid, m.gid, m.uname, m.gname, m.mode, m.mtime, m.type) for m in tar}
    assert found == {(0, 0, "", "", 0o644, 1767323045, tarfile.REGTYPE)}


NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_characters="/\x7f", exclude_categories=["C", "Z"]),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(40))
@given(content=st.dictionaries(NAMES.filter(lambda name: name not in (".", "..")), st.binary(max_size=300), min_size=1))
def test_what_is_written_is_read_back(content: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert read(written(Path(folder) / "a.tar.zst", {f"x/{name}": text for name, text in content.items()})) == {
            f"x/{name}": text for name, text in content.items()
        }


@pytest.mark.parametrize("level", [1, 19, 22])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_that_somebody_else_has_packed_again_is_read(tmp_path: Path, level: int, form: int) -> None:
    members = [(member("top", tarfile.DIRTYPE), b""), (member("top/jobs", tarfile.DIRTYPE), b"")]
    members += [(member(f"top/{path}", size=len(text)), text) for path, text in CONTENT.items()]
    file = tmp_path / "a.tar.zst"
    file.write_bytes(packed(members, form, level))
    assert read(file) == CONTENT


def test_frames_one_after_another_are_one_archive(tmp_path: Path) -> None:
    whole = zstandard.ZstdDecompressor().decompressobj().decompress(written(tmp_path / "a.tar.zst").read_bytes())
    file, one = tmp_path / "b.tar.zst", zstandard.ZstdCompressor()
    file.write_bytes(one.compress(whole[:700]) + one.compress(whole[700:]))
    assert read(file) == CONTENT


def test_an_archive_cut_off_anywhere_is_said_to_be_damaged(tmp_path: Path, scratch: Path) -> None:
    whole, file = written(tmp_path / "a.tar.zst").read_bytes(), tmp_path / "b.tar.zst"
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(ReproError, match=r"b\.tar\.zst: damaged, or not a bundle"), unpacked(file):
            pytest.fail(f"{size} of {len(whole)} bytes were taken for all")
    assert list(scratch.iterdir()) == []


def test_no_flipped_byte_changes_what_is_read_unseen(tmp_path: Path, scratch: Path) -> None:
    whole, file = written(tmp_path / "a.tar.zst").read_bytes(), tmp_path / "b.tar.zst"
    refused = 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert read(file) == CONTENT
        except ReproError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1
    assert refused > len(whole) * 0.9
    assert list(scratch.iterdir()) == []


ESCAPES = ["../x", "top/../../x", "/etc/x", "top//x", "top/./x", "top/", "./top/x", "top/..", "top/a\nb", "top/\x1b[2J"]
LONG = ["top/" + "x" * 256, "top/" + "a/" * 20 + "b", "/".join(["y" * 200] * 6)]


@pytest.mark.parametrize("name", [*ESCAPES, *LONG], ids=repr)
def test_a_path_that_leads_elsewhere_or_is_none_is_refused_and_nothing_is_written(
    tmp_path: Path, scratch: Path, name: str
) -> None:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(packed([(member(name, size=1), b"x")]))
    with pytest.raises(ReproError, match="is not a path of a bundle") as refused, unpacked(file):
        pass
    assert str(refused.value).isprintable()
    assert set(tmp_path.rglob("*")) == {scratch, file}


KINDS = {
    "a link": member("top/x", tarfile.SYMTYPE, link="/etc/passwd"),
    "a link to another": member("top/x", tarfile.LNKTYPE, link="top/README.txt"),
    "a device": member("top/x", tarfile.CHRTYPE),
    "a disk": member("top/x", tarfile.BLKTYPE),
    "a pipe": member("top/x", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(packed([(member("top/README.txt", size=1), b"x"), (KINDS[kind], b"")]))
    with pytest.raises(ReproError, match="not a bundle: 'top/x' is a "), unpacked(file):
        pass


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(packed([(member("top/x", tarfile.GNUTYPE_SPARSE), b"")], tarfile.GNU_FORMAT))
    with pytest.raises(ReproError, match="sparse"), unpacked(file):
        pass


TWICE: dict[str, list[str]] = {
    "the same": ["top/x", "top/x"],
    "a file as a folder": ["top/x", "top/x/y"],
    "a folder as a file": ["top/x/y", "top/x"],
}


@pytest.mark.parametrize("how", TWICE)
def test_a_path_that_is_there_twice_is_refused(tmp_path: Path, how: str) -> None:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(packed([(member(name, size=1), b"x") for name in TWICE[how]]))
    with pytest.raises(ReproError, match="contains .* twice"), unpacked(file):
        pass


@pytest.mark.parametrize("names", [[], ["x"], ["one/x", "two/x"], ["one/x", "y"]])
def test_files_that_are_not_below_one_folder_are_no_bundle(tmp_path: Path, names: list[str]) -> None:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(packed([(member(name), b"") for name in names]))
    with pytest.raises(ReproError, match="not below one folder"), unpacked(file):
        pass


def headers(*found: tarfile.TarInfo) -> bytes:
    """Headers without what they announce."""
    return zstandard.ZstdCompressor().compress(b"".join(one.tobuf(tarfile.GNU_FORMAT) for one in found))


def zeros() -> bytes:
    return packed([(member("top/x"), b"")]) + zstandard.ZstdCompressor().compress(bytes(3 << 20))


HUGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a file": (lambda: headers(member("top/x", size=1 << 60)), "its files do not fit into"),
    "a header of tar's": (
        lambda: headers(member("x", tarfile.XHDTYPE, 1 << 40)),
        "a header of 1,099,511,627,776 bytes",
    ),
    "digits in a header": (
        lambda: packed([(member("x", tarfile.XHDTYPE, 65_000), b"9" * 65_000)] * 20),
        "a header of 65,000 bytes",
    ),
    "a name": (lambda: headers(member("x", tarfile.GNUTYPE_LONGNAME, 1 << 40)), "a header of 1,099,511,627,776 bytes"),
    "headers of headers": (
        lambda: headers(*[member("x", tarfile.GNUTYPE_LONGNAME, 0)] * 5000),
        "damaged, or not a bundle",
    ),
    "what is behind its end": (zeros, "continues after the end"),
}


@pytest.mark.parametrize("what", HUGE)
def test_what_says_that_it_is_huge_is_refused_before_it_fills_memory_or_disk(
    tmp_path: Path, scratch: Path, what: str
) -> None:
    make, said = HUGE[what]
    file = tmp_path / "a.tar.zst"
    file.write_bytes(make())
    start = time.process_time()
    with pytest.raises(ReproError, match=said), unpacked(file):
        pass
    assert list(scratch.iterdir()) == []
    assert time.process_time() - start < 2


@pytest.mark.fault(
    section="Safety",
    fault="A bundle with long headers of digits",
    promise="Refused within 2 seconds.",
)
def test_headers_of_digits_as_long_as_a_header_may_be_are_refused_in_a_moment(tmp_path: Path) -> None:
    file = tmp_path / "a.tar.zst"
    digits = b"9" * 1536
    file.write_bytes(packed([(member("top/x", tarfile.XHDTYPE, len(digits)), digits)] * 100))
    start = time.process_time()
    with pytest.raises(ReproError), unpacked(file):
        pass
    assert time.process_time() - start < 2


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_archive, "_MOST_MEMBERS", 3)
    with pytest.raises(ReproError, match="more than 3 files"), unpacked(written(tmp_path / "a.tar.zst")):
        pass


def test_what_was_unpacked_is_for_nobody_else_and_is_gone_afterwards(tmp_path: Path, scratch: Path) -> None:
    with unpacked(written(tmp_path / "a.tar.zst")) as (folder, _):
        assert folder.parent.parent == scratch and folder.parent.stat().st_mode & 0o777 == 0o700
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("text", [b"", b"PK\x03\x04 no zstd", bytes(1000)])
def test_what_is_no_archive_at_all_is_said_to_be_none(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "a.tar.zst"
    file.write_bytes(text)
    with pytest.raises(ReproError, match="damaged, or not a bundle"), unpacked(file):
        pass
