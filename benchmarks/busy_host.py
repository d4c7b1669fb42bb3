"""Iteration times of `pretrain` on GPUs while every CPU core is busy, compared with those on an idle host.

    python benchmarks/busy_host.py [--rounds 1] [--iterations 12]

One GPU trains one case. Two GPUs also train pipelines of two stages with the 1F1B and with the interleaved schedule,
and tensor parallelism. Rounds are interleaved, so that the temperature of the machine affects both times alike. A time
is the median of a run's iterations, without the first two: one compiles, the next records CUDA graphs.

The exit code is 1 if an iteration on the busy host takes more than 1.05 times as long, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
LIMIT = 1.05
NOT_COUNTED = 2
MODEL = (
    "--num-layers 8 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --vocab-size 51200 --bf16"
    " --micro-batch-size 1 --global-batch-size 8 --hidden-dropout 0 --attention-dropout 0 --use-distributed-optimizer"
)
PIPELINE = "--pipeline-model-parallel-size 2"
CASES = {
    "one GPU": (1, ""),
    "1F1B": (2, PIPELINE),
    "interleaved": (2, f"{PIPELINE} --num-virtual-stages-per-pipeline-rank 4"),
    "tensor parallel": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
}
"""Number of GPUs and further flags of each case."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=12, help="of a run")
    options = parser.parse_args()
    gpus = _gpu_count()
    if gpus == 0:
        print("busy_host: no GPU that torch can use. Hint: run this benchmark on a machine with GPUs", file=sys.stderr)
        return 2
    cores = len(os.sched_getaffinity(0))
    print(f"{gpus} GPUs, {cores} CPU cores", flush=True)
    print(f"{'case':<18}{'idle ms':>10}{'busy ms':>10}{'ratio':>8}")
    slowed = []
    for name, (needed, flags) in CASES.items():
        if needed > gpus:
            print(f"{name:<18}needs {needed} GPUs")
            continue
        idle, busy = [], []
        for _ in range(options.rounds):
            idle.append(_iteration_ms(needed, flags, options.iterations))
            with _busy_cores(cores):
                busy.append(_iteration_ms(needed, flags, options.iterations))
        idle_ms, busy_ms = statistics.median(idle), statistics.median(busy)
        ratio = busy_ms / idle_ms
        print(f"{name:<18}{idle_ms:>10.1f}{busy_ms:>10.1f}{ratio:>8.3f}", flush=True)
        if ratio > LIMIT:
            slowed.append(name)
    print(f"every ratio is at most {LIMIT}: {'no, ' + ', '.join(slowed) if slowed else 'yes'}")
    return 1 if slowed else 0


def _gpu_count() -> int:
    """Return the number of GPUs that torch can use, 0 without torch."""
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


def _iteration_ms(gpus: int, flags: str, iterations: int) -> float:
    """Train one case and return the median time of an iteration in ms."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        launcher = [sys.executable, "-u", "-m", "orchestrator.pretrain.launch", f"--nproc-per-node={gpus}"]
        arguments = [*MODEL.split(), *flags.split(), "--train-iters", str(iterations), "--record", str(record)]
        python_path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [*launcher, *arguments],
            check=False,
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONPATH": python_path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"the training ended with exit code {done.returncode}:\n{done.stdout[-4000:]}")
        times = [float(json.loads(line)["elapsed_ms"]) for line in record.read_text().splitlines()]
    return statistics.median(times[NOT_COUNTED:])


@contextmanager
def _busy_cores(cores: int) -> Iterator[None]:
    """Keep every CPU core busy with a process."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
