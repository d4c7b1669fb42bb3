"""Site on the test cluster with a simulated training program, so that a fault takes seconds and not a training."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.slurm.host import LIMIT_S
from tests.slurm.site import Site
from tests.unit.launch.stand_in import PROGRAM

UNDER_WAY = ("QUEUED", "SUBMITTING", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")

_PROFILE = """\
about: nodes of the test cluster, with a stand-in for the training program
scheduler: slurm
hardware: {{nodes: 4, gpus_per_node: {gpus}}}
slurm:
  {account}
  partition: batch
  time_limit: "0:10:00"
  gpu_request: none
  mem: 100M
  {more}
workloads:
  pretrain: {{python: {program}}}
"""


class StandInSite(Site):
    """A site whose `behave` sets the behaviour of tests/unit/launch/stand_in.py: well, fail, hang, slow, nan, ..."""

    def prepare(self, more: str = "", gpus: int = 2, account: str = "account: research") -> StandInSite:
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.folder / "train.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        text = _PROFILE.format(program=json.dumps(str(program)), more=more, gpus=gpus, account=account)
        (self.folder / "site.yaml").write_text(text)
        return self

    def behave(self, how: str, case: str = "") -> None:
        (self.folder / f"behave{case and '.'}{case}").write_text(how)

    def started(self) -> list[str]:
        """Return the cases of the started processes, one entry per process."""
        file = self.folder / "started"
        return [line.split()[-1] for line in file.read_text().splitlines()] if file.exists() else []

    def replace_sbatch(self, body: str) -> None:
        """Put a script of this name before the real sbatch. `$0.count` counts its calls."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / "sbatch"
        script.write_text(f'#!/bin/bash\nexport SECOND=$(cat "$0.count" 2>/dev/null)\necho x >>"$0.count"\n{body}\n')
        script.chmod(0o755)
        self.variables["PATH"] = f"{folder}:{os.environ['PATH']}"

    def by_case(self) -> dict[str, dict[str, Any]]:
        return {str(row["case"]): row for row in self.status()}

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
        """Return the rows of `repro status` once the condition holds for them."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            rows = self.status()
            if condition(rows):
                return rows
            time.sleep(0.5)
        raise AssertionError(f"it did not come about: {[(row['case'], row['state'], row['why']) for row in rows]}")

    def wait_until_ended(self) -> list[dict[str, Any]]:
        return self.wait_for(lambda rows: all(row["state"] not in UNDER_WAY for row in rows))


def ids_in_queue(
    cluster_run: Callable[..., str], folder: Path, states: Sequence[str] = ("PENDING", "RUNNING")
) -> list[str]:
    """Return the queued jobs whose scripts are in this folder; each element of an array is a job."""
    rows = cluster_run(
        "squeue", "-h", "-r", f"--states={','.join(states)}", "-O", "JobArrayID:40,STDOUT:400"
    ).splitlines()
    return [row.split()[0] for row in rows if str(folder) in row]
