"""Arithmetic of rules: exact, and nothing but arithmetic."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog.expand import RuleError, evaluate

NAMES = {"gpus": 64, "pp": 4, "mbs": 1}


@pytest.mark.parametrize(
    ("rule", "value"),
    [("gpus / pp", 16), ("gpus/pp/mbs", 16), ("2 * pp + 1", 9), ("gpus - pp * (mbs + 1)", 56), ("8", 8), ("pp", 4)],
)
def test_rules_are_ordinary_arithmetic(rule: str, value: int) -> None:
    assert evaluate(rule, NAMES) == value


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("gpus / 5", "64 does not divide by 5 (rule `gpus / 5`)"),
        ("gpus / (pp - 4)", "64 does not divide by 0 (rule `gpus / (pp - 4)`)"),
        ("gpus / 3 * 3", "64 does not divide by 3 (rule `gpus / 3 * 3`)"),
        ("pp - 4", "rule `pp - 4` gives 0"),
        ("pp - gpus", "rule `pp - gpus` gives -60"),
        ("gpu / pp", "rule `gpu / pp`: unknown name gpu (there are: gpus, pp, mbs)"),
        ("gpus /", "rule `gpus /` is not arithmetic"),
        ("", "rule `` is not arithmetic"),
        ("a = 1", "rule `a = 1` is not arithmetic"),
    ],
)
def test_a_rule_without_a_positive_whole_result_is_an_error(rule: str, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        evaluate(rule, NAMES)
    assert str(caught.value) == message


NO_RULES = [
    "__import__('os')",
    "gpus.real",
    "gpus()",
    "pp ** gpus",
    "gpus // pp",
    "gpus % pp",
    "-pp",
    "1.5",
    "True",
    "'a' * 9",
    "[1][0]",
    "pp if pp else 1",
    "(lambda: 1)()",
    "pp < gpus",
    "pp and gpus",
    "1 << 99",
    "f'{pp}'",
    "(pp := 2)",
    "9j",
]


def test_calls_attributes_and_other_operators_are_refused() -> None:
    for rule in NO_RULES:
        with pytest.raises(RuleError, match="only whole numbers, names and"):
            pytest.fail(f"{rule} is {evaluate(rule, NAMES)}")


@pytest.mark.parametrize(
    "rule", ["(" * 5000 + "1" + ")" * 5000, "1" + "+1" * 900, "9" * 5000, "9" * 150 + "*" + "9" * 150, "gpus" * 500]
)
def test_a_huge_rule_is_refused_and_neither_recurses_nor_computes(rule: str) -> None:
    with pytest.raises(RuleError, match="is longer than 200 characters") as caught:
        evaluate(rule, NAMES)
    assert len(str(caught.value)) < 120


@given(st.text(max_size=80) | st.text(alphabet="gpus 0123456789+-*/().\n\t_'", max_size=220))
def test_any_text_is_a_whole_positive_number_or_a_rule_error(rule: str) -> None:
    with contextlib.suppress(RuleError):
        value = evaluate(rule, NAMES)
        assert isinstance(value, int) and value >= 1


def test_a_rule_may_copy_a_switch_but_not_compute_with_it() -> None:
    names: dict[str, int | float | bool | str] = {"scatter_gather": False, "recompute": "full", "pp": 4}
    assert evaluate("scatter_gather", names) is False and evaluate("recompute", names) == "full"
    with pytest.raises(RuleError, match="scatter_gather is False, not a whole number"):
        evaluate("pp * scatter_gather", names)
