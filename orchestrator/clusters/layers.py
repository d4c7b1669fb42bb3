"""Merge of the layers of a profile: the extended profile, the profile itself, and the private overlays.

Mappings are merged field by field; other values are replaced. A field without a value (`qos:`) is removed.
`{add: [...], remove: [...]}` changes a list. `remove` contains the full item, the option before its `=`, or the mount,
line or name in the item. The location of each value is kept. `with_examples` gives open values an example, so that
scripts can be read before a site fills them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.clusters.container import RUNTIMES
from orchestrator.config.model import placeholders
from orchestrator.config.yaml import Document, KeyPath, Location, YamlValue, children, dotted, nearest
from orchestrator.errors import Problem, ReproError

_STEPS = {"add", "remove"}
_NAMED_BY = ("mount", "run", "name")


@dataclass(frozen=True, slots=True)
class Layered:
    """The merged value of all documents, with the location of each part."""

    value: dict[str, YamlValue]
    locations: Mapping[KeyPath, Location]
    file: str

    def location(self, path: KeyPath) -> str:
        """Return the `file:line:column` of the value at `path`, or of its nearest parent."""
        return str(nearest(self.locations, path) or Location(self.file, 1, 1))

    def problem_location(self, path: KeyPath) -> str:
        """Return the location of the value at `path`, or of its nearest parent, as the first part of a message."""
        return (nearest(self.locations, path) or Location(self.file, 1, 1)).in_message

    def mapping(self, *path: str) -> dict[str, YamlValue]:
        """Return the mapping at `path`; {} if there is none."""
        value: YamlValue = self.value
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}


def lay(documents: Sequence[Document]) -> Layered:
    """Merge the documents in this order. ReproError if one is not a mapping, or removes an item that does not exist."""
    value: dict[str, YamlValue] = {}
    locations: dict[KeyPath, Location] = {}
    problems: list[Problem] = []
    for document in documents:
        if not isinstance(document.value, dict):
            problems.append(Problem("must be fields and values, `name: value`", str(document.place(()))))
            continue
        value = _Merge(document, locations, problems).mapping(value, document.value, ())
        locations.setdefault((), document.place(()))
    if problems:
        raise ReproError(*problems)
    return Layered(value, locations, documents[0].file)


@dataclass(frozen=True, slots=True)
class _Merge:
    """Merge of one document into the layers below it. It updates `locations`."""

    document: Document
    locations: dict[KeyPath, Location]
    problems: list[Problem]

    def mapping(self, below: dict[str, YamlValue], value: dict[str, YamlValue], path: KeyPath) -> dict[str, YamlValue]:
        """Return the mapping `below` with the fields of `value` merged into it."""
        result = dict(below)
        for key, item in value.items():
            here = (*path, key)
            before = below.get(key)
            if item is None and key in below:
                del result[key]
                self._forget(here)
            elif isinstance(before, dict) and isinstance(item, dict):
                result[key] = self.mapping(before, item, here)
            elif isinstance(item, dict) and item and item.keys() <= _STEPS and isinstance(before, (list, type(None))):
                result[key] = self._changed(before or [], item, here)
            elif isinstance(item, dict) and before is None:
                self._forget(here)
                self.locations[here] = self.document.key_place(here)
                result[key] = self.mapping({}, item, here)
            else:
                self._forget(here)
                self._locate(here, here)
                result[key] = deepcopy(item)
        return result

    def _changed(self, below: list[YamlValue], steps: dict[str, YamlValue], path: KeyPath) -> list[YamlValue]:
        """Return the list after `remove` and then `add`. Their order in the file does not matter."""
        kept = [(item, _below(self.locations, (*path, i))) for i, item in enumerate(below)]
        for number, unwanted in enumerate(_listed(steps.get("remove"))):
            remaining = [(item, locations) for item, locations in kept if not _matches(item, unwanted)]
            if len(remaining) == len(kept):
                location = self.document.place((*path, "remove", number)).in_message
                self.problems.append(Problem(f"{dotted(path)}: the list has no {unwanted!r} to remove", location))
            kept = remaining
        self._forget(path)
        self.locations[path] = self.document.key_place(path)
        for i, (_, locations) in enumerate(kept):
            self.locations.update({(*path, i, *rest): location for rest, location in locations.items()})
        added = _listed(steps.get("add"))
        for i, _ in enumerate(added):
            source = (*path, "add", i) if isinstance(steps["add"], list) else (*path, "add")
            self._locate((*path, len(kept) + i), source)
        return [*(item for item, _ in kept), *deepcopy(added)]

    def _locate(self, path: KeyPath, source: KeyPath) -> None:
        """Record for `path` the locations at `source` in the document. The location of a field is that of its key."""
        locations = _below(self.document.values, source) | _below(self.document.keys, source)
        self.locations.update({(*path, *rest): location for rest, location in locations.items()})

    def _forget(self, path: KeyPath) -> None:
        for rest in _below(self.locations, path):
            self.locations.pop((*path, *rest))


def _below(locations: Mapping[KeyPath, Location], start: KeyPath) -> dict[KeyPath, Location]:
    """Return the locations at and below `start`, by their path after it."""
    return {path[len(start) :]: location for path, location in locations.items() if path[: len(start)] == start}


def leaves(value: YamlValue, path: KeyPath = ()) -> Iterator[tuple[KeyPath, YamlValue]]:
    """Yield each single value with its path. An empty mapping or list is a single value."""
    if not value or not isinstance(value, (dict, list)):
        yield path, value
    for key, item in children(value):
        yield from leaves(item, (*path, key))


def _listed(value: YamlValue) -> list[YamlValue]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _matches(item: YamlValue, unwanted: YamlValue) -> bool:
    text = next((item[name] for name in _NAMED_BY if name in item), item) if isinstance(item, dict) else item
    return unwanted in (item, text) or (isinstance(text, str) and text.partition("=")[0] == unwanted)


EXAMPLE = "EXAMPLE"
"""Part of every example value."""

_PATHS = ("checkout", "python", "data_path", "vocab_file", "merge_file", "benchmark", "hostfile", "staging_folder")


def with_examples(layered: Layered) -> Layered:
    """Return the profile with a visible example in place of each open value, such as `EXAMPLE-account`."""
    value: dict[str, Any] = deepcopy(layered.value)
    for path, text in list(placeholders(value)):
        block: Any = value
        for key in path[:-1]:
            block = block[key]
        block[path[-1]] = _example(layered, path, text)
    return replace(layered, value=value)


def _example(layered: Layered, path: KeyPath, text: str) -> str:
    named = [key for key in path if isinstance(key, str)]
    name = re.sub(r"[^A-Za-z0-9]+", "-", named[-1]).strip("-")
    if path[:2] == ("container", "images"):
        runtime = RUNTIMES.find(str(layered.mapping("container").get("runtime")))
        if runtime is not None and runtime.ending is None:
            return f"{EXAMPLE.lower()}/{name.lower()}:latest"
        return f"/{EXAMPLE}/{name}.sqsh"
    if text.startswith("<") and (named[-1] in _PATHS or path[:2] == ("container", "mounts")):
        return f"/{EXAMPLE}/{name}"
    return re.sub(r"<[^<>]*>", f"{EXAMPLE}-{name}", text)
