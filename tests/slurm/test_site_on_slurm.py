"""read_site on a real Slurm, and the profile that is generated from its answer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.clusters.generate import profile_text
from orchestrator.clusters.resolve import find_cluster
from orchestrator.errors import Unreachable
from orchestrator.paths import Folders
from orchestrator.slurm.accounting import Qos
from orchestrator.slurm.nodes import Gres, NodeKind
from orchestrator.slurm.site import Choice, choose, read_site
from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.pyxis import Pyxis
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("slurm_cluster")


@pytest.fixture
def restricted_partition(slurm_cluster: SlurmCluster) -> Iterator[str]:
    """Yield a partition with its own rights and limits, on two nodes of which one has an additional feature."""
    first, second = slurm_cluster.node_names[-2:]
    rights = ("AllowAccounts=small", "AllowQos=limited", "QOS=limited", "OverSubscribe=EXCLUSIVE")
    slurm_cluster.run("scontrol", "update", f"NodeName={second}", "AvailableFeatures=h100,rack2")
    slurm_cluster.run(
        "scontrol", "create", "PartitionName=restricted", f"Nodes={first},{second}", "MaxTime=2-0", *rights
    )
    yield "restricted"
    slurm_cluster.run("scontrol", "delete", "PartitionName=restricted")
    slurm_cluster.run("scontrol", "update", f"NodeName={second}", "AvailableFeatures=h100", "ActiveFeatures=h100")


def test_partitions_and_nodes_are_those_of_the_configuration(slurm_cluster: SlurmCluster) -> None:
    shape, answer = slurm_cluster.shape, read_site("root")
    gpus = Gres("gpu", shape.gpu_type, shape.gpus_per_node)
    features = frozenset({shape.gpu_type})
    kind = NodeKind(shape.nodes, shape.cpus_per_node, shape.memory_mb, (gpus,), features, "x86_64")
    limits = {entry.name: (entry.max_nodes, entry.max_time_s, entry.default_time_s) for entry in answer.partitions}
    assert limits == {
        "batch": (None, 14400, 1800),
        "short": (2, 600, 120),
        "hi": (None, None, None),
        "lo": (None, None, None),
    }
    assert [entry.name for entry in answer.partitions if entry.is_default] == ["batch"]
    assert {entry.kinds for entry in answer.partitions} == {(kind,)} and all(entry.is_up for entry in answer.partitions)
    assert (answer.cluster_name, answer.complaints) == ("ci", ())
    assert answer.settings["EnforcePartLimits"] == "ALL" and answer.settings["MaxArraySize"] == "1001"
    assert answer.settings["SLURM_VERSION"] == answer.slurm_version != "" and answer.enforces_accounts


def test_accounts_and_limits_are_those_of_the_user() -> None:
    answer = read_site("root")
    accounts = {entry.account: entry for entry in answer.associations or ()}
    assert {"research", "small"} <= set(accounts)
    assert accounts["research"].is_default and not accounts["small"].is_default
    assert set(accounts["research"].qos) == {"normal", "low", "high", "limited"}
    assert accounts["research"].default_qos == "normal"
    assert answer.qos_named("limited") == Qos("limited", {"job node": 2, "user queue": 3}, frozenset({"DenyOnLimit"}))
    (other,) = read_site(OTHER_USER).associations or ()
    assert (other.account, other.is_default, "limited" in other.qos) == ("research", True, False)
    assert read_site("no-such-user").associations == ()


def test_an_account_without_gpus_is_not_proposed(slurm_cluster: SlurmCluster) -> None:
    small = next(entry for entry in read_site("root").associations or () if entry.account == "small")
    assert small.limits == {"user jobs": 2, "group gres/gpu": 16}
    account = ("sacctmgr", "-i", "-Q", "modify", "account", "research", "set")
    slurm_cluster.run(*account, "GrpTRES=gres/gpu=0")
    try:
        choice = choose(read_site("root"))
        research = next(entry for entry in choice.site.associations or () if entry.account == "research")
    finally:
        slurm_cluster.run(*account, "GrpTRES=gres/gpu=-1")
    assert (choice.partition.name, choice.largest) == ("batch", 16)
    assert "research" in choice.accounts and set(choice.usable_accounts) == {"small", "root"}
    of_research = Choice(choice.site, choice.partition, choice.kind, ("research",), research)
    assert of_research.obstacle == "account research allows no GPUs"


def test_jobs_of_the_usual_qos_are_preemptible_by_those_of_a_higher_one() -> None:
    """The tier of a partition does not count: PreemptType is preempt/qos."""
    choice = choose(read_site("root"))
    assert (choice.partition.name, choice.qos) == ("batch", "normal") and not choice.is_preemptible
    assert str(choice.preemption) == "preemptible by jobs of QOS high (PreemptMode=REQUEUE)"
    assert read_site("root").preemption(choice.partition, "high") is None


def test_options_and_mpi_plugins_of_srun_are_read() -> None:
    answer = read_site("root")
    assert {"account", "gpus-per-node", "mpi", "kill-on-bad-exit", "extra-node-info", "version"} <= answer.srun.names
    assert len(answer.srun.names) > 90 and "environment" not in answer.srun.names
    assert {"none", "pmi2"} <= set(answer.mpi_kinds) and answer.settings["MpiDefault"] in answer.mpi_kinds


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("0.24", ("0.24", None)),
        ("0.21", ("0.20", "0.24")),
        ("0.15", ("0.15", "0.20")),
        ("0.12", ("0.11", "0.15")),
        ("0.8", ("0.8", "0.11")),
    ],
)
def test_pyxis_version_follows_from_the_options_in_the_help(
    slurm_cluster: SlurmCluster, version: str, fits: tuple[str, str | None]
) -> None:
    with slurm_cluster.pyxis(Pyxis(version=version)):
        assert read_site("root").srun.pyxis_versions == fits


def test_a_reservation_is_listed(slurm_cluster: SlurmCluster) -> None:
    node = slurm_cluster.node_names[0]
    times = ("StartTime=now+1day", "Duration=60")
    slurm_cluster.run(
        "scontrol", "create", "reservation", "ReservationName=weekly", *times, "Users=root", f"Nodes={node}"
    )
    try:
        assert read_site("root").reservations == ("weekly",)
    finally:
        slurm_cluster.run("scontrol", "delete", "ReservationName=weekly")
    assert read_site("root").reservations == ()


def test_a_drained_node_still_counts(slurm_cluster: SlurmCluster) -> None:
    node = slurm_cluster.node_names[-1]
    before = read_site("root").partitions
    slurm_cluster.set_node(node, "drain", "bad gpu Gres=gpu:x:1 Partitions=zz")
    try:
        assert read_site("root").partitions == before
    finally:
        slurm_cluster.set_node(node, "resume")


def test_site_is_read_without_accounting_and_has_a_warning(slurm_cluster: SlurmCluster) -> None:
    with slurm_cluster.without_accounting():
        answer = read_site("root")
    assert answer.associations is None and answer.qos is None and len(answer.partitions) == 4
    (complaint,) = answer.complaints
    assert complaint.startswith("sacctmgr: ") and "slurmdbd" in complaint


def test_site_without_controller_is_unreachable(slurm_cluster: SlurmCluster) -> None:
    with slurm_cluster.without_controller(), pytest.raises(Unreachable, match="scontrol"):
        read_site("root")


@pytest.mark.parametrize("partition", [None, "short", "lo", "restricted"])
def test_slurm_accepts_jobs_of_a_generated_profile(
    slurm_cluster: SlurmCluster, tmp_path: Path, restricted_partition: str, partition: str | None
) -> None:
    file = tmp_path / "here.yaml"
    file.write_text(profile_text(read_site("root"), "here", partition, "../schemas/cluster.json"))
    cluster = find_cluster(Folders(shipped=tmp_path, home=tmp_path), str(file))
    asked, hardware = cluster.profile.slurm, cluster.hardware
    assert asked is not None and [blank.path for blank in cluster.unfilled if blank.path[0] != "container"] == []
    assert hardware.gpu == "H100"
    most = asked.max_nodes or hardware.nodes
    assert most == (2 if partition in ("short", restricted_partition) else 4)
    assert (asked.partition, asked.gres_type) == (partition or "batch", "h100")
    options = (
        *(f"--account={asked.account}", f"--partition={asked.partition}", f"--time={asked.time_limit}"),
        *(f"--mem={asked.mem}", f"--nodes={most}", f"--ntasks-per-node={hardware.gpus_per_node}"),
        *(f"--cpus-per-task={asked.cpus_per_task}", f"--gpus-per-node={asked.gres_type}:{hardware.gpus_per_node}"),
        *(f"--qos={asked.qos}", "--exclusive", "--test-only", "--wrap", "true"),
    )
    assert asked.gpu_request == "gpus-per-node" and asked.exclusive
    # A controller that has just started does not have its nodes yet, and reports that no job has nodes.
    wait_until(lambda: "unk" not in slurm_cluster.run("sinfo", "-h", "-o", "%t"), what="nodes are known")
    answer = subprocess.run(["sbatch", *options], capture_output=True, text=True, check=False)
    assert answer.returncode == 0 and f"partition {asked.partition}" in answer.stderr, answer.stderr
    more = subprocess.run(["sbatch", *options, f"--nodes={most + 1}"], capture_output=True, text=True, check=False)
    assert more.returncode != 0, "the profile has as many nodes as a job can get"
