"""Messages about a figure on a real Slurm: by a job after the last one, and Slurm's own mail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked_repro import run_forked
from tests.loopback_messages import TOKEN, message_server
from tests.slurm.cluster import SlurmCluster
from tests.slurm.site import SlurmSite
from tests.stand_in_site import UNDER_WAY
from tests.waiting import wait_until

# `repro` whose job sends the message without its delay.
HASTY = "import orchestrator.launch.notify_job as job; job.DELAY_S = 0; from orchestrator.cli.main import main; main()"


@pytest.mark.fault(
    section="Submissions",
    fault="Nobody waits for the jobs, or the command that waits is killed",
    promise="A job after the last one sends the message of `--notify`. Each end of a figure has one message.",
)
def test_a_job_sends_the_message_if_nobody_waits_and_slurm_sends_mail(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    log = slurm_cluster.folder / "log" / "mail"
    before = log.stat().st_size if log.exists() else 0

    def mails() -> str:
        return log.read_text()[before:] if log.exists() else ""

    site = SlurmSite(tmp_path).use_stand_in("mail_type: END,FAIL,ARRAY_TASKS", "mail_user: ada@example.org")
    with (tmp_path / "site.yaml").open("a") as profile:
        profile.write("site: {notify_job: true}\n")
    with message_server() as server:
        site.variables["REPRO_NOTIFY"] = server.url
        site.behave("fail", "pp2-gbs4")
        words = ("submit", "figure-13", "--cluster", "site.yaml", "--scale", "cpu", "--where", "gbs=4")
        done = run_forked(words, site.folder, site.environment, HASTY)
        assert done.returncode == 0, done.stderr
        assert "sends the message about figure-13 after its last job" in done.stderr
        [script] = (tmp_path / "runs").glob("*/notify/notify.sh")
        wait_until(lambda: server.messages, what="the job sends the message")
        [message] = server.messages
        assert message["title"].startswith("figure-13 cpu site: 2/6 verified, 1 failed, 3 without a job; claims: ")
        assert "failed: pp=2,tp=2,gbs=4 (gpu-oom): " in message["message"]
        assert all(row["state"] not in UNDER_WAY for row in site.status())
        site.repro("wait", "figure-13")
        assert len(server.messages) == 1
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == [] and script in files
    wait_until(lambda: mails().count(" ada@example.org\n") == 3, what="Slurm sends mail")
    assert mails().count("Name=figure-13-cpu Ended") == 2
