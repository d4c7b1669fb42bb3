"""Cluster of the test run: started once, stopped at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.process_caches  # noqa: F401  the import has an effect
from tests.slurm.cluster import SlurmCluster
from tests.slurm.crashes import pytest_runtest_protocol, pytest_runtest_teardown
from tests.slurm.host import ClusterUnavailable
from tests.unavailable import give_up

__all__ = ["paused_cluster", "pytest_runtest_protocol", "pytest_runtest_teardown", "slurm_cluster"]

KEPT_FOLDER = "REPRO_TEST_CLUSTER"
"""Environment variable: use (or make) the cluster in this folder and leave it up, which saves the bring-up."""


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Yield a real Slurm of four nodes with accounting. SLURM_CONF of this process names it."""
    kept = os.environ.get(KEPT_FOLDER)
    cluster = SlurmCluster(Path(kept or tempfile.mkdtemp(prefix="repro-slurm-")))
    try:
        try:
            cluster.up()
        except ClusterUnavailable as reason:
            give_up(f"no Slurm cluster: {reason}")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment().items():
                patch.setenv(name, value)
            yield cluster
    finally:
        if not kept:
            cluster.down()
            shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def paused_cluster(slurm_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Yield a cluster that accepts jobs and starts none."""
    slurm_cluster.run("scontrol", "update", "partitionname=batch", "state=down")
    try:
        yield slurm_cluster
    finally:
        slurm_cluster.run("scontrol", "update", "partitionname=batch", "state=up")
