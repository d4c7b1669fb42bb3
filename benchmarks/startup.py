"""Start-up of a training job: ranks forked by a process that has imported torch, compared with an import per rank.

    python benchmarks/startup.py --ranks 4
    python benchmarks/startup.py --ranks 4 --against ../older-checkout

Both ways start the same case in turn, a small GPT with one data-parallel rank for each GPU, or for each process without
GPUs. Times count from the start of the launcher. On GPUs the memory that nvidia-smi reports for GPU 0 after the first
iteration is printed too: it holds the CUDA context, the buffers of NCCL and the tensors. With `--against` torchrun
starts the program of another checkout, such as that of an older version.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

CHECKOUT = Path(__file__).resolve().parents[1]
PATIENCE_S = 300.0
GPU_MODEL = "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --vocab-size 51200 --bf16"
CPU_MODEL = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 64 --vocab-size 1024"
TRAINING = "--micro-batch-size 1 --train-iters 1000000 --use-distributed-optimizer"
NO_DROPOUT = "--hidden-dropout 0 --attention-dropout 0"
DESCRIBE = """
import os, sys, torch
files = "found" if os.path.exists(torch.__cached__ or "") else "missing"
print(torch.cuda.device_count())
print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {len(os.sched_getaffinity(0))} CPU cores,"
      f" {torch.cuda.device_count()} GPUs, compiled files of torch {files}")
"""

# What a log line holds when the named stage has ended.
STAGES = {
    "process groups": "using world size",
    "model": "before the start of training step",
    "first iteration": "elapsed time per iteration",
}


@dataclass(frozen=True)
class StartUp:
    """Seconds from the start of the launcher to the end of each stage, and the memory of GPU 0 in use then."""

    ends_s: Mapping[str, float]
    gpu_memory_mib: str | None

    @property
    def seconds(self) -> float:
        return self.ends_s["first iteration"]

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.ends_s.items())
        return stages if self.gpu_memory_mib is None else f"{stages}; GPU 0 has {self.gpu_memory_mib} MiB in use"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--against", type=Path, default=CHECKOUT, metavar="CHECKOUT", help="this one unless given")
    options = parser.parse_args()
    on_gpu = _describe_machine()
    model = GPU_MODEL if on_gpu else CPU_MODEL
    arguments = f"{model} {TRAINING} {NO_DROPOUT} --global-batch-size {options.ranks}".split()
    processes = f"--nproc-per-node={options.ranks}"
    torchrun = ["torch.distributed.run", "--standalone", processes, "-m", "orchestrator.pretrain"]
    launchers = {
        "forked": (["orchestrator.pretrain.launch", processes], CHECKOUT),
        "torchrun": (torchrun, options.against.resolve()),
    }
    start_ups: dict[str, list[StartUp]] = {name: [] for name in launchers}
    for round_ in range(1, options.rounds + 1):
        for name, (command, checkout) in launchers.items():
            start_ups[name].append(_start([sys.executable, "-u", "-m", *command, *arguments], checkout, on_gpu))
            print(f"round {round_}, {name:8}: {start_ups[name][-1]}", flush=True)
    medians = {name: statistics.median(start_up.seconds for start_up in runs) for name, runs in start_ups.items()}
    ratio = medians["torchrun"] / medians["forked"]
    print(f"median: forked {medians['forked']:.1f} s, torchrun {medians['torchrun']:.1f} s, ratio {ratio:.2f}")
    return 0


def _describe_machine() -> bool:
    """Print the versions and hardware that affect the start-up; return whether there are GPUs."""
    done = subprocess.run([sys.executable, "-c", DESCRIBE], check=True, stdout=subprocess.PIPE, text=True)
    gpus, machine = done.stdout.splitlines()
    print(machine, flush=True)
    return int(gpus) > 0


def _start(command: Sequence[str], checkout: Path, on_gpu: bool) -> StartUp:
    """Start a job, wait for its first iteration, and end it."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    began = time.monotonic()
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        out_of_patience = Timer(PATIENCE_S, process.kill)
        out_of_patience.start()
        ends_s: dict[str, float] = {}
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            now = time.monotonic() - began
            ends_s |= {name: now for name, text in STAGES.items() if text in line}
            if len(ends_s) == len(STAGES):
                break
        out_of_patience.cancel()
        memory = _gpu_memory_mib() if on_gpu else None
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    if len(ends_s) < len(STAGES):
        sys.exit(f"{' '.join(command)}\nended without a first iteration:\n{''.join(lines[-40:])}")
    return StartUp(ends_s, memory)


def _gpu_memory_mib() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(query, check=False, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
