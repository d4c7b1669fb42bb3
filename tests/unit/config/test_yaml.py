"""Parser for YAML text: values with their locations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.yaml import parse_document, read_document, scalar, shown
from orchestrator.errors import ReproError
from tests.examples import examples


def value(text: str) -> object:
    return parse_document(text, "f.yaml").value


def problems(text: str) -> list[str]:
    with pytest.raises(ReproError) as caught:
        parse_document(text, "f.yaml")
    return [str(problem) for problem in caught.value.problems]


NESTED = """\
about: a site
slurm:
  partition: batch
  sbatch:
    - --a
    - {deep: [1, two]}
"""


@pytest.mark.parametrize(
    ("path", "key", "at"),
    [
        (("about",), "1:1", "1:8"),
        (("slurm",), "2:1", "3:3"),
        (("slurm", "partition"), "3:3", "3:14"),
        (("slurm", "sbatch"), "4:3", "5:5"),
        (("slurm", "sbatch", 0), "5:7", "5:7"),
        (("slurm", "sbatch", 1, "deep"), "6:8", "6:14"),
        (("slurm", "sbatch", 1, "deep", 1), "6:18", "6:18"),
        (("slurm", "gone", "below"), "3:3", "3:3"),
    ],
)
def test_every_key_and_value_has_its_line_and_column(path: tuple[str | int, ...], key: str, at: str) -> None:
    document = parse_document(NESTED, "f.yaml")
    assert str(document.key_place(path)) == f"f.yaml:{key}"
    assert str(document.place(path)) == f"f.yaml:{at}"


SCALARS = [
    ("no", "no"),
    ("off", "off"),
    ("Yes", "Yes"),
    ("1:30:00", "1:30:00"),
    ("08", "08"),
    ("010", "010"),
    ("0x10", "0x10"),
    ("0o17", "0o17"),
    ("1_000", "1_000"),
    ("1e3", 1000.0),
    ("6.02E+23", 6.02e23),
    ("-3", -3),
    ("1.50", 1.5),
    (".inf", ".inf"),
    (".nan", ".nan"),
    ("1e999", "1e999"),
    ("2021-08-18", "2021-08-18"),
    ("true", True),
    ("false", False),
    ("~", None),
    ("", None),
    ("'12'", "12"),
    ('"true"', "true"),
    ('""', ""),
    ("=", "="),
]


def test_no_scalar_means_something_else_than_it_says() -> None:
    read = {text: value(f"field: {text}\n") for text, _ in SCALARS}
    assert read == {text: {"field": expected} for text, expected in SCALARS}
    types = {text: type(field["field"]) for text, field in read.items() if isinstance(field, dict)}
    assert types == {text: type(expected) for text, expected in SCALARS}


def test_a_number_too_long_for_python_is_text_and_no_crash() -> None:
    assert value(f"a: {'9' * 5000}") == {"a": "9" * 5000}


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_plain_scalars_come_back_as_they_were_written(written: float) -> None:
    text = str(written).lower()
    assert scalar(text) == written and type(scalar(text)) is type(written)


@given(st.text())
def test_quoted_text_stays_text(text: str) -> None:
    assert scalar(text, plain=False) == text


def test_duplicate_keys_are_refused_wherever_they_stand_and_all_at_once() -> None:
    assert problems("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n") == [
        "f.yaml:4:3 c: given twice. Hint: first at line 3",
        "f.yaml:5:1 a: given twice. Hint: first at line 1",
    ]


def test_keys_are_text_so_that_a_quoted_number_is_the_same_key() -> None:
    assert problems('1: a\n"1": b\n') == ["f.yaml:2:1 1: given twice. Hint: first at line 1"]
    assert value("true: a\n2: b\n") == {"true": "a", "2": "b"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2\nb: 3\n", "f.yaml:2:2 not YAML: "),
        ("a:\n\tb: 1\n", "f.yaml:2:1 a tab. Hint: indent with spaces"),
        (
            "a: 1\n  b: 2\n",
            "f.yaml:2:4 not YAML: mapping values are not allowed in this context. Hint: check the inden",
        ),
        ('a: "open\n', "f.yaml:2:1 not YAML: "),
        ("a: *missing\n", "f.yaml:1:4 not YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1 not YAML: "),
        ("a: \0\n", "f.yaml: not YAML: unacceptable character"),
        ("? [a, b]\n: 1\n", "f.yaml:1:3 a field name must be a word"),
        ("a: !vault x\n", "f.yaml:1:4 the tag !vault is not supported"),
        ("a: !!str 5\n", "f.yaml:1:4 the tag tag:yaml.org,2002:str is not supported"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "f.yaml:3:3 merge keys (<<) are not supported"),
    ],
)
def test_what_is_not_plain_yaml_is_one_line_with_its_place(text: str, expected: str) -> None:
    (only,) = problems(text)
    assert only.startswith(expected), only
    assert "\n" not in only


def test_anchors_and_aliases_are_read() -> None:
    assert value("a: &x [1, {b: 2}]\nc: *x\n") == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}


def test_an_alias_to_itself_is_refused_and_not_followed_for_ever() -> None:
    assert problems("a: &x [*x]\n") == ["f.yaml:1:4 an alias refers to itself"]
    assert problems("a: &x {b: {c: *x}}\n") == ["f.yaml:1:4 an alias refers to itself"]


def test_a_billion_laughs_are_cut_short() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert problems("\n".join(lines)) == ["f.yaml: more than 100,000 values, aliases included"]


@pytest.mark.parametrize("deep", [65, 2_000, 50_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ("{a: ", "}"), ("- ", "")])
def test_deep_nesting_neither_crashes_the_c_library_nor_recurses(deep: int, start: str, end: str) -> None:
    (only,) = problems(start * deep + "x" + end * deep)
    assert "more than 64 nested levels" in only or "not YAML" in only


def test_nesting_that_a_person_writes_is_read() -> None:
    assert str(value("[" * 64 + "]" * 64)).count("[") == 64


@pytest.mark.parametrize("text", ["", "\n\n", "# a remark\n", "---\n", "\ufeff"])
def test_an_empty_file_has_no_fields(text: str) -> None:
    assert value(text) in ({}, None)


def test_line_endings_and_byte_order_mark_of_windows_are_read(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb:\r\n  - 2\r\n")
    document = read_document(file)
    assert document.value == {"a": 1, "b": [2]}
    assert document.place(("b", 0)).line == 3


def test_an_unreadable_file_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: M\xfcller\n")
    (tmp_path / "folder.yaml").mkdir()
    long_name = tmp_path / ("n" * 300 + ".yaml")
    for path, expected in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path / "folder.yaml", "is a folder, not a YAML file. Hint: remove it, or correct the path"),
        (tmp_path / "latin.yaml", "not UTF-8 text (byte 4). Hint: save it as UTF-8"),
        (tmp_path / "latin.yaml" / "x.yaml", "cannot be read: Not a directory"),
        (long_name, "cannot be read: File name too long"),
    ):
        with pytest.raises(ReproError) as caught:
            read_document(path)
        assert str(caught.value) == f"{shown(path)}: {expected}"


def test_a_file_below_the_current_folder_is_named_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.yaml").write_text("a: 1\n")
    assert read_document(tmp_path / "clusters" / "here.yaml").file == "clusters/here.yaml"


YAML_LIKE = st.lists(
    st.sampled_from(
        [
            "a",
            ": ",
            "- ",
            "\n",
            "  ",
            "{",
            "}",
            "[",
            "]",
            ",",
            "&x ",
            "*x",
            "!t ",
            "'",
            '"',
            "|",
            ">",
            "#",
            "? ",
            "<<",
            "\t",
            "1",
            ".",
            "e",
            "---",
            "...",
            "%",
            "@",
            "`",
            "~",
            "é",
            "\x07",
        ]
    ),
    max_size=40,
).map("".join)


@settings(max_examples=examples(300))
@given(st.text() | YAML_LIKE)
def test_any_text_is_read_or_refused_and_never_crashes(text: str) -> None:
    try:
        document = parse_document(text, "f.yaml")
    except ReproError as error:
        assert error.problems and all(str(problem).startswith("f.yaml") for problem in error.problems)
    else:
        assert not any(isinstance(place.line, int) and place.line < 1 for place in document.values.values())
        assert all(math.isfinite(item) for item in leaves(document.value) if isinstance(item, float))


def leaves(read: object) -> list[object]:
    if isinstance(read, dict):
        return [leaf for item in read.values() for leaf in leaves(item)]
    if isinstance(read, list):
        return [leaf for item in read for leaf in leaves(item)]
    return [read]
