"""Lookup of cluster profiles by name or path, and of the profile of a recorded run."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from orchestrator.clusters import cluster_names, is_overlay
from orchestrator.clusters.container import read_image
from orchestrator.clusters.layers import Layered, lay, with_examples
from orchestrator.clusters.machine import Machine, this_machine
from orchestrator.clusters.profile import ClusterProfile, NetworkFields
from orchestrator.config.model import Hardware, placeholders, read_model
from orchestrator.config.yaml import (
    Document,
    KeyPath,
    Setting,
    children,
    dotted,
    read_document,
    settings_document,
    shown,
)
from orchestrator.errors import Problem, ReproError, for_each, names_hint
from orchestrator.fields import Field
from orchestrator.identity import name_of_user, why_not_own_path
from orchestrator.masking import masked
from orchestrator.paths import Folders
from orchestrator.programs.needs import directory_hint
from orchestrator.programs.registry import known_program
from orchestrator.secret_patterns import holds_secret


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
    container: str | None
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
    and settings of the experiment's cases. `with_example` are the fields with an example value. `image_files` is a
    cache of `clusters/program.py`.
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
    image_files: dict[str, tuple[str, str | None]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of all layers, in their order."""
        return tuple(layer.file for layer in self.layers)

    @property
    def container(self) -> str | None:
        """Name of the container runtime; None without one."""
        return self.profile.container.runtime if self.profile.container else None

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

    def examples_for(self, program: str, image: str | None) -> list[str]:
        """Return the fields with an example that a job needs."""
        return [dotted(path) for path in self.with_example if _matters(path, program, image)]

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

    def text(value: Any) -> str:
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
    layers = list(_layers(folders, file))
    problems = [problem for _, layer in layers if isinstance(layer, ReproError) for problem in layer.problems]
    if problems:
        raise ReproError(*problems)
    documents = [layer for _, layer in layers if isinstance(layer, Document)]
    layered = lay(documents)
    if settings:
        _require_lists(settings, layered)
        _require_slurm(name, settings, layered)
        layered = lay([*documents, settings_document(settings)])
    examples = tuple(path for path, _ in placeholders(layered.value) if example)
    layered = with_examples(layered) if example else layered
    profile = read_model(ClusterProfile, Document(documents[0].file, layered.value), layered.problem_location)
    if secrets := list(_literal_secrets(profile, layered)):
        raise ReproError(*secrets)
    machine = this_machine() if profile.scheduler == "local" else None
    hardware = profile.hardware or (machine.hardware() if machine else None)
    assert hardware is not None
    blanks = tuple(Unfilled(path, text, layered.location(path)) for path, text in placeholders(layered.value))
    overlay, files = _overlay(folders, file), [path for path, _ in layers]
    return Cluster(
        name=file.stem,
        profile=profile,
        hardware=_with_network(hardware, profile.network),
        machine=machine,
        layered=layered,
        unfilled=blanks,
        overlay=overlay,
        has_overlay=overlay in files,
        layers=tuple(
            map(Layer, files, (tuple(str(name) for name, _ in children(document.value)) for document in documents))
        ),
        settings=tuple(settings),
        with_example=examples,
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


def _layers(folders: Folders, file: Path, above: tuple[Path, ...] = ()) -> Iterator[tuple[Path, Document | ReproError]]:
    """Yield the files of a profile: the profile that it extends, the profile, its overlay.

    Each file is read once. An unreadable file has its error instead of a document.
    """
    document = _document(folders, file)
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
        yield from _layers(folders, below, (*above, file))
    yield file, document
    overlay = _overlay(folders, file)
    if os.path.isfile(overlay):  # noqa: PTH113  Path.is_file raises an error for invalid names
        document = _document(folders, overlay)
        base, location = _extended(document)
        if base is not None:
            raise ReproError(Problem("extends: not supported in an overlay", location, f"set it in {shown(file)}"))
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


def _document(folders: Folders, path: Path) -> Document | ReproError:
    """Read a layer. It is refused if another user could have written it, because its `setup` lines run as this user.

    Shipped profiles are part of this package and are trusted like its code.
    """
    is_shipped = path.parent == folders.shipped / "clusters" and not is_overlay(path)
    try:
        return read_document(path, None if is_shipped else partial(_ownership_problem, folders, path))
    except ReproError as error:
        return error


def _extended(document: Document | ReproError) -> tuple[str | None, str]:
    """Return the profile that a layer extends and the location of the field; (None, "") if it extends none."""
    if isinstance(document, ReproError) or not isinstance(document.value, dict):
        return None, ""
    base = document.value.get("extends")
    return (base, str(document.place(("extends",)))) if isinstance(base, str) else (None, "")


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
    raise ReproError(Problem(f"{name}: no such cluster", hint=names_hint(name, sorted(names))))


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
    if named is not None and (file is None or _is_same(named, Path(file))):
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


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False
