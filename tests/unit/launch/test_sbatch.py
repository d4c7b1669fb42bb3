"""Attempts that wait their turn, and a scheduler that is full, slow, away, or says no: each job is had once."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import sqlalchemy as sa

from orchestrator.catalog.experiment import ExpectedOutcome
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.files import Unreadable
from orchestrator.launch import sbatch
from orchestrator.launch.run_options import (
    CanaryJob,
    FileCheck,
    FollowedJob,
    RunOptions,
    RunPlan,
)
from orchestrator.launch.sbatch import PAUSES_S, Callbacks, Sent, send
from orchestrator.launch.submit import Submitted, submit
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import AttemptRow, JobRow
from orchestrator.ledger.runs import (
    Submitter,
    claim,
    queued_attempts,
    record_never_submitted,
    record_queued_again,
    record_submission,
    run_record,
)
from orchestrator.ledger.tables import ENDED, FAILED, NEVER_SUBMITTED, QUEUED, SUBMITTING, VERIFIED, Attempt
from orchestrator.megatron.model import Layout
from orchestrator.megatron.programs.base import with_log_checks
from orchestrator.megatron.spec import ComputedProducts, training_spec
from orchestrator.planning.plan import Plan
from orchestrator.reading.failure import Failure
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

pytestmark = pytest.mark.slow

QUEUE_FULL = "QOSMaxSubmitJobPerUserLimit"


@dataclass
class Sender:
    """Six cases of figure 13 on a cluster: one array, unless `apart`, which makes each ask for another time."""

    site: Site
    slurm: Slurm
    ledger: Ledger
    said: list[str]

    def cluster(self) -> Cluster:
        return self.site.cluster("there")

    def plans(self, where: str | None = None, *, apart: bool = False) -> list[Plan]:
        plans = self.site.plans(where)
        if not apart:
            return plans
        return [replace(p, resources=replace(p.resources, time_limit=f"0:1{n}:00")) for n, p in enumerate(plans)]

    def submit(self, request: RunOptions | None = None, where: str | None = None, *, apart: bool = False) -> Submitted:
        plans = self.plans(where, apart=apart)
        return submit(plans, self.cluster(), self.ledger, self.site.folders, [], request, self.said.append)

    def send(self, run_id: str) -> Sent:
        return send(self.ledger, run_id, Callbacks(self.said.append))

    def rows(self) -> list[JobRow]:
        """The smallest first: those with a batch of 4."""
        return sorted(job_rows(self.ledger), key=lambda row: row.attempt_id)

    def end(self, row: JobRow, verdict: str | None, state: str = "COMPLETED") -> None:
        with self.ledger.writing() as session:
            change = {"phase": ENDED, "state": state, "verdict": verdict}
            session.execute(sa.update(Attempt).where(Attempt.id == row.attempt_id).values(**change))


@pytest.fixture
def sender(site: Site, monkeypatch: pytest.MonkeyPatch) -> Sender:
    (site.folder / "clusters" / "there.yaml").write_text(PROFILE)
    monkeypatch.setattr(sbatch, "PAUSES_S", (0.001, 0.001))
    slurm = Slurm.on_path(site.folder.parent / "bin", monkeypatch)
    return Sender(site, slurm, new_ledger(site.folder), [])


def states(rows: Sequence[JobRow]) -> list[str]:
    return [row.state for row in rows]


# ---- all is well ---------------------------------------------------------------------------------------------


def test_jobs_that_ask_for_the_same_are_one_submission_throttled_by_the_profile(sender: Sender) -> None:
    done = sender.submit()
    assert (done.sent.ids, done.sent.jobs, done.sent.queued) == (["100"], 6, 0)
    assert sender.slurm.options() == ["--array=0-5%4"]
    rows = sender.rows()
    assert [row.scheduler_id for row in rows] == [f"100_{n}" for n in range(6)]
    assert states(rows) == ["PENDING"] * 6 and {f"repro:{row.token}" for row in rows} == set(sender.slurm.taken())
    assert [row.spec.point["gbs"] for row in rows] == [4, 4, 4, 16, 16, 16]
    assert training_spec(rows[0].spec).computes == ComputedProducts(causal_attention=True, skips_last_product=True)


def test_jobs_that_ask_for_different_things_are_submitted_one_by_one_without_an_array(sender: Sender) -> None:
    done = sender.submit(where="gbs=4", apart=True)
    assert done.sent.ids == ["100", "101", "102"] and sender.slurm.options() == ["", "", ""]
    assert [row.scheduler_id for row in sender.rows()] == ["100", "101", "102"]
    assert len(set(sender.slurm.comments())) == 3


@pytest.mark.parametrize(
    ("accepting", "expected"),
    [("Tests", "tests@c1:6817"), ("other", "other@c1:6817"), ("unknown", "unknown@")],
)
def test_a_job_belongs_to_the_cluster_that_accepted_it(sender: Sender, accepting: str, expected: str) -> None:
    assert sender.submit(where="pp=1,gbs=4").sent.ids == ["100"]
    sender.slurm.accepts_on(accepting)
    assert sender.submit(where="pp=2,gbs=4").sent.ids == ["101"]
    assert [row.slurm_cluster for row in sender.rows()] == ["tests@c1:6817", expected]


def test_the_cluster_that_a_script_names_is_asked(sender: Sender) -> None:
    options = '"0:10:00", sbatch: [--cluster=first, --clusters=other]'
    (sender.site.folder / "clusters" / "there.yaml").write_text(PROFILE.replace('"0:10:00"', options))
    sender.submit(where="pp=1,gbs=4")
    assert [row.slurm_cluster for row in sender.rows()] == ["other@c1:6817"]


def test_jobs_behind_a_canary_check_the_records_of_the_smallest_job(sender: Sender) -> None:
    submitted = sender.submit(RunOptions(canary=True))
    smallest = sender.plans()[0]
    assert submitted.canary == smallest.identity
    folder = sender.site.folders.job(submitted.run_id, smallest.slug)
    expected = with_log_checks(CanaryJob(smallest.label, folder), 8, Layout(4, 4, 1, 1, 4))
    files = list(sender.site.folders.submissions(submitted.run_id).glob("*.array.sh"))
    assert len(files) == 2  # the canary, and the others
    for script in (file.read_text() for file in files):
        assert f"canary={shlex.quote(str(folder))}" in script
        assert f"'its canary, '{shlex.quote(smallest.label)}" in script
        checks = [*expected.checks, FileCheck("log.txt", str(expected.whole))]
        assert script.count("grep -aEqs") == len(checks) and "warm_up=2 " in script
        for check in checks:
            assert f'grep -aEqs {shlex.quote(check.pattern)} "$1/{check.file}"' in script


# ---- a full queue --------------------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Submissions",
    fault="The queue is full",
    promise="Fewer jobs are submitted at a time. The rest stays queued.",
)
def test_a_full_queue_takes_fewer_at_a_time_and_the_rest_waits_its_turn(sender: Sender) -> None:
    sender.slurm.has_room_for(2)
    done = sender.submit()
    assert (done.sent.jobs, done.sent.queued, len(done.sent.ids)) == (2, 4, 2)
    assert done.sent.why is not None and QUEUE_FULL in done.sent.why
    # What was cut off an array goes behind it, so that together they keep its limit.
    assert sender.slurm.options() == [
        "--array=0-5%4",
        "--array=0-2%4",
        "--array=0%4",
        "--array=1%4 --dependency=afterany:100",
        "--array=2%4 --dependency=afterany:101",
    ]
    rows = sender.rows()
    assert [(row.state, row.scheduler_id) for row in rows[:2]] == [("PENDING", "100_0"), ("PENDING", "101_1")]
    for row in rows[2:]:
        assert (row.state, row.token, row.verdict, row.scheduler_id) == (QUEUED, "", None, None)
    assert QUEUE_FULL in str(rows[2].reason)


@pytest.mark.fault(
    section="Submissions",
    fault="The queue stays full for a while",
    promise="The rest is submitted once, by the next `repro submit` or by a command that waits.",
    count=0,
)
def test_what_waited_its_turn_is_sent_once_when_there_is_room(sender: Sender) -> None:
    sender.slurm.has_room_for(2)
    run_id = sender.submit().run_id
    before = len(sender.slurm.calls())
    assert sender.send(run_id).queued == 4 and states(sender.rows())[2:] == [QUEUED] * 4
    sender.slurm.has_room_for(10)
    sent = sender.send(run_id)
    assert (sent.jobs, sent.queued, sent.why) == (4, 0, None)
    assert sender.slurm.options()[-1] == "--array=2-5%4 --dependency=afterany:101"
    rows = sender.rows()
    assert states(rows) == ["PENDING"] * 6
    assert [row.scheduler_id for row in rows] == ["100_0", "101_1", *(f"102_{n}" for n in range(2, 6))]
    asked = len(sender.slurm.calls())
    assert asked > before and sender.send(run_id) == Sent() and len(sender.slurm.calls()) == asked
    assert len(sender.slurm.taken()) == 3


def test_the_rest_of_an_array_waits_for_the_last_part_where_ids_become_longer(sender: Sender) -> None:
    sender.slurm.counts_from(999)
    sender.slurm.has_room_for(2)
    run_id = sender.submit().run_id
    sender.slurm.has_room_for(10)
    sender.send(run_id)
    assert sender.slurm.options()[-1] == "--array=2-5%4 --dependency=afterany:1000"


def test_behind_a_full_queue_nothing_larger_is_tried(sender: Sender) -> None:
    sender.slurm.has_room_for(1)
    done = sender.submit(apart=True, where="gbs=4")
    assert (done.sent.jobs, done.sent.queued) == (1, 2) and len(sender.slurm.calls()) == 2
    assert states(sender.rows()) == ["PENDING", QUEUED, QUEUED]


# ---- a scheduler that is slow or away ------------------------------------------------------------------------


def test_a_submission_that_was_taken_though_the_answer_was_lost_is_recorded_and_not_made_again(sender: Sender) -> None:
    sender.slurm.then("late")
    done = sender.submit()
    assert done.sent.ids == ["100"] and len(sender.slurm.calls()) == len(sender.slurm.taken()) == 1
    assert [row.scheduler_id for row in sender.rows()] == [f"100_{n}" for n in range(6)]
    assert len(sender.said) == 1 and "imed out" in sender.said[0] and "asking again" in sender.said[0]


@pytest.mark.fault(
    section="Submissions",
    fault="The controller did not accept the job",
    promise="The job is submitted again under the same token.",
)
def test_a_submission_that_was_not_taken_is_made_again_under_the_same_token(sender: Sender) -> None:
    sender.slurm.then("away")
    done = sender.submit()
    assert done.sent.ids == ["100"] and len(sender.slurm.taken()) == 1
    first, second = sender.slurm.calls()
    assert first == second and states(sender.rows()) == ["PENDING"] * 6


@pytest.mark.fault(
    section="Submissions",
    fault="Slurm accepts one submission twice",
    promise="The first job is kept, the later one is cancelled.",
)
def test_of_a_submission_that_was_taken_twice_one_is_kept_and_the_other_cancelled(sender: Sender) -> None:
    sender.slurm.then("twice")
    assert sender.submit().sent.ids == ["100"]
    assert sender.slurm.cancelled() == ["101"] and len(sender.slurm.calls()) == 1


@pytest.mark.fault(
    section="Submissions",
    fault="Slurm accepts a submission, and accepts the unanswered one before it late",
    promise="The first job is kept, the later one is cancelled.",
)
@pytest.mark.parametrize("first", [100, 999])
def test_a_copy_that_slurm_accepts_after_the_repetition_is_cancelled(sender: Sender, first: int) -> None:
    sender.slurm.counts_from(first)
    sender.slurm.then("away", "both")
    assert sender.submit().sent.ids == [str(first)]
    assert sender.slurm.cancelled() == [str(first + 1)] and len(sender.slurm.calls()) == 2
    assert {str(row.scheduler_id).partition("_")[0] for row in sender.rows()} == {str(first)}


@pytest.mark.fault(
    section="Submissions",
    fault="A restarted controller answers before it has read the job that it accepted",
    promise="It is asked twice in a row before the job is submitted again. The job is submitted once.",
)
@pytest.mark.parametrize(
    "answers", [("empty",), ("silent", "empty"), ("empty", "silent", "empty")], ids=["up", "down", "down again"]
)
def test_a_restarted_controller_is_asked_twice_before_a_repetition(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sbatch, "PAUSES_S", (0.001,) * 4)
    sender.slurm.then("late")
    sender.slurm.then_lists(*answers)
    assert sender.submit().sent.ids == ["100"]
    assert len(sender.slurm.calls()) == len(sender.slurm.taken()) == 1 and sender.slurm.cancelled() == []


@pytest.mark.fault(
    section="Submissions",
    fault="A restarted controller accepts the repetition, and does not answer afterwards",
    promise="The accepted job is recorded.",
)
def test_a_repetition_that_was_accepted_by_a_controller_that_is_away_again_is_recorded(sender: Sender) -> None:
    sender.slurm.then("away")
    sender.slurm.then_lists("empty", "empty", "silent")
    assert sender.submit().sent.ids == ["100"]
    assert len(sender.slurm.calls()) == 2 and states(sender.rows()) == ["PENDING"] * 6


@pytest.mark.fault(
    section="Submissions",
    fault="The controller stays unreachable",
    promise="The command ends with exit code 3 after 120 s. The next command recovers the last submission.",
)
def test_patience_ends_and_what_was_asked_last_is_left_to_the_next_command(sender: Sender) -> None:
    sender.slurm.then("away")
    (sender.slurm.folder / "silent").touch()
    with pytest.raises(Unreachable) as caught:
        sender.submit(where="gbs=4", apart=True)
    assert caught.value.exit_code == 3 and len(sender.slurm.calls()) == 1 and sum(PAUSES_S) == 120
    assert states(sender.rows()) == ["SUBMITTING", QUEUED, QUEUED]
    assert len(sender.said) == 2


@pytest.mark.fault(
    section="Submissions",
    fault="Ctrl-C while `repro` waits for a slow scheduler",
    promise="The command ends at once. The next command recovers the submission.",
)
def test_ctrl_c_while_a_slow_scheduler_is_waited_for_does_not_wait_for_it(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch, "PAUSES_S", (600.0,))
    sender.slurm.has_room_for(0)
    run_id = sender.submit(where="gbs=4", apart=True).run_id
    sender.slurm.has_room_for(10)
    sender.slurm.then("late")
    answers = iter([False, True])
    with pytest.raises(Unreachable):
        send(sender.ledger, run_id, Callbacks(sender.said.append, lambda: next(answers)))
    assert states(sender.rows()) == ["SUBMITTING", QUEUED, QUEUED], "the queue, which has the job, was not asked"


@pytest.mark.fault(
    section="Submissions",
    fault="Ctrl-C between two submissions",
    promise="The rest stays queued.",
)
def test_interrupted_between_two_submissions_the_rest_waits_its_turn(sender: Sender) -> None:
    sender.slurm.has_room_for(0)
    run_id = sender.submit(where="gbs=4", apart=True).run_id
    sender.slurm.has_room_for(10)
    answers = iter([False, True, True])
    sent = send(sender.ledger, run_id, Callbacks(sender.said.append, lambda: next(answers)))
    assert (sent.jobs, sent.queued) == (1, 2) and states(sender.rows()) == ["PENDING", QUEUED, QUEUED]


# ---- a scheduler that says no --------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Submissions",
    fault="Slurm refuses a submission",
    promise="`repro` prints Slurm's message and ends with exit code 2. Later submissions are recorded as not "
    "submitted.",
)
def test_what_is_behind_a_refused_submission_is_known_not_to_have_been_submitted(sender: Sender) -> None:
    sender.slurm.then("take", "refuse")
    with pytest.raises(ReproError, match="[Pp]artition") as caught:
        sender.submit(where="gbs=4", apart=True)
    assert caught.value.exit_code == 2 and len(sender.slurm.calls()) == 2
    taken, refused, untried = sender.rows()
    assert (taken.state, taken.verdict) == ("PENDING", None)
    assert (refused.state, refused.verdict, refused.failure) == (NEVER_SUBMITTED, FAILED, "refused")
    assert "artition" in str(refused.verdict_reason)
    assert (untried.state, untried.failure) == (NEVER_SUBMITTED, "not-submitted")
    assert untried.verdict_reason == "not submitted, because the submission before it failed"
    # Nothing was spent: the same command submits both, at once.
    done = sender.submit(where="gbs=4", apart=True)
    assert sorted(done.recorded.to_submit) == sorted([refused.job_id, untried.job_id])
    assert sender.slurm.options()[-2:] == ["", ""] and states(sender.rows()) == ["PENDING"] * 3


def test_the_hint_of_a_refusal_names_the_setting_of_the_run_that_slurm_refuses(sender: Sender) -> None:
    for settings, place in (("slurm.qos=high",), "the profile"), (("slurm.partition=no",), "--set slurm.partition=no"):
        sender.slurm.then("refuse")
        with pytest.raises(ReproError, match=f"Hint: correct `partition` in {place}"):
            sender.submit(RunOptions(settings=settings), where="pp=1,gbs=4")


@pytest.mark.fault(
    section="Submissions",
    fault="A file cannot be read while a job is submitted",
    promise="The attempt and those behind it are not recorded as refused. The next command recovers the submission.",
)
def test_a_file_that_cannot_be_read_refuses_no_submission(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> str:
        raise Unreadable(Problem("cannot be read (Stale file handle)", "denied-nodes:"))

    monkeypatch.setattr("orchestrator.launch.executors.SlurmScriptExecutor.submit_script", unreadable)
    with pytest.raises(Unreadable):
        sender.submit(where="gbs=4", apart=True)
    assert states(sender.rows()) == ["SUBMITTING", QUEUED, QUEUED]


def test_a_submission_whose_record_cannot_be_written_is_not_made(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise ReproError(Problem("no space left on the device", "runs:"))

    monkeypatch.setattr(sbatch, "write_sent", full)
    with pytest.raises(ReproError, match="no space left"):
        sender.submit(where="gbs=4", apart=True)
    assert sender.slurm.calls() == [] and states(sender.rows()) == [NEVER_SUBMITTED] * 3


@pytest.mark.fault(
    section="Submissions",
    fault="A command submits the queued attempts of another user",
    promise="It is refused, and the attempts stay queued for that user.",
)
def test_queued_attempts_of_another_user_stay_queued(sender: Sender) -> None:
    sender.slurm.has_room_for(0)
    run_id = sender.submit(where="gbs=4", apart=True).run_id
    sender.slurm.has_room_for(10)
    with sender.ledger.writing() as session:
        session.execute(sa.update(Attempt).values(user="somebody-else"))
    with pytest.raises(ReproError, match="is a script of somebody-else"):
        sender.send(run_id)
    assert states(sender.rows()) == [QUEUED] * 3 and sender.slurm.taken() == []


# ---- two senders ---------------------------------------------------------------------------------------------


def stale(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[AttemptRow]]:
    """A run of which this process believes that everything waits its turn, whatever others do."""
    sender.slurm.has_room_for(0)
    run_id = sender.submit().run_id
    sender.slurm.has_room_for(10)
    turns = queued_attempts(sender.ledger, run_id=run_id)
    assert len(turns) == 6
    monkeypatch.setattr(sbatch, "queued_attempts", lambda *_, **__: turns)
    return run_id, turns


@pytest.mark.fault(
    section="Submissions",
    fault="Another process claims a queued attempt first",
    promise="The attempt is left to that process.",
)
def test_what_another_sender_has_claimed_meanwhile_is_left_to_it(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, turns = stale(sender, monkeypatch)
    before = len(sender.slurm.calls())
    theirs = Submitter("another-host", "me", 77)
    assert claim(sender.ledger, [turn.attempt_id for turn in turns], "theirs", theirs)
    assert sender.send(run_id).jobs == 0 and len(sender.slurm.calls()) == before
    assert {(row.phase, row.token, row.host) for row in sender.rows()} == {(SUBMITTING, "theirs", "another-host")}


def test_a_local_queue_that_another_sender_has_claimed_is_not_started_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, started = new_ledger(site.folder), list[object]()
    monkeypatch.setattr("orchestrator.launch.submit.send", lambda *_: Sent())
    monkeypatch.setattr(sbatch, "start_queue", started.append)
    run_id = submit(site.plans("gbs=4"), site.cluster(), ledger, site.folders, []).run_id
    turns = queued_attempts(ledger, run_id=run_id)
    assert claim(ledger, [turn.attempt_id for turn in turns], "theirs", Submitter("another-host", "me", 77))
    monkeypatch.setattr(sbatch, "queued_attempts", lambda *_, **__: turns)
    assert send(ledger, run_id, Callbacks(lambda _: None)) == Sent() and started == []
    assert {(row.phase, row.token) for row in job_rows(ledger)} == {(SUBMITTING, "theirs")}


@pytest.mark.fault(
    section="Submissions",
    fault="An attempt is cancelled while others are submitted",
    promise="It is not submitted. The others are.",
)
def test_what_was_cancelled_in_its_turn_meanwhile_is_not_sent_and_the_others_are_later(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, turns = stale(sender, monkeypatch)
    record_never_submitted(sender.ledger, [turns[1].attempt_id], "cancelled in its turn", "cancelled")
    before = len(sender.slurm.calls())
    assert sender.send(run_id).jobs == 0 and len(sender.slurm.calls()) == before
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{sender.slurm.folder}:{os.environ['PATH']}")
    assert sender.send(run_id).jobs == 5 and sender.slurm.options()[-1] == "--array=0,2-5%4"
    assert states(sender.rows()) == ["PENDING", NEVER_SUBMITTED, *["PENDING"] * 4]


def test_a_sender_leaves_its_host_and_process_with_what_it_claims(sender: Sender) -> None:
    sender.submit(where="gbs=4")
    with sender.ledger.reading() as session:
        found = set(session.execute(sa.select(Attempt.host, Attempt.pid)).all())
    assert found == {(socket.gethostname(), os.getpid())}


# ---- what jobs wait for --------------------------------------------------------------------------------------


def test_jobs_begin_after_those_that_were_named(sender: Sender) -> None:
    sender.submit(RunOptions(after=("55", "56_3", "55")))
    assert sender.slurm.options() == ["--array=0-5%4 --dependency=afterany:55,afterany:56_3"]


def test_the_canary_goes_alone_and_the_others_wait_for_its_end_however_it_ends(sender: Sender) -> None:
    done = sender.submit(RunOptions(canary=True, after=("55",)))
    smallest = sender.rows()[0]
    assert (done.canary, smallest.case_name) == (smallest.job_id, "pp=1,tp=4,gbs=4")
    assert sender.slurm.options() == [
        "--array=0%4 --dependency=afterany:55",
        "--array=0-4%4 --dependency=afterany:55,afterany:100_0",
    ]


def test_no_more_jobs_than_asked_for_at_once_in_an_array_and_across_submissions(sender: Sender) -> None:
    sender.submit(RunOptions(max_parallel=2), where="gbs=4")
    sender.submit(RunOptions(max_parallel=2), where="gbs=16", apart=True)
    assert sender.slurm.options() == [
        "--array=0-2%2",
        "",
        "--dependency=afterany:101",
        "--dependency=afterany:102",
    ]


def test_asked_for_more_at_once_than_the_profile_allows_the_profile_wins(sender: Sender) -> None:
    sender.submit(RunOptions(max_parallel=50))
    assert sender.slurm.options() == ["--array=0-5%4"]


def canary_in_the_queue(sender: Sender) -> tuple[str, JobRow]:
    """There was room for the canary alone; the others wait their turn."""
    sender.slurm.has_room_for(1)
    run_id = sender.submit(RunOptions(canary=True)).run_id
    rows = sender.rows()
    assert states(rows) == ["PENDING", *[QUEUED] * 5]
    sender.slurm.has_room_for(100)
    return run_id, rows[0]


def test_once_the_canary_is_verified_the_others_wait_for_nothing(sender: Sender) -> None:
    run_id, canary = canary_in_the_queue(sender)
    sender.end(canary, VERIFIED)
    assert sender.send(run_id).jobs == 5 and sender.slurm.options()[-1] == "--array=0-4%4"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The canary fails while other jobs are queued",
    promise="The other jobs are never submitted.",
)
def test_once_the_canary_has_failed_the_others_are_never_submitted(sender: Sender) -> None:
    run_id, canary = canary_in_the_queue(sender)
    sender.end(canary, FAILED, "FAILED")
    before = len(sender.slurm.calls())
    assert sender.send(run_id).jobs == 0 and len(sender.slurm.calls()) == before
    for row in sender.rows()[1:]:
        assert (row.state, row.verdict, row.failure) == (NEVER_SUBMITTED, FAILED, "stopped")
        assert row.verdict_reason == "its canary failed"


def test_once_the_canary_was_cancelled_in_the_queue_the_others_are_never_submitted(sender: Sender) -> None:
    sender.slurm.has_room_for(0)
    run_id = sender.submit(RunOptions(canary=True)).run_id
    sender.slurm.has_room_for(100)
    record_never_submitted(sender.ledger, [sender.rows()[0].attempt_id], "cancelled in its turn", "cancelled")
    assert sender.send(run_id) == Sent() and states(sender.rows()) == [NEVER_SUBMITTED] * 6
    assert {row.failure for row in sender.rows()[1:]} == {"stopped"}


def test_a_canary_that_has_ended_and_was_not_judged_yet_has_not_failed(sender: Sender) -> None:
    """Another terminal has seen its end, and reads its log a moment later."""
    run_id, canary = canary_in_the_queue(sender)
    sender.end(canary, None)
    sender.send(run_id)
    assert NEVER_SUBMITTED not in states(sender.rows())


@pytest.mark.fault(
    section="Submissions",
    fault="Another login node gives a submission up while it is still being made",
    promise="The resulting job is cancelled.",
)
def test_a_submission_that_was_given_up_while_it_was_made_is_cancelled(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another login node, whose clock or names say that this sender is gone."""

    def given_up(ledger: Ledger, token: str, scheduler_id: str, _cluster: str) -> bool:
        record_queued_again(ledger, token, "interrupted")
        return record_submission(ledger, token, scheduler_id)

    monkeypatch.setattr(sbatch, "record_submission", given_up)
    done = sender.submit(RunOptions())
    assert sender.slurm.cancelled() == ["100"] and done.sent.jobs == 0
    assert sender.said == ["job 100 was cancelled: another host gave up its submission and made it again"]
    assert {row.state for row in sender.rows()} == {QUEUED}


