"""The picture: on the paper's own axes, made whole or not at all. Its words are read from the SVG."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ReproError
from orchestrator.results.compare import Result
from orchestrator.results.plot import plot
from tests.unit.results.making import figure_13, measured


def draw(folder: Path, scale: str, rates: dict[str, float], failed: tuple[str, ...] = ()) -> str:
    """The SVG's text; matplotlib writes each text as a comment beside its outlines."""
    found = measured(folder, figure_13(), scale, rates, failed)
    plot(figure_13(), scale, "here", found, folder / "figure.svg")
    return (folder / "figure.svg").read_text()


def words(svg: str) -> list[str]:
    return [line.strip()[5:-4] for line in svg.splitlines() if line.strip().startswith("<!-- ")]


def test_the_axes_ticks_and_series_are_the_papers(tmp_path: Path) -> None:
    shown = words(draw(tmp_path, "cpu", {"pp=1,tp=4,gbs=4": 10.0, "pp=2,tp=2,gbs=4": 5.0, "pp=4,tp=1,gbs=16": 7.0}))
    assert "(Pipeline-parallel size, Tensor-parallel size)" in shown
    assert "Achieved teraFLOP/s per GPU" in shown
    assert [word for word in shown if word.startswith("(") and word[1].isdigit()] == ["(1, 4)", "(2, 2)", "(4, 1)"]
    assert [word for word in shown if word.startswith("Batch size")] == ["Batch size = 4", "Batch size = 16"]
    assert "SC21 Figure 13, scale cpu on here" in shown


def test_the_published_scale_has_the_papers_range_and_marks_numbers_that_nobody_confirmed(tmp_path: Path) -> None:
    shown = words(draw(tmp_path, "paper", {"pp=8,tp=8,gbs=32": 140.0}))
    assert "(32, 2)" in shown and "200" in shown
    assert "Batch size = 32, paper (read off the plot, unconfirmed)" in shown


def test_published_numbers_are_not_drawn_at_another_scale(tmp_path: Path) -> None:
    assert "paper (" not in draw(tmp_path, "cpu", {"pp=1,tp=4,gbs=4": 10.0})


def test_a_number_of_a_job_that_was_not_verified_is_not_drawn(tmp_path: Path) -> None:
    def ticks(rates: dict[str, float], failed: tuple[str, ...], folder: Path) -> list[str]:
        folder.mkdir()
        return words(draw(folder, "cpu", rates, failed))

    good = {"pp=1,tp=4,gbs=4": 10.0}
    with_failed = ticks(good | {"pp=2,tp=2,gbs=4": 5000.0}, ("pp=2,tp=2,gbs=4",), tmp_path / "one")
    assert with_failed == ticks(good, (), tmp_path / "two")  # the same axis: 5000 had no part in it


@pytest.fixture
def found(tmp_path: Path) -> list[Result]:
    return measured(tmp_path, figure_13(), "cpu", {"pp=1,tp=4,gbs=4": 10.0})


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("b c.svg", b"<?xml")])
def test_each_format_is_what_its_name_says_and_nothing_else_is_left(
    tmp_path: Path, found: list[Result], name: str, start: bytes
) -> None:
    file = tmp_path / "new" / name
    plot(figure_13(), "cpu", "here", found, file)
    assert file.read_bytes().startswith(start)
    assert [path.name for path in file.parent.iterdir()] == [name]


@pytest.mark.parametrize("name", ["figure", "figure.jpeg", "figure.docx"])
def test_a_format_there_is_not_is_refused(tmp_path: Path, found: list[Result], name: str) -> None:
    with pytest.raises(ReproError, match=rf"{name}: no such picture format; end it in \.png, \.svg, \.pdf"):
        plot(figure_13(), "cpu", "here", found, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, found: list[Result]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReproError, match=r"file/figure\.png: cannot be written \(.+\)"):
        plot(figure_13(), "cpu", "here", found, tmp_path / "file" / "figure.png")


def test_a_machine_without_matplotlib_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path\nfrom orchestrator.errors import ReproError\n"
        "from orchestrator.results.plot import _pyplot\n"
        "try: _pyplot(Path('a.png'))\nexcept ReproError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.startswith("drawing needs matplotlib; pip install ") and said.count("\n") == 1
