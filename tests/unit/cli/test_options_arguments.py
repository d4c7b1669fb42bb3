"""Tests of `--arg` and `--no-arg` on plan, render and submit, and of the results of jobs with changed arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.recorded_jobs import new_ledger, record_results
from tests.unit.catalog.entries import CHECKOUT, shipped
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

CASE = ("clipped", "--cluster", "here", "--scale", "cpu", "--where", "pp=1,gbs=4")
CHANGES = ("--arg", "--lr=0.5", "--no-arg", "--clip-grad")


@pytest.fixture(autouse=True)
def clipped(repro: Caller) -> None:
    """Write figure 13 with an argument of its own."""
    figure = (CHECKOUT / "experiments" / "sc21" / "figure-13.yaml").read_text()
    file = repro.site.folder / "experiments" / "own" / "clipped.yaml"
    file.parent.mkdir(parents=True)
    (file.parent / "paper.yaml").write_text("title: t\nvenue: v\n")
    file.write_text(figure.replace("    device: cpu\n", '    device: cpu\n    arguments: [--clip-grad, "1.0"]\n'))


def jobs(repro: Caller, *words: str) -> list[str]:
    return [row["job"] for row in json.loads(repro("submit", *CASE, *words, "--dry-run", "--json").stdout)["plans"]]


def test_changed_arguments_are_in_the_script_and_explained_and_other_jobs_are_unchanged(repro: Caller) -> None:
    plain, changed = repro("render", *CASE).stdout, repro("render", *CASE, *CHANGES)
    assert "  --lr 0.5 \\" in changed.stdout and "  --clip-grad" not in changed.stdout
    assert "--lr 0.5" not in plain and "  --clip-grad 1.0" in plain
    assert "# Other arguments than published: --no-arg --clip-grad --arg --lr=0.5" in changed.stdout
    note = "note: clipped with --no-arg --clip-grad --arg --lr=0.5: other arguments than published"
    assert note in changed.complaints
    explained = repro("render", *CASE, *CHANGES, "--explain")
    assert re.search(r"^--arg, templates/\S+ +--lr 0\.5", explained.stdout, re.MULTILINE)
    assert "left out: --clip-grad (--no-arg)" in explained.stderr
    assert jobs(repro) != jobs(repro, *CHANGES) == jobs(repro, "--no-arg", "--clip-grad", "--arg=--lr=0.5")


def test_a_plan_names_the_changes_and_keeps_them_in_the_next_command(repro: Caller) -> None:
    done = repro("plan", *CASE, *CHANGES)
    assert "note: clipped with --no-arg --clip-grad --arg --lr=0.5: other arguments than published" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "next: repro submit clipped --cluster here --scale cpu --where pp=1,gbs=4 --arg --lr=0.5 --no-arg --clip-grad "
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--arg", "--pipeline-model-parallel-size=2"), "the case sets this argument, and the verdict compares it"),
        (("--no-arg", "--clip-gard"), 'pretrain does not get this argument. Did you mean "--clip-grad"?'),
        (("--arg", "lr=1"), "--arg lr=1: must be --name or --name=value."),
    ],
)
@pytest.mark.parametrize("command", ["plan", "render", "submit"])
def test_a_change_that_contradicts_the_case_is_refused(
    repro: Caller, command: str, words: tuple[str, str], expected: str
) -> None:
    done = repro(command, *CASE, *words)
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1)
    assert expected in done.complaints[0]


def test_jobs_with_changed_arguments_are_jobs_of_their_own_and_a_retry_keeps_the_changes(repro: Caller) -> None:
    assert repro("submit", *CASE, "--wait").returncode == 0
    repro.site.behave("fail", "pp1-gbs4")
    assert repro("submit", *CASE, *CHANGES, "--wait").returncode == 1
    repro.site.behave("well", "pp1-gbs4")
    done = repro("retry", "clipped", "--class", "gpu-oom")
    assert (done.returncode, done.complaints) == (0, ["1 job submitted again"]), done.stderr
    rows = repro.site.wait_for(lambda rows: [row["verdict"] for row in rows] == ["verified", "verified"])
    assert len({row["job"] for row in rows}) == 2
    changed, plain = jobs(repro, *CHANGES), jobs(repro)
    collected = repro("collect", "clipped", "--export", "json", "--arg=--lr=0.5")
    assert "note: clipped with --no-arg --clip-grad --arg --lr=0.5" in collected.stderr
    by_case = {row["case"]: row["job"] for row in json.loads(collected.stdout)["cases"] if row["job"]}
    assert list(by_case.values()) == changed
    collected = repro("collect", "clipped", "--export", "json")
    assert [row["job"] for row in json.loads(collected.stdout)["cases"] if row["job"]] == plain
    shown = re.search(
        r"the latest run is not shown: .* --no-arg --clip-grad --arg --lr=0\.5; --run (\S+) shows it", collected.stderr
    )
    assert shown is not None
    collected = repro("collect", "clipped", "--export", "json", "--run", shown[1])
    assert [row["job"] for row in json.loads(collected.stdout)["cases"] if row["job"]] == changed
    assert repro("collect", "clipped", "--run", "1999").complaints == [
        "repro: --run 1999: no run begins so. "
        "Hint: repro sql 'SELECT id, experiment, created_at FROM runs' lists the runs"
    ]


def test_a_bundle_of_jobs_with_changed_arguments_verifies_and_names_them(repro: Caller, tmp_path: Path) -> None:
    assert repro("submit", *CASE, *CHANGES, "--wait").returncode == 0
    file = tmp_path / "changed.tar.zst"
    assert repro("bundle", "clipped", "-o", str(file)).returncode == 0
    done = repro("bundle", "verify", str(file))
    assert done.returncode == 0 and "no case is verified" not in done.stdout, done.stdout


def test_numbers_of_changed_jobs_are_not_judged_against_published_ones(repro: Caller) -> None:
    ledger = new_ledger(repro.site.folder)
    record_results(ledger, shipped("table-1"), "paper", {"case=1.7B": 137.0}, changes=("--arg=--lr=0.5",))
    rows = json.loads(repro("claims", "table-1", "--json").stdout)["claims"]
    verdict: dict[str, Any] = next(row for row in rows if row["claim"] == "rates-as-printed")
    assert (verdict["verdict"], verdict["because"]) == (
        "not judged",
        "it is about the published arguments: case=1.7B has others, by --arg or --no-arg",
    )
    compared = repro("compare", "table-1")
    assert "published for other arguments, which --arg or --no-arg changed" in compared.stdout + compared.stderr
    exported = json.loads(repro("collect", "table-1", "--export", "json").stdout)["cases"]
    assert exported[0]["tflops_per_gpu"] == 137.0 and exported[0]["ratio_to_published"] is None
