"""Tests of docs/how-to/search.md: its table is the output of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks.search import BEGIN, END, PAGE, CaseList, alpa_lists, by_repro, cases_until_close, lists

pytestmark = pytest.mark.slow


def rows() -> list[list[str]]:
    """Return the cells of the table, without the columns of random order and Optuna."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if " GPUs, " in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_the_numbers_of_the_benchmark_and_their_sum() -> None:
    every: list[CaseList] = [*lists(), *alpa_lists()]
    own = [cases_until_close(one, by_repro(one)) for one in every]
    assert [row[:4] for row in rows()] == [
        [one.title, str(len(one.candidates)), str(one.quarter), str(cases)]
        for one, cases in zip(every, own, strict=True)
    ]
    within = sum(cases <= one.quarter for one, cases in zip(every, own, strict=True))
    assert f"In {within} of {len(every)} lists the search needs at most a quarter" in PAGE.read_text()
    assert within >= 0.8 * len(every)
