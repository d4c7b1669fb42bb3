"""What a ledger lives through: killed writers, a full disk, no right to write, two writers for minutes, damage.

Two processes write for REPRO_TEST_MINUTES minutes where that is set, else for seconds:

    REPRO_TEST_MINUTES=3 python -m pytest -s tests/unit/ledger/test_survival.py -k two_writers
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.errors import EXIT_USER_ERROR, ReproError
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from orchestrator.ledger.sqlite_file import SCHEMA
from orchestrator.ledger.tables import Attempt, Event, Iteration, Run, RunJob, rows_of
from tests.forked_repro import ForkedProgram
from tests.recorded_jobs import ledger_at, new_ledger, record_jobs
from tests.unavailable import give_up
from tests.unit.ledger.conftest import compiled

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]
WRITING_S = 60 * float(os.environ.get("REPRO_TEST_MINUTES", "0.05"))
KILLS = 4
"""Of a writer, for each kind of database; more only as long as none has hit a write that it was to hit."""
JOBS = 30

WRITER = """
import dataclasses, itertools, json, sys, time
import sqlalchemy as sa
from orchestrator.ledger.attempts import job_rows, record_observations
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.measurements import MeasuredMetric, Measurement, record_measurements
from orchestrator.ledger.runs import record_submission
from orchestrator.ledger.tables import ENDED, VERIFIED, IterationLine
from tests.recorded_jobs import ledger_at, new_run, record_jobs

@sa.event.listens_for(sa.Engine, "connect")
def little_memory(connection, _record):  # so that a transaction reaches the file, behind its journal, before its end
    if SPILLS:
        connection.execute("pragma cache_size=2")

url, name, jobs = sa.make_url(sys.argv[1]), sys.argv[2], int(sys.argv[3])
SPILLS = sys.argv[4] == "spills"
ledger = ledger_at(url)
print("ready", flush=True)
until = float(sys.stdin.readline())
counts = dict(runs=0, mine=0, theirs=0)
lines = tuple(IterationLine(n, 800.0, 9.5, 1.0, n > 2) for n in range(10))
for turn in itertools.count():
    if turn and time.time() > until:
        break
    # Both ask for the same jobs: one gets them, the other finds them there.
    token = f"{name}-{turn}"
    run = dataclasses.replace(new_run(), id=token)
    names = [f"{turn}-{n}" for n in range(jobs)]
    mine = record_jobs(ledger, *names, token=token, run=run).to_submit
    assert len(mine) in (0, jobs), "a transaction of the other was seen half done"
    counts["runs"] += 1
    counts["mine" if mine else "theirs"] += 1
    if mine:
        record_submission(ledger, token, str(turn))
        ids = [row.attempt_id for row in job_rows(ledger, run_id=token)]
        record_observations(ledger, {one: Observation("COMPLETED", ENDED, exit_code=0) for one in ids}, ids)
        metric = MeasuredMetric("iteration_ms", 800.0, "ms")
        record_measurements(ledger, [Measurement(one, 10, VERIFIED, None, lines, (metric,)) for one in ids])
    print(turn, flush=True)
