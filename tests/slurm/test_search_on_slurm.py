"""A search on a real Slurm, with a stand-in whose time grows with the number of pipeline stages."""

from __future__ import annotations

import json
from pathlib import Path

from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite

MODEL = "layers=8,hidden=64,heads=4,seq=64,vocab=512"
WORDS = ("search", MODEL, "--gpus", "4", "--gbs", "4", "--cluster", "site.yaml", "--cpu")
LAYOUTS = ("--where", "dp=1,cp=1,vp=1,mbs=1")


def test_a_search_runs_jobs_at_once_and_finds_the_winner_of_an_exhaustive_run(
    slurm_cluster: SlurmCluster,  # noqa: ARG001  starts Slurm
    tmp_path: Path,
) -> None:
    site = SlurmSite(tmp_path).use_stand_in()
    short = ("--iterations", "8", "--short", "8", "--max-parallel", "2")
    done = site.repro(*WORDS, *LAYOUTS, *short, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    measured = [row for row in found["candidates"] if row["state"] == "measured"]
    every = site.repro("submit", "8x64-4-gpus-batch-4", "--cluster", "site.yaml", "--wait", "--json")
    assert every.returncode == 0, every.stderr
    times = {row["case"]: row["iteration_ms"] for row in json.loads(every.stdout)["cases"]}
    assert found["winners"][0]["case"] == min(times, key=lambda name: times[name])
    assert len(times) == 2 and len(measured) == 2, "both run at once, because neither is known to be slower"
    runs = site.repro("sql", "select count(distinct run_id) as runs, count(*) as jobs from v_attempts", "--json")
    assert json.loads(runs.stdout)["rows"] == [{"runs": 2, "jobs": 2}]
