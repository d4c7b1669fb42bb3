"""Starts of the training program as launchers do it, and readers of its output."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 300  # A limit for hangs only: the longest run takes 30 s on two idle cores.

# Small enough for milliseconds per iteration, and divisible by every layout of four processes.
_SMALL = {
    "num-layers": 4,
    "hidden-size": 32,
    "num-attention-heads": 4,
    "seq-length": 16,
    "vocab-size": 64,
    "micro-batch-size": 1,
    "global-batch-size": 8,
    "train-iters": 3,
    "lr": 1e-3,
    "hidden-dropout": 0,
    "attention-dropout": 0,
}
SMALL_MODEL = [word for name, value in _SMALL.items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True)
class Finished:
    """Output and exit code of a process."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Step:
    """One line of --record."""

    iteration: int
    loss: float
    grad_norm: float
    elapsed_ms: float
    skipped: int
    nan: int


def run_alone(*arguments: str) -> Finished:
    """Run one process of `python -m orchestrator.pretrain`."""
    return run_together([["-m", "orchestrator.pretrain", *arguments]], [{}])[0]


def run_together(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> list[Finished]:
    """Run `python COMMAND` once per command, all at the same time, each with its environment added."""
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=REPOSITORY,
            env=clean_environment() | dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Finished(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def plain_environments(world_size: int) -> list[dict[str, str]]:
    """Return the variables of each rank as a launcher other than torchrun and srun sets them."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    return [meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def clean_environment() -> dict[str, str]:
    """Return the environment without variables of a surrounding job."""
    of_launchers = ("SLURM_", "MASTER_", "TORCHELASTIC_")
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(of_launchers) and name not in ranks
    }
    python_path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def read_record(path: Path) -> list[Step]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Step(**{name: line[name] for name in Step.__dataclass_fields__}) for line in lines]
