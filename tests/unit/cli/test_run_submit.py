"""Tests of `repro submit` and `repro retry`: texts, exit codes and next commands. unit/api tests what they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.launch.submit import Submitted
from orchestrator.launch.submit import submit as submit_plans
from orchestrator.ledger.attempts import job_rows
from orchestrator.planning.plan import Plan
from tests.recorded_jobs import new_ledger
from tests.unit.cli.calling import Caller, Done
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")
THERE = ("submit", "figure-13", "--cluster", "there", "--scale", "cpu")
ONE = ("--where", "pp=1,gbs=4")
SMALL = ("--where", "gbs=4")


def submit(repro: Caller, *words: str) -> Done:
    return repro("submit", *HERE, *words)


def last_line(done: Done) -> str:
    return done.stderr.splitlines()[-1]


@pytest.fixture
def failed(repro: Caller) -> Caller:
    """A case that ran out of memory, and has more of it now."""
    repro.site.behave("fail", "pp1-gbs4")
    assert submit(repro, *ONE, "--wait").returncode == 1
    repro.site.behave("well", "pp1-gbs4")
    return repro


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    (repro.site.folder / "clusters" / "there.yaml").write_text(PROFILE)
    return Slurm.on_path(repro.site.folder.parent / "bin", monkeypatch)


def test_a_job_that_would_fail_again_is_named_with_the_retry_command(failed: Caller) -> None:
    done = submit(failed, *SMALL, "--canary")
    hint = "repro retry figure-13 --class gpu-oom --where pp=1,tp=4,gbs=4, or leave --canary out"
    assert (done.returncode, done.complaints) == (
        2,
        [f"repro: the canary, pp=1,tp=4,gbs=4, failed (gpu-oom), and the others wait for it. Hint: {hint}"],
    )
    done = submit(failed, *SMALL, "--wait")
    assert done.returncode == 1
    assert done.complaints[0] == (
        "figure-13 at scale cpu on here: 3 cases: 1 failed and not submitted again, 2 submitted"
    )
    assert "1 job failed (gpu-oom), not submitted again: the job would run out of GPU memory again" in done.complaints
    assert "to submit them again: repro retry figure-13 --class gpu-oom" in done.complaints
    assert done.stderr.count("next: ") == 1 and last_line(done).startswith("next: ")
    done = failed("retry", "figure-13")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.complaints == ["no jobs to run again", "failed (gpu-oom): the job would run out of GPU memory again"]
    assert last_line(done).startswith("next: repro retry figure-13 --class gpu-oom")


def test_a_retry_prints_its_jobs_and_their_result(failed: Caller) -> None:
    (before,) = job_rows(new_ledger(failed.site.folder))
    dry = failed("retry", "figure-13", "--class", "gpu-oom", "--time", "2:00:00", "--dry-run")
    assert dry.returncode == 0 and dry.stdout.splitlines()[1].split() == [
        *(before.job_id, "pp=1,tp=4,gbs=4", "gpu-oom", "2", "2:00:00")
    ]
    assert dry.complaints == ["would submit 1 job again; nothing was submitted"]
    wrong = failed("retry", "figure-13", "--class", "gpu-om")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.complaints == ['repro: --class gpu-om: no such class. Did you mean "gpu-oom"?']
    done = failed("retry", "figure-13", "--class", "gpu-oom", "--wait")
    assert done.returncode == 0 and f"{before.job_id}  pp=1,tp=4,gbs=4  attempt 2\n" in done.stdout
    assert done.complaints[0] == "1 job submitted again" and "1/1 verified" in done.stderr
    assert last_line(done).startswith("next: repro collect figure-13 ")


def test_jobs_that_were_submitted_again_are_printed_though_a_later_group_is_refused(
    failed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of two clusters are two groups, and the second one's scheduler refuses."""
    clusters = failed.site.folder / "clusters"
    shutil.copy(clusters / "here.yaml", clusters / "there.yaml")
    failed.site.behave("fail", "pp1-gbs4")
    assert failed(*THERE, *ONE, "--wait").returncode == 1
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
    first = next(row for row in job_rows(new_ledger(failed.site.folder)) if row.cluster == submitted[0])
    assert done.stdout == f"{first.job_id}  pp=1,tp=4,gbs=4  attempt 2\n"


def test_a_canary_is_named_and_a_wrong_word_of_depends_on_is_refused(repro: Caller) -> None:
    assert submit(repro, "--depends-on", "cold-up").returncode == 2
    assert not (repro.site.folder / "results.db").exists()
    done = submit(repro, *SMALL, "--canary")
    assert "the canary is pp=1,tp=4,gbs=4; the others start once it is verified or partial" in done.stderr


def test_jobs_that_a_full_queue_refused_are_queued_with_the_command_that_submits_them(
    repro: Caller, slurm: Slurm
) -> None:
    slurm.then("refuse")
    done = repro(*THERE, *ONE)
    assert done.returncode == 2 and "Invalid partition name specified" in done.complaints[-1]
    slurm.has_room_for(3)
    done = repro(*THERE, "--json")
    assert done.returncode == 0
    assert "figure-13 at scale cpu on there: 6 cases: 3 submitted, 3 queued" in done.complaints
    assert any(line.startswith("3 queued: QOSMaxSubmitJobPerUserLimit") for line in done.complaints)
    assert sorted(row["state"] for row in json.loads(done.stdout)["jobs"]) == ["PENDING"] * 3 + ["QUEUED"] * 3
    assert last_line(done) == (
        "next: repro wait figure-13 --cluster there --scale cpu   # submit the queued jobs when there is room"
    )
    assert repro("cancel", "figure-13", "--where", "gbs=16").complaints == ["3 jobs are being cancelled"]


def test_a_retry_that_leaves_jobs_alone_names_the_reason(repro: Caller, slurm: Slurm) -> None:
    profile = PROFILE.replace("max_running: 4", "max_running: 4, requeue: true")
    (repro.site.folder / "clusters" / "there.yaml").write_text(profile)
    assert repro(*THERE, *ONE).returncode == 0 and len(slurm.calls()) == 1
    with new_ledger(repro.site.folder).writing() as session:
        session.connection().exec_driver_sql(
            "update attempts set phase = 'ended', state = 'NODE_FAIL', verdict = 'failed', failure = 'node-fail'"
        )
    done = repro("retry", "figure-13")
    assert done.complaints == [
        "0 jobs submitted again; 1 not submitted again: too many attempts, or Slurm repeats them; --class submits them"
    ]
