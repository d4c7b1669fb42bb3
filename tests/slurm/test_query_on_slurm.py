"""query_jobs, find_by_comments and cancel_jobs on a real Slurm."""

from __future__ import annotations

import dataclasses
import os
import pwd
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from orchestrator.slurm import command as query
from orchestrator.slurm.command import (
    AccountingUnreachable,
    CommandResult,
    QueryAnswer,
    cancel_jobs,
    find_by_comments,
    query_jobs,
    run_slurm,
)
from orchestrator.slurm.notation import JobRecord, Phase, parse_accounting
from orchestrator.slurm.reasons import explain_reason
from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.configuration import CLUSTER_NAME
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("slurm_cluster")

ME = pwd.getpwuid(os.getuid()).pw_name


def submit(cluster: SlurmCluster, script: str, *options: str) -> str:
    """Submit a one-line script and return its job id."""
    return cluster.run("sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp", *options, "--wrap", script)


def eventually(ask: Callable[[], JobRecord | None], phase: Phase) -> JobRecord:
    """Query until the job is in this phase."""
    last: list[JobRecord | None] = [None]

    def reached() -> bool:
        last[0] = ask()
        return last[0] is not None and last[0].phase is phase

    wait_until(reached, what=f"the job is {phase} ({last[0]})")
    assert last[0] is not None
    return last[0]


def queued(job_id: str) -> JobRecord | None:
    return query_jobs([job_id]).records.get(job_id)


def in_accounting(job_id: str) -> Mapping[str, JobRecord]:
    return query._ask(query._SACCT, parse_accounting, [job_id], lambda _: True).records


def kind_of_reason(job_id: str) -> str:
    """Return the kind of reason for which the queue holds the job."""
    record = queued(job_id)
    assert record is not None
    return explain_reason(record.reason).kind


def accounted(job_id: str) -> JobRecord | None:
    """Wait until sacct has the full record: end and exit code may come seconds after the state."""
    record = in_accounting(job_id).get(job_id)
    return None if record is None or (record.phase is Phase.ENDED and record.ended_at is None) else record


def forgetful(argv: Sequence[str], *, variables: Mapping[str, str] | None = None) -> CommandResult:
    """Wait until the queue has forgotten all ended jobs (MinJobAge)."""
    answer = run_slurm(argv, variables=variables)
    header = answer.stdout.partition("\n")[0] + "\n"
    return dataclasses.replace(answer, stdout=header) if argv[0] == "squeue" else answer


def as_another_user(argv: Sequence[str], *, timeout_s: float) -> CommandResult:
    who = pwd.getpwnam(OTHER_USER)
    return run_slurm(
        ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups", *argv], timeout_s=timeout_s
    )


def test_a_job_is_followed_from_the_queue_to_its_end(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=2)
    gate = tmp_path / "go"
    script = f"until [ -e {gate} ]; do sleep 0.1; done"
    job = submit(slurm_cluster, script, "-N2", "--hold", "--time=7", "--job-name=follow me=x")
    waiting = query_jobs([job]).records[job]
    assert (waiting.phase, waiting.reason, waiting.nodes) == (Phase.WAITING, "JobHeldUser", "")
    assert (waiting.started_at, waiting.ended_at, waiting.exit_code) == (None, None, None)
    assert waiting.user == ME
    assert waiting.starts_at is None and waiting.submitted_at is not None and waiting.submitted_at >= before
    assert explain_reason(waiting.reason).kind == "held"
    slurm_cluster.run("scontrol", "release", job)
    running = eventually(lambda: queued(job), Phase.RUNNING)
    assert running.nodes and running.exit_code is None
    assert running.ended_at is None, "the expected end is not an end"
    assert running.started_at is not None and running.ends_at == running.started_at + timedelta(minutes=7)
    gate.touch()
    ended = eventually(lambda: queued(job), Phase.ENDED)
    assert (ended.state, ended.exit_code, ended.signal, ended.source) == ("COMPLETED", 0, None, "squeue")
    assert ended.started_at is not None and ended.ended_at is not None
    assert before <= ended.started_at <= ended.ended_at <= datetime.now(timezone.utc) + timedelta(seconds=2)


