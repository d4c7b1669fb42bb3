"""Provocation of faults on a machine with GPUs, compared with the expected reaction of `repro`.

    python tests/gpu/provoke.py [few] [busy] [killed] [launcher] [interface]

Needs one GPU of 80 GB, and two for `interface` and for a rank that is not alone; the standard library; the `repro`
command beside this Python or in the PATH; and for `busy` torch in this Python. It ends only jobs and processes that it
starts. It records everything in a new folder, which it prints at the end. Each job takes about a minute. Exit code 1 if
a result differs from the expected one.

few        figure 13 on 4 GPUs with fewer visible: refused with exit code 2, nothing recorded
busy       a process uses all but 5 GB of GPU 0: a warning, then gpu-in-use; after its end the case is verified
killed     SIGKILL to the last rank of a running case: killed, no rank remains, and the next case continues
launcher   SIGKILL to the process that forked the ranks: killed, no rank remains, and the next case continues
interface  NCCL_SOCKET_IFNAME names no interface, with two ranks: configuration, with NCCL's message
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
    """Expected and actual result of one provocation."""

    what: str
    expected: str
    seen: str

    @property
    def is_well(self) -> bool:
        return self.seen.startswith(self.expected)


@dataclass(frozen=True)
class Machine:
    """`repro` with its own home, and the `gpus` that nvidia-smi lists."""

    home: Path
    command: str
    gpus: int

    def repro(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.command, *options],
            env={**os.environ, "REPRO_HOME": str(self.home), **variables},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        print(f"$ repro {' '.join(options)}\n{done.stderr}{'' if '--json' in options else done.stdout}", flush=True)
        return done

    def submit(self, gpus: int, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        choice = ["--scale", SCALE, "--cluster", CLUSTER, "--where", f"case={CASES[gpus]}"]
        return self.repro("submit", FIGURE, *choice, *options, **variables)

    def rows(self, gpus: int) -> list[dict[str, Any]]:
        """Return the latest attempt at each job of a case, the first repeat first."""
        attempts: list[dict[str, Any]] = json.loads(self.repro("status", FIGURE, "--json").stdout)["jobs"]
        return sorted((row for row in attempts if row["case"] == f"case={CASES[gpus]}"), key=lambda row: row["repeat"])

    def log(self, job: str) -> Path:
        attempts = json.loads(self.repro("history", job, "--json").stdout)["attempts"]
        return Path(attempts[-1]["folder"]) / "log.txt"


def few(machine: Machine) -> Iterator[Compared]:
    visible = {} if machine.gpus < 4 else {"CUDA_VISIBLE_DEVICES": "0"}
    named = visible.get("CUDA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(named.split(",")) if named else machine.gpus
    done = machine.repro("submit", "figure-13", "--scale", "quad", "--cluster", CLUSTER, **visible)
    yield Compared("exit code", "2", str(done.returncode))
    message = next((line for line in done.stderr.splitlines() if "needs 4 GPUs" in line), done.stderr)
    yield Compared("what it says", f"needs 4 GPUs, this machine has {there}", message.partition("cases: ")[2])
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
    yield from kill_one(machine, lambda launcher, ranks: ranks[-1] if ranks else launcher)


def launcher(machine: Machine) -> Iterator[Compared]:
    yield from kill_one(machine, lambda launcher, _: launcher)


def kill_one(machine: Machine, choose: Callable[[int, list[int]], int]) -> Iterator[Compared]:
    """Kill the process that `choose` selects from the ids of the launcher and its ranks."""
    gpus = min(machine.gpus, 2)
    machine.submit(gpus, "--repeat", "2", "--rerun")
    row = machine.rows(gpus)[0]
    log = machine.log(row["job"])
    wait_until(lambda: log.exists() and b"iteration        1/" in log.read_bytes(), "the first iteration")
    pid = choose(*launcher_and_ranks(row["id"]))
    os.kill(pid, signal.SIGKILL)
    print(f"SIGKILL to {pid}", flush=True)
    machine.repro("wait", FIGURE)
    first, second = machine.rows(gpus)
    yield from ended(first, "killed")
    left = list(processes_of(row["id"]))
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
    """Return `verified`, or the failure class with its reason."""
    seen = str(row["failure"] or row["verdict"] or row["state"])
    yield Compared(f"{row['case']}, repeat {row['repeat']}", expected, f"{seen}: {row['why']}" if row["why"] else seen)


@contextmanager
def holding() -> Iterator[None]:
    """Run a process that uses all but 5 GB of GPU 0 and prints its id.

    In a container nvidia-smi may not list the id.
    """
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


def launcher_and_ranks(local_id: str) -> tuple[int, list[int]]:
    """Return the ids of the process that imports torch, and of the ranks that it has forked, in their order."""
    programs = {
        pid: parent for pid, (parent, command) in processes_of(local_id).items() if "orchestrator.pretrain" in command
    }
    (root,) = (pid for pid, parent in programs.items() if parent not in programs)
    return root, sorted(pid for pid, parent in programs.items() if parent == root)


def processes_of(local_id: str) -> dict[int, tuple[int, str]]:
    """Return parent and command line, by id, of each running process of a job of the local queue."""
    processes = {}
    for folder in Path("/proc").iterdir():
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if folder.name.isdecimal() and f"REPRO_LOCAL_ID={local_id}".encode() in variables:
            processes[int(folder.name)] = (parent, command)
    # The command lines of the script and of timeout contain the program's.
    others = ("timeout", "bash", "setsid", "nvidia-smi")
    return {pid: process for pid, process in processes.items() if Path(process[1].split(" ")[0]).name not in others}


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
        table += [(name, result, time.monotonic() - began) for result in PROVOCATIONS[name](machine)]
    print(f"\n{gpus} GPUs; all of it is in {machine.home}")
    for name, result, after_s in table:
        print(
            f"{'ok ' if result.is_well else 'NO '} {name:9} {after_s:5.0f} s  {result.what}: {result.seen or 'nothing'}"
        )
        if not result.is_well:
            print(f"{'':20}expected: {result.expected}")
    return 0 if all(result.is_well for _, result, _ in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
