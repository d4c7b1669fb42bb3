"""A crash at the worst moment: the next command finds out what became of it. Nothing twice, nothing lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator import identity
from orchestrator.errors import Unreachable
from orchestrator.identity import MachineIdentity, seconds_since_boot, start_ticks, this_machine_identity, user_name
from orchestrator.launch import refresh as settling
from orchestrator.launch.executors import find_process
from orchestrator.launch.refresh import owner_check, refresh
from orchestrator.launch.submit import Submitted, submit
from orchestrator.ledger.attempts import job_history, job_rows
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.runs import interrupted_submissions
from orchestrator.ledger.tables import OPEN, QUEUED, SUBMITTING, WAITING, Attempt
from orchestrator.slurm.command import QueryAnswer
from orchestrator.slurm.notation import JobRecord, Source
from tests.forked_repro import run_forked
from tests.recorded_jobs import new_ledger, new_run, record_jobs
from tests.stand_in_site import CHECKOUT, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

# Submits three jobs and is killed outright where PLACE is called.
DIES = """
import os, signal, sys
from pathlib import Path
import orchestrator.launch.sbatch as sending
import orchestrator.launch.submit as submitting
from tests.stand_in_site import Site
from tests.recorded_jobs import new_ledger
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
PLACE = die
site = Site(Path(sys.argv[1]))
submitting.submit(site.plans("gbs=4"), site.cluster(), new_ledger(site.folder), site.folders, [])
"""
BEFORE_THE_ROWS = "submitting.new_run"
WITH_SCRIPTS_AND_NO_ROWS = "wrote = submitting.write_scripts; submitting.write_scripts = lambda *a: die(wrote(*a)); _"
BEFORE_THE_CLAIM = "submitting.send"
BEFORE_THE_START = "sending.start_queue"
AFTER_THE_START = "sending.record_submission"


def killed(site: Site, place: str) -> Ledger:
    done = run_forked([str(site.folder)], CHECKOUT, os.environ, DIES.replace("PLACE", place))
    assert done.returncode == -signal.SIGKILL, done.stderr
    return new_ledger(site.folder)


def again(site: Site, ledger: Ledger) -> Submitted:
    return submit(site.plans("gbs=4"), site.cluster(), ledger, site.folders, [])


def all_ended(ledger: Ledger) -> bool:
    refresh(ledger)
    return all(row.phase not in OPEN for row in job_rows(ledger))


def each_ran_once_as(number: int, site: Site, ledger: Ledger) -> None:
    wait_until(lambda: all_ended(ledger))
    assert [(row.number, row.state) for row in job_rows(ledger)] == [(number, "COMPLETED")] * 3
    assert sorted(site.started()) == sorted(row.case_name for row in job_rows(ledger)) and len(site.started()) == 3


# ---- jobs of this machine ------------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Submissions",
    fault="SIGKILL on this machine before the rows are recorded, also with the scripts already written",
    promise="Nothing is recorded. The next submit runs each case once.",
)
@pytest.mark.parametrize("place", [BEFORE_THE_ROWS, WITH_SCRIPTS_AND_NO_ROWS])
def test_killed_before_the_rows_were_written_there_is_nothing(site: Site, place: str) -> None:
    ledger = killed(site, place)
    assert job_rows(ledger) == [] and refresh(ledger).complaints == ()
    again(site, ledger)
    each_ran_once_as(1, site, ledger)


@pytest.mark.fault(
    section="Submissions",
    fault="SIGKILL on this machine before any attempt is claimed",
    promise="The attempts keep their numbers and get new scripts. The old scripts do not start.",
)
def test_killed_before_anything_was_claimed_the_jobs_wait_their_turn_and_are_made_anew_in_place(site: Site) -> None:
    ledger = killed(site, BEFORE_THE_CLAIM)
    assert refresh(ledger).complaints == ()
    before = job_rows(ledger)
    assert [(row.state, row.phase, row.number) for row in before] == [(QUEUED, WAITING, 1)] * 3
    assert all((Path(row.folder) / "job.sh").is_file() for row in before)
    done = again(site, ledger)
    assert done.recorded.to_submit == {row.job_id: 1 for row in before}
    rows = job_rows(ledger)
    assert [row.attempt_id for row in rows] == [row.attempt_id for row in before]
    assert {row.run_id for row in rows} == {done.run_id}
    assert not {row.folder for row in rows} & {row.folder for row in before}
    # Should a scheduler still be given the old scripts, they do not start.
    for row in before:
        late = subprocess.run(["bash", f"{row.folder}/job.sh"], capture_output=True, check=False)
        assert late.returncode == 143 and b"given up" in late.stderr
    each_ran_once_as(1, site, ledger)


@pytest.mark.fault(
    section="Submissions",
    fault="SIGKILL on this machine before the queue is started",
    promise="The jobs are queued again.",
)
def test_killed_before_the_queue_was_started_the_jobs_wait_their_turn_again(site: Site) -> None:
    ledger = killed(site, BEFORE_THE_START)
    assert [row.phase for row in job_rows(ledger)] == [SUBMITTING] * 3
    assert refresh(ledger).complaints == ()
    rows = job_rows(ledger)
    assert [(row.state, row.phase, row.verdict, row.token) for row in rows] == [(QUEUED, WAITING, None, "")] * 3
    assert "`repro submit` or `repro wait` submits it" in str(rows[0].reason)
    again(site, ledger)
    each_ran_once_as(1, site, ledger)


@pytest.mark.fault(
    section="Submissions",
    fault="SIGKILL on this machine before the queue is recorded; the refresh comes while the jobs run, or after they "
    "have ended",
    promise="The jobs are found and not run again.",
)
@pytest.mark.parametrize("when", ["while they run", "when all is over"])
def test_killed_before_the_queue_was_recorded_the_jobs_are_found_and_not_run_again(site: Site, when: str) -> None:
    site.behave("slow")
    ledger = killed(site, AFTER_THE_START)
    assert [row.phase for row in job_rows(ledger)] == [SUBMITTING] * 3
    if when == "when all is over":
        ((submission, *_),) = interrupted_submissions(ledger)
        wait_until(lambda: len(list(site.folder.glob("runs/*/*/end"))) == 3)
        wait_until(lambda: find_process(Path(submission.file).name) is None)
    assert settling.settle(ledger, ["slurm"]) == (False, [])
    assert settling.settle(ledger, ["local"]) == (True, [])
    assert settling.settle(ledger, ["local"]) == (False, [])
    refresh(ledger)
    assert again(site, ledger).recorded.to_submit == {}
    each_ran_once_as(1, site, ledger)


@pytest.mark.fault(
    section="Submissions",
    fault="SIGKILL on this machine, and a new submit without a refresh",
    promise="No job is submitted twice.",
)
def test_submitted_without_a_look_at_what_the_crash_left_nothing_is_sent_twice(site: Site) -> None:
    """What may be with a scheduler is under way until somebody has found out; `repro` always looks first."""
    site.behave("slow")
    ledger = killed(site, AFTER_THE_START)
    assert again(site, ledger).recorded.to_submit == {}
    each_ran_once_as(1, site, ledger)


@pytest.mark.fault(
    section="Submissions",
    fault="Two terminals submit at the same time on this machine",
    promise="Each case runs once.",
)
def test_of_two_submits_at_once_each_job_is_run_once(site: Site) -> None:
    words = ("submit", "figure-13", "--cluster", "here", "--scale", "cpu")
    both = [site.start(*words), site.start(*words)]
    said = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    ledger = new_ledger(site.folder)
    wait_until(lambda: all_ended(ledger))
    rows = job_rows(ledger)
    assert [(row.number, row.state) for row in rows] == [(1, "COMPLETED")] * 6
    assert sorted(site.started()) == sorted(row.case_name for row in rows)
    assert sorted("6 submitted" in line for line in (text.splitlines()[0] for text in said)) == [False, True], said


@pytest.mark.parametrize(
    ("machine", "host"),
    [(None, "elsewhere"), ("other machine/other boot/1", socket.gethostname())],
    ids=["another name", "another machine of the same name"],
)
def test_a_submission_of_another_machine_is_left_to_that_machine(site: Site, machine: str | None, host: str) -> None:
    ledger = killed(site, BEFORE_THE_START)
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(host=host, machine=machine))
    message = f"jobs were being started on {host}, which alone can see them"
    assert settling.settle(ledger, ["local"]) == (True, [message])
    assert [row.phase for row in job_rows(ledger)] == [SUBMITTING] * 3


def local_submission(ledger: Ledger, folder: Path, *names: str, machine: str | None = None) -> list[Path]:
    """Record jobs of this machine whose submitter was killed. Return their folders."""
    record_jobs(ledger, *names, run=replace(new_run(host=socket.gethostname(), pid=2**22 + 1), user=user_name()))
    file = f"{str(folder).replace('/', '-')}.queue.sh"  # no process has this in its command line
    folders = [folder / name for name in names]
    with ledger.writing() as session:
        for row, path in zip(job_rows(ledger), folders, strict=True):
            path.mkdir()
            changed = {"folder": str(path), "file": file, "machine": machine}
            session.execute(sa.update(Attempt).where(Attempt.id == row.attempt_id).values(**changed))
    return folders


def write_start(folder: Path, scheduler_id: str) -> None:
    (folder / "start").write_text(
        f"exit_code=0\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id={scheduler_id}\npid=1\n"
    )


@pytest.mark.parametrize("machine", [None, "id/earlier boot/1"], ids=["of an older release", "before a reboot"])
def test_a_submission_of_this_machine_without_processes_is_queued_again(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str | None
) -> None:
    monkeypatch.setattr(identity, "this_machine_identity", lambda: MachineIdentity("id", "this boot", "1"))
    local_submission(ledger, tmp_path, "a", "b", machine=machine)
    assert settling.settle(ledger, ["local"]) == (True, [])
    assert [(row.state, row.phase, row.token) for row in job_rows(ledger)] == [(QUEUED, WAITING, "")] * 2


def test_a_queue_is_found_by_the_first_of_its_jobs_that_started(ledger: Ledger, tmp_path: Path) -> None:
    folders = local_submission(ledger, tmp_path, *"abc")
    write_start(folders[1], "17_1")
    assert settling.settle(ledger, ["local"]) == (True, [])
    assert [row.scheduler_id for row in job_rows(ledger)] == ["17_0", "17_1", "17_2"]


def test_a_start_record_that_cannot_be_read_decides_nothing(ledger: Ledger, tmp_path: Path) -> None:
    folders = local_submission(ledger, tmp_path, "a", "b")
    os.mkfifo(folders[0] / "start")
    has_news, complaints = settling.settle(ledger, ["local"])
    assert has_news and [str(folders[0] / "start") in complaint for complaint in complaints] == [True]
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}


# ---- jobs of Slurm -------------------------------------------------------------------------------------------


def slurm_submission(
    ledger: Ledger, host: str | None = None, pid: int = 2**22 + 1, user: str | None = None, token: str = "feed"
) -> None:
    """Three jobs of which the ledger does not know whether Slurm has them."""
    run = new_run(host=host or socket.gethostname(), pid=pid)
    run = replace(run, user=user or user_name(), pid_start_ticks=start_ticks(pid))
    record_jobs(ledger, *(f"{token}-{name}" for name in "abc"), token=token, run=run, scheduler="slurm")


def slurm_job(
    job_id: str, comment: str, source: Source = "squeue", user: str = "", at: datetime | None = None
) -> JobRecord:
    return JobRecord(
        job_id=job_id,
        state="PENDING",
        reason="",
        nodes="",
        exit_code=None,
        signal=None,
        comment=comment,
        started_at=None,
        ended_at=None,
        source=source,
        user=user,
        submitted_at=at,
    )


def slurm_answers(
    monkeypatch: pytest.MonkeyPatch,
    *job_ids: str,
    complaint: str | None = None,
    comment: str = "repro:feed",
    lists_queue: bool = True,
) -> list[list[str]]:
    """What Slurm is asked, answered with these jobs."""
    asked: list[list[str]] = []

    def find_by_comments(comments: Collection[str]) -> QueryAnswer:
        asked.append(list(comments))
        records = {job_id: slurm_job(job_id, comment) for job_id in job_ids}
        return QueryAnswer(records, (complaint,) if complaint else (), lists_queue=lists_queue)

    reach_a_cluster(monkeypatch)
    monkeypatch.setattr(settling, "find_by_comments", find_by_comments)
    monkeypatch.setattr(settling, "_observe_slurm", lambda _ledger, _rows: ({}, []))
    return asked


def reach_a_cluster(monkeypatch: pytest.MonkeyPatch, name: str = "tests@c1:6817") -> None:
    monkeypatch.setattr(settling, "cluster_identity", lambda: name)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def test_a_submission_that_slurm_has_is_found_by_its_token(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_submission(ledger)
    asked = slurm_answers(monkeypatch, "17_0", "17_1", "17_2")
    refresh(ledger)
    assert asked == [["repro:feed"]]
    assert [(row.scheduler_id, row.phase, row.state) for row in job_rows(ledger)] == [
        (f"17_{n}", WAITING, "PENDING") for n in range(3)
    ]
    refresh(ledger)
    assert asked == [["repro:feed"]]


def test_a_submission_that_slurm_surely_does_not_have_waits_its_turn_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_answers(monkeypatch)
    refresh(ledger)
    rows = job_rows(ledger)
    assert {(row.state, row.phase, row.verdict, row.scheduler_id) for row in rows} == {(QUEUED, WAITING, None, None)}
    assert {row.reason for row in rows} == {settling.WHY_QUEUED}
    (attempt,) = job_history(ledger, rows[0].job_id)
    assert [event.kind for event in attempt.events] == ["run", "queued"]


def test_every_cut_off_submission_is_asked_for_at_once_and_told_apart(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_submission(ledger, token="f00d")
    asked = slurm_answers(monkeypatch, "17_[0-2]", comment="repro:f00d")
    refresh(ledger)
    assert asked == [["repro:feed", "repro:f00d"]]
    assert [row.scheduler_id for row in job_rows(ledger)] == [None] * 3 + ["17_0", "17_1", "17_2"]


def test_a_record_that_cannot_be_read_delays_only_its_own_submission(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slurm_submission(ledger)
    slurm_submission(ledger, token="f00d")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(slurm_cluster="tests@c1:6817"))
        session.execute(sa.update(Attempt).where(Attempt.token == "feed").values(folder=str(tmp_path)))
    os.mkfifo(tmp_path / "claimed")
    slurm_answers(monkeypatch, "17_[0-2]", comment="repro:f00d")
    assert [f"{tmp_path}/claimed" in complaint for complaint in refresh(ledger).complaints] == [True]
    assert [row.scheduler_id for row in job_rows(ledger)] == [None] * 3 + ["17_0", "17_1", "17_2"]


@pytest.mark.fault(
    section="Submissions",
    fault="Slurm accepts one submission twice, and `repro` is killed before it notices",
    promise="The next command cancels the later job.",
)
def test_of_one_submission_that_slurm_has_taken_twice_the_later_is_cancelled(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[list[str]] = []
    monkeypatch.setattr("orchestrator.launch.sbatch.cancel_jobs", lambda ids: cancelled.append(list(ids)))
    slurm_submission(ledger)
    slurm_answers(monkeypatch, "100_0", "100_1", "99_0", "99_1")
    refresh(ledger)
    assert [row.scheduler_id for row in job_rows(ledger)] == ["99_0", "99_1", "99_2"]
    assert cancelled == [["100"]]


@pytest.mark.fault(
    section="Job states",
    fault="One of several sources is unreachable while an interrupted submission is looked up",
    promise="The attempt does not change.",
)
def test_nothing_is_concluded_where_slurm_could_not_be_asked_for_everything(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_answers(monkeypatch, complaint="accounting is away")
    complaints = refresh(ledger).complaints
    assert complaints[0] == "accounting is away" and "submission feed reached the scheduler" in complaints[1]
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}


@pytest.mark.fault(
    section="Job states",
    fault="No source answers",
    promise="The attempt does not change.",
)
def test_nothing_is_concluded_from_a_scheduler_that_does_not_answer(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)

    def away(_comments: Collection[str]) -> QueryAnswer:
        raise Unreachable("squeue: no answer")

    reach_a_cluster(monkeypatch)
    monkeypatch.setattr(settling, "find_by_comments", away)
    assert refresh(ledger).complaints == ("squeue: no answer",)
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}


def test_a_submission_that_is_being_made_is_left_alone(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = slurm_answers(monkeypatch)
    with subprocess.Popen(["bash", "-c", "read -r _; : repro"], stdin=subprocess.PIPE) as submitter:
        wait_until(lambda: b"repro" in Path(f"/proc/{submitter.pid}/cmdline").read_bytes())
        slurm_submission(ledger, pid=submitter.pid)
        assert refresh(ledger).complaints == ()
        assert (asked, {row.phase for row in job_rows(ledger)}) == ([], {SUBMITTING})
        submitter.communicate(b"\n")
    refresh(ledger)
    assert asked == [["repro:feed"]]


@pytest.mark.fault(
    section="Submissions",
    fault="`repro` is killed, and another process gets its process id",
    promise="The other process delays no submission.",
)
def test_a_process_that_has_the_number_of_a_sender_that_is_gone_keeps_nothing_waiting(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = slurm_answers(monkeypatch)
    with subprocess.Popen(["sleep", "60"]) as younger:
        slurm_submission(ledger, pid=younger.pid)
        with ledger.writing() as session:
            session.execute(sa.update(Attempt).values(pid_start_ticks=1))
        refresh(ledger)
        younger.kill()
    assert asked == [["repro:feed"]] and {row.state for row in job_rows(ledger)} == {QUEUED}


def test_an_sbatch_that_outlives_its_repro_is_waited_for(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_submission(ledger)
    asked = slurm_answers(monkeypatch)
    with subprocess.Popen(["bash", "-c", "read -r _; : --comment=repro:feed"], stdin=subprocess.PIPE) as sbatch:
        wait_until(lambda: b"feed" in Path(f"/proc/{sbatch.pid}/cmdline").read_bytes())
        refresh(ledger)
        assert (asked, {row.phase for row in job_rows(ledger)}) == ([], {SUBMITTING})
        sbatch.communicate(b"\n")
    refresh(ledger)
    assert {row.state for row in job_rows(ledger)} == {QUEUED}


@pytest.mark.fault(
    section="Job states",
    fault="A submission is interrupted on another login node, whose clock is right, ahead or behind",
    promise="It is looked for after 5 minutes by this machine's clock since boot.",
)
@pytest.mark.parametrize("clock", [timedelta(0), timedelta(hours=1), -timedelta(hours=1)])
def test_a_submission_from_another_login_node_is_given_time_whatever_its_clock_says(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, clock: timedelta
) -> None:
    slurm_submission(ledger, host="another", pid=os.getpid())
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(created_at=now() + clock))
    asked = slurm_answers(monkeypatch)
    refresh(ledger)
    assert asked == []
    later = seconds_since_boot() + timedelta(minutes=5).total_seconds()
    monkeypatch.setattr(settling, "seconds_since_boot", lambda: later)
    refresh(ledger)
    assert asked == [["repro:feed"]]


@pytest.mark.fault(
    section="Job states",
    fault="A submission is interrupted in another container of this host",
    promise="It is looked for after 5 minutes.",
)
def test_a_submission_in_another_container_of_this_host_is_given_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    with ledger.writing() as session:
        elsewhere = str(replace(this_machine_identity(), pid_namespace="1"))
        session.execute(sa.update(Attempt).values(machine=elsewhere, pid_start_ticks=1))
    asked = slurm_answers(monkeypatch)
    refresh(ledger)
    assert asked == [] and {row.phase for row in job_rows(ledger)} == {SUBMITTING}


@pytest.mark.fault(
    section="Job states",
    fault="A submission to another Slurm cluster is interrupted",
    promise="It is not looked up here.",
)
def test_a_submission_to_another_slurm_cluster_is_not_looked_for_here(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_submission(ledger, token="f00d")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(slurm_cluster="other@c9:6817"))
    asked = slurm_answers(monkeypatch)
    (complaint,) = refresh(ledger).complaints
    assert "other@c9:6817" in complaint and asked == []
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}


NO_COMMENTS = "sacct: accounting keeps no comments here"


def test_where_comments_are_not_kept_the_records_of_the_jobs_themselves_tell(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slurm_submission(ledger)
    for row, claimed in zip(
        job_rows(ledger), ("1000000_0", "999999_1", ""), strict=True
    ):  # accepted twice: the first counts
        folder = tmp_path / row.job_id
        folder.mkdir()
        (folder / "claimed").write_text(f"{claimed}\n")
        with ledger.writing() as session:
            moved = sa.update(Attempt).where(Attempt.id == row.attempt_id).values(folder=str(folder))
            session.execute(moved)
    slurm_answers(monkeypatch, complaint=NO_COMMENTS)
    refresh(ledger)
    assert [row.scheduler_id for row in job_rows(ledger)] == ["999999_0", "999999_1", "999999_2"]


@pytest.mark.fault(
    section="Job states",
    fault="Accounting keeps no comments, and an interrupted submission is not cancelled",
    promise="It is given up after 5 minutes. The next command submits it again.",
)
def test_where_comments_are_not_kept_and_no_job_left_a_record_the_submission_is_given_up_in_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_answers(monkeypatch, complaint=NO_COMMENTS)
    assert any("not known yet" in complaint for complaint in refresh(ledger).complaints)
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}
    later = seconds_since_boot() + timedelta(minutes=5).total_seconds()
    monkeypatch.setattr(settling, "seconds_since_boot", lambda: later)
    refresh(ledger)
    assert {row.state for row in job_rows(ledger)} == {QUEUED}


def test_without_a_complete_list_of_the_queue_no_submission_is_given_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_submission(ledger)
    slurm_answers(monkeypatch, complaint="squeue: Something new", lists_queue=False)
    refresh(ledger)
    later = seconds_since_boot() + timedelta(minutes=5).total_seconds()
    monkeypatch.setattr(settling, "seconds_since_boot", lambda: later)
    assert any("not known yet" in complaint for complaint in refresh(ledger).complaints)
    assert {row.phase for row in job_rows(ledger)} == {SUBMITTING}


@pytest.mark.fault(
    section="Job states",
    fault="Accounting keeps no comments, and a record has no valid job id",
    promise="The record proves nothing.",
)
@pytest.mark.parametrize("claimed", ["", "17; rm -rf /", "$(id)", "17_x", "a" * 200, "17\udcff"])
def test_what_is_no_job_id_in_a_record_is_no_proof(tmp_path: Path, claimed: str) -> None:
    (tmp_path / "claimed").write_bytes(os.fsencode(claimed))
    assert settling.recorded_ids([str(tmp_path)]) == set()


@pytest.mark.fault(
    section="Submissions",
    fault="Another user's submission was interrupted",
    promise="It is reported and left to that user, because a site may hide the jobs of one user from another.",
)
def test_a_submission_that_another_users_crash_cut_off_is_left_to_that_user(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site may hide one user's jobs from another: that we do not see it proves nothing."""
    slurm_submission(ledger, user="somebody-else")
    asked = slurm_answers(monkeypatch)
    assert refresh(ledger).complaints == (
        "a submission of somebody-else was cut off; somebody-else's next command finds out what became of it",
    )
    assert asked == [] and {row.phase for row in job_rows(ledger)} == {SUBMITTING}


