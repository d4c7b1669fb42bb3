"""Provoke on a machine with GPUs what a person meets there, and compare what `repro` makes of it with what it should.

    python tests/gpu/provoke.py [few] [busy] [killed] [launcher] [interface]

Needs one GPU of 80 GB, and two for `interface` and for a rank that is not alone; standard library, the `repro` command
beside this Python or on the PATH, and for `busy` torch in this Python. Nothing but the jobs and the process that it
starts itself is ended. Everything is recorded in a folder of its own, which is named at the end; each job takes about
a minute. Exit code 1 if anything came out otherwise than expected.

few        figure 13 on 4 GPUs where fewer can be seen: refused with exit code 2, and nothing recorded
busy       a process has all but 5 GB of GPU 0: a warning, then gpu-in-use; once it is gone the case is verified
killed     SIGKILL to the last rank of a running case: killed, no rank is left, and the next case goes on
launcher   the same to the launcher that forked the ranks
interface  NCCL_SOCKET_IFNAME names no interface, with two ranks: configuration, in NCCL's own words
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURE, SCALE, CLUSTER = "table-1", "pair", "local"
CASES = {1: "1.7B", 2: "3.6B"}
"""The cases of table 1 that are run, by the GPUs that each takes."""
LAUNCHER = "orchestrator.pretrain.launch"
LEFT_BYTES = 5 * 10**9
PATIENCE_S = 900

HOLDER = f"""
import torch, time
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - {LEFT_BYTES}, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
time.sleep({PATIENCE_S})
"""


@dataclass(frozen=True)
class Compared:
    """What of one provocation was expected, and what was seen."""

    what: str
    expected: str
    seen: str

    @property
    def is_well(self) -> bool:
        return self.seen.startswith(self.expected)


@dataclass(frozen=True)
class Machine:
    """`repro` with a home of its own; `gpus` that nvidia-smi lists."""

    home: Path
    command: str
    gpus: int

    def repro(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.command, *words],
            env={**os.environ, "REPRO_HOME": str(self.home), **variables},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        print(f"$ repro {' '.join(words)}\n{done.stderr}{'' if '--json' in words else done.stdout}", flush=True)
        return done

    def submit(self, gpus: int, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        choice = ["--scale", SCALE, "--cluster", CLUSTER, "--where", f"case={CASES[gpus]}"]
        return self.repro("submit", FIGURE, *choice, *words, **variables)

    def rows(self, gpus: int) -> list[dict[str, Any]]:
        """The latest attempt at each job of a case, the first repeat first."""
        found: list[dict[str, Any]] = json.loads(self.repro("status", FIGURE, "--json").stdout)
        return sorted((row for row in found if row["case"] == f"case={CASES[gpus]}"), key=lambda row: row["repeat"])

    def log(self, job: str) -> Path:
        attempts = json.loads(self.repro("history", job, "--json").stdout)
        return Path(attempts[-1]["folder"]) / "log.txt"


def few(machine: Machine) -> Iterator[Compared]:
    visible = {} if machine.gpus < 4 else {"CUDA_VISIBLE_DEVICES": "0"}
    named = visible.get("CUDA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(named.split(",")) if named else machine.gpus
    done = machine.repro("submit", "figure-13", "--scale", "quad", "--cluster", CLUSTER, **visible)
    yield Compared("exit code", "2", str(done.returncode))
    said = next((line for line in done.stderr.splitlines() if "needs 4 GPUs" in line), done.stderr)
    yield Compared("what it says", f"needs 4 GPUs, {CLUSTER} has 1 x {there}", said.partition("cases: ")[2])
    yield Compared("recorded", "nothing", "something" if (machine.home / "runs").exists() else "nothing")


def busy(machine: Machine) -> Iterator[Compared]:
    with holding():
        done = machine.submit(1, "--wait")
        warned = next((line for line in done.stderr.splitlines() if "GPU 0 is in use" in line), "")
        yield Compared("warning", "warning: GPU 0 is in use", warned)
        yield from ended(machine.rows(1)[0], "gpu-in-use")
    machine.submit(1, "--wait")
    yield from ended(machine.rows(1)[0], "verified")


def killed(machine: Machine) -> Iterator[Compared]:
    ranks = min(machine.gpus, 2)
    yield from kill_one(machine, ranks, lambda _, rank: rank == ranks - 1)


def launcher(machine: Machine) -> Iterator[Compared]:
    ranks = min(machine.gpus, 2)
    yield from kill_one(machine, ranks, lambda command, rank: LAUNCHER in command and rank is None)


def kill_one(machine: Machine, ranks: int, is_meant: Callable[[str, int | None], bool]) -> Iterator[Compared]:
    machine.submit(ranks, "--repeat", "2", "--rerun")
    row = machine.rows(ranks)[0]
    log = machine.log(row["job"])
    wait_until(lambda: log.exists() and b"iteration        1/" in log.read_bytes(), "the first iteration")
    pids = [pid for pid, command, rank in processes_of(row["id"]) if is_meant(command, rank)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    print(f"SIGKILL to {pids}", flush=True)
    machine.repro("wait", FIGURE)
    first, second = machine.rows(ranks)
    yield from ended(first, "killed")
    left = [pid for pid, *_ in processes_of(row["id"])]
    yield Compared("ranks left", "none", f"{left}" if left else "none")
    yield from ended(second, "verified")


def interface(machine: Machine) -> Iterator[Compared]:
    if machine.gpus < 2:
        return
    machine.submit(2, "--wait", "--rerun", NCCL_SOCKET_IFNAME="nonexistent")
    row = machine.rows(2)[0]
    yield from ended(row, "configuration")
    why = str(row["why"])
    yield Compared("why", "NCCL misused: Bootstrap : no socket interface found", why.partition("(")[2])


def ended(row: Mapping[str, Any], expected: str) -> Iterator[Compared]:
    """Verified, or the class of the failure with its reason."""
    seen = str(row["failure"] or row["verdict"] or row["state"])
    yield Compared(f"{row['case']}, repeat {row['repeat']}", expected, f"{seen}: {row['why']}" if row["why"] else seen)


@contextmanager
def holding() -> Iterator[None]:
    """A process that has all but 5 GB of GPU 0, whose id is printed: in a container nvidia-smi may tell no such id."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            if holder.stdout.readline().strip() != "held":
                sys.exit("could not take the memory of GPU 0: is torch in this Python, and the GPU free?")
            print(f"process {holder.pid} holds GPU 0", flush=True)
            yield
        finally:
            holder.kill()


