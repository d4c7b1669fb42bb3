"""docs/reference/ledger.md names every table, view and column, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.ledger.readonly_sql import asked, relations
from orchestrator.ledger.views import VIEWS
from orchestrator.results.export.columns import METRICS
from tests.recorded_jobs import new_ledger

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "ledger.md"


def described() -> dict[str, list[str]]:
    """Table or view -> the columns that its part of the page names in the first cells of its table."""
    found: dict[str, list[str]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        name, _, text = part.partition("\n")
        cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
        found[name.strip()] = [column for cell in cells for column in re.findall(r"`(\w+)`", cell)]
    return found


def test_the_page_describes_every_table_and_view_with_all_their_columns_and_no_others(tmp_path: Path) -> None:
    there = {one.name: sorted(one.columns) for one in relations(new_ledger(tmp_path))}
    assert {name: sorted(columns) for name, columns in described().items()} == there


def test_every_question_on_the_page_can_be_asked(tmp_path: Path) -> None:
    questions = re.findall(r'repro sql "([^"]+)"', PAGE.read_text(encoding="utf-8"))
    assert questions
    for question in questions:
        with asked(new_ledger(tmp_path), question) as answer:
            assert list(answer.rows) == []


def test_a_views_metrics_are_called_as_they_are_everywhere(tmp_path: Path) -> None:
    """A name that nothing is stored under would be an empty column for ever."""
    columns = {one.name: one.columns for one in relations(new_ledger(tmp_path))}["v_results"]
    first, last = columns.index("iteration_ms"), columns.index("wait_s")
    named = set(columns[first:last]) - {"iteration_ms_spread", "iterations_used"}
    assert named <= set(METRICS) and len(named) > 10 and "v_results" in VIEWS