def test_while_the_canary_has_no_id_that_the_others_could_wait_for_they_wait_their_turn(sender: Sender) -> None:
    sender.slurm.has_room_for(0)
    run_id = sender.submit(RunOptions(canary=True)).run_id
    sender.slurm.has_room_for(100)
    before = len(sender.slurm.calls())
    assert claim(sender.ledger, [sender.rows()[0].attempt_id], "theirs", Submitter("another-host", "me", 77))
    sent = sender.send(run_id)
    assert (sent.jobs, sent.queued, sent.why) == (0, 5, "its canary is not in the queue yet")
    assert len(sender.slurm.calls()) == before and states(sender.rows()) == ["SUBMITTING", *[QUEUED] * 5]


def canary_failed(sender: Sender, failure: Failure) -> None:
    """The canary was submitted alone and failed of this."""
    sender.submit(where="pp=1,gbs=4")
    (canary,) = sender.rows()
    change = {"phase": ENDED, "state": "FAILED", "verdict": FAILED, "failure": str(failure)}
    with sender.ledger.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.id == canary.attempt_id).values(**change))


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--canary` again after a failed canary",
    promise="If it would fail again, it is refused with a hint. Otherwise it is tried again first. A canary that "
    "failed as published passes.",
    count=0,
)
def test_a_canary_that_would_fail_again_is_refused_and_the_mend_named(sender: Sender) -> None:
    canary_failed(sender, Failure.CONFIGURATION)
    before = len(sender.slurm.calls())
    with pytest.raises(ReproError, match="canary.*failed \\(configuration\\)") as caught:
        sender.submit(RunOptions(canary=True))
    assert caught.value.exit_code == 2
    assert "repro retry figure-13 --class configuration --where pp=1,tp=4,gbs=4" in str(caught.value)
    # Nothing was written down: neither a run nor its scripts.
    assert len(sender.slurm.calls()) == before and len(sender.rows()) == 1
    assert len(list(sender.site.folders.runs.glob("2*"))) == 1
    assert sender.submit().sent.jobs == 5


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--canary` again after a failed canary",
    promise="If it would fail again, it is refused with a hint. Otherwise it is tried again first. A canary that "
    "failed as published passes.",
    count=0,
)
def test_a_canary_that_failed_through_no_fault_of_its_own_is_tried_again_first(sender: Sender) -> None:
    canary_failed(sender, Failure.NODE_FAIL)
    done = sender.submit(RunOptions(canary=True))
    assert done.canary in done.recorded.to_submit and done.sent.jobs == 6
    assert "afterany:101_0" in sender.slurm.options()[-1]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--canary` again after a failed canary",
    promise="If it would fail again, it is refused with a hint. Otherwise it is tried again first. A canary that "
    "failed as published passes.",
    count=0,
)
def test_a_canary_that_failed_as_its_source_says_has_nothing_to_prove(sender: Sender) -> None:
    canary_failed(sender, Failure.GPU_OOM)
    plans = sender.plans()
    oom = ExpectedOutcome(where={}, outcome="oom", confirmed=True, source="a table")
    published = [replace(plan, case=replace(plan.case, expected=oom)) for plan in plans]
    request = RunOptions(canary=True)
    done = submit(published, sender.cluster(), sender.ledger, sender.site.folders, [], request)
    assert (done.canary, done.sent.jobs) == (None, 5)


def turn(index: int | None) -> AttemptRow:
    return AttemptRow(
        token="",
        state=QUEUED,
        phase="waiting",
        attempt_id=index or 0,
        job_id="a",
        run_id="run",
        number=1,
        scheduler="slurm",
        host="here",
        user=None,
        pid=None,
        pid_start_ticks=None,
        machine=None,
        folder="/runs/r/a",
        created_at=now(),
        file="/runs/r/x.array.sh",
        array_index=index,
        options=(),
        script_sha256="",
    )


@pytest.mark.parametrize(
    ("indexes", "words"),
    [
        ([], []),
        ([None], []),
        ([0], ["--array=0%3"]),
        ([0, 1, 2], ["--array=0-2%3"]),
        ([5, 1, 3, 2], ["--array=1-3,5%3"]),
        ([7, 9, 10, 0], ["--array=0,7,9-10%3"]),
    ],
)
def test_the_elements_that_are_meant_are_said_on_the_command_line(indexes: list[int | None], words: list[str]) -> None:
    assert list(sbatch._array([turn(index) for index in indexes], RunPlan(at_once=3))) == words


def test_the_wishes_of_a_run_are_kept_for_whoever_sends_the_rest(sender: Sender) -> None:
    done = sender.submit(RunOptions(max_parallel=2, after=("55",), stop_after=3, canary=True))
    kept = RunPlan.from_json(run_record(sender.ledger, done.run_id).run_options)
    assert (kept.max_parallel, kept.after, kept.stop_after, kept.at_once) == (2, ("55",), 3, 2)
    assert kept.canary == done.canary
    follows = RunPlan(follows=(FollowedJob("/runs/a", 77),), warm_ups={"101": ("a", "b")})
    assert RunPlan.from_json(follows.as_json()) == follows


@pytest.mark.fault(
    section="Submissions",
    fault="A crash before jobs with a dependency are submitted",
    promise="The process that submits them later passes the dependency to Slurm.",
)
def test_a_crash_before_anything_was_sent_does_not_lose_what_jobs_wait_for(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("orchestrator.launch.submit.send", die)
    with pytest.raises(Killed):
        sender.submit(RunOptions(after=("55",)))
    sender.send(sender.rows()[0].run_id)
    assert sender.slurm.options() == ["--array=0-5%4 --dependency=afterany:55"]
