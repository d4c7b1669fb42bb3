"""Tests of `repro submit` and `repro retry`: which jobs run again, in which order, after what, until when."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.files import read_record
from orchestrator.launch.submit import Submitted
from orchestrator.launch.submit import submit as submit_plans
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import Attempt, Run
from orchestrator.planning.plan import Plan
from orchestrator.reading.logs import log_blocks
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import CHECKOUT, Site
from tests.unit.cli.calling import Caller, Done
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")
ONE = ("--where", "pp=1,gbs=4")
SMALL = ("--where", "gbs=4")


def submit(repro: Caller, *words: str) -> Done:
    return repro("submit", *HERE, *words)


def summary(done: Done) -> str:
    """Behind `figure-13 at scale cpu on here: `."""
    found = re.search(r"^figure-13 at scale cpu on \w+: (.*)$", done.stderr, re.MULTILINE)
    assert found, done.stderr
    return found[1]


def status(repro: Caller) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(repro("status", "figure-13", "--json").stdout)["jobs"]
    return rows


def rows(site: Site) -> list[JobRow]:
    return job_rows(new_ledger(site.folder))


def last_line(done: Done) -> str:
    return done.stderr.rstrip("\n").rpartition("\n")[2]


# ---- once more -----------------------------------------------------------------------------------------------


def test_verified_cases_are_measured_again_only_with_rerun(repro: Caller) -> None:
    assert summary(submit(repro, *ONE, "--wait")) == "1 case: 1 submitted"
    assert summary(submit(repro, *ONE)) == "1 case: 1 done, 0 submitted"
    done = submit(repro, *ONE, "--rerun", "--wait")
    assert (done.returncode, summary(done)) == (0, "1 case: 1 submitted")
    (row,) = rows(repro.site)
    assert (row.number, row.verdict) == (2, "verified") and len(repro.site.started()) == 2


def test_open_jobs_are_not_submitted_again_even_with_rerun(repro: Caller) -> None:
    repro.site.behave("hang")
    submit(repro, *SMALL)
    wait_until(repro.site.sleepers)
    assert summary(submit(repro, *SMALL, "--rerun")) == "3 cases: 1 running, 2 waiting, 0 submitted"
    repro("cancel", "figure-13")


def test_repeats_are_jobs_of_their_own_that_are_found_again(repro: Caller) -> None:
    done = submit(repro, *ONE, "--repeat", "2", "--wait")
    assert (done.returncode, summary(done)) == (0, "2 cases: 2 submitted"), done.stderr
    first, second = rows(repro.site)
    assert (first.label, second.label) == ("pp=1,tp=4,gbs=4", "pp=1,tp=4,gbs=4 #2")
    assert first.job_id != second.job_id and first.folder != second.folder
    for row in (first, second):
        assert (row.verdict, row.number) == ("verified", 1)
        assert "elapsed time per iteration" in repro("logs", row.job_id).stdout
    assert summary(submit(repro, *ONE, "--repeat", "2")) == "2 cases: 2 done, 0 submitted"
    assert summary(submit(repro, *ONE)) == "1 case: 1 done, 0 submitted"
    assert summary(submit(repro, *ONE, "--repeat", "3", "--wait")) == "3 cases: 2 done, 1 submitted"
    assert len(repro.site.started()) == 3


def test_a_repeat_that_has_not_begun_can_be_cancelled(repro: Caller) -> None:
    repro.site.behave("hang")
    submit(repro, *ONE, "--repeat", "3")
    wait_until(repro.site.sleepers)
    done = repro("cancel", "figure-13")
    assert done.returncode == 0 and "3 jobs are being cancelled" in done.stderr, done.stderr
    wait_until(lambda: {row["state"] for row in status(repro)} == {"CANCELLED"})
    assert len(repro.site.started()) == 1


# ---- what failed ---------------------------------------------------------------------------------------------


def test_a_job_that_would_fail_again_is_left_alone_with_the_retry_command(repro: Caller) -> None:
    repro.site.behave("fail", "pp2-gbs4")
    assert submit(repro, *SMALL, "--wait").returncode == 1
    done = submit(repro, *SMALL)
    assert summary(done) == "3 cases: 2 done, 1 failed and not submitted again, 0 submitted"
    assert "1 job failed (gpu-oom), not submitted again: the job would run out of GPU memory again" in done.complaints
    assert "to submit them again: repro retry figure-13 --class gpu-oom" in done.complaints
    assert done.stderr.count("next: ") == 1 and last_line(done).startswith("next: ")
    assert len(repro.site.started()) == 3


@pytest.fixture
def failed(repro: Caller) -> Caller:
    """A case that ran out of memory, and has more of it now."""
    repro.site.behave("fail", "pp1-gbs4")
    assert submit(repro, *ONE, "--wait").returncode == 1
    repro.site.behave("well", "pp1-gbs4")
    return repro


def test_a_retry_leaves_a_job_that_would_fail_again_with_reason_and_command(failed: Caller) -> None:
    done = failed("retry", "figure-13")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.complaints == ["no jobs to run again", "failed (gpu-oom): the job would run out of GPU memory again"]
    assert last_line(done).startswith("next: repro retry figure-13 --class gpu-oom")
    assert len(failed.site.started()) == 1


def test_a_retry_by_class_runs_it_as_the_next_attempt_of_the_same_job(failed: Caller) -> None:
    (before,) = rows(failed.site)
    dry = failed("retry", "figure-13", "--class", "gpu-oom", "--time", "2:00:00", "--dry-run")
    assert dry.returncode == 0 and dry.stdout.splitlines()[1].split() == [
        *(before.job_id, "pp=1,tp=4,gbs=4", "gpu-oom", "2", "2:00:00")
    ]
    assert dry.complaints == ["would submit 1 job again; nothing was submitted"]
    assert failed("retry", "figure-13", "--dry-run").stdout == ""
    elsewhere = failed("retry", "figure-13", "--class", "gpu-oom", "--cluster", "local")
    assert elsewhere.complaints == ["no jobs to run again"]
    assert failed("retry", "figure-13", "--class", "gpu-oom", "--state", "timeout").stdout == ""
    assert len(rows(failed.site)) == 1 and rows(failed.site)[0].number == 1
    done = failed("retry", "figure-13", "--class", "gpu-oom")
    assert (done.returncode, done.stdout) == (0, f"{before.job_id}  pp=1,tp=4,gbs=4  attempt 2\n"), done.stderr
    assert done.complaints == ["1 job submitted again"]
    wait_until(lambda: status(failed)[0]["verdict"] == "verified")
    (row,) = rows(failed.site)
    assert (row.job_id, row.number) == (before.job_id, 2) and row.folder != before.folder
    assert failed("retry", "figure-13", "--class", "gpu-oom").complaints == ["no jobs to run again"]


def test_a_retry_by_the_jobs_id_and_of_another_class_than_its_own(failed: Caller) -> None:
    (before,) = rows(failed.site)
    done = failed("retry", before.job_id[:6], "--class", "timeout,node-fail")
    assert done.complaints[0] == "no jobs to run again" and len(failed.site.started()) == 1
    assert failed("retry", before.job_id[:6], "--class", "timeout, gpu-oom").complaints == ["1 job submitted again"]
    wait_until(lambda: len(failed.site.started()) == 2)


def limit_s(row: JobRow) -> int:
    found = re.search(r"^timeout .*--kill-after=60 (\d+) ", (Path(row.folder) / "job.sh").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


@pytest.mark.parametrize(
    ("word", "expected"), [("+50%", 1.5), ("+0:30:00", 1800), ("1:02:03", 3723), ("1-00:00:00", 86400)]
)
def test_a_retry_with_another_time_limit_has_it_in_its_script(failed: Caller, word: str, expected: float) -> None:
    before = limit_s(rows(failed.site)[0])
    assert failed("retry", "figure-13", "--class", "gpu-oom", "--time", word).returncode == 0
    after = limit_s(rows(failed.site)[0])
    if word.endswith("%"):
        assert after == before * expected
    else:
        assert after == expected + (before if word.startswith("+") else 0)
    wait_until(lambda: len(failed.site.started()) == 2)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--class", "gpu-om"), 'repro: --class gpu-om: no such class. Did you mean "gpu-oom"?'),
        (("--class", "zzzzz"), "repro: --class zzzzz: no such class. Hint: classes: not-submitted, refused, "),
        (("--time", "soon"), "repro: --time soon: not a time limit. Hint: for example +50%, +0:30:00 or 2:00:00"),
        (("--time", "+50"), "repro: --time +50: not a time limit"),
        (("--time", "1:99:00"), "repro: --time 1:99:00: not a time limit"),
        (("--time", "-0:30:00"), "repro: --time -0:30:00: not a time limit"),
    ],
)
def test_a_class_or_a_limit_that_is_none_is_refused_and_nothing_is_run(
    failed: Caller, words: tuple[str, ...], complaint: str
) -> None:
    done = failed("retry", "figure-13", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.complaints) == 1 and done.complaints[0].startswith(complaint), done.stderr
    assert [row.number for row in rows(failed.site)] == [1]


def test_every_unknown_class_is_one_line(failed: Caller) -> None:
    done = failed("retry", "figure-13", "--class", "a,timeout,b")
    assert [line.split()[2] for line in done.complaints] == ["a:", "b:"]


def test_jobs_that_were_submitted_again_are_printed_though_a_later_group_is_refused(
    failed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of two clusters are two groups, and the second one's scheduler refuses."""
    clusters = failed.site.folder / "clusters"
    shutil.copy(clusters / "here.yaml", clusters / "there.yaml")
    failed.site.behave("fail", "pp1-gbs4")
    assert failed("submit", "figure-13", "--cluster", "there", "--scale", "cpu", *ONE, "--wait").returncode == 1
    failed.site.behave("well", "pp1-gbs4")
    submitted: list[str] = []

    def submit_first(plans: Sequence[Plan], cluster: Cluster, *rest: Any) -> Submitted:
        if submitted:
            raise ReproError(Problem("invalid partition"))
        submitted.append(cluster.name)
        return submit_plans(plans, cluster, *rest)

    monkeypatch.setattr("orchestrator.api.runs.submit_plans", submit_first)
    done = failed("retry", "figure-13", "--class", "gpu-oom")
    assert (done.returncode, done.complaints) == (2, ["1 job submitted again", "repro: invalid partition"])
    first = next(row for row in rows(failed.site) if row.cluster == submitted[0])
    assert done.stdout == f"{first.job_id}  pp=1,tp=4,gbs=4  attempt 2\n"


