"""A site of its own in a folder, whose training program is a stand-in: a shell script that prints what
`orchestrator.pretrain` would, at once and with made-up times. The executor, the queue, the records, the ledger, the
parser and the verdict are the real ones. (Real training is tested in tests/training and tests/slurm.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, plan_cases

CHECKOUT = Path(__file__).resolve().parents[3]
REPRO = Path(sys.executable).with_name("repro")

# How it behaves is a word in a file beside it: `behave.pp4-gbs16` for one case, `behave` for the others.
# ms per iteration: 100 + 10 x batch x pipeline size, so that the claims of figure 13 hold at scale cpu.
PROGRAM = r"""#!/bin/bash
# A stand-in for the training program of the tests: it trains nothing.
echo "this is a stand-in and trains nothing"
while [ $# -gt 0 ]; do
  case $1 in
    --tensor-model-parallel-size) tp=$2 ;;
    --pipeline-model-parallel-size) pp=$2 ;;
    --global-batch-size) gbs=$2 ;;
    --train-iters) iterations=$2 ;;
  esac
  shift
done
here=$(dirname "$0")
behave=$(cat "$here/behave.pp$pp-gbs$gbs" 2>/dev/null || cat "$here/behave" 2>/dev/null || echo well)
echo "$(date +%s.%N) $$ pp=$pp,tp=$tp,gbs=$gbs" >>"$here/started"
world=4 loss=6.931472E+00 ms=$((100 + 10 * gbs * pp))
case $behave in
  nan) loss=nan ;;
  narrow) world=1 ;;
  short) iterations=$((iterations - 2)) ;;
  flat) ms=$((100 * gbs)) ;;
esac
[ "${RANK:-0}" = 0 ] || exec >/dev/null # one rank reports, and the others only their errors
echo "using world size: $world, data-parallel size: 1, context-parallel size: 1," \
  "hierarchical context-parallel sizes: None, tensor-model-parallel size: $tp, pipeline-model-parallel size: $pp"
for ((i = 1; i <= iterations; i++)); do
  case $behave-$i in
    host-3) echo "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0." >&2; kill -9 $$ ;;
    usage-1) echo "pretrain: error: unrecognized arguments: --no-such" >&2; exit 2 ;;
    fail-3) echo "torch.OutOfMemoryError: CUDA out of memory." >&2; exit 7 ;;
    hang-3 | begun-4 | late-7) sleep 300 & echo $! >>"$here/sleepers"; wait; exit 143 ;;
    slow-3) sleep 0.3 ;;
    gated-3) until [ -e "$here/go" ]; do sleep 0.1; done ;;
    ecc-3) # the GPU of node n3 is broken, and all other ranks wait for its rank
      if [ "${SLURMD_NODENAME:-}" = n3 ]; then
        echo "CUDA error: uncorrectable ECC error encountered" >&2
        # srun loses what it has not written when it ends the other tasks, so the message is in the log first.
        until grep -qs "uncorrectable ECC" "$here"/runs/*/*/log.txt; do sleep 0.1; done
        exit 1
      fi
      ! scontrol show hostnames | grep -qx n3 || exec sleep 300 ;;
  esac
  printf ' [2026-01-01 00:00:00.000000] iteration %8d/%8d | consumed samples: %12d |' $i "$iterations" $((i * gbs))
  printf ' elapsed time per iteration (ms): %d.0 | learning rate: 1.000000E-04 | global batch size: %5d |' $ms "$gbs"
  printf ' lm loss: %s | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |' $loss
  printf ' number of nan iterations:   0 |\n'
done
echo "$(date +%s.%N) $$ ended" >>"$here/ended"
echo "[after training is done] datetime: 2026-01-01 00:00:00.000000 "
"""


@dataclass(frozen=True)
class Site:
    """`folder` is home: ledger, runs, a cluster `here`, and the program."""

    folder: Path

    @staticmethod
    def make(folder: Path) -> Site:
        (folder / "clusters").mkdir(parents=True)
        program = folder / "train.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        (folder / "clusters" / "here.yaml").write_text(
            "about: a machine of the tests\nscheduler: local\n"
            f"workloads: {{pretrain: {{python: {json.dumps(str(program))}}}}}\n"  # JSON's quotes are YAML's
        )
        return Site(folder)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REPRO_")}
        return {**kept, "REPRO_HOME": str(self.folder)}

    @property
    def folders(self) -> Folders:
        return Folders(shipped=CHECKOUT, home=self.folder)

    def behave(self, how: str, case: str = "") -> None:
        (self.folder / f"behave{case and '.'}{case}").write_text(how)

    def repro(self, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
        """The real command, as a process of its own."""
        environment = self.environment | ({"PATH": path} if path else {})
        return subprocess.run(
            [str(REPRO), *words],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same, left running."""
        return subprocess.Popen(
            [str(REPRO), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.repro("submit", "figure-13", "--cluster", "here", "--scale", "cpu", *words)

    def cluster(self) -> Cluster:
        return find_cluster(self.folders, str(self.folder / "clusters" / "here.yaml"))

    def plans(self, where: str | None = None) -> list[Plan]:
        entry = find_experiment(self.folders, "figure-13")
        cases = select(expand(entry, "cpu"), parse_where(where))
        return plan_cases(entry, cases, self.cluster(), self.folders)

    def sleepers(self) -> list[int]:
        """Processes that hanging jobs have started and that still run."""
        file = self.folder / "sleepers"
        pids = [int(line) for line in file.read_text().split()] if file.exists() else []
        return [pid for pid in pids if _runs(pid)]

    def clean_up(self) -> None:
        """End what a test has left running."""
        for pid in self.sleepers():
            os.kill(pid, signal.SIGKILL)

    def started(self) -> list[str]:
        """Cases in the order in which their program began."""
        file = self.folder / "started"
        return [line.split()[-1] for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(condition: Callable[[], object], timeout_s: float = 600.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
