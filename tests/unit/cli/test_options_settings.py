"""Tests of `--set` and its short forms on plan, render, submit, retry and `clusters show`."""

from __future__ import annotations

import json

import pytest

from orchestrator.launch.supervise import recorded_options
from orchestrator.ledger.attempts import job_rows
from tests.recorded_jobs import new_ledger
from tests.unit.cli.calling import Caller

PROFILE = """\
about: a Slurm cluster
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 4, gpu: H100, gpu_memory_gb: 80, peak_tflops: {bf16: 989, fp16: 989}}
slurm: {partition: gpu, qos: normal, time_limit: 1:00:00, sbatch: [--nice=1]}
programs: {pretrain: {python: python3}}
"""
CASE = ("figure-13", "--scale", "cpu", "--where", "pp=1,gbs=4")


@pytest.fixture(autouse=True)
def there(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "there.yaml").write_text(PROFILE)


def test_settings_are_in_the_script_and_are_the_origin_of_their_lines(repro: Caller) -> None:
    words = ["--set", "slurm.qos=high", "--set", "slurm.sbatch+=--mcs-label=a", "--set", "slurm.sbatch-=--nice"]
    words += ["--set", "slurm.mail_type=end,array_tasks", "--set", "slurm.mail_user=ann@example.org"]
    short = ["--partition", "8", "--exclude", "n[1-3]", "--nodelist", "n7", "--reservation", "r1", "--time", "0:09:00"]
    done = repro("render", *CASE, "--cluster", "there", *words, *short, "--explain")
    lines = {line.split("#SBATCH ")[1]: line.split(",")[0] for line in done.stdout.splitlines() if "#SBATCH" in line}
    expected = {
        "--qos=high": "--set slurm.qos=high",
        "--mcs-label=a": "--set slurm.sbatch+=--mcs-label=a",
        "--mail-type=END,ARRAY_TASKS": "--set slurm.mail_type=end",
        "--mail-user=ann@example.org": "--set slurm.mail_user=ann@example.org",
        "--partition=8": '--set slurm.partition="8"',
        "--exclude=n[1-3]": '--set slurm.exclude+="n[1-3]"',
        "--nodelist=n7": "--set slurm.nodelist=n7",
        "--reservation=r1": "--set slurm.reservation=r1",
        "--time=0:09:00": "--set time_limit=0:09:00",
    }
    assert expected.items() <= lines.items() and "--nice=1" not in lines
    assert "note: profile there: the command line sets slurm.qos=high, " in done.stderr


def test_the_next_command_keeps_the_settings(repro: Caller) -> None:
    done = repro("plan", *CASE, "--cluster", "there", "--qos", "high", "--set", "training.iterations=9")
    assert " --set training.iterations=9 --set slurm.qos=high --dry-run" in done.stderr.splitlines()[-1]


def test_only_settings_that_change_what_runs_make_other_jobs(repro: Caller) -> None:
    def jobs(*words: str) -> list[str]:
        done = repro("submit", *CASE, "--cluster", "there", *words, "--dry-run", "--json")
        return [row["job"] for row in json.loads(done.stdout)["plans"]]

    assert jobs() == jobs("--qos", "high", "--time", "0:05:00", "--exclude", "n1")
    assert jobs() != jobs("--set", "training.iterations=9")


def test_a_run_records_its_settings_and_a_retry_keeps_them(repro: Caller) -> None:
    repro.site.behave("fail", "pp1-gbs4")
    words = ("--set", "time_limit=0:09:00", "--set", "training.iterations=9")
    assert repro("submit", *CASE, "--cluster", "here", *words, "--wait").returncode == 1
    ledger = new_ledger(repro.site.folder)
    (first,) = job_rows(ledger)
    assert recorded_options(ledger, first.run_id)[0] == ("time_limit=0:09:00", "training.iterations=9")
    done = repro("retry", "figure-13", "--class", "gpu-oom", "--set", "time_limit=0:08:00")
    assert done.returncode == 0, done.stderr
    (row,) = job_rows(ledger)
    assert (row.job_id, row.number, row.iterations) == (first.job_id, 2, 9)
    assert recorded_options(ledger, row.run_id)[0] == ("training.iterations=9", "time_limit=0:08:00")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--set", "slurm.qoz=x"], '--set slurm.qoz=x: qoz: unknown field. Did you mean "qos"?'),
        (["--set", "slurm.qos+=x"], "--set slurm.qos+=x: slurm.qos is not a list. Hint: set it: slurm.qos=VALUE"),
        (["--set", "slurm.sbatch-=--x"], "--set slurm.sbatch-=--x: slurm.sbatch: the list has no '--x' to remove"),
        (["--set", "training.iterations=2", "--time-budget", "1m"], "--set training.iterations and --time-budget"),
        (["--time", "soon"], '--set time_limit=soon: time_limit: must be a time such as "4:00:00"'),
    ],
)
def test_a_wrong_setting_is_one_line_and_nothing_is_submitted(repro: Caller, words: list[str], problem: str) -> None:
    done = repro("submit", *CASE, "--cluster", "there", *words)
    assert done.returncode == 2 and done.complaints == [line for line in done.complaints if problem in line]
    assert len(done.complaints) == 1 and not (repro.site.folder / "runs").exists()


def test_a_field_of_a_profile_needs_a_cluster(repro: Caller) -> None:
    done = repro("plan", "figure-13", "--qos", "high")
    assert done.returncode == 2
    assert "--set slurm.qos=high: a field of a cluster profile, and no cluster is given" in done.stderr


def test_a_profile_is_shown_with_the_settings_over_it(repro: Caller) -> None:
    done = repro("clusters", "show", "there", "--set", "slurm.qos=high", "--resolved")
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("slurm.qos")] == [
        ["slurm.qos", "high", "--set", "slurm.qos=high"]
    ]
