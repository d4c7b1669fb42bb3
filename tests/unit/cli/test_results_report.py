"""Tests of `repro report`: the experiments of a page, its folder, and what is refused."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.ledger.database import Ledger
from tests.recorded_jobs import GPU_OOM, START, Outcome, new_ledger, record_figure
from tests.unit.catalog.entries import shipped
from tests.unit.cli.calling import Caller, everything_in

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longest, and is tested for itself."""
    monkeypatch.setattr("orchestrator.results.report.picture", lambda *_, prefix, **__: f'<svg id="{prefix}"/>')


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    """Figure 13 and table 1 on selene; of the figure also the smallest scale, which was submitted last."""
    ledger = new_ledger(repro.site.folder)
    for minute, (name, scale) in enumerate((("table-1", "paper"), ("figure-13", "paper"), ("figure-13", "cpu"))):
        record_figure(ledger, shipped(name), scale, lambda *_: Outcome(100.0), at=START + timedelta(minutes=minute))
    return ledger


def titles(file: Path) -> list[str]:
    """Return figure, scale and cluster of each section of the page."""
    return re.findall(r'<p class="eyebrow">(.+ · scale [^·<]*[^·< ])', file.read_text(encoding="utf-8"))


def test_the_page_of_a_figure_that_ran_is_written_and_named(looking: Caller, tmp_path: Path) -> None:
    done = looking("report", "figure-13", "-o", str(tmp_path / "page"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/page/index.html\n")
    assert done.stderr.splitlines()[-1].startswith("next: repro claims figure-13")
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "All 6 cases are verified. 1 of 6 claims holds, none fails, 5 are not judged." in page
    assert "process-hours on CPUs" in page and "train.sh" in page
    assert "teraFLOP/s per process." in page and "teraFLOP/s per GPU" not in page


def test_the_same_ledger_gives_the_same_file_a_second_time(looking: Caller, tmp_path: Path) -> None:
    assert looking("report", "-o", str(tmp_path)).returncode == 0
    before = everything_in(tmp_path)
    assert looking("report", "-o", str(tmp_path)).returncode == 0
    assert everything_in(tmp_path) == before and len(before) == 1


@pytest.mark.usefixtures("ledger")
def test_without_a_name_every_experiment_is_there_as_it_was_submitted_last(repro: Caller) -> None:
    assert repro("report", "-o", "page").returncode == 0
    file = repro.site.folder / "page" / "index.html"
    assert titles(file) == ["SC21 Figure 13 · scale cpu on selene", "SC21 Table 1 · scale paper on selene"]


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("words", "about"),
    [
        ("--scale paper", ["Figure 13 · scale paper", "Table 1 · scale paper"]),
        ("--scale cpu", ["Figure 13 · scale cpu"]),
        ("table-1 sc21/figure-13 table-1 --cluster selene", ["Table 1 · scale paper", "Figure 13 · scale cpu"]),
        ("--program pretrain", ["Figure 13 · scale cpu"]),
    ],
)
def test_each_chosen_experiment_is_on_the_page_once(repro: Caller, words: str, about: list[str]) -> None:
    assert repro("report", *words.split(), "-o", "page").returncode == 0
    assert titles(repro.site.folder / "page" / "index.html") == [f"SC21 {one} on selene" for one in about]


def test_the_next_command_shows_why_a_case_failed(repro: Caller) -> None:
    ledger = new_ledger(repro.site.folder)
    figure = record_figure(ledger, shipped("figure-13"), "cpu", lambda *_: Outcome(columns=GPU_OOM))
    done = repro("report", "-o", "page")
    row = figure.results[0].row
    assert row is not None
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == f"next: repro logs {row.job_id}   # why {row.case_name} failed"


def test_an_experiment_whose_file_is_missing_is_left_out_with_a_note(repro: Caller, ledger: Ledger) -> None:
    import sqlalchemy as sa

    from orchestrator.ledger.tables import Run

    with ledger.writing() as session:
        session.execute(sa.update(Run).where(Run.experiment == "sc21/table-1").values(experiment="mine/gone"))
    done = repro("report", "-o", "page")
    assert done.returncode == 0 and "note: mine/gone is left out: mine/gone: no such experiment" in done.stderr
    assert titles(repro.site.folder / "page" / "index.html") == ["SC21 Figure 13 · scale cpu on selene"]


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("figure-99 -o page", 'figure-99: no such experiment. Did you mean "'),
        ("atc24 -o page", "no such job of atc24 was submitted. Hint: repro status shows the jobs"),
        ("figure-13 --scale quad -o page", "figure-13 at quad was never submitted. Hint: repro submit "),
        ("--scale quad -o page", "no submitted experiment can be reported at quad. Hint: repro status shows the jobs"),
        ("--program pretrian -o page", "pretrian"),
        ("-o a-file", "a-file: is a file, not a folder. Hint: give -o a folder of its own"),
        ("-o clusters", "clusters: contains other files (here.yaml). Hint: give -o a folder of its own"),
    ],
)
def test_a_wrong_argument_is_one_line_and_nothing_is_written(repro: Caller, words: str, message: str) -> None:
    (repro.site.folder / "a-file").write_text("mine")
    before = everything_in(repro.site.folder)
    done = repro("report", *words.split())
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.complaints) == 1 and message in done.complaints[0]
    assert everything_in(repro.site.folder) == before


@pytest.mark.usefixtures("ledger")
def test_force_keeps_the_other_files_of_the_folder(repro: Caller) -> None:
    assert repro("report", "-o", "clusters", "--force").returncode == 0
    assert {path.name for path in (repro.site.folder / "clusters").iterdir()} == {"here.yaml", "index.html"}


def test_without_a_ledger_the_hint_is_a_submit_command(repro: Caller) -> None:
    done = repro("report", "-o", "page")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.complaints) == 1 and done.complaints[0].startswith(repro.no_jobs)
    assert not (repro.site.folder / "page").exists()
