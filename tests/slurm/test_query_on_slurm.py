"""query_jobs and find_by_comment against a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from orchestrator.slurm import query
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, run_slurm
from orchestrator.slurm.query import QueryAnswer, ask_accounting, find_by_comment, query_jobs
from orchestrator.slurm.records import JobRecord
from orchestrator.slurm.states import Phase
from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.host import wait_until

pytestmark = pytest.mark.usefixtures("slurm_cluster")


def submit(cluster: SlurmCluster, script: str, *options: str) -> str:
    """Submit a one-line script; its job id."""
    return cluster.run("sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp", *options, "--wrap", script)


def eventually(ask: Callable[[], JobRecord | None], phase: Phase, seconds: float = 20.0) -> JobRecord:
    """Ask until the job is in this phase."""
    last: list[JobRecord | None] = [None]

    def reached() -> bool:
        last[0] = ask()
        return last[0] is not None and last[0].phase is phase

    wait_until(reached, seconds=seconds, what=f"the job is {phase} ({last[0]})")
    assert last[0] is not None
    return last[0]


def queued(job_id: str) -> JobRecord | None:
    return query_jobs([job_id]).records.get(job_id)


def accounted(job_id: str) -> JobRecord | None:
    return ask_accounting([job_id]).get(job_id)


def test_a_job_is_followed_from_the_queue_to_its_end(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=2)
    gate = tmp_path / "go"
    job = submit(slurm_cluster, f"until [ -e {gate} ]; do sleep 0.1; done", "-N2", "--hold")
    waiting = query_jobs([job]).records[job]
    assert (waiting.phase, waiting.reason, waiting.nodes) == (Phase.WAITING, "JobHeldUser", "")
    assert (waiting.started_at, waiting.ended_at, waiting.exit_code) == (None, None, None)
    slurm_cluster.run("scontrol", "release", job)
    running = eventually(lambda: queued(job), Phase.RUNNING)
    assert running.nodes and running.exit_code is None
    assert running.ended_at is None, "the expected end is not an end"
    gate.touch()
    ended = eventually(lambda: queued(job), Phase.ENDED)
    assert (ended.state, ended.exit_code, ended.signal, ended.source) == ("COMPLETED", 0, None, "squeue")
    assert ended.started_at is not None and ended.ended_at is not None
    assert before <= ended.started_at <= ended.ended_at <= datetime.now(timezone.utc) + timedelta(seconds=2)


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
    job = submit(slurm_cluster, '[ "$SLURM_ARRAY_TASK_ID" != 3 ] && sleep 30', "--array=0-5:1%2")
    tasks = {f"{job}_{task}" for task in range(6)}
    assert set(query_jobs([job]).records) == tasks
    assert set(query_jobs([f"{job}_1", f"{job}_4"]).records) == {f"{job}_1", f"{job}_4"}
    assert set(query_jobs([f"{job}_9"]).records) == set()
    eventually(lambda: queued(f"{job}_0"), Phase.RUNNING)
    wait_until(lambda: set(ask_accounting([job])) == tasks, seconds=15, what="sacct has the tasks, pending ones too")
    slurm_cluster.run("scancel", f"{job}_0", f"{job}_1")
    failed = eventually(lambda: queued(f"{job}_3"), Phase.ENDED)
    assert (failed.state, failed.exit_code) == ("FAILED", 1)
    slurm_cluster.run("scancel", job)


def test_a_cancelled_job_is_ended_in_queue_and_accounting(slurm_cluster: SlurmCluster) -> None:
    job = submit(slurm_cluster, "sleep 60", "--hold")
    slurm_cluster.run("scancel", job)
    for ask in (queued, accounted):
        assert eventually(lambda ask=ask: ask(job), Phase.ENDED).state == "CANCELLED"  # type: ignore[misc]


def test_one_query_answers_for_known_and_unknown_jobs_together(slurm_cluster: SlurmCluster) -> None:
    job = submit(slurm_cluster, "true", "--hold")
    answer = query_jobs([job, "99999998", "99999999"])
    assert set(answer.records) == {job} and answer.complaints == ()
    assert query_jobs(["99999999"]) == QueryAnswer({}, ())
    many = query_jobs([job, *(str(70_000_000 + number) for number in range(20_000))])
    assert set(many.records) == {job}
    slurm_cluster.run("scancel", job)


@pytest.mark.parametrize("comment", ["run=a|b,c d", "two\nlines", "ünï ☃ 'q' \"dq\" $HOME"])
def test_a_job_is_found_by_its_exact_comment(slurm_cluster: SlurmCluster, comment: str) -> None:
    comment = f"{comment} {time.time_ns()}"
    job = submit(slurm_cluster, "true", f"--comment={comment}")
    submit(slurm_cluster, "true", "--hold", f"--comment={comment}0")
    answer = find_by_comment(comment)
    assert list(answer.records) == [job] and answer.records[job].comment == comment


def test_a_job_that_left_the_queue_is_found_in_accounting(
    slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue forgets after MinJobAge; here it is made to have forgotten everything."""

    def forgetful(argv: Sequence[str], *, variables: Mapping[str, str] | None = None) -> CommandResult:
        return CommandResult(tuple(argv), 0, "", "") if argv[0] == "squeue" else run_slurm(argv, variables=variables)

    comment = f"token|{time.time_ns()}"
    job = submit(slurm_cluster, "exit 5", f"--comment={comment}")
    eventually(lambda: queued(job), Phase.ENDED)
    monkeypatch.setattr(query, "run_slurm", forgetful)
    wait_until(lambda: list(find_by_comment(comment).records) == [job], seconds=20, what="sacct has the comment")
    record = query_jobs([job]).records[job]
    assert (record.source, record.state, record.exit_code, record.comment) == ("sacct", "FAILED", 5, comment)
    assert record.nodes in slurm_cluster.node_names and record.started_at is not None and record.ended_at is not None


