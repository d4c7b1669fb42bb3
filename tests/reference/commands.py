"""Page of all commands, options and examples, from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from orchestrator.cli.main import all_panels, app, examples_of
from tests.reference.markdown import code, table

_SKIPPED = {"--help"}
_OPTION = re.compile(r"(?<![\w`])(--[a-z][\w-]*(?:=[\w.:/+-]*\w)?)")
"""An option in a text. Outside of code, a site would print -- as a dash."""


def command_names(group: Any, context: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the full name of each command with the command and its context."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = command.context_class(command, info_name=name, parent=context)
        if hasattr(command, "list_commands"):
            yield from command_names(command, inner, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command, inner


def command_line() -> Iterator[str]:
    """Yield the lines of the page after its introduction."""
    root = get_command(app)
    context = root.context_class(root, info_name="repro")
    lines = {name: list(_command(name, *parts)) for name, *parts in command_names(root, context)}
    yield from ("", "## Options of `repro` itself", "", *_options(root, context))
    for panel, members in all_panels().items():
        yield from ("", f"## {panel}")
        for name, text in lines.items():
            if name.partition(" ")[0] in members:
                yield from text


def _command(name: str, command: Any, context: Any) -> Iterator[str]:
    help_text = " ".join(command.help.split())
    yield from ("", f"### {code(f'repro {name}')}", "", help_text)
    yield from ("", f"Usage: {code(' '.join(['repro', name, *command.collect_usage_pieces(context)]))}")
    yield from ("", *(f"    {line}" for line in examples_of(name)), "", *_options(command, context))


def _options(command: Any, context: Any) -> Iterator[str]:
    """Yield the table of arguments and options, in the words of --help."""
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and not _SKIPPED & set(parameter.opts):
            rows.append((code(record[0]), _OPTION.sub(r"`\1`", record[1])))
    yield from table(("argument or option", "meaning"), rows)
