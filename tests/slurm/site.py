"""`repro` on the test cluster's login node, with its own site profile and ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator import api

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
    """A folder that is the home of `repro`: profile, results.db and runs.

    `repro` runs as `user`, who must be able to write to the folder; None: as the user of the tests.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    user: str | None = None

    def write_profile(self, account: str = "research", partition: str = "batch") -> None:
        (self.folder / "site.yaml").write_text(PROFILE.format(account=account, partition=partition))

    def repro(self, *options: str, timeout_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "REPRO_HOME": str(self.folder), **self.variables}
        user = ("setpriv", "--reuid", self.user, "--regid", "nogroup", "--clear-groups") if self.user else ()
        return subprocess.run(
            [*user, REPRO, *options],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def submit(self, *options: str, timeout_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        return self.repro(
            "submit", "figure-13", "--cluster", "site.yaml", "--scale", "cpu", *options, timeout_s=timeout_s
        )

    def status(self) -> list[dict[str, Any]]:
        """Return the rows of `repro status --json` by a call in this process, without a start of Python."""
        session = api.Session(self.variables.get("REPRO_DATABASE"))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**self.variables, "REPRO_HOME": str(self.folder)}.items():
                patch.setenv(name, value)
            jobs = api.status(session=session).jobs
            ledger = session.existing_ledger()
        if ledger is not None:
            ledger.engine.dispose()
        return [asdict(job) for job in jobs]
