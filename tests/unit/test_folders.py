"""Folders: no case and no run has a folder outside of the folder of runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.catalog.expand import expand
from orchestrator.errors import ReproError
from orchestrator.job_spec import Value
from orchestrator.megatron.axes import AXES
from orchestrator.paths import Folders, find_folders
from tests.forked_repro import run_forked
from tests.unit.catalog.entries import shipped

pytestmark = pytest.mark.slow

FOLDERS = Folders(shipped=Path("/checkout"), home=Path("/home/me"))
RUN = "20261121-092041-bd57"
TEXT = st.text(max_size=30) | st.text(st.sampled_from("./-_~$ \0\n\\"), max_size=6)
VALUE: st.SearchStrategy[Value] = (
    TEXT | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
)
POINT = st.lists(st.tuples(st.sampled_from(list(AXES)), VALUE), max_size=4).map(tuple)


def folder_of(point: tuple[tuple[str, Value], ...]) -> Path:
    case = expand(shipped(), "cpu")[0]
    object.__setattr__(case, "point", point)
    return FOLDERS.job(RUN, case.slug)


@given(point=POINT)
@example(point=(("case", ".."),))
@example(point=(("case", "."),))
@example(point=(("case", "../../../etc"),))
@example(point=(("case", "/etc/passwd"),))
@example(point=(("case", "a\0b"),))
@example(point=(("case", "-rf"),))
@example(point=(("case", "x" * 300),))
@example(point=(("case", "\ud800"),))
@example(point=())
def test_each_job_has_a_separate_run_folder_for_any_case_name(
    point: tuple[tuple[str, Value], ...],
) -> None:
    try:
        folder = folder_of(point)
    except ReproError as error:
        assert len(error.problems) == 1 and str(error).isprintable()
        return
    assert Path(os.path.normpath(folder)).parent == FOLDERS.runs / RUN
    assert len(os.fsencode(folder.name)) <= 255


NO_NAMES = ["", ".", "..", "a/b", "/", "../x", "a\0", "a\nb", "\x1b[2J", "x" * 256, "é" * 128, "\ud800"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_text_that_is_no_file_name_is_refused_as_a_folder(name: str) -> None:
    makers: list[Callable[[], Path]] = [
        lambda: FOLDERS.job(RUN, name),
        lambda: FOLDERS.job(name, "pp8"),
        lambda: FOLDERS.run(name),
        lambda: FOLDERS.submissions(name),
        lambda: FOLDERS.image_import(name),
    ]
    for make in makers:
        with pytest.raises(ReproError) as refused:
            make()
        assert len(refused.value.problems) == 1 and str(refused.value).isprintable()


def test_generated_names_are_accepted() -> None:
    assert FOLDERS.job(RUN, "pp8-tp8-gbs32") == FOLDERS.runs / RUN / "pp8-tp8-gbs32"
    assert FOLDERS.image_import("pytorch-20.12.0a1b2c3d").parent == FOLDERS.runs / "images"


# ---- a ledger that no option names ---------------------------------------------------------------------------

CHECKOUT = Path(__file__).resolve().parents[2]
NOBODY = 65534
# `repro` as a wheel runs it: without a checkout, home is the folder of a results.db.
AS_INSTALLED = """
import sys
from pathlib import Path
import orchestrator.paths
orchestrator.paths._PACKAGE = Path(sys.argv[1]) / "orchestrator"
sys.argv = ["repro", *sys.argv[2:]]
from orchestrator.cli.main import main
main()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that other users can reach, with an installed package, and a working folder in `project`."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    (place / "site-packages" / "orchestrator").mkdir(parents=True)
    (place / "site-packages" / "orchestrator" / "shipped").symlink_to(CHECKOUT)
    (place / "project" / "work").mkdir(parents=True)
    yield place
    shutil.rmtree(place)


def installed(place: Path, *words: str, folder: str = "project/work") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REPRO_")}
    return run_forked([str(place / "site-packages"), *words], place / folder, environment, AS_INSTALLED)