def test_another_users_job_with_the_same_comment_is_not_taken_for_ours(slurm_cluster: SlurmCluster) -> None:
    comment = f"theirs {time.time_ns()}"
    job = submit(slurm_cluster, "true", f"--comment={comment}", f"--uid={OTHER_USER}", "--hold")
    assert query_jobs([job]).records[job].comment == comment
    assert find_by_comment(comment) == QueryAnswer({}, ())
    slurm_cluster.run("scancel", job)


def test_a_users_own_output_formats_do_not_disturb_the_answer(
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


def test_a_node_that_fails_ends_the_job_or_puts_it_back_into_the_queue(slurm_cluster: SlurmCluster) -> None:
    node = slurm_cluster.node_names[-1]
    lost = submit(slurm_cluster, "sleep 60", "-w", node, "--no-requeue")
    again = submit(slurm_cluster, "sleep 60", "-w", node, "--requeue")
    for job in (lost, again):
        eventually(lambda job=job: queued(job), Phase.RUNNING)  # type: ignore[misc]
    try:
        slurm_cluster.set_node(node, "down")
        assert eventually(lambda: queued(lost), Phase.ENDED).state == "NODE_FAIL"
        eventually(lambda: queued(again), Phase.WAITING)
    finally:
        slurm_cluster.run("scancel", again)
        slurm_cluster.set_node(node, "resume")


def test_stopped_accounting_is_a_complaint_and_the_queue_still_answers(slurm_cluster: SlurmCluster) -> None:
    job = submit(slurm_cluster, "true", "--hold")
    with slurm_cluster.without_accounting():
        answer = query_jobs([job, "99999999"])
        assert set(answer.records) == {job}
        (complaint,) = answer.complaints
        assert complaint.startswith("sacct: ") and "slurmdbd" in complaint
        assert find_by_comment(f"never {time.time_ns()}").complaints, "an empty answer must not look like a proof"
        with pytest.raises(AccountingUnreachable):
            run_slurm(["sacctmgr", "show", "user"])
    slurm_cluster.run("scancel", job)
