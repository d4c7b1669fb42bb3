"""Real Slurm on a machine without network, packages and systemd, with its own GPUs.

On Debian or Ubuntu with a network, as any user:
    python -m tests.slurm.portable pack FILE                            # about 14 MB

On the machine, as root, with only Python's standard library and this folder:
    eval "$(python3 -m tests.slurm.portable up FILE DIR)"               # SLURM_CONF, and Slurm's commands in PATH
    python3 -m tests.slurm.portable down DIR

The cluster is one node, `n1`, with the machine's CPUs and GPUs. `--gpus 2` simulates two GPUs instead. All files are in
DIR, except lines of /etc/hosts that are marked with it. The C library of the machine must be as new as that of the
packing machine. Tested: packed on Debian 12 (Slurm 22.05), run on Ubuntu 24.04.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.slurm.cluster import SlurmCluster, remembered_cluster
from tests.slurm.configuration import Shape, programs_folder
from tests.slurm.host import ClusterUnavailable, gpu_devices, needs_ipv6
from tests.slurm.packing import pack, unpack

REAL = "real"


def gpu_type(name: str) -> str:
    """Return Slurm's type of a GPU with this name in nvidia-smi.

    It is h200 for `NVIDIA H200` and v100 for `Tesla V100-SXM2-32GB`. The type is the
    first word with a letter before a digit, else `gpu`.
    """
    match = re.search(r"\b[A-Za-z]+\d+[a-z]*\b", name)
    return match.group().lower() if match else "gpu"


def memory_mb(meminfo: str) -> int:
    """Return MemTotal of /proc/meminfo in MiB."""
    match = re.search(r"^MemTotal: *(\d+) kB$", meminfo, re.MULTILINE)
    return int(match.group(1)) // 1024 if match else 1


def machine_shape(gpus: str, accounting: bool) -> Shape:
    """Return this machine as one node, with its own or simulated GPUs. ClusterUnavailable if it has none."""
    names = _gpu_names()
    count = len(names) or len(gpu_devices()) if gpus == REAL else int(gpus)
    if not count:
        raise ClusterUnavailable("this machine has no GPU; --gpus 2 makes two")
    return Shape(
        nodes=1,
        # Jobs are not bound to cores, so that a machine with few cores can run a task for each GPU, more slowly.
        cpus_per_node=max(os.cpu_count() or 1, 4 * count),
        gpus_per_node=count,
        gpu_type=gpu_type(names[0]) if names else "gpu",
        memory_mb=memory_mb(Path("/proc/meminfo").read_text()),
        accounting=accounting,
        carried=True,
        real_gpus=gpus == REAL,
        ipv6=needs_ipv6(),
    )


def up(file: Path, folder: Path, gpus: str, accounting: bool) -> SlurmCluster:
    """Unpack, configure and start what does not run yet. An existing cluster in the folder is kept."""
    try:
        cluster = remembered_cluster(folder)
    except ClusterUnavailable:
        cluster = SlurmCluster(folder, machine_shape(gpus, accounting))
    folder.mkdir(parents=True, exist_ok=True)
    unpack(file, programs_folder(folder))
    cluster.up()
    return cluster


def _gpu_names() -> list[str]:
    """Return the names of the GPUs in nvidia-smi, or none if it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def _gpus(text: str) -> str:
    if text != REAL and not re.fullmatch(r"[1-9]\d?", text):
        raise argparse.ArgumentTypeError(f"{text}: {REAL}, or how many are to be made")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.slurm.portable",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack", help="fetch the packages and write them as one file")
    starting = verbs.add_parser("up", help="unpack the file and start Slurm in a folder")
    ending = verbs.add_parser("down", help="end it; the folder stays")
    for command in (packing, starting):
        command.add_argument("file", type=lambda text: Path(text).resolve(), metavar="FILE")
    for command in (starting, ending):
        command.add_argument("folder", type=lambda text: Path(text).resolve(), metavar="DIR")
    starting.add_argument(
        "--gpus", type=_gpus, default=REAL, metavar="real|N", help="the machine's own; or N made ones"
    )
    starting.add_argument("--no-accounting", action="store_true", help="no slurmdbd: sacct says it is disabled")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run `pack FILE`, `up FILE DIR` or `down DIR`."""
    asked = _parser().parse_args(argv)
    try:
        if asked.verb == "pack":
            pack(asked.file)
            print(f"{asked.file}: {asked.file.stat().st_size / 1e6:.1f} MB")
        elif asked.verb == "down":
            remembered_cluster(asked.folder).down()
        else:
            cluster = up(asked.file, asked.folder, asked.gpus, not asked.no_accounting)
            tree = programs_folder(asked.folder)
            print(f"export SLURM_CONF={cluster.conf} PATH={tree}/bin:{tree}/sbin:$PATH")
    except ClusterUnavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
