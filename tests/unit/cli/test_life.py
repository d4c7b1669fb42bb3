"""A figure's life as a person lives it: submit, status, logs, collect, plot, with the verdict in the exit code."""

from __future__ import annotations

import csv
import io
import json
import subprocess

import pytest

from tests.unit.cli.calling import Caller
from tests.unit.launch.stand_in import REPRO, Site, wait_until

CASES = [f"pp={pp},tp={4 // pp},gbs={gbs}" for pp in (1, 2, 4) for gbs in (4, 16)]


def states(site: Site) -> list[str]:
    return [row["state"] for row in json.loads(site.repro("status", "--json").stdout)]


def last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]


def test_a_figure_that_comes_out_is_exit_0_with_a_table_and_a_line_for_each_claim(site: Site) -> None:
    done = site.submit("--wait")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:5] == ["JOB", "CASE", "STATE", "VERDICT", "ITERATION_MS"]
    assert [line.split()[1:4] for line in lines[1:7]] == [[case, "COMPLETED", "verified"] for case in CASES]
    assert [line.split("  ")[0] for line in lines[7::2]] == ["not judged", "holds", "holds"]
    assert done.stderr.splitlines()[0] == "figure-13 at scale cpu on here: 6 cases, 6 submitted"
    assert last_line(done.stderr) == "next: repro plot figure-13   # the figure as a picture"


def test_submitting_again_finds_what_is_there_and_runs_nothing(finished: Site) -> None:
    before = finished.started()
    again = finished.submit()
    assert again.returncode == 0
    assert "6 cases, 6 already verified, 0 submitted" in again.stderr
    assert last_line(again.stderr).startswith("next: repro collect figure-13 --export csv")
    assert finished.started() == before and len(before) == 6
    assert again.stdout.count("COMPLETED") == 6


def test_status_says_state_and_verdict_in_two_columns(finished: Site) -> None:
    status = finished.repro("status", "figure-13", "--where", "pp=4")
    assert status.returncode == 0
    header, *rows = status.stdout.splitlines()
    assert header.split()[4:7] == ["CASE", "STATE", "VERDICT"]
    assert [row.split()[4:8] for row in rows] == [[case, "COMPLETED", "verified", "8/8"] for case in CASES[4:]]
    assert last_line(status.stderr).startswith("next: repro collect figure-13 --export csv")


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--json"),
        ("status", "--json"),
        ("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--json"),
        ("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--dry-run", "--json"),
        ("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--wait", "--json"),
        ("collect", "--export", "json"),
    ],
)
def test_wherever_there_is_a_table_there_is_json_and_nothing_else_on_stdout(
    finished: Site, words: tuple[str, ...]
) -> None:
    done = finished.repro(*words)
    assert done.returncode == 0
    read = json.loads(done.stdout)
    assert len(read["cases"] if isinstance(read, dict) else read) >= 1


