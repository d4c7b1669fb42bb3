"""docs/explanation/predictions.md has the tables that the programs print."""

from __future__ import annotations

import pytest

from benchmarks import memory


@pytest.fixture(scope="module")
def rows() -> list[memory.Row]:
    return memory.rows()


def test_the_page_has_the_memory_tables_that_the_program_prints(rows: list[memory.Row]) -> None:
    assert memory.on_page(memory.PAGE.read_text()) == memory.section(rows), "python -m benchmarks.memory --write"


def test_no_published_case_that_ran_is_predicted_to_run_out_of_memory(rows: list[memory.Row]) -> None:
    assert [row.case.name for row in rows if row.outcome == "ran" and row.fit != "fits"] == []
    assert sum(row.outcome == "ran" for row in rows) > 200


def test_most_published_failures_without_a_fit_are_predicted(rows: list[memory.Row]) -> None:
    failed = [row for row in rows if row.outcome == "OOM" and not row.fitted]
    assert sum(row.fit != "fits" for row in failed) >= 0.75 * len(failed) > 25


def test_a_page_without_the_marks_is_reported() -> None:
    with pytest.raises(ValueError, match="has no lines"):
        memory.on_page("# Predictions\n")
