"""Slurm without accounting that forgets jobs after seconds, reuses ids and hides jobs from other users."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.launch import refresh as refreshing
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import ledger_url, open_ledger
from orchestrator.ledger.tables import Poll
from orchestrator.reading.collect import collect
from orchestrator.slurm.site import choose, read_site
from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.configuration import Shape
from tests.slurm.site import SlurmSite, ids_in_queue
from tests.waiting import LIMIT_S, wait_until

CASE = ("--where", "pp=1,gbs=4")
CHECKOUT = Path(__file__).resolve().parents[2]

# `repro` without the waiting time before an unlisted job is lost.
HASTY = """
import datetime, sys
import orchestrator.launch.refresh
orchestrator.launch.refresh.LOST_AFTER = datetime.timedelta(0)
from orchestrator.cli.main import main
sys.argv[0] = "repro"
main()
"""


@pytest.fixture(scope="module")
def forgetful_cluster(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:  # noqa: ARG001  says why there is none, once
    """Yield two nodes. squeue forgets jobs after some seconds, and arrays have at most four elements."""
    shape = Shape(nodes=2, accounting=False, min_job_age_s=2, most_in_array=4, last_job_id=40, private_jobs=True)
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="repro-slurm-")), shape)
    cluster.up()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment().items():
            patch.setenv(name, value)
        yield cluster
    cluster.down()
    shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def site(forgetful_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:  # noqa: ARG001  needs it up
    made = SlurmSite(tmp_path).use_stand_in(account="max_running: 6")
    yield made
    made.variables.clear()
    (made.folder / "go").touch()
    made.repro("cancel", "figure-13", "--yes")


def wait_until_forgotten(cluster: SlurmCluster) -> None:
    wait_until(lambda: not cluster.run("squeue", "-h", "--states=all"), what="squeue forgets its jobs")


def wait_for_end_records(site: SlurmSite, jobs: int) -> None:
    wait_until(lambda: len(list(site.folder.glob("runs/*/*/end"))) == jobs, what=f"{jobs} jobs write their end records")


def jobs_after_two_refreshes(site: SlurmSite, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the jobs after two refreshes without the waiting time before a job is lost."""
    monkeypatch.setattr(refreshing, "LOST_AFTER", timedelta(0))
    site.status()
    return site.status()


@pytest.mark.fault(
    section="Submissions",
    fault="An urgent partition can preempt jobs of the default one",
    promise="`clusters new` chooses the default one, and its comment names the urgent one.",
)
def test_the_default_partition_is_chosen_before_an_urgent_one(forgetful_cluster: SlurmCluster) -> None:  # noqa: ARG001
    """Here the tier of a partition decides who is preempted, and all partitions have the mode of the cluster."""
    choice = choose(read_site("root"))
    assert choice.partition.name == "batch"
    assert str(choice.preemption) == "preemptible by jobs of partition hi (PreemptMode=REQUEUE)"
    assert choose(read_site("root"), "lo").is_preemptible and not choose(read_site("root"), "hi").is_preemptible


