"""One submission per attempt, whatever breaks between the ledger, `repro submit` and a real Slurm."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked_repro import run_forked
from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite, ids_in_queue

# Submits with these arguments and is killed at the NTH call of PLACE.
DIES = """
import os, signal, sys
import orchestrator.launch.submit, orchestrator.launch.sbatch
from orchestrator.cli.main import main
calls = 0
real = PLACE
def die(*given, **named):
    global calls
    calls += 1
    if calls == NTH:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given, **named)
PLACE = die
sys.argv = ["repro", "submit", "figure-13", "--cluster", "site.yaml", "--scale", "cpu", *sys.argv[1:]]
main()
"""

PLACES = {
    "before the row": ("orchestrator.launch.submit.new_run", 1),
    "between the rows and their turn": ("orchestrator.launch.submit.send", 1),
    "before the claim": ("orchestrator.launch.sbatch.claim", 1),
    "between the claim and sbatch": ("orchestrator.launch.sbatch._sbatch", 1),
    "between sbatch and recording its id": ("orchestrator.launch.sbatch.record_submission", 1),
    "between two submissions": ("orchestrator.launch.sbatch.claim", 2),
    "behind the second sbatch": ("orchestrator.launch.sbatch.record_submission", 2),
}


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:  # noqa: ARG001  needs it up
    made = SlurmSite(tmp_path).use_stand_in()
    yield made
    made.variables.clear()
    made.repro("cancel", "figure-13", "--yes")


def killed_submit(site: SlurmSite, place: str, nth: int, *options: str) -> None:
    script = DIES.replace("PLACE", place).replace("NTH", str(nth))
    done = run_forked(options, site.folder, site.environment, script)
    assert done.returncode == -signal.SIGKILL, (place, done.stdout, done.stderr)


def assert_each_case_is_queued_once(site: SlurmSite, cluster: SlurmCluster, cases: int) -> None:
    """Check that Slurm has each job once, and that it is the first attempt in the ledger."""
    rows = site.status()
    queued = ids_in_queue(cluster.run, site.folder)
    assert len(rows) == cases and {row["state"] for row in rows} == {"PENDING"}, rows
    assert sorted(queued) == sorted(row["id"] for row in rows) and len(set(queued)) == cases


@pytest.mark.fault(
    section="Submissions",
    fault="`repro submit` is killed (SIGKILL) at one of seven points: before the rows are recorded, before they are "
    "queued, before the claim, before sbatch, after sbatch, between two submissions, after the second sbatch",
    promise="After the next `repro submit`, Slurm has each case once, as its first attempt.",
)
@pytest.mark.parametrize("place", PLACES)
def test_after_a_kill_at_any_point_the_next_submit_leaves_each_job_in_slurm_once(
    place: str, site: SlurmSite, paused_cluster: SlurmCluster
) -> None:
    # Each job in a separate submission.
    options = (
        ("--where", "gbs=4", "--canary") if place in ("between two submissions", "behind the second sbatch") else ()
    )
    killed_submit(site, *PLACES[place], *(options or ("--where", "gbs=4")))
    again = site.submit("--where", "gbs=4", *options[2:])
    assert again.returncode == 0, again.stderr
    assert_each_case_is_queued_once(site, paused_cluster, 3)
    assert "0 submitted" in site.submit("--where", "gbs=4").stderr


@pytest.mark.fault(
    section="Submissions",
    fault="`repro` is killed while its sbatch still runs",
    promise="The next command waits for that sbatch. It neither gives the submission up nor repeats it.",
)
def test_an_sbatch_that_outlives_its_repro_is_waited_for(site: SlurmSite, paused_cluster: SlurmCluster) -> None:
    go = site.folder / "go"
    site.replace_sbatch(f'kill -9 $PPID; until [ -e {go} ]; do sleep 0.1; done; exec /usr/bin/sbatch "$@"')
    assert site.submit("--where", "gbs=4").returncode == -signal.SIGKILL
    site.variables.clear()
    assert {row["state"] for row in site.status()} == {"SUBMITTING"}, "it may still get there"
    assert "3 waiting, 0 submitted" in site.submit("--where", "gbs=4").stderr
    go.touch()
    site.wait_for(lambda rows: all(row["state"] == "PENDING" for row in rows))
    assert_each_case_is_queued_once(site, paused_cluster, 3)


@pytest.mark.fault(
    section="Submissions",
    fault="Three terminals submit at the same time",
    promise="Slurm has each case once.",
)
def test_three_submits_at_once_submit_each_job_once(site: SlurmSite, paused_cluster: SlurmCluster) -> None:
    command = ("submit", "figure-13", "--cluster", "site.yaml", "--scale", "cpu")
    terminals = [site.start(*command) for _ in range(3)]
    ends = [(terminal.communicate(timeout=600), terminal.returncode) for terminal in terminals]
    assert [code for _, code in ends] == [0, 0, 0], ends
    assert_each_case_is_queued_once(site, paused_cluster, 6)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder that all users may write to, with a ledger for two users."""
    folder = Path(tempfile.mkdtemp(prefix="repro-shared-"))
    folder.chmod(0o777)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.mark.fault(
    section="Submissions",
    fault="Two users share a ledger: both submit, one cancels the other's job, one submission is interrupted",
    promise="Slurm has each case once. Slurm decides who may cancel a job. Each user's own command recovers that "
    "user's interrupted submissions.",
)
def test_two_users_on_one_ledger_submit_each_job_once_and_cannot_cancel_each_others(
    shared: Path, paused_cluster: SlurmCluster
) -> None:
    mine, theirs = (SlurmSite(shared / name).use_stand_in() for name in ("mine", "theirs"))
    for user_site in (mine, theirs):
        user_site.variables["REPRO_DATABASE"] = str(shared / "results.db")
    subprocess.run(["chown", "-R", OTHER_USER, str(theirs.folder)], check=True)
    theirs.user, theirs.variables["HOME"] = OTHER_USER, str(theirs.folder)
    try:
        first = mine.submit("--where", "gbs=4")
        assert first.returncode == 0, first.stderr
        (shared / "results.db").chmod(0o666)
        done: list[subprocess.CompletedProcess[str]] = []
        other = threading.Thread(target=lambda: done.append(theirs.submit()))
        other.start()
        again = mine.submit()
        other.join()
        assert again.returncode == 0 and done[0].returncode == 0, (again.stderr, done[0].stderr)
        assert_each_case_is_queued_once_of_two(mine, shared, paused_cluster)

        refused = theirs.repro("cancel", "figure-13", "--where", "gbs=4", "--yes")
        assert refused.returncode == 1 and refused.stderr.count("denied") == 3, refused.stderr
        assert len(ids_in_queue(paused_cluster.run, mine.folder)) >= 3, "Slurm did not consent"
        assert {row["state"] for row in mine.status()} == {"PENDING"}

        killed_submit(mine, *PLACES["between sbatch and recording its id"], "--rerun", "--repeat", "2")
        answer = theirs.repro("status")
        assert "a submission of root was cut off; root's next command finds out" in answer.stderr, answer.stderr
        assert all(row["state"] == "PENDING" for row in mine.status())
    finally:
        mine.repro("cancel", "figure-13", "--yes")
        theirs.repro("cancel", "figure-13", "--yes")


