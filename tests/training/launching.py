"""Runs of the training program and of test programs, and readers of their output.

`run_started` starts a Python process for each command, as a launcher does. `run_forked` forks the processes from one
that has imported torch and Megatron-Core, which saves seconds per process. Tests of the start itself use `run_started`.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path

from tests.training.fork_server import Program

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 600  # Ends a run that hangs. The longest run takes less than a minute on two idle cores.

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
    """Fork one process that runs `python -m orchestrator.pretrain`."""
    return run_forked([["-m", "orchestrator.pretrain", *arguments]], [{}])[0]


def run_started(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> list[Finished]:
    """Start `python COMMAND` once per command, all at the same time, each with its environment added."""
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


def run_forked(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> list[Finished]:
    """Run `-m MODULE ARGUMENT ...` in a forked process per command, all at the same time, on CPU cores.

    Each process has its environment added, as with `run_started`.
    """
    with tempfile.TemporaryDirectory() as folder:
        programs = []
        for index, (command, environment) in enumerate(zip(commands, environments, strict=True)):
            flag, module, *arguments = command
            assert flag == "-m"
            files = (str(Path(folder, f"{index}.{stream}")) for stream in ("stdout", "stderr"))
            programs.append(Program(module, arguments, _cpu_environment() | dict(environment), *files))
        try:
            codes = _fork_server().run(programs)
        except BaseException:
            _fork_server().stop()
            _fork_server.cache_clear()
            raise
        return [
            Finished(code, Path(program.stdout).read_text(), Path(program.stderr).read_text())
            for code, program in zip(codes, programs, strict=True)
        ]


class ForkServer:
    """Process that forks programs (`tests.training.fork_server`). It ends with this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.fork_server"],
            cwd=REPOSITORY,
            env=_cpu_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # `stop` ends the forked processes, too
        )

    def run(self, programs: Sequence[Program]) -> list[int]:
        """Run the programs at the same time and return their exit codes."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None
        requests.write(json.dumps([asdict(program) for program in programs]) + "\n")
        requests.flush()
        if not wait([answers.fileno()], TIMEOUT_S):
            raise TimeoutError(f"after {TIMEOUT_S} s these programs had not ended: {programs}")
        answer = answers.readline()
        if not answer:
            raise RuntimeError("the fork server has ended; its error is in the output of this test")
        codes: list[int] = json.loads(answer)
        return codes

    def stop(self) -> None:
        """End the server and the programs that still run."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass


@cache
def _fork_server() -> ForkServer:
    """Return the fork server of this pytest process."""
    server = ForkServer()
    atexit.register(server.stop)
    return server


def _cpu_environment() -> dict[str, str]:
    return clean_environment() | {"CUDA_VISIBLE_DEVICES": ""}


def plain_environments(world_size: int) -> list[dict[str, str]]:
    """Return the variables of each rank as a launcher other than torchrun and srun sets them."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def clean_environment() -> dict[str, str]:
    """Return the environment without variables of a surrounding job."""
    of_launchers = ("SLURM_", "MASTER_", "TORCHELASTIC_")
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(of_launchers) and name not in ranks
    }
    python_path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}


_RESERVATIONS: list[socket.socket] = []


def free_port() -> int:
    """Return a TCP port that no other process of the tests gets while this process runs.

    The UDP port with the same number reserves it. The ports are below those of outgoing connections and above those
    that `pretrain` derives from Slurm jobs.
    """
    while True:
        port = random.randrange(30000, 32768)
        reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
        else:
            _RESERVATIONS.append(reservation)
            return port


def read_record(path: Path) -> list[Step]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Step(**{name: line[name] for name in Step.__dataclass_fields__}) for line in lines]
