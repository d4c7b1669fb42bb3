"""Rows as files: what other programs read back is what was written, and no text becomes a formula."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.errors import ReproError
from orchestrator.fields import Column
from orchestrator.results.export.rows import (
    ITERATION_COLUMNS,
    Row,
    as_parquet,
    case_columns,
    is_formula,
    pieces,
    require_parquet,
)
from tests.unavailable import installed
from tests.unit.catalog.entries import figure_13

CASE_COLUMNS = case_columns(figure_13())
NAMES = [column.name for column in CASE_COLUMNS]
KIND = {column.name: column.kind for column in CASE_COLUMNS}


def as_csv(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    return b"".join(pieces("csv", columns, {"cases": rows})).decode()


def as_json(rows: Sequence[Row], columns: Sequence[Column] = CASE_COLUMNS) -> Any:
    return json.loads(b"".join(pieces("json", columns, {"cases": rows, "claims": []})))


def row(**known: Any) -> Row:
    return dict.fromkeys(NAMES) | known


ROWS = [
    row(
        case="pp=1,gbs=4",
        job="12e456789012",
        scheduler_id="17_0",
        recompute="none",
        gpus=4,
        attempt=1,
        scatter_gather=True,
        sequence_parallel=False,
        verdict="verified",
        started_at="2026-01-02T03:04:05.006Z",
        iteration_ms=0.1 + 0.2,
        tflops_per_gpu=123456789.125,
        gpu_memory_used_gb=1e-300,
    ),
    row(
        case="pp=2,gbs=4",
        job="1234567890ab",
        scheduler_id="17_1",
        recompute="full",
        gpus=3072,
        attempt=2,
        scatter_gather=False,
        verdict="failed",
        verdict_reason='exit 1, "oom"; größer – 大',
        started_at="2026-01-02T03:04:06.000Z",
    ),
]
"""One with numbers and one without; ids that look like numbers; a word that some readers take for nothing."""


def given_back(found: Any) -> list[Row]:
    """A frame's rows as plain values."""
    plain = found.astype(object).where(found.notna(), None)
    return [dict(zip(plain.columns, values, strict=True)) for values in plain.itertuples(index=False)]


def moments(times: Any) -> list[str]:
    """A column of times as we write them; pandas may have made moments of them, or left them as they were."""
    utc = installed("pandas").to_datetime(times, utc=True)
    return [f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z" for moment in utc]


def without_times(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in one.items() if KIND[name] != "time"} for one in rows]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name in ("csv", "json", "jsonl", "parquet"):
        (folder / f"x.{name}").write_bytes(b"".join(pieces(name, CASE_COLUMNS, {"cases": ROWS, "claims": []})))
    return folder


@pytest.mark.slow
def test_pandas_reads_the_csv_as_it_was_without_being_told_anything(files: Path) -> None:
    found = installed("pandas").read_csv(files / "x.csv")
    assert list(found.columns) == NAMES
    assert given_back(found) == ROWS
    kinds = {name: found[name].dtype.kind for name in ("gpus", "scatter_gather", "iteration_ms")}
    assert kinds == {"gpus": "i", "scatter_gather": "b", "iteration_ms": "f"}


def test_pandas_reads_the_parquet_as_it_was_with_its_times(files: Path) -> None:
    found = installed("pandas").read_parquet(files / "x.parquet")
    assert str(found["started_at"].dtype) == "datetime64[ms, UTC]"
    assert moments(found["started_at"]) == [one["started_at"] for one in ROWS]
    assert without_times(given_back(found)) == without_times(ROWS)


def test_pandas_reads_the_json_lines_as_they_were(files: Path) -> None:
    found = installed("pandas").read_json(files / "x.jsonl", lines=True, dtype=False, precise_float=True)
    assert list(found.columns) == NAMES and without_times(given_back(found)) == without_times(ROWS)
    assert moments(found["started_at"]) == [one["started_at"] for one in ROWS]


def test_pandas_reads_the_cases_of_the_json(files: Path) -> None:
    read = json.loads((files / "x.json").read_text())
    assert read["cases"] == ROWS and read["claims"] == []
    assert given_back(installed("pandas").DataFrame(read["cases"], dtype=object)) == ROWS
    assert read["columns"][NAMES.index("iteration_ms")]["unit"] == "ms"


@pytest.mark.parametrize("source", ["read_csv_auto('{}/x.csv')", "read_parquet('{}/x.parquet')"])
def test_duckdb_knows_the_types_and_finds_what_was_written(files: Path, source: str) -> None:
    database, table = installed("duckdb").connect(), source.format(files)
    types = {name: kind for name, kind, *_ in database.execute(f"describe select * from {table}").fetchall()}
    assert list(types) == NAMES
    assert (types["gpus"], types["iteration_ms"], types["scatter_gather"]) == ("BIGINT", "DOUBLE", "BOOLEAN")
    assert types["job"] == types["scheduler_id"] == types["recompute"] == "VARCHAR"
    assert types["started_at"] == "TIMESTAMP WITH TIME ZONE"
    asked = ["case", "job", "scheduler_id", "recompute", "verdict_reason", "iteration_ms", "tflops_per_gpu"]
    names = ", ".join(f'"{name}"' for name in asked)
    found = database.execute(f"select {names}, epoch_ms(started_at) from {table}").fetchall()
    assert [line[:-1] for line in found] == [tuple(one[name] for name in asked) for one in ROWS]
    assert [line[-1] for line in found] == [1767323045006, 1767323046000]


