"""`repro` on the login node of the test cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.stand_in_site import Site

_PROFILE = """\
about: nodes of the test cluster
scheduler: slurm
hardware: {{nodes: 4, gpus_per_node: {gpus}}}
slurm:
  partition: batch
  time_limit: "0:10:00"
  {settings}
{programs}"""


class SlurmSite(Site):
    """Site whose cluster is the test cluster, by the profile site.yaml."""

    profile = "site.yaml"

    def use_stand_in(self, *settings: str, gpus: int = 2, account: str = "account: research") -> SlurmSite:
        """Write a profile with the stand-in and these further settings of `slurm`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._write_profile((account, "gpu_request: none", "mem: 100M", *settings), gpus, self.write_program())

    def use_real_program(self) -> SlurmSite:
        """Write a profile whose jobs train."""
        return self._write_profile(("account: research", "gpu_request: gres", "gres_type: h100", "max_running: 1"), 2)

    def _write_profile(self, settings: Sequence[str], gpus: int, programs: str = "") -> SlurmSite:
        text = _PROFILE.format(gpus=gpus, settings="\n  ".join(settings), programs=programs)
        (self.folder / "site.yaml").write_text(text)
        return self

    def replace_sbatch(self, body: str) -> None:
        """Put a script of this name before the real sbatch. `$0.count` counts its calls."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / "sbatch"
        script.write_text(f'#!/bin/bash\nexport SECOND=$(cat "$0.count" 2>/dev/null)\necho x >>"$0.count"\n{body}\n')
        script.chmod(0o755)
        self.variables["PATH"] = f"{folder}:{os.environ['PATH']}"


def ids_in_queue(
    cluster_run: Callable[..., str], folder: Path, states: Sequence[str] = ("PENDING", "RUNNING")
) -> list[str]:
    """Return the queued jobs whose scripts are in this folder; each element of an array is a job."""
    rows = cluster_run(
        "squeue", "-h", "-r", f"--states={','.join(states)}", "-O", "JobArrayID:40,STDOUT:400"
    ).splitlines()
    return [row.split()[0] for row in rows if str(folder) in row]
