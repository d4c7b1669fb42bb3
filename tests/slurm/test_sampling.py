"""GPU sampler beside a job on a real Slurm, with a simulated nvidia-smi, because the test cluster has no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.site import SlurmSite

NVIDIA_SMI = """\
#!/bin/bash
[[ $* = *--loop* ]] || exit 0 # of the fingerprint
echo $$ >>"$(dirname "$0")/samplers"
echo "$@" >"$(dirname "$0")/asked"
while :; do
  echo '2026/11/21 10:00:00.123, 0, 70000, 143771, 99, 690.55, 1755, 61, 0x0000000000000004'
  sleep 0.1
done
"""


@pytest.mark.usefixtures("slurm_cluster")
def test_gpu_samples_are_in_the_ledger_and_the_sampler_ends_with_its_job(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    setup = f"qos: normal\nsample_gpus_every_s: 1\nsetup: [{json.dumps(f'export PATH={folder}/bin:$PATH')}]"
    site = SlurmSite(folder).use_stand_in(setup, gpus=4)
    (folder / "bin").mkdir()
    (folder / "bin/nvidia-smi").write_text(NVIDIA_SMI)
    (folder / "bin/nvidia-smi").chmod(0o755)
    site.behave("slow")
    options = ("--scale", "quad", "--where", "pp=4,gbs=32")
    done = site.repro("submit", "figure-13", "--cluster", "site.yaml", *options)
    assert done.returncode == 0, done.stderr
    (row,) = site.wait_until_ended()
    assert row["verdict"] == "verified", row
    (batch,) = folder.glob("runs/*/pp4-tp1-gbs32/batch.txt")
    assert "Killed" not in batch.read_text()
    assert "--loop=1" in (folder / "bin/asked").read_text()
    (pid,) = (folder / "bin/samplers").read_text().split()
    assert not Path("/proc", pid).exists()
    (fingerprint,) = folder.glob("runs/*/pp4-tp1-gbs32/fingerprint.*.txt")
    assert fingerprint.read_text().startswith("$ uname -a\nLinux ")
    metrics = json.loads(site.repro("sql", "select name, value from metrics", "--json").stdout)["rows"]
    assert {"name": "gpu_power_w", "value": 690.55} in metrics