def test_every_command_ends_with_the_next_one_to_type(
    finished: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repro = Caller(finished, monkeypatch, capsys)
    job = json.loads(repro("status", "--json").stdout)[0]["job"]
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
        done = repro(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert last_line(done.stderr).startswith("next: repro "), words


def test_the_csv_has_every_case_once_with_its_numbers(finished: Site) -> None:
    done = finished.repro("collect", "figure-13", "--export", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["case"] for row in rows] == CASES
    for row in rows:
        assert float(row["iteration_ms"]) == 100 + 10 * int(row["gbs"]) * int(row["pp"])
        assert float(row["tflops_per_gpu"]) > 0 and row["iterations_used"] == "6"
    done = finished.repro("collect", "--export", "csv", "-o", "numbers.csv")
    assert done.stdout == "numbers.csv\n"
    assert list(csv.DictReader((finished.folder / "numbers.csv").open())) == rows


def test_the_picture_is_where_stdout_says(finished: Site) -> None:
    done = finished.repro("plot", "figure-13")
    assert done.stdout == "figure-13-cpu-here.png\n"
    assert (finished.folder / "figure-13-cpu-here.png").read_bytes().startswith(b"\x89PNG")


def test_a_job_is_shown_by_the_start_of_its_id_or_the_schedulers(finished: Site) -> None:
    job = json.loads(finished.repro("status", "--json").stdout)[0]
    whole = finished.repro("logs", job["job"]).stdout
    assert whole.startswith("this is a stand-in") and whole.count("elapsed time per iteration") == 8
    assert finished.repro("logs", job["job"][:6]).stdout == whole
    assert finished.repro("logs", job["id"]).stdout == whole
    assert finished.repro("logs", "-f", job["job"]).stdout == whole


def test_a_job_that_fails_is_exit_1_and_the_next_command_says_why(site: Site) -> None:
    site.behave("fail", "pp2-gbs4")
    done = site.submit("--wait")
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if " failed " in line]
    assert "out of memory on the GPU; FAILED with exit code 7" in failed
    job = failed.split()[0]
    assert last_line(done.stderr) == f"next: repro logs {job}   # why pp=2,tp=2,gbs=4 failed"
    assert "CUDA out of memory" in site.repro("logs", job).stdout
    assert site.repro("collect").returncode == 1
    again = site.submit()
    assert "5 already verified, 1 submitted" in again.stderr


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("nan", "NaN or infinite numbers at iteration 1"),
        ("short", "its log ends at iteration 6 of 8"),
        ("narrow", "ran with world size 1, not 4"),
    ],
)
def test_a_job_that_only_seems_to_succeed_is_exit_1(site: Site, how: str, why: str) -> None:
    site.behave(how)
    done = site.submit("--where", "pp=1,gbs=4", "--wait")
    assert done.returncode == 1 and why in done.stdout and "COMPLETED" in done.stdout


def test_a_claim_that_fails_is_exit_1_though_every_job_succeeds(site: Site) -> None:
    site.behave("flat")
    done = site.submit("--wait")
    assert done.returncode == 1 and done.stdout.count(" verified ") == 6
    assert "fails       A poor combination" in done.stdout
    assert site.repro("collect").returncode == 1


def test_what_is_chosen_by_where_is_submitted_and_nothing_else(site: Site) -> None:
    done = site.submit("--where", "gbs=16", "--wait")
    assert done.returncode == 0
    assert site.started() == [case for case in CASES if case.endswith("gbs=16")]
    assert done.stdout.count("not submitted") == 3 and "3 of 6 cases not verified" in done.stdout


def test_cancelling_names_what_it_cancels_and_status_knows(site: Site) -> None:
    site.behave("hang")
    site.submit("--where", "gbs=4")
    wait_until(site.sleepers)
    done = site.repro("cancel", "figure-13", "--where", "pp=1")
    assert done.returncode == 0 and "1 jobs asked to end" in done.stderr
    assert done.stdout.split()[1] == "pp=1,tp=4,gbs=4"
    wait_until(lambda: states(site)[0] == "CANCELLED")
    wait_until(site.sleepers)
    done = site.repro("cancel", "figure-13")
    assert done.returncode == 0 and "2 jobs asked to end" in done.stderr
    wait_until(lambda: states(site) == ["CANCELLED"] * 3)
    wait_until(lambda: not site.sleepers())


def test_following_a_log_ends_with_its_job_and_loses_nothing(site: Site) -> None:
    site.behave("slow")
    site.submit("--where", "pp=1,gbs=4")
    job = json.loads(site.repro("status", "--json").stdout)[0]["job"]
    followed = site.repro("logs", "-f", job)
    assert followed.returncode == 0 and "[after training is done]" in followed.stdout
    assert followed.stdout == site.repro("logs", job).stdout


@pytest.mark.parametrize("words", ["status --json", "collect", "list", "render figure-13 --cluster here --scale cpu"])
def test_a_pipe_that_is_closed_early_is_no_fault(finished: Site, words: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{REPRO}' {words} | head -c 1 >/dev/null"],
        cwd=finished.folder,
        env=finished.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr, done.stderr
