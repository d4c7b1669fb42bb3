"""Merge of the layers of a profile: the extended profile, the profile itself, and the private overlays.

Mappings are merged field by field; other values are replaced. A field without a value (`qos:`) is removed.
`{add: [...], remove: [...]}` changes a list. `remove` contains the full item, the option before its `=`, or the mount,
line or name in the item. The location of each value is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from orchestrator.config.yaml import Document, KeyPath, Location
from orchestrator.errors import Problem, ReproError

_STEPS = {"add", "remove"}
_NAMED_BY = ("mount", "run", "name")


@dataclass(frozen=True, slots=True)
class Layered:
    """The merged value of all documents, with the location of each part."""

    value: dict[str, Any]
    places: Mapping[KeyPath, Location]
    file: str

    def where(self, path: KeyPath) -> str:
        """Return the `file:line:column` of the value at `path`, or of its nearest parent."""
        for end in range(len(path), 0, -1):
            found = self.places.get(path[:end])
            if found is not None:
                return str(found)
        return str(self.places.get((), Location(self.file, 1, 1)))


def lay(documents: Sequence[Document]) -> Layered:
    """Merge the documents in this order. ReproError if one is not a mapping, or removes an item that does not exist."""
    value: Any = {}
    places: dict[KeyPath, Location] = {}
    problems: list[Problem] = []
    for document in documents:
        if not isinstance(document.value, dict):
            problems.append(Problem("must be fields and values, `name: value`", str(document.place(()))))
            continue
        over = _Over(document, places, problems)
        value = over.mapping(value, document.value, ())
        places.setdefault((), document.place(()))
    if problems:
        raise ReproError(*problems)
    return Layered(value, places, documents[0].file)


@dataclass(frozen=True, slots=True)
class _Over:
    """Merge of one document into the layers below it. It updates `places`."""

    document: Document
    places: dict[KeyPath, Location]
    problems: list[Problem]

    def mapping(self, below: dict[str, Any], value: dict[str, Any], path: KeyPath) -> dict[str, Any]:
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
                self.places[here] = self.document.key_place(here)
                result[key] = self.mapping({}, item, here)
            else:
                result[key] = self._replaced(item, here)
        return result

    def _replaced(self, value: Any, path: KeyPath) -> Any:
        self._forget(path)
        self._place(path, path)
        return deepcopy(value)

    def _changed(self, below: list[Any], steps: dict[str, Any], path: KeyPath) -> list[Any]:
        """Return the list after `remove` and then `add`. Their order in the file does not matter."""
        kept = [(item, self._item_places(path, i)) for i, item in enumerate(below)]
        for number, unwanted in enumerate(_listed(steps.get("remove"))):
            remaining = [(item, places) for item, places in kept if not _is_meant(item, unwanted)]
            if len(remaining) == len(kept):
                location = str(self.document.place((*path, "remove", number)))
                self.problems.append(Problem(f"{dotted(path)}: the list has no {unwanted!r} to remove", location))
            kept = remaining
        self._forget(path)
        self.places[path] = self.document.key_place(path)
        for i, (_, places) in enumerate(kept):
            self.places.update({(*path, i, *rest): place for rest, place in places.items()})
        added = _listed(steps.get("add"))
        for i, _ in enumerate(added, start=len(kept)):
            source = (*path, "add", i - len(kept)) if isinstance(steps["add"], list) else (*path, "add")
            self._place((*path, i), source)
        return [*(item for item, _ in kept), *deepcopy(added)]

    def _item_places(self, path: KeyPath, index: int) -> dict[KeyPath, Location]:
        """Return the locations of the parts of a list item, by their path inside the item."""
        start = (*path, index)
        return {at[len(start) :]: place for at, place in self.places.items() if at[: len(start)] == start}

    def _place(self, path: KeyPath, source: KeyPath) -> None:
        """Record for `path` the locations at `source` in the document. The location of a field is that of its key."""
        found = {at: place for at, place in self.document.values.items() if at[: len(source)] == source}
        found |= {at: place for at, place in self.document.keys.items() if at[: len(source)] == source}
        self.places.update({(*path, *at[len(source) :]): place for at, place in found.items()})

    def _forget(self, path: KeyPath) -> None:
        for at in [at for at in self.places if at[: len(path)] == path]:
            del self.places[at]


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each single value with its path. An empty mapping or list is a single value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path, value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_meant(item: Any, unwanted: Any) -> bool:
    text = next((item[name] for name in _NAMED_BY if name in item), item) if isinstance(item, dict) else item
    return bool(unwanted in (item, text) or (isinstance(text, str) and text.partition("=")[0] == unwanted))


def dotted(path: KeyPath) -> str:
    """Return a path for a message: `slurm.qos.0.name`."""
    return ".".join(str(part) for part in path)
