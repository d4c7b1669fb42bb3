"""The picture as a file: on the paper's own axes, the same every time, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import ReproError
from orchestrator.results.cases import Result
from orchestrator.results.plot.figure import plot
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import THREE_METHODS, figure_13, shipped
from tests.unit.results.drawing import LINES, draw_own, words

pytestmark = pytest.mark.slow


def draw(folder: Path, scale: str, rates: dict[str, float], failed: tuple[str, ...] = (), **how: str) -> list[str]:
    found = measured_results(folder, figure_13(), scale, rates, failed, gpu=how.get("gpu"))
    plot(figure_13(), scale, "here", found, folder / "figure.svg")
    return words((folder / "figure.svg").read_text())


def test_the_axes_ticks_and_series_are_the_papers(tmp_path: Path) -> None:
    shown = draw(tmp_path, "cpu", {"pp=1,tp=4,gbs=4": 10.0, "pp=2,tp=2,gbs=4": 5.0, "pp=4,tp=1,gbs=16": 7.0})
    assert "(Pipeline-parallel size, Tensor-parallel size)" in shown
    assert "Achieved teraFLOP/s per process" in shown  # a process on CPU cores replaces a GPU
    assert [word for word in shown if word.startswith("(") and word[1].isdigit()] == ["(1, 4)", "(2, 2)", "(4, 1)"]
    assert [word for word in shown if word.startswith("Batch size")] == ["Batch size = 4", "Batch size = 16"]


def test_figure_scale_cluster_and_what_the_scale_is_stand_above(tmp_path: Path) -> None:
    shown = " ".join(draw(tmp_path, "cpu", {"pp=1,tp=4,gbs=4": 10.0}))
    assert (
        "Pipeline- against tensor-parallel size SC21 Figure 13, scale cpu on here: 3.4 million parameters in" in shown
    )
    assert "162.2 billion" not in shown
    shown = " ".join(draw(tmp_path, "paper", {"pp=8,tp=8,gbs=32": 140.0}))
    assert "SC21 Figure 13, scale paper on here: 162.2 billion parameters on 64 GPUs" in shown


def test_the_published_scale_has_the_papers_range_and_marks_numbers_of_the_plot(tmp_path: Path) -> None:
    shown = draw(tmp_path, "paper", {"pp=8,tp=8,gbs=32": 140.0})
    assert "(32, 2)" in shown
    assert [word for word in shown if word.isdigit()] == ["0", "50", "100", "150", "200"]
    assert "published, traced from the plot" in shown


def test_a_number_beyond_the_papers_range_is_not_cut_off(tmp_path: Path) -> None:
    shown = draw(tmp_path, "paper", {"pp=8,tp=8,gbs=32": 640.0})
    assert max(int(word) for word in shown if word.isdigit()) >= 600


def test_a_range_that_begins_above_0_does_so_as_long_as_no_number_is_below(tmp_path: Path) -> None:
    entry = shipped("figure-12")  # 50 to 150
    for rate, lowest in ((100.0, "50"), (190.0, "60"), (40.0, "0")):
        folder = tmp_path / str(rate)
        folder.mkdir()
        found = measured_results(folder, entry, "paper", {"vp=1,gbs=60": rate})
        plot(entry, "paper", "here", found, folder / "a.svg")
        ticks = words((folder / "a.svg").read_text())
        assert [word for word in ticks if word.isdigit()][5] == lowest  # after the five batch sizes


def test_published_numbers_are_not_drawn_at_another_scale(tmp_path: Path) -> None:
    assert not [word for word in draw(tmp_path, "cpu", {"pp=1,tp=4,gbs=4": 10.0}) if "published" in word]


def test_a_number_of_a_job_that_was_not_verified_is_not_drawn(tmp_path: Path) -> None:
    def shown(folder: Path, rates: dict[str, float]) -> list[str]:
        folder.mkdir()
        return draw(folder, "cpu", rates, ("pp=2,tp=2,gbs=4",))

    good = {"pp=1,tp=4,gbs=4": 10.0}
    # The same axis: 5000 had no part in it.
    assert shown(tmp_path / "one", good | {"pp=2,tp=2,gbs=4": 5000.0}) == shown(tmp_path / "two", good)


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("H200", ["published: A100-SXM4-80GB; measured: H200"]),
        (None, ["published: A100-SXM4-80GB; measured: unknown GPU"]),
        ("NVIDIA A100-SXM4-80GB", []),
    ],
)
def test_the_gpus_are_named_where_they_are_not_the_same(tmp_path: Path, gpu: str | None, said: list[str]) -> None:
    rates = {"pp=8,tp=8,gbs=32": 140.0}
    plot(
        figure_13(),
        "paper",
        "here",
        measured_results(tmp_path, figure_13(), "paper", rates, gpu=gpu),
        tmp_path / "a.svg",
    )
    assert [word for word in words((tmp_path / "a.svg").read_text()) if word.startswith("published: ")] == said


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        ("paper", "published: megatron-2021 on A100-SXM4-80GB; measured: pretrain on A100"),
        ("cpu", "measured with pretrain instead of megatron-2021"),
    ],
)
def test_another_program_than_the_experiments_own_is_named(tmp_path: Path, scale: str, said: str) -> None:
    rates = {"pp=8,tp=8,gbs=32": 140.0, "pp=1,tp=4,gbs=4": 10.0}
    found = [
        replace(result, case=replace(result.case, program="pretrain"), instead_of="megatron-2021", gpu="A100")
        for result in measured_results(tmp_path, figure_13(), scale, rates)
    ]
    plot(figure_13(), scale, "here", found, tmp_path / "a.svg")
    assert said in words((tmp_path / "a.svg").read_text())


def test_lines_have_the_papers_names_where_it_gives_them(tmp_path: Path) -> None:
    shown = draw_own(tmp_path, LINES, {"recompute=full,gbs=1": 5.0})
    assert "With it" in shown and "Recomputation = none" in shown


def test_names_go_by_the_value_as_it_is_typed(tmp_path: Path) -> None:
    text = LINES.partition("expected:")[0].replace("recompute: [full, none]", "scatter_gather: [true, false]")
    text = text.replace("of: recompute", "of: scatter_gather").replace("{full: With it}", '{"true": With it}')
    shown = draw_own(tmp_path, text, {})
    assert "With it" in shown and "Recomputation = false" in shown


def test_methods_are_the_ticks_of_an_axis_of_words(tmp_path: Path) -> None:
    shown = draw_own(tmp_path, THREE_METHODS, {"case=ours": 130.0}, metric="tokens_per_s", gpu="H800")
    assert [word for word in shown if word in ("plain", "theirs", "ours")] == ["plain", "theirs", "ours"]
    assert "published, printed" in shown and "out of memory (published)" in shown


def test_what_error_bars_are_is_said_and_what_is_too_noisy_is_marked(tmp_path: Path) -> None:
    rates = {"recompute=full,gbs=1": 5.0, "recompute=full,gbs=2": 6.0}
    (tmp_path / "calm").mkdir()
    calm = draw_own(tmp_path / "calm", LINES, rates)
    assert "middle half of the iterations" in calm and "measured, too noisy to compare" not in calm
    (tmp_path / "noisy").mkdir()
    noisy = draw_own(tmp_path / "noisy", LINES, rates, noise={"recompute=full,gbs=2": 0.3})
    assert "measured" in noisy and "measured, too noisy to compare" in noisy


@pytest.mark.parametrize("marks", ["lines", "bars"])
def test_a_host_bound_case_is_marked_and_explained_in_the_legend(tmp_path: Path, marks: str) -> None:
    rates = {"recompute=full,gbs=1": 5.0, "recompute=full,gbs=2": 6.0}
    text = LINES.replace("plot:\n", f"plot:\n  marks: {marks}\n")
    quick = draw_own(tmp_path, text, rates, waits=dict.fromkeys(rates, 10.0))
    assert "measured" in quick and "measured, host-bound" not in quick
    (tmp_path / "bound").mkdir()
    bound = draw_own(tmp_path / "bound", text, rates, waits={"recompute=full,gbs=2": 31.0})
    assert "measured" in bound and "measured, host-bound" in bound


def test_a_dollar_or_a_tag_in_a_name_is_drawn_as_it_is(tmp_path: Path) -> None:
    found = measured_results(tmp_path, figure_13(), "cpu", {"pp=1,tp=4,gbs=4": 10.0})
    plot(figure_13(), "cpu", "a$b$_<i>&", found, tmp_path / "a.svg")
    assert [word for word in words((tmp_path / "a.svg").read_text()) if "scale cpu on a$b$_<i>&:" in word]


@pytest.fixture
def found(tmp_path: Path) -> list[Result]:
    return measured_results(tmp_path, figure_13(), "cpu", {"pp=1,tp=4,gbs=4": 10.0})


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("b c.SVG", b"<?xml")])
def test_each_format_is_what_its_name_says_and_nothing_else_is_left(
    tmp_path: Path, found: list[Result], name: str, start: bytes
) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    plot(figure_13(), "cpu", "here", found, folder / name)
    assert (folder / name).read_bytes().startswith(start)
    assert [path.name for path in folder.iterdir()] == [name]


def test_the_same_data_gives_the_same_bytes_in_another_process_at_another_time(
    tmp_path: Path, found: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")  # what matplotlib takes for the time of today
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.recorded_jobs import measured_results\nfrom tests.unit.catalog.entries import figure_13\n"
        "from orchestrator.results.plot.figure import plot\n"
        "import matplotlib; matplotlib.rcParams['xtick.direction'] = 'in'; matplotlib.rcParams['text.usetex'] = True\n"
        "folder = Path(sys.argv[1]); folder.mkdir()\n"
        "found = measured_results(folder, figure_13(), 'cpu', {'pp=1,tp=4,gbs=4': 10.0})\n"
        "for name in sys.argv[2:]: plot(figure_13(), 'cpu', 'here', found, folder / name)\n"
    )
    names = ["a.png", "a.svg", "a.pdf"]
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "again"), *names], check=True)
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    for name in names:
        plot(figure_13(), "cpu", "here", found, tmp_path / name)
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


@pytest.mark.parametrize("name", ["figure", "figure.jpeg", "figure.docx", "png"])
def test_a_format_there_is_not_is_refused(tmp_path: Path, found: list[Result], name: str) -> None:
    with pytest.raises(ReproError, match=rf"{name}: unknown picture format. Hint: end the name in \.png, \.svg, \.pdf"):
        plot(figure_13(), "cpu", "here", found, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, found: list[Result]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReproError, match=r"file/figure\.png: cannot be written \(.+\)"):
        plot(figure_13(), "cpu", "here", found, tmp_path / "file" / "figure.png")


def test_a_machine_without_matplotlib_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from orchestrator.errors import ReproError\n"
        "from orchestrator.results.plot.figure import require_matplotlib\n"
        "try: require_matplotlib()\nexcept ReproError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "drawing needs matplotlib. Hint: pip install '.[plot]'\n"


def test_matplotlib_is_not_loaded_before_something_is_drawn() -> None:
    script = "import sys, orchestrator.results.plot.figure; print({'matplotlib', 'numpy'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"
