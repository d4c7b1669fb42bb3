"""Pages of the documentation as plain Markdown: their links, anchors, commands and the printed output."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$")
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_PROGRAMS = (
    r"repro|chmod|check-jsonschema|datasette|docker|git|make|mkdir|mypy|pip|pytest|python3?|ruff|sbatch|source|sqlite3"
    r"|ssh-keygen|tar|vulture"
)
_TYPED = re.compile(rf"(?:[A-Z_]+=(?:'[^']*'|\S*) )*(?:{_PROGRAMS})(?: |$)")
"""A line of a block without prompts that is a command."""
_CONTINUED = "\\"
_VARIABLES = re.compile(r"^(?:[A-Z_]+=(?:'[^']*'|\S*) )+")
_SHELL = re.compile(r"\s(?:\||&&|>>?|2>)\s?.*$")
"""The rest of a line after `repro`'s own words: a pipe, a redirection or a second command."""
_VALUES = (
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"(?<![\w.-])/[^\s:]*/"), "/"),
    (re.compile(r"(?<!\S)[^\s:=]*/(?=[^\s/])"), ""),
    (re.compile(r"[\[(][#.]+[\])]"), "[#]"),
    (re.compile(r"\d(?:[\d.,:TZ_]*[\dTZ])?"), "N"),
    (re.compile(r"\s+"), " "),
)
"""Parts of an output that differ from run to run, and what replaces them in a comparison."""


@dataclass(frozen=True)
class Command:
    """A command line in a block of a page, and the output that the page shows for it."""

    page: str
    line: int
    text: str
    output: tuple[str, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that the command line sets."""
        found = _VARIABLES.match(self.text)
        return dict(word.split("=", 1) for word in shlex.split(found[0])) if found else {}

    @property
    def program(self) -> str:
        """First word after the variables."""
        return _VARIABLES.sub("", self.text).partition(" ")[0]

    @property
    def words(self) -> list[str]:
        """The words after the program."""
        return shlex.split(_SHELL.sub("", _VARIABLES.sub("", self.text)), comments=True)[1:]

    @property
    def key(self) -> str:
        """Words of `repro`, or the line of another program. Equal commands have equal keys."""
        if self.program != "repro" or self.variables:
            return self.text.partition("  #")[0].strip()
        return " ".join(self.words)

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


def blocks(page: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines of each code block with their numbers. An indented block may contain empty lines."""
    block: list[tuple[int, str]] = []
    for number, line, is_code in lines_of(page):
        if is_code:
            block.append((number, line))
        elif line and block:
            yield block
            block = []
    if block:
        yield block


@cache
def typed_lines(page: str) -> tuple[Command, ...]:
    """Return the command lines of the page's code blocks. A line that ends with a backslash continues.

    In a block with prompts (`$ `) the other lines are output.
    """
    found: list[Command] = []
    for block in blocks(page):
        prompts = any(line.startswith("$ ") for _, line in block)
        begun = False
        for number, line in block:
            if begun:
                found[-1] = replace(found[-1], text=f"{found[-1].text.removesuffix(_CONTINUED).rstrip()} {line}")
            elif line.startswith("$ ") or (not prompts and _TYPED.match(line)):
                found.append(Command(page, number, line.removeprefix("$ ")))
            elif prompts and found:
                found[-1] = replace(found[-1], output=(*found[-1].output, line))
                continue
            else:
                continue
            begun = found[-1].text.endswith(_CONTINUED)
    return tuple(found)


def commands(page: str) -> Iterator[Command]:
    """Yield the command lines of `repro`."""
    return (command for command in typed_lines(page) if command.program == "repro")


def missing_lines(command: Command, printed: str) -> list[str]:
    """Return the lines of the page's output that are not in the printed text.

    Numbers, ids, paths, times and column widths may differ. `...` on the page stands for any text.
    """
    lines = [_without_values(line) for line in printed.splitlines()]
    missing = []
    for shown in command.output:
        pattern = re.compile(".*".join(re.escape(part) for part in _without_values(shown).split("...")))
        if not any(pattern.fullmatch(line) for line in lines):
            missing.append(shown)
    return missing


def _without_values(line: str) -> str:
    for pattern, name in _VALUES:
        line = pattern.sub(name, line)
    return line.strip()


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
