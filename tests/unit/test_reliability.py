"""Checks of docs/reliability.md: its tests exist, its numbers are right, and its tables agree with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.launch import recover, refresh
from orchestrator.launch.sbatch import PAUSES_S
from orchestrator.launch.supervise import may_be_resubmitted
from orchestrator.ledger import tables
from orchestrator.reading.failure import BACK_OFF_S, MOST_ATTEMPTS, POLICIES, Failure
from orchestrator.slurm import states
from tests.slurm.test_job_faults import FAULTS
from tests.unit.ledger.test_survival import KILLS

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"

NAMED = re.compile(r"`((?:unit|slurm)/[\w/]+\.py)::(test_\w+)`")
# Faults that the number of parameters does not give: tests that count their own faults, and parameters without a fault.
IN_EACH = {
    "slurm/test_job_faults.py::test_each_fault_has_its_state_class_and_reason": len(FAULTS),
    "unit/ledger/test_survival.py::test_a_writer_killed_at_any_moment_leaves_whole_transactions": KILLS,
}
NO_FAULT = {"slurm/test_job_faults.py::test_a_failed_canary_stops_the_whole_matrix": 1}


@dataclass(frozen=True)
class Row:
    """A row of a table that names tests. `faults` is None if it counts none."""

    section: str
    faults: int | None
    tests: tuple[str, ...]


def tables_of(section: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the heading of the section and the cells of each table row."""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if line.startswith("| ") and not line.startswith("|--"):
            yield section, [cell.strip() for cell in line.strip().strip("|").split(" | ")]


@cache
def rows() -> tuple[Row, ...]:
    page_rows = []
    for section, cells in tables_of("", PAGE.read_text(encoding="utf-8")):
        if not cells[-1].rstrip("|").strip().startswith("`") or not NAMED.search(cells[-1]):
            continue
        assert len(cells) == 4 and re.fullmatch(r"-|[1-9][0-9]*", cells[2]), f"no number of faults: {cells}"
        tests = tuple(f"{file}::{name}" for file, name in NAMED.findall(cells[3]))
        assert NAMED.sub("", cells[3]).strip() == "", f"not only tests: {cells[3]}"
        page_rows.append(Row(section, None if cells[2] == "-" else int(cells[2]), tests))
    return tuple(page_rows)


@cache
def functions(file: str) -> frozenset[str]:
    """Return the test functions of a file, without importing it."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 100
    missing = [f"{file}::{name}" for file, name in named if not (TESTS / file).is_file() or name not in functions(file)]
    assert missing == []


def test_every_fault_on_a_real_slurm_is_on_the_page() -> None:
    named = {test for row in rows() for test in row.tests}
    for file in ("submission_faults", "job_faults", "without_accounting"):
        path = f"slurm/test_{file}.py"
        left_out = {f"{path}::{name}" for name in functions(path) if name.startswith("test_")} - named
        assert left_out == set()


def test_a_fault_is_counted_once_and_each_row_that_counts_has_one_test() -> None:
    counted = [row.tests for row in rows() if row.faults is not None]
    assert [tests for tests in counted if len(tests) != 1] == []
    assert [test for (test,), times in Counter(counted).items() if times > 1] == []


def test_the_page_counts_the_faults_that_the_tests_inject() -> None:
    """pytest counts the parameters, including those of fixtures."""
    counted = {row.tests[0]: row.faults for row in rows() if row.faults is not None}
    files = sorted({f"tests/{test.partition('::')[0]}" for test in counted})
    words = ["-o", "addopts=", "-p", "no:cacheprovider", "--collect-only", "-q", *files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    ids = [line.partition("[")[0].removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]
    collected = Counter(ids)
    injected = {test: collected[test] * IN_EACH.get(test, 1) - NO_FAULT.get(test, 0) for test in counted}
    assert counted == injected


def test_the_totals_at_the_top_are_the_sums_of_the_rows() -> None:
    sums: dict[str, list[int]] = {}
    for row in rows():
        for section in (row.section, "all"):
            of_section = sums.setdefault(section, [0, 0])
            of_section[0] += row.faults or 0
            of_section[1] += (row.faults or 0) if row.tests[0].startswith("slurm/") else 0
    cells = [cells for _, cells in tables_of("", PAGE.read_text(encoding="utf-8").partition("\n## ")[0])]
    assert {name: [int(faults), int(real)] for name, faults, real in cells[1:]} == sums
    assert f"All {sums['all'][0]} faults were last injected" in PAGE.read_text(encoding="utf-8")


def policy_rows() -> dict[str, list[str]]:
    part = PAGE.read_text(encoding="utf-8").partition("| class | ")[2].partition("\n\n")[0]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in table}


def test_every_class_of_failure_is_on_the_page() -> None:
    assert list(policy_rows()) == [*dict.fromkeys(policy_rows())]
    assert set(policy_rows()) == {failure.value for failure in Failure}


@pytest.mark.parametrize("failure", Failure)
def test_the_policy_of_a_class_is_on_the_page(failure: Failure) -> None:
    _, again, elsewhere, while_waiting, _ = policy_rows()[failure.value]
    job: Any = SimpleNamespace(verdict=tables.FAILED, number=1, failure=failure.value, is_requeued=False)
    policy = POLICIES[failure]
    actual = [{"yes": True, "no": False}[word] for word in (again, elsewhere, while_waiting)]
    assert actual == [policy.retry, policy.exclude_node, may_be_resubmitted(job)]


def test_every_state_is_on_the_page_in_its_phase() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("### Slurm states")[2].partition("\n## ")[0]
    phases = {cells[0]: cells[1] for _, cells in tables_of("", text) if cells[0] != "phase"}
    listed = {word: phase for phase, words in phases.items() for word in re.findall(r"[A-Z]{2}[A-Z_]+", words)}
    assert listed == {state: str(states.phase_of(state)) for state in states._STATES}
    for ours in (tables.QUEUED, "SUBMITTING", tables.NEVER_SUBMITTED, "LOST"):
        assert f"`{ours}`" in text


def test_times_and_limits_on_the_page_equal_the_code() -> None:
    assert BACK_OFF_S[0] == 0 and refresh.LOST_AFTER == recover.GRACE
    minutes = refresh.LOST_AFTER.total_seconds() / 60
    flat = " ".join(PAGE.read_text(encoding="utf-8").split())
    for words in (
        f"up to {MOST_ATTEMPTS} submissions of a job",
        f"the third {BACK_OFF_S[1]} s later, and any further one",
        f"which must be requested by name, {BACK_OFF_S[2]} s later",
        f"for {minutes:.0f} minutes, the job is `LOST`",
        f"looked for after {minutes:.0f} minutes",
        f"exit code 3 after {sum(PAUSES_S):.0f} s",
    ):
        assert words in flat, words