print(json.dumps(counts))
"""


def start_writer(url: sa.URL, name: str, *, jobs: int, spills: bool = False) -> ForkedProgram:
    """Start a process that writes runs after a call of `begin`. Return when it has loaded everything."""
    words = [url.render_as_string(hide_password=False), name, str(jobs), "spills" if spills else ""]
    writer = ForkedProgram(WRITER, words)
    assert writer.output.readline() == "ready\n", writer.end()
    return writer


def begin(writer: ForkedProgram, until: float = 2**40) -> None:
    """Let the process write at least one run, and more until this time."""
    writer.write_line(str(until))


def count(ledger: Ledger, *conditions: sa.ColumnElement[bool], table: type[object]) -> int:
    with ledger.reading() as session:
        return session.scalar(sa.select(sa.func.count()).select_from(table).where(*conditions)) or 0


def check_whole(ledger: Ledger, jobs: int) -> None:
    """Every transaction is there entirely or not at all."""
    if ledger.url.get_backend_name() == "sqlite":
        with ledger.engine.connect() as connection:
            assert connection.exec_driver_sql("pragma integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("pragma foreign_key_check").fetchall() == []
    with ledger.reading() as session:
        asked = Counter(session.scalars(sa.select(RunJob.run_id)))
        runs = set(session.scalars(sa.select(Run.id)))
        attempts = session.execute(sa.select(Attempt.run_id, Attempt.state, Attempt.verdict, Attempt.id)).all()
        of_log = Counter(session.scalars(sa.select(rows_of(Iteration).c.attempt_id)))
        noted = Counter(session.scalars(sa.select(Event.run_id).where(Event.kind == "run")))
    assert asked == dict.fromkeys(runs, jobs) and noted == dict.fromkeys(runs, 1)
    for run_id, number in Counter(run for run, *_ in attempts).items():
        assert number == jobs
        of_run = [one for one in attempts if one[0] == run_id]
        assert len({(state, verdict) for _, state, verdict, _ in of_run}) == 1
        assert {of_log.get(one[3], 0) for one in of_run} in ({0}, {10})


# Whoever writes to a file has used up their quota; what goes to a terminal or a pipe has none.
NO_QUOTA = """
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t pwrite(int file, const void *data, size_t size, off_t at) { errno = EDQUOT; return -1; }
ssize_t pwrite64(int file, const void *data, size_t size, off_t at) { errno = EDQUOT; return -1; }
ssize_t write(int file, const void *data, size_t size)
{
    struct stat what;
    if (fstat(file, &what) == 0 && S_ISREG(what.st_mode)) {
        errno = EDQUOT;
        return -1;
    }
    return syscall(SYS_write, file, data, size);
}
"""
MAKE_ROOM = "make room and repeat the command"

KILLED_IN_A_WRITE = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("pragma cache_size=1")
connection.execute("begin immediate")
connection.execute("update attempts set state = hex(randomblob(20000))")
os.kill(os.getpid(), signal.SIGKILL)
"""

RECORDS = """
import sys
from pathlib import Path
from orchestrator.errors import ReproError
from tests.recorded_jobs import new_ledger, record_jobs
try:
    record_jobs(new_ledger(Path(sys.argv[1])), "b")
except ReproError as error:
    print(error)
    sys.exit(error.exit_code)
"""

# ---- killed writers ------------------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Ledger",
    fault="A writer is killed (SIGKILL) at random moments, also with half of its pages in the file",
    promise="The ledger has whole transactions. Every reported write is present.",
    count=3 * KILLS,
)
@pytest.mark.parametrize(
    ("database_url", "spills"),
    [("sqlite", False), ("sqlite", True), ("postgresql", False)],
    indirect=["database_url"],
)
def test_a_writer_killed_at_any_moment_leaves_whole_transactions(database_url: sa.URL, spills: bool) -> None:
    is_file = database_url.get_backend_name() == "sqlite"
    ledger = ledger_at(database_url)
    chance = random.Random(20)
    kills = journals = finished = 0
    while kills < KILLS or (spills and not journals and kills < 5 * KILLS):
        kills += 1
        writer = start_writer(database_url, f"w{kills}", jobs=JOBS, spills=spills)
        begin(writer)
        if kills == 1:  # the process prints at least one finished turn
            finished += writer.output.readline() == "0\n"
        time.sleep(chance.uniform(0.0, 0.25))
        writer.kill()
        turns = writer.end()[1].split()
        if is_file:
            journals += Path(f"{database_url.database}-journal").exists()
        check_whole(ledger, JOBS)
        # The ledger has each turn that the process printed as done.
        assert count(ledger, Run.id.startswith(f"w{kills}-"), table=Run) >= len(turns)
        finished += len(turns)
    print(f"{kills} kills, {finished} finished turns, {journals} journals left behind")
    assert finished > 0
    if spills:
        assert journals > 0, "no kill ever hit a write"
    record_jobs(ledger, "afterwards")
    ledger.engine.dispose()


# ---- disks that cannot be written ----------------------------------------------------------------------------


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 1 MiB of its own."""
    folder = Path(tempfile.mkdtemp(prefix="repro-disk-"))
    made = mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    if made:
        folder.rmdir()
        give_up(f"no file system for this test: {made}")
    try:
        yield folder
    finally:
        while os.path.ismount(folder):
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def mount(*words: str) -> str:
    """Mount something; why it could not be, or ""."""
    try:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "mount is not installed"
    return (done.stderr.strip() or "mount failed") if done.returncode else ""


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    assert mount("-o", "remount,ro", str(folder)) == ""
    try:
        yield
    finally:
        assert mount("-o", "remount,rw", str(folder)) == ""


def fill(folder: Path, leave: int = 0) -> Path:
    """Fill the file system but for so many bytes; the file to delete."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    os.truncate(filler, filler.stat().st_size - leave)
    return filler


