"""Retry of failed jobs: which of them, with which time limit, from which profile, and on which nodes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.files import read_record
from orchestrator.launch.supervise import recorded_options
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import Attempt, Run
from orchestrator.reading.failure import Failure
from orchestrator.reading.logs import log_blocks
from orchestrator.slurm.notation import time_limit_s
from tests.stand_in_site import CHECKOUT
from tests.unit.api.project import Project, counts, problems
from tests.unit.launch.slurm_stand_in import Slurm
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ONE = "pp=1,gbs=4"


@pytest.fixture
def failed(project: Project) -> Project:
    """A project with a case that ran out of memory, and has more of it now."""
    project.site.behave("fail", "pp1-gbs4")
    project.run(ONE)
    assert project.verdicts() == ["failed"]
    project.site.behave("well", "pp1-gbs4")
    return project


def test_a_job_that_would_fail_again_is_neither_submitted_nor_retried(failed: Project) -> None:
    submission = failed.submit(ONE)
    assert (counts(submission), submission.left) == ({"left": 1}, {Failure.GPU_OOM: 1})
    retried = api.retry("figure-13", session=failed.session)
    assert (retried.groups, retried.failures) == ((), (Failure.GPU_OOM,))
    assert len(failed.site.started()) == 1


def test_a_retry_by_class_runs_it_as_the_next_attempt_of_the_same_job(failed: Project) -> None:
    (before,) = failed.rows()
    options = {"classes": "gpu-oom", "time_limit": "2:00:00"}
    (group,) = api.retry("figure-13", dry_run=True, session=failed.session, **options).groups  # type: ignore[arg-type]
    (job,) = group.jobs
    assert (group.submitted, job.job, job.attempt, job.time_limit) == (0, before.job_id, 2, "2:00:00")
    assert failed.retry(dry_run=True) == failed.retry(classes="gpu-oom", state="timeout") == 0
    (failed.folder / "clusters" / "other.yaml").write_text((failed.folder / "clusters" / "here.yaml").read_text())
    assert failed.retry(classes="gpu-oom", cluster="other") == 0
    assert [row.number for row in failed.rows()] == [1]
    assert failed.retry(classes="gpu-oom") == 1
    wait_until(lambda: failed.verdicts() == ["verified"])
    (row,) = failed.rows()
    assert (row.job_id, row.number) == (before.job_id, 2) and row.folder != before.folder
    assert failed.retry(classes="gpu-oom") == 0


def test_a_retry_by_the_jobs_id_and_of_another_class_than_its_own(failed: Project) -> None:
    (before,) = failed.rows()
    assert failed.retry(before.job_id[:6], classes="timeout,node-fail") == 0 and len(failed.site.started()) == 1
    assert failed.retry(before.job_id[:6], classes="timeout, gpu-oom") == 1
    wait_until(lambda: len(failed.site.started()) == 2)


def limit_s(row: JobRow) -> int:
    found = re.search(r"^timeout .*--kill-after=60 (\d+) ", (Path(row.folder) / "job.sh").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def test_a_retry_with_another_time_limit_has_it_in_its_script(failed: Project) -> None:
    before = limit_s(failed.rows()[0])
    for word, seconds in (("+0:30:00", before + 1800), ("1:02:03", 3723), ("1-00:00:00", 86400)):
        options = {"classes": "gpu-oom", "time_limit": word, "dry_run": True}
        (group,) = api.retry("figure-13", session=failed.session, **options).groups  # type: ignore[arg-type]
        assert [time_limit_s(job.time_limit) for job in group.jobs] == [seconds], word
    assert failed.retry(classes="gpu-oom", time_limit="+50%") == 1
    assert limit_s(failed.rows()[0]) == 1.5 * before
    wait_until(lambda: len(failed.site.started()) == 2)


def test_a_class_or_a_time_limit_that_does_not_exist_is_refused_and_nothing_is_run(failed: Project) -> None:
    for options, problem in (
        ({"classes": "gpu-om"}, '--class gpu-om: no such class. Did you mean "gpu-oom"?'),
        ({"classes": "zzzzz"}, "--class zzzzz: no such class. Hint: classes: not-submitted, refused, "),
        ({"time_limit": "soon"}, "--time soon: not a time limit. Hint: for example +50%, +0:30:00 or 2:00:00"),
        ({"time_limit": "+50"}, "--time +50: not a time limit"),
        ({"time_limit": "1:99:00"}, "--time 1:99:00: not a time limit"),
        ({"time_limit": "-0:30:00"}, "--time -0:30:00: not a time limit"),
    ):
        with pytest.raises(ReproError) as caught:
            failed.retry(**options)
        assert len(problems(caught)) == 1 and problems(caught)[0].startswith(problem), options
    with pytest.raises(ReproError) as caught:
        failed.retry(classes="a,timeout,b")
    assert [line.split()[1] for line in problems(caught)] == ["a:", "b:"]
    assert [row.number for row in failed.rows()] == [1]


def test_a_job_that_failed_with_its_node_is_retried_without_its_class(project: Project) -> None:
    project.site.behave("hang", "pp1-gbs4")
    project.submit("gbs=4")
    wait_until(project.site.sleepers)
    start = read_record(Path(project.rows()[0].folder) / "start")
    assert start is not None
    os.killpg(start.pid, signal.SIGKILL)
    project.site.behave("well", "pp1-gbs4")
    wait_until(lambda: set(project.verdicts()) == {"failed", "verified"})
    assert project.rows()[0].failure == "node-fail"
    assert project.retry() == 1
    wait_until(lambda: set(project.verdicts()) == {"verified"})
    assert [row.number for row in project.rows()] == [2, 1, 1]


def test_a_job_that_would_be_another_now_is_not_retried(failed: Project) -> None:
    """A job has measurements of its own configuration only."""
    shutil.copytree(CHECKOUT / "experiments", failed.folder / "experiments")
    file = failed.folder / "experiments" / "sc21" / "figure-13.yaml"
    text = file.read_text()
    assert text.count("model: {layers: 4, hidden: 256") == 1
    file.write_text(text.replace("model: {layers: 4, hidden: 256", "model: {layers: 4, hidden: 512"))
    (row,) = failed.rows()
    with pytest.raises(ReproError) as caught:
        failed.retry(classes="gpu-oom")
    why = "would be another job now: its experiment, profile, code or image has changed"
    hint = "repro submit figure-13 --cluster here"
    assert problems(caught) == [f"pp=1,tp=4,gbs=4 ({row.job_id}) {why}. Hint: {hint}"]
    assert len(failed.site.started()) == 1


def planted_profile(project: Project, how: str) -> Path:
    """Write a profile of another user with a line of bash. The ledger names it, since that user has edited it."""
    folder = project.folder.parent / "planted"
    folder.mkdir()
    file = folder / "here.yaml"
    own = (project.folder / "clusters" / "here.yaml").read_text()
    file.write_text(f"{own}setup: ['touch {folder}/evil']\n")
    if how == "owner":
        os.chown(file, 65534, 65534)
    else:
        (folder if how == "folder's mode" else file).chmod(0o777)
    with project.ledger.writing() as session:
        session.execute(sa.update(Run).values(profile_file=str(file)))
    return file


@pytest.mark.fault(
    section="Safety",
    fault="Another user writes the path of a profile into the ledger",
    promise="`retry` refuses it and names `--cluster`.",
)
@pytest.mark.parametrize("how", ["owner", "mode", "folder's mode"])
def test_a_profile_that_another_user_has_written_into_the_ledger_is_not_used(failed: Project, how: str) -> None:
    if how == "owner" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    file = planted_profile(failed, how)
    place = file.parent if how == "folder's mode" else file
    why = "belongs to nobody" if how == "owner" else "is writable by everybody"
    with pytest.raises(ReproError) as caught:
        failed.retry(classes="gpu-oom")
    hint = "give the profile: --cluster here, or --cluster FILE"
    assert problems(caught) == [f"{place}: {why}, so the profile recorded in the ledger is not used. Hint: {hint}"]
    assert len(failed.site.started()) == 1
    assert failed.retry(classes="gpu-oom", cluster="here") == 1
    wait_until(lambda: set(failed.verdicts()) == {"verified"})
    assert not (file.parent / "evil").exists()


@pytest.mark.fault(
    section="Safety",
    fault="Another user writes a path as the name of the cluster",
    promise="A recorded name is never used as a path.",
)
def test_a_recorded_cluster_name_is_never_used_as_a_path(failed: Project) -> None:
    file = planted_profile(failed, "mode")
    with failed.ledger.writing() as session:
        session.execute(sa.update(Run).values(profile_file=None, cluster=str(file)))
    with pytest.raises(ReproError, match="no such cluster. Hint: give the profile"):
        failed.retry(classes="gpu-oom")
    assert len(failed.site.started()) == 1


def test_a_profile_of_the_users_own_is_used_again_by_its_path(project: Project) -> None:
    file = project.folder.parent / "mine" / "own.yaml"
    file.parent.mkdir()
    file.write_text((project.folder / "clusters" / "here.yaml").read_text())
    project.site.behave("fail", "pp1-gbs4")
    project.run(ONE, str(file))
    assert project.retry(classes="gpu-oom") == 1


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`retry` names a cluster whose profile is outside the folders of profiles",
    promise="The recorded profile is used.",
)
@pytest.mark.parametrize("name", ["own", "path"])
def test_a_retry_on_a_cluster_of_another_folder(project: Project, name: str) -> None:
    file = project.folder.parent / "mine" / "own.yaml"
    file.parent.mkdir()
    file.write_text((project.folder / "clusters" / "here.yaml").read_text())
    project.site.behave("fail", "pp1-gbs4")
    project.run(ONE, str(file))
    assert project.retry(classes="gpu-oom", cluster=name if name == "own" else str(file)) == 1


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`retry` of a run with `--max-parallel`",
    promise="The limit stays.",
)
def test_a_retry_keeps_the_limit_of_running_jobs(project: Project) -> None:
    project.site.behave("fail", "pp1-gbs4")
    project.run(ONE, max_parallel=1)
    assert project.retry(classes="gpu-oom") == 1
    (row,) = project.rows()
    assert recorded_options(project.ledger, row.run_id) == ((), 1)


def test_a_retry_of_a_repeat_runs_that_one(project: Project) -> None:
    project.site.behave("fail", "pp1-gbs4")
    project.run(ONE, repeat=2)
    project.site.behave("well", "pp1-gbs4")
    assert project.retry(project.rows()[1].job_id, classes="gpu-oom") == 1
    wait_until(lambda: project.verdicts() == ["failed", "verified"])
    assert [row.number for row in project.rows()] == [1, 2]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A job fails for the second and third time",
    promise="Each retry excludes all nodes that failed and starts later. Then no automatic retry follows.",
    count=0,
)
def test_a_retry_on_slurm_keeps_off_the_node_that_failed_and_pauses_when_it_failed_before(
    project: Project, slurm: Slurm
) -> None:
    project.submit(ONE, "there")

    def loses(node: str) -> None:
        newest = sa.select(sa.func.max(Attempt.id)).scalar_subquery()
        lost = {"phase": "ended", "state": "NODE_FAIL", "verdict": "failed", "failure": "node-fail", "nodes": node}
        with project.ledger.writing() as session:
            session.execute(sa.update(Attempt).where(Attempt.id == newest).values(**lost))

    for node in ("n7", "n9"):
        loses(node)
        assert project.retry() == 1
    assert slurm.options() == ["", "--exclude=n7", "--exclude=n7,n9 --begin=now+60"]
    loses("n8")
    (group,) = api.retry("figure-13", session=project.session).groups
    assert (group.submitted, group.left) == (0, 1)
    assert project.retry(classes="node-fail") == 1
    assert slurm.options()[-1] == "--exclude=n7,n8,n9 --begin=now+300"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A long log is read while other processes write to the ledger",
    promise="They do not wait: the log is read before the ledger is locked.",
    count=0,
)
def test_the_log_of_a_failed_attempt_is_read_while_others_can_write_to_the_ledger(
    project: Project, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.submit(ONE, "there")
    (row,) = project.rows()
    failed = {"phase": "ended", "state": "FAILED", "verdict": "failed", "failure": "gpu-fault", "nodes": "n[1-2]"}
    with project.ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**failed))
    Path(row.folder).mkdir(exist_ok=True)
    (Path(row.folder) / "log.txt").write_text("5: CUDA error: uncorrectable ECC error encountered\n")
    (Path(row.folder) / "batch.txt").write_text("srun: error: n2: task 5: Exited with exit code 1\n")
    writes = []

    def read(folder: Path) -> Iterator[bytes]:
        with contextlib.closing(sqlite3.connect(project.folder / "results.db", timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")  # sqlite3.OperationalError where `repro` holds the lock
        writes.append(folder)
        return log_blocks(folder)

    monkeypatch.setattr("orchestrator.launch.submit.log_blocks", read)
    assert project.retry() == 1
    assert slurm.options() == ["", "--exclude=n2"] and writes == [Path(row.folder)]
