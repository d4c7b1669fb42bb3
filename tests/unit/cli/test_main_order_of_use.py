"""Tests of the commands in the order of use: submit, status, logs, collect, plot, with their exit codes."""

from __future__ import annotations

import json
import os

import pytest

from tests.forked_repro import ForkedRepro
from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller, Done
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

CASES = [f"pp={pp},tp={4 // pp},gbs={gbs}" for pp in (1, 2, 4) for gbs in (4, 16)]


def states(repro: Caller) -> list[str]:
    return [row["state"] for row in json.loads(repro("status", "--json").stdout)["jobs"]]


def submit(repro: Caller, *words: str) -> Done:
    return repro("submit", "figure-13", "--cluster", "here", "--scale", "cpu", *words)


def last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]


def test_a_reproduced_figure_is_exit_0_with_a_table_and_a_line_for_each_claim(site: Site) -> None:
    done = site.submit("--wait")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "Figure 13 (SC21): Pipeline- against tensor-parallel size",
        "in the paper  162.2 billion parameters on 64 GPUs",
        "here          scale cpu on here: 3.4 million parameters in 4 processes on the CPU cores of one machine",
    ]
    assert lines[4].split() == ["CASE", "VERDICT", "ITERATION_MS", "ITERATION_MS_SPREAD", "TFLOPS_PER_GPU"]
    assert [line.split()[:2] for line in lines[5:11]] == [[case, "verified"] for case in CASES]
    assert lines[12] == "6 of 6 cases verified; claims of the paper: 1 holds, 5 not judged"
    judged = [line.split("  ")[0] for line in lines[13:] if line.startswith(("holds", "not judged"))]
    assert judged == [*["not judged"] * 5, "holds"]
    assert (
        lines[-1] == "Processes on CPU cores took the place of GPUs. Their times and rates do not show those of GPUs."
    )
    assert done.stderr.splitlines()[0] == "figure-13 at scale cpu on here: 6 cases: 6 submitted"
    assert last_line(done.stderr) == "next: repro plot figure-13 --cluster here --scale cpu   # the figure as a picture"


def test_every_command_ends_with_the_next_one_to_type(looking: Caller) -> None:
    job = json.loads(looking("status", "--json").stdout)["jobs"][0]["job"]
    for words in (
        ("list",),
        ("submit", "figure-13", "--cluster", "here", "--scale", "cpu"),
        ("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--dry-run"),
        ("render", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", "pp=1"),
        ("status",),
        ("status", "--where", "gbs=5"),
        ("logs", job),
        ("cancel", "figure-13"),
        ("collect", "--export", "csv"),
        ("plot", "-o", "figure.svg"),
    ):
        done = looking(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert last_line(done.stderr).startswith("next: repro "), words


def test_a_job_that_fails_is_exit_1_and_the_next_command_shows_why(repro: Caller) -> None:
    repro.site.behave("fail", "pp2-gbs4")
    done = submit(repro, "--wait")
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if " failed " in line]
    (reason,) = [line for line in done.stdout.splitlines() if line.startswith("failed ")]
    assert "pp=2,tp=2,gbs=4: out of memory on the GPU; FAILED with exit code 7" in reason
    job = failed.split()[0]
    assert last_line(done.stderr) == f"next: repro logs {job}   # why pp=2,tp=2,gbs=4 failed"
    assert "CUDA out of memory" in repro("logs", job).stdout
    assert repro("collect").returncode == 1
    again = submit(repro)
    assert "6 cases: 5 done, 1 failed and not submitted again, 0 submitted" in again.stderr


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("nan", "NaN, infinite or missing numbers at iteration 1"),
        ("short", "the log ends at iteration 6 of 8"),
        ("narrow", "ran with world size 1, not 4"),
    ],
)
def test_a_job_that_only_seems_to_succeed_is_exit_1(repro: Caller, how: str, why: str) -> None:
    repro.site.behave(how)
    done = submit(repro, "--where", "pp=1,gbs=4", "--wait")
    assert done.returncode == 1 and why in done.stdout and "COMPLETED" in done.stdout


def test_a_claim_that_fails_is_exit_1_though_every_job_succeeds(repro: Caller) -> None:
    repro.site.behave("flat")
    done = submit(repro, "--wait")
    assert done.returncode == 1 and done.stdout.count(" verified ") == 6
    assert "fails       Pipeline flushes keep" in done.stdout
    assert repro("collect").returncode == 1


def test_cancel_names_the_jobs_and_status_shows_their_state(repro: Caller) -> None:
    repro.site.behave("hang")
    submit(repro, "--where", "gbs=4")
    wait_until(repro.site.sleepers)
    done = repro("cancel", "figure-13", "--where", "pp=1")
    assert done.returncode == 0 and "1 job is being cancelled" in done.stderr
    assert done.stdout.split()[1] == "pp=1,tp=4,gbs=4"
    wait_until(lambda: states(repro)[0] == "CANCELLED")
    wait_until(repro.site.sleepers)
    done = repro("cancel", "figure-13")
    assert done.returncode == 0 and "2 jobs are being cancelled" in done.stderr
    wait_until(lambda: states(repro) == ["CANCELLED"] * 3)
    wait_until(lambda: not repro.site.sleepers())


@pytest.mark.parametrize("words", ["status --json", "collect", "list", "render figure-13 --cluster here --scale cpu"])
def test_a_pipe_that_is_closed_early_is_no_error(finished: Site, words: str) -> None:
    (reader, stdout), (errors, stderr) = os.pipe(), os.pipe()
    process = ForkedRepro(words.split(), finished.folder, finished.environment, stdout, stderr)
    os.close(stdout)
    os.close(stderr)
    os.read(reader, 1)
    os.close(reader)
    with os.fdopen(errors) as file:
        printed = file.read()
    process.wait()
    assert "Traceback" not in printed and "Broken" not in printed, printed
