"""Parser for YAML files, and for settings of the command line. It keeps the location of each key and value.

Values follow the core schema of YAML 1.2, except that ambiguous scalars stay text: `no`, `1:30:00`, `08` and `0x10`.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import yaml

from orchestrator.errors import Problem, ReproError, require_none

KeyPath = tuple[str | int, ...]
Scalar: TypeAlias = "str | int | float | bool | None"
YamlValue: TypeAlias = "dict[str, YamlValue] | list[YamlValue] | Scalar"
Refusal: TypeAlias = "Callable[[os.stat_result], Problem | None]"
"""Returns the problem with the status of an open file; None if the file may be read."""

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_CONSTANTS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}

# A file beyond these limits is a mistake or an attack ("billion laughs").
_DEEPEST = 64
_MOST_VALUES = 100_000
_LONGEST_NUMBER = 400
_LARGEST_FILE = 16 * 1024**2
"""Size in bytes. A file with `_MOST_VALUES` values is smaller."""

_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc,valid-type]
    """Loader that finds no types: `scalar` does."""

    def resolve(self, *_: object) -> str:
        return "?"


@dataclass(frozen=True, slots=True)
class Location:
    """Position of a value, `file:line:column`. Lines and columns start at 1.

    A value of the command line has line 0, and `file` is the option.
    """

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    @property
    def in_message(self) -> str:
        """Return the location as the first part of a message: `file:line:column`, or `--set slurm.qos=high:`."""
        return str(self) if self.line else f"{self}:"


@dataclass(frozen=True, slots=True)
class Document:
    """Content of a YAML file, with the location of each key and value.

    Paths, such as `("matrix", "pp", 0)`, are the keys of both mappings. `keys` contains the locations of the keys of
    mappings, `values` the locations of the values.
    """

    file: str
    value: YamlValue
    keys: Mapping[KeyPath, Location] = field(default_factory=dict)
    values: Mapping[KeyPath, Location] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Location:
        """Return the nearest known location at or above `path`."""
        return nearest(self.values, path) or Location(self.file, 1, 1)

    def key_place(self, path: KeyPath) -> Location:
        """Return the location of the key at `path`, or the nearest known location."""
        return self.keys.get(path) or self.place(path)


def children(value: YamlValue) -> Iterator[tuple[str | int, YamlValue]]:
    """Yield the items of a mapping with their keys, or those of a list with their numbers."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def dotted(path: KeyPath) -> str:
    """Return a path for a message: `slurm.qos.0.name`."""
    return ".".join(str(part) for part in path)


def nearest(locations: Mapping[KeyPath, Location], path: KeyPath) -> Location | None:
    """Return the location of `path`, or of its nearest parent that has one."""
    return next((locations[path[:end]] for end in range(len(path), -1, -1) if path[:end] in locations), None)