def assert_each_case_is_queued_once_of_two(mine: SlurmSite, shared: Path, cluster: SlurmCluster) -> None:
    rows = mine.status()
    queued = ids_in_queue(cluster.run, shared)
    assert len(rows) == 6 and sorted(queued) == sorted(row["id"] for row in rows), (rows, queued)


# ---- the controller --------------------------------------------------------------------------------------------


def shorten_timeouts(cluster: SlurmCluster, site: SlurmSite) -> None:
    """Make clients wait for the controller for four seconds instead of ten."""
    conf = cluster.conf.with_name("short_timeouts.conf")
    conf.write_text(cluster.conf.read_text() + "MessageTimeout=4\n")
    site.variables["SLURM_CONF"] = str(conf)


@pytest.mark.fault(
    section="Submissions",
    fault="The controller freezes, answers too late and still accepts the job",
    promise="Slurm has the job once.",
)
def test_a_controller_that_accepts_after_the_timeout_has_the_job_once(
    site: SlurmSite, paused_cluster: SlurmCluster
) -> None:
    shorten_timeouts(paused_cluster, site)
    controller = f"$(cat {paused_cluster.folder}/pid/slurmctld.pid)"
    # The request is in the frozen controller's socket, and is accepted when the controller continues.
    late = f'kill -STOP {controller}; /usr/bin/sbatch "$@"; code=$?; kill -CONT {controller}; exit $code'
    site.replace_sbatch(f'[ "$SECOND" ] || {{ {late}; }}\nexec /usr/bin/sbatch "$@"')
    done = site.submit("--where", "gbs=4")
    assert done.returncode == 0 and "asking again in 2 s" in done.stderr, done.stderr
    site.variables.clear()
    assert_each_case_is_queued_once(site, paused_cluster, 3)


