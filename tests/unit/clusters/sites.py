"""Cluster profiles for tests."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.folders import Folders

CHECKOUT = Path(__file__).resolve().parents[3]

SELENE_FILLED = """\
slurm:
  account: proj
  partition: luna
container:
  images:
    nvidia/pytorch:20.12-py3: /images/pytorch-20.12.sqsh
  mounts: [/data]
workloads:
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
    """What a problem says, its files named without their folder."""
    return re.sub(r"\S*clusters/", "", str(problem))


def write_profile(folder: Path, text: str = PLAIN, overlay: str | None = None, name: str = "site") -> Folders:
    """`folder/clusters/NAME.yaml` and its overlay; the folders to find them in."""
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "clusters" / f"{name}.yaml").write_text(text)
    if overlay is not None:
        (folder / "clusters" / f"{name}.local.yaml").write_text(overlay)
    return Folders(shipped=folder, home=folder)


def cluster_of(folder: Path, text: str = PLAIN, overlay: str | None = None, name: str = "site") -> Cluster:
    """Read by path, so that no folder of the person running the tests comes into it."""
    write_profile(folder, text, overlay, name)
    return find_cluster(Folders(shipped=folder, home=folder), str(folder / "clusters" / f"{name}.yaml"))


def selene(folder: Path, overlay: str | None = SELENE_FILLED) -> Cluster:
    """The shipped profile with this overlay and not with one that lies in the checkout."""
    return cluster_of(folder, (CHECKOUT / "clusters" / "selene.yaml").read_text(), overlay, "selene")
