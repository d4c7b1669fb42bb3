"""Command of a job: that of a described program for a case, the one of any program on a cluster, and changed arguments.

A change is an option word, `--arg=--lr=0.001` or `--no-arg=--overlap-sp-ag`. Cases, jobs and commands contain it so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

from orchestrator.config.yaml import KeyPath, shown
from orchestrator.errors import Problem, ReproError, added_to, did_you_mean, names_hint, require_none
from orchestrator.programs.output import Scalar
from orchestrator.programs.program import OWN_FILES, FileFields, ProgramFields

_SCRIPTS = (".py", ".sh", ".pl", ".rb", ".jl", ".lua", ".R")
"""Endings of files that a command cannot create before it runs: a relative name must be a file beside the YAML."""


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


def job_command(
    program: ProgramFields, settings: Mapping[str, Scalar], folder: Path, at: Callable[[KeyPath], str]
) -> JobCommand:
    """Return the command of a case with these settings. ReproError has each file that is missing in the folder.

    `at` returns the location of a value of the program's block.
    """
    words = {path: program.filled(text, settings) for path, text in program.texts()}
    problems: list[Problem] = []
    copies: dict[str, tuple[bytes, str]] = {}
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
    parts = {
        "program": program.of_job(),
        "templates": templates,
        "copies": {name: digest for name, (_, digest) in copies.items()},
    }
    files = [JobFile(name, content=content) for name, (content, _) in copies.items()]
    files += [JobFile(name, filled[name] if name in filled else words["files", name]) for name in program.files]
    return JobCommand(
        tuple(words["command", i] for i in range(len(program.command))),
        tuple((name, words["environment", name]) for name in program.environment),
        tuple(files),
        tuple(_steps(program, words)),
        hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12],
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
        return _content(folder / name, location)[0].decode()
    except UnicodeDecodeError:
        raise ReproError(Problem(f"{name}: a template must be UTF-8 text", location)) from None


def _filled(program: ProgramFields, text: str, settings: Mapping[str, Scalar], location: str) -> str:
    try:
        return program.filled(text, settings)
    except KeyError as error:
        name = str(error.args[0])
        what = f"{{{name}}} in the template: no such axis"
        raise ReproError(Problem(what, location, names_hint(name, sorted(settings)))) from None


def _content(file: Path, location: str) -> tuple[bytes, str]:
    try:
        status = file.stat()
        return _read(file, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise ReproError(Problem(f"{shown(file)} cannot be read ({error.strerror})", location)) from None


@lru_cache(maxsize=64)
def _read(file: Path, _modified_ns: int, _bytes: int) -> tuple[bytes, str]:
    """Return the content of a file and its digest. All cases of an experiment share one copy."""
    content = file.read_bytes()
    return content, hashlib.sha256(content).hexdigest()


SYNTHETIC = "synthetic"
"""Data of a program that generates them itself without an argument that requests it."""

TORCHRUN = "torch.distributed.run"


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """The command of one process: its words `command`, then its `arguments`.

    `code` identifies the version of the program, `image` the container image; both are part of a job's identity. So is
    `image_digest`, the digest of an imported image or the identity of its file, if known. `mounts` are the folders that
    the program needs inside a container, `python_path` the start of its PYTHONPATH, `path` that of its PATH,
    `environment` the variables that its published script sets for every rank.

    `data` is a path, "mock data" or "synthetic". With `needs_mpi` the step must be started through PMI. `compiles_in`
    is the checkout into which the first run compiles kernels, while all other runs wait for torch's file
    megatron/fused_kernels/build/lock; `warm_up` is the command of one process that only compiles. `site_values` has the
    arguments that come from the cluster's profile, each with its field there.

    `python` runs the command and prints the packages of the fingerprint; None if no Python does. `launcher` is its
    module that starts all ranks of a node if the scheduler does not start each rank; None if the program has none.

    A program that an experiment describes has its place in `origin`, the `files` of the job's folder, the folder
    `copies` with those that are copied, and the `steps` that run at the same time.
    """

    name: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    code: str
    python: str | None = None
    image: str | None = None
    image_path: str | None = None
    image_digest: str | None = None
    python_path: str | None = None
    mounts: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    data: str | None = SYNTHETIC
    needs_mpi: bool = False
    compiles_in: str | None = None
    warm_up: tuple[str, ...] = ()
    site_values: tuple[tuple[str, tuple[str, ...]], ...] = ()
    launcher: str | None = TORCHRUN
    path: str | None = None
    origin: str | None = None
    copies: str | None = None
    files: tuple[JobFile, ...] = ()
    steps: tuple[SetupStep, ...] = ()

    @property
    def checkout(self) -> str | None:
        """The folder of the commit `code`; None if the profile gives no checkout."""
        return min((value for value, path in self.site_values if path[-1] == "checkout"), key=len, default=None)

    def field_of(self, word: str) -> tuple[str, ...] | None:
        """Return the path of the profile's field that this word comes from; None if it comes from elsewhere."""
        return next((path for value, path in self.site_values if value == word), None)

    def per_rank(self) -> list[str]:
        """Return the command of one rank whose launcher has set the rank variables."""
        return [*self.command, *self.arguments]

    def all_ranks(self, processes: int) -> list[str]:
        """Return the command that starts all ranks of a run on one machine."""
        assert self.python is not None and self.launcher is not None
        alone = ["--standalone"] if self.launcher == TORCHRUN else []
        options = [*alone, f"--nproc-per-node={processes}"]
        return [self.python, "-u", "-m", self.launcher, *options, *self.below_launcher()]

    def below_launcher(self) -> list[str]:
        """Return the arguments after the launcher's options. torchrun runs any program, other launchers their own."""
        return [*(self.command[2:] if self.launcher == TORCHRUN else ()), *self.arguments]


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """The image of a job: its name in the paper, the path or address that jobs use, its digest or file identity."""

    name: str | None = None
    path: str | None = None
    digest: str | None = None


