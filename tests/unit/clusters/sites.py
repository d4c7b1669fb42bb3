"""Cluster profiles for tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from orchestrator.catalog.experiment import Paper
from orchestrator.clusters.container import read_image
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.config.model import read_model
from orchestrator.config.yaml import KeyPath, read_document
from orchestrator.megatron.programs import find_megatron
from orchestrator.paths import Folders
from orchestrator.programs.record import programs

CHECKOUT = Path(__file__).resolve().parents[3]

SELENE_FILLED = """\
slurm:
  account: proj
  partition: luna
container:
  images:
    nvidia/pytorch:20.12-py3: /images/pytorch-20.12.sqsh
  mounts: [/data]
programs:
  megatron-2021:
    checkout: /code/Megatron-LM
    data_path: /data/gpt2_text_document
    vocab_file: /data/gpt2-vocab.json
    merge_file: /data/gpt2-merges.txt
"""

PLAIN = """\
about: a Slurm cluster without containers
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 8, gpu: A100, gpu_memory_gb: 80, peak_tflops: {bf16: 312}}
slurm: {time_limit: 1:00:00}
"""


def short(problem: object) -> str:
    """Return the text of a problem, with file names without their folder."""
    return re.sub(r"\S*clusters/", "", str(problem))


def write_profile(folder: Path, text: str = PLAIN, overlay: str | None = None, name: str = "site") -> Folders:
    """Write `folder/clusters/NAME.yaml` and its overlay. Return the folders of the project."""
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "clusters" / f"{name}.yaml").write_text(text)
    if overlay is not None:
        (folder / "clusters" / f"{name}.local.yaml").write_text(overlay)
    return Folders(shipped=folder, home=folder)


def cluster_of(folder: Path, text: str = PLAIN, overlay: str | None = None, name: str = "site") -> Cluster:
    """Write and read a profile. It is read by path, independent of the user's folders."""
    write_profile(folder, text, overlay, name)
    return find_cluster(Folders(shipped=folder, home=folder), str(folder / "clusters" / f"{name}.yaml"))


def selene(folder: Path, overlay: str | None = SELENE_FILLED) -> Cluster:
    """Return the shipped profile with this overlay, and without an overlay in the checkout."""
    return cluster_of(folder, (CHECKOUT / "clusters" / "selene.yaml").read_text(), overlay, "selene")


def shipped_names() -> list[str]:
    return sorted(path.stem for path in (CHECKOUT / "clusters").glob("*.yaml") if not path.stem.endswith(".local"))


def copy_shipped(folder: Path) -> Folders:
    """Copy the shipped profiles to `folder/clusters`, without the user's overlays.

    A profile extends the copy in this folder. By name it would extend the profile in the working folder.
    """
    (folder / "clusters").mkdir(exist_ok=True)
    for name in shipped_names():
        text = (CHECKOUT / "clusters" / f"{name}.yaml").read_text()
        beside = re.sub(r"^extends: (\S+)$", r"extends: ./\1.yaml", text, flags=re.MULTILINE)
        (folder / "clusters" / f"{name}.yaml").write_text(beside)
    return Folders(shipped=folder, home=folder)


def shipped_cluster(folder: Path, name: str) -> Cluster:
    """Return a shipped profile with its open values."""
    return find_cluster(copy_shipped(folder), str(folder / "clusters" / f"{name}.yaml"))


def filled(folder: Path, name: str) -> Cluster:
    """Return a shipped profile as a site uses it.

    Its overlay sets every open value, the paths of every program, and every image if there are containers.
    """
    cluster = shipped_cluster(folder, name)
    overlay = _without_blanks(cluster.layered.value, ()) or {}
    container = cluster.profile.container
    if container is not None:
        images = {image: _image(image, container.runtime) for image in image_names()}
        overlay["container"] = overlay.get("container", {}) | {"images": images}
    overlay["programs"] = {program: _site(program) for program in program_names()}
    overlay["programs"]["pretrain"] = {} if container is not None else {"python": "/code/venv/bin/python"}
    (folder / "clusters" / f"{name}.local.yaml").write_text(yaml.safe_dump(overlay, sort_keys=False))
    return find_cluster(Folders(shipped=folder, home=folder), str(folder / "clusters" / f"{name}.yaml"))


def program_names() -> list[str]:
    return list(programs())


def image_names() -> list[str]:
    """Return the images of the papers, and the names of programs, which are the default image names."""
    files = sorted((CHECKOUT / "experiments").glob("*/paper.yaml"))
    papers = [read_model(Paper, read_document(path)) for path in files]
    return sorted({image for paper in papers for image in paper.images.values()} | {*program_names()})


_BLANK = re.compile(r"<[^<>]*>")

_FIELDS = {
    "account": "proj",
    "project": "abc",
    "partition": "gpus",
    "mounts": "/data",
    "mount": "/data",
    "hostfile": "/etc/mpi/hostfile",
    "staging_folder": "/scratch/images",
    "python": "/code/venv/bin/python",
    "data_path": "/data/text_document",
    "vocab_file": "/data/gpt2-vocab.json",
    "merge_file": "/data/gpt2-merges.txt",
    "benchmark": "/code/alpa/osdi22_artifact/megatron",
    "com.hooks.aws_ofi_nccl.variant": "cuda12",
}
"""Values of a site, by the name of the field. An open value of another field becomes a word."""


def _without_blanks(value: Any, path: KeyPath) -> Any:
    """Return the parts of `value` with open values, filled; whole lists; None if there is no open value."""
    if isinstance(value, dict):
        parts = {key: _without_blanks(item, (*path, key)) for key, item in value.items()}
        return {key: part for key, part in parts.items() if part is not None} or None
    if isinstance(value, list):
        parts_ = [_without_blanks(item, path) for item in value]
        return [part or item for part, item in zip(parts_, value, strict=True)] if any(parts_) else None
    if isinstance(value, str) and _BLANK.search(value):
        return _BLANK.sub(_FIELDS.get(str(path[-1]), "word"), value)
    return None


def _image(name: str, runtime: str) -> str:
    """Return a file, or a name in a registry if the runtime uses no files."""
    if runtime in ("shifter", "podman-hpc", "docker"):
        return name if ":" in name else f"team/{name}:1"
    return f"/images/{read_image(name).file_stem}.{'sif' if runtime == 'apptainer' else 'sqsh'}"


def _site(program: str) -> dict[str, str]:
    fields = find_megatron(program).site.model_fields
    texts = [name for name, field in fields.items() if field.annotation is not bool]
    return {name: _FIELDS.get(name, f"/code/{program}") for name in texts}