def test_a_job_that_failed_with_its_node_is_retried_automatically(repro: Caller) -> None:
    repro.site.behave("hang", "pp1-gbs4")
    submit(repro, *SMALL)
    wait_until(repro.site.sleepers)
    start = read_record(Path(rows(repro.site)[0].folder) / "start")
    assert start is not None
    os.killpg(start.pid, signal.SIGKILL)
    repro.site.behave("well", "pp1-gbs4")
    wait_until(lambda: {row["verdict"] for row in status(repro)} == {"failed", "verified"})
    assert rows(repro.site)[0].failure == "node-fail"
    assert repro("retry", "figure-13").complaints == ["1 job submitted again"]
    wait_until(lambda: {row["verdict"] for row in status(repro)} == {"verified"})
    assert [row.number for row in rows(repro.site)] == [2, 1, 1]


def test_a_job_that_would_be_another_now_is_not_retried(failed: Caller) -> None:
    """What is measured under one job's name must be that job."""
    shutil.copytree(CHECKOUT / "experiments", failed.site.folder / "experiments")
    file = failed.site.folder / "experiments" / "sc21" / "figure-13.yaml"
    text = file.read_text()
    assert text.count("model: {layers: 4, hidden: 256") == 1
    file.write_text(text.replace("model: {layers: 4, hidden: 256", "model: {layers: 4, hidden: 512"))
    (row,) = rows(failed.site)
    done = failed("retry", "figure-13", "--class", "gpu-oom")
    assert (done.returncode, done.complaints) == (
        2,
        [
            f"repro: pp=1,tp=4,gbs=4 ({row.job_id}) would be another job now: its experiment, profile, code or "
            "image has changed. Hint: repro submit figure-13 --cluster here"
        ],
    )
    assert len(failed.site.started()) == 1


