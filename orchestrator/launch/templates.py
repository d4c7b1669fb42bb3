"""Template engine: lines with origins, filters that quote, and the origins of a rendered line for `--explain`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jinja2

from orchestrator.errors import Problem, ReproError
from orchestrator.text import printable_line

OURS = "repro"
"""Origin of the parts that every script has."""

# Filled in by the shell that runs the script. Each ends one quoted piece and begins the next.
_AT_RUN = {
    "job_id": '"$SLURM_JOB_ID"',
    "user": '"${USER:-$(id -un)}"',
    "home": '"$HOME"',
    "ids": '"$(id -u):$(id -g)"',
    "job_folder": '"$folder"',
}


@dataclass(frozen=True, slots=True)
class Line:
    """Words of a script and their origin: a line of a profile, the experiment, or the program.

    With `at_run` the job itself fills in {job_id}, {user}, {home}, {ids} (of user and group) and {job_folder}.
    """

    words: tuple[str, ...]
    origin: str
    at_run: bool = False

    @classmethod
    def of(cls, text: str, origin: str = OURS) -> Line:
        """Return a line of one word."""
        return cls((text,), origin)


@dataclass(frozen=True, slots=True)
class Explained:
    """Line of a script with the origins of its parts; the location in the template comes last."""

    text: str
    origins: tuple[str, ...]


class Templates:
    """Templates of a folder, each compiled once.

    With `explain` every rendered line carries invisible marks, which `explained` reads and takes out.
    """

    def __init__(self, folder: Path, explain: bool = False) -> None:
        self._explain = explain
        self._origins: dict[str, int] = {}  # the number of each origin in the marks
        loader = jinja2.FileSystemLoader([folder, "/"])  # "/": templates of packages
        self._environment = jinja2.Environment(
            loader=_MarkedLines(loader, folder.name, self._mark) if explain else loader,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self._environment.filters.update(
            {
                "q": self._quoted,
                "run": self._filled_when_run,
                "as_is": lambda line: " ".join(line.words) + self._mark(line.origin),
                "inside": lambda text: text.replace("'", "'\\''"),  # a quoted word within a single-quoted script
                "comment": lambda text: printable_line(" ".join(str(text).split())),
            }
        )

    def render(self, name: str, **values: object) -> str:
        """Render a template of the folder."""
        return self._environment.get_template(name).render(**values)

    def explained(self, script: str) -> list[Explained]:
        """Return the lines of a script with `explain`. A line without a mark belongs to the next one."""
        names = list(self._origins)
        lines: list[Explained] = []
        unmarked: list[str] = []
        for line in script.removesuffix("\n").split("\n"):  # and at no other line end that Unicode knows
            numbers = [int(number) for number in re.findall("\0([0-9]+)\0", line)]
            unmarked.append(re.sub("\0[0-9]+\0", "", line))
            if numbers or not unmarked[-1]:
                origins = tuple(dict.fromkeys(names[number] for number in numbers))
                lines += [Explained(text, origins) for text in unmarked]
                unmarked = []
        return lines + [Explained(text, ()) for text in unmarked]

    def _mark(self, origin: str) -> str:
        if not self._explain:
            return ""
        return f"\0{self._origins.setdefault(origin, len(self._origins))}\0"

    def _quoted(self, value: object) -> str:
        if isinstance(value, Line):
            return " ".join(map(quoted, value.words)) + self._mark(value.origin)
        return quoted(str(value))

    def _filled_when_run(self, line: Line) -> str:
        """Return the quoted words; the job itself fills in the names that it knows."""
        if not line.at_run:
            return self._quoted(line)
        return " ".join(map(_filled, line.words)) + self._mark(line.origin)


@lru_cache
def templates_in(folder: Path, explain: bool = False) -> Templates:
    """Return the templates of a folder."""
    return Templates(folder, explain)


def quoted(text: str) -> str:
    """Return the text as one word of a shell."""
    if "\0" in text:
        raise ReproError(Problem(f"{text!r} contains a null character and cannot be an argument"))
    return shlex.quote(text)


def _filled(word: str) -> str:
    pieces = re.split(rf"\{{({'|'.join(_AT_RUN)})\}}", word)
    return "".join(_AT_RUN[piece] if i % 2 else quoted(piece) for i, piece in enumerate(pieces) if i % 2 or piece)


def command_lines(argv: Sequence[str], origin: Callable[[Sequence[str]], str]) -> list[Line]:
    """Return a command as lines of a flag and its values."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return [Line(tuple(words), origin(words)) for words in lines if words]


class _MarkedLines(jinja2.BaseLoader):
    """Loader that marks each template line with its location.

    jinja removes the line end after a tag, so a line that ends with a tag has no mark and belongs to the next line.
    """

    def __init__(self, loader: jinja2.BaseLoader, folder: str, mark: Callable[[str], str]) -> None:
        self._loader, self._folder, self._mark = loader, folder, mark

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, path, fresh = self._loader.get_source(environment, template)
        lines = source.split("\n")
        name = f"{self._folder}/{template}" if "/" not in template else str(path)
        for i, line in enumerate(lines):
            if line.strip() and not line.endswith(("%}", "#}")):
                lines[i] = line + self._mark(f"{name}:{i + 1}")
        return "\n".join(lines), path, fresh
