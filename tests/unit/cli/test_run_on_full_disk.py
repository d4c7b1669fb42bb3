"""Tests of commands on a full disk: the message names the file, and jobs that are cancelled end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.calling import Caller
from tests.unit.cli.test_main_order_of_use import submit
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 1 MiB."""
    yield from file_system_of_1_mib(tmp_path / "small")


@pytest.fixture
def small_runs(repro: Caller) -> Iterator[Path]:
    """Yield the folder of runs, a file system of 1 MiB."""
    yield from file_system_of_1_mib(repro.site.folder / "runs")


def file_system_of_1_mib(folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system of a test's own can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


@pytest.mark.fault(
    section="Ledger",
    fault="The disk is full while jobs are cancelled",
    promise="The jobs end. The command reports that the ledger does not record it, exit code 2.",
)
def test_cancelling_on_a_full_disk_ends_the_jobs_and_reports_the_missing_record(repro: Caller, small: Path) -> None:
    database = ("--database", str(small / "r.db"))
    repro.site.behave("hang")
    submit(repro, "--where", "gbs=4", *database)
    wait_until(repro.site.sleepers)
    assert repro("status", *database).returncode == 0
    fill(small)
    done = repro("cancel", "figure-13", *database)
    assert done.returncode == 2 and len(done.stdout.splitlines()) == 3
    full, hint = f"{small}/r.db: the disk is full", "Hint: make room and repeat the command"
    assert done.complaints == [
        f"note: states are as last recorded: {full}. {hint}",
        "3 jobs are being cancelled",
        f"repro: {full}; the ledger does not record their cancellation. {hint}",
    ]
    wait_until(lambda: not repro.site.sleepers())
    assert len(repro.site.started()) == 1
    (small / "ballast").unlink()
    assert "CANCELLED" in repro("status", *database).stdout


@pytest.mark.fault(
    section="Submissions",
    fault="The disk of the scripts is full",
    promise="Nothing is submitted. The message names the script, exit code 2.",
)
def test_a_script_that_a_full_disk_cannot_hold_is_named(repro: Caller, small_runs: Path) -> None:
    assert submit(repro, "--where", "pp=1,gbs=4", "--wait").returncode == 0  # copies the program into the folder
    repro.site.wait_for_queues()
    started = len(repro.site.started())
    fill(small_runs)
    done = submit(repro)
    assert done.returncode == 2 and f"repro: {small_runs}/" in done.complaints[-1]
    assert done.complaints[-1].endswith(": cannot be written (No space left on device)"), done.complaints
    assert len(repro.site.started()) == started