def planted_profile(repro: Caller, how: str) -> Path:
    """A profile of another user with a line of bash, which the ledger names since that user has edited it."""
    folder = repro.site.folder.parent / "planted"
    folder.mkdir()
    file = folder / "here.yaml"
    own = (repro.site.folder / "clusters" / "here.yaml").read_text()
    file.write_text(f"{own}setup: ['touch {folder}/evil']\n")
    if how == "owner":
        os.chown(file, 65534, 65534)
    else:
        (folder if how == "folder's mode" else file).chmod(0o777)
    with new_ledger(repro.site.folder).writing() as session:
        session.execute(sa.update(Run).values(profile_file=str(file)))
    return file


@pytest.mark.fault(
    section="Safety",
    fault="Another user writes the path of a profile into the ledger",
    promise="`retry` refuses it and names `--cluster`.",
)
@pytest.mark.parametrize("how", ["owner", "mode", "folder's mode"])
def test_a_profile_that_another_user_has_written_into_the_ledger_is_not_used(failed: Caller, how: str) -> None:
    if how == "owner" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    file = planted_profile(failed, how)
    place = file.parent if how == "folder's mode" else file
    why = "belongs to nobody" if how == "owner" else "is writable by everybody"
    done = failed("retry", "figure-13", "--class", "gpu-oom")
    assert (done.returncode, done.complaints) == (
        2,
        [
            f"repro: {place}: {why}, so the profile recorded in the ledger is not used. "
            "Hint: give the profile: --cluster here, or --cluster FILE"
        ],
    )
    assert len(failed.site.started()) == 1
    named = failed("retry", "figure-13", "--class", "gpu-oom", "--cluster", "here")
    assert named.complaints == ["1 job submitted again"]
    wait_until(lambda: {row["verdict"] for row in status(failed)} == {"verified"})
    assert not (file.parent / "evil").exists()


