"""Tests of `repro cancel` on a full disk: the jobs end, and the command reports that the ledger has no record."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.calling import Caller
from tests.unit.cli.test_main_order_of_use import submit
from tests.waiting import wait_until


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
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
