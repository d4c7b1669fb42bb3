"""The picture: on the paper's own axes, made whole or not at all. Its words are read from the SVG."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ReproError
from orchestrator.results.compare import Result
from orchestrator.results.plot import plot
from tests.unit.catalog.entries import entry_of
from tests.unit.results.making import ROWS, figure_13, measured


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


LINES = """\
figure: Figure 1
title: t
workload: pretrain
gpus: 4
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
matrix:
  recompute: [full, none]
  gbs: [8, 1, 2]
fixed: {mbs: 1}
axes:
  x: {label: Batch size, of: [gbs], scale: log2}
  y: {label: y, metric: tflops_per_gpu}
  series: {label: Recomputation, of: recompute, names: {full: With it}}
expected:
  - {where: {recompute: none, gbs: 8}, outcome: oom, confirmed: true, source: the plot}
"""


def draw_own(folder: Path, text: str, rates: dict[str, float], **how: Any) -> list[str]:
    entry = entry_of(folder, text)
    plot(entry, "paper", "here", measured(folder, entry, "paper", rates, **how), folder / "figure.svg")
    return words((folder / "figure.svg").read_text())


def ticks_at(svg: str) -> list[float]:
    """Where the x axis has its ticks, in points."""
    axis = svg[svg.index('id="matplotlib.axis_1"') : svg.index('id="matplotlib.axis_2"')]
    return [float(at) for at in re.findall(r'<use xlink:href="#[^"]*" x="([0-9.]+)"', axis)]


@pytest.mark.parametrize(("scale", "ratio"), [("even", 1.0), ("log2", 2.0), ("linear", 6.0)])
def test_batches_of_1_2_and_8_stand_as_far_apart_as_the_scale_says(tmp_path: Path, scale: str, ratio: float) -> None:
    shown = draw_own(tmp_path, LINES.replace("log2", scale), {"recompute=full,gbs=1": 5.0})
    assert [word for word in shown if word in ("1", "2", "8")][:3] == ["1", "2", "8"]
    first, second, third = ticks_at((tmp_path / "figure.svg").read_text())
    assert (third - second) / (second - first) == pytest.approx(ratio, rel=1e-3)


def test_lines_have_the_papers_names_where_it_gives_them(tmp_path: Path) -> None:
    shown = draw_own(tmp_path, LINES, {"recompute=full,gbs=1": 5.0})
    assert "With it" in shown and "Recomputation = none" in shown


def test_names_go_by_the_value_as_it_is_typed(tmp_path: Path) -> None:
    text = LINES.partition("expected:")[0].replace("recompute: [full, none]", "scatter_gather: [true, false]")
    text = text.replace("of: recompute", "of: scatter_gather").replace("{full: With it}", '{"true": With it}')
    shown = draw_own(tmp_path, text, {})
    assert "With it" in shown and "Recomputation = false" in shown


@pytest.mark.parametrize(
    ("rates", "how", "marked"),
    [
        ({}, {}, True),
        ({}, {"out_of_memory": ("recompute=none,gbs=8",)}, True),
        ({}, {"failed": ("recompute=none,gbs=8",)}, False),
        ({"recompute=none,gbs=8": 5.0}, {}, False),
        ({}, {"out_of_memory": ("recompute=full,gbs=8",), "failed": ("recompute=none,gbs=8",)}, False),
    ],
)
def test_what_ran_out_of_memory_as_published_is_marked_and_nothing_else(
    tmp_path: Path, rates: dict[str, float], how: dict[str, Any], marked: bool
) -> None:
    assert ("OOM (published)" in draw_own(tmp_path, LINES, rates, **how)) == marked


def test_methods_are_the_ticks_of_an_axis_of_words(tmp_path: Path) -> None:
    shown = draw_own(tmp_path, ROWS, {"case=ours": 130.0}, metric="tokens_per_s", gpu="H800")
    assert [word for word in shown if word in ("plain", "theirs", "ours")] == ["plain", "theirs", "ours"]
    assert "Figure 1, paper (printed)" in shown and "OOM (published)" in shown


def test_numbers_of_another_gpu_are_not_drawn(tmp_path: Path) -> None:
    shown = draw_own(tmp_path, ROWS, {"case=ours": 130.0}, metric="tokens_per_s", gpu="H200")
    assert "Figure 1" in shown and "Figure 1, paper (printed)" not in shown


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