@pytest.mark.fault(
    section="Safety",
    fault="Another user writes a path as the name of the cluster",
    promise="A recorded name is never used as a path.",
)
def test_a_recorded_cluster_name_is_never_used_as_a_path(failed: Caller) -> None:
    file = planted_profile(failed, "mode")
    with new_ledger(failed.site.folder).writing() as session:
        session.execute(sa.update(Run).values(profile_file=None, cluster=str(file)))
    done = failed("retry", "figure-13", "--class", "gpu-oom")
    assert done.returncode == 2 and "no such cluster. Hint: give the profile" in done.stderr
    assert len(failed.site.started()) == 1


def test_a_profile_of_the_users_own_is_used_again_by_its_path(repro: Caller) -> None:
    file = repro.site.folder.parent / "mine" / "own.yaml"
    file.parent.mkdir()
    file.write_text((repro.site.folder / "clusters" / "here.yaml").read_text())
    repro.site.behave("fail", "pp1-gbs4")
    words = ("submit", "figure-13", "--cluster", str(file), "--scale", "cpu", *ONE, "--wait")
    assert repro(*words).returncode == 1
    assert repro("retry", "figure-13", "--class", "gpu-oom").complaints == ["1 job submitted again"]


def test_a_retry_of_a_repeat_runs_that_one(repro: Caller) -> None:
    repro.site.behave("fail", "pp1-gbs4")
    submit(repro, *ONE, "--repeat", "2", "--wait")
    repro.site.behave("well", "pp1-gbs4")
    _, second = rows(repro.site)
    done = repro("retry", second.job_id, "--class", "gpu-oom")
    assert done.stdout == f"{second.job_id}  pp=1,tp=4,gbs=4 #2  attempt 2\n"
    wait_until(lambda: [row["verdict"] for row in status(repro)] == ["failed", "verified"])
    assert [row.number for row in rows(repro.site)] == [1, 2]


# ---- one before the others -----------------------------------------------------------------------------------


def test_the_smallest_case_goes_first_and_once_it_is_verified_the_others_do(repro: Caller) -> None:
    done = submit(repro, "--canary", "--wait")
    assert done.returncode == 0, done.stderr
    assert "the canary is pp=1,tp=4,gbs=4; the others start once it is verified or partial" in done.stderr
    assert repro.site.started()[0] == "pp=1,tp=4,gbs=4" and len(repro.site.started()) == 6


def test_a_canary_that_fails_keeps_the_others_from_starting(repro: Caller) -> None:
    repro.site.behave("nan", "pp1-gbs4")
    done = submit(repro, "--canary", *SMALL, "--wait")
    assert done.returncode == 1 and repro.site.started() == ["pp=1,tp=4,gbs=4"]
    canary, *others = rows(repro.site)
    assert (canary.failure, {row.failure for row in others}) == ("numbers", {"stopped"})
    assert all("its canary, pp=1,tp=4,gbs=4, is not verified" in str(row.verdict_reason) for row in others)


