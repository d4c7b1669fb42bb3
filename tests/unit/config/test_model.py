"""Validation of documents by models: location and text of each problem."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from orchestrator.config.model import Count, Strict, Text, TimeLimit, placeholders, read_model
from orchestrator.config.yaml import parse_document
from orchestrator.errors import ReproError


class Circle(Strict):
    kind: Literal["circle"]
    radius: Count


class Box(Strict):
    kind: Literal["box"]
    width: Count
    height: Count = 1


class Site(Strict):
    python: Text | None = None


class Sites(Strict):
    megatron_2021: Annotated[Site | None, Field(alias="megatron-2021")] = None


class Drawing(Strict):
    title: Text
    size: Count
    limit: TimeLimit | None = None
    share: Annotated[float, Field(ge=0, lt=1)] | None = None
    weight: float | None = None
    shapes: list[Annotated[Circle | Box, Field(discriminator="kind")]] = []
    named: dict[Annotated[str, Field(pattern=r"^[a-z]+$")], Box] = {}
    sites: Sites = Sites()
    done: bool = False


def messages(text: str) -> list[str]:
    with pytest.raises(ReproError) as caught:
        read_model(Drawing, parse_document(text, "d.yaml"))
    return [str(problem) for problem in caught.value.problems]


def read(text: str) -> Drawing:
    return read_model(Drawing, parse_document(text, "d.yaml"))


def test_a_right_file_becomes_a_model() -> None:
    drawing = read("title: t\nsize: 2\nlimit: 1:30:00\nshapes: [{kind: box, width: 3}]\nsites: {megatron-2021: {}}\n")
    assert (drawing.limit, drawing.shapes, drawing.sites.megatron_2021) == (
        "1:30:00",
        [Box(kind="box", width=3)],
        Site(),
    )
    with pytest.raises(ValidationError):
        drawing.size = 4


def test_all_errors_are_reported_at_once_with_their_locations() -> None:
    assert messages("titel: t\nsize: 08\nshapes:\n  - {kind: circle, radios: 1}\n  - kind: box\n    width: no\n") == [
        "d.yaml:2:7 size: must be an integer, got '08'",
        'd.yaml:4:20 radios: unknown field. Did you mean "radius"?',
        "d.yaml:6:12 shapes.1.width: must be an integer, got 'no'",
        'd.yaml:1:1 titel: unknown field. Did you mean "title"?',
    ]


def test_the_suggestion_comes_from_the_model_at_the_location() -> None:
    base = "title: t\nsize: 1\n"
    assert messages(base + "shapes: [{kind: box, width: 1, hight: 2}]\n") == [
        'd.yaml:3:32 hight: unknown field. Did you mean "height"?'
    ]
    assert messages(base + "named:\n  a: {kind: box, wdth: 1, width: 1}\n") == [
        'd.yaml:4:18 wdth: unknown field. Did you mean "width"?'
    ]
    assert messages(base + "sites:\n  megatron-2021: {pyton: x}\n") == [
        'd.yaml:4:19 pyton: unknown field. Did you mean "python"?'
    ]
    assert messages(base + "sites: {megatron_2021: {}}\n") == [
        'd.yaml:3:9 megatron_2021: unknown field. Did you mean "megatron-2021"?'
    ]


def test_where_no_name_is_near_all_are_listed() -> None:
    assert messages("title: t\nsize: 1\nsites: {zzzzz: 1}\n") == [
        "d.yaml:3:9 zzzzz: unknown field. Hint: known fields: megatron-2021"
    ]


def test_a_union_with_a_missing_or_wrong_kind_lists_the_kinds() -> None:
    (wrong,) = messages("title: t\nsize: 1\nshapes: [{kind: tube}]\n")
    assert wrong == "d.yaml:3:17 shapes.0.kind: no such kind, 'tube'. Hint: there are: circle, box"
    (near,) = messages("title: t\nsize: 1\nshapes: [{kind: bax}]\n")
    assert near == "d.yaml:3:17 shapes.0.kind: no such kind, 'bax'. Did you mean \"box\"?"
    (absent,) = messages("title: t\nsize: 1\nshapes: [{radius: 1}]\n")
    assert absent.startswith("d.yaml:3:10 shapes.0: ") and "'kind'" in absent


def test_a_wrong_name_in_a_mapping_is_shown_at_the_name_and_not_at_its_value() -> None:
    (only,) = messages("title: t\nsize: 1\nnamed:\n  B2: {kind: box, width: 1}\n")
    assert only.startswith("d.yaml:4:3 named.B2: invalid name: ")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("size: true", "size: must be an integer, got True"),
        ("size: 0", "size: must be 1 or more, got 0"),
        ("size: 1.0", "size: must be an integer, got 1.0"),
        ("size: '4'", "size: must be an integer, got '4'"),
        ("size: ~", "size: must be an integer, got None"),
        ("size: [1]", "size: must be an integer"),
        ("size: {a: 1}", "size: must be an integer"),
        ("size: 1\ntitle: 5", "title: must be text, got 5"),
        ("size: 1\ntitle: ''", "title: must not be empty, got ''"),
    ],
)
def test_a_wrong_value_is_shown_as_it_was_read(line: str, expected: str) -> None:
    rest = "" if "title" in line else "title: t\n"
    (only,) = messages(rest + line + "\n")
    assert only.split(" ", 1)[1] == expected


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "nan", "inf", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    (only,) = messages(f"title: t\nsize: 1\nweight: {number}\n")
    assert only.startswith("d.yaml:3:9 weight: ")


@pytest.mark.parametrize("limit", ["0:30:00", "1:30:00", "2-00:00:00", "23:59:59"])
def test_time_limits_have_the_syntax_of_slurm(limit: str) -> None:
    assert read(f"title: t\nsize: 1\nlimit: {limit}\n").limit == limit


@pytest.mark.parametrize("limit", ["90", "30:00", "0:00:00", "0-00:00:00", "1h", "1:2:3", "-1:00:00", "٣:00:00", "no"])
def test_a_time_limit_that_slurm_reads_otherwise_or_as_none_is_refused(limit: str) -> None:
    (only,) = messages(f"title: t\nsize: 1\nlimit: {limit}\n")
    assert only.startswith("d.yaml:3:8 limit: ")


@pytest.mark.parametrize(("text", "place"), [("[1, 2]", "1:1"), ("just text", "1:1"), ("# a\n\n- x\n", "3:1")])
def test_a_list_or_a_text_at_the_top_is_refused(text: str, place: str) -> None:
    assert messages(text) == [f"d.yaml:{place} must be fields and values, `name: value`"]


def test_an_empty_file_lacks_every_required_field() -> None:
    assert messages("") == ["d.yaml:1:1 title: missing. Hint: add title:", "d.yaml:1:1 size: missing. Hint: add size:"]


def test_placeholders_are_found_at_any_depth_and_redirections_are_none() -> None:
    read_values = parse_document("a: <x y>\nb: [1, {c: /data/<you>/z}]\nd: sort <in >out\ne: 3 < 4\n", "d.yaml").value
    assert list(placeholders(read_values)) == [(("a",), "<x y>"), (("b", 1, "c"), "/data/<you>/z")]


@given(st.text(alphabet="abktwx-_:{}[]&*!\n 01.<", max_size=60))
def test_any_file_is_read_or_refused_with_places(text: str) -> None:
    try:
        read(text)
    except ReproError as error:
        assert all((problem.location or "").startswith("d.yaml") for problem in error.problems)