def test_the_name_of_the_cluster_before_the_list_makes_no_answer_doubtful(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(slurm_cluster, "true", "--hold")
    monkeypatch.setenv("SLURM_CLUSTERS", CLUSTER_NAME)
    answer = query_jobs([job, "99999999"])
    assert (set(answer.records), answer.complaints, answer.unknown) == ({job}, (), frozenset({"99999999"}))
    slurm_cluster.run("scancel", job)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A script exits with an error, is killed, or calls a command that does not exist",
    promise="Queue and accounting agree on exit code and signal.",
)
@pytest.mark.parametrize(
    ("script", "code", "signal"), [("exit 3", 3, None), ("kill -9 $$", 0, 9), ("nosuchcommand", 127, None)]
)
def test_queue_and_accounting_agree_on_how_a_job_failed(
    slurm_cluster: SlurmCluster, script: str, code: int, signal: int | None
) -> None:
    job = submit(slurm_cluster, script)
    for ask in (queued, accounted):
        ended = eventually(lambda ask=ask: ask(job), Phase.ENDED)  # type: ignore[misc]
        assert (ended.state, ended.exit_code, ended.signal) == ("FAILED", code, signal), ended.source


def test_every_task_of_an_array_is_found_by_its_own_id_and_by_the_arrays(slurm_cluster: SlurmCluster) -> None:
    job = submit(slurm_cluster, '[ "$SLURM_ARRAY_TASK_ID" != 3 ] && sleep 3600', "--array=0-5:1%2")
    tasks = {f"{job}_{task}" for task in range(6)}
    assert set(query_jobs([job]).records) == tasks
    assert set(query_jobs([f"{job}_1", f"{job}_4"]).records) == {f"{job}_1", f"{job}_4"}
    assert set(query_jobs([f"{job}_9"]).records) == set()
    eventually(lambda: queued(f"{job}_0"), Phase.RUNNING)
    wait_until(lambda: set(in_accounting(job)) == tasks, what="sacct has the tasks, pending ones too")
    slurm_cluster.run("scancel", f"{job}_0", f"{job}_1")
    failed = eventually(lambda: queued(f"{job}_3"), Phase.ENDED)
    assert (failed.state, failed.exit_code) == ("FAILED", 1)
    slurm_cluster.run("scancel", job)


def test_a_dependent_job_has_an_expected_start(slurm_cluster: SlurmCluster) -> None:
    whole = ("--nodes=4", "--exclusive", "--time=9")
    first = submit(slurm_cluster, "sleep 3600", *whole)
    second = submit(slurm_cluster, "true", *whole, "--comment=two\nlines JobId=77 UserId=x(1)  a=b ")
    others = [
        submit(slurm_cluster, "true", "--hold", "--array=1,3-7:2%2"),
        submit(slurm_cluster, "true", f"--uid={OTHER_USER}", "--begin=now+1hour", "--time=2-3:04:00", "-p", "hi"),
        submit(slurm_cluster, "true", f"--dependency=afterok:{first}", "--job-name=a b=c"),
    ]
    mixed = slurm_cluster.run("sbatch", "--parsable", "--hold", "-N1", ":", "-N1", "--wrap", "true").split(";")[0]
    try:
        expected_end = eventually(lambda: queued(first), Phase.RUNNING).ends_at
        wait_until(lambda: getattr(queued(second), "starts_at", None) is not None, what="an expected start")
        wait_until(lambda: kind_of_reason(others[2]) == "dependency", what="Slurm looks at the dependency")
        records = query_jobs([first, second, mixed, *others]).records
        assert explain_reason(records[second].reason).kind == "queue"
        expected_start = records[second].starts_at
        assert expected_start is not None and expected_end is not None
        assert abs(expected_start - expected_end) <= timedelta(minutes=1)
        assert set(records) >= {f"{others[0]}_{task}" for task in (1, 3, 5, 7)} | {mixed, f"{mixed}+1"}
    finally:
        assert cancel_jobs([mixed, *others, second, first]) == {}


