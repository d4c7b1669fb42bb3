"""`repro` as a person on the test cluster's login node would type it, with a site profile and a ledger of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPRO = str(Path(sys.executable).with_name("repro"))

PROFILE = """\
about: nodes of the test cluster
scheduler: slurm
hardware: {{nodes: 4, gpus_per_node: 2}}
slurm:
  account: {account}
  partition: {partition}
  time_limit: "0:10:00"
  gpu_request: gres
  gres_type: h100
  max_running: 1
"""


@dataclass
class Site:
    """A folder that is `repro`'s home: profile, results.db and runs lie in it."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def write_profile(self, account: str = "research", partition: str = "batch") -> None:
        (self.folder / "site.yaml").write_text(PROFILE.format(account=account, partition=partition))

    def repro(self, *words: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "REPRO_HOME": str(self.folder), **self.variables}
        return subprocess.run(
            [REPRO, *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def submit(self, *words: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        return self.repro(
            "submit", "figure-13", "--cluster", "site.yaml", "--scale", "cpu", *words, timeout_s=timeout_s
        )

    def status(self) -> list[dict[str, Any]]:
        answer = self.repro("status", "--json")
        assert answer.returncode == 0, answer.stderr
        rows: list[dict[str, Any]] = json.loads(answer.stdout)
        return rows
