"""Files: logs and records of jobs, and files that are written completely or not at all."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import EXIT_UNREACHABLE, EXIT_USER_ERROR, ReproError
from orchestrator.files import (
    Unreadable,
    open_job_file,
    private_folder,
    read_job_file,
    read_record,
    require_place,
    single_name,
    tail_bytes,
    written_whole,
)
from orchestrator.reading.logs import log_blocks

NOBODY = 65534


@pytest.fixture
def job() -> Iterator[Path]:
    """Return a job's folder that another user can reach, unlike pytest's own."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    folder = base / "runs" / "20261121-092041-bd57" / "pp8"
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(base)


@contextmanager
def as_another_user() -> Iterator[None]:
    """Run as another user if the tests run as root, because root can read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def within(seconds: float, action: Callable[[], object]) -> list[object]:
    """Return the value or error of an action that must end in time."""
    found: list[object] = []

    def act() -> None:
        try:
            found.append(action())
        except ReproError as error:
            found.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    return found


def test_a_log_or_only_its_end_is_read(job: Path) -> None:
    (job / "log.txt").write_bytes(b"0123456789")
    file = open_job_file(job, "log.txt")
    assert file is not None
    with file:
        assert file.read() == b"0123456789" and not os.get_inheritable(file.fileno())
    assert read_job_file(job, "log.txt") == b"0123456789"
    assert [tail_bytes(job, "log.txt", last) for last in (0, 3, 10, 99)] == [b"", b"789", b"0123456789", b"0123456789"]


def test_a_missing_file_is_none_and_no_error(job: Path) -> None:
    assert open_job_file(job, "log.txt") is None and read_job_file(job, "log.txt") is None
    assert open_job_file(job / "never", "log.txt") is None and tail_bytes(job / "never", "log.txt", 9) == b""
    (job / "file").touch()
    assert open_job_file(job / "file", "log.txt") is None


@pytest.mark.fault(
    section="Safety",
    fault="Another user's file that may not be read",
    promise="Reported. It never counts as a missing file.",
)
@pytest.mark.parametrize("closed", ["the file", "its folder", "the run"])
def test_an_unreadable_file_of_another_user_is_not_missing(job: Path, closed: str) -> None:
    for name in ("log.txt", "end"):
        (job / name).write_text("exit_code=0\n")
        (job / name).chmod(0o000 if closed == "the file" else 0o644)
    places = {"the file": job / "log.txt", "its folder": job, "the run": job.parent}
    places[closed].chmod(0o000)
    try:
        with as_another_user():
            for read in (
                lambda: open_job_file(job, "log.txt"),
                lambda: tail_bytes(job, "log.txt", 10),
                lambda: list(log_blocks(job)),
                lambda: read_record(job / "end"),
            ):
                with pytest.raises(Unreadable, match=r"cannot be read \(Permission denied\)$") as refused:
                    read()
                assert refused.value.exit_code == EXIT_UNREACHABLE and "\n" not in str(refused.value)
    finally:
        places[closed].chmod(0o755)


def test_a_file_in_a_folder_that_cannot_be_listed_is_read(job: Path) -> None:
    (job / "log.txt").write_text("x")
    (job / "log.txt").chmod(0o644)
    job.chmod(0o711)
    with as_another_user():
        assert b"".join(log_blocks(job)) == b"x"


def planted(job: Path, kind: str) -> None:
    """Put another kind of file in place of the log."""
    log, secret = job / "log.txt", job.parent.parent / "secret"
    secret.write_text("top secret")
    if kind == "link":
        log.symlink_to(secret)
    elif kind == "link in the folder":
        (job / "other").write_text("x")
        log.symlink_to("other")
    elif kind == "dangling link":
        log.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(log))
    elif os.geteuid() == 0:
        try:
            os.mknod(log, stat.S_IFCHR | 0o644, os.makedev(1, 5))  # /dev/zero has no end
        except PermissionError:
            pytest.skip("this machine lets nobody make a device")
    else:
        pytest.skip("only root makes a device")


@pytest.mark.fault(
    section="Safety",
    fault="A link, a pipe, a folder, a socket or a device in place of a log",
    promise="It is not read, and no command waits for it.",
)
@pytest.mark.parametrize("kind", ["link", "link in the folder", "dangling link", "pipe", "folder", "socket", "device"])
def test_a_link_pipe_folder_or_device_is_neither_read_nor_waited_for(job: Path, kind: str) -> None:
    planted(job, kind)
    for read in (
        lambda: list(log_blocks(job)),
        lambda: tail_bytes(job, "log.txt", 9),
        lambda: read_record(job / "log.txt"),
    ):
        (refused,) = within(5, read)
        assert isinstance(refused, ReproError) and refused.exit_code == EXIT_USER_ERROR
        assert len(refused.problems) == 1 and str(refused).startswith(f"{job}/log.txt: is a")
        assert "secret" not in str(refused)


@pytest.mark.fault(
    section="Safety",
    fault="A pipe replaces the log after the check",
    promise="It is not read.",
)
def test_a_pipe_that_replaces_a_log_after_the_check_is_not_read(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job / "log.txt").touch()
    seen = (job / "log.txt").stat()
    (job / "log.txt").unlink()
    os.mkfifo(job / "log.txt")
    monkeypatch.setattr(os, "stat", lambda *_, **__: seen)
    (refused,) = within(5, lambda: open_job_file(job, "log.txt"))
    assert isinstance(refused, ReproError) and "a pipe and not a file" in str(refused)


@pytest.mark.fault(
    section="Safety",
    fault="A folder that leads out of its run",
    promise="It is not followed.",
)
def test_a_folder_that_leads_out_of_its_run_is_not_followed(job: Path) -> None:
    elsewhere = job.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "log.txt").write_text("not this job's")
    away, beside = job.parent / "away", job.parent / "beside"
    away.symlink_to(elsewhere)
    beside.symlink_to(job)
    (job / "log.txt").write_text("this job's")
    with pytest.raises(ReproError, match="a link that leads out of"):
        open_job_file(away, "log.txt")
    assert b"".join(log_blocks(beside)) == b"this job's"
    (job.parent / "up").symlink_to("..")
    with pytest.raises(ReproError, match="a link that leads out of"):
        open_job_file(job.parent / "up", "secret")


def test_runs_on_another_file_system_behind_a_link_are_read(job: Path) -> None:
    (job / "log.txt").write_text("x")
    link = job.parents[2] / "scratch"
    link.symlink_to(job.parents[1])
    assert b"".join(log_blocks(link / job.parent.name / job.name)) == b"x"


@given(name=st.text(max_size=8) | st.sampled_from(["", ".", "..", "a/b", "../x", "/etc/passwd", "a\0b", "é" * 200]))
def test_a_name_is_one_path_component_or_refused(name: str) -> None:
    folder = Path("/runs/r/job")
    try:
        assert os.path.normpath(folder / single_name(name)) == f"{folder}/{name}"
    except ReproError as error:
        assert len(error.problems) == 1 and str(error).isprintable()


@pytest.mark.fault(
    section="Safety",
    fault="Any umask, for the folders of a run",
    promise="User and group can read them, nobody else.",
)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o027])
def test_folders_of_a_run_are_private_to_user_and_group_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(umask)
    try:
        private_folder(tmp_path / "runs" / "one" / "job")
        private_folder(tmp_path / "runs" / "one" / "job")
    finally:
        os.umask(before)
    made = [tmp_path / "runs", tmp_path / "runs" / "one", tmp_path / "runs" / "one" / "job"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o750] * 3
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_folders_of_a_run_inherit_the_projects_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    private_folder(tmp_path / "runs" / "one")
    assert stat.S_IMODE((tmp_path / "runs" / "one").stat().st_mode) == 0o2750


def test_a_file_in_place_of_a_folder_is_an_error_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(OSError, match="exists|Not a directory"):
        private_folder(tmp_path / "runs" / "one")
    assert (tmp_path / "runs").read_text() == "a file"


LINES = ("exit_code=3", "at=2026-11-21T16:00:00Z", "host=n1", "scheduler_id=8_1", "pid=77")


def record(folder: Path, *lines: str) -> Path:
    (folder / "end").write_text("".join(f"{line}\n" for line in lines))
    return folder / "end"


def test_a_record_is_read_back_as_the_script_wrote_it(tmp_path: Path) -> None:
    found = read_record(record(tmp_path, "event=end", *LINES))
    assert found is not None and (found.exit_code, found.scheduler_id, found.pid) == (3, "8_1", 77)
    assert (found.at, found.host, found.image, found.outside_image) == (datetime(2026, 11, 21, 16), "n1", None, None)


@pytest.mark.fault(
    section="Job states",
    fault="A job's record is incomplete",
    promise="It is ignored.",
)
@pytest.mark.parametrize("missing", range(len(LINES)))
def test_an_incomplete_record_is_ignored(tmp_path: Path, missing: int) -> None:
    assert read_record(record(tmp_path, *LINES[:missing], *LINES[missing + 1 :])) is None
    assert read_record(tmp_path / "start") is None


@pytest.mark.parametrize(
    ("inside", "wrong"),
    [
        ("2/2", None),
        ("1/2", "1 of 2 nodes ran it inside a=b.sqsh"),
        ("0/2", "0 of 2 nodes ran it inside a=b.sqsh"),
        ("", "none of its nodes ran it inside a=b.sqsh"),
    ],
)
def test_only_a_proof_from_every_node_is_complete(tmp_path: Path, inside: str, wrong: str | None) -> None:
    found = read_record(record(tmp_path, *LINES, "image=a=b.sqsh", f"inside_image={inside}"))
    assert found is not None and found.outside_image == wrong


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ReproError("x"), OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_the_old_file_and_no_partial_one(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "x.csv"
    file.write_text("before")
    with pytest.raises((KeyboardInterrupt, ReproError)) as found, written_whole(file) as part:
        part.write_text("half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"] and file.read_text() == "before"
    if isinstance(error, OSError):
        assert str(found.value) == f"{file}: cannot be written (No space left on device)"


def test_a_written_file_replaces_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("before")
    with written_whole(file) as part:
        part.write_text("after")
        assert file.read_text() == "before"
    assert file.read_text() == "after" and len(list(tmp_path.iterdir())) == 1


def test_a_file_that_cannot_be_created_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    said = {
        tmp_path: f"{tmp_path}: a folder, not a file. Hint: name a file in it",
        tmp_path / "taken" / "x.csv": f"{tmp_path}/taken/x.csv: {tmp_path}/taken is not a folder",
        tmp_path
        / "no"
        / "x.csv": f"{tmp_path}/no/x.csv: there is no folder {tmp_path}/no. Hint: mkdir -p {tmp_path}/no",
        Path("/dev/null"): "/dev/null: not a regular file. Hint: leave -o out and redirect the output",
    }
    for file, line in said.items():
        with pytest.raises(ReproError) as found:
            require_place(file)
        assert str(found.value) == line
    require_place(tmp_path / "x.csv")
    require_place(tmp_path / "taken")
    monkeypatch.setattr("os.access", lambda _path, _how: False)
    with pytest.raises(ReproError, match="is not writable for you. Hint: name a file elsewhere$"):
        require_place(tmp_path / "x.csv")