def names(count: int) -> list[str]:
    return [f"job {number}" for number in range(count)]


# Full before anything, in the journal, in the middle of the pages.
@pytest.mark.fault(
    section="Ledger",
    fault="The disk is full: before the write, in the journal, in the pages",
    promise="Reported. The same command works once there is space.",
)
@pytest.mark.parametrize("left_kib", [0, 8, 40, 100])
def test_a_full_disk_is_said_and_the_same_command_works_once_there_is_room(disk: Path, left_kib: int) -> None:
    ledger = new_ledger(disk)
    record_jobs(ledger, "a")
    before = (disk / "results.db").read_bytes()
    filler = fill(disk, left_kib * 1024)
    with pytest.raises(ReproError, match=r"results\.db: the disk is full.* Hint: make room and repeat") as caught:
        record_jobs(ledger, *names(400))
    assert caught.value.exit_code == EXIT_USER_ERROR and "\n" not in str(caught.value)
    assert [row.case_name for row in job_rows(new_ledger(disk))] == ["a"]
    assert (disk / "results.db").read_bytes() == before
    filler.unlink()
    assert len(record_jobs(ledger, *names(400)).to_submit) == 400
    check_integrity(ledger)
    ledger.engine.dispose()


def check_integrity(ledger: Ledger) -> None:
    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql("pragma integrity_check").scalar() == "ok"


@pytest.mark.fault(
    section="Ledger",
    fault="The disk is full when the ledger is created",
    promise="The ledger is created once there is space.",
)
@pytest.mark.parametrize("left_kib", [0, 4, 40])
def test_a_ledger_that_is_made_on_a_full_disk_is_made_once_there_is_room(disk: Path, left_kib: int) -> None:
    filler = fill(disk, left_kib * 1024)
    with pytest.raises(ReproError, match=r"results\.db: the disk is full"):
        new_ledger(disk)
    filler.unlink()
    assert job_rows(new_ledger(disk)) == []


@pytest.mark.fault(
    section="Ledger",
    fault="The disk is full, and a writer was killed",
    promise="Its journal is still rolled back.",
)
def test_a_writer_killed_on_a_full_disk_has_its_journal_taken_back_while_it_is_still_full(disk: Path) -> None:
    ledger = new_ledger(disk)
    record_jobs(ledger, *names(5))
    ledger.engine.dispose()
    subprocess.run([sys.executable, "-c", KILLED_IN_A_WRITE, str(disk / "results.db")], check=False)
    assert (disk / "results.db-journal").exists(), "nothing had reached the file"
    fill(disk)
    assert {row.state for row in job_rows(new_ledger(disk))} == {"SUBMITTING"}
    check_integrity(ledger)