def plant(place: Path, how: str) -> None:
    """Create a ledger above the working folder that another user can change."""
    project = place / "project"
    ledger = project / "results.db"
    ledger.touch()
    if "owner" in how:
        os.chown(project if "folder" in how else ledger, NOBODY, NOBODY)
    elif how == "link":
        ledger.rename(place / "project" / "elsewhere.db")
        (place / "other").mkdir()
        (place / "other").chmod(0o777)
        (place / "other" / "results.db").touch()
        ledger.symlink_to(place / "other" / "results.db")
    else:
        (project if "folder" in how else ledger).chmod(0o777)


PLANTED = ["folder's mode", "ledger's mode", "link", "folder's owner", "ledger's owner"]


@pytest.mark.fault(
    section="Safety",
    fault="A `results.db` in the working folder or above it that belongs to another user, or that others can change",
    promise="Refused with the owner and the options that name it. That folder is not used as home.",
)
@pytest.mark.parametrize("how", PLANTED)
@pytest.mark.parametrize("where", ["project/work", "project"])
def test_a_found_ledger_that_others_can_change_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, how: str, where: str
) -> None:
    if "owner" in how and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    monkeypatch.delenv("REPRO_HOME", raising=False)
    monkeypatch.setattr("orchestrator.paths._PACKAGE", place / "site-packages" / "orchestrator")
    monkeypatch.chdir(place / where)
    own = place / "project" / "results.db"
    own.touch()
    assert find_folders() == Folders(shipped_of(place), own.parent)
    plant(place, how)
    found = find_folders()
    assert found.home == place / where and found.refused is not None
    assert f"--database {own}" in str(found.refused) and str(found.refused).startswith(str(place))
    monkeypatch.setenv("REPRO_HOME", str(own.parent))
    assert find_folders() == Folders(shipped_of(place), own.parent), "named by its user"


def shipped_of(place: Path) -> Path:
    return place / "site-packages" / "orchestrator" / "shipped"


@pytest.mark.fault(
    section="Safety",
    fault="Such a `results.db` with queued jobs",
    promise="`wait`, `status`, `cancel`, `retry` and `list` refuse it, and nothing runs.",
)
def test_wait_below_another_users_ledger_is_refused_and_runs_nothing(place: Path) -> None:
    """Another user's results.db in a parent folder has a queue of this machine that waits for a sender."""
    if os.geteuid() != 0:
        pytest.skip("only root has a second user")
    project = place / "project"
    made = installed(place, "list", folder="project")
    assert made.returncode == 0, made.stderr
    evil = project / "evil.queue.sh"
    evil.write_text(f"#!/bin/bash\ntouch {place}/evil\n")
    _plant_queue(project, evil)
    for path in (project, project / "results.db", evil):
        os.chown(path, NOBODY, NOBODY)
    for words in (("wait",), ("status",), ("cancel", "figure-13"), ("retry", "figure-13"), ("list",)):
        done = installed(place, *words)
        assert done.returncode == 2 and done.stdout == "", (words, done)
        assert f"repro: {project}: belongs to nobody, so it is not used. Hint: name it" in done.stderr
    # If it is named, it is used, and its rows still belong to the other user.
    named = installed(place, "status", "--database", str(project / "results.db"))
    assert named.returncode == 0, named.stderr
    assert not (place / "evil").exists()


def _plant_queue(project: Path, evil: Path) -> None:
    import sqlalchemy as sa

    from orchestrator.ledger.tables import Attempt
    from tests.recorded_jobs import new_ledger, record_jobs

    ledger = new_ledger(project)
    record_jobs(ledger, "a")
    with ledger.writing() as session:
        values = {"state": "QUEUED", "phase": "waiting", "token": "", "user": None, "pid": None, "file": str(evil)}
        session.execute(sa.update(Attempt).values(**values))
    ledger.engine.dispose()