def processes_of(local_id: str) -> list[tuple[int, str, int | None]]:
    """Id, command line and rank of each process that a job of the local queue has started and that still runs.

    Ranks have the command line of the launcher that forked them, one after another.
    """
    commands: dict[int, str] = {}
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
        except (OSError, ValueError):
            continue
        # The launcher's command line is part of the script's and of timeout's.
        of_others = Path(command.split(" ")[0]).name in ("timeout", "bash", "setsid", "nvidia-smi")
        if folder.name.isdecimal() and f"REPRO_LOCAL_ID={local_id}".encode() in variables and not of_others:
            commands[int(folder.name)], parents[int(folder.name)] = command, parent
    launchers = {pid for pid, command in commands.items() if LAUNCHER in command and parents[pid] not in commands}
    ranks = [pid for pid in sorted(commands) if LAUNCHER in commands[pid] and parents[pid] in launchers]
    return [(pid, command, ranks.index(pid) if pid in ranks else None) for pid, command in commands.items()]


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"waited {PATIENCE_S} s in vain for {what}")
        time.sleep(0.05)


PROVOCATIONS: Mapping[str, Callable[[Machine], Iterator[Compared]]] = {
    "few": few,
    "busy": busy,
    "killed": killed,
    "launcher": launcher,
    "interface": interface,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PROVOCATIONS]
    if unknown:
        print(__doc__)
        return 2
    beside = Path(sys.executable).with_name("repro")
    command = str(beside) if beside.exists() else shutil.which("repro")
    if shutil.which("nvidia-smi") is None:
        print("needs a GPU, and here is no nvidia-smi")
        return 2
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    gpus = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    if command is None or gpus == 0:
        print(f"needs the repro command ({command}) and a GPU (nvidia-smi: {listed.stdout}{listed.stderr})")
        return 2
    machine = Machine(Path(tempfile.mkdtemp(prefix="provoke-")), command, gpus)
    table: list[tuple[str, Compared, float]] = []
    for name in names or PROVOCATIONS:
        print(f"---- {name}", flush=True)
        began = time.monotonic()
        table += [(name, one, time.monotonic() - began) for one in PROVOCATIONS[name](machine)]
    print(f"\n{gpus} GPUs; all of it is in {machine.home}")
    for name, one, after_s in table:
        print(f"{'ok ' if one.is_well else 'NO '} {name:9} {after_s:5.0f} s  {one.what}: {one.seen or 'nothing'}")
        if not one.is_well:
            print(f"{'':20}expected: {one.expected}")
    return 0 if all(one.is_well for _, one, _ in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