@pytest.mark.fault(
    section="Ledger",
    fault="A quota is used up, which SQLite reports as an I/O error (the test replaces the kernel's answer)",
    promise="Reported as a full disk.",
)
def test_a_used_up_quota_is_a_full_disk_though_sqlite_calls_it_an_io_error(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    record_jobs(new_ledger(tmp_path), "a")
    before = (tmp_path / "results.db").read_bytes()
    library = compiled(tmp_path_factory.mktemp("shim"), NO_QUOTA)
    command = [sys.executable, "-c", RECORDS, str(tmp_path)]
    env = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == f"{tmp_path}/results.db: the disk is full (Disk quota exceeded). Hint: {MAKE_ROOM}\n", (
        done.stderr
    )
    assert (done.returncode, (tmp_path / "results.db").read_bytes()) == (EXIT_USER_ERROR, before)
    assert len(record_jobs(new_ledger(tmp_path), "b").to_submit) == 1


@pytest.mark.fault(
    section="Ledger",
    fault="A read-only disk",
    promise="The ledger can be read. The message gives the reason why it cannot be written.",
)
def test_a_read_only_disk_can_be_read_and_says_why_it_is_not_written(disk: Path) -> None:
    ledger = new_ledger(disk)
    record_jobs(ledger, "a")
    ledger.engine.dispose()
    with read_only(disk):
        ledger = new_ledger(disk)
        assert [row.case_name for row in job_rows(ledger)] == ["a"]
        with pytest.raises(ReproError, match=r"results\.db: cannot be written .* Hint: check its owner") as caught:
            record_jobs(ledger, "b")
        assert caught.value.exit_code == EXIT_USER_ERROR
        ledger.engine.dispose()
    record_jobs(new_ledger(disk), "b")


@pytest.mark.fault(
    section="Ledger",
    fault="A read-only disk without a ledger",
    promise="Reported.",
)
def test_a_ledger_that_cannot_be_made_on_a_read_only_disk_says_so(disk: Path) -> None:
    with read_only(disk), pytest.raises(ReproError, match=r"results\.db: cannot be written \(Read-only file system\)"):
        new_ledger(disk)


@pytest.mark.fault(
    section="Ledger",
    fault="A read-only file",
    promise="Reported.",
)
def test_a_read_only_file_in_a_folder_that_can_be_written_says_so(disk: Path) -> None:
    record_jobs(new_ledger(disk), "a")
    file = str(disk / "results.db")
    assert mount("--bind", file, file) == "" and mount("-o", "remount,ro,bind", file) == ""
    try:
        ledger = new_ledger(disk)
        with pytest.raises(
            ReproError, match=r"results\.db: cannot be written \(attempt to write a readonly database\)"
        ):
            record_jobs(ledger, "b")
        assert [row.case_name for row in job_rows(ledger)] == ["a"]
        ledger.engine.dispose()
    finally:
        subprocess.run(["umount", file], check=True)


@pytest.mark.fault(
    section="Ledger",
    fault="A read-only folder, where no journal can be created",
    promise="Reported.",
)
def test_a_file_that_can_be_written_in_a_read_only_folder_says_so(disk: Path, tmp_path: Path) -> None:
    """SQLite needs a journal beside its file."""
    record_jobs(new_ledger(tmp_path), "a")
    (disk / "results.db").touch()
    with read_only(disk):
        file = str(disk / "results.db")
        assert mount("--bind", str(tmp_path / "results.db"), file) == ""
        try:
            ledger = new_ledger(disk)
            with pytest.raises(ReproError, match=r"results\.db: cannot be written \(Read-only file system\)"):
                record_jobs(ledger, "b")
            assert [row.case_name for row in job_rows(ledger)] == ["a"]
            ledger.engine.dispose()
        finally:
            subprocess.run(["umount", file], check=True)


# ---- two writers ---------------------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Ledger",
    fault="Two writers for seconds or minutes, and a reader",
    promise="No row is lost or duplicated.",
)
def test_two_writers_at_the_same_time_lose_nothing_and_submit_nothing_twice(database_url: sa.URL) -> None:
    ledger = ledger_at(database_url)
    writers = [start_writer(database_url, name, jobs=3) for name in ("one", "two")]
    until = time.time() + WRITING_S
    for writer in writers:
        begin(writer, until)
    looks = 0
    while time.time() < until:  # and somebody looks meanwhile, as `repro status` does
        job_rows(ledger, only_open=True)
        looks += 1
        time.sleep(0.1)
    answers = [writer.end() for writer in writers]
    assert [code for code, _ in answers] == [0, 0], answers
    counts = [json.loads(output.splitlines()[-1]) for _, output in answers]
    check_whole(ledger, 3)
    turns = max(one["runs"] for one in counts)
    assert count(ledger, table=Run) == sum(one["runs"] for one in counts)
    assert count(ledger, table=Attempt) == 3 * sum(one["mine"] for one in counts) == 3 * turns
    assert count(ledger, table=Iteration) == 10 * 3 * turns
    assert min(one["runs"] for one in counts) > 0
    print(f"{WRITING_S:.0f} s on {database_url.get_backend_name()}: {counts}, {looks} looks")
    ledger.engine.dispose()


# ---- damage --------------------------------------------------------------------------------------------------


def read_everything(url: sa.URL) -> None:
    """Open the ledger and read every row of it, as the commands do."""
    ledger = open_ledger(url)
    assert ledger is not None
    try:
        job_rows(ledger)
        with ledger.reading() as session:
            for table in (Run, RunJob, Attempt, Event, Iteration):
                session.execute(sa.select(*table.__table__.columns)).all()
    finally:
        ledger.engine.dispose()


def filled_file(folder: Path) -> Path:
    ledger = new_ledger(folder)
    record_jobs(ledger, *names(60))
    ledger.engine.dispose()
    return folder / "results.db"


