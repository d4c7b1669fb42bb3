"""Commands of CONTRIBUTING.md and of the README's section on tests: what they name exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[2]
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
README_TESTS = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition("\n## Tests\n")[2].partition("\n## ")[0]

PROGRAMS = ("git", "make", "mypy", "pytest", "python", "ruff", "source", "vulture")
INSTALLED = ("mypy", "pytest", "ruff", "vulture")


def commands() -> Iterator[str]:
    """Yield the indented lines that begin with a program."""
    for text in (CONTRIBUTING, README_TESTS):
        for line in text.splitlines():
            if line.startswith("    ") and line.split()[0] in PROGRAMS:
                yield line.strip()


COMMANDS = sorted(set(commands()))


@cache
def pytest_options() -> frozenset[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", done.stdout))


def make_targets() -> set[str]:
    return set(re.findall(r"^([\w./-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def require_test(argument: str) -> None:
    """Fail unless the file or folder exists, and has the test if one is named."""
    file, _, test = argument.partition("::")
    assert (CHECKOUT / file).exists(), argument
    if test:
        tree = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, argument


def require_pytest(words: list[str]) -> None:
    """Fail unless the tests and options of this call of pytest exist, and `-k` selects a test."""
    values = {"-n", "-m", "-k", "--dist", "--maxprocesses"}
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("-"):
            assert word.partition("=")[0] in pytest_options(), word
        elif before not in values:
            require_test(word)
        elif before == "-k":
            texts = [(CHECKOUT / other).read_text(encoding="utf-8") for other in words if other.endswith(".py")]
            assert any(re.search(rf"def test_\w*{word}", text) for text in texts), word


@pytest.mark.parametrize("command", COMMANDS)
def test_everything_that_a_command_names_exists(command: str) -> None:
    program, *words = shlex.split(command, comments=True)
    if program == "make":
        assert set(words) <= make_targets()
    elif program == "source":
        assert words == [".venv/bin/activate"]  # `make` creates .venv
    elif program == "git":
        assert all((CHECKOUT / word).exists() for word in words[1:])
    elif (program, words[:2]) == ("python", ["-m", "pytest"]):
        require_pytest(words[2:])
    elif program == "pytest":
        require_pytest(words)
    elif program == "python":
        done = subprocess.run(
            [sys.executable, words[0], words[1], "--help"], cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and all(option in done.stdout for option in words[2:]), done.stderr
    else:
        assert importlib.util.find_spec(program) is not None


def test_both_pages_have_the_commands_that_set_up_a_checkout() -> None:
    set_up = "\n    make check\n    source .venv/bin/activate\n"
    assert set_up in CONTRIBUTING and set_up in README_TESTS


def test_the_commands_of_make_check_are_those_of_the_makefile() -> None:
    recipe = (CHECKOUT / "Makefile").read_text(encoding="utf-8").partition("\ncheck: ")[2].partition("\n\n")[0]
    ran = [line.strip().partition(" $(if ")[0] for line in recipe.splitlines()[1:]]
    listed = CONTRIBUTING.partition("Each one works alone:\n\n")[2].partition("\n\n")[0].splitlines()
    assert ran == [line.strip() for line in listed]


def test_the_table_of_markers_is_that_of_pyproject() -> None:
    pyproject = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    registered = re.findall(r'^    "(\w+): ', pyproject.partition("\nmarkers = [")[2].partition("\n]")[0], re.MULTILINE)
    table = CONTRIBUTING.partition("| marker | needs |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` ", table, re.MULTILINE) == registered


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|orchestrator)/[\w/.]*)`", CONTRIBUTING))))
def test_a_file_or_folder_that_is_named_exists(path: str) -> None:
    assert (CHECKOUT / path).exists()


def test_git_ignores_every_file_that_a_command_of_the_documents_writes() -> None:
    documents = [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
    written = {
        name
        for file in documents
        for name in re.findall(r"repro [^\n`]* -o ([\w.-]+)", file.read_text(encoding="utf-8"))
    }
    assert {"figure-13.csv", "figure-13.pdf", "figure-13.tar.zst", "report", "jobs"} <= written
    names = [name if "." in name else f"{name}/" for name in sorted(written)]
    done = subprocess.run(["git", "check-ignore", *names], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == names
