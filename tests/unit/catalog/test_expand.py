"""Expansion of matrix, rules and scales into cases, and the selection of cases."""

from __future__ import annotations

from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.expand import MOST_CASES, case_count, scale_fields
from orchestrator.catalog.experiment import scale_names
from orchestrator.catalog.library import experiment_names, read_experiment
from orchestrator.errors import ReproError
from orchestrator.megatron.axes import AXES, MEGATRON
from orchestrator.paths import Folders
from tests.cases import expand
from tests.examples import examples
from tests.unit.catalog.entries import BASE, CHECKOUT, entry_of, shipped, short


def messages(folder: Path, text: str, scale: str = "paper") -> list[str]:
    with pytest.raises(ReproError) as caught:
        expand(entry_of(folder, text), scale)
    return [short(problem) for problem in caught.value.problems]


AXIS_VALUES = st.lists(st.integers(1, 500), min_size=1, max_size=4, unique=True)


@settings(max_examples=examples(30))
@given(matrix=st.dictionaries(st.sampled_from(["pp", "tp", "cp", "vp", "gbs"]), AXIS_VALUES, min_size=1))
def test_the_cases_are_the_product_in_a_stable_order_each_with_its_own_name(matrix: dict[str, list[int]]) -> None:
    axis = next(iter(matrix))
    lines = "".join(f"  {name}: {values}\n" for name, values in matrix.items())
    gbs = "" if "gbs" in matrix else ", gbs: 8"
    text = (
        BASE.split("matrix:")[0] + f"matrix:\n{lines}fixed: {{mbs: 1{gbs}}}\nplot:\n  x: {{label: x, of: [{axis}]}}\n"
    )
    with TemporaryDirectory() as folder:
        entry = entry_of(Path(folder), text + "  y: {label: y, metric: iteration_ms}\n")
    cases = expand(entry)
    assert len(cases) == prod(len(values) for values in matrix.values())
    assert len({case.name for case in cases}) == len({case.slug for case in cases}) == len(cases)
    assert cases == expand(entry)
    assert all(dict(case.point)[name] in values for case in cases for name, values in matrix.items())


def test_the_order_is_the_files_within_an_axis_and_the_axes_own_between_them(tmp_path: Path) -> None:
    cases = expand(entry_of(tmp_path, BASE.replace("pp: [1, 2, 4]", "pp: [4, 1, 2]")))
    assert [(case.value("pp"), case.value("gbs")) for case in cases[:3]] == [(4, 8), (4, 16), (1, 8)]


def test_every_point_whose_rule_fails_is_named_at_the_rules(tmp_path: Path) -> None:
    assert messages(tmp_path, BASE.replace("pp: [1, 2, 4]", "pp: [1, 3, 5]").replace("[8, 16]", "[8]")) == [
        "figure-1.yaml:10:3 figure-1 pp=3,gbs=8: 8 does not divide by 3 (rule `gpus / pp`)",
        "figure-1.yaml:10:3 figure-1 pp=5,gbs=8: 8 does not divide by 5 (rule `gpus / pp`)",
    ]


def test_a_fault_in_a_scales_own_rule_is_shown_in_that_scale(tmp_path: Path) -> None:
    text = BASE + "scales:\n  small:\n    gpus: 4\n    rules: {tp: gpu / pp}\n"
    assert all(line.startswith("figure-1.yaml:19:12 ") for line in messages(tmp_path, text, "small"))


def test_rules_may_use_what_earlier_rules_gave_and_must_not_contradict_the_layout(tmp_path: Path) -> None:
    rules = "rules:\n  tp: mbs + 1\n  dp: gpus / pp / tp\n"
    cases = expand(entry_of(tmp_path, BASE.replace("rules:\n  tp: gpus / pp\n", rules)))
    assert [(case.value("pp"), case.value("dp")) for case in cases[::2]] == [(1, 4), (2, 2), (4, 1)]
    wrong = BASE.replace("rules:\n  tp: gpus / pp\n", "rules:\n  tp: mbs + 1\n  dp: mbs\n").replace("[8, 16]", "[8]")
    assert messages(tmp_path, wrong)[0].endswith("pp=1,gbs=8: dp=1 but data-parallel is 4 on 8 GPUs")


