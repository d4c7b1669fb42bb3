"""Pages of the documentation: links, anchors, commands, and paths of pages that the code names."""

from __future__ import annotations

import posixpath
import re
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
from typer.main import get_command

from orchestrator.cli.main import UsageError, app
from orchestrator.errors import ReproError
from tests.pages import CHECKOUT, anchors, commands, inline_commands, links, page_names

# Public addresses in links are not fetched: the tests have no network.
_ADDRESS = re.compile(r"https?://|mailto:")
COMMANDS = {" ".join(command.words): command for page in page_names() for command in commands(page)}
"""Commands of all pages, each one once."""


def parse(words: Sequence[str]) -> None:
    """Parse the arguments as `repro` does. UsageError if a command, an option or a value is wrong."""
    command: Any = get_command(app)
    context = command.make_context("repro", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def faults_of(page: str) -> list[str]:
    """Return the links of the page whose file or anchor does not exist."""
    faults = []
    for line, target in links(page):
        if _ADDRESS.match(target):
            continue
        path, _, anchor = target.partition("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if not (CHECKOUT / linked).exists():
            faults.append(f"{page}:{line}: {target}: no such file")
        elif anchor and anchor not in anchors(linked):
            faults.append(f"{page}:{line}: {target}: {linked} has no such heading")
    return faults


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert [fault for page in page_names() for fault in faults_of(page)] == []


def test_the_first_page_leads_to_every_page_of_the_documentation() -> None:
    linked = {posixpath.join("docs", target.partition("#")[0]) for _, target in links("docs/index.md")}
    pages = {page for page in page_names() if page.startswith("docs/")}
    assert pages - linked == {"docs/index.md"}


def test_a_wrong_link_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "docs/a.md": [(1, "no-such.md"), (2, "explanation/judging.md#no-such"), (3, "#no-such"), (4, "../README.md")]
    }
    monkeypatch.setattr("tests.unit.test_pages.links", wrong.__getitem__)
    monkeypatch.setattr("tests.unit.test_pages.anchors", lambda _page: {"energy"})
    assert [fault.partition(": ")[0] for fault in faults_of("docs/a.md")] == [
        "docs/a.md:1",
        "docs/a.md:2",
        "docs/a.md:3",
    ]


def test_the_command_line_accepts_every_command_of_the_pages() -> None:
    faults = []
    for command in COMMANDS.values():
        try:
            parse(command.words)
        except UsageError as error:
            faults.append(f"{command}: {error.format_message()}")
    assert faults == [] and len(COMMANDS) > 90


def test_every_option_of_a_command_in_a_sentence_exists() -> None:
    faults = []
    for command in (command for page in page_names() for command in inline_commands(page)):
        if not set(command.words) & {"COMMAND", "--install-completion", "--version"}:
            try:
                parse(command.words)
            except UsageError as error:  # a sentence often leaves arguments out
                if error.format_message().startswith("No such"):
                    faults.append(f"{command}: {error.format_message()}")
            except ReproError as error:
                assert "missing option '--cluster'" in str(error)
    assert faults == []


@pytest.mark.parametrize("words", ["shwo figure-13", "show --no-such", "submit figure-13 --max-parallel x", "nodes"])
def test_a_wrong_command_is_found(words: str) -> None:
    with pytest.raises(UsageError):
        parse(words.split())


def test_every_page_that_a_message_or_a_comment_names_exists() -> None:
    found = subprocess.run(
        ["git", "grep", "-IohE", r"docs/[A-Za-z0-9_/-]+\.(md|json)\b", "--", ":!*.log", ":!tests/unit/test_pages.py"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    named = set(found.stdout.split())
    assert "docs/reference/ledger.md" in named
    assert [name for name in sorted(named) if not (CHECKOUT / name).exists()] == []