@pytest.mark.fault(
    section="Submissions",
    fault="The controller is killed during a submission and started again",
    promise="Slurm has the job once.",
)
def test_a_controller_that_restarts_during_a_submission_gets_the_job_once(
    site: SlurmSite, paused_cluster: SlurmCluster
) -> None:
    site.use_stand_in('sbatch: ["--hold"]')  # a killed controller forgets that its partition is down
    shorten_timeouts(paused_cluster, site)
    failed = site.folder / "sbatch-failed"
    kill = f"kill -9 $(cat {paused_cluster.folder}/pid/slurmctld.pid)"
    first = f'{kill}; /usr/bin/sbatch "$@"; code=$?; touch {failed}; exit $code'
    site.replace_sbatch(f'[ "$SECOND" ] || {{ {first}; }}\nexec /usr/bin/sbatch "$@"')

    def restart() -> None:
        while not failed.exists():
            time.sleep(0.1)
        paused_cluster.start_controller()

    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        done = site.submit("--where", "gbs=4")
    finally:
        failed.touch()
        restarting.join()
    assert done.returncode == 0 and "asking again" in done.stderr, done.stderr
    site.variables.clear()
    assert_each_case_is_queued_once(site, paused_cluster, 3)


REAPER = '{"OccupiedIdleGPUsJobReaper": {"exemptIdleTimeMins": "60"}}'


@pytest.mark.fault(
    section="Submissions",
    fault="Slurm accepts the job, and its answer is lost; the site has no comment of its own, a text, or a JSON object",
    promise="The job is found by its token. The site finds its own comment.",
)
@pytest.mark.parametrize("comment", ["", "group 7", REAPER], ids=["none", "text", "json"])
def test_a_job_whose_answer_was_lost_is_found_by_its_token(
    comment: str, site: SlurmSite, paused_cluster: SlurmCluster
) -> None:
    site.use_stand_in(f"comment: {json.dumps(comment)}" if comment else "requeue: false")
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    site.replace_sbatch(f'/usr/bin/sbatch "$@" >/dev/null; echo "{lost}" >&2; exit 1')
    done = site.submit("--where", "gbs=4")
    assert done.returncode == 0 and "3 submitted" in done.stderr, done.stderr
    site.variables.clear()
    assert_each_case_is_queued_once(site, paused_cluster, 3)
    (text,) = set(paused_cluster.run("squeue", "-h", "-o", "%k").splitlines())
    if comment == REAPER:
        assert json.loads(text).items() > json.loads(REAPER).items()
    assert comment in text or comment == REAPER


@pytest.mark.fault(
    section="Job states",
    fault="The controller is unreachable",
    promise="`status` shows the last states and their age. `submit` ends with exit code 3 and records nothing.",
)
def test_without_a_controller_status_shows_the_age_and_no_state_changes(
    site: SlurmSite, paused_cluster: SlurmCluster
) -> None:
    shorten_timeouts(paused_cluster, site)
    assert site.submit("--where", "gbs=4").returncode == 0
    before = [(row["state"], row["id"]) for row in site.status()]
    paused_cluster.stop_controller()
    try:
        away = site.repro("status")
        assert away.returncode == 0 and "states are from" in away.stderr and "s ago" in away.stderr, away.stderr
        assert away.stdout.count("PENDING") == 3
        refused = site.submit()
        assert refused.returncode == 3 and "Traceback" not in refused.stderr, refused.stderr
    finally:
        paused_cluster.start_controller()
    now = [(row["state"], row["id"]) for row in site.status()]
    assert now == before, "what no scheduler can be given is not recorded"