def test_parquet_keeps_types_units_and_meanings_where_nothing_is_in_a_column() -> None:
    schema = installed("pyarrow.parquet").read_schema(io.BytesIO(as_parquet([row()], CASE_COLUMNS)))
    types = {
        "text": "string",
        "integer": "int64",
        "number": "double",
        "boolean": "bool",
        "time": "timestamp[ms, tz=UTC]",
    }
    assert [(field.name, str(field.type)) for field in schema] == [(c.name, types[c.kind]) for c in CASE_COLUMNS]
    for field, column in zip(schema, CASE_COLUMNS, strict=True):
        assert field.metadata[b"meaning"].decode() == column.meaning
        assert field.metadata.get(b"unit", b"").decode() == (column.unit or "")


def test_without_pyarrow_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ReproError, match=r"^parquet needs pyarrow. Hint: pip install '.\[parquet\]'$"):
        require_parquet()


def test_what_is_not_there_is_an_empty_field_and_lines_end_as_rfc_4180_says() -> None:
    columns = (Column("a", "text", ""), Column("b", "boolean", ""), Column("c", "number", ""))
    text = as_csv([{"a": 'x "y", z', "b": False, "c": -0.5}, dict.fromkeys("abc")], columns)
    assert text == 'a,b,c\r\n"x ""y"", z",false,-0.5\r\n,,\r\n'


def test_nothing_exports_to_a_header_and_to_empty_lists() -> None:
    assert as_csv([], CASE_COLUMNS) == ",".join(NAMES) + "\r\n"
    assert {name: value for name, value in as_json([]).items() if name != "columns"} == {
        "cases": [],
        "claims": [],
    }
    assert installed("pyarrow.parquet").read_table(io.BytesIO(as_parquet([], CASE_COLUMNS))).num_rows == 0
    assert b"".join(pieces("jsonl", ITERATION_COLUMNS, {"iterations": []})) == b""


def test_nan_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json([row(iteration_ms=float("nan"))])


TEXT_COLUMNS = (Column("first", "text", ""), Column("second", "text", ""))
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
ODD = st.text(st.sampled_from(list("=+-@＝＋－＠﹢'\"\t\r\n ,;|\u3000\u00a0\u200bax1")), max_size=6)


@given(texts=st.lists(st.tuples(ANY | ODD, ANY | ODD), max_size=5))
@example(texts=[("", "\r"), ("a\nb", '"'), (";=1", " = 1")])
def test_any_text_comes_back_from_csv_as_it_was_but_for_the_apostrophe(texts: list[tuple[str, str]]) -> None:
    rows = [{"first": a, "second": b} for a, b in texts]
    read = list(csv.reader(io.StringIO(as_csv(rows, TEXT_COLUMNS), newline=""), strict=True))
    assert read == [["first", "second"], *([f"'{t}" if is_formula(t) else t for t in pair] for pair in texts)]


@given(text=ANY | ODD)
def test_no_cell_begins_as_a_formula_does(text: str) -> None:
    cell = as_csv([{"first": text}], TEXT_COLUMNS[:1]).removeprefix("first\r\n").removesuffix("\r\n")
    assert not cell.startswith(("\t", "\r", "\n"))
    for start in (cell, cell.removeprefix('"')):
        bare = unicodedata.normalize("NFKC", re.sub(r"^[\s\u200b]+", "", start))
        assert bare[:1] not in ("=", "+", "-", "@")


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", " =1", "\u3000＝1", "＋1", "－1", "＠x", "\u200b=1"]
)
def test_what_a_spreadsheet_would_run_has_an_apostrophe_before_it(text: str) -> None:
    ((cell,),) = list(csv.reader(io.StringIO(as_csv([{"first": text}], TEXT_COLUMNS[:1]), newline="")))[1:]
    assert cell == f"'{text}"
    assert as_json([{"first": text}], TEXT_COLUMNS[:1])["cases"] == [{"first": text}]
    (back,) = (
        installed("pyarrow.parquet").read_table(io.BytesIO(as_parquet([{"first": text}], TEXT_COLUMNS[:1]))).to_pylist()
    )
    assert back == {"first": text}


def test_a_negative_number_is_a_number_and_a_cell_that_another_separator_would_split_is_quoted() -> None:
    columns = (Column("n", "number", ""), Column("t", "text", ""))
    assert as_csv([{"n": -1.5, "t": "a;=cmd()"}], columns) == 'n,t\r\n-1.5,"a;=cmd()"\r\n'
