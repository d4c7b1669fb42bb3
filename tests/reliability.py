"""Generator of the tables of faults in docs/explanation/reliability.md.

`python -m tests.reliability` rewrites the tables and totals. `--check` prints the differences and exits with 1 instead.
A test has a mark for each of its rows:

    @pytest.mark.fault(section="Ledger", fault="The disk is full", promise="One line, exit code 2.")

Tests whose marks have the same three texts share a row. The number of faults is the number of the test's parameters,
or `count`, if the mark has it. `count=0` is for another effect of a fault that is counted elsewhere. A row keeps its
place on the page. New rows are appended to the table of their section.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "explanation" / "reliability.md"

_BLOCK = re.compile(r"(?<=<!-- begin generated: )(?P<name>.+)(?P<rest> -->\n)(?P<text>(?:.*\n)*?)(?=<!-- end -->\n)")
_ALL = re.compile(r"(?<=^All )\d+(?= faults were )", re.MULTILINE)
_TOTALS = "totals"


@dataclass(frozen=True)
class Fault:
    """A mark `fault` of a test: the texts of a row, and the number of faults if it is not that of the parameters."""

    section: str
    fault: str
    promise: str
    count: int | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table of faults. `tests` has the number of faults that each test injects."""

    fault: str
    promise: str
    tests: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        tests = " ".join(f"`{test}`" for test in self.tests)
        return f"| {self.fault} | {self.promise} | {self.faults or '-'} | {tests} |\n"

    @property
    def faults(self) -> int:
        """Number of faults."""
        return sum(self.tests.values())

    @property
    def faults_on_slurm(self) -> int:
        """Number of faults that are injected into a real Slurm."""
        return sum(count for test, count in self.tests.items() if test.startswith("slurm/"))


class _Collector:
    """Plugin of pytest that counts the parameters of each mark and test."""

    def __init__(self) -> None:
        self.parameters: Counter[tuple[Fault, str]] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = item.nodeid.partition("[")[0].removeprefix("tests/")
            self.parameters.update((Fault(**mark.kwargs), test) for mark in item.iter_markers("fault"))


def collect_rows() -> dict[str, list[Row]]:
    """Return the rows of each section in the order of collection. Nothing is run."""
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if "pytest.mark.fault(" in path.read_text("utf-8")]
    collector, output = _Collector(), io.StringIO()
    options = ["-o", "addopts=", "-p", "no:cacheprovider", "--collect-only", f"--rootdir={TESTS.parent}"]
    with contextlib.redirect_stdout(output):
        code = pytest.main([*options, *map(str, files)], plugins=[collector])
    if code != pytest.ExitCode.OK:
        sys.exit(output.getvalue())
    counted = Counter(test for mark, test in collector.parameters if mark.count != 0)
    if twice := [test for test, rows in counted.items() if rows > 1]:
        sys.exit(f"{', '.join(twice)}: two rows count the same faults. Hint: count=0 in one of the marks")
    sections: dict[str, dict[tuple[str, str], Row]] = {}
    for (mark, test), parameters in collector.parameters.items():
        rows = sections.setdefault(mark.section, {})
        row = rows.setdefault((mark.fault, mark.promise), Row(mark.fault, mark.promise))
        row.tests[test] = parameters if mark.count is None else mark.count
    return {section: list(rows.values()) for section, rows in sections.items()}


def generate(page: str, rows: dict[str, list[Row]]) -> str:
    """Return the page with new tables and totals. Exit if a section has no table."""
    names = {match["name"] for match in _BLOCK.finditer(page)}
    if unknown := rows.keys() - names:
        sections = ", ".join(unknown)
        sys.exit(f"docs/explanation/reliability.md: no table for the section {sections}. Hint: correct the mark")
    totals = list(_totals(page, rows))

    def generated(block: re.Match[str]) -> str:
        head = block["text"].splitlines(keepends=True)[:2]
        new = totals if block["name"] == _TOTALS else map(str, _in_order_of(block["text"], rows.get(block["name"], [])))
        return "".join((block["name"], block["rest"], *head, *new))

    return _ALL.sub(str(sum(row.faults for section in rows.values() for row in section)), _BLOCK.sub(generated, page))


def _in_order_of(old: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows, and the tests of each row, in the order of the old table. New ones are last."""

    def place(text: str) -> int:
        found = old.find(text)
        return len(old) if found < 0 else found

    def ordered(row: Row) -> Row:
        return replace(row, tests=dict(sorted(row.tests.items(), key=lambda item: place(f"`{item[0]}`"))))

    return sorted(map(ordered, rows), key=lambda row: place(f"| {row.fault} | {row.promise} |"))


def _totals(page: str, rows: dict[str, list[Row]]) -> Iterator[str]:
    """Yield a row per main section of the page, and the sum."""
    of_all: list[Row] = []
    for part in page.split("\n## ")[1:]:
        blocks = [match["name"] for match in _BLOCK.finditer(part)]
        if blocks:
            of_section = [row for name in blocks for row in rows.get(name, [])]
            of_all += of_section
            yield _total(part.splitlines()[0], of_section)
    yield _total("all", of_all)


def _total(name: str, rows: Sequence[Row]) -> str:
    return f"| {name} | {sum(row.faults for row in rows)} | {sum(row.faults_on_slurm for row in rows)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Generate the tables of docs/explanation/reliability.md from the marks of the tests."
    )
    parser.add_argument("--check", action="store_true", help="print the differences, write nothing")
    check: bool = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = generate(old, collect_rows())
    if not check:
        PAGE.write_text(new, encoding="utf-8")
        return 0
    lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    sys.stdout.writelines(difflib.unified_diff(*lines, "docs/explanation/reliability.md", "generated from the tests"))
    if old != new:
        print("Hint: `python -m tests.reliability` writes the page")
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main())