def shown(path: Path) -> str:
    """Return the path for a message. It is relative if it is below the current folder."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, RuntimeError, ValueError):  # not below this folder, a loop of links, or an invalid name
        return str(path)


def read_document(path: Path, refusal: Refusal | None = None) -> Document:
    """Read a YAML file. ReproError has the location of each problem."""
    name = shown(path)
    try:
        raw = _file_bytes(path, name, refusal)
    except FileNotFoundError:
        raise ReproError(Problem("no such file", f"{name}:")) from None
    except OSError as error:
        raise ReproError(Problem(f"cannot be read: {error.strerror}", f"{name}:")) from None
    except ValueError:  # a NUL, or a character outside the encoding of the file system
        raise ReproError(Problem("not a valid file name", f"{str(path)!r}:", "correct the path")) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReproError(Problem(f"not UTF-8 text (byte {error.start})", f"{name}:", "save it as UTF-8")) from None
    return parse_document(text.replace("\r\n", "\n").replace("\r", "\n"), name)


def _file_bytes(path: Path, name: str, refusal: Refusal | None) -> bytes:
    """Return the content of a regular file; ReproError for any other kind, OSError if it cannot be read."""
    _require_regular(os.stat(path).st_mode, name)  # noqa: PTH116  opening a device can have side effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _require_regular(status.st_mode, name)
        if refusal is not None and (problem := refusal(status)) is not None:
            raise ReproError(problem)
        raw = file.read(_LARGEST_FILE + 1)
    if len(raw) > _LARGEST_FILE:
        limit = f"larger than {_LARGEST_FILE // 1024**2} MiB"
        raise ReproError(Problem(f"{limit}, so it is not read", f"{name}:", "split it, or correct the path"))
    return raw


_KINDS: Mapping[int, str] = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def _require_regular(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise ReproError(Problem(f"is {kind}, not a YAML file", f"{name}:", "remove it, or correct the path"))


@lru_cache(maxsize=256)  # a notebook and a waiting command read the same files again and again
def parse_document(text: str, name: str) -> Document:
    """Parse YAML text. `name` is the file name in locations. ReproError as for `read_document`.

    Callers share the document, and do not change it.
    """
    loader = _Loader(text)
    try:
        problems = list(_unsupported(text, name))
        root = None if problems else loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = Location(name, mark.line + 1, mark.column + 1) if mark else Location(name, 1, 1)
        raise ReproError(_not_yaml(text, location, error.problem or error.context or "")) from None
    except yaml.YAMLError as error:
        raise ReproError(Problem(f"not YAML: {' '.join(str(error).split())}", f"{name}:")) from None
    finally:
        loader.dispose()
    require_none(problems)
    builder = _Builder(name)
    value = {} if root is None else builder.build(root, (), frozenset())
    require_none(builder.problems)
    return Document(name, value, builder.keys, builder.values)


def _not_yaml(text: str, location: Location, message: str) -> Problem:
    """Return the problem of text that the parser refuses. Its own messages do not name tabs and indentation."""
    line = "".join(text.split("\n")[location.line - 1 : location.line])
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        column = indentation.index("\t") + 1
        return Problem("a tab", str(Location(location.file, location.line, column)), "indent with spaces")
    is_structure = "expected" in message or "not allowed" in message
    hint = "check the indentation and the quotes of this line and of the one above" if is_structure else None
    word = line[: location.column - 1].rpartition(" ")[2] + line[location.column - 1 :].partition("}")[0] + "}"
    if line[location.column - 1 : location.column] == "{":  # --width={width} in a list
        hint = f'quote the word: "{word}"'
    return Problem(f"not YAML: {message}", str(location), hint)


def _unsupported(text: str, name: str) -> Iterator[Problem]:
    """Yield the problems of unsupported YAML. Runs first, because the C library builds its tree by recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        tag = getattr(event, "tag", None)
        if tag is not None:
            location = str(_location(name, event))
            yield Problem(f"the tag {tag} is not supported", location, "remove it; use quotes for text")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            yield Problem(f"more than {_DEEPEST} nested levels", str(_location(name, event)))
            return


def _location(file: str, marked: yaml.Node | yaml.Event) -> Location:
    mark = marked.start_mark
    return Location(file, mark.line + 1, mark.column + 1) if mark is not None else Location(file, 1, 1)


