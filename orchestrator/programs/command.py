"""Command of a described program for one case: words, environment, files of the job's folder, and setup steps."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

from orchestrator.config.yaml import KeyPath, shown
from orchestrator.errors import Problem, ReproError, added_to, did_you_mean, require_none
from orchestrator.programs.output import Scalar
from orchestrator.programs.program import OWN_FILES, FileFields, ProgramFields

_SCRIPTS = (".py", ".sh", ".pl", ".rb", ".jl", ".lua", ".R")
"""Endings of files that a command cannot create before it runs: a relative name must be a file beside the YAML."""

At = Callable[[KeyPath], str]
"""Location of a value of the program's block."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """File that a job has in its folder before its command starts: text of the case, or a copy of `content`."""

    name: str
    text: str | None = None
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class SetupStep:
    """Server or similar program of a job. It is ready when the probe ends with 0, after at most `timeout_s` seconds."""

    name: str
    words: tuple[str, ...]
    probe: tuple[str, ...]
    timeout_s: int


@dataclass(frozen=True, slots=True)
class JobCommand:
    """Command of a case. `version` is the digest of what the case does not decide: the block and the files."""

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    files: tuple[JobFile, ...]
    steps: tuple[SetupStep, ...]
    version: str


def job_command(program: ProgramFields, settings: Mapping[str, Scalar], folder: Path, at: At) -> JobCommand:
    """Return the command of a case with these settings. ReproError has each file that is missing in the folder."""
    words = {path: program.filled(text, settings) for path, text in program.texts()}
    problems: list[Problem] = []
    copies: dict[str, bytes] = {}
    filled: dict[str, str] = {}
    templates: dict[str, str] = {}
    for name, given in program.files.items():
        if isinstance(given, FileFields):
            with added_to(problems):
                location = at(("files", name, "template"))
                templates[name] = _template(folder, given.template, location)
                filled[name] = _filled(program, templates[name], settings, location)
    for path, word in words.items():
        is_in_path = path[-1] == 0 and "/" not in word  # the name of a program
        if path[0] in ("command", "setup") and not is_in_path:
            for name in _file_names(word):
                if name in {*program.files, program.output.file}:
                    continue
                if (folder / name).is_file():
                    copies[name] = _content(folder / name, at(path))
                elif name.endswith(_SCRIPTS):
                    problems.append(_missing(folder, name, at(path), ", or name it by its absolute path on the nodes"))
    require_none(dict.fromkeys(problems))
    files = [JobFile(name, content=content) for name, content in copies.items()]
    files += [JobFile(name, filled[name] if name in filled else words["files", name]) for name in program.files]
    return JobCommand(
        tuple(words["command", i] for i in range(len(program.command))),
        tuple((name, words["environment", name]) for name in program.environment),
        tuple(files),
        tuple(_steps(program, words)),
        _version(program, templates, copies),
    )


def _steps(program: ProgramFields, words: Mapping[tuple[str | int, ...], str]) -> Iterator[SetupStep]:
    for i, step in enumerate(program.setup):
        run = tuple(words["setup", i, "run", j] for j in range(len(step.run)))
        probe = tuple(words["setup", i, "ready", j] for j in range(len(step.ready or ())))
        if step.log is not None:
            probe = ("grep", "-aEqe", step.log, f"setup-{i + 1}.txt")
        yield SetupStep(run[0].rpartition("/")[2], run, probe, step.timeout_s)


def _file_names(word: str) -> Iterator[str]:
    """Yield the word, or its value after `=`, if it can be a file beside the YAML."""
    for name in dict.fromkeys((word, word.partition("=")[2])):
        path = PurePosixPath(name)
        is_name = name and not re.search(r"\s", name) and str(path) not in (".", *OWN_FILES)
        if is_name and not path.is_absolute() and ".." not in path.parts:
            yield str(path)


def _missing(folder: Path, name: str, location: str, or_else: str = "") -> Problem:
    there = [path.name for path in folder.iterdir() if path.is_file()]
    hint = did_you_mean(name, there) or f"put it there{or_else}"
    return Problem(f"{name}: no such file in {shown(folder)}", location, hint)


def _template(folder: Path, name: str, location: str) -> str:
    if not (folder / name).is_file():
        raise ReproError(_missing(folder, name, location))
    try:
        return _content(folder / name, location).decode()
    except UnicodeDecodeError:
        raise ReproError(Problem(f"{name}: a template must be UTF-8 text", location)) from None


def _filled(program: ProgramFields, text: str, settings: Mapping[str, Scalar], location: str) -> str:
    try:
        return program.filled(text, settings)
    except KeyError as error:
        name = str(error.args[0])
        hint = did_you_mean(name, settings) or f"there are: {', '.join(sorted(settings))}"
        raise ReproError(Problem(f"{{{name}}} in the template: no such axis", location, hint)) from None


def _content(file: Path, location: str) -> bytes:
    try:
        status = file.stat()
        return _read(file, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise ReproError(Problem(f"{shown(file)} cannot be read ({error.strerror})", location)) from None


@lru_cache(maxsize=64)
def _read(file: Path, _modified_ns: int, _bytes: int) -> bytes:
    """Return the content of a file. All cases of an experiment share one copy."""
    return file.read_bytes()


@lru_cache(maxsize=64)
def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _version(program: ProgramFields, templates: Mapping[str, str], copies: Mapping[str, bytes]) -> str:
    """Return twelve hexadecimal digits."""
    digests = {name: _digest(content) for name, content in copies.items()}
    parts = {"program": program.of_job(), "templates": templates, "copies": digests}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
