"""Pages of the documentation as plain Markdown: their links, anchors and `repro` commands."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_COMMAND = re.compile(r"^(?:\$ )?(repro(?: .*)?)$")
_SHELL = re.compile(r"\s(?:\||&&|>>?|2>)\s?.*$")
"""The rest of a line after `repro`'s own words: a pipe, a redirection or a second command."""


@dataclass(frozen=True)
class Command:
    """A command line of `repro` in a block of a page."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """The words after `repro`."""
        return shlex.split(_SHELL.sub("", self.text), comments=True)[1:]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@cache
def page_names() -> tuple[str, ...]:
    """Return the paths of the Markdown pages in the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(sorted(name for name in listed.stdout.splitlines() if (CHECKOUT / name).exists()))


@cache
def lines_of(page: str) -> tuple[tuple[int, str, bool], ...]:
    """Return the number and text of each line, and whether it is in a code block."""
    rows: list[tuple[int, str, bool]] = []
    fence, indented, blank, in_list = "", False, True, False
    for number, line in enumerate((CHECKOUT / page).read_text(encoding="utf-8").splitlines(), 1):
        mark = _FENCE.match(line)
        if fence:
            closes = mark is not None and mark[1].startswith(fence)
            rows.append((number, line.strip() if not closes else "", not closes))
            fence = "" if closes else fence
            continue
        if mark:
            fence = mark[1]
            rows.append((number, "", False))
            continue
        if line and not line.startswith(" "):
            in_list = bool(re.match(r"[*-] |\d+\. ", line))
        depth = len(line) - len(line.lstrip())
        indented = bool(line.strip()) and depth >= (6 if in_list else 4) and (blank or indented)
        rows.append((number, line.strip() if indented else line, indented))
        blank = not line.strip() or (blank and indented)
    return tuple(rows)


def commands(page: str) -> Iterator[Command]:
    """Yield the commands of the page's code blocks. A line that ends with a backslash continues."""
    begun: Command | None = None
    for number, line, is_code in lines_of(page):
        if begun is not None:
            begun = Command(page, begun.line, f"{begun.text[:-1].rstrip()} {line.strip()}")
        elif is_code and (match := _COMMAND.match(line)):
            begun = Command(page, number, match[1])
        if begun is not None and not begun.text.endswith("\\"):
            yield begun
            begun = None


def inline_commands(page: str) -> Iterator[Command]:
    """Yield the complete commands in the sentences of the page, without synopses and commands in a pipe."""
    for number, line, is_code in lines_of(page):
        if not is_code:
            for match in re.finditer(r"`(repro [^`|\[]+)`", line):
                yield Command(page, number, match[1])


def links(page: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the target of each link."""
    for number, line, is_code in lines_of(page):
        if not is_code:
            yield from ((number, match[1]) for match in _LINK.finditer(_INLINE_CODE.sub("", line)))


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives to the first heading with this text."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(page: str) -> frozenset[str]:
    """Return the anchors that GitHub gives to the headings of the page."""
    found: Counter[str] = Counter()
    names = set()
    for _, line, is_code in lines_of(page):
        if not is_code and (heading := _HEADING.match(line)):
            name = anchor_of(heading[1])
            names.add(f"{name}-{found[name]}" if found[name] else name)
            found[name] += 1
    return frozenset(names)