@pytest.mark.fault(
    section="Job states",
    fault="Slurm reuses a job id, with every combination of comment, user and time",
    promise="The job is ours only with our token, or with our user and time.",
)
def test_a_job_id_that_slurm_gave_out_again_is_not_taken_for_ours(ledger: Ledger) -> None:
    record_jobs(ledger, "a", scheduler="slurm")
    row = replace(job_rows(ledger)[0], scheduler_id="17_0", user="ann")
    rows, then = {"17_0": row}, row.created_at.replace(tzinfo=timezone.utc)
    for theirs, ours in (
        (slurm_job("17_0", "repro:token"), True),
        (slurm_job("17_0", "repro:another"), False),
        (slurm_job("17_0", "their own"), False),
        (slurm_job("17_0", ""), False),
        (slurm_job("17", "repro:token"), True),
        (slurm_job("18", "repro:token"), False),
        # Accounting may have kept no comment: then who submitted it, and when, decides.
        (slurm_job("17_0", "", "sacct", "ann", then), True),
        (slurm_job("17_0", "", "sacct", "bob", then), False),
        (slurm_job("17_0", "", "sacct", "ann", then.replace(year=2020)), False),
        (slurm_job("17_0", "repro:another", "sacct", "ann", then), False),
    ):
        assert owner_check(rows)(theirs) is ours, theirs


@pytest.mark.fault(
    section="Job states",
    fault="The folder has an end record of another job",
    promise="The record is ignored.",
)
def test_the_end_record_of_another_job_in_the_same_folder_says_nothing(ledger: Ledger, tmp_path: Path) -> None:
    record_jobs(ledger, "a", scheduler="slurm")
    row = replace(job_rows(ledger)[0], folder=str(tmp_path), scheduler_id="17_0")
    assert settling._from_end_record(row) is None
    for scheduler_id, known in (("16_0", False), ("17_0", True)):
        end = f"exit_code=3\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id={scheduler_id}\npid=1\n"
        (tmp_path / "end").write_text(end)
        assert (settling._from_end_record(row) is not None) is known
    seen = settling._from_end_record(row)
    assert seen is not None and (seen.state, seen.exit_code, seen.nodes) == ("FAILED", 3, "n1")
    assert (seen.seen_via, seen.reason) == ("its own record", "from the job's own end record")
