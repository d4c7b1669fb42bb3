"""Settings of the command line, such as `slurm.qos=high`, as a document that is merged over YAML files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config.yaml import Document, KeyPath, Location, YamlValue, parse_document
from orchestrator.errors import Problem, ReproError

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
    if problems:
        raise ReproError(*problems)
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
        block = value
        for depth, key in enumerate(setting.path[:-1], start=1):
            locations.setdefault(setting.path[:depth], setting.location)
            inner = block.setdefault(str(key), {})
            assert isinstance(inner, dict)  # no setting contradicts another one
            block = inner
        last, path = str(setting.path[-1]), setting.path
        locations.setdefault(path, setting.location)
        if setting.operator == "=":
            block[last] = setting.value
            continue
        steps = block.setdefault(last, {})
        assert isinstance(steps, dict)
        step = _STEPS[setting.operator]
        items = steps.setdefault(step, [])
        assert isinstance(items, list)
        item: KeyPath = (*path, step, len(items))
        locations[item] = setting.location
        items.append(setting.value)
    file = str(settings[0].location) if settings else "--set"
    return Document(file, value, locations, locations)