@pytest.mark.fault(
    section="Job states",
    fault="Tasks of an array are cancelled before they start and leave no record; another user cancels a job",
    promise="The canceller is reported where Slurm names it. A refused cancellation does not affect other jobs.",
)
def test_canceller_of_a_job_is_reported_and_a_refused_cancel_does_not_affect_others(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, array = submit(slurm_cluster, "true", "--hold"), submit(slurm_cluster, "true", "--hold", "--array=0-3")
    theirs = [submit(slurm_cluster, "sleep 3600", f"--uid={OTHER_USER}", *hold) for hold in (["--hold"], ["-N1"])]
    with monkeypatch.context() as patch:
        patch.setattr(query, "run_slurm", as_another_user)
        refused = cancel_jobs([mine, theirs[0], "99999999", f"{array}_2", theirs[1]])
        assert refused == dict.fromkeys([mine, f"{array}_2"], "Access/permission denied")
        assert cancel_jobs([theirs[0], "99999999"]) == {}, "what has ended or is unknown is no refusal"
    assert cancel_jobs([f"{array}_1", f"{array}_3", mine]) == {}
    # Single tasks that are cancelled before they start leave no record.
    assert set(query_jobs([array]).records) == {f"{array}_0", f"{array}_2"}
    assert cancel_jobs([array, *(str(70_000_000 + number) for number in range(500))]) == {}
    for job, who in ((mine, ME), (theirs[0], OTHER_USER), (theirs[1], OTHER_USER)):
        assert eventually(lambda job=job: queued(job), Phase.ENDED).state == "CANCELLED"  # type: ignore[misc]
        past = eventually(lambda job=job: accounted(job), Phase.ENDED)  # type: ignore[misc]
        assert (past.state, past.cancelled_by) == ("CANCELLED", who)
        assert past.user == (ME if job == mine else OTHER_USER)


def test_one_query_answers_for_known_and_unknown_jobs_together(slurm_cluster: SlurmCluster) -> None:
    job = submit(slurm_cluster, "true", "--hold")
    answer = query_jobs([job, "99999998", "99999999"])
    assert set(answer.records) == {job} and answer.complaints == ()
    assert answer.unknown == {"99999998", "99999999"}
    assert query_jobs(["99999999"]) == QueryAnswer({}, (), frozenset({"99999999"}))
    many = query_jobs([job, *(str(70_000_000 + number) for number in range(20_000))])
    assert set(many.records) == {job} and len(many.unknown) == 20_000
    assert query_jobs([job], lambda record: record.user != ME) == QueryAnswer({}, (), frozenset({job}))
    slurm_cluster.run("scancel", job)


@pytest.mark.parametrize("comment", ["run=a|b,c d", "two\nlines", "ünï ☃ 'q' \"dq\" $HOME"])
def test_a_job_is_found_by_its_exact_comment(slurm_cluster: SlurmCluster, comment: str) -> None:
    comment = f"{comment} {time.time_ns()}"
    job = submit(slurm_cluster, "true", f"--comment={comment}")
    submit(slurm_cluster, "true", "--hold", f"--comment={comment}0")
    answer = find_by_comments([comment])
    assert list(answer.records) == [job] and answer.records[job].comment == comment


@pytest.mark.fault(
    section="Job states",
    fault="The queue has forgotten a job",
    promise="It is found in accounting, by id and by comment.",
)
def test_a_job_that_left_the_queue_is_found_in_accounting(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    comment = f"token|{time.time_ns()}"
    job = submit(slurm_cluster, "exit 5", f"--comment={comment}")
    eventually(lambda: queued(job), Phase.ENDED)
    monkeypatch.setattr(query, "run_slurm", forgetful)
    wait_until(lambda: list(find_by_comments([comment]).records) == [job], what="sacct has the comment")
    record = query_jobs([job], lambda job_record: job_record.comment == comment).records[job]
    assert record.user == ME
    assert (record.source, record.state, record.exit_code, record.comment) == ("sacct", "FAILED", 5, comment)
    assert record.nodes in slurm_cluster.node_names and record.started_at is not None and record.ended_at is not None


@pytest.mark.fault(
    section="Job states",
    fault="Another user's job has our comment",
    promise="It is not taken for ours.",
)
def test_another_users_job_with_our_comment_is_not_ours(slurm_cluster: SlurmCluster) -> None:
    comment = f"theirs {time.time_ns()}"
    job = submit(slurm_cluster, "true", f"--comment={comment}", f"--uid={OTHER_USER}", "--hold")
    assert query_jobs([job]).records[job].comment == comment
    assert find_by_comments([comment]) == QueryAnswer({}, ())
    slurm_cluster.run("scancel", job)


@pytest.mark.fault(
    section="Job states",
    fault="The user's shell sets output formats for Slurm",
    promise="The answer is still read correctly.",
)
def test_output_formats_of_the_users_shell_are_ignored(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(slurm_cluster, "true", "--hold")
    for name, value in {
        "SQUEUE_FORMAT": "%j",
        "SQUEUE_FORMAT2": "Name",
        "SQUEUE_STATES": "RUNNING",
        "SQUEUE_USERS": OTHER_USER,
        "SACCT_FORMAT": "JobName",
        "SLURM_TIME_FORMAT": "%H",
        "TZ": "Asia/Kathmandu",
    }.items():
        monkeypatch.setenv(name, value)
    assert query_jobs([job]).records[job].reason == "JobHeldUser"
    slurm_cluster.run("scancel", job)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A node fails, with and without `--requeue`",
    promise="The job ends, or returns to the queue.",
)
def test_a_failed_node_ends_or_requeues_the_job(slurm_cluster: SlurmCluster) -> None:
    node = slurm_cluster.node_names[-1]
    lost = submit(slurm_cluster, "sleep 3600", "-w", node, "--no-requeue")
    again = submit(slurm_cluster, "sleep 3600", "-w", node, "--requeue")
    for job in (lost, again):
        eventually(lambda job=job: queued(job), Phase.RUNNING)  # type: ignore[misc]
    try:
        slurm_cluster.set_node(node, "down")
        assert eventually(lambda: queued(lost), Phase.ENDED).state == "NODE_FAIL"
        eventually(lambda: queued(again), Phase.WAITING)
    finally:
        slurm_cluster.run("scancel", again)
        slurm_cluster.set_node(node, "resume")


@pytest.mark.fault(
    section="Job states",
    fault="Accounting is stopped",
    promise="A warning appears beside the data of the queue. An empty answer proves nothing.",
)
def test_stopped_accounting_is_a_warning_and_the_queue_still_answers(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(slurm_cluster, "true", "--hold")
    with slurm_cluster.without_accounting():
        answer = query_jobs([job, "99999999"])
        assert set(answer.records) == {job}
        (complaint,) = answer.complaints
        assert complaint.startswith("sacct: ") and "slurmdbd" in complaint
        with monkeypatch.context() as patch:
            patch.setattr(query, "run_slurm", forgetful)
            forgotten = query_jobs([job, "99999999"])
        assert forgotten.unknown == frozenset() and forgotten.complaints, "without accounting no job is unknown"
        assert find_by_comments([f"never {time.time_ns()}"]).complaints, "an empty answer must not look like a proof"
        with pytest.raises(AccountingUnreachable):
            run_slurm(["sacctmgr", "show", "user"])
    slurm_cluster.run("scancel", job)
