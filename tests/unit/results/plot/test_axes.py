"""Where cases stand, and that nothing on a picture touches anything else: for every figure that is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.library import find_experiment
from orchestrator.paths import Folders
from orchestrator.results.plot.figure import drawn, log_numbers, matplotlib_as_shipped, number_text, positions_of
from orchestrator.results.plot.panels import together
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import CHECKOUT, THREE_METHODS, entry_of, shipped
from tests.unit.results.drawing import EXPERIMENTS, LINES, made_up, nothing_ran, texts_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("scale", "ratio"), [("even", 1.0), ("log2", 2.0), ("linear", 6.0)])
def test_batches_of_1_2_and_8_stand_as_far_apart_as_the_scale_says(tmp_path: Path, scale: str, ratio: float) -> None:
    entry = entry_of(tmp_path, LINES.replace("log2", scale))
    found = measured_results(tmp_path, entry, "paper", {"recompute=full,gbs=1": 5.0})
    with matplotlib_as_shipped():
        figure: Any = drawn(entry, "paper", "here", found)
        axes = figure.axes[0]
        to_picture = axes.transData.transform
        at = [to_picture((tick, 0))[0] for tick in axes.get_xticks()]
        labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1", "2", "8"]
    assert (at[2] - at[1]) / (at[1] - at[0]) == pytest.approx(ratio, rel=1e-3)


def test_numbers_stand_in_their_order_and_words_in_that_of_the_file(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES.replace("scale: log2", "scale: even"))
    found = measured_results(tmp_path, entry, "paper", {})
    assert positions_of(entry, found).ticks == ("1", "2", "8")
    rows = entry_of(tmp_path, THREE_METHODS)
    found = measured_results(tmp_path, rows, "paper", {})
    assert positions_of(rows, found).ticks == ("plain", "theirs", "ours")


def of_nothing(name: str) -> Any:
    """The picture of a shipped experiment of which nothing ran."""
    entry = shipped(name)
    with matplotlib_as_shipped():
        return drawn(entry, "paper", "here", nothing_ran(entry))


def test_the_models_of_table_1_stand_under_their_gpus_on_a_log2_axis() -> None:
    axes = of_nothing("table-1").axes[-1]
    labels, pads = axes.get_xticklabels(), [tick.get_pad() for tick in axes.xaxis.get_major_ticks()]
    assert axes.get_xscale() == "log" and pads[1] > pads[0] == pads[2] and labels[0].get_rotation() == 0
    assert list(axes.get_xticks()) == [32, 64, 128, 256, 512, 1024, 1536, 1920, 2520, 3072]
    assert (labels[0].get_text(), labels[-1].get_text()) == ("32\n1.7B", "3072\n1T")


def test_what_no_case_has_at_a_scale_does_not_stand_under_it(tmp_path: Path) -> None:
    entry = shipped("alpa-gpt")  # at scale cpu its rows name no model
    found = measured_results(tmp_path, entry, "cpu", {})
    assert positions_of(entry, found).ticks == ("1", "4")


def test_bars_stand_evenly_in_the_order_of_their_numbers() -> None:
    axes = of_nothing("alpa-gpt").axes[-1]
    assert list(axes.get_xticks()) == [0, 1, 2, 3, 4, 5]
    assert axes.get_xticklabels()[2].get_text() == "8\n2.6B"


def test_ticks_that_do_not_fit_become_round_numbers() -> None:
    # 20 numbers of GPUs between 32 and 256
    assert list(of_nothing("atc-figure-9").axes[-1].get_xticks()) == [50, 100, 150, 200, 250]


def test_labels_that_touch_even_on_a_wide_picture_are_turned() -> None:
    figure = of_nothing("alpa-search")
    assert figure.axes[-1].get_xticklabels()[0].get_rotation() == 90 and figure.get_figwidth() <= 14


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "TFLOP/s", "0.25"),
        (150, "TFLOP/s", "150"),
        (200_000, "1/s", "200,000"),
        (4e10, "B", "40 GB"),
        (4096, "B", "4.096 kB"),
        (2e-4, "PFLOP/s", "0.0002"),
        (6.10352e-05, "PFLOP/s", "6.1×10⁻⁵"),
    ],
)
def test_a_number_is_written_so_that_it_can_be_read(value: float, unit: str, text: str) -> None:
    assert number_text(value, unit) == text


def boxes_of(figure: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """The boxes of all texts; and of what must keep clear of each other: axes without their texts, and the legend."""
    figure.draw_without_rendering()
    texts = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    parts = [("axes", axes.get_window_extent()) for axes in figure.axes]
    return texts, [*parts, ("legend", figure.legends[0].get_window_extent())]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_figure_is_drawn_with_nothing_cut_off_and_nothing_over_anything_else(tmp_path: Path, name: str) -> None:
    entry = find_experiment(Folders(CHECKOUT, CHECKOUT), name)
    with matplotlib_as_shipped():
        figure = drawn(entry, "paper", "a-cluster-of-some-site", made_up(tmp_path, entry))
        texts, parts = boxes_of(figure)
        page = figure.bbox
    outside = [
        text for text, box in texts if box.x0 < -1 or box.y0 < -1 or box.x1 > page.x1 + 1 or box.y1 > page.y1 + 1
    ]
    assert outside == []
    over = [(a, b) for i, (a, one) in enumerate(texts) for b, other in texts[i + 1 :] if touch(one, other)]
    assert over == []
    assert [(a, b) for i, (a, one) in enumerate(parts) for b, other in parts[i + 1 :] if touch(one, other)] == []
    assert all(box.height > 100 for part, box in parts if part == "axes")
    title = next(box for text, box in texts if text.replace("\N{NO-BREAK SPACE}", " ") == entry.experiment.title)
    assert title.height < 20  # one line


def touch(one: Any, other: Any) -> bool:
    """Whether the boxes share more than an edge, in pixels of a picture of 100 dots per inch."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    along = min(one.y1, other.y1) - max(one.y0, other.y0)
    return bool(across > 0.5 and along > 1.5)


