"""Settings of the command line: their form, and the document that they become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.yaml import parse_settings, settings_document
from orchestrator.errors import ReproError


def test_each_operator_becomes_the_form_of_an_overlay() -> None:
    settings = parse_settings(
        ["slurm.qos=high", "slurm.sbatch+=--a", "slurm.sbatch+=--b=1", "slurm.sbatch-=--c", "slurm.reservation="]
    )
    assert settings_document(settings).value == {
        "slurm": {"qos": "high", "sbatch": {"add": ["--a", "--b=1"], "remove": ["--c"]}, "reservation": None}
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1:00:00", "1:00:00"),
        ("a=08", "08"),
        ("a=8", 8),
        ('a="8"', "8"),
        ("a=true", True),
        ("a=[x, y]", ["x", "y"]),
        ("a={b: 1}", {"b": 1}),
        ("a=b=c", "b=c"),
        ("a=  ", None),
    ],
)
def test_a_value_is_read_as_in_a_yaml_file(text: str, value: object) -> None:
    (setting,) = parse_settings([text])
    assert setting.value == value


def test_each_value_has_the_option_as_its_location() -> None:
    document = settings_document(parse_settings(["slurm.qos={name: a}", "setup+=x"]))
    assert str(document.place(("slurm", "qos", "name"))) == "--set slurm.qos={name: a}"
    assert document.place(("setup", "add", 0)).in_message == "--set setup+=x:"


@pytest.mark.parametrize(
    ("texts", "problems"),
    [
        (["qos"], ["--set qos: must be PATH=VALUE"]),
        (["=x", "a..b=1", "a b=1"], ["--set =x: must be", "--set a..b=1: must be", "--set a b=1: must be"]),
        (["a=[x"], ["--set a=[x: not YAML"]),
        (["a+="], ["--set a+=: no item is given"]),
        (["a=1", "a=2"], ["--set a=2: contradicts --set a=1"]),
        (["a={b: 1}", "a.b=2"], ["--set a.b=2: contradicts --set a={b: 1}"]),
        (["a+=x", "a=[y]"], ["--set a=[y]: contradicts --set a+=x"]),
    ],
)
def test_invalid_settings_are_reported_all_at_once(texts: list[str], problems: list[str]) -> None:
    with pytest.raises(ReproError) as caught:
        parse_settings(texts)
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == len(problems)
    assert all(message.startswith(problem) for message, problem in zip(messages, problems, strict=True)), messages


def test_the_same_setting_twice_is_one() -> None:
    assert len(parse_settings(["a=1", "a=1"])) == 1


@given(st.lists(st.text(max_size=12), max_size=4))
def test_any_text_is_a_setting_or_a_problem(texts: list[str]) -> None:
    try:
        settings = parse_settings(texts)
    except ReproError as error:
        assert all("\n" not in str(problem) for problem in error.problems)
    else:
        settings_document(settings)
