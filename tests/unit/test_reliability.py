"""Checks of docs/explanation/reliability.md: tables of faults agree with the tests, other tables with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.launch import refresh
from orchestrator.launch.sbatch import PAUSES_S
from orchestrator.launch.supervise import may_be_resubmitted
from orchestrator.ledger import tables
from orchestrator.reading.failure import BACK_OFF_S, MOST_ATTEMPTS, POLICIES, Failure
from orchestrator.slurm import notation as records
from tests.reliability import PAGE, TESTS, Row, generate

pytestmark = pytest.mark.slow

NAMED = re.compile(r"`((?:unit|slurm)/[\w/]+\.py)::(test_\w+)`")


def rows_of(text: str) -> Iterator[list[str]]:
    """Yield the cells of each table row."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip().strip("|").split(" | ")]


@cache
def functions(file: str) -> Mapping[str, ast.FunctionDef]:
    """Return the functions of a test file by name, without importing it."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_tables_equal_the_marks_of_the_tests() -> None:
    check = [sys.executable, "-m", "tests.reliability", "--check"]
    done = subprocess.run(check, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_test_that_the_text_names_exists() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if not line.startswith("|")]
    named = NAMED.findall("\n".join(lines))
    assert named
    missing = [f"{file}::{name}" for file, name in named if not (TESTS / file).is_file() or name not in functions(file)]
    assert missing == []


@pytest.mark.parametrize("file", ["submission_faults", "job_faults", "without_accounting"])
def test_every_fault_on_a_real_slurm_is_marked(file: str) -> None:
    tests = [node for name, node in functions(f"slurm/test_{file}.py").items() if name.startswith("test_")]
    marks = {node.name: " ".join(map(ast.unparse, node.decorator_list)) for node in tests}
    assert marks and [name for name, text in marks.items() if "pytest.mark.fault(" not in text] == []


TABLES = """\
<!-- begin generated: totals -->
| section | faults | on a real Slurm |
|---|---|---|
<!-- end -->
All 0 faults were injected.

## Ledger
<!-- begin generated: Ledger -->
| fault | promise | faults | test |
|---|---|---|---|
| second | p | 1 | `unit/b.py::test_b` `slurm/a.py::test_a` |
| gone | p | 1 | `unit/c.py::test_c` |
| first | p | 1 | `unit/d.py::test_d` |
<!-- end -->
"""


def test_rows_keep_their_place_and_new_rows_are_last() -> None:
    new = Row("new", "p", {"unit/e.py::test_e": 0})
    first = Row("first", "p", {"slurm/d.py::test_d": 4})
    second = Row("second", "p", {"slurm/a.py::test_a": 1, "unit/b.py::test_b": 1})
    lines = generate(TABLES, {"Ledger": [new, first, second]}).splitlines()
    assert lines[3:6] == ["| Ledger | 6 | 5 |", "| all | 6 | 5 |", "<!-- end -->"]
    assert lines[6] == "All 6 faults were injected."
    assert lines[-4:] == [
        "| second | p | 2 | `unit/b.py::test_b` `slurm/a.py::test_a` |",
        "| first | p | 4 | `slurm/d.py::test_d` |",
        "| new | p | - | `unit/e.py::test_e` |",
        "<!-- end -->",
    ]


def test_a_mark_with_an_unknown_section_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no table for the section Lodger"):
        generate(TABLES, {"Lodger": [Row("f", "p", {"unit/a.py::test_a": 1})]})


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
    phases = {cells[0]: cells[1] for cells in rows_of(text) if cells[0] != "phase"}
    listed = {word: phase for phase, words in phases.items() for word in re.findall(r"[A-Z]{2}[A-Z_]+", words)}
    assert listed == {state: str(records.phase_of(state)) for state in records._STATES}
    for ours in (tables.QUEUED, "SUBMITTING", tables.NEVER_SUBMITTED, "LOST"):
        assert f"`{ours}`" in text


def test_times_and_limits_on_the_page_equal_the_code() -> None:
    assert BACK_OFF_S[0] == 0 and refresh.LOST_AFTER == refresh.GRACE
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