@pytest.mark.fault(
    section="Submissions",
    fault="The queue of a real Slurm is full by a limit of its QOS",
    promise="Three jobs run at a time. `repro wait` submits each of the others once, as jobs end.",
)
def test_jobs_that_exceed_the_queue_limit_stay_queued_until_a_wait_submits_them(
    site: SlurmSite, slurm_cluster: SlurmCluster
) -> None:
    site.use_stand_in("qos: limited")  # three jobs per user at most
    site.behave("gated")  # on a busy machine the first jobs would end before the others are refused
    done = site.submit()
    assert done.returncode == 0 and "6 cases: 3 submitted, 3 queued" in done.stderr, done.stderr
    assert "QOSMaxSubmitJobPerUserLimit" in done.stderr and "repro wait figure-13" in done.stderr
    assert [row["state"] for row in site.status()].count("QUEUED") == 3
    (site.folder / "go").touch()
    site.wait_for(lambda rows: sum(row["verdict"] == "verified" for row in rows) == 3)
    waited = site.repro("wait", "figure-13")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    rows = site.status()
    assert {row["verdict"] for row in rows} == {"verified"}
    names = slurm_cluster.run(
        "squeue", "-h", "-r", "--states=all", "-o", "%i", "-j", ",".join(row["id"] for row in rows)
    )
    assert sorted(names.split()) == sorted(row["id"] for row in rows), "each once"


@pytest.mark.fault(
    section="Submissions",
    fault="Nodes of the deny list: known ones, one that Slurm lacks, and too many",
    promise="Slurm runs no job on a denied node. An unknown node or too few remaining nodes are refused before sbatch.",
)
def test_slurm_keeps_a_job_off_denied_nodes_and_unknown_or_too_many_denied_nodes_are_refused(
    site: SlurmSite, paused_cluster: SlurmCluster
) -> None:
    deny = ("nodes", "deny", "--cluster", "site.yaml", "--because", "ECC")
    unknown = site.repro(*deny, "n2", "n99")
    assert unknown.returncode == 2 and "n99: the Slurm of site has no such node" in unknown.stderr
    assert site.repro(*deny, "n[2-3]").returncode == 0
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    (job_id,) = ids_in_queue(paused_cluster.run, site.folder)
    assert "ExcNodeList=n[2-3]" in paused_cluster.run("scontrol", "show", "job", job_id)
    site.repro(*deny, "n1", "n4")
    refused = site.submit("--where", "pp=2,gbs=4")
    assert refused.returncode == 2 and "0 of 4 left: 4 denied" in refused.stderr
    assert ids_in_queue(paused_cluster.run, site.folder) == [job_id]


@pytest.mark.fault(
    section="Job states",
    fault="A program of the site adds a second component, so that Slurm prints the job as `4000+0` and `4000+1`",
    promise="Its state is that of the first component, which has the script. It ends verified.",
)
def test_a_heterogeneous_job_is_followed_by_its_first_component(site: SlurmSite, slurm_cluster: SlurmCluster) -> None:
    site.behave("gated")
    site.replace_sbatch('exec /usr/bin/sbatch "${@:1:$#-2}" : --nodes=1 --mem=100M "${@: -2}"')
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    (row,) = site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")
    components = slurm_cluster.run("squeue", "-h", f"--jobs={row['id']}", "-O", "JobArrayID:40").split()
    assert sorted(components) == [f"{row['id']}+0", f"{row['id']}+1"]
    (site.folder / "go").touch()
    (row,) = site.wait_until_ended()
    assert (row["state"], row["verdict"], row["attempt"]) == ("COMPLETED", "verified", 1)


@pytest.mark.fault(
    section="Job states",
    fault="`repro cancel` of a job with a second component",
    promise="Both components end.",
)
def test_a_heterogeneous_job_is_cancelled(site: SlurmSite, paused_cluster: SlurmCluster) -> None:
    site.replace_sbatch('exec /usr/bin/sbatch "${@:1:$#-2}" : --nodes=1 --mem=100M "${@: -2}"')
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    (row,) = site.status()
    assert row["state"] == "PENDING"
    done = site.repro("cancel", "figure-13")
    assert done.returncode == 0 and "1 job is being cancelled" in done.stderr, done.stderr
    assert paused_cluster.run("squeue", "-h", f"--jobs={row['id']}") == ""
    (row,) = site.wait_until_ended()
    assert row["state"] == "CANCELLED"
