"""Tests of `repro sql`: table, JSON or CSV of any length, errors of one line."""

from __future__ import annotations

import csv
import io
import json

import pytest

from orchestrator.cli import records
from orchestrator.ledger.attempts import record_observations
from orchestrator.ledger.measurements import Measurement, record_measurements
from orchestrator.ledger.rows import Observation
from orchestrator.ledger.tables import ENDED, VERIFIED
from orchestrator.results.export.rows import csv_line
from tests.recorded_jobs import new_ledger, record_jobs
from tests.unit.cli.calling import Caller, everything_in


@pytest.fixture
def asking(repro: Caller) -> Caller:
    """`repro` where two jobs are verified."""
    ledger = new_ledger(repro.site.folder)
    record_jobs(ledger, "a", "b")
    record_observations(ledger, {one: Observation("COMPLETED", ENDED) for one in (1, 2)}, [])
    record_measurements(ledger, [Measurement(one, 8, VERIFIED, None, (), ()) for one in (1, 2)])
    return repro


def test_an_answer_is_a_table_json_or_csv_with_the_same_rows(asking: Caller) -> None:
    question = "select case_name, gpus, failure from v_results order by case_name"
    before = everything_in(asking.site.folder)
    lines = asking("sql", question).stdout.splitlines()
    assert [line.split() for line in lines] == [["CASE_NAME", "GPUS", "FAILURE"], ["a", "4", "-"], ["b", "4", "-"]]
    rows = json.loads(asking("sql", question, "--json").stdout)["rows"]
    assert rows == [{"case_name": name, "gpus": 4, "failure": None} for name in ("a", "b")]
    assert asking("sql", question, "--csv").stdout == "case_name,gpus,failure\na,4,\nb,4,\n"
    assert everything_in(asking.site.folder) == before


@pytest.mark.fault(
    section="Safety",
    fault="A text in the ledger that a spreadsheet would execute",
    promise="`sql --csv` writes it as text.",
)
@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "＝1"])
def test_csv_escapes_text_that_a_spreadsheet_would_execute(asking: Caller, text: str) -> None:
    question = f"select '{text.replace(chr(39), chr(39) * 2)}' as a, -2 as b"
    table = list(csv.reader(io.StringIO(asking("sql", question, "--csv").stdout)))
    assert table == [["a", "b"], [f"'{text}", "-2"]]
    assert csv_line([text, -2]) in asking("sql", question, "--csv").stdout


def test_an_answer_without_rows_has_a_head(asking: Caller) -> None:
    question = "select id, gpus from jobs where gpus > 4"
    assert asking("sql", question).stdout == "ID  GPUS\n"
    assert asking("sql", question, "--csv").stdout == "id,gpus\n"
    assert json.loads(asking("sql", question, "--json").stdout)["rows"] == []


@pytest.mark.parametrize("number", [1, 4, 5, 8, 9])
def test_a_long_answer_comes_whole_block_by_block(asking: Caller, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(records, "ROWS_AT_ONCE", 4)
    question = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {number}) select i from n"
    expected = list(range(1, number + 1))
    assert [row["i"] for row in json.loads(asking("sql", question, "--json").stdout)["rows"]] == expected
    table = csv.DictReader(io.StringIO(asking("sql", question, "--csv").stdout))
    assert [int(row["i"]) for row in table] == expected
    lines = asking("sql", question).stdout.split()
    assert [int(line) for line in lines if line != "I"] == expected and lines.count("I") == (number + 3) // 4


def test_json_has_no_infinity_and_no_bytes_that_are_none(asking: Caller) -> None:
    done = asking("sql", "select 9e999 as most, x'00ff' as raw", "--json")
    assert json.loads(done.stdout, parse_constant=pytest.fail)["rows"][0]["most"] is None


def test_without_a_query_views_and_tables_are_listed(asking: Caller) -> None:
    done = asking("sql")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[:5] == ["NAME", "v_attempts", "v_iterations", "v_metrics", "v_results"] and "metrics" in names
    assert done.stderr.startswith("next: repro sql ")
    rows = {row["name"]: row for row in json.loads(asking("sql", "--json").stdout)["relations"]}
    assert rows["v_results"]["kind"] == "view" and "value" in rows["v_metrics"]["columns"]


def test_the_suggested_query_works(asking: Caller) -> None:
    proposed = asking("sql").stderr.partition("'")[2].partition("'")[0]
    assert asking("sql", proposed).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["select verdikt from v_results"], 'repro: verdikt: no such column. Did you mean "verdict"?'),
        (["delete from jobs"], "repro: the ledger can only be read (not authorized). Hint: give one SELECT"),
        (["select 1", "--json", "--csv"], "repro: --json and --csv: give one of them"),
    ],
)
def test_a_wrong_query_is_one_line(asking: Caller, words: list[str], expected: str) -> None:
    before = everything_in(asking.site.folder)
    done = asking("sql", *words)
    assert (done.returncode, done.stderr.splitlines()) == (2, [expected])
    assert done.stdout == "" or json.loads(done.stdout)["rows"] == []
    assert everything_in(asking.site.folder) == before


def test_open_jobs_are_noted_as_last_recorded(asking: Caller) -> None:
    assert asking("sql", "select 1").complaints == []
    record_jobs(new_ledger(asking.site.folder), "c", token="other")
    assert asking("sql", "select 1").stderr.startswith("note: open jobs have their last recorded state")


def test_without_a_ledger_sql_names_the_submit_command(repro: Caller) -> None:
    done = repro("sql", "select 1")
    assert done.returncode == 2
    assert done.complaints[0].startswith(repro.no_jobs)
    assert done.complaints[0].endswith("; else: repro submit figure-13 --cluster local --wait")
