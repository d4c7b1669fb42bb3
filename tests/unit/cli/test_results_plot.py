"""Tests of `repro plot`: the path on stdout, no overwriting without a question, errors of one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.recorded_jobs import SimulatedSlurm
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

DRAWN = "figure-13-cpu-here.png"
PNG = b"\x89PNG"


def test_stdout_is_the_path_of_the_picture_and_plotting_again_replaces_it(looking: Caller) -> None:
    file = looking.site.folder / DRAWN
    for before in (b"", b"an earlier picture"):
        file.write_bytes(before)
        done = looking("plot", "figure-13")
        assert (done.returncode, done.stdout) == (0, f"{DRAWN}\n"), done.stderr
        assert file.read_bytes().startswith(PNG)
    assert done.stderr.splitlines()[0] == "figure-13 at scale cpu on here: 1 holds, 5 not judged"
    assert done.stderr.splitlines()[-1].startswith("next: repro claims figure-13 ")


@pytest.mark.parametrize(("ending", "start"), [("png", PNG), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("SVG", b"<?xml")])
def test_the_ending_of_the_file_selects_the_format(looking: Caller, tmp_path: Path, ending: str, start: bytes) -> None:
    file = tmp_path / f"x.{ending}"
    assert looking("plot", "-o", str(file)).stdout == f"{file}\n"
    assert file.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("-o figure.jpeg", "figure.jpeg: unknown picture format. Hint: end the name in .png, .svg, .pdf"),
        ("-o figure", "figure: unknown picture format. Hint: end the name in .png, .svg, .pdf"),
        ("-o none/x.png", "none/x.png: there is no folder none. Hint: mkdir -p none"),
        ("-o there.png", "there.png: exists already. Hint: --force replaces it"),
        ("-o there.png/x.png", "there.png/x.png: there.png is not a folder"),
        ("--where nonsense=1", "nonsense"),
    ],
)
def test_a_wrong_argument_is_one_line_and_nothing_is_written(looking: Caller, words: str, complaint: str) -> None:
    there = looking.site.folder / "there.png"
    there.write_text("mine")
    before = sorted(looking.site.folder.iterdir())
    done = looking("plot", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints[-1].startswith("repro: ") and complaint in done.complaints[-1]
    assert there.read_text() == "mine" and sorted(looking.site.folder.iterdir()) == before


def test_a_folder_with_the_name_of_the_picture_is_one_line(looking: Caller) -> None:
    file = looking.site.folder / DRAWN
    file.unlink(missing_ok=True)
    file.mkdir()
    done = looking("plot")
    file.rmdir()
    assert (
        done.returncode == 2 and done.complaints[-1] == f"repro: {DRAWN}: a folder, not a file. Hint: name a file in it"
    )


def test_without_a_verified_case_plot_is_one_line_and_draws_nothing(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = SimulatedSlurm.install(repro.site.folder, monkeypatch)
    slurm.submit("pp=1,tp=4,gbs=4")
    done = repro("plot")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints[-1] == "repro: figure-13 at scale cpu: no verified case. Hint: repro status figure-13"
    assert not list(repro.site.folder.glob("*.png"))


def test_without_matplotlib_one_line_names_the_package_to_install(
    looking: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = looking("plot")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints[-1] == "repro: drawing needs matplotlib. Hint: pip install '.[plot]'"
