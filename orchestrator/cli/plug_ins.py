"""Commands of plug-ins: entry points of the group `repro.commands`, whose value is a module.

The module has the Typer application `app` with the command, or a group with the name of the entry point. The help reads
its text and imports nothing: the first line of the docstring is the summary, and `PANEL = "..."` names the panel.
`EXAMPLES`, `DOCUMENTS` and `OF_LEDGER` of the module are added to those of `repro`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from orchestrator.programs.plug_ins import PlugIn, plug_ins

GROUP = "repro.commands"
_SUMMARY = re.compile(r'\A"""(.+?)(?:"""|\n)')
_PANEL = re.compile(r'^PANEL = "(.+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AddedCommand:
    """Command of a plug-in, as the help shows it."""

    plug_in: PlugIn
    summary: str
    panel: str


@cache
def added_commands(taken: Collection[str]) -> dict[str, AddedCommand]:
    """Return the commands of plug-ins by name, without names that are taken."""
    found: dict[str, AddedCommand] = {}
    for name, plug_in in plug_ins(GROUP).items():
        text = plug_in.source()
        summary, panel = _SUMMARY.search(text), _PANEL.search(text)
        about = summary[1] if summary else f"Command of {plug_in.package}."
        found[name] = AddedCommand(plug_in, about, panel[1] if panel else "Commands of plug-ins")
    return {name: found[name] for name in found if name not in taken}