def test_a_case_that_is_verified_already_needs_no_canary(repro: Caller) -> None:
    submit(repro, *ONE, "--wait")
    done = submit(repro, "--canary", *SMALL, "--wait")
    assert done.returncode == 0 and "the canary is" not in done.stderr
    assert summary(done) == "3 cases: 1 done, 2 submitted" and len(repro.site.started()) == 3


def test_a_canary_that_would_fail_again_blocks_the_others(repro: Caller) -> None:
    repro.site.behave("fail")
    submit(repro, "--canary", *SMALL, "--wait")
    assert len(repro.site.started()) == 1
    done = submit(repro, "--canary", *SMALL, "--wait")
    hint = "repro retry figure-13 --class gpu-oom --where pp=1,tp=4,gbs=4, or leave --canary out"
    assert (done.returncode, done.complaints) == (
        2,
        [f"repro: the canary, pp=1,tp=4,gbs=4, failed (gpu-oom), and the others wait for it. Hint: {hint}"],
    )
    assert len(repro.site.started()) == 1
    # The hint is a command; then the others start.
    repro.site.behave("well")
    assert repro(*hint.partition(", or")[0].split()[1:]).complaints == ["1 job submitted again"]
    done = submit(repro, "--canary", *SMALL, "--wait")
    assert done.returncode == 0 and len(repro.site.started()) == 4, done.stderr


# ---- when it stops, and after what ---------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--wait",)], ids=["left to itself", "waited for"])
def test_after_so_many_failures_of_one_kind_no_other_job_starts(repro: Caller, more: tuple[str, ...]) -> None:
    repro.site.behave("fail")
    done = submit(repro, "--stop-after", "2", *more)
    assert done.returncode == (1 if more else 0)
    wait_until(lambda: {row["verdict"] for row in status(repro)} == {"failed"})
    assert len(repro.site.started()) == 2
    failures = sorted(str(row.failure) for row in rows(repro.site))
    assert failures[-1] in ("gpu-oom", "stopped") and failures.count("gpu-oom") == 2
    assert set(failures) <= {"gpu-oom", "stopped", "cancelled"}


def test_failures_of_different_kinds_stop_nothing(repro: Caller) -> None:
    repro.site.behave("fail", "pp1-gbs4")
    repro.site.behave("nan", "pp2-gbs4")
    assert submit(repro, "--stop-after", "2", *SMALL, "--wait").returncode == 1
    assert len(repro.site.started()) == 3


def test_jobs_begin_after_one_that_was_named(repro: Caller) -> None:
    repro.site.behave("hang", "pp1-gbs4")
    submit(repro, "--where", "pp=1,gbs=4")
    submit(repro, "--where", "pp=2,gbs=4")
    wait_until(repro.site.sleepers)
    first, second = rows(repro.site)
    assert submit(repro, "--where", "pp=4,gbs=4", "--after", second.job_id).returncode == 0
    repro("cancel", first.job_id)
    wait_until(lambda: len(repro.site.started()) == 3)
    assert repro.site.started() == [f"pp={pp},tp={4 // pp},gbs=4" for pp in (1, 2, 4)]


def test_a_job_that_has_ended_is_not_waited_for(repro: Caller) -> None:
    submit(repro, *ONE, "--wait")
    (row,) = rows(repro.site)
    assert submit(repro, "--where", "pp=2,gbs=4", "--after", row.job_id, "--wait").returncode == 0


