"""Home folder of `repro` for tests, with a stand-in for the training program.

The stand-in is a shell script that prints the lines of `orchestrator.pretrain` at once, with made-up times. Executor,
queue, records, ledger, parser and verdict are the real ones. Real training is tested in tests/training and tests/slurm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from orchestrator import api
from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.megatron.axes import MEGATRON
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, plan_cases
from tests.forked_repro import run_forked
from tests.slurm.host import end_processes, is_alive
from tests.waiting import LIMIT_S, wait_until

CHECKOUT = Path(__file__).resolve().parents[1]
REPRO = str(Path(sys.executable).with_name("repro"))

# A file beside the program has its behaviour: `behave.pp4-gbs16` for one case, `behave` for the other cases.
# The loss falls by the same amount in every layout, so that the claim of figure 13 about losses holds at scale cpu.
# ms per iteration: 100 + 10 x batch x pipeline size.
PROGRAM = r"""#!/bin/bash
# A stand-in for the training program of the tests: it trains nothing.
[ "$1" != -c ] || exit 0 # asked for its packages
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
world=4 ms=$((100 + 10 * gbs * pp))
case $behave in
  narrow) world=1 ;;
  short) iterations=$((iterations - 2)) ;;
esac
[ "${RANK:-0}" = 0 ] || exec >/dev/null # other ranks print only errors
echo "using world size: $world, data-parallel size: 1, context-parallel size: 1," \
  "hierarchical context-parallel sizes: None, tensor-model-parallel size: $tp, pipeline-model-parallel size: $pp"
for ((i = 1; i <= iterations; i++)); do
  loss=6.$((940000 - 1000 * i))E+00
  case $behave-$i in
    flat-*) loss=6.931472E+00 ;;
    nan-*) loss=nan ;;
    host-3) echo "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0." >&2; kill -9 $$ ;;
    usage-1) echo "pretrain: error: unrecognized arguments: --no-such" >&2; exit 2 ;;
    fail-3) echo "torch.OutOfMemoryError: CUDA out of memory." >&2; exit 7 ;;
    hang-3 | begun-4 | late-13) sleep 300 & echo $! >>"$here/sleepers"; wait; exit 143 ;;
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


Rows = list[dict[str, Any]]
"""Rows of `repro status --json`."""

UNDER_WAY = ("QUEUED", "SUBMITTING", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")


@dataclass
class Site:
    """Home folder of `repro`: cluster profile, ledger, runs and training program.

    `repro` runs with these environment variables, as `user`, who must be able to write to the folder. None: as the user
    of the tests.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    user: str | None = None

    profile: ClassVar[str] = "here"
    """Value of --cluster."""

    @staticmethod
    def create(folder: Path) -> Site:
        """Create a site whose cluster `here` is the local machine with the stand-in."""
        site = Site(folder)
        (folder / "clusters").mkdir(parents=True)
        (folder / "clusters" / "here.yaml").write_text(
            f"about: a machine of the tests\nscheduler: local\n{site.write_program()}"
        )
        return site

    def write_program(self) -> str:
        """Write the stand-in. Return the profile's field that names it."""
        program = self.folder / "train.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        return f"programs: {{pretrain: {{python: {json.dumps(str(program))}}}}}\n"  # JSON's quotes are YAML's

    # ---- `repro` ---------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """Environment of this shell without its settings of `repro`, and with those of the site."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REPRO_")}
        return {**kept, "REPRO_HOME": str(self.folder), "XDG_CONFIG_HOME": f"{self.folder}/.config", **self.variables}

    @property
    def folders(self) -> Folders:
        return Folders(shipped=CHECKOUT, home=self.folder)

    def repro(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `repro` as a process until it ends."""
        if self.user is None:
            return run_forked(words, self.folder, self.environment)
        with self.start(*words) as process:
            try:
                stdout, stderr = process.communicate(timeout=LIMIT_S)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `repro` as a process."""
        user = ("setpriv", "--reuid", self.user, "--regid", "nogroup", "--clear-groups") if self.user else ()
        return subprocess.Popen(
            [*user, REPRO, *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `repro submit` for figure 13 at scale cpu."""
        return self.repro("submit", "figure-13", "--cluster", self.profile, "--scale", "cpu", *words)

    def status(self) -> Rows:
        """Return the rows of `repro status --json` by a call in this process, without a start of Python."""
        session = api.Session(self.variables.get("REPRO_DATABASE"))
        with mock.patch.dict(os.environ, {**self.variables, "REPRO_HOME": str(self.folder)}):
            jobs = api.status(session=session).jobs
            ledger = session.existing_ledger()
        if ledger is not None:
            ledger.engine.dispose()
        return [asdict(job) for job in jobs]

    def by_case(self) -> dict[str, dict[str, Any]]:
        return {str(row["case"]): row for row in self.status()}

    def wait_for(self, condition: Callable[[Rows], object]) -> Rows:
        """Return the rows of `repro status` once the condition holds for them."""
        rows: Rows = []

        def holds() -> object:
            rows[:] = self.status()
            return condition(rows)

        try:
            wait_until(holds, every_s=0.5)
        except TimeoutError as reason:
            states = [(row["case"], row["state"], row["why"]) for row in rows]
            raise TimeoutError(f"{reason}: {states}") from None
        return rows

    def wait_until_ended(self) -> Rows:
        return self.wait_for(lambda rows: all(row["state"] not in UNDER_WAY for row in rows))

    def wait_for_queues(self) -> None:
        """Wait until no local queue runs: a queue removes its ticket after the end of its last job."""
        tickets = self.folder / "runs" / "local.tickets"
        wait_until(lambda: not list(tickets.glob("[0-9]*")), what="the end of the local queues")

    # ---- plans -----------------------------------------------------------------------------------------------

    def cluster(self, name: str = "here") -> Cluster:
        return find_cluster(self.folders, str(self.folder / "clusters" / f"{name}.yaml"))

    def plans(self, where: str | None = None) -> list[Plan]:
        """Return the plans of figure 13 at scale cpu on the cluster `here`."""
        entry = find_experiment(self.folders, "figure-13")
        cases = select(expand(entry, "cpu"), parse_where(where, MEGATRON.axes))
        return plan_cases(entry, cases, self.cluster(), self.folders)

    # ---- the training program --------------------------------------------------------------------------------

    def behave(self, how: str, case: str = "") -> None:
        """Set the behaviour of the stand-in: well, fail, hang, slow, nan, ..."""
        (self.folder / f"behave{case and '.'}{case}").write_text(how)

    def started(self) -> list[str]:
        """Return the cases of the started programs in order, one entry per process."""
        file = self.folder / "started"
        return [line.split()[-1] for line in file.read_text().splitlines()] if file.exists() else []

    def sleepers(self) -> list[int]:
        """Return the ids of running processes that hanging programs have started."""
        file = self.folder / "sleepers"
        pids = [int(line) for line in file.read_text().split()] if file.exists() else []
        return [pid for pid in pids if is_alive(pid)]

    def end_sleepers(self) -> None:
        """Kill the processes of hanging programs."""
        end_processes(self.sleepers())
