"""docs/reference/export.md says of every column what `results/export/columns.py` says, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.results.export.columns import CASE_COLUMNS, ITERATION_COLUMNS, JOB_COLUMNS, Column

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "reference" / "export.md"


def documented(section: str) -> list[str]:
    """The rows of the tables of columns below this heading."""
    text = DOCUMENT.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| `")]


def written(columns: Sequence[Column]) -> list[str]:
    return [f"| `{one.name}` | {one.kind} | {one.unit or ''} | {one.meaning} |" for one in columns]


def test_the_page_has_every_column_of_a_case_in_its_place() -> None:
    assert documented("One row per case") == written(CASE_COLUMNS)


def test_the_page_has_every_column_of_a_line_in_its_place() -> None:
    assert documented("One row per line of the logs") == written(
        [one for one in ITERATION_COLUMNS if one.name not in JOB_COLUMNS]
    )
    assert tuple(one.name for one in ITERATION_COLUMNS[: len(JOB_COLUMNS)]) == JOB_COLUMNS
