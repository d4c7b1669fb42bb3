"""Who may write to the ledger must not choose what its users run: edited rows, changed scripts, foreign rows."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.launch import sbatch
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.sbatch import Callbacks, send
from orchestrator.launch.submit import submit
from orchestrator.launch.supervise import Backlog
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import queued_attempts
from orchestrator.ledger.tables import NEVER_SUBMITTED, QUEUED, Attempt
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NOBODY = 65534
EVIL = "#!/bin/bash\ntouch {}/evil\n"


@dataclass
class Queued:
    """Jobs that wait for room in the queue: three as an array, or one as a script of its own."""

    site: Site
    slurm: Slurm
    ledger: Ledger
    run_id: str = ""

    def cluster(self) -> Cluster:
        return self.site.cluster("there")

    def submit(self, where: str) -> None:
        self.slurm.has_room_for(0)
        self.run_id = submit(self.site.plans(where), self.cluster(), self.ledger, self.site.folders, []).run_id
        self.slurm.has_room_for(100)

    def rows(self) -> list[JobRow]:
        return job_rows(self.ledger)

    def file(self) -> Path:
        return Path(queued_attempts(self.ledger)[0].file)

    def edit(self, **values: Any) -> None:
        """What another user who may write to the ledger does."""
        with self.ledger.writing() as session:
            session.execute(sa.update(Attempt).values(**values))

    def evil(self, name: str = "evil.sh") -> Path:
        """A script of another user, outside of the run folders."""
        path = self.site.folder.parent / "planted" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(EVIL.format(self.site.folder))
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        return path


@pytest.fixture
def queued(site: Site, monkeypatch: pytest.MonkeyPatch) -> Queued:
    (site.folder / "clusters" / "there.yaml").write_text(PROFILE)
    slurm = Slurm.on_path(site.folder.parent / "bin", monkeypatch)
    return Queued(site, slurm, new_ledger(site.folder))


def a_script_elsewhere(queued: Queued) -> None:
    queued.edit(file=str(queued.evil()))


def a_script_elsewhere_with_its_digest(queued: Queued) -> None:
    evil = queued.evil("job.sh")
    digest = hashlib.sha256(evil.read_bytes()).hexdigest()
    queued.edit(file=str(evil), folder=str(evil.parent), array_index=None, script_sha256=digest)


def a_way_out_of_the_run_folder(queued: Queued) -> None:
    queued.edit(file=f"{queued.file().parent}/../../../../planted/{queued.evil().name}")


def another_file_of_the_run(queued: Queued) -> None:
    log = Path(queued.rows()[0].folder) / "log.txt"
    log.write_text(EVIL.format(queued.site.folder))
    queued.edit(file=str(log))


EDITS: dict[str, Callable[[Queued], None]] = {
    "file": a_script_elsewhere,
    "file, folder and digest": a_script_elsewhere_with_its_digest,
    "file with ..": a_way_out_of_the_run_folder,
    "file: a log": another_file_of_the_run,
    "folder": lambda queued: queued.edit(folder=str(queued.site.folder / "clusters")),
    "options": lambda queued: queued.edit(options=["--export=ALL,LD_PRELOAD=/tmp/evil.so"]),
    "script_sha256": lambda queued: queued.edit(script_sha256="0" * 64),
    "array_index": lambda queued: queued.edit(array_index=7),
}


@pytest.mark.fault(
    section="Safety",
    fault="Another user edits a row of a shared ledger: script, folder, digest, array index, options of sbatch",
    promise="Nothing of it is submitted. The attempt ends as `NEVER_SUBMITTED` with the reason.",
)
@pytest.mark.parametrize("edited", EDITS)
def test_an_edited_row_runs_nothing_as_the_user_whose_row_it_is(queued: Queued, edited: str) -> None:
    queued.submit("gbs=4")
    EDITS[edited](queued)
    said: list[str] = []
    calls = len(queued.slurm.calls())
    Backlog(queued.ledger, said.append).submit_what_fits(queued.rows())
    assert len(queued.slurm.calls()) == calls and queued.slurm.taken() == []
    assert len(said) == 1 and ". Hint: run repro submit again to write " in said[0], said
    rows = queued.rows()
    assert {(row.state, row.failure) for row in rows} == {(NEVER_SUBMITTED, "not-submitted")}
    assert all("so it is not" in str(row.reason) for row in rows), "it is said, and nobody waits for ever"


def a_changed_job(queued: Queued) -> None:
    (Path(queued.rows()[1].folder) / "job.sh").write_text(EVIL.format(queued.site.folder))


def a_job_that_is_a_link(queued: Queued) -> None:
    script = Path(queued.rows()[1].folder) / "job.sh"
    shutil.copy(script, queued.site.folder / "copy.sh")
    script.unlink()
    script.symlink_to(queued.site.folder / "copy.sh")


CHANGES: dict[str, Callable[[Queued], object]] = {
    "the array": lambda queued: queued.file().write_text(EVIL.format(queued.site.folder)),
    "a job of it": a_changed_job,
    "a job of it by a link": a_job_that_is_a_link,
    "who may write to the array": lambda queued: queued.file().chmod(0o777),
    "who may write beside it": lambda queued: queued.file().parent.chmod(0o777),
    "that it is there": lambda queued: queued.file().unlink(),
}


@pytest.mark.fault(
    section="Safety",
    fault="A script is changed, replaced by a link, deleted or made writable for others before sbatch",
    promise="Refused. The next `repro submit` writes a new one.",
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_script_that_was_changed_after_it_was_written_is_not_submitted(queued: Queued, change: str) -> None:
    queued.submit("gbs=4")
    CHANGES[change](queued)
    with pytest.raises(ReproError, match="so it is not"):
        send(queued.ledger, queued.run_id, Callbacks(lambda _: None))
    assert queued.slurm.taken() == [] and {row.state for row in queued.rows()} == {NEVER_SUBMITTED}
    # It costs nothing but a new script.
    again = submit(queued.site.plans("gbs=4"), queued.cluster(), queued.ledger, queued.site.folders, [])
    assert again.sent.jobs == 3


@pytest.mark.fault(
    section="Safety",
    fault="A script is changed after the check",
    promise="Slurm gets the checked bytes.",
)
def test_exactly_the_bytes_that_were_checked_are_submitted(queued: Queued, monkeypatch: pytest.MonkeyPatch) -> None:
    queued.submit("pp=1,gbs=4")
    file, texts = queued.file(), list[str]()
    written = file.read_text()

    class Executor(SlurmScriptExecutor):
        def submit_script(self, text: str, *_: Any) -> str:
            texts.append(text)
            return "100"

    def changed(*_: object) -> None:
        file.write_text(EVIL.format(queued.site.folder))

    monkeypatch.setattr(sbatch, "write_sent", changed)
    monkeypatch.setattr(sbatch, "SlurmScriptExecutor", Executor)
    send(queued.ledger, queued.run_id, Callbacks(lambda _: None))
    assert texts == [written] and file.read_text() != written


@pytest.mark.fault(
    section="Safety",
    fault="A script that is submitted alone is changed before sbatch",
    promise="Refused. The next `repro submit` writes a new one.",
)
def test_a_lone_script_that_was_changed_is_not_submitted(queued: Queued) -> None:
    queued.submit("pp=1,gbs=4")
    assert queued.file().name == "job.sh"
    queued.file().write_text(EVIL.format(queued.site.folder))
    with pytest.raises(ReproError, match="was changed after it was written"):
        send(queued.ledger, queued.run_id, Callbacks(lambda _: None))
    assert queued.slurm.taken() == []


# ---- rows of other users, and of nobody ------------------------------------------------------------------------


@pytest.mark.fault(
    section="Safety",
    fault="A queued row without a user, in a ledger that others can write to",
    promise="It counts as another user's row and is not submitted.",
)
@pytest.mark.parametrize("writable", ["file", "folder"])
def test_a_row_without_a_user_is_foreign_where_others_may_write_to_the_ledger(queued: Queued, writable: str) -> None:
    queued.submit("gbs=4")
    queued.edit(user=None, pid=None)
    folder = queued.site.folder
    (folder / "results.db" if writable == "file" else folder).chmod(0o777)
    said: list[str] = []
    ledger = new_ledger(folder)
    backlog = Backlog(ledger, said.append)
    backlog.submit_what_fits(job_rows(ledger))
    assert [row.state for row in job_rows(ledger)] == [QUEUED] * 3 and queued.slurm.taken() == []
    assert said == ["note: 3 of these jobs belong to another user, whose `repro wait` submits them"]


def test_a_row_without_a_user_is_the_users_own_in_a_ledger_of_their_own(queued: Queued) -> None:
    queued.submit("gbs=4")
    queued.edit(user=None, pid=None)
    Backlog(queued.ledger, lambda _: None).submit_what_fits(queued.rows())
    assert [row.state for row in queued.rows()] == ["PENDING"] * 3


@pytest.mark.fault(
    section="Safety",
    fault="Another user adds a row to the local queue, without a user or with the user's name",
    promise="Its file is not started.",
)
@pytest.mark.parametrize("user", [None, "own"])
def test_a_planted_queue_of_this_machine_is_not_started(site: Site, user: str | None) -> None:
    """A local row in turn, as another user of a shared ledger can write it: `bash` of its file would run at once."""
    ledger = new_ledger(site.folder)
    site.behave("fail")
    submit(site.plans("pp=1,gbs=4"), site.cluster(), ledger, site.folders, [])
    evil = site.folder.parent / "evil.queue.sh"
    evil.write_text(EVIL.format(site.folder))
    values: dict[str, Any] = {"state": QUEUED, "phase": "waiting", "token": "", "pid": None, "file": str(evil)}
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**values, **({"user": None} if user is None else {})))
    (site.folder / "results.db").chmod(0o666)
    said: list[str] = []
    shared = new_ledger(site.folder)
    Backlog(shared, said.append).submit_what_fits(job_rows(shared))
    assert len(said) == 1 and not (site.folder / "evil").exists()
    assert job_rows(shared)[0].state == (QUEUED if user is None else NEVER_SUBMITTED)
    wait_until(lambda: len(site.started()) == 1)
