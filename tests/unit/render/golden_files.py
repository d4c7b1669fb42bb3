"""Golden files: reviewed texts of rendered scripts, in full or as a difference from a base script.

NAME.sh contains a script in full. NAME.diff contains a unified diff from a base script that is stored in full:

    --- selene/pretrain.sh
    +++ eos/pretrain.sh
    @@
     export PYTHONPATH=/runs/programs/pretrain-000000000000${PYTHONPATH:+:$PYTHONPATH}
    +export TORCH_NCCL_AVOID_RECORD_STREAMS=1
     shift 2

The hunks have no line numbers. So a change of a template changes the base script, and a difference only if one of its
own lines changes. A hunk applies at the first place after the previous hunk that has its old lines.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parent / "golden"
UPDATE_COMMAND = "python -m pytest tests/unit/render --update-golden"


class GoldenError(Exception):
    """A golden file that is missing or cannot be read."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered text that has a golden file. `name` is the path of the text in the golden folder."""

    name: str
    text: str
    base: Rendered | None = None

    @property
    def file(self) -> str:
        """Return the path of the golden file in the golden folder."""
        return self.name if self.base is None else str(Path(self.name).with_suffix(".diff"))


def check_golden(rendered: Rendered, update: bool) -> None:
    """Fail the test if the text differs from its golden file. With `update`, write the golden file instead."""
    if update:
        write_golden(rendered, GOLDEN)
    elif message := golden_difference(rendered, GOLDEN):
        pytest.fail(message, pytrace=False)


def golden_difference(rendered: Rendered, folder: Path) -> str:
    """Return a message with the difference between the golden and the rendered text, "" if they are equal."""
    try:
        golden = read_golden(folder / rendered.file, folder)
    except GoldenError as error:
        return f"{error}\nTo write the golden files: {UPDATE_COMMAND}"
    file = _shown(folder / rendered.file)
    if rendered.base is not None and _base_name((folder / rendered.file).read_text()) != rendered.base.name:
        return f"{file}: the base must be {rendered.base.name}\nTo write the golden files: {UPDATE_COMMAND}"
    if golden == rendered.text:
        return ""
    names = (f"{file} (golden)", f"{rendered.name} (rendered)")
    diff = difflib.unified_diff(golden.split("\n"), rendered.text.split("\n"), *names, lineterm="")
    return "\n".join(
        [f"{file}: the rendered text differs", *diff, f"If this change is intended: {UPDATE_COMMAND}, then review it"]
    )


def read_golden(file: Path, folder: Path = GOLDEN) -> str:
    """Return the text of a golden file. A difference is applied to its base script."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise GoldenError(f"{_shown(file)}: no such golden file") from error
    if file.suffix != ".diff":
        return text
    base = folder / _base_name(text)
    if base.suffix == ".diff":
        raise GoldenError(f"{_shown(file)}: the base is not a script stored in full")
    try:
        return _applied(text, read_golden(base, folder))
    except ValueError as error:
        raise GoldenError(f"{_shown(file)}: {error} {base.relative_to(folder)}") from error


def write_golden(rendered: Rendered, folder: Path) -> None:
    """Write the golden file. A difference that already gives the rendered text is left as it is."""
    assert rendered.text.endswith("\n"), f"{rendered.name} does not end with a line feed"
    file = folder / rendered.file
    file.parent.mkdir(exist_ok=True)
    if rendered.base is None:
        file.write_text(rendered.text, encoding="utf-8")
        return
    if not _is_current(file, rendered.text, rendered.base):
        file.write_text(_difference(rendered.name, rendered.text, rendered.base), encoding="utf-8")


def check_stale_files(expected: set[str], update: bool) -> None:
    """Fail the test if the golden folder has other files than these. With `update`, remove them instead."""
    stale = stale_files(expected, GOLDEN)
    if update:
        remove_files(stale)
    elif stale:
        names = " ".join(map(_shown, stale))
        pytest.fail(
            f"no rendered text has these golden files: {names}\nTo remove them: {UPDATE_COMMAND}", pytrace=False
        )


def stale_files(expected: set[str], folder: Path) -> list[Path]:
    """Return the files of the golden folder that no rendered text has."""
    return sorted(
        file for file in folder.rglob("*") if file.is_file() and str(file.relative_to(folder)) not in expected
    )


def remove_files(files: list[Path]) -> None:
    """Remove these files, and folders that are then empty."""
    for file in files:
        file.unlink()
        if not any(file.parent.iterdir()):
            file.parent.rmdir()


def _shown(file: Path) -> str:
    """Return the path from the current folder."""
    return os.path.relpath(file)


def _base_name(diff: str) -> str:
    """Return the name of the base script of a difference."""
    return diff.partition("\n")[0].removeprefix("--- ")


def _is_current(file: Path, text: str, base: Rendered) -> bool:
    """Return whether this difference from the rendered base gives the rendered text."""
    if not file.exists():
        return False
    diff = file.read_text(encoding="utf-8")
    try:
        return _base_name(diff) == base.name and _applied(diff, base.text) == text
    except ValueError:
        return False


def _difference(name: str, text: str, base: Rendered) -> str:
    """Return the difference with the fewest lines of context that identify the place of each hunk."""
    for context in count(1):
        body = [*difflib.unified_diff(_lines(base.text), _lines(text), n=context, lineterm="")][2:]
        hunks = ["@@" if line.startswith("@@ ") else line for line in body]
        diff = "\n".join([f"--- {base.name}", f"+++ {name}", *hunks]) + "\n"
        if _applied(diff, base.text) == text:
            return diff
    raise AssertionError("unreachable")


def _applied(diff: str, base: str) -> str:
    """Return the base with the hunks applied. Raise ValueError if a hunk fits nowhere."""
    old, new, end = _lines(base), list[str](), 0
    for number, hunk in enumerate(_hunks(diff), 1):
        before = [line[1:] for line in hunk if line[:1] in "- "]
        places = range(end, len(old) - len(before) + 1)
        place = next((i for i in places if old[i : i + len(before)] == before), None)
        if place is None:
            raise ValueError(f"hunk {number} does not fit")
        new += old[end:place] + [line[1:] for line in hunk if line[:1] in "+ "]
        end = place + len(before)
    return "".join(f"{line}\n" for line in new + old[end:])


def _hunks(diff: str) -> Iterator[list[str]]:
    """Yield the lines of each hunk."""
    hunk: list[str] = []
    for line in [*_lines(diff)[3:], "@@"]:
        if line == "@@":
            yield hunk
            hunk = []
        else:
            hunk.append(line)


def _lines(text: str) -> list[str]:
    """Return the lines of a text. Only a line feed ends a line: a script may contain other separators."""
    return text.removesuffix("\n").split("\n")