@pytest.mark.fault(
    section="Submissions",
    fault="More equal jobs than an array may have (MaxArraySize 4)",
    promise="They are submitted as several arrays.",
    count=0,
)
@pytest.mark.fault(
    section="Job states",
    fault="No accounting; squeue forgets jobs after seconds, and Slurm reuses the id for another user's job",
    promise="The job is recognised by its own record. The other job is not mistaken for it.",
)
def test_a_forgotten_job_is_recognised_by_its_record_and_a_reused_id_is_not_mistaken(
    site: SlurmSite, forgetful_cluster: SlurmCluster
) -> None:
    site.behave("gated")
    assert site.submit().returncode == 0, "six cases, in arrays of four and two"
    ids = [row["id"] for row in site.status()]
    assert len({job_id.partition("_")[0] for job_id in ids}) == 2
    (site.folder / "go").touch()
    wait_for_end_records(site, 6)
    wait_until_forgotten(forgetful_cluster)
    job_ids: set[str] = set()
    while ids[0].partition("_")[0] not in job_ids:  # until another user's job has the id of ours
        assert len(job_ids) < 60
        job_ids.add(forgetful_cluster.run("sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "true"))
        if len(job_ids) % 10 == 0:
            forgetful_cluster.run("scancel", "-u", "root")
    rows = site.status()
    assert {(row["state"], row["verdict"]) for row in rows} == {("COMPLETED", "verified")}, rows
    assert "end record" in site.repro("history", rows[0]["job"]).stdout
    forgetful_cluster.run("scancel", "-u", "root")


@pytest.mark.fault(
    section="Job states",
    fault="The job's processes are killed; no record, no accounting, and squeue forgets the job",
    promise="The job is not `LOST` at once, but after all sources were asked for 5 minutes. It is then submitted "
    "again, and a late copy of the lost attempt does not start.",
)
def test_a_job_is_lost_only_after_all_sources_were_asked_for_five_minutes(
    site: SlurmSite, forgetful_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.behave("hang")
    assert site.submit(*CASE).returncode == 0
    site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    for node in forgetful_cluster.node_names:  # both lose their power: no end record is written
        forgetful_cluster.kill_node(node)
        forgetful_cluster.set_node(node, "down")
    wait_until_forgotten(forgetful_cluster)
    (row,) = site.status()
    assert row["state"] == "RUNNING" and row["verdict"] is None, "not concluded at once"
    assert "1 running, 0 submitted" in site.submit(*CASE).stderr
    monkeypatch.setattr(refreshing, "LOST_AFTER", timedelta(0))
    ledger = open_ledger(ledger_url(None, site.folder))
    assert ledger is not None
    refreshing.refresh(ledger)
    collect(ledger)
    (lost,) = job_rows(ledger)
    assert (lost.state, lost.verdict, lost.failure) == ("LOST", "failed", "lost")
    assert "1 submitted" in site.submit(*CASE).stderr
    late = subprocess.run(["bash", f"{lost.folder}/job.sh", lost.folder], capture_output=True, text=True, check=False)
    assert late.returncode == 143 and "given up" in late.stderr, "a late copy of the lost attempt does not start"
    for node in forgetful_cluster.node_names:
        forgetful_cluster.start_node(node)


@pytest.mark.fault(
    section="Job states",
    fault="Another user, who may not see the job (`PrivateData=jobs`), refreshes",
    promise="No state changes, and the owner submits no job twice.",
)
def test_a_user_who_may_not_see_a_job_cannot_mark_it_lost(
    forgetful_cluster: SlurmCluster,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="repro-shared-"))
    folder.chmod(0o777)
    site = SlurmSite(folder / "mine").use_stand_in(account="max_running: 6")
    site.variables["REPRO_DATABASE"] = str(folder / "results.db")
    site.behave("gated")
    try:
        assert site.submit(*CASE).returncode == 0
        (job,) = site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
        site.wait_for(lambda _rows: [*site.folder.glob("runs/*/*/start")])
        (folder / "results.db").chmod(0o666)
        home = folder / "theirs"
        home.mkdir()
        home.chmod(0o777)
        inherit = site.environment | {"REPRO_HOME": str(home), "PYTHONPATH": str(CHECKOUT)}
        subprocess.run(["chmod", "-R", "o+rX", str(site.folder)], check=True)  # readable for the other user
        as_other_user = ["setpriv", "--reuid", OTHER_USER, "--regid", "nogroup", "--clear-groups"]
        command = [*as_other_user, sys.executable, "-c", HASTY, "status"]
        for _ in range(2):
            looked = subprocess.run(command, cwd=home, env=inherit, capture_output=True, text=True, check=False)
            assert "Slurm does not list a job of root" in looked.stderr, looked.stderr
        (row,) = site.status()
        assert (row["state"], row["verdict"]) == ("RUNNING", None)
        assert "1 running, 0 submitted" in site.submit(*CASE).stderr
        assert ids_in_queue(forgetful_cluster.run, folder) == [job["id"]]
    finally:
        (site.folder / "go").touch()
        site.repro("cancel", "figure-13", "--yes")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.fault(
    section="Job states",
    fault="`SLURM_CONF` names another cluster with the same name",
    promise="The job is neither looked up there, nor `LOST`, nor cancelled. The message has a hint.",
)
def test_commands_on_another_cluster_neither_lose_nor_cancel_a_job(
    site: SlurmSite, forgetful_cluster: SlurmCluster, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.behave("gated")
    assert site.submit(*CASE).returncode == 0
    (job,) = site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    site.variables["SLURM_CONF"] = str(slurm_cluster.conf)
    (row,) = jobs_after_two_refreshes(site, monkeypatch)
    assert (row["state"], row["verdict"]) == ("RUNNING", None)
    refused = site.repro("cancel", job["job"], "--yes")
    assert refused.returncode == 1 and "set SLURM_CONF" in refused.stderr, refused.stderr
    assert "0 submitted" in site.submit(*CASE).stderr
    del site.variables["SLURM_CONF"]
    (row,) = jobs_after_two_refreshes(site, monkeypatch)
    assert row["state"] == "RUNNING" and ids_in_queue(forgetful_cluster.run, site.folder) == [job["id"]]


@pytest.mark.fault(
    section="Job states",
    fault="slurmctld loses its state while `repro wait` runs",
    promise="`repro wait` reads the end from the job's own record.",
)
def test_wait_reads_the_end_of_a_job_that_slurm_has_lost(site: SlurmSite, forgetful_cluster: SlurmCluster) -> None:
    site.behave("gated")
    assert site.submit(*CASE).returncode == 0
    site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    ledger = open_ledger(ledger_url(None, site.folder))
    assert ledger is not None

    def last_poll() -> object:
        with ledger.reading() as session:
            return session.scalar(sa.select(sa.func.max(Poll.asked_at)))

    before = last_poll()
    with site.start("wait", "figure-13") as waiting:
        try:
            wait_until(lambda: last_poll() != before, what="`repro wait` asks Slurm")
            forgetful_cluster.stop_controller()
            (site.folder / "go").touch()
            wait_for_end_records(site, 1)
            forgetful_cluster.lose_state()
            messages = waiting.communicate(timeout=LIMIT_S)[1]
        finally:
            waiting.kill()
    assert waiting.returncode == 0, messages
    (row,) = site.status()
    assert (row["state"], row["verdict"]) == ("COMPLETED", "verified")


def killed_with_its_sbatch(site: SlurmSite, body: str) -> None:
    site.replace_sbatch(body)
    assert site.submit(*CASE).returncode == -signal.SIGKILL
    site.variables.clear()


@pytest.mark.fault(
    section="Job states",
    fault="Accounting keeps no comments, and `repro` is killed after sbatch",
    promise="The job's own record decides.",
)
def test_without_comments_a_job_record_settles_a_submission_killed_after_sbatch(
    site: SlurmSite, forgetful_cluster: SlurmCluster
) -> None:
    killed_with_its_sbatch(site, '/usr/bin/sbatch "$@"; kill -9 $PPID')
    wait_for_end_records(site, 1)
    wait_until_forgotten(forgetful_cluster)
    (row,) = site.status()
    assert (row["state"], row["verdict"], row["attempt"]) == ("COMPLETED", "verified", 1)


@pytest.mark.fault(
    section="Job states",
    fault="Accounting keeps no comments, and `repro` and its sbatch are killed",
    promise="The submission can be cancelled and made again.",
)
def test_without_comments_a_submission_killed_before_sbatch_can_be_cancelled(
    site: SlurmSite, forgetful_cluster: SlurmCluster
) -> None:
    killed_with_its_sbatch(site, "kill -9 $PPID; exit 1")
    (row,) = site.status()
    assert row["state"] == "SUBMITTING", "accounting cannot tell whether the job has come and gone"
    done = site.repro("cancel", "figure-13", "--yes")
    assert done.returncode == 0 and "1 job is being cancelled" in done.stderr, done.stderr
    (row,) = site.status()
    assert (row["state"], row["failure"]) == ("NEVER_SUBMITTED", "cancelled")
    assert ids_in_queue(forgetful_cluster.run, site.folder) == []
    assert "1 submitted" in site.submit(*CASE, "--rerun").stderr
