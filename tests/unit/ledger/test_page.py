"""docs/reference/ledger.md names every table, view and column, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.ledger.readonly_sql import asked, relations
from tests.recorded_jobs import new_ledger

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "ledger.md"


def described() -> dict[str, list[str]]:
    """Table or view -> the columns that its part of the page names in the first cells of its table."""
    found: dict[str, list[str]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        name, _, text = part.partition("\n")
        cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
        columns = [column for cell in cells for column in re.findall(r"`(\w+)`", cell)]
        found.setdefault(name.strip().removeprefix("Metrics of "), []).extend(columns)
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
