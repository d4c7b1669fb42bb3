"""Jobs on this machine: one at a time, outliving who submitted them, and gone when they are cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.files import read_record
from orchestrator.launch.cancel import cancel
from orchestrator.launch.executors import cancel_local, local_state, start_queue
from orchestrator.launch.refresh import refresh
from orchestrator.launch.sbatch import mark_cancelled
from orchestrator.launch.submit import submit
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import OPEN
from orchestrator.planning.plan import repeated
from orchestrator.reading.collect import collect
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def states(ledger: Ledger) -> list[str]:
    refresh(ledger)
    return [row.state for row in job_rows(ledger)]


def all_ended(ledger: Ledger) -> bool:
    refresh(ledger)
    return all(row.phase not in OPEN for row in job_rows(ledger))


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def launch(site: Site, where: str | None = None) -> tuple[Ledger, list[JobRow]]:
    ledger = new_ledger(site.folder)
    submit(site.plans(where), site.cluster(), ledger, site.folders, ["repro", "submit"])
    return ledger, job_rows(ledger)


def test_every_job_runs_once_the_smallest_first_and_its_end_is_read(site: Site) -> None:
    ledger, rows = launch(site)
    wait_until(lambda: all_ended(ledger))
    collect(ledger)
    names = [row.case_name for row in rows]
    assert names == [f"pp={pp},tp={4 // pp},gbs={gbs}" for pp in (1, 2, 4) for gbs in (4, 16)]
    # A batch of 4 is less work than one of 16; what is as large stays in the experiment's order.
    assert site.started() == [*names[::2], *names[1::2]]
    for row in job_rows(ledger):
        assert (row.state, row.exit_code, row.verdict) == ("COMPLETED", 0, "verified")
        assert row.started_at is not None and row.ended_at is not None and row.started_at <= row.ended_at
        start, end = (read_record(Path(row.folder) / name) for name in ("start", "end"))
        assert start is not None and end is not None
        assert start.pid == end.pid and end.scheduler_id == row.scheduler_id


def test_two_queues_of_one_machine_do_not_run_at_the_same_time(site: Site) -> None:
    site.behave("slow")
    first, _ = launch(site, "gbs=4")
    launch(site, "gbs=16")
    wait_until(lambda: all_ended(first))
    lines = [*(site.folder / "started").read_text().splitlines(), *(site.folder / "ended").read_text().splitlines()]
    in_time = [line.split()[1:] for line in sorted(lines)]
    assert len(in_time) == 12
    for began, ended in zip(in_time[::2], in_time[1::2], strict=True):
        assert ended == [began[0], "ended"], "another job began before this one had ended"


def test_jobs_outlive_the_process_that_submitted_them(site: Site) -> None:
    site.behave("gated")
    assert site.submit("--where", "gbs=4").returncode == 0
    ledger = new_ledger(site.folder)
    assert "PENDING" in states(ledger)
    (site.folder / "go").touch()
    wait_until(lambda: all_ended(ledger))
    assert states(ledger) == ["COMPLETED"] * 3


@pytest.mark.fault(
    section="Local queue",
    fault="A job fails",
    promise="The next job runs.",
)
def test_a_failing_job_does_not_hold_up_the_next(site: Site) -> None:
    site.behave("fail", "pp1-gbs4")
    ledger, _ = launch(site, "gbs=4")
    wait_until(lambda: all_ended(ledger))
    collect(ledger)
    rows = job_rows(ledger)
    assert [(row.state, row.exit_code) for row in rows] == [("FAILED", 7), ("COMPLETED", 0), ("COMPLETED", 0)]
    assert "out of memory on the GPU" in str(rows[0].verdict_reason)


def test_cancelling_ends_everything_the_running_job_started_and_starts_no_other(site: Site) -> None:
    site.behave("hang")
    ledger, rows = launch(site, "gbs=4")
    wait_until(site.sleepers)
    refresh(ledger)
    assert states(ledger) == ["RUNNING", "PENDING", "PENDING"]
    start = read_record(Path(rows[0].folder) / "start")
    assert start is not None
    done = cancel(ledger, job_rows(ledger))
    assert done.asked == job_rows(ledger) and done.refused == []
    wait_until(lambda: all_ended(ledger))
    assert states(ledger) == ["CANCELLED"] * 3
    wait_until(lambda: not site.sleepers())
    wait_until(lambda: not group_exists(start.pid))
    assert site.started() == [rows[0].case_name]
    end = read_record(Path(rows[0].folder) / "end")
    assert end is not None and end.exit_code == 143


def test_cancelling_a_waiting_job_leaves_the_running_one_alone(site: Site) -> None:
    site.behave("slow")
    ledger, rows = launch(site, "gbs=4")
    wait_until(site.started)
    assert [row.job_id for row in cancel(ledger, rows[1:]).asked] == [row.job_id for row in rows[1:]]
    wait_until(lambda: all_ended(ledger))
    assert states(ledger) == ["COMPLETED", "CANCELLED", "CANCELLED"]


@pytest.mark.fault(
    section="Local queue",
    fault="A job is cancelled while its script starts",
    promise="It does not run.",
)
def test_a_job_cancelled_while_its_script_is_already_starting_does_not_run(site: Site) -> None:
    """The queue has looked for the mark and found none; the script looks again."""
    ledger, (row,) = launch(site, "pp=1,gbs=4")
    wait_until(lambda: all_ended(ledger))
    for record in ("start", "end", "claimed"):
        (Path(row.folder) / record).unlink()
    cancel_local(Path(row.folder))
    late = subprocess.run(["bash", f"{row.folder}/job.sh"], capture_output=True, text=True, check=False)
    assert (late.returncode, late.stderr) == (143, "repro: not started: it was cancelled, or given up, before\n")
    assert len(site.started()) == 1
    assert local_state(Path(row.folder), None).state == "CANCELLED"


def test_cancelling_what_has_just_ended_does_not_stop_the_cancelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "start").write_text("exit_code=0\nat=2026-01-01T00:00:00Z\nhost=h\nscheduler_id=7_0\npid=4194305\n")
    monkeypatch.setattr("orchestrator.launch.executors.is_alive", lambda _pid, _marker: True)
    cancel_local(tmp_path)
    assert (tmp_path / "cancelled").exists()


@pytest.mark.fault(
    section="Local queue",
    fault="A job is killed (SIGKILL)",
    promise="Class `node-fail`. The next job runs.",
)
def test_a_job_that_is_killed_outright_is_lost_and_the_next_one_runs(site: Site) -> None:
    site.behave("hang", "pp1-gbs4")
    ledger, rows = launch(site, "gbs=4")
    wait_until(site.sleepers)
    start = read_record(Path(rows[0].folder) / "start")
    assert start is not None
    os.killpg(start.pid, signal.SIGKILL)
    wait_until(lambda: all_ended(ledger))
    assert states(ledger) == ["NODE_FAIL", "COMPLETED", "COMPLETED"]


@pytest.mark.fault(
    section="Local queue",
    fault="The queue is killed (SIGKILL)",
    promise="Its running job continues. The waiting jobs are `node-fail`.",
)
def test_when_the_queue_is_killed_its_running_job_goes_on_and_the_waiting_ones_are_lost(site: Site) -> None:
    site.behave("slow")
    ledger, rows = launch(site, "gbs=4")
    wait_until(site.started)
    os.kill(int(str(rows[0].scheduler_id).partition("_")[0]), signal.SIGKILL)
    wait_until(lambda: all_ended(ledger))
    assert states(ledger) == ["COMPLETED", "NODE_FAIL", "NODE_FAIL"]


@pytest.mark.fault(
    section="Local queue",
    fault="A job exceeds its time limit",
    promise="It is ended with the state TIMEOUT.",
)
def test_a_job_over_its_time_limit_is_ended_and_called_so(site: Site) -> None:
    site.behave("hang", "pp1-gbs4")
    plans = site.plans("gbs=4")
    plans[0] = replace(plans[0], resources=replace(plans[0].resources, time_limit="0:00:01"))
    ledger = new_ledger(site.folder)
    submit(plans, site.cluster(), ledger, site.folders, [])
    wait_until(lambda: all_ended(ledger))
    collect(ledger)
    late, *others = job_rows(ledger)
    assert (late.state, late.exit_code, late.verdict) == ("TIMEOUT", 124, "failed")
    assert "the time limit was reached" in str(late.verdict_reason)
    assert [row.state for row in others] == ["COMPLETED", "COMPLETED"]


def test_a_folder_with_signs_that_mean_something_elsewhere_is_a_folder(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "50% off, %j %a $HOME 'quoted'")
    ledger, _ = launch(site, "pp=1")
    wait_until(lambda: all_ended(ledger))
    collect(ledger)
    assert [row.verdict for row in job_rows(ledger)] == ["verified", "verified"]


def test_a_repeat_that_has_no_folder_yet_can_be_cancelled_and_given_up(site: Site) -> None:
    site.behave("hang")
    plans, ledger = repeated(site.plans("pp=1,gbs=4"), 3), new_ledger(site.folder)
    submit(plans, site.cluster(), ledger, site.folders, [])
    wait_until(site.sleepers)
    rows = job_rows(ledger)
    assert not Path(rows[2].folder).exists()
    mark_cancelled(rows[1].folder)
    assert cancel(ledger, rows[2:]).refused == [] and cancel(ledger, rows[:1]).refused == []
    wait_until(lambda: all_ended(ledger))
    assert states(ledger) == ["CANCELLED"] * 3 and len(site.started()) == 1


@pytest.mark.fault(
    section="Safety",
    fault="A link in place of a job's record",
    promise="Reported. The state of that job does not change, and the other jobs are not affected.",
)
def test_a_link_in_a_records_place_is_said_and_hinders_no_other_job(site: Site) -> None:
    ledger, rows = launch(site, "gbs=4")
    ends = [Path(row.folder) / "end" for row in rows]
    wait_until(lambda: all(end.exists() for end in ends))
    ends[0].unlink()
    ends[0].symlink_to("/etc/hostname")
    refreshed = refresh(ledger)
    assert len(refreshed.complaints) == 1 and str(ends[0]) in refreshed.complaints[0]
    collect(ledger)
    assert [row.verdict for row in job_rows(ledger)] == [None, "verified", "verified"]


@pytest.mark.fault(
    section="Safety",
    fault="A job's folder has the claim of another job before the job starts",
    promise="The job does not run. Its reason names the other job.",
)
def test_a_job_whose_folder_another_has_claimed_does_not_run_and_says_why(site: Site) -> None:
    site.behave("slow", "pp1-gbs4")
    ledger, rows = launch(site, "gbs=4")
    second = Path(rows[1].folder)
    second.mkdir(exist_ok=True)
    (second / "claimed").write_text("77\n")
    wait_until(lambda: all_ended(ledger))
    collect(ledger)
    first, claimed, last = job_rows(ledger)
    assert (first.verdict, last.verdict) == ("verified", "verified") and len(site.started()) == 2
    assert (claimed.state, claimed.exit_code, claimed.failure) == ("FAILED", 95, "stopped")
    assert claimed.reason == "not started: job 77 runs it already"
    assert "job 77 runs it already" in str(claimed.verdict_reason)


def test_submissions_run_in_their_order_and_a_killed_queue_holds_nobody_up(site: Site) -> None:
    ledger, tickets = new_ledger(site.folder), site.folders.runs / "local.tickets"
    site.behave("gated")
    for where in ("gbs=16,pp=4", "gbs=4", "gbs=16,pp=1", "gbs=16,pp=2"):
        submit(site.plans(where), site.cluster(), ledger, site.folders, ["repro", "submit"])
    assert [file.name for file in sorted(tickets.glob("0*"))] == [f"{number:08}" for number in (1, 2, 3, 4)]
    third = next(row for row in job_rows(ledger) if row.case_name == "pp=1,tp=4,gbs=16")
    os.kill(int(str(third.scheduler_id).partition("_")[0]), signal.SIGKILL)
    (site.folder / "go").touch()
    wait_until(lambda: all_ended(ledger))
    assert site.started() == [
        "pp=4,tp=1,gbs=16",
        *(f"pp={pp},tp={4 // pp},gbs=4" for pp in (1, 2, 4)),
        "pp=2,tp=2,gbs=16",
    ]
    wait_until(lambda: [file.name for file in tickets.glob("0*")] == ["00000003"])
    collect(ledger)
    submit(site.plans("gbs=16,pp=1"), site.cluster(), ledger, site.folders, ["repro", "submit"])
    wait_until(lambda: all_ended(ledger) and not list(tickets.glob("0*")))
    assert site.started()[-1] == "pp=1,tp=4,gbs=16"


def test_submissions_of_two_terminals_at_once_do_not_mix(site: Site) -> None:
    site.behave("gated")
    terminals = [
        site.start("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", f"gbs={gbs}")
        for gbs in (4, 16)
    ]
    for terminal in terminals:
        _, complaint = terminal.communicate()
        assert terminal.returncode == 0, complaint
    (site.folder / "go").touch()
    site.wait_until_ended()
    sizes = [case.rpartition("=")[2] for case in site.started()]
    assert len(sizes) == 6 and len(set(sizes[:3])) == len(set(sizes[3:])) == 1


@pytest.mark.fault(
    section="Local queue",
    fault="A folder has the name of a ticket",
    promise="The queue gets the next number and starts.",
)
def test_a_folder_among_the_tickets_stops_no_queue(tmp_path: Path) -> None:
    queue = tmp_path / "runs" / "run" / "submissions" / "a.queue.sh"
    queue.parent.mkdir(parents=True)
    folder = tmp_path / "runs" / "local.tickets" / "00000007"
    folder.mkdir(parents=True)
    queue.write_text(f"echo $REPRO_LOCAL_TICKET >{tmp_path}/ticket.tmp; mv {tmp_path}/ticket.tmp {tmp_path}/ticket\n")
    start_queue(queue)
    wait_until((tmp_path / "ticket").exists)
    assert (tmp_path / "ticket").read_text().strip() == str(folder.with_name("00000008"))
