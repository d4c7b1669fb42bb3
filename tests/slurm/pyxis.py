"""Stand-in for pyxis: a plug-in in the test cluster's folder. plugstack.conf sets the version that it simulates.

tests/slurm/spank/pyxis_stand_in.c documents its behaviour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.slurm.host import install_packages, run

_SOURCE = Path(__file__).with_name("spank") / "pyxis_stand_in.c"
# gcc without recommended packages has no headers of the C library.
_PACKAGES = ("gcc", "libc6-dev", "libslurm-dev")
# The file name of pyxis, which appears in Slurm's messages.
_LIBRARY = "pyxis/spank_pyxis.so"
_RECORDS = "pyxis/records"
_ROOT = "pyxis/root"


def build_pyxis(folder: Path) -> None:
    """Build the plug-in in the cluster's folder. ClusterUnavailable without a compiler or spank.h."""
    install_packages(_PACKAGES)
    for name in (_RECORDS, _ROOT):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / _RECORDS).chmod(0o777)  # writable for the users of all tasks
    library = folder / _LIBRARY
    made = library.with_suffix(".new")
    run(["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", made, _SOURCE])
    # Never written in place: a running slurmd has mapped it.
    made.replace(library)


@dataclass(frozen=True, slots=True)
class Pyxis:
    """A pyxis that is simulated: its version, whether sbatch and salloc have its options, and its faults."""

    version: str = "0.24"
    sbatch_support: bool = False
    broken_node: str = ""
    """On this node no image can be read."""
    shown_in: Path | str = ""
    """A task without a container ends only after its message is in a file of this folder."""


def plugstack_conf(folder: Path, pyxis: Pyxis = Pyxis()) -> str:
    """Return plugstack.conf for the plug-in in the cluster's folder."""
    arguments = {
        "record": folder / _RECORDS,
        "runtime_path": folder / _ROOT,
        "version": pyxis.version,
        "sbatch_support": int(pyxis.sbatch_support),
        "broken_node": pyxis.broken_node,
        "shown_in": pyxis.shown_in,
    }
    return f"required {folder / _LIBRARY} " + " ".join(f"{name}={value}" for name, value in arguments.items()) + "\n"


def write_image(path: Path, variables: Mapping[str, str] | None = None) -> Path:
    """Write an image file with these variables. The image contains the files of the host, except /tmp."""
    path.write_text("".join(f"{name}={value}\n" for name, value in (variables or {}).items()))
    return path


def pyxis_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the plug-in, by node and time: one per step and node.

    Keys: job, step, batch, node, and the name of each option without dashes; the value is None, or true for a switch.
    """
    files = sorted((folder / _RECORDS).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
