"""Hints of errors and messages name commands, options and keys of a profile that exist.

The texts are those of the source: every literal of the package that is not a docstring. test_next_command.py runs the
commands of the lines `next:`.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from orchestrator.cli.main import UsageError, app
from orchestrator.clusters.profile import ClusterProfile
from orchestrator.errors import ReproError
from tests.pages import CHECKOUT
from tests.unit.test_pages import parse

VALUE = "1"
"""Replacement for a value that a text contains only at run time."""
OF_OTHERS = frozenset(("--container-image", "--container-readonly", "--depth", "--detach", "--mpi"))
"""Options of Slurm, pyxis and git in hints."""
SENTENCES = frozenset(("asks", "decides", "does", "excludes", "groups", "is", "made", "passes", "reads", "writes"))
"""Words after `repro` in a sentence about it."""
_COMMAND = re.compile(r"(?:`repro (?P<quoted>[^`]+)`)|(?<![\w.-])repro (?P<plain>[a-z][^;`]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_KEY = re.compile(r"(?<![\w.])(slurm|site|container|hardware)(?:\.|: )(?!from )([a-z_]{3,})")


class Text(NamedTuple):
    """A literal of the package, with VALUE for each value in it."""

    place: str
    text: str
    is_hint: bool


@cache
def texts() -> tuple[Text, ...]:
    return tuple(
        text
        for path in sorted((CHECKOUT / "orchestrator").rglob("*.py"))
        for text in texts_of(path.read_text(), path.name)
    )


def texts_of(source: str, name: str) -> Iterator[Text]:
    """Yield the literals of a module, without docstrings and parts of f-strings."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    hints: set[int] = set()
    for node in nodes:
        values: list[ast.expr | None] = []
        if isinstance(node, ast.keyword) and node.arg == "hint":
            values.append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
            values += node.args[2:3]
        elif isinstance(node, ast.Assign) and any("hint" in ast.unparse(target).lower() for target in node.targets):
            values.append(node.value)
        hints |= {id(inner) for value in values if value is not None for inner in ast.walk(value)}
    for node in nodes:
        if id(node) not in left_out and (text := literal(node)) is not None:
            yield Text(f"{name}:{node.lineno}", text, id(node) in hints)  # type: ignore[attr-defined]


def literal(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)  # type: ignore[misc]
    return None


def options_of(command: Any) -> Iterator[str]:
    """Yield the options of a command, and of the commands below it."""
    yield "--help"
    yield from (option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts))
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from options_of(command.get_command(None, name))


def fault_of(command: str) -> str | None:
    """Return why the first words of a sentence that begins with a command of `repro` are none; None if they are."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    words = list(itertools.takewhile(lambda word: word not in {"|", "&&", ">"}, words))
    why = ""
    for end in range(len(words), 0, -1):
        try:
            parse([*words[: end - 1], words[end - 1].rstrip(",.:)")])
        except UsageError as error:
            why = why or error.format_message()
        except ReproError as error:
            if "missing option '--cluster'" not in str(error):
                why = why or str(error)
                continue
        except SystemExit:  # --help
            pass
        else:
            return unknown_option(words)
    return None if re.search("^Usage|Missing argument|missing option|requires an argument", why) else why


def unknown_option(words: list[str]) -> str | None:
    """Return the first option that the command of these words does not have, up to the end of the clause."""
    command: Any = get_command(app)
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), words))[:2]
    while names and hasattr(command, "list_commands"):
        command = command.get_command(None, names.pop(0)) or command
    known = set(options_of(command))
    for word in words:
        if _OPTION.match(word) and word.split("=")[0].rstrip(",.:)") not in known:
            return f"no option {word}"
        if word.endswith((",", ";", ".")):
            break
    return None


def commands_of(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for match in _COMMAND.finditer(line):
            command = match["quoted"] or match["plain"]
            if command.split()[0] not in (*SENTENCES, VALUE, "COMMAND"):
                yield command


def faults(found: Iterator[Text] | tuple[Text, ...]) -> list[str]:
    return [
        f"{text.place}: repro {command}: {fault}"
        for text in found
        for command in commands_of(text.text)
        if (fault := fault_of(command))
    ]


def keys_of_profiles() -> set[str]:
    """Return the keys in the blocks of a profile, as `slurm.partition`."""
    schema = ClusterProfile.model_json_schema()
    found = set()
    for block in ("slurm", "site", "container", "hardware"):
        text = str(schema["properties"][block])
        for name in re.findall(r"#/\$defs/(\w+)", text):
            found |= {f"{block}.{key}" for key in schema["$defs"][name].get("properties", {})}
    return found


def test_every_command_in_a_text_of_the_package_exists_with_its_options() -> None:
    assert faults(texts()) == []
    assert sum(1 for text in texts() for _ in commands_of(text.text)) > 100


def test_every_option_in_a_hint_is_one_of_repro() -> None:
    known = {*options_of(get_command(app)), *OF_OTHERS}
    unknown = [
        f"{text.place}: {option}"
        for text in texts()
        if text.is_hint
        for option in _OPTION.findall(text.text)
        if option not in known
    ]
    assert unknown == []


def test_every_key_of_a_profile_in_a_hint_exists() -> None:
    known = keys_of_profiles()
    named = {
        (text.place, f"{match[1]}.{match[2]}") for text in texts() if text.is_hint for match in _KEY.finditer(text.text)
    }
    assert len(named) > 5 and sorted(key for key in named if key[1] not in known) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('x = "try `repro shwo figure-1`"', "No such command"),
        ('x = f"repro status {name} --no-such shows it"', "--no-such"),
        ('x = "repro nodes forget n7"', "No such command"),
        ('x = "repro wait --time-out 2h"', "--time-out"),
    ],
)
def test_a_wrong_command_in_a_text_is_found(source: str, fault: str) -> None:
    (message,) = faults(texts_of(source, "a.py"))
    assert fault in message