ADDED, DROPPED = "--arg=", "--no-arg="
"""Beginnings of the two kinds of changes of a program's arguments."""
_NAME = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")


def changed_flag(change: str) -> str:
    """Return the flag that a change adds, replaces or leaves out: `--lr` of `--arg=--lr=0.001`."""
    return change.partition("=")[2].partition("=")[0]


def without_flags(arguments: Sequence[str], changes: Iterable[str]) -> list[str]:
    """Return the arguments without the flags that these changes name, and without the values of these flags."""
    names = {changed_flag(change) for change in changes}
    kept: list[str] = []
    is_named = False
    for word in arguments:
        if word.startswith("--"):
            is_named = word.partition("=")[0] in names
        if not is_named:
            kept.append(word)
    return kept


def parse_changes(arguments: Sequence[str], dropped: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that these values of `--arg` and `--no-arg` request, in the order of the flags.

    ReproError has every value that is not a flag or is given twice.
    """
    problems: list[Problem] = []
    changes: dict[str, str] = {}
    for option, words, form, example in (
        ("--arg", arguments, "--name or --name=value", "--arg --lr=0.001"),
        ("--no-arg", dropped, "--name", "--no-arg --overlap-sp-ag"),
    ):
        for word in words:
            flag, equals, value = word.partition("=")
            given = f"{option} {word}"
            if not _NAME.fullmatch(flag) or (equals and option == "--no-arg") or "\0" in value:
                problems.append(Problem(f"{given}: must be {form}", hint=f"for example {example}"))
            elif flag in changes:
                problems.append(Problem(f"{given}: {flag} is given twice", hint="give it once"))
            else:
                changes[flag] = f"{option}={word}"
    require_none(problems)
    return tuple(changes[flag] for flag in sorted(changes))


def changes_of(changes: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the changes of several jobs of one run, in the order of the flags."""
    return tuple(sorted({change for of_job in changes for change in of_job}, key=changed_flag))


def read_flags(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each flag; the last one if a flag is given twice, as in argparse.

    >>> read_flags(["--save", "a b", "--lr=0.1", "--mock-data", "--lr", "0.2"])
    {'--save': ('a b',), '--lr': ('0.2',), '--mock-data': ()}
    """
    flags: dict[str, tuple[str, ...]] = {}
    flag = None
    for argument in arguments:
        if argument.startswith("--"):
            flag, given, value = argument.partition("=")
            flags[flag] = (value,) if given else ()
        elif flag is not None:
            flags[flag] += (argument,)
    return flags
