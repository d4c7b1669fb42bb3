"""Tests of `--workload`: runs of another program are never mixed with the runs of the experiment's own."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller, Done
from tests.unit.cli.test_catalog import FIGURE, write
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SITE = "{checkout: /code, data_path: /data, vocab_file: /vocab, merge_file: /merges}"
HERE = ("--cluster", "here", "--scale", "cpu")
PAPER_WITH_CODE = "title: t\nvenue: v\ncode: {megatron-2021: {repository: r, commit: c}}\n"
NOTE = "note: figure-99 with pretrain instead of megatron-2021"


@pytest.fixture
def both(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Iterator[Caller]:
    """Figure 99: figure 13 whose program at scale cpu is megatron-2021, with a stand-in for that one, too.

    The stand-in for megatron-2021 is the `python` that its jobs start; there the claims of the figure fail.
    """
    site = repro.site.folder
    head, cpu, rest = FIGURE.partition("  cpu:\n")
    text = head + cpu + rest.replace("workload: pretrain", "workload: megatron-2021")
    write(repro, text, "own/figure-99", paper=PAPER_WITH_CODE)
    profile = site / "clusters" / "here.yaml"
    program = site / "train.sh"
    profile.write_text(
        "about: a machine of the tests\nscheduler: local\n"
        f"workloads: {{pretrain: {{python: {json.dumps(str(program))}}}, megatron-2021: {SITE}}}\n"
    )
    elsewhere = site / "bin"
    elsewhere.mkdir()
    (elsewhere / "python").write_text(program.read_text())
    (elsewhere / "python").chmod(0o755)
    (elsewhere / "behave").write_text("flat")
    monkeypatch.setenv("PATH", f"{elsewhere}:/usr/bin:/bin")
    # Which of two runs is the later one is known by the second in which they began, here without waiting for the next.
    ids = (f"20260101-00{number // 60:02d}{number % 60:02d}-0000" for number in itertools.count())
    monkeypatch.setattr("orchestrator.launch.submit.new_run_id", lambda: next(ids))
    yield repro
    Site(elsewhere).end_sleepers()


def submit(repro: Caller, *words: str) -> Done:
    return repro("submit", "figure-99", *HERE, *words, "--wait")


def programs(done: Done) -> set[str]:
    """What ran, by an export."""
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert any(row["job"] for row in rows)
    return {row["workload"] for row in rows}


def instead_of(done: Done) -> set[str]:
    """The figure's own program, by an export, where another one ran."""
    return {row["published_workload"] for row in csv.DictReader(io.StringIO(done.stdout))}


