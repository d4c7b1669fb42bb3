"""Names of experiments and papers, and the files that have them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.paths import Folders, short_name


def experiment_names(folders: Folders) -> dict[str, Path]:
    """Return the file of every experiment by full name; ReproError if two files of a folder have the same name.

    A user's file replaces the shipped file of the same name. A file that was submitted by its path has the name, too.
    """
    names: dict[str, Path] = {}
    for path in folders.experiment_files():
        name = f"{path.parent.name}/{path.stem}"
        other = names.get(name)
        if other is not None and other.parent == path.parent:
            files = f"{shown(other)} and {shown(path)}"
            raise ReproError(Problem(f"{name}: this name is used twice, by {files}", hint="rename one of them"))
        if path.stem != "paper":
            names.setdefault(name, path)
    return names | {name: file for name, file in folders.submitted_files.items() if name not in names}


def is_path(name: str) -> bool:
    """Return whether the text is a path of an experiment's file, and not a name: `./x.yaml`, `my/figure.yaml`."""
    return name.endswith((".yaml", ".yml"))


def name_of_file(file: Path) -> str:
    """Return the full name of the experiment in a file."""
    return f"{file.parent.name}/{file.stem}"


def absolute_path(path: str) -> Path:
    """Return the absolute path of a file that a user names."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100  removes .. and keeps links


def papers(names: Iterable[str]) -> list[str]:
    """Return the folders of the papers: `sc21` of `sc21/figure-13`."""
    return list(dict.fromkeys(full.rpartition("/")[0] for full in names))


def names_of_paper(names: Iterable[str], paper: str) -> list[str]:
    """Return the full names of the experiments of a paper."""
    return [full for full in names if full.startswith(f"{paper}/")]


def names_meant(names: Iterable[str], name: str) -> list[str]:
    """Return the full names that match a short or full name, or the name of the file at a path."""
    if is_path(name):
        return [name_of_file(absolute_path(name))]
    return [full for full in names if name in (full, short_name(full))]


def nearest_names(names: Iterable[str], name: str) -> str | None:
    """Return the hint that names the nearest experiments or papers, none by an ambiguous name; None if none is near."""
    of_short_name: dict[str, list[str]] = {}
    for full in names:
        of_short_name.setdefault(short_name(full), []).append(full)
    if same := of_short_name.get(short_name(name)):
        return f"did you mean {' or '.join(json.dumps(full) for full in same)}?"
    unique = [short for short, several in of_short_name.items() if len(several) == 1]
    return did_you_mean(name, [*unique, *names, *papers(names)])
