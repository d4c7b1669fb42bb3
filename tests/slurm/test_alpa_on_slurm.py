"""Alpa's benchmark on a real Slurm, with a stand-in for the program: it prints a result row and no iterations."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from orchestrator.megatron.logs.alpa import TABLE
from tests import alpa_stand_in
from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite

_PROFILE = """\
about: nodes of the test cluster, with a stand-in for Alpa's benchmark
scheduler: slurm
hardware: {{nodes: 4, gpus_per_node: 2, gpu: V100-SXM2-16GB, gpu_memory_gb: 16, peak_tflops: {{fp16: 125}}}}
slurm:
  account: research
  partition: batch
  time_limit: "0:30:00"
  gpu_request: none
  mem: 100M
env_prepend: {{PATH: {path}}}
{programs}"""


class AlpaSite(SlurmSite):
    """A site whose `behave` sets the behaviour of tests/alpa_stand_in.py."""

    def use_stand_in_for_alpa(self) -> AlpaSite:
        """Write a profile with the stand-in."""
        path = json.dumps(alpa_stand_in.install(self.folder, gpus=False))
        profile = _PROFILE.format(path=path, programs=alpa_stand_in.programs(self.folder))
        (self.folder / "site.yaml").write_text(profile)
        return self

    def submit_alpa(self, case: str, *options: str) -> CompletedProcess[str]:
        """Run `repro submit` for this case of figure 8 (a)."""
        return self.repro(
            "submit", "alpa-gpt", "--cluster", self.profile, "--scale", "paper", "--where", case, *options
        )


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> AlpaSite:  # noqa: ARG001  needs it up
    return AlpaSite(tmp_path).use_stand_in_for_alpa()


def test_figure_runs_over_nodes_and_is_verified_compared_and_judged(site: AlpaSite) -> None:
    for case in ("gpus=4", "gpus=8"):
        answer = site.submit_alpa(case, "--wait")
        assert answer.returncode == 0, answer.stdout + answer.stderr
    assert [(row["case"], row["state"], row["verdict"], row["iteration"]) for row in site.status()] == [
        ("gpus=4", "COMPLETED", "verified", None),
        ("gpus=8", "COMPLETED", "verified", None),
    ]
    (table,) = site.folder.glob(f"runs/*/gpus8/{TABLE}")
    assert table.read_text().startswith(
        "e2e\tp3.16\t1\t0\tgpt\tmegatron\t{'tflops': 50.9, 'parameter_count': 2.64860672}"
    )

    compared = json.loads(site.repro("compare", "alpa-gpt", "--json").stdout)["numbers"]
    rows = {row["case"]: row for row in compared if row["metric"] == "tflops_per_gpu"}
    assert (rows["gpus=8"]["measured"], rows["gpus=8"]["published"]) == (pytest.approx(50.9), 50.44)
    assert rows["gpus=4"]["within"] is True and rows["gpus=8"]["within"] is True
    claims = site.repro("claims", "alpa-gpt")
    assert claims.returncode == 0 and "gpus=8  tflops_per_gpu 50.9 " in claims.stdout


@pytest.mark.parametrize(
    ("behave", "failure", "why"),
    [
        ("killed", "killed", "canary"),
        ("oom", "gpu-oom", "canary"),
        ("silent", "incomplete", "canary"),
    ],
)
def test_failed_run_has_its_class_and_stops_the_jobs_behind_its_canary(
    site: AlpaSite, behave: str, failure: str, why: str
) -> None:
    site.behave(behave)
    answer = site.submit_alpa("gpus=4", "--repeat", "2", "--canary", "--wait")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    canary, other = sorted(site.status(), key=lambda row: row["failure"] == "stopped")
    assert (canary["verdict"], canary["failure"]) == ("failed", failure)
    assert other["failure"] == "stopped" and why in str(other["why"])
