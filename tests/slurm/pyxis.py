"""The stand-in for pyxis: built into a test cluster's folder, told by plugstack.conf which pyxis it is to be.

tests/slurm/spank/pyxis_stand_in.c says what it does and what it does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.slurm.host import install_packages, run

_SOURCE = Path(__file__).with_name("spank") / "pyxis_stand_in.c"
# gcc without recommended packages comes without the C library's headers.
_PACKAGES = ("gcc", "libc6-dev", "libslurm-dev")
# Where Slurm's messages name it, they name pyxis' own file.
_LIBRARY = "pyxis/spank_pyxis.so"
_RECORDS = "pyxis/records"
_ROOT = "pyxis/root"


def build_pyxis(folder: Path) -> None:
    """Build the plug-in into the cluster's folder; ClusterUnavailable where there is no compiler or no spank.h."""
    install_packages(_PACKAGES)
    for name in (_RECORDS, _ROOT):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / _RECORDS).chmod(0o777)  # the tasks write it, as whoever they are
    library = folder / _LIBRARY
    made = library.with_suffix(".new")
    run(["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", made, _SOURCE])
    # Never written in place: a running slurmd has it mapped.
    made.replace(library)


def plugstack_conf(folder: Path, *, version: str = "0.24", sbatch_support: bool = False, broken_node: str = "") -> str:
    """plugstack.conf for the plug-in as built: which pyxis it is to be, whether sbatch and salloc know it too, and on
    which node no image can be read.
    """
    arguments = {
        "record": folder / _RECORDS,
        "runtime_path": folder / _ROOT,
        "version": version,
        "sbatch_support": int(sbatch_support),
        "broken_node": broken_node,
    }
    return f"required {folder / _LIBRARY} " + " ".join(f"{name}={value}" for name, value in arguments.items()) + "\n"


def write_image(path: Path, variables: Mapping[str, str] | None = None) -> Path:
    """Write an image file with these variables; it contains the files of the host, except /tmp."""
    path.write_text("".join(f"{name}={value}\n" for name, value in (variables or {}).items()))
    return path


def pyxis_records(folder: Path) -> list[dict[str, Any]]:
    """What the plug-in recorded, ordered by node and time: for each step and node one line.

    Keys: job, step, batch, node, and each option's name without the dashes; None or, of a switch, true.
    """
    files = sorted((folder / _RECORDS).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