def test_a_batch_that_nothing_gives_is_missed(tmp_path: Path) -> None:
    [line] = messages(tmp_path, BASE.replace("fixed: {mbs: 1}\n", ""))
    assert line.endswith("pp=1,gbs=8 and 5 more cases: mbs is neither in matrix, nor fixed, nor set by a rule")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            BASE.replace("{mbs: 1}", "{mbs: 1, pp: 2}"),
            "11:17 pp: set by matrix and by fixed at scale paper. Hint: keep one",
        ),
        (
            BASE.replace("{mbs: 1}", "{mbs: 1, tp: 2}"),
            "10:3 tp: set by fixed and by rules at scale paper. Hint: keep one",
        ),
        (BASE.replace("  gbs: [8, 16]", "  gbs: [8, 16]\n  tp: [1]"), "11:3 tp: set by matrix and by rules at scale"),
        (
            BASE.replace("of: [pp, tp]", "of: [pp, vp]"),
            "13:26 vp: neither in matrix nor set by a rule. Hint: there are: pp, ",
        ),
        (
            BASE.replace("of: gbs", "of: mbs"),
            "15:26 mbs: neither in matrix nor set by a rule. Hint: there are: pp, gbs, tp",
        ),
        (
            BASE + "claims:\n- {id: a, kind: gain, says: s, source: s, stated: printed, judged_at: [papr], along: gbs, "
            "where_largest: pp}\n",
            '17:72 papr: no such scale. Did you mean "paper"?',
        ),
    ],
)
def test_fields_that_contradict_one_another_are_refused_at_their_place(
    tmp_path: Path, text: str, expected: str
) -> None:
    (only,) = messages(tmp_path, text)
    assert only.startswith(f"figure-1.yaml:{expected}"), only


ROWS = BASE.replace(
    "matrix:\n  pp: [1, 2, 4]\n  gbs: [8, 16]\n", "cases:\n- {case: a, pp: 1, gbs: 8}\n- {pp: 2, gbs: 16}\n"
)


def test_a_row_without_the_name_that_cases_go_by_is_refused_at_its_place(tmp_path: Path) -> None:
    hint = "add case: to the row, or change named_by"
    assert messages(tmp_path, ROWS) == [
        f"figure-1.yaml:8:3 case: missing, and named_by names cases by it. Hint: {hint}"
    ]


def large(cases: int) -> str:
    return BASE.replace("gbs: [8, 16]", f"gbs: {list(range(8, 8 + cases // 3))}")


def test_a_matrix_is_expanded_only_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.catalog.expand.MOST_CASES", 9)
    assert len(expand(entry_of(tmp_path, large(9)))) == 9
    monkeypatch.setattr("orchestrator.catalog.expand._case", None)  # nothing is expanded
    what = "figure-1.yaml:7:3 matrix: 12 cases at scale paper, and the limit is 9. Hint: remove values of the axes"
    assert messages(tmp_path, large(12)) == [what]


def test_no_shipped_experiment_is_near_the_limit() -> None:
    files = experiment_names(Folders(shipped=CHECKOUT, home=CHECKOUT))
    for name, file in files.items():
        entry = read_experiment(name, file, files)
        assert all(case_count(scale_fields(entry, scale)) < MOST_CASES / 20 for scale in scale_names(entry.experiment))


@pytest.mark.parametrize("gbs", [10**9 + 1, 10**390], ids=["one more", "390 digits"])
def test_a_count_has_a_limit(tmp_path: Path, gbs: int) -> None:
    (only,) = messages(tmp_path, BASE.replace("[8, 16]", f"[{gbs}]"))
    assert only.startswith("figure-1.yaml:8:9 matrix.gbs.0: must be 1000000000 or less, got 1")


def test_a_rule_cannot_exceed_the_limit_of_a_count(tmp_path: Path) -> None:
    text = BASE.replace("fixed: {mbs: 1}", "fixed: {seq: 1000000000}").replace(
        "tp: gpus / pp", f"mbs: {' * '.join(['seq'] * 30)}"
    )
    text = text.replace("pp, tp]", "pp, mbs]")
    assert all(line.endswith("` gives more than 1,000,000,000") for line in messages(tmp_path, text))


