"""Cluster of the test run: started once, stopped at the end, or a line with the reason why there is none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.host import ClusterUnavailable

KEPT_FOLDER = "REPRO_TEST_CLUSTER"
"""Environment variable: use (or make) the cluster in this folder and leave it up, which saves the bring-up."""

_WHY_NOT = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def slurm_cluster(pytestconfig: pytest.Config) -> Iterator[SlurmCluster]:
    """Yield a real Slurm of four nodes with accounting. SLURM_CONF of this process names it."""
    kept = os.environ.get(KEPT_FOLDER)
    cluster = SlurmCluster(Path(kept or tempfile.mkdtemp(prefix="repro-slurm-")))
    try:
        _up(cluster, pytestconfig)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment().items():
                patch.setenv(name, value)
            yield cluster
    finally:
        if not kept:
            cluster.down()
            shutil.rmtree(cluster.folder, ignore_errors=True)


def _up(cluster: SlurmCluster, config: pytest.Config) -> None:
    try:
        cluster.up()
    except ClusterUnavailable as reason:
        config.stash[_WHY_NOT] = str(reason)
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"no Slurm cluster: {reason}", pytrace=False)
        pytest.skip(f"no Slurm cluster: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print one line at the end of the run if the tests on a real Slurm could not run."""
    if reason := config.stash.get(_WHY_NOT, None):
        terminalreporter.write_line(f"tests/slurm did not run, no Slurm cluster: {reason}")