@pytest.mark.fault(
    section="Ledger",
    fault="A damaged header, a file that is not a database, half a file, one missing byte, damaged pages",
    promise="Reported. The file is not changed.",
)
@pytest.mark.parametrize("where", ["header", "no database", "half", "one byte short", "first page", "every other page"])
def test_a_damaged_file_is_named_and_left_as_it_was(tmp_path: Path, where: str) -> None:
    file = filled_file(tmp_path)
    whole = file.read_bytes()
    pages = [whole[at : at + 4096] for at in range(0, len(whole), 4096)]
    content = {
        "header": os.urandom(100) + whole[100:],
        "no database": b"these are notes, and no database at all\n" * 50,
        "half": whole[: len(whole) // 2],
        "one byte short": whole[: 4096 * (len(pages) - 1) + 4095],
        "first page": whole[:100] + b"\xff" * 3996 + whole[4096:],
        "every other page": b"".join(os.urandom(4096) if n % 2 else page for n, page in enumerate(pages)),
    }[where]
    file.write_bytes(content)
    with pytest.raises(ReproError, match="results.db: not a readable SQLite database") as caught:
        read_everything(ledger_url(None, tmp_path))
    assert caught.value.exit_code == EXIT_USER_ERROR
    assert "it was left as it is" in str(caught.value) and "\n" not in str(caught.value)
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["results.db"]


@pytest.mark.fault(
    section="Ledger",
    fault="Random bytes in each page in turn",
    promise="Reported, or without effect. Never a traceback, never a write.",
)
def test_wherever_a_page_is_damaged_it_is_named_or_does_not_matter(tmp_path: Path) -> None:
    """SQLite has no checksums: garbage inside a text is a text. But there is no traceback, and nothing is written."""
    file = filled_file(tmp_path)
    whole = file.read_bytes()
    chance = random.Random(4096)
    named = 0
    for number in range(len(whole) // 4096):
        for length in (4096, 512, 16):
            at = number * 4096 + chance.randrange(0, 4096 - length + 1)
            content = whole[:at] + chance.randbytes(length) + whole[at + length :]
            file.write_bytes(content)
            try:
                read_everything(ledger_url(None, tmp_path))
            except ReproError as error:
                named += 1
                assert error.exit_code == EXIT_USER_ERROR and "results.db" in str(error) and "\n" not in str(error)
            assert file.read_bytes() == content, f"page {number} damaged at {at}: the file was written"
    assert named > len(whole) // 4096


@pytest.mark.fault(
    section="Ledger",
    fault="A new run on a damaged ledger",
    promise="The ledger is not overwritten.",
)
def test_a_damaged_ledger_is_not_written_over_by_the_next_run(tmp_path: Path) -> None:
    file = filled_file(tmp_path)
    ledger = new_ledger(tmp_path)
    with ledger.engine.connect() as connection:
        page = connection.exec_driver_sql("select rootpage from sqlite_master where name = 'attempts'").scalar_one()
    ledger.engine.dispose()
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    file.write_bytes(content)
    with pytest.raises(ReproError, match="results.db: not a readable SQLite database"):
        record_jobs(new_ledger(tmp_path), "one more")
    assert file.read_bytes() == content


@pytest.mark.fault(
    section="Ledger",
    fault="The ledger has a newer schema",
    promise="Refused and not changed.",
)
@pytest.mark.parametrize("version", ["9999", f"{int(SCHEMA) + 1:04d}"])
def test_a_newer_file_is_refused_and_not_touched(tmp_path: Path, version: str) -> None:
    file = filled_file(tmp_path)
    with sqlite3.connect(file) as raw:
        raw.execute("update alembic_version set version_num = ?", (version,))
    raw.close()
    before, changed = file.read_bytes(), file.stat().st_mtime_ns
    for create in (True, False):
        with pytest.raises(ReproError, match=f"results.db: made by a newer repro .schema {version}"):
            open_ledger(ledger_url(None, tmp_path), create=create)
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (before, changed)
    assert [path.name for path in tmp_path.iterdir()] == ["results.db"]


@pytest.mark.fault(
    section="Ledger",
    fault="The file belongs to another program",
    promise="Refused and not changed.",
)
def test_another_programs_file_is_refused_and_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with sqlite3.connect(file) as raw:
        raw.execute("create table invoices (id integer)")
    raw.close()
    before, changed = file.read_bytes(), file.stat().st_mtime_ns
    with pytest.raises(ReproError, match="results.db: is a database of another program .table invoices."):
        open_ledger(ledger_url(None, tmp_path))
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (before, changed)
