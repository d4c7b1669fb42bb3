"""Jobs of rendered scripts that a user submits with sbatch, on a real Slurm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite
from tests.waiting import wait_until


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Jobs were submitted by hand: one has ended, one runs, one waits, one was never submitted",
    promise="`repro adopt` records each submitted job once, with its Slurm job id. A later command judges its log.",
    count=1,
)
def test_jobs_submitted_with_sbatch_are_adopted_with_their_ids_and_judged(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    site = SlurmSite(tmp_path).use_stand_in()
    jobs = tmp_path / "jobs"
    rendered = site.repro(
        "render", "figure-13", "--cluster", "site.yaml", "--scale", "cpu", "--where", "tp=1", "-o", str(jobs)
    )
    more = site.repro(
        "render", "figure-13", "--cluster", "site.yaml", "--scale", "cpu", "--where", "tp=2", "-o", str(jobs)
    )
    assert (rendered.returncode, more.returncode) == (0, 0), rendered.stderr + more.stderr
    ended, running, waiting, never = (Path(line) for line in (rendered.stdout + more.stdout).split())

    def sbatch(script: Path, *options: str) -> str:
        words = ["sbatch", "--parsable", *options, str(script)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    ids = [sbatch(ended)]
    wait_until((ended.with_suffix("") / "end").exists)
    site.behave("gated")
    ids += [sbatch(running), sbatch(waiting, "--hold")]
    wait_until((running.with_suffix("") / "log.txt").exists)
    answer = site.repro("adopt", str(jobs), "--json")
    assert answer.returncode == 0, answer.stderr
    adopted = json.loads(answer.stdout)
    rows = {row["id"]: (row["state"], row["verdict"]) for row in adopted["jobs"]}
    assert rows == {ids[0]: ("COMPLETED", "verified"), ids[1]: ("RUNNING", None), ids[2]: ("PENDING", None)}
    assert adopted["not_submitted"] == [str(never)]
    (tmp_path / "go").touch()
    slurm_cluster.run("scontrol", "release", ids[2])
    assert {row["verdict"] for row in site.wait_until_ended()} == {"verified"}
    again = json.loads(site.repro("adopt", str(jobs), "--json").stdout)
    assert again["jobs"] == [] and len(again["adopted_before"]) == 3