@pytest.mark.parametrize("name", ["sc21/table-1", "atc24/atc-figure-7", "tutorials/tutorial-cp"])
def test_a_figure_of_which_nothing_ran_has_the_published_numbers(name: str) -> None:
    entry = find_experiment(Folders(CHECKOUT, CHECKOUT), name)
    with matplotlib_as_shipped():
        texts = [text.get_text() for text in texts_of(drawn(entry, "paper", "here", nothing_ran(entry)))]
    assert "published, printed" in texts and "not run" in texts and "measured" not in texts


def test_a_figure_without_any_number_is_drawn_as_well(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES)
    with matplotlib_as_shipped():
        texts = [text.get_text() for text in texts_of(drawn(entry, "paper", "here", nothing_ran(entry)))]
    assert "not run" in texts and "out of memory (published)" in texts


def test_a_bar_of_what_was_measured_stands_beside_each_that_is_published(tmp_path: Path) -> None:
    entry = shipped("atc-table-8")
    with matplotlib_as_shipped():
        figure: Any = drawn(entry, "paper", "here", made_up(tmp_path, entry, gpu="H800"))
        own, share = figure.axes
        bars = [(round(bar.get_x() + bar.get_width() / 2, 2), bar.get_height()) for bar in own.patches]
        published = [bar.get_height() for bar in share.patches][1::2]
    assert [value for _, value in bars][1::2] == [299, 387, 278]  # the table's
    assert published == [33.4, 43.2, 31.0]
    assert all(left < case < right for case, (left, _), (right, _) in zip(range(3), bars[::2], bars[1::2], strict=True))


def test_a_line_is_broken_where_a_case_is_missing(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, LINES)
    found = measured_results(tmp_path, entry, "paper", {"recompute=full,gbs=1": 5.0, "recompute=full,gbs=8": 6.0})
    with matplotlib_as_shipped():
        figure: Any = drawn(entry, "paper", "here", found)
        axes = figure.axes[0]
        (line,) = [line for line in axes.get_lines() if line.get_linestyle() == "-" and line.get_ydata()[0] == 5.0]
    assert line.get_ydata()[1] != line.get_ydata()[1] and line.get_ydata()[2] == 6.0  # nan is not itself


@pytest.mark.parametrize(
    ("low", "high", "numbers"),
    [
        (3.0, 700.0, [5, 10, 20, 50, 100, 200, 500]),
        (0.43, 1.5, [0.6, 0.8, 1, 1.5]),
        (4e-5, 2e-4, [4e-5, 6e-5, 8e-5, 1e-4, 1.5e-4, 2e-4]),
        (1e-3, 2e3, [1e-3, 1e-2, 1e-1, 1, 10, 100, 1000]),
    ],
)
def test_a_logarithmic_axis_has_round_decimal_numbers(low: float, high: float, numbers: list[float]) -> None:
    assert log_numbers(low, high) == numbers


def test_no_line_ends_inside_parentheses_or_after_a_number() -> None:
    assert together("x on 2 GPUs of 80 GB, (t, p) = (1, 2)").split(" ") == [
        "x",
        "on",
        "2\N{NO-BREAK SPACE}GPUs",
        "of",
        "80\N{NO-BREAK SPACE}GB,",
        "(t, p) = (1, 2)".replace(" ", "\N{NO-BREAK SPACE}"),
    ]
