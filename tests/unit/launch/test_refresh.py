"""Conclusions from a look at Slurm: only for this user and cluster, from a complete list, while no log grows."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.errors import Unreachable
from orchestrator.identity import seconds_since_boot, this_machine_identity, user_name
from orchestrator.launch import refresh as refreshing
from orchestrator.launch.refresh import LOST_AFTER, is_side_job, refresh
from orchestrator.launch.run_options import RunPlan
from orchestrator.ledger.attempts import job_history, job_rows, may_ask, record_asked
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import JobRow, JobSummary
from orchestrator.ledger.runs import record_run_options, record_submission
from orchestrator.ledger.tables import CANCELLED_BY, ENDED, FAILED, LOST, RUNNING, WAITING, Attempt
from orchestrator.reading.failure import PREEMPTED_IN_GRACE
from orchestrator.slurm.command import QueryAnswer
from orchestrator.slurm.notation import JobRecord, Source, parse_queue
from tests.recorded_jobs import new_ledger, new_run, record_jobs
from tests.unit.slurm.test_records import queue_row

CLUSTER = "tests@c1:6817"


class Slurm:
    """A cluster that lists `records`, and the clock since boot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[JobRecord] = []
        self.complaints: tuple[str, ...] = ()
        self.cluster = CLUSTER
        self.asked: list[list[str]] = []
        self.later_s = 0.0
        monkeypatch.setattr(refreshing, "cluster_identity", lambda: self.cluster)
        monkeypatch.setattr(refreshing, "query_jobs", self.query)
        monkeypatch.setattr(refreshing, "seconds_since_boot", lambda: seconds_since_boot() + self.later_s)

    def query(self, job_ids: Collection[str], is_ours: Callable[[JobRecord], bool | None]) -> QueryAnswer:
        self.asked.append(list(job_ids))
        records = {one.job_id: one for one in self.records if one.job_id in job_ids and is_ours(one)}
        unclear = {one.job_id: one for one in self.records if one.job_id in job_ids and is_ours(one) is None}
        unknown = frozenset() if self.complaints else frozenset(job_ids) - set(records) - set(unclear)
        return QueryAnswer(records, self.complaints, unknown, unclear)

    def lists(self, *jobs: tuple[str, str], state: str = "RUNNING") -> None:
        """Jobs by id and token."""
        self.records = [
            JobRecord(
                job_id=job_id,
                state=state,
                reason="",
                nodes="n1",
                exit_code=7 if state == "FAILED" else None,
                signal=None,
                comment=f"repro:{token}",
                started_at=None,
                ended_at=None,
                source="squeue",
            )
            for job_id, token in jobs
        ]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def submitted(
    ledger: Ledger,
    name: str = "a",
    job_id: str = "17",
    user: str | None = None,
    cluster: str | None = CLUSTER,
    folder: str = "",
) -> None:
    """A job that Slurm took under the token of its name."""
    run = replace(new_run(), user=user or user_name())
    record_jobs(ledger, name, token=f"token-{name}", run=run, scheduler="slurm", array=False)
    record_submission(ledger, f"token-{name}", job_id)
    changes = {"slurm_cluster": cluster} | ({"folder": folder} if folder else {})
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).where(Attempt.token == f"token-{name}").values(**changes))


def only(ledger: Ledger) -> JobRow:
    (row,) = job_rows(ledger)
    return row


def change(ledger: Ledger, **columns: Any) -> None:
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**columns))


def listed_as(ledger: Ledger, slurm: Slurm, state: str, **values: Any) -> JobRow:
    """Refresh while Slurm lists job 17 with these values."""
    slurm.lists(("17", "token-a"), state=state)
    slurm.records = [replace(record, **values) for record in slurm.records]
    refresh(ledger)
    return only(ledger)


def test_a_job_that_no_source_lists_for_long_is_lost(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger)
    refresh(ledger)
    assert only(ledger).state == "PENDING"
    slurm.later_s = timedelta(minutes=5).total_seconds()
    refresh(ledger)
    assert only(ledger).state == LOST


