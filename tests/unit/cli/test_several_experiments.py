"""Tests of several experiments, or a paper, in one command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.calling import Caller, everything_in

pytestmark = pytest.mark.slow

ON_CPU = ("--cluster", "here", "--scale", "cpu")
TWO = ("figure-13", "figure-16")


def test_two_figures_are_one_submission_and_a_shared_job_runs_once(repro: Caller) -> None:
    pytest.importorskip("matplotlib")
    dry = repro("submit", *TWO, *ON_CPU, "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    planned = [row["job"] for row in json.loads(dry.stdout)["plans"]]
    assert len(planned) == len(set(planned)) == 13
    assert "would submit 13 jobs at scale cpu to here; nothing was submitted" in dry.stderr

    done = repro("submit", *TWO, *ON_CPU, "--wait")
    assert done.returncode == 0, done.stderr
    assert len(repro.site.started()) == 13
    assert "2 experiments, 13 jobs: 13 submitted" in done.stderr
    assert "figure-16 at scale cpu on here: 8 cases: 1 waiting, 7 submitted" in done.stderr
    assert "13/13 cases ended" in done.stderr
    titles = [line.partition(":")[0] for line in done.stdout.splitlines() if line.startswith("Figure ")]
    assert titles == ["Figure 13 (SC21)", "Figure 16 (SC21)"]
    assert done.stderr.splitlines()[-1] == (
        "next: repro plot figure-13 figure-16 --cluster here --scale cpu   # the figures as pictures"
    )

    # The paper means its experiments that were submitted; each has its own file.
    drawn = repro("plot", "sc21")
    assert drawn.stdout.splitlines() == ["figure-13-cpu-here.png", "figure-16-cpu-here.png"]
    assert all((repro.site.folder / name).read_bytes().startswith(b"\x89PNG") for name in drawn.stdout.splitlines())
    (repro.site.folder / "shared").mkdir()
    bundled = repro("bundle", *TWO, "-o", "shared")
    assert bundled.returncode == 0, bundled.stderr
    assert bundled.stdout.splitlines() == ["shared/figure-13-cpu-here.tar.zst", "shared/figure-16-cpu-here.tar.zst"]
    again = repro("bundle", "sc21", "-o", "shared")
    assert (again.returncode, len(again.complaints)) == (2, 2) and "exists already" in again.stderr
    judged = repro("claims", *TWO, "--json")
    assert {row["experiment"] for row in json.loads(judged.stdout)["claims"]} == {"sc21/figure-13", "sc21/figure-16"}
    assert repro("claims", "sc21").stdout == repro("claims", *TWO).stdout

    # --rerun measures the shared job once, too.
    rerun = repro("submit", *TWO, *ON_CPU, "--rerun", "--wait")
    assert rerun.returncode == 0 and len(repro.site.started()) == 26, rerun.stderr


@pytest.mark.parametrize("command", ["submit {} --cluster here --scale cpu", "claims {}", "plot {}", "bundle {}"])
def test_a_wrong_name_among_several_is_refused_before_anything_happens(repro: Caller, command: str) -> None:
    if not command.startswith("submit"):
        assert repro("submit", "figure-13", *ON_CPU, "--where", "pp=1,gbs=4", "--wait").returncode == 0
        repro.site.wait_for_queues()
    before = _files(repro)
    done = repro(*command.format("figure-13 figure-133 sc22").split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints == [
        'repro: figure-133: no such experiment. Did you mean "figure-13"?',
        'repro: sc22: no such experiment. Did you mean "sc21"?',
    ]
    assert _files(repro) == before


def _files(repro: Caller) -> set[str]:
    return {name for name in everything_in(repro.site.folder) if not name.endswith((".db-wal", ".db-shm"))}


def test_experiments_of_a_paper_without_such_cases_are_left_out_with_a_note(repro: Caller) -> None:
    done = repro("submit", "sc21", *ON_CPU, "--where", "pp=4,gbs=16", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert {row["experiment"] for row in json.loads(done.stdout)["plans"]} >= {"sc21/figure-13"}
    assert "note: figure-12 is left out: --where pp=4,gbs=16: no such case" in done.stderr
    alone = repro("submit", "figure-13", "figure-12", *ON_CPU, "--where", "pp=4,gbs=16", "--dry-run")
    assert alone.returncode == 2 and "--where" in alone.stderr
    assert not (repro.site.folder / "results.db").exists()
    nothing = repro("plot", "sc21", "-o", str(Path("no-folder")))
    assert nothing.returncode == 2 and "no-folder: no such folder" in nothing.stderr