def test_a_plan_with_another_program_names_the_program(repro: Caller) -> None:
    own = json.loads(repro("plan", "figure-13", "--cluster", "selene", "--json").stdout)
    done = repro("plan", "figure-13", "--cluster", "selene", "--workload", "pretrain", "--json")
    other = json.loads(done.stdout)
    assert done.returncode == 0 and "figure-13 with pretrain instead of megatron-2021" in other["notes"]
    assert [row["case"] for row in other["cases"]] == [row["case"] for row in own["cases"]]
    assert [row["memory_gb"] for row in other["cases"]] != [row["memory_gb"] for row in own["cases"]]
    done = repro("plan", "figure-13", "--cluster", "selene", "--workload", "pretrain")
    assert "next: repro submit figure-13 --cluster selene --scale paper --workload pretrain --dry-run" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("plan figure-13 --workload pretain", 'pretain: no such workload. Did you mean "pretrain"?'),
        ("submit figure-13 --cluster here --workload pretain", 'pretain: no such workload. Did you mean "pretrain"?'),
        (
            "submit figure-13 --cluster local --scale cpu --workload megatron-2021 --dry-run",
            "--workload megatron-2021: figure-13 at scale cpu runs on CPU cores, and megatron-2021 on GPUs only. "
            "Hint: leave",
        ),
        ("plan atc-demo --workload pretrain", "--workload pretrain: atc-demo at scale paper compares programs (mega"),
    ],
)
def test_a_program_that_cannot_be_is_refused_in_a_line(repro: Caller, words: str, expected: str) -> None:
    done = repro(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints[0].startswith(f"repro: {expected}"), done.stderr


def test_every_experiment_of_a_paper_that_compares_programs_is_named(repro: Caller) -> None:
    done = repro("plan", "atc24", "--workload", "pretrain")
    left_out = [line.split()[1] for line in done.complaints if " is left out: --workload pretrain: " in line]
    assert (done.returncode, left_out) == (0, ["atc-demo", "atc-table-8"])


def test_dry_run_and_scripts_use_the_chosen_program(both: Caller, tmp_path: Path) -> None:
    words = ("figure-99", *HERE, "--where", "pp=1,gbs=4")
    dry = both("submit", *words, "--workload", "pretrain", "--dry-run")
    assert NOTE in dry.stderr
    suggested = dry.stderr.splitlines()[-1].removeprefix("next: repro ").partition("   #")[0].split()
    assert "--workload pretrain" in " ".join(suggested)
    assert "orchestrator.pretrain" in both(*suggested).stdout
    own = both("render", *words)
    assert "/code/pretrain_gpt.py" in own.stdout and "note:" not in own.stderr
    for more in ((), ("--workload", "pretrain")):
        assert both("render", *words, *more, "-o", str(tmp_path / "jobs")).returncode == 0
    assert sorted(file.name for file in (tmp_path / "jobs").glob("*.sh")) == [
        "figure-99-pp1-tp4-gbs4.sh",
        "figure-99-pretrain-pp1-tp4-gbs4.sh",
    ]


def test_collect_plot_and_compare_name_another_program(both: Caller) -> None:
    done = submit(both, "--workload", "pretrain")
    assert done.returncode == 0 and NOTE in done.stderr, done.stderr
    collected = both("collect")
    assert collected.returncode == 0 and NOTE in collected.stderr
    assert programs(collected) == {"pretrain"} and collected.stdout.count(",verified,") == 6
    drawn = both("plot", "-o", "figure.svg")
    assert drawn.returncode == 0 and NOTE in drawn.stderr
    assert both("plot").stdout == "figure-99-cpu-here-pretrain.png\n"
    assert both("compare").stderr.count("pretrain instead of megatron-2021") == 1
    assert {row["workload"] for row in json.loads(both("status", "--json").stdout)["jobs"]} == {"pretrain"}


def test_the_program_of_the_latest_run_is_the_default_and_programs_are_never_mixed(both: Caller) -> None:
    assert submit(both, "--where", "gbs=4").returncode == 0  # its claims are about more cases
    done = submit(both, "--workload", "pretrain", "--where", "pp=1")
    assert done.stdout.count(" verified ") == 2 and done.stdout.count("not submitted") == 4
    latest, own = both("collect"), both("collect", "--workload", "megatron-2021")
    assert (programs(latest), latest.stdout.count(",verified,")) == ({"pretrain"}, 2)
    assert (programs(own), own.stdout.count(",verified,")) == ({"megatron-2021"}, 3)
    assert NOTE in latest.stderr and "note:" not in own.stderr
    assert (instead_of(latest), instead_of(own)) == ({"megatron-2021"}, {""})
    again = submit(both, "--where", "gbs=4")
    assert "3 cases: 3 done, 0 submitted" in again.stderr
    assert programs(both("collect")) == {"megatron-2021"}
    other = both("collect", "--workload", "pretrain")
    assert programs(other) == {"pretrain"} and NOTE in other.stderr
    assert other.stderr.splitlines()[-1].startswith("next: repro plot figure-99 --workload pretrain ")


def test_the_exit_code_is_that_of_the_program_that_was_submitted(both: Caller) -> None:
    assert submit(both).returncode == 1  # the stand-in for megatron-2021 is flat
    assert submit(both, "--workload", "pretrain").returncode == 0
    assert submit(both).returncode == 1


def test_status_and_cancel_select_jobs_by_program(both: Caller) -> None:
    submit(both, "--where", "pp=1,gbs=4")
    submit(both, "--where", "pp=1,gbs=4", "--workload", "pretrain")
    rows = json.loads(both("status", "figure-99", "--json").stdout)["jobs"]
    assert [row["workload"] for row in rows] == ["megatron-2021", "pretrain"]
    assert len({row["job"] for row in rows}) == 2
    (row,) = json.loads(both("status", "figure-99", "--workload", "pretrain", "--json").stdout)["jobs"]
    assert row["workload"] == "pretrain"
    assert json.loads(both("status", "figure-99", "--where", "workload=pretrain", "--json").stdout)["jobs"] == [row]
    for words in (("status", "figure-99"), ("cancel", "figure-99"), ("collect", "figure-99")):
        done = both(*words, "--workload", "pretain")
        assert (done.returncode, done.complaints[0]) == (
            2,
            'repro: pretain: no such workload. Did you mean "pretrain"?',
        )


def test_cancelling_one_program_leaves_the_others_jobs_alone(both: Caller) -> None:
    (both.site.folder / "bin" / "behave").write_text("hang")
    both.site.behave("hang")
    for more in ((), ("--workload", "pretrain")):
        assert both("submit", "figure-99", *HERE, "--where", "pp=1,gbs=4", *more).returncode == 0
    ids = {row["workload"]: row["job"] for row in json.loads(both("status", "--json").stdout)["jobs"]}
    done = both("cancel", "figure-99", "--workload", "pretrain")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [ids["pretrain"]]
    assert both("cancel", "figure-99").returncode == 0
    wait_until(lambda: {row["state"] for row in json.loads(both("status", "--json").stdout)["jobs"]} == {"CANCELLED"})


def test_jobs_of_another_program_are_counted_separately(both: Caller) -> None:
    def done() -> str:
        (line,) = (line for line in both("list").stdout.splitlines() if line.startswith("own/figure-99"))
        return line

    submit(both, "--where", "pp=1", "--workload", "pretrain")
    assert "  2/2 cpu@here with pretrain  " in done()
    submit(both, "--where", "pp=1,gbs=4")
    assert "  1/1 cpu@here, 2/2 cpu@here with pretrain  " in done()


def test_a_workload_that_was_never_submitted_has_a_submit_hint(both: Caller) -> None:
    submit(both, "--where", "pp=1,gbs=4")
    done = both("collect", "figure-99", "--workload", "pretrain")
    assert (done.returncode, done.complaints) == (
        2,
        [
            "repro: figure-99 with pretrain was never submitted. "
            "Hint: repro submit figure-99 --cluster local --workload pretrain"
        ],
    )


def test_megatron_core_is_the_newest_megatron(repro: Caller) -> None:
    newest, short = (
        repro("plan", "table-1", "--cluster", "selene", "--workload", name)
        for name in ("megatron-2026", "megatron-core")
    )
    assert short.returncode == 0 and short.stdout == newest.stdout and short.stderr == newest.stderr
    assert "with megatron-2026 instead of megatron-2021" in short.stderr
