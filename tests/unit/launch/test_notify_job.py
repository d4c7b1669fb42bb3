"""Job that sends the message about a figure: its script, and the sites that do not allow it."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clusters.resolve import Cluster
from orchestrator.config.user import Address
from orchestrator.errors import ReproError
from orchestrator.launch import notify_job
from orchestrator.launch.notify_job import Figure, render_notify_job
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.locks import FileSystem
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.submissions import record_submission
from orchestrator.paths import Folders
from tests.recorded_jobs import new_ledger, record_jobs
from tests.unit.clusters.sites import CHECKOUT, cluster_of

SITE = """\
about: a site
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 4}
slurm: {partition: batch, account: research, time_limit: 1:00:00, cpus_per_task: 16, mem: "0"}
"""
SECRET = "json://example.org/t0ken"
NFS = FileSystem("nfs4", "/shared", frozenset())


@pytest.fixture
def rows(tmp_path: Path) -> list[JobRow]:
    ledger = new_ledger(tmp_path)
    record_jobs(ledger, "a", "b", token="17", scheduler="slurm")
    record_submission(ledger, "17", "1041")
    return job_rows(ledger, only_open=True)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose file systems are shared."""
    monkeypatch.setattr(notify_job, "file_system_of", lambda _folder: NFS)


def script(folder: Path, rows: list[JobRow], text: str = SITE, origin: str = "--notify", url: str | None = None) -> str:
    ledger = new_ledger(folder)
    if url is not None:
        ledger = Ledger(ledger.url.set(drivername="postgresql", host="db", password="s3cret"), ledger.engine)
    figure = Figure("sc21/figure-13", "cpu", "local", "megatron-core")
    cluster: Cluster = cluster_of(folder, text)
    folders = Folders(CHECKOUT, folder)
    return render_notify_job(figure, rows, cluster, ledger, folders, "1-run", [Address(SECRET, origin)])


def test_the_script_runs_after_the_jobs_on_one_cpu_and_contains_no_url(tmp_path: Path, rows: list[JobRow]) -> None:
    text = script(tmp_path, rows)
    assert [line for line in text.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=repro-notify-figure-13",
        "#SBATCH --account=research",
        "#SBATCH --partition=batch",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --time=0:10:00",
        "#SBATCH --no-requeue",
        "#SBATCH --dependency=afterany:1041",
        f"#SBATCH --output={tmp_path}/runs/1-run/notify/log.txt",
    ]
    words = "wait sc21/figure-13 --scale cpu --cluster local --workload megatron-core --database"
    assert f'"$repro" {words} {tmp_path}/results.db --timeout 5m || code=$?' in text
    assert "t0ken" not in text and ': "${REPRO_NOTIFY:?' in text and "REPRO_DATABASE" not in text
    if shutil.which("shellcheck") is None:
        assert os.environ.get("CI") != "true", "shellcheck is not installed: apt-get install shellcheck"
        warnings.warn("shellcheck is not installed, so the script was not checked by it", stacklevel=1)
        return
    subprocess.run(["shellcheck", "--shell=bash", "-"], input=text, text=True, check=True)


def test_urls_of_the_configuration_are_read_there_and_that_of_a_server_is_a_variable(
    tmp_path: Path, rows: list[JobRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"notify: [{SECRET}]\n")
    monkeypatch.setenv("REPRO_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)
    text = script(tmp_path, rows, origin="config.yaml:1:10", url="postgresql")
    assert f"export REPRO_CONFIG={config}\n" in text and "REPRO_NOTIFY:?" not in text
    assert ': "${REPRO_DATABASE:?' in text and "s3cret" not in text and "--database" not in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("site: {notify_job: false}\n", "site.yaml:5:8 the profile has notify_job: false"),
        ("site: {offline_nodes: true}\n", "site.yaml:5:8 compute nodes reach no message service. Hint: set site: "),
    ],
)
def test_a_site_that_does_not_allow_the_job_is_named(
    tmp_path: Path, rows: list[JobRow], change: str, problem: str
) -> None:
    with pytest.raises(ReproError) as error:
        script(tmp_path, rows, SITE + change)
    assert problem in str(error.value)
    assert script(tmp_path, rows, SITE + "site: {offline_nodes: true, notify_job: true}\n")


def test_a_local_file_system_and_a_variable_that_does_not_reach_the_job_are_named(
    tmp_path: Path, rows: list[JobRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = SITE.replace('mem: "0"', "sbatch: ['--export=NIL']")
    with pytest.raises(ReproError, match="--export does not pass REPRO_NOTIFY to jobs"):
        script(tmp_path, rows, limited)
    assert script(tmp_path, rows, limited.replace("NIL", "NIL,REPRO_NOTIFY"))
    monkeypatch.setattr(notify_job, "file_system_of", lambda _folder: replace(NFS, type="ext4"))
    with pytest.raises(ReproError, match="on a file system that nodes may not see, ext4 at /shared"):
        script(tmp_path, rows)