@pytest.mark.fault(
    section="Job states",
    fault="Another user, not root, refreshes",
    promise="The message names who can decide. Root can decide.",
)
def test_root_may_conclude_and_another_user_may_not(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(ledger, user="ann")
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    for slurm.later_s in (0.0, 10 * LOST_AFTER.total_seconds()):
        assert refresh(ledger).complaints == ("Slurm does not list a job of ann; only ann can find out more",)
    assert (only(ledger).state, only(ledger).unseen_since) == ("PENDING", None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for slurm.later_s in (0.0, 10 * LOST_AFTER.total_seconds()):
        refresh(ledger)
    assert only(ledger).state == LOST
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    assert refresh(ledger).complaints == (), "the job has ended, so it needs no complaint"


@pytest.mark.fault(
    section="Job states",
    fault="The job belongs to another cluster",
    promise="It is not looked up and never `LOST`.",
)
def test_a_job_of_another_cluster_is_not_asked_for_and_never_lost(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger, cluster="tests@c2:6817")
    for slurm.later_s in (0.0, 10 * LOST_AFTER.total_seconds()):
        (complaint,) = refresh(ledger).complaints
        assert "tests@c2:6817" in complaint and "set SLURM_CONF" in complaint
    assert slurm.asked == [] and only(ledger).state == "PENDING"
    change(ledger, state=LOST, phase=ENDED, ended_at=now())
    assert refresh(ledger).complaints == ()


@pytest.mark.fault(
    section="Job states",
    fault="A script that a user submitted on another login node left the queue",
    promise="It is not `LOST` here: its cluster is not recorded, and may be another one.",
)
def test_a_job_of_an_unknown_cluster_is_lost_only_on_the_host_that_submitted_it(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger, cluster=None)
    for host, state in (("elsewhere", "PENDING"), (socket.gethostname(), LOST)):
        change(ledger, host=host)
        for _ in range(2):
            slurm.later_s += LOST_AFTER.total_seconds()
            refresh(ledger)
        assert only(ledger).state == state


@pytest.mark.parametrize("source", ["cluster_identity", "query_jobs"])
def test_a_cluster_that_does_not_answer_changes_no_state(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    def away(*_: object) -> None:
        raise Unreachable("squeue: no answer")

    submitted(ledger)
    slurm.later_s = LOST_AFTER.total_seconds()
    monkeypatch.setattr(refreshing, source, away)
    for _ in range(2):
        assert refresh(ledger).complaints == ("squeue: no answer",)
    assert (only(ledger).state, slurm.asked) == ("PENDING", [])


def test_a_second_refresh_within_the_interval_asks_nothing_and_has_the_complaints_of_the_first(
    ledger: Ledger, slurm: Slurm
) -> None:
    submitted(ledger)
    slurm.complaints = ("squeue: its answer is no list of jobs",)
    first = refresh(ledger)
    assert refresh(ledger, 3600.0) == first and len(slurm.asked) == 1


@pytest.mark.usefixtures("slurm")
def test_the_end_record_of_a_job_of_another_cluster_is_read_all_the_same(ledger: Ledger, tmp_path: Path) -> None:
    submitted(ledger, cluster="tests@c2:6817", folder=str(tmp_path))
    (tmp_path / "end").write_text("exit_code=0\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id=17\npid=1\n")
    assert refresh(ledger).complaints == () and only(ledger).state == "COMPLETED"


@pytest.mark.fault(
    section="Job states",
    fault="A source could not be asked",
    promise="No job is `LOST`.",
)
def test_a_source_that_could_not_be_asked_calls_nothing_lost(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger)
    slurm.complaints = ("squeue: its answer is no list of jobs",)
    for slurm.later_s in (0.0, 10 * LOST_AFTER.total_seconds()):
        assert refresh(ledger).complaints == slurm.complaints
    assert (only(ledger).state, only(ledger).unseen_since) == ("PENDING", None)


@pytest.mark.fault(
    section="Job states",
    fault="Slurm lists a job with the id, user, name and time of ours, and with another comment and output file",
    promise="The job is not `LOST`. A message names its id.",
)
def test_a_job_that_may_be_ours_is_not_lost(ledger: Ledger, slurm: Slurm, tmp_path: Path) -> None:
    submitted(ledger, folder=str(tmp_path))
    row = only(ledger)
    slurm.lists(("17", "x"))
    name, at = f"figure-{Path(row.folder).name}", row.created_at.replace(tzinfo=timezone.utc)
    slurm.records = [
        replace(record, submitted_at=at, name=name, comment="a project", output="/home/x.txt")
        for record in slurm.records
    ]
    for slurm.later_s in (0.0, 10 * LOST_AFTER.total_seconds()):
        (complaint,) = refresh(ledger).complaints
        assert complaint.startswith("job 17: ")
    assert (only(ledger).state, only(ledger).unseen_since) == ("PENDING", None)
    change(ledger, state=LOST, phase=ENDED, ended_at=now())
    assert refresh(ledger).complaints == () and only(ledger).state == LOST
    change(ledger, state="PENDING", phase=WAITING, ended_at=None)
    (tmp_path / "end").write_text("exit_code=0\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id=17\npid=1\n")
    assert refresh(ledger).complaints == () and only(ledger).state == "COMPLETED"


def test_a_refresh_compares_no_job_with_each_other_one(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of each pair took 14 s for 5,000 open jobs."""

    def compared(*_: object) -> bool:
        raise AssertionError("two rows were compared")

    submitted(ledger, "a", "17")
    submitted(ledger, "b", "18")
    slurm.lists(("17", "token-a"), ("18", "token-b"))
    monkeypatch.setattr(JobSummary, "__eq__", compared)
    refresh(ledger)
    monkeypatch.undo()
    assert {row.state for row in job_rows(ledger)} == {"RUNNING"}


@pytest.mark.fault(
    section="Job states",
    fault="No source lists the job, but its log grows",
    promise="The job is not `LOST`.",
)
def test_a_job_is_not_lost_while_its_log_grows(ledger: Ledger, slurm: Slurm, tmp_path: Path) -> None:
    submitted(ledger, folder=str(tmp_path))
    log = tmp_path / "log.txt"
    for number in range(4):
        log.write_text("line\n" * (number + 1))
        slurm.later_s = number * LOST_AFTER.total_seconds()
        refresh(ledger)
        assert only(ledger).state == "PENDING", number
    slurm.later_s += LOST_AFTER.total_seconds()
    refresh(ledger)
    assert only(ledger).state == LOST


@pytest.mark.fault(
    section="Job states",
    fault="A clock jumps by an hour",
    promise="No job is `LOST` for that reason.",
)
@pytest.mark.parametrize("jump", [timedelta(hours=1), -timedelta(hours=1)])
def test_a_clock_that_jumps_or_that_of_another_machine_calls_nothing_lost(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, jump: timedelta
) -> None:
    submitted(ledger)
    refresh(ledger)
    monkeypatch.setattr("orchestrator.ledger.runs.now", lambda: now() + jump)
    monkeypatch.setattr(refreshing, "now", lambda: now() + jump)
    refresh(ledger)
    assert only(ledger).state == "PENDING"
    slurm.later_s = LOST_AFTER.total_seconds()
    refresh(ledger)
    assert only(ledger).state == LOST


@pytest.mark.fault(
    section="Job states",
    fault="Two machines refresh in turn",
    promise="Each measures the time by its own clock since boot.",
)
def test_another_machine_waits_by_a_clock_of_its_own(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(ledger)
    refresh(ledger)
    there = replace(this_machine_identity(), boot_id="another-boot")
    monkeypatch.setattr(refreshing, "this_machine_identity", lambda: there)
    slurm.later_s = 10 * LOST_AFTER.total_seconds()
    refresh(ledger)
    assert only(ledger).state == "PENDING", "its clock began to count with this look"
    slurm.later_s += LOST_AFTER.total_seconds()
    refresh(ledger)
    assert only(ledger).state == LOST


@pytest.mark.fault(
    section="Job states",
    fault="Slurm lists a lost job again",
    promise="The job gets the state that Slurm lists, and a new verdict.",
)
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_a_lost_job_that_slurm_lists_again_is_not_lost(ledger: Ledger, slurm: Slurm, state: str) -> None:
    submitted(ledger)
    with ledger.writing() as session:
        lost = {"state": LOST, "phase": ENDED, "ended_at": now(), "verdict": FAILED, "failure": "lost"}
        session.execute(sa.update(Attempt).values(**lost, verdict_reason="lost"))
    refresh(ledger)
    assert only(ledger).verdict == FAILED
    slurm.lists(("17", "token-a"), state=state)
    refresh(ledger)
    row = only(ledger)
    assert (row.state, row.verdict, row.failure, row.verdict_reason) == (state, None, None, None)


@pytest.mark.fault(
    section="Job states",
    fault="slurmctld is killed before it has saved a job, and reuses the id for the next job",
    promise="Each job has its own record.",
)
def test_of_two_jobs_with_one_id_each_has_its_own_record(ledger: Ledger, slurm: Slurm) -> None:
    """slurmctld was killed before it had saved the first, and gave its id to the second."""
    submitted(ledger, "a", "240")
    submitted(ledger, "b", "240")
    slurm.lists(("240", "token-b"), state="FAILED")
    refresh(ledger)
    by_case = {row.case_name: row for row in job_rows(ledger)}
    assert (by_case["a"].state, by_case["a"].phase, by_case["a"].exit_code) == ("PENDING", WAITING, None)
    assert (by_case["b"].state, by_case["b"].phase, by_case["b"].exit_code) == ("FAILED", ENDED, 7)


@pytest.mark.fault(
    section="Job states",
    fault="One process refreshes twice, and Slurm forgets the job in between",
    promise="No record of the earlier refresh is used.",
)
def test_a_record_of_an_earlier_look_is_not_kept(ledger: Ledger, slurm: Slurm, tmp_path: Path) -> None:
    """In one process: `repro wait` saw the job run, then Slurm forgot it, and the job left its end record."""
    submitted(ledger, folder=str(tmp_path))
    slurm.lists(("17", "token-a"))
    refresh(ledger)
    assert only(ledger).phase == RUNNING
    slurm.lists()
    (tmp_path / "end").write_text("exit_code=143\nat=2026-01-01T00:00:00Z\nhost=n1\nscheduler_id=17\npid=1\n")
    refresh(ledger)
    assert (only(ledger).state, only(ledger).exit_code) == ("FAILED", 143)


@pytest.mark.fault(
    section="Job states",
    fault="A machine whose clock is an hour ahead has refreshed",
    promise="Other machines still refresh.",
)
def test_a_look_of_a_clock_that_is_ahead_does_not_keep_others_from_looking(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.ledger.attempts.now", lambda: now() + timedelta(hours=1))
        assert may_ask(ledger, "slurm", 15.0)[0]
    assert may_ask(ledger, "slurm", 15.0)[0]
    assert not may_ask(ledger, "slurm", 15.0)[0]


@pytest.mark.parametrize(
    ("warm_ups", "first"), [({}, "the canary (a)"), ({"16": ("b-id",)}, "a job that it waits for")]
)
def test_a_job_behind_a_failed_canary_names_the_canary(
    ledger: Ledger, slurm: Slurm, warm_ups: dict[str, tuple[str, ...]], first: str
) -> None:
    run = replace(new_run(), user=user_name())
    record_jobs(ledger, "a", "b", token="token", run=run, scheduler="slurm")
    record_run_options(ledger, run.id, RunPlan(canary="a-id", warm_ups=warm_ups).as_json())
    record_submission(ledger, "token", "17")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(slurm_cluster=CLUSTER))
    slurm.lists(("17_1", "token"), state="CANCELLED")
    slurm.records = [replace(record, reason="DependencyNeverSatisfied") for record in slurm.records]
    refresh(ledger)
    [row] = [row for row in job_rows(ledger) if row.job_id == "b-id"]
    assert row.reason == f"{first} failed (DependencyNeverSatisfied)"


def array_of_two(ledger: Ledger, tmp_path: Path) -> Path:
    """The elements 17_0 and 17_1 wait; return the folder of the second, whose attempt is `b`."""
    run = replace(new_run(), user=user_name())
    record_jobs(ledger, "a", "b", token="token", run=run, scheduler="slurm")
    record_submission(ledger, "token", "17")
    folder = tmp_path / "element"
    folder.mkdir()
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(slurm_cluster=CLUSTER))
        session.execute(sa.update(Attempt).where(Attempt.array_index == 1).values(folder=str(folder)))
    return folder


def element_b(ledger: Ledger) -> JobRow:
    (row,) = [row for row in job_rows(ledger) if row.job_id == "b-id"]
    return row


@pytest.mark.fault(
    section="Job states",
    fault="An administrator cancels waiting elements of an array, of which Slurm keeps no record",
    promise="While Slurm lists other elements, they are `CANCELLED`, not by repro. They are not repeated.",
)
@pytest.mark.parametrize("sibling", ["PENDING", "RUNNING"])
def test_an_element_gone_from_a_living_array_was_cancelled(
    ledger: Ledger, slurm: Slurm, tmp_path: Path, sibling: str
) -> None:
    array_of_two(ledger, tmp_path)
    slurm.lists(("17_0", "token"), state=sibling)
    refresh(ledger)
    row = element_b(ledger)
    assert (row.state, row.phase) == ("CANCELLED", ENDED) and str(row.reason).startswith("not by repro: ")


@pytest.mark.parametrize("trace", ["claimed", "start", "log.txt", "ended array", "no array", "complaint"])
def test_an_element_that_may_have_started_or_whose_array_has_ended_was_not_cancelled(
    ledger: Ledger, slurm: Slurm, tmp_path: Path, trace: str
) -> None:
    folder = array_of_two(ledger, tmp_path)
    slurm.lists(("17_0", "token"), state="COMPLETED" if trace == "ended array" else "RUNNING")
    if trace == "complaint":
        slurm.complaints = ("sacct: no answer",)
    elif trace == "no array":
        slurm.lists()
    elif trace != "ended array":
        (folder / trace).write_text("17_1\n")
    refresh(ledger)
    assert element_b(ledger).state == "PENDING"
    slurm.later_s = LOST_AFTER.total_seconds()
    refresh(ledger)
    assert element_b(ledger).state == ("PENDING" if trace == "complaint" else LOST)


@pytest.mark.parametrize(("earlier_s", "is_kept"), [(0.5, False), (1.0, True), (-0.5, True)])
def test_a_job_that_starts_in_the_second_of_its_submission_waited_for_no_negative_time(
    ledger: Ledger, slurm: Slurm, earlier_s: float, is_kept: bool
) -> None:
    submitted(ledger)
    at = only(ledger).submitted_at
    assert at is not None
    seen = at - timedelta(seconds=earlier_s)
    listed = seen.replace(tzinfo=timezone.utc)
    row = listed_as(ledger, slurm, "COMPLETED", started_at=listed, ended_at=listed)
    assert (row.started_at, row.ended_at) == ((seen, seen) if is_kept else (at, at))


@pytest.mark.fault(
    section="Job states",
    fault="A job with `requeue: true` loses its node, or is preempted",
    promise="It waits for 5 minutes, in which Slurm may requeue it. Then it has ended.",
)
@pytest.mark.parametrize(
    ("state", "minutes_ago", "is_requeued", "phase"),
    [
        *(("NODE_FAIL", 1, True, WAITING), ("NODE_FAIL", 6, True, ENDED), ("NODE_FAIL", 1, False, ENDED)),
        *(("PREEMPTED", None, True, WAITING), ("FAILED", 1, True, ENDED), ("SOMETHING_NEW", 1, True, RUNNING)),
    ],
)
def test_a_job_that_slurm_may_requeue_has_not_ended(
    ledger: Ledger, slurm: Slurm, state: str, minutes_ago: int | None, is_requeued: bool, phase: str
) -> None:
    submitted(ledger)
    change(ledger, is_requeued=is_requeued)
    at = None if minutes_ago is None else now() - timedelta(minutes=minutes_ago)
    row = listed_as(ledger, slurm, state, ended_at=at and at.replace(tzinfo=timezone.utc))
    assert (row.state, row.phase, row.ended_at) == (state, phase, at if phase == ENDED else None)


@pytest.mark.parametrize(
    ("state", "values", "reason"),
    [
        ("PENDING", {"reason": "Priority"}, "Priority"),
        ("PENDING", {"reason": "None"}, None),
        ("CANCELLED", {}, "not by repro"),
        ("CANCELLED", {"reason": "Priority", "cancelled_by": user_name()}, "not by repro"),
        ("CANCELLED", {"cancelled_by": "bob"}, "by bob, not by repro"),
        ("CANCELLED", {"reason": "Dependency"}, "a job that it waits for failed (Dependency)"),
        ("FAILED", {"preempted_at": now()}, PREEMPTED_IN_GRACE),
        ("COMPLETED", {"preempted_at": now()}, None),
    ],
)
def test_the_reason_of_an_end_names_who_ended_the_job(
    ledger: Ledger, slurm: Slurm, state: str, values: dict[str, Any], reason: str | None
) -> None:
    submitted(ledger)
    assert listed_as(ledger, slurm, state, **values).reason == reason


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(("phase", "state"), [(WAITING, "CANCELLED"), (RUNNING, "RUNNING")])
def test_a_waiting_job_that_repro_cancelled_leaves_no_trace_in_slurm(ledger: Ledger, phase: str, state: str) -> None:
    submitted(ledger)
    change(ledger, phase=phase, state="RUNNING" if phase == RUNNING else "PENDING")
    record_asked(ledger, [only(ledger).attempt_id], f"{CANCELLED_BY}me")
    refresh(ledger)
    assert only(ledger).state == state


def test_the_nodes_of_a_job_stay_when_slurm_no_longer_lists_them(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger)
    assert listed_as(ledger, slurm, "RUNNING").nodes == "n1"
    assert listed_as(ledger, slurm, "COMPLETED", nodes="").nodes == "n1"


def test_the_history_of_a_cancelled_job_has_who_asked_and_what_slurm_lists(ledger: Ledger, slurm: Slurm) -> None:
    submitted(ledger)
    record_asked(ledger, [only(ledger).attempt_id], f"{CANCELLED_BY}me")
    row = listed_as(ledger, slurm, "CANCELLED")
    (attempt,) = job_history(ledger, row.job_id)
    assert row.reason == f"{CANCELLED_BY}me"
    assert attempt.events[-1].detail == "PENDING -> CANCELLED: by repro cancel (via squeue)"


def test_a_submission_that_is_found_has_its_state_in_the_same_refresh(
    ledger: Ledger, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(new_run(host=socket.gethostname(), pid=2**22 + 1), user=user_name())
    record_jobs(ledger, "a", token="token-a", run=run, scheduler="slurm", array=False)
    slurm.lists(("17", "token-a"))
    answer = QueryAnswer({record.job_id: record for record in slurm.records})
    monkeypatch.setattr(refreshing, "find_by_comments", lambda _: answer)
    refresh(ledger)
    assert (only(ledger).scheduler_id, only(ledger).state) == ("17", "RUNNING")


@pytest.mark.parametrize(
    ("source", "comment", "expected"),
    [
        *(("squeue", "token", True), ("squeue", "theirs", False), ("squeue", "", False)),
        *(("sacct", "token", True), ("sacct", "theirs", False), ("sacct", "", True)),
    ],
)
def test_only_a_record_of_accounting_may_have_lost_its_comment(source: Source, comment: str, expected: bool) -> None:
    (record,) = parse_queue(queue_row(comment=comment))
    assert is_side_job(replace(record, source=source), "token", Path("/runs/check")) is expected
    moved = replace(record, source=source, output="/home/runs/check/job.txt")
    assert is_side_job(moved, "token", Path("/runs/check")), "its output file is in the folder"
