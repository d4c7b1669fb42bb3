"""Slurm's own mail about jobs, on a real Slurm."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite
from tests.waiting import wait_until


def test_slurm_sends_a_mail_for_each_job(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    log = slurm_cluster.folder / "log" / "mail"
    before = log.stat().st_size if log.exists() else 0

    def mails() -> str:
        return log.read_text()[before:] if log.exists() else ""

    site = SlurmSite(tmp_path).use_stand_in("mail_type: END,FAIL,ARRAY_TASKS", "mail_user: ada@example.org")
    site.behave("fail", "pp2-gbs4")
    site.repro("submit", "figure-13", "--cluster", "site.yaml", "--scale", "cpu", "--where", "gbs=4")
    wait_until(lambda: mails().count(" ada@example.org\n") == 3, what="Slurm sends mail")
    assert mails().count("Name=figure-13-cpu Ended") == 2
