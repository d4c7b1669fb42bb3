"""Wall time and peak memory of planning as whole processes, compared with their limits.

    python benchmarks/plan.py [--exact]

Plans the shipped papers and a generated experiment of 10,000 cases. With --exact also SC21's Table 1 with the real
megatron-core, which needs torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.catalog.library import experiment_names, find_entries, papers
from orchestrator.megatron.predictions import memory_of
from orchestrator.paths import find_folders
from tests.cases import expand

REPRO = Path(sys.executable).with_name("repro")

PAPER = """\
title: A matrix for a benchmark
venue: nowhere
machine:
  nodes: 512
  gpus_per_node: 8
  gpu: A100
  gpu_memory_gb: 80
  nvlink_gb_s: 300
  network_gb_s: 25
  peak_tflops: {fp16: 312}
"""
EXPERIMENT = """\
figure: None
title: 10,000 cases
program: megatron-2021
model: {hidden: 8192, heads: 64, seq: 2048, vocab: 51200}
matrix:
  pp: [1, 2, 4, 8, 16]
  tp: [1, 2, 4, 8]
  recompute: [none, full]
  layers: [16, 32, 48, 64, 80]
  mbs: [1, 2, 4, 8, 16]
  gbs: [512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 4608, 5120]
rules: {gpus: 4 * pp * tp}
training: {dtype: fp16, loss_scale: 8192}
plot:
  x: {label: Pipeline-parallel size, of: [pp]}
  y: {label: y, metric: tflops_per_gpu}
  series: {label: s, of: gbs}
"""


@dataclass(frozen=True)
class Usage:
    seconds: float
    peak_mb: float
    cases: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", action="store_true")
    exact = parser.parse_args().exact
    missed = 0
    print(f"{'command':<40}{'cases':>8}{'s':>8}{'limit s':>9}{'of it':>8}{'peak MB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        commands = [
            ("plan sc21 --cluster selene", 3.0),
            ("plan atc24", 3.0),
            ("plan ten-thousand", 10.0),
            *([("plan table-1 --cluster selene --exact", 60.0)] if exact else []),
        ]
        for arguments, limit_s in commands:
            usage = run(arguments.split(), Path(folder))
            share = usage.seconds / limit_s
            missed += share > 1
            print(
                f"{arguments:<40}{usage.cases:>8}{usage.seconds:>8.2f}{limit_s:>9.0f}{share:>8.2f}{usage.peak_mb:>9.0f}"
            )
    cases, milliseconds = closed_form()
    print(f"memory of all {cases} cases of the catalogue, by the closed form: {milliseconds:.1f} ms")
    print(f"within every limit: {'no' if missed else 'yes'}")
    return 1 if missed else 0


def run(arguments: list[str], home: Path) -> Usage:
    """Run a command as a user does, and return its usage with that of its children."""
    start = time.perf_counter()
    with (home / "out").open("w") as out:
        process = subprocess.Popen(
            [REPRO, *arguments],
            cwd=home,
            stdout=out,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "REPRO_HOME": str(home)},
        )
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"repro {' '.join(arguments)}: exit code {os.waitstatus_to_exitcode(status)}")
    return Usage(seconds, usage.ru_maxrss / 1024, len((home / "out").read_text().splitlines()) - 1)


def closed_form() -> tuple[int, float]:
    """Print the time to compute the memory of every published case, after reading them."""
    folders = find_folders()
    entries = [entry for paper in papers(experiment_names(folders)) for entry in find_entries(folders, paper)]
    cases = [case for entry in entries if not entry.experiment.reference_only for case in expand(entry)]
    start = time.perf_counter()
    for case in cases:
        memory_of(case)
    return len(cases), (time.perf_counter() - start) * 1e3


def write(home: Path) -> None:
    folder = home / "experiments" / "benchmark"
    folder.mkdir(parents=True)
    (folder / "paper.yaml").write_text(PAPER)
    (folder / "ten-thousand.yaml").write_text(EXPERIMENT)


if __name__ == "__main__":
    sys.exit(main())
