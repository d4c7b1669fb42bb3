"""Lookup of experiments by name, and all problems of a file at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog import library
from orchestrator.catalog.library import experiment_names, find_experiment, published_code, replaced
from orchestrator.errors import ReproError
from orchestrator.megatron.axes import MEGATRON
from orchestrator.paths import Folders
from orchestrator.programs.record import Program, find_program
from tests.unit.catalog.entries import BASE, CHECKOUT, entry_of, shipped, short, write_experiment

SHIPPED = Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home")


def messages(folder: Path, text: str) -> list[str]:
    with pytest.raises(ReproError) as caught:
        entry_of(folder, text)
    return [short(problem) for problem in caught.value.problems]


def test_short_and_full_names_find_the_same_experiment_and_the_paper_is_none() -> None:
    assert shipped("figure-13") == shipped("sc21/figure-13")
    assert shipped().short_name == "figure-13"
    assert "sc21/paper" not in experiment_names(SHIPPED)


@pytest.mark.parametrize("name", ["figure-133", "figure13", "Figure-13", "sc21/figure-3"])
def test_a_wrong_name_gets_the_nearest(name: str) -> None:
    with pytest.raises(ReproError, match=r'no such experiment. Did you mean ".*figure-13"\?'):
        shipped(name)


def test_a_suggested_name_is_not_ambiguous() -> None:
    with pytest.raises(
        ReproError, match=r'Did you mean "atc24/table-1" or "sc21/table-1"\?|Did you mean "sc21/table-1"'
    ):
        shipped("own/table-1")


@pytest.mark.parametrize("name", ["", "zzz", "../paper", "paper", "sc21/paper", "x" * 5000, "a\nb", "*"])
def test_a_name_like_nothing_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ReproError, match="no such experiment. "):
        shipped(name)


def test_a_short_name_of_two_papers_asks_for_the_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path, name="figure-13")
    folders = Folders(shipped=CHECKOUT, home=tmp_path)
    with pytest.raises(ReproError, match="could be p/figure-13 or sc21/figure-13. Hint: give the full name"):
        find_experiment(folders, "figure-13")
    assert find_experiment(folders, "p/figure-13").paper.title == "t"


def test_ones_own_file_of_the_same_name_wins_over_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = write_experiment(tmp_path)
    (tmp_path / "experiments" / "p").rename(tmp_path / "experiments" / "sc21")
    (tmp_path / "experiments" / "sc21" / own.name).rename(tmp_path / "experiments" / "sc21" / "figure-13.yaml")
    assert find_experiment(Folders(shipped=CHECKOUT, home=tmp_path), "figure-13").experiment.gpus == 8
    shipped = CHECKOUT / "experiments" / "sc21" / "figure-13.yaml"
    folders = Folders(shipped=CHECKOUT, home=tmp_path)
    assert replaced(folders, find_experiment(folders, "figure-13")) == shipped
    for name in ("figure-13.yaml", "paper.yaml"):  # an unchanged copy replaces nothing
        (tmp_path / "experiments" / "sc21" / name).write_bytes(shipped.with_name(name).read_bytes())
    assert replaced(folders, find_experiment(folders, "figure-13")) is None


def test_errors_of_a_figure_and_its_paper_are_reported_together(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, BASE.replace("gbs: [8, 16]", "gbz: [8, 16]"))
    (file.parent / "paper.yaml").write_text("title: t\nvenu: v\n")
    with pytest.raises(ReproError) as caught:
        find_experiment(Folders(shipped=tmp_path, home=tmp_path), "figure-1")
    lines = [short(problem) for problem in caught.value.problems]
    assert lines == [
        'figure-1.yaml:8:3 matrix.gbz: no such axis. Did you mean "gbs"?',
        'paper.yaml:2:1 venu: unknown field. Did you mean "venue"?',
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("gpus: 8", "gpus: eight"), ["figure-1.yaml:4:7 gpus: must be an integer, got 'eight'"]),
        (
            ("gbs: [8, 16]", "gbs: [08, 16]"),
            ["figure-1.yaml:8:9 matrix.gbs.0: must be an integer, got '08'"],
        ),
        (
            ("gbs: [8, 16]", "gbs: [1e3]"),
            ["figure-1.yaml:8:9 matrix.gbs.0: must be an integer, got 1000.0"],
        ),
        (
            ("gbs: [8, 16]", "scatter_gather: [no]"),
            ["figure-1.yaml:8:20 matrix.scatter_gather.0: must be true or false, got 'no'"],
        ),
        (("pp: [1, 2, 4]", "pp: []"), ["figure-1.yaml:7:3 matrix: pp has no values"]),
        (("pp: [1, 2, 4]", "pp: [1, 2, 1]"), ["figure-1.yaml:7:3 matrix: pp has a value twice"]),
        (
            ("pp: [1, 2, 4]", "pp: [0]"),
            ["figure-1.yaml:7:8 matrix.pp.0: must be 1 or more, got 0"],
        ),
        (
            ("metric: iteration_ms", "metric: speed"),
            ["figure-1.yaml:14:25 plot.y.metric: no such metric, got 'speed'. Hint: there are: iteration_ms, "],
        ),
        (
            ("metric: iteration_ms", "metric: iteration_s"),
            ["figure-1.yaml:14:25 plot.y.metric: no such metric, got 'iteration_s'. Did you mean \"iteration_ms\"?"],
        ),
        (("tp: gpus / pp", "tp: 4"), ["figure-1.yaml:10:7 rules.tp: must be text, got 4"]),
    ],
)
def test_a_wrong_field_is_an_error_with_its_location(
    tmp_path: Path, change: tuple[str, str], expected: list[str]
) -> None:
    lines = messages(tmp_path, BASE.replace(*change))
    assert len(lines) == len(expected) and all(map(str.startswith, lines, expected)), lines


def test_a_ratio_that_nothing_could_fail_is_no_claim(tmp_path: Path) -> None:
    claim = "{id: a, kind: ratio, says: s, source: s, stated: printed, judged_at: [paper], of: {pp: 1}, over: {pp: 2}}"
    (only,) = messages(tmp_path, f"{BASE}claims:\n  - {claim}\n")
    assert only == "figure-1.yaml:17:5 claims.0: neither at_least nor at_most: the claim cannot fail"


def test_a_matrix_without_an_axis_is_refused_so_that_no_case_is_nameless(tmp_path: Path) -> None:
    text = BASE.replace("  pp: [1, 2, 4]\n  gbs: [8, 16]\n", "  {}\n")
    assert messages(tmp_path, text) == ["figure-1.yaml:7:3 matrix: must have an axis"]


def test_a_scale_called_paper_is_refused(tmp_path: Path) -> None:
    (only,) = messages(tmp_path, BASE + "scales:\n  paper: {gpus: 4}\n")
    assert "the scale `paper` is the top level of the file" in only


def test_a_figure_without_a_paper_has_its_folder_as_title(tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    (file.parent / "paper.yaml").unlink()
    assert find_experiment(Folders(shipped=tmp_path, home=tmp_path), "figure-1").paper.title == file.parent.name


def test_the_code_of_a_users_paper_comes_before_the_shipped_one_and_a_broken_paper_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped_code = published_code(SHIPPED)
    assert shipped_code["megatron-alpa"].repository == "zhisbug/Megatron-LM"
    paper = tmp_path / "experiments" / "mine" / "paper.yaml"
    paper.parent.mkdir(parents=True)
    (paper.parent / "figure-1.yaml").write_text("")
    code = "code: {megatron-2021: {repository: ann/Megatron-LM, commit: my-branch}}\n"
    paper.write_text((CHECKOUT / "experiments" / "alpa" / "paper.yaml").read_text().partition("code:")[0] + code)
    mine = published_code(Folders(shipped=CHECKOUT, home=tmp_path))
    assert mine["megatron-2021"].commit == "my-branch"
    assert mine["megatron-kwai"] == shipped_code["megatron-kwai"]
    paper.write_text("titel: x\n")
    with pytest.raises(ReproError, match="titel"):
        published_code(Folders(shipped=CHECKOUT, home=tmp_path))


def test_the_names_of_a_program_that_nobody_can_run_are_those_of_another_case(tmp_path: Path) -> None:
    rows = "cases: [{pp: 1, gbs: 8, program: zero-3}, {pp: 2, gbs: 8, program: megatron-2021}]"
    text = BASE.replace("program: pretrain", "program: zero-2\nreference_only: its code is not published")
    text = text.replace("matrix:\n  pp: [1, 2, 4]\n  gbs: [8, 16]\n", f"named_by: [pp]\n{rows}\n")
    entry = entry_of(tmp_path, text.replace("series: {label: s, of: gbs}", "also: []"))
    assert (entry.record, entry.names) == (find_program("megatron-2021"), MEGATRON)


def test_a_program_without_groups_of_axes_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = replace(MEGATRON, groups={})
    bare = Program(name="bare", about="no groups", family="bare", names=names)
    monkeypatch.setattr(library, "known_program", {"pretrain": bare}.get)
    assert messages(tmp_path, BASE) == [
        "figure-1.yaml:5:1 model: bare has no such group of axes. Hint: write the axes in matrix, fixed or cases"
    ]
    assert entry_of(tmp_path, BASE.replace("model: {", "# model: {")).experiment.model == {}


def test_without_any_known_program_a_program_is_one_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "known_program", lambda _name: None)
    monkeypatch.setattr(library, "programs", dict)
    assert messages(tmp_path, BASE) == [
        "figure-1.yaml:3:10 pretrain: no such program. Hint: install the package of the program"
    ]
