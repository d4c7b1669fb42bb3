"""Ctrl-C at a bad moment: what was begun is recorded first, then it takes effect."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.ledger.attempts import job_rows
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import REPRO, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SLURM = """
about: a cluster
scheduler: slurm
hardware: {nodes: 1, gpus_per_node: 4}
slurm: {time_limit: "0:10:00"}
"""


def slow_sbatch(site: Site) -> Path:
    """A stand-in for sbatch that takes half a second to answer; returns what it leaves once it has begun."""
    (site.folder / "bin").mkdir()
    said = {
        "sbatch": 'touch "$(dirname "$0")/begun"; sleep 0.5; echo 17',
        "scontrol": "echo 'Slurmctld at c is UP'; echo 'ClusterName = c'; echo 'SlurmctldHost[0] = c1(10.0.0.1)'",
    }
    for name, body in said.items():
        program = site.folder / "bin" / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    (site.folder / "clusters" / "there.yaml").write_text(SLURM)
    return site.folder / "bin" / "begun"


@pytest.mark.fault(
    section="Submissions",
    fault="Ctrl-C between Slurm's answer and the record in the ledger",
    promise="The process records the answer first, then ends.",
)
def test_ctrl_c_between_the_schedulers_answer_and_ours_waits_until_the_answer_is_recorded(site: Site) -> None:
    begun = slow_sbatch(site)
    path = f"{site.folder / 'bin'}:{os.environ['PATH']}"
    with subprocess.Popen(
        [REPRO, "submit", "figure-13", "--cluster", "there", "--scale", "cpu"],
        cwd=site.folder,
        env=site.environment | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as repro:
        wait_until(begun.exists)
        for _ in range(3):
            os.killpg(repro.pid, signal.SIGINT)  # as a terminal does: to everything in the foreground
        stdout, stderr = repro.communicate(timeout=600)
    assert repro.returncode == 130 and "Traceback" not in stderr
    assert {(row.phase, str(row.scheduler_id).partition("_")[0]) for row in job_rows(new_ledger(site.folder))} == {
        ("waiting", "17")
    }
    assert stdout == ""
    assert stderr.splitlines() == [
        "interrupted; the jobs submitted so far are recorded and continue",
        "next: repro status figure-13 --cluster there --scale cpu   "
        "# or: repro cancel figure-13 --cluster there --scale cpu",
    ]


@pytest.mark.fault(
    section="Local queue",
    fault="Ctrl-C while a command waits",
    promise="The jobs continue, and the command prints this.",
)
def test_ctrl_c_while_waiting_leaves_the_jobs_running_and_says_so(site: Site) -> None:
    site.behave("gated")
    with site.start(
        "submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", "gbs=4", "--wait"
    ) as repro:
        assert repro.stderr is not None
        while "cases ended" not in repro.stderr.readline():  # it waits from then on
            assert repro.poll() is None
        repro.send_signal(signal.SIGINT)
        _, stderr = repro.communicate(timeout=120)
    (site.folder / "go").touch()
    assert repro.returncode == 130
    assert stderr.splitlines()[-2:] == [
        "no longer waiting; the jobs continue",
        "next: repro status figure-13 --cluster here --scale cpu --where gbs=4 --watch   "
        "# or: repro cancel figure-13 --cluster here --scale cpu --where gbs=4",
    ]
    ended = site.folder / "ended"
    wait_until(lambda: ended.exists() and len(ended.read_text().splitlines()) == 3)
    assert site.repro("status").stdout.count("verified") == 3


@pytest.mark.fault(
    section="Local queue",
    fault="The terminal is closed",
    promise="The jobs continue.",
)
def test_a_terminal_that_is_closed_leaves_the_jobs_running(site: Site) -> None:
    site.behave("slow")
    with site.start(
        "submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", "gbs=4", "--wait"
    ) as repro:
        wait_until(site.started)
        repro.send_signal(signal.SIGHUP)
        repro.communicate(timeout=600)
    ended = site.folder / "ended"
    wait_until(lambda: ended.exists() and len(ended.read_text().splitlines()) == 3)
    assert site.repro("status").stdout.count("verified") == 3
