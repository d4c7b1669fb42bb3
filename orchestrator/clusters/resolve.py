"""Lookup of cluster profiles by name or path, and merge of their layers.

The layers are the extended profile, the profile itself, the private overlay, and settings of the command line.
Mappings are merged field by field; other values are replaced. A field without a value (`qos:`) is removed.
`{add: [...], remove: [...]}` changes a list. `remove` contains the full item, the option before its `=`, or the mount,
line or name in the item. The location of each value is kept. `with_examples` gives open values an example, so that
scripts can be read before a site fills them in.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from orchestrator.clusters import cluster_names, is_overlay
from orchestrator.clusters.container import RUNTIMES, read_image
from orchestrator.clusters.machine import Machine, this_machine
from orchestrator.clusters.profile import ClusterProfile, NetworkFields, profile_model
from orchestrator.config.model import Hardware, placeholders, read_model
from orchestrator.config.yaml import (
    Document,
    KeyPath,
    Location,
    Setting,
    YamlValue,
    children,
    dotted,
    nearest,
    read_document,
    settings_document,
    shown,
)
from orchestrator.errors import Problem, ReproError, added_to, did_you_mean, for_each, require_none, there_are
from orchestrator.fields import Field
from orchestrator.identity import name_of_user, why_not_own_path
from orchestrator.masking import holds_secret, masked
from orchestrator.paths import Folders
from orchestrator.programs.record import directory_hint, known_program

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
    require_none(problems)
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
        return _example_image(str(layered.mapping("container").get("runtime")), name)
    if text.startswith("<") and (named[-1] in _PATHS or path[:2] == ("container", "mounts")):
        return f"/{EXAMPLE}/{name}"
    return re.sub(r"<[^<>]*>", f"{EXAMPLE}-{name}", text)


def _example_image(runtime_name: str, name: str) -> str:
    runtime = RUNTIMES.find(runtime_name)
    if runtime is not None and runtime.ending is None:
        return f"{EXAMPLE.lower()}/{name.lower()}:latest"
    return f"/{EXAMPLE}/{name}.sqsh"


@dataclass(frozen=True, slots=True)
class Unfilled:
    """An open value, `<what to write here>`."""

    path: KeyPath
    text: str
    location: str


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of a profile, and the fields that it sets at the top level."""

    file: Path
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster profile as a row. `open` are the fields without a value."""

    cluster: Annotated[str, Field(of="name")]
    about: Annotated[str, Field(of="profile.about")]
    scheduler: Annotated[str, Field(of="profile.scheduler")]
    nodes: Annotated[int | None, Field(of="hardware.nodes")]
    gpus_per_node: Annotated[int | None, Field(of="hardware.gpus_per_node")]
    gpu: Annotated[str | None, Field(of="hardware.gpu")]
    container: Annotated[str | None, Field(of="profile.container.runtime")]
    open: Annotated[Sequence[str], Field(of="open_fields")]


@dataclass(frozen=True, slots=True)
class ProfileField:
    """A field of a profile, its value, and its place."""

    field: str
    value: object
    location: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A validated profile with its sources.

    `layered` is the merged YAML; its value is recorded with each run. `layers` are the merged files. The last one is
    the overlay of this cluster if it `has_overlay`. `settings` are those of the command line: the last layer,
    and settings of the experiment's cases. `with_example` are the fields with an example value; if `has_examples`,
    images that the profile lacks have one, too. `image_files` is a cache of `clusters/program.py`.
    """

    name: str
    profile: ClusterProfile
    hardware: Hardware
    machine: Machine | None
    layered: Layered
    unfilled: tuple[Unfilled, ...]
    overlay: Path
    has_overlay: bool
    layers: tuple[Layer, ...]
    settings: tuple[Setting, ...] = ()
    with_example: tuple[KeyPath, ...] = ()
    has_examples: bool = False
    image_files: dict[str, tuple[str, str | None]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of all layers, in their order."""
        return tuple(layer.file for layer in self.layers)

    @property
    def open_fields(self) -> list[str]:
        """Names of the fields without a value."""
        return [dotted(blank.path) for blank in self.unfilled]

    @property
    def is_slurm(self) -> bool:
        """True if Slurm runs the jobs; otherwise they wait in a queue on this machine."""
        return self.profile.scheduler == "slurm"

    @property
    def file(self) -> Path:
        """File of the profile itself, without its base profiles and overlay."""
        return self.files[-2] if self.has_overlay else self.files[-1]

    def location(self, path: KeyPath) -> str:
        """Return the `file:line:column` of the value at `path`, or of its nearest parent."""
        return self.layered.location(path)

    def image_location(self, name: str) -> str | None:
        """Return the file or the registry name of an image; None if the site does not have it.

        An image of a registry is a file in the staging folder, if the profile has one and the runtime reads files.
        """
        container = self.profile.container
        given = container.images.get(name) if container else None
        if container is None or given is None or given.startswith("<"):
            return given
        image, folder = read_image(given), self.profile.site.staging_folder
        if image.path is None and folder is not None and container.record.ending is not None:
            return f"{folder}/{image.file_stem}{container.record.ending}"
        return given

    def examples_for(self, program: str, image: str | None, image_path: str | None) -> list[str]:
        """Return the fields with an example that a job needs."""
        paths = [path for path in self.with_example if _matters(path, program, image)]
        if image is not None and image_path is not None and image_path == self.example_image(image):
            paths.append(("container", "images", image))
        return list(dict.fromkeys(map(dotted, paths)))

    def example_image(self, name: str) -> str | None:
        """Return an example of an image that the profile lacks; None if open values have no examples."""
        container = self.profile.container
        stem = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
        return _example_image(container.runtime, stem) if self.has_examples and container is not None else None

    def require_filled(self, program: str, image: str | None) -> list[Problem]:
        """Return the open values that prevent a job. Open values of other programs do not matter."""
        blanks = [blank for blank in self.unfilled if _matters(blank.path, program, image)]
        hint = self.fill_hint if self.has_overlay else lambda _: None
        problems = [Problem(f"{dotted(b.path)}: not filled in, {b.text}", b.location, hint(b)) for b in blanks]
        if blanks and not self.has_overlay:
            problems.append(Problem("no such file", f"{shown(self.overlay)}:", f"create it: {_as_overlay(blanks)}"))
        return problems

    def fill_hint(self, blank: Unfilled) -> str:
        """Return how to fill in an open value."""
        hint = f"set it in {shown(self.overlay)}"
        name = str(blank.path[1]) if blank.path[0] == "programs" else ""
        program = known_program(name)
        can_be_fetched = program is not None and blank.path[-1] in [need.field for need in program.needs]
        return f"{hint}; {directory_hint(name, self.name)}" if can_be_fetched else hint


def _as_overlay(blanks: Sequence[Unfilled]) -> str:
    """Return the open values as the content of an overlay: `{slurm: {account: ...}, container: {mounts: [...]}}`."""
    tree: dict[str, Any] = {}
    for blank in blanks:
        block = tree
        for key in blank.path[:-1]:
            block = block.setdefault(str(key), {})
        block[str(blank.path[-1])] = "..."

    def text(value: object) -> str:
        if not isinstance(value, dict):
            return str(value)
        if all(key.isdecimal() for key in value):
            return f"[{', '.join(map(text, value.values()))}]"
        return "{" + ", ".join(f"{key}: {text(part)}" for key, part in value.items()) + "}"

    return text(tree)


def find_cluster(folders: Folders, name: str, settings: Sequence[Setting] = (), *, example: bool = False) -> Cluster:
    """Read the profile with this name or path, with settings of the command line over it.

    With `example`, each open value has an example. ReproError has all problems of its files, or of the settings.
    """
    file = profile_file(folders, name)
    problems: list[Problem] = []
    layers = dict(_layers(folders, file, problems))
    require_none(problems)
    documents = list(layers.values())
    layered = lay(documents)
    if settings:
        _require_lists(settings, layered)
        _require_slurm(name, settings, layered)
        layered = lay([*documents, settings_document(settings)])
    examples = tuple(path for path, _ in placeholders(layered.value) if example)
    layered = with_examples(layered) if example else layered
    model = profile_model(frozenset(layered.mapping("programs")))
    profile = read_model(model, Document(documents[0].file, layered.value), layered.problem_location)
    require_none([*_literal_secrets(profile, layered), *_refused_paths(profile, layered)])
    machine = this_machine() if profile.scheduler == "local" else None
    hardware = profile.hardware or (machine.hardware() if machine else None)
    assert hardware is not None
    blanks = tuple(Unfilled(path, text, layered.location(path)) for path, text in placeholders(layered.value))
    overlay = _overlay(folders, file)
    return Cluster(
        name=file.stem,
        profile=profile,
        hardware=_with_network(hardware, profile.network),
        machine=machine,
        layered=layered,
        unfilled=blanks,
        overlay=overlay,
        has_overlay=overlay in layers,
        layers=tuple(
            Layer(path, tuple(str(name) for name, _ in children(layer.value))) for path, layer in layers.items()
        ),
        settings=tuple(settings),
        with_example=examples,
        has_examples=example,
    )


def _literal_secrets(profile: ClusterProfile, layered: Layered) -> Iterator[Problem]:
    """Yield the variables whose value looks like a secret: the profile and every job script would contain it."""
    for name, given in profile.environment.items():
        value = given if isinstance(given, str) else given.value
        if not value.startswith("<") and (holds_secret(name, value) or masked(value) != value):
            location = masked(layered.problem_location(("environment", name)))
            hint = f"remove it, export {name} in your shell, and add it to env_from: [{name}]"
            yield Problem(
                f"environment.{name}: the value looks like a secret, and job scripts would contain it", location, hint
            )


def _refused_paths(profile: ClusterProfile, layered: Layered) -> Iterator[Problem]:
    """Yield the images and mounts with a character that the container runtime misreads."""
    container = profile.container
    if container is None or not container.record.refused:
        return
    mounts = (item if isinstance(item, str) else item.mount for item in container.mounts)
    paths: dict[KeyPath, str] = {("images", name): path for name, path in container.images.items()}
    paths |= {("mounts", i): path for i, path in enumerate(mounts)}
    for key, path in paths.items():
        if not path.startswith("<") and set(path) & set(container.record.refused):
            location = layered.problem_location(("container", *key))
            what = f"container.{dotted(key)}: {path!r} has a blank; {container.record.why}"
            yield Problem(what, location, "use a path without blanks, such as a link to the file or folder")


def _require_lists(settings: Sequence[Setting], layered: Layered) -> None:
    """Raise ReproError for `+=` and `-=` with a field of the profile that is not a list."""

    def check(setting: Setting) -> None:
        before = layered.mapping(*map(str, setting.path[:-1])).get(str(setting.path[-1]))
        if setting.operator != "=" and not isinstance(before, (list, type(None))):
            what = f"{dotted(setting.path)} is not a list"
            raise ReproError(Problem(what, setting.location.in_message, f"set it: {dotted(setting.path)}=VALUE"))

    for_each(settings, check)


def _require_slurm(name: str, settings: Sequence[Setting], layered: Layered) -> None:
    """Raise ReproError for options of Slurm with a profile that has no Slurm."""
    of_slurm = [setting for setting in settings if setting.path[0] == "slurm"]
    if of_slurm and "slurm" not in layered.mapping():
        hint = "leave them out, or name a cluster with Slurm"
        texts = " ".join(f"--set {setting.text}" for setting in of_slurm)
        raise ReproError(Problem(f"{name} has no Slurm", f"{texts}:", hint))


def layer_notes(folders: Folders, cluster: Cluster) -> Iterator[str]:
    """Yield a line for each further layer of the profile, and for each file that replaces a shipped profile."""
    for layer in cluster.layers:
        shipped = folders.shipped / "clusters" / layer.file.name
        if not is_overlay(layer.file) and shipped.is_file() and shipped.read_bytes() != layer.file.read_bytes():
            yield f"profile {cluster.name}: {shown(layer.file)} replaces the shipped profile of this name"
        elif layer.file != cluster.file:
            fields = ", ".join(layer.fields) or "nothing"
            yield f"profile {cluster.name}: the layer {shown(layer.file)} sets {fields}"
    if cluster.settings:
        yield f"profile {cluster.name}: the command line sets {', '.join(s.text for s in cluster.settings)}"


def _ownership_problem(folders: Folders, path: Path, status: os.stat_result) -> Problem | None:
    name = shown(path)
    trusted = (os.geteuid(), 0, folders.shipped.stat().st_uid)
    if status.st_uid not in trusted:
        hint = f"check its content, then copy it: cp {shlex.quote(name)} COPY"
        return Problem(
            f"belongs to user {name_of_user(status.st_uid)}, whose commands would run as you", f"{name}:", hint
        )
    if status.st_mode & stat.S_IWOTH:
        hint = f"check its content, then: chmod o-w {shlex.quote(name)}"
        return Problem("every user can write to it, and its commands would run as you", f"{name}:", hint)
    return None


def _layers(
    folders: Folders, file: Path, problems: list[Problem], above: tuple[Path, ...] = ()
) -> Iterator[tuple[Path, Document]]:
    """Yield the files of a profile: the profile that it extends, the profile, its overlay.

    Each file is read once. The problems of files that cannot be read are added to `problems`.
    """
    document = _document(folders, file, problems)
    base, location = _extended(document)
    if base is not None:
        try:
            below = _base_file(folders, file, base)
        except ReproError as error:
            raise ReproError(*(Problem(f"extends: {p.what}", location, p.hint) for p in error.problems)) from None
        if os.path.realpath(below) in (os.path.realpath(path) for path in (file, *above)):
            way = " -> ".join(path.stem for path in (*above, file, below))
            what = f"extends: profiles extend each other in a circle, {way}"
            raise ReproError(Problem(what, location, "remove one extends:"))
        yield from _layers(folders, below, problems, (*above, file))
    if document is not None:
        yield file, document
    overlay = _overlay(folders, file)
    if os.path.isfile(overlay):  # noqa: PTH113  Path.is_file raises an error for invalid names
        document = _document(folders, overlay, problems)
        base, location = _extended(document)
        if base is not None:
            raise ReproError(Problem("extends: not supported in an overlay", location, f"set it in {shown(file)}"))
        if document is not None:
            yield overlay, document


def _base_file(folders: Folders, file: Path, base: str) -> Path:
    """Return the file of the extended profile. Paths, and names of files in the same folder, are relative to `file`."""
    if "/" in base or base.endswith(".yaml"):
        return _with_name(file.parent / base)
    sibling = _with_name(file.parent / f"{base}.yaml")
    return sibling if sibling.is_file() and sibling != file else profile_file(folders, base)


def _with_name(path: Path) -> Path:
    """Return the path. ReproError for `/`, `..` and other paths without a file name."""
    if path.name in ("", "..") or "\0" in str(path):
        hint = "give a profile's name or its YAML file"
        raise ReproError(Problem("not a path of a profile", f"{str(path)!r}:", hint))
    return path


def _document(folders: Folders, path: Path, problems: list[Problem]) -> Document | None:
    """Read a layer. It is refused if another user could have written it, because its `setup` lines run as this user.

    Shipped profiles are part of this package and are trusted like its code.
    """
    is_shipped = path.parent == folders.shipped / "clusters" and not is_overlay(path)
    with added_to(problems):
        return read_document(path, None if is_shipped else partial(_ownership_problem, folders, path))
    return None


def _extended(document: Document | None) -> tuple[str | None, str]:
    """Return the profile that a layer extends and the location of the field; (None, "") if it extends none."""
    base = document.value.get("extends") if document and isinstance(document.value, dict) else None
    return (base, str(document.place(("extends",)))) if document and isinstance(base, str) else (None, "")


def _with_network(hardware: Hardware, network: NetworkFields | None) -> Hardware:
    """Return the hardware with `network_gb_s` calculated from the adapters, if the profile does not contain it."""
    if hardware.network_gb_s or network is None or not (network.adapters_per_node and network.adapter_gbit_s):
        return hardware
    per_gpu = network.adapters_per_node * network.adapter_gbit_s / 8 / hardware.gpus_per_node
    return hardware.model_copy(update={"network_gb_s": per_gpu})


def profile_file(folders: Folders, name: str) -> Path:
    """Return the file of the profile with this name or path. ReproError if no profile has the name."""
    if "/" in name or name.endswith(".yaml"):
        return _with_name(Path(name))
    names = cluster_names(folders)
    if name in names:
        return names[name]
    hint = did_you_mean(name, names) or f"{there_are(sorted(names))}; yours are in {folders.home / 'clusters'}"
    raise ReproError(Problem(f"{name}: no such cluster", hint=hint))


def _overlay(folders: Folders, file: Path) -> Path:
    """Return the path of the overlay of a profile. It is never inside the installed package, unless it exists there."""
    name = f"{file.stem}.local.yaml"
    if file.parent != folders.shipped / "clusters":
        return file.with_name(name)
    files = [base / "clusters" / name for base in (Path.cwd(), folders.home, folders.shipped)]
    return next((path for path in files if path.is_file()), folders.home / "clusters" / name)


def _matters(path: KeyPath, program: str, image: str | None) -> bool:
    if path[:1] == ("programs",):
        return path[1] == program
    if path[:2] == ("container", "images"):
        return path[2] == image
    return True


def recorded_cluster(folders: Folders, name: str, file: str | None, settings: Sequence[Setting] = ()) -> Cluster:
    """Return the profile of a recorded run: by its name if its file is still the recorded one, otherwise by file.

    ReproError if another user can change a file of the profile.
    """
    named = cluster_names(folders).get(name)
    if named is not None and (file is None or os.path.realpath(named) == os.path.realpath(file)):
        return find_cluster(folders, name, settings)
    if file is None:
        raise ReproError(Problem(f"{name}: no such cluster", hint=_cluster_hint(name)))
    _require_own(Path(file), name)
    cluster = find_cluster(folders, file, settings)
    for path in cluster.files:
        if not path.is_relative_to(folders.shipped):
            _require_own(path, name)
    return cluster


def _require_own(file: Path, name: str) -> None:
    for path in (file, file.parent):
        why = why_not_own_path(path)
        if why is not None:
            what = f"{why}, so the profile recorded in the ledger is not used"
            raise ReproError(Problem(what, f"{path}:", _cluster_hint(name)))


def _cluster_hint(name: str) -> str:
    return f"give the profile: --cluster {name}, or --cluster FILE"