def test_after_refuses_jobs_that_cannot_be_awaited(repro: Caller, monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    assert submit(repro, *ONE, "--after", "zzz").complaints == [
        "repro: zzz: no experiment or job of this name. Hint: repro status shows the jobs"
    ]
    repro.site.behave("hang")
    submit(repro, *ONE)
    (row,) = rows(site)
    on_slurm(repro, monkeypatch)
    done = repro("submit", "figure-13", "--cluster", "there", "--scale", "cpu", "--after", row.job_id)
    assert (done.returncode, done.complaints) == (
        2,
        [f"repro: --after {row.job_id}: pp=1,tp=4,gbs=4 is a job of another scheduler. Hint: wait for it: repro wait"],
    )
    repro("cancel", "figure-13")


def test_a_local_cluster_runs_one_job_at_a_time_whatever_the_option(repro: Caller) -> None:
    done = submit(repro, *ONE, "--max-parallel", "2", "--wait")
    assert done.returncode == 0
    assert "note: here runs one job at a time; --max-parallel has no effect" in done.complaints
    assert "note:" not in submit(repro, *ONE, "--max-parallel", "1").stderr


def test_a_dry_run_has_the_note_that_max_parallel_has_no_effect(repro: Caller) -> None:
    note = "note: here runs one job at a time; --max-parallel has no effect"
    assert note in submit(repro, *ONE, "--max-parallel", "2", "--dry-run").complaints


@pytest.mark.parametrize("word", ["--max-parallel", "--repeat", "--stop-after"])
def test_none_at_all_is_not_a_number_of_jobs(repro: Caller, word: str) -> None:
    assert submit(repro, *ONE, word, "0").returncode == 2
    assert not (repro.site.folder / "results.db").exists()


def test_a_warm_up_without_kernels_is_refused(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    done = submit(repro, "--depends-on", "warm-up")
    assert (done.returncode, done.complaints) == (
        2,
        ["repro: --depends-on warm-up: local jobs run one after another. Hint: leave it out"],
    )
    on_slurm(repro, monkeypatch)
    done = repro("submit", "figure-13", "--cluster", "there", "--scale", "cpu", "--depends-on", "warm-up")
    assert done.complaints == ["repro: --depends-on warm-up: pretrain compiles no kernels first. Hint: leave it out"]
    assert submit(repro, "--depends-on", "cold-up").returncode == 2
    assert not (repro.site.folder / "results.db").exists()


# ---- what a person is told about Slurm's queue ---------------------------------------------------------------


def on_slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    (repro.site.folder / "clusters" / "there.yaml").write_text(PROFILE)
    return Slurm.on_path(repro.site.folder.parent / "bin", monkeypatch)


THERE = ("submit", "figure-13", "--cluster", "there", "--scale", "cpu")


def test_jobs_that_a_full_queue_refused_are_queued_with_the_command_that_submits_them(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_slurm(repro, monkeypatch).has_room_for(3)
    done = repro(*THERE, "--json")
    assert (done.returncode, summary(done)) == (0, "6 cases: 3 submitted, 3 queued")
    assert any(line.startswith("3 queued: QOSMaxSubmitJobPerUserLimit") for line in done.complaints)
    assert sorted(row["state"] for row in json.loads(done.stdout)["jobs"]) == ["PENDING"] * 3 + ["QUEUED"] * 3
    assert last_line(done) == (
        "next: repro wait figure-13 --cluster there --scale cpu   # submit the queued jobs when there is room"
    )


def its_sender_has_ended(site: Site) -> None:
    """As it has after every command; here they are all called within this process."""
    with new_ledger(site.folder).writing() as session:
        session.execute(sa.update(Attempt).values(pid=2**22 + 1))


@pytest.mark.fault(
    section="Submissions",
    fault="The queue stays full for a while",
    promise="The rest is submitted once, by the next `repro submit` or by a command that waits.",
    count=0,
)
def test_submitting_again_submits_queued_attempts_once(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = on_slurm(repro, monkeypatch)
    slurm.has_room_for(3)
    repro(*THERE)
    slurm.has_room_for(10)
    # As long as that command is there, it may still be at it.
    assert summary(repro(*THERE)) == "6 cases: 6 waiting, 0 submitted"
    its_sender_has_ended(repro.site)
    assert summary(repro(*THERE)) == "6 cases: 3 waiting, 3 submitted"
    found = rows(repro.site)
    assert [row.state for row in found] == ["PENDING"] * 6 and {row.number for row in found} == {1}
    assert len({row.token for row in found}) == len(slurm.taken()) == 2
    assert summary(repro(*THERE)) == "6 cases: 6 waiting, 0 submitted" and len(slurm.taken()) == 2


def test_a_queued_attempt_can_be_cancelled_and_is_not_submitted_later(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = on_slurm(repro, monkeypatch)
    slurm.has_room_for(3)
    repro(*THERE)
    done = repro("cancel", "figure-13", "--where", "gbs=16")
    assert (done.returncode, done.complaints) == (0, ["3 jobs are being cancelled"]) and slurm.cancelled() == []
    slurm.has_room_for(10)
    assert summary(repro(*THERE)) == "6 cases: 3 waiting, 3 failed and not submitted again, 0 submitted"
    assert len(slurm.taken()) == 1


def test_a_refusal_is_exit_2_with_the_schedulers_words_and_the_next_command_tries_again(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = on_slurm(repro, monkeypatch)
    slurm.then("refuse")
    done = repro(*THERE)
    assert done.returncode == 2 and "Invalid partition name specified" in done.complaints[-1]
    assert {(row.state, row.failure) for row in rows(repro.site)} == {("NEVER_SUBMITTED", "refused")}
    assert summary(repro(*THERE)) == "6 cases: 6 submitted"


def test_a_slow_scheduler_is_reported_while_the_command_waits(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.launch.sbatch.PAUSES_S", (0.001,))
    slurm = on_slurm(repro, monkeypatch)
    slurm.then("late")
    done = repro(*THERE)
    assert done.returncode == 0 and summary(done) == "6 cases: 6 submitted"
    assert sum("asking again" in line for line in done.complaints) == 1 and len(slurm.calls()) == 1


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A job fails for the second and third time",
    promise="Each retry excludes all nodes that failed and starts later. Then no automatic retry follows.",
    count=0,
)
def test_a_retry_on_slurm_keeps_off_the_node_that_failed_and_pauses_when_it_failed_before(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = on_slurm(repro, monkeypatch)
    repro(*THERE, *ONE)
    ledger = new_ledger(repro.site.folder)

    def loses(node: str) -> None:
        newest = sa.select(sa.func.max(Attempt.id)).scalar_subquery()
        lost = {"phase": "ended", "state": "NODE_FAIL", "verdict": "failed", "failure": "node-fail", "nodes": node}
        with ledger.writing() as session:
            session.execute(sa.update(Attempt).where(Attempt.id == newest).values(**lost))

    loses("n7")
    assert repro("retry", "figure-13").complaints == ["1 job submitted again"]
    loses("n9")
    assert repro("retry", "figure-13").complaints == ["1 job submitted again"]
    assert slurm.options() == ["", "--exclude=n7", "--exclude=n7,n9 --begin=now+60"]
    loses("n8")
    done = repro("retry", "figure-13")
    assert done.complaints == [
        "0 jobs submitted again; 1 not submitted again: too many attempts, or Slurm repeats them; --class submits them"
    ]
    assert repro("retry", "figure-13", "--class", "node-fail").complaints == ["1 job submitted again"]
    assert slurm.options()[-1] == "--exclude=n7,n8,n9 --begin=now+300"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A long log is read while other processes write to the ledger",
    promise="They do not wait: the log is read before the ledger is locked.",
    count=0,
)
def test_the_log_of_a_failed_attempt_is_read_while_others_can_write_to_the_ledger(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = on_slurm(repro, monkeypatch)
    repro(*THERE, *ONE)
    ledger = new_ledger(repro.site.folder)
    (row,) = rows(repro.site)
    failed = {"phase": "ended", "state": "FAILED", "verdict": "failed", "failure": "gpu-fault", "nodes": "n[1-2]"}
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(**failed))
    Path(row.folder).mkdir(exist_ok=True)
    (Path(row.folder) / "log.txt").write_text("5: CUDA error: uncorrectable ECC error encountered\n")
    (Path(row.folder) / "batch.txt").write_text("srun: error: n2: task 5: Exited with exit code 1\n")
    writes = []

    def read(folder: Path) -> Iterator[bytes]:
        with contextlib.closing(sqlite3.connect(repro.site.folder / "results.db", timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")  # sqlite3.OperationalError where `repro` holds the lock
        writes.append(folder)
        return log_blocks(folder)

    monkeypatch.setattr("orchestrator.launch.batches.log_blocks", read)
    assert repro("retry", "figure-13").complaints == ["1 job submitted again"]
    assert slurm.options() == ["", "--exclude=n2"] and writes == [Path(row.folder)]


def test_retry_with_wait_ends_with_the_result_of_the_jobs(failed: Caller) -> None:
    done = failed("retry", "figure-13", "--class", "gpu-oom", "--wait")
    assert done.returncode == 0 and "1/1 verified" in done.stderr, done.stderr
    assert last_line(done).startswith("next: repro collect figure-13 ")
