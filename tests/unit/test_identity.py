"""Files that only the current user can change. Every other file that a shared ledger names is refused."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.identity import NotOwn, read_own_file, require_own_folder, why_not_own_path

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a home with a script in a run folder, beside a folder that another user could have created."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    job = base / "home" / "runs" / "run" / "pp8"
    job.mkdir(parents=True)
    (job / "job.sh").write_text("own")
    (base / "other").mkdir()
    (base / "other" / "job.sh").write_text("evil")
    yield base
    shutil.rmtree(base)


def script(home: Path) -> Path:
    return home / "home" / "runs" / "run" / "pp8" / "job.sh"


def read(home: Path, path: Path | None = None) -> bytes:
    return read_own_file(path or script(home), [home / "home" / "runs"])


def test_a_file_of_the_user_in_a_run_folder_of_the_user_is_read(home: Path) -> None:
    assert read(home) == b"own"
    require_own_folder(script(home).parent, [home / "home" / "runs"])
    require_own_folder(script(home).parent.parent / "not-there-yet", [home / "home" / "runs"])


def test_a_home_may_have_two_names(home: Path) -> None:
    (home / "link").symlink_to(home / "home")
    assert read(home, home / "link" / "runs" / "run" / "pp8" / "job.sh") == b"own"


def by_link(home: Path) -> None:
    script(home).unlink()
    script(home).symlink_to(home / "other" / "job.sh")


def by_a_linked_folder(home: Path) -> None:
    shutil.rmtree(script(home).parent)
    script(home).parent.symlink_to(home / "other")


def by_a_pipe(home: Path) -> None:
    script(home).unlink()
    os.mkfifo(script(home))


def by_its_absence(home: Path) -> None:
    script(home).unlink()


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link": by_link,
    "a folder that is a link": by_a_linked_folder,
    "a pipe": by_a_pipe,
    "nothing": by_its_absence,
    "a file that everybody may write": lambda home: script(home).chmod(0o702),
    "a folder that everybody may write": lambda home: script(home).parent.chmod(0o703),
    "a run folder that everybody may write": lambda home: script(home).parent.parent.chmod(0o703),
}


@pytest.mark.fault(
    section="Safety",
    fault="A link, a pipe, nothing, or a file that others can write to, in place of a script",
    promise="It is not read.",
)
@pytest.mark.parametrize("planted", PLANTED)
def test_a_file_that_another_user_could_have_created_is_not_read(home: Path, planted: str) -> None:
    PLANTED[planted](home)
    with pytest.raises(NotOwn) as refused:
        read(home)
    assert len(refused.value.problems) == 1 and "repro submit" in str(refused.value)


@pytest.mark.fault(
    section="Safety",
    fault="Another user's script, folder or run folder",
    promise="It is not read.",
)
@needs_root
@pytest.mark.parametrize("part", ["file", "folder", "run folder"])
def test_a_file_of_another_user_is_not_read(home: Path, part: str) -> None:
    file = script(home)
    os.chown({"file": file, "folder": file.parent, "run folder": file.parent.parent}[part], NOBODY, -1)
    with pytest.raises(NotOwn, match="belongs to nobody"):
        read(home)
    if part != "file":
        with pytest.raises(NotOwn, match="belongs to nobody"):
            require_own_folder(file.parent, [home / "home" / "runs"])


@needs_root
def test_only_the_users_own_group_may_write(home: Path) -> None:
    script(home).chmod(0o770)
    assert why_not_own_path(script(home)) is None, "root's own group has no other member"
    os.chown(script(home), -1, NOBODY)
    assert why_not_own_path(script(home)) == "is writable by its group"


@pytest.mark.fault(
    section="Safety",
    fault="A path that leads out of the run folders",
    promise="It is not read.",
)
@pytest.mark.parametrize("elsewhere", ["other/job.sh", "home/runs/job.sh", "home/runs/run/../../../other/job.sh"])
def test_a_path_outside_of_the_run_folders_is_not_read(home: Path, elsewhere: str) -> None:
    (home / "home" / "runs" / "job.sh").write_text("not in a run")
    with pytest.raises(NotOwn, match="is not in a run folder"):
        read(home, home / elsewhere)
