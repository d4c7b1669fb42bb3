"""Merged layers of a profile: precedence, removal, and the location of each value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.resolve import Layered, lay, leaves
from orchestrator.config.yaml import YamlValue, parse_document
from orchestrator.errors import ReproError


def merged(*texts: str) -> Layered:
    """Merge the files a.yaml, b.yaml, and so on."""
    return lay([parse_document(text, f"{name}.yaml") for name, text in zip("abcdef", texts, strict=False)])


def messages(*texts: str) -> list[str]:
    with pytest.raises(ReproError) as caught:
        merged(*texts)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("below", "over", "expected"),
    [
        ("a: 1\nb: 2", "b: 3\nc: 4", {"a": 1, "b": 3, "c": 4}),
        ("a: {x: 1, y: {z: 2}}", "a: {y: {w: 3}}", {"a": {"x": 1, "y": {"z": 2, "w": 3}}}),
        ("a: [1, 2]", "a: [3]", {"a": [3]}),
        ("a: [1, 2]", "a: []", {"a": []}),
        ("a: {x: 1}", "a: text", {"a": "text"}),
        ("a: text", "a: {x: 1}", {"a": {"x": 1}}),
        ("a: [1]", "a: {x: 1}", {"a": {"x": 1}}),
        ("a: {x: 1}", "a: {}", {"a": {"x": 1}}),
        ("a: 1", "", {"a": 1}),
    ],
)
def test_mappings_are_laid_over_field_by_field_and_all_else_is_replaced(
    below: str, over: str, expected: dict[str, Any]
) -> None:
    assert merged(below, over).value == expected


@pytest.mark.parametrize(
    ("below", "over", "expected"),
    [
        ("a: 1\nb: 2", "a:", {"b": 2}),
        ("a: {x: 1, y: 2}", "a: {x: ~}", {"a": {"y": 2}}),
        ("a: {x: 1}\nb: 2", "a: null", {"b": 2}),
        ("a: [1]", "a:", {}),
    ],
)
def test_a_field_without_a_value_is_removed(below: str, over: str, expected: dict[str, Any]) -> None:
    layered = merged(below, over)
    assert layered.value == expected
    assert all(path == () or path[0] in expected for path in layered.locations)


def test_a_removed_field_can_be_set_again() -> None:
    layered = merged("a: {x: 1}", "a:", "a: {y: 2}")
    assert (layered.value, layered.location(("a", "y"))) == ({"a": {"y": 2}}, "c.yaml:1:5")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("{add: [--d]}", ["--a=1", "--b", "--c=2", "--d"]),
        ("{add: --d}", ["--a=1", "--b", "--c=2", "--d"]),
        ("{remove: [--b]}", ["--a=1", "--c=2"]),
        ("{remove: --a=1}", ["--b", "--c=2"]),
        ("{remove: [--a, --c]}", ["--b"]),
        ("{add: [--a=9], remove: [--a]}", ["--b", "--c=2", "--a=9"]),
        ("{remove: [--a], add: [--a=9, --z]}", ["--b", "--c=2", "--a=9", "--z"]),
        ("{add: []}", ["--a=1", "--b", "--c=2"]),
        ("{add: , remove: }", ["--a=1", "--b", "--c=2"]),
    ],
)
def test_items_of_a_list_are_removed_before_items_are_added(steps: str, expected: list[str]) -> None:
    assert merged("slurm: {srun: [--a=1, --b, --c=2]}", f"slurm: {{srun: {steps}}}").value == {
        "slurm": {"srun": expected}
    }


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ("{mount: '/a:/b', when: nodes > 1}", "'/a:/b'"),
        ("{run: module load x, when: nodes == 1}", "module load x"),
        ("{name: dev, max_gpus: 32}", "dev"),
        ("{name: dev, max_gpus: 32}", "{name: dev, max_gpus: 32}"),
    ],
)
def test_an_item_with_fields_is_removed_by_what_names_it_or_in_full(item: str, named: str) -> None:
    assert merged(f"a: [x, {item}, y]", f"a: {{remove: [{named}]}}").value == {"a": ["x", "y"]}


def test_removal_of_a_missing_item_is_an_error_at_its_place() -> None:
    problems = messages("a: {b: [--x=1, {mount: /m, when: nodes > 1}]}", "a:\n  b: {remove: [--x, --y, --x, ~, mount]}")
    assert problems == [
        "b.yaml:2:21 a.b: the list has no '--y' to remove",
        "b.yaml:2:26 a.b: the list has no '--x' to remove",
        "b.yaml:2:31 a.b: the list has no None to remove",
        "b.yaml:2:34 a.b: the list has no 'mount' to remove",
    ]


def test_a_name_is_the_whole_word_before_the_equals_sign() -> None:
    assert messages("a: [--mem-per-cpu=1]", "a: {remove: [--mem]}") == [
        "b.yaml:1:14 a: the list has no '--mem' to remove"
    ]


@pytest.mark.parametrize("below", ["x: 1", "a: {c: 1}", "a: {b: }"])
def test_steps_make_a_list_where_there_was_none_however_deep(below: str) -> None:
    assert merged(below, "a: {b: {add: [1, 2]}}").mapping("a")["b"] == [1, 2]


def test_steps_of_a_first_file_make_its_list() -> None:
    assert merged("a: {b: {c: {add: [1]}}}").value == {"a": {"b": {"c": [1]}}}


def test_the_items_of_a_changed_list_keep_the_places_where_they_were_written() -> None:
    layered = merged(
        "a:\n- one\n- {mount: /m, when: w}\n- three", "a: {remove: [one], add: [four, {run: five}]}", "a:\n  add: six"
    )
    assert layered.value["a"] == [
        {"mount": "/m", "when": "w"},
        "three",
        "four",
        {"run": "five"},
        "six",
    ]
    where = [layered.location(("a", i)) for i in range(5)]
    assert where == ["a.yaml:3:3", "a.yaml:4:3", "b.yaml:1:26", "b.yaml:1:32", "c.yaml:2:3"]
    assert layered.location(("a", 0, "when")) == "a.yaml:3:15"
    assert layered.location(("a", 3, "run")) == "b.yaml:1:33"
    assert layered.location(("a",)) == "c.yaml:1:1"


def test_a_value_is_where_its_name_was_last_written_and_what_is_missing_where_it_belongs() -> None:
    layered = merged("a:\n  x: 1\n  y: 2", "a: {x: 3}")
    assert [layered.location(path) for path in (("a", "x"), ("a", "y"), ("a", "z"), ("b",), ())] == [
        "b.yaml:1:5",
        "a.yaml:3:3",
        "a.yaml:1:1",
        "a.yaml:1:1",
        "a.yaml:1:1",
    ]


def test_what_is_no_mapping_is_refused_in_every_file() -> None:
    expected = "must be fields and values, `name: value`"
    assert messages("- a", "b: 1", "text") == [f"a.yaml:1:1 {expected}", f"c.yaml:1:1 {expected}"]


def test_the_documents_themselves_are_left_as_they_are() -> None:
    below, over = parse_document("a: {b: [1]}", "a.yaml"), parse_document("a: {b: {add: [2]}, c: {d: []}}", "b.yaml")
    layered = lay([below, over])
    items = layered.mapping("a", "c")["d"]
    assert isinstance(items, list)
    items.append(3)
    assert (below.value, over.value) == ({"a": {"b": [1]}}, {"a": {"b": {"add": [2]}, "c": {"d": []}}})


def test_leaves_are_the_single_values_and_the_empty_ones() -> None:
    value: YamlValue = {"a": {"b": [1, {"c": None}], "d": {}}, "e": [], "f": "x"}
    assert list(leaves(value)) == [
        (("a", "b", 0), 1),
        (("a", "b", 1, "c"), None),
        (("a", "d"), {}),
        (("e",), []),
        (("f",), "x"),
    ]


FIELDS = st.recursive(
    st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    lambda below: st.dictionaries(st.sampled_from("xyz"), below, max_size=3),
    max_leaves=8,
)
PROFILES = st.dictionaries(st.sampled_from("xyz"), FIELDS, max_size=3)


def flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    return str(value)


@given(PROFILES, PROFILES)
def test_every_value_of_the_top_file_is_merged_and_every_leaf_has_the_location_of_its_value(
    below: dict[str, Any], over: dict[str, Any]
) -> None:
    layered = merged(flow(below), flow(over))
    texts = {"a.yaml": flow(below), "b.yaml": flow(over)}
    for path, item in leaves(over):
        if path and item != {}:
            assert value_at(layered.value, path) == item
    for path, item in leaves(layered.value):
        if path and not isinstance(item, (dict, list)):
            file, _, column = layered.location(path).split(":")
            named = path[-1] if isinstance(path[-1], str) else ""
            assert texts[file][int(column) - 1 :].startswith(f"{named}: {item}" if named else str(item))


@given(PROFILES)
def test_a_file_over_itself_or_over_nothing_is_itself(only: dict[str, Any]) -> None:
    assert merged(flow(only)).value == merged(flow(only), flow(only)).value == merged("{}", flow(only)).value == only


def value_at(value: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        value = value[part]
    return value