class _Builder:
    """Builder of a document. It collects values, locations and problems from the node tree."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.keys: dict[KeyPath, Location] = {}
        self.values: dict[KeyPath, Location] = {}
        self.problems: list[Problem] = []

    def build(self, node: yaml.Node, path: KeyPath, above: frozenset[int]) -> YamlValue:
        self.values[path] = _location(self.file, node)
        if len(self.values) > _MOST_VALUES:
            raise ReproError(Problem(f"more than {_MOST_VALUES:,} values, aliases included", f"{self.file}:"))
        if id(node) in above:
            self.problems.append(Problem("an alias refers to itself", str(self.values[path])))
            return None
        above = above | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, above)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i), above) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return scalar(node.value, plain=not node.style)

    def mapping(self, node: yaml.MappingNode, path: KeyPath, above: frozenset[int]) -> dict[str, YamlValue]:
        result: dict[str, YamlValue] = {}
        for key_node, value_node in node.value:
            location = _location(self.file, key_node)
            key = str(key_node.value)
            here = (*path, key)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem("a field name must be a word", str(location)))
            elif key == "<<":
                self.problems.append(Problem("merge keys (<<) are not supported", str(location), "write all fields"))
            elif key in result:
                first = f"first at line {self.keys[here].line}"
                self.problems.append(Problem(f"{key}: given twice", str(location), first))
            else:
                self.keys[here] = location
                result[key] = self.build(value_node, here, above)
        return result


def scalar(text: str, plain: bool = True) -> Scalar:
    """Return the value of a YAML 1.2 scalar."""
    if not plain or len(text) > _LONGEST_NUMBER:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


_SETTING = re.compile(
    r"(?P<path>[A-Za-z_]\w*(?:-\w+)*(?:\.\w+(?:-\w+)*)*)(?P<operator>=|\+=|-=)(?P<value>.*)", re.DOTALL | re.ASCII
)
_STEPS = {"+=": "add", "-=": "remove"}
_FORM = "for example slurm.qos=high, container.mounts+=/data or slurm.sbatch-=--nice"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `=` replaces the value at `path`, `+=` and `-=` add and remove an item of a list.

    `value` is None after `slurm.qos=`, which removes the field.
    """

    path: KeyPath
    operator: str
    value: YamlValue
    text: str

    @property
    def location(self) -> Location:
        """Location of the value in messages and in the origins of a script's lines."""
        return Location(f"--set {self.text}")


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Parse `PATH=VALUE`, `PATH+=VALUE` and `PATH-=VALUE`; a value is YAML. ReproError has every invalid text."""
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for text in texts:
        match = _SETTING.fullmatch(text)
        if match is None:
            problems.append(Problem(f"--set {text}: must be PATH=VALUE", hint=_FORM))
            continue
        try:
            value = parse_document(match["value"], f"--set {text}").value if match["value"].strip() else None
        except ReproError as error:
            hint = f"quote the value: --set '{match['path']}{match['operator']}\"...\"'"
            problems += [Problem(f"--set {text}: {problem.what}", hint=hint) for problem in error.problems]
            continue
        setting = Setting(tuple(match["path"].split(".")), match["operator"], value, text)
        if value is None and setting.operator in _STEPS:
            problems.append(Problem(f"--set {text}: no item is given", hint=_FORM))
        problems += [
            Problem(f"--set {text}: contradicts --set {other.text}", hint="give one of them")
            for other in settings.values()
            if _contradict(other, setting)
        ]
        settings[text] = setting
    require_none(problems)
    return tuple(settings.values())


def _contradict(first: Setting, second: Setting) -> bool:
    """Return whether the order of two settings would matter: one sets the value of the other, or a part of it."""
    shorter = min(len(first.path), len(second.path))
    if first.path[:shorter] != second.path[:shorter] or first.text == second.text:
        return False
    return len(first.path) != len(second.path) or "=" in (first.operator, second.operator)


def settings_document(settings: Sequence[Setting]) -> Document:
    """Return the settings as a document in the form of an overlay: `{slurm: {qos: high, sbatch: {add: [...]}}}`."""
    value: dict[str, YamlValue] = {}
    locations: dict[KeyPath, Location] = {}
    for setting in settings:
        step = _STEPS.get(setting.operator)
        path = setting.path if step is None else (*setting.path, step)
        block = value
        for depth, key in enumerate(path[:-1], start=1):
            locations.setdefault(path[:depth], setting.location)
            inner = block.setdefault(str(key), {})
            assert isinstance(inner, dict)  # no setting contradicts another one
            block = inner
        locations.setdefault(path, setting.location)
        if step is None:
            block[str(path[-1])] = setting.value
            continue
        items = block.setdefault(step, [])
        assert isinstance(items, list)
        item: KeyPath = (*path, len(items))
        locations[item] = setting.location
        items.append(setting.value)
    file = str(settings[0].location) if settings else "--set"
    return Document(file, value, locations, locations)