def test_an_unknown_scale_is_refused_with_the_nearest_or_all_scales() -> None:
    for asked, hint in (("quat", 'Did you mean "quad"?'), ("zzz", "Hint: figure-13 has: paper, quad, pair, cpu")):
        with pytest.raises(ReproError) as caught:
            expand(shipped(), asked)
        assert str(caught.value) == f"{asked}: no such scale. {hint}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pp=8,gbs=32", {"pp": 8, "gbs": 32}),
        (" pp = 8 , gbs=32,", {"pp": 8, "gbs": 32}),
        ("", {}),
        (None, {}),
        ("pp=08", {"pp": 8}),
        ("pp=8,pp=8", {"pp": 8}),
        ("scatter_gather=true,offload=0.5", {"scatter_gather": True, "offload": 0.5}),
        ("recompute=full", {"recompute": "full"}),
        ("case=301", {"case": "301"}),
    ],
)
def test_where_is_read(text: str | None, expected: dict[str, object]) -> None:
    assert parse_where(text, MEGATRON.axes) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ppp=8", '--where ppp=8: no such axis. Did you mean "pp"?'),
        ("zzz=8", f"--where zzz=8: no such axis. Hint: there are: {', '.join(AXES)}"),
        ("pp", "--where pp: must be axis=value. Hint: for example pp=8,gbs=32"),
        ("pp=", "--where pp: must be axis=value. Hint: for example pp=8,gbs=32"),
        (
            "pp=-1",
            "--where pp=-1: must be an integer, got '-1'. Hint: for example pp=8,gbs=32",
        ),
        ("pp=8|16", "--where pp=8|16: must be an integer, got '8|16'. Hint: for example pp=8,gbs=32"),
        (
            "scatter_gather=no",
            "--where scatter_gather=no: must be true or false, got 'no'. Hint: for example pp=8,gbs=32",
        ),
        (
            "recompute=all",
            "--where recompute=all: must be 'none', 'selective', 'full' or 'ours', got 'all'. Hint: "
            "for example pp=8,gbs=32",
        ),
        ("pp=" + "9" * 5000, None),
        ("pp=8,pp=4", "--where pp=4: pp is given twice. Hint: one value for each axis"),
    ],
)
def test_a_wrong_where_is_one_line(text: str, expected: str | None) -> None:
    with pytest.raises(ReproError) as caught:
        parse_where(text, MEGATRON.axes)
    assert expected is None or str(caught.value) == expected


def test_a_where_without_a_match_lists_the_values() -> None:
    cases = expand(shipped())
    for where, expected in (
        ({"pp": 3}, "--where pp=3: no such case. Hint: there are pp: 2, 4, 8, 16, 32"),
        ({"pp": 3, "gbs": 1}, "--where pp=3,gbs=1: no such case. Hint: there are pp: 2, 4, 8, 16, 32; gbs: 32, 128"),
        ({"mbs": 2}, "--where mbs=2: no such case. Hint: there are mbs: 1"),
        ({"model": "7b"}, "--where model=7b: no such case. Hint: there are model: none"),
    ):
        with pytest.raises(ReproError) as caught:
            select(cases, where)
        assert str(caught.value) == expected


@given(st.text(max_size=30) | st.text(alphabet="pgbst=, 0123456789-", max_size=30))
def test_any_where_is_read_or_refused(text: str) -> None:
    try:
        parse_where(text, MEGATRON.axes)
    except ReproError as error:
        assert str(error).startswith("--where ")


def test_only_a_gpt_chooses_its_positions(tmp_path: Path) -> None:
    rotary = BASE.replace("vocab: 64}", "vocab: 64, positions: rotary}")
    assert {case.model.positions for case in expand(entry_of(tmp_path, rotary))} == {"rotary"}
    with pytest.raises(ReproError, match=r"positions: those of a llama are rotary; remove the key"):
        entry_of(tmp_path, rotary.replace("positions: rotary", "positions: learned, family: llama"))
