"""Checks of a profile against a site: each mistake of an administrator is one line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clusters.check import Finding, check_login
from orchestrator.clusters.generate import profile_text
from orchestrator.slurm.accounting import Association, Qos
from orchestrator.slurm.nodes import Gres, NodeKind, Partition
from orchestrator.slurm.site import PYXIS_SINCE, Site, SrunOptions, choose
from tests.unit.clusters.sites import cluster_of

PROFILE = """\
about: a cluster of the tests
scheduler: slurm
hardware:
  nodes: 4
  gpus_per_node: 8
  gpu: A100
  gpu_memory_gb: 80
  peak_tflops: {bf16: 312}
slurm:
  account: research
  partition: gpus
  qos: normal
  time_limit: 1:00:00
  gres_type: a100
  cpus_per_task: 8
  mpi: pmix
"""

PYXIS = """\
container:
  runtime: pyxis
  version: "0.20"
"""

GPUS = NodeKind(4, 64, 500_000, (Gres("gpu", "a100", 8),), frozenset({"a100", "80g", "ib"}), "x86_64")
SITE = Site(
    user="ann",
    cluster_name="ci",
    slurm_version="24.05",
    partitions=(
        Partition("gpus", nodes=4, max_time_s=86400, kinds=(GPUS,)),
        Partition("debug", is_default=True, nodes=1, max_nodes=1, max_time_s=1800, kinds=(replace(GPUS, count=1),)),
    ),
    associations=(Association("research", ("normal", "long"), "normal", is_default=True), Association("small")),
    qos=(
        Qos("normal"),
        Qos("long", {"job wall": 36000}),
        Qos("tiny", {"job node": 2, "job gres/gpu": 16, "job wall": 600}),
    ),
    mpi_kinds=("pmi2", "pmix"),
    settings={"AccountingStorageEnforce": "associations,limits,qos"},
    reservations=("monday",),
)


def pyxis_of(version: tuple[int, int]) -> SrunOptions:
    """Return the options of srun with this pyxis."""
    names = frozenset(name for name, since in PYXIS_SINCE.items() if since <= version)
    return SrunOptions(names, names)


def check_findings(folder: Path, changed: str = "", site: Site = SITE, profile: str = PROFILE) -> list[Finding]:
    return check_login(cluster_of(folder, profile, changed or "{}"), site)


def faults(folder: Path, changed: str = "", site: Site = SITE, profile: str = PROFILE) -> list[str]:
    """Return each fault as it is printed, with file names without the folder."""
    findings = [finding for finding in check_findings(folder, changed, site, profile) if finding.is_fault]
    assert all(finding.location and finding.place == "login" for finding in findings)
    return [
        f"{str(finding.location).rpartition('/')[2]} {finding.check}: {finding.found}; {finding.hint}"
        for finding in findings
    ]


def result_of(check: str, findings: list[Finding]) -> tuple[str, str]:
    (finding,) = [finding for finding in findings if finding.check == check]
    return finding.result, finding.found


def test_a_profile_that_is_right_has_every_check_and_no_fault(tmp_path: Path) -> None:
    findings = check_findings(tmp_path)
    assert {finding.result for finding in findings} == {"ok"} and all(finding.location for finding in findings)
    assert [finding.check for finding in findings] == [
        "slurm.partition",
        "slurm.account",
        "slurm.qos normal",
        "slurm.time_limit",
        "hardware.nodes",
        "slurm.gres_type",
        "hardware.gpus_per_node",
        "slurm.cpus_per_task",
        "slurm.mpi",
    ]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ("slurm: {partition: gpu}", '1:9 slurm.partition: gpu: no such partition; did you mean "gpus"?'),
        ("slurm: {partition: xyz}", "1:9 slurm.partition: xyz: no such partition; there are: gpus, debug"),
        ("slurm: {account: reserch}", '1:9 slurm.account: reserch is not an account of ann; did you mean "research"?'),
        ("slurm: {account: zzz}", "slurm.account: zzz is not an account of ann; your accounts are: research, small"),
        ("slurm: {qos: nrmal}", '1:9 slurm.qos nrmal: no such QOS; did you mean "normal"?'),
        ("slurm: {qos: tiny}", "1:9 slurm.qos tiny: account research cannot use it; there are: normal, long"),
        ("slurm: {gres_type: x100}", '1:9 slurm.gres_type: x100: no such GPU type in gpus; did you mean "a100"?'),
        ("hardware: {gpus_per_node: 4}", "hardware.gpus_per_node: is 4, but the nodes have 8; set gpus_per_node: 8"),
        ("hardware: {gpus_per_node: 16}", "hardware.gpus_per_node: is 16, but the nodes have 8; set gpus_per_node: 8"),
        ("hardware: {nodes: 5}", "1:12 hardware.nodes: is 5, but gpus has 4; set nodes: 4"),
        ("slurm: {constraint: h100&ib}", '1:9 slurm.constraint: no node of gpus has h100; did you mean "a100"?'),
        ("slurm: {reservation: friday}", "1:9 slurm.reservation: friday: no such reservation; there are: monday"),
        ("slurm: {time_limit: 48:00:00}", "time_limit: 48:00:00, but gpus allows 1-0:00:00; set time_limit: 1-0:00:00"),
        ("slurm: {max_time: 2-0:00:00}", "max_time: 2-0:00:00, but gpus allows 1-0:00:00; set max_time: 1-0:00:00"),
        ("slurm: {cpus_per_task: 9}", "cpus_per_task: 8 tasks of 9, but the nodes have 64 CPUs; set cpus_per_task: 8"),
        ("slurm: {mpi: pmi3}", '1:9 slurm.mpi: pmi3: srun has no such MPI type; did you mean "pmix"?'),
        ("site: {architecture: aarch64}", "site.architecture: is aarch64, but the nodes are x86_64; None"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_place_and_its_mend(tmp_path: Path, changed: str, line: str) -> None:
    (message,) = faults(tmp_path, changed)
    assert message.startswith("site.local.yaml:1:") and message.endswith(line), message


@pytest.mark.parametrize(
    "right",
    [
        "slurm: {constraint: '[a100*2|80g]&!ib'}",
        "slurm: {reservation: monday}",
        "slurm: {qos: long}",
        "slurm: {tasks: per-node, cpus_per_task: 64}",
        "slurm: {mpi: none}",
        "slurm: {account: null}",
        "site: {architecture: x86_64}",
    ],
)
def test_what_slurm_allows_is_no_fault(tmp_path: Path, right: str) -> None:
    assert faults(tmp_path, right) == []


# ---- partitions ----------------------------------------------------------------------------------------------


def test_a_partition_that_is_down_and_a_cluster_without_a_default_are_faults(tmp_path: Path) -> None:
    down = replace(SITE, partitions=(replace(SITE.partitions[0], is_up=False),))
    assert faults(tmp_path, site=down) == [
        "site.yaml:11:3 slurm.partition: gpus is not up; choose a partition that sinfo -s lists as up"
    ]
    (message,) = faults(tmp_path, "slurm: {partition: null}", down)
    assert "missing, and the cluster has no default partition; set slurm: partition:; there are: gpus" in message


def test_without_a_partition_jobs_are_checked_against_the_default_partition(tmp_path: Path) -> None:
    message = faults(tmp_path, "slurm: {partition: null}")
    assert [line.partition(" ")[2] for line in message] == [
        "slurm.time_limit: 1:00:00, but debug allows 0:30:00; set time_limit: 0:30:00",
        "slurm.max_nodes: jobs may have 4 nodes, but debug allows 1; set max_nodes: 1",
        "hardware.nodes: is 4, but debug has 1; set nodes: 1",
    ]


def test_planned_jobs_larger_than_the_partition_are_a_fault_without_max_nodes(tmp_path: Path) -> None:
    site = replace(SITE, partitions=(replace(SITE.partitions[0], max_nodes=2),))
    (message,) = faults(tmp_path, site=site)
    assert message.endswith("jobs may have 4 nodes, but gpus allows 2; set max_nodes: 2")
    assert faults(tmp_path, "slurm: {max_nodes: 2}", site) == []


def test_only_nodes_with_the_requested_gpus_and_feature_are_counted(tmp_path: Path) -> None:
    other = replace(GPUS, count=3, gres=(Gres("gpu", "v100", 4),), features=frozenset({"old"}), cpus=96)
    site = replace(SITE, partitions=(Partition("gpus", nodes=7, kinds=(GPUS, other)),))
    assert faults(tmp_path, "slurm: {gres_type: a100, cpus_per_task: 8}", site) == []
    message = faults(tmp_path, "hardware: {nodes: 7}", site)
    assert message == ["site.local.yaml:1:12 hardware.nodes: is 7, but gpus has 4 such nodes; set nodes: 4"]
    message = faults(
        tmp_path, "slurm: {gres_type: null, constraint: old, cpus_per_task: 1}\nhardware: {nodes: 3}", site
    )
    assert message == ["site.yaml:5:3 hardware.gpus_per_node: is 8, but the nodes have 4; set gpus_per_node: 4"]


def test_a_partition_without_gpus_is_a_fault_unless_jobs_request_none(tmp_path: Path) -> None:
    site = replace(SITE, partitions=(Partition("gpus", nodes=4, kinds=(replace(GPUS, gres=()),)),))
    (message,) = faults(tmp_path, site=site)
    assert message.endswith(
        "slurm.gpu_request: Slurm has no GPUs in partition gpus; set gpu_request: none if jobs get whole nodes"
    )
    findings = check_findings(tmp_path, "slurm: {gpu_request: none, gres_type: null}", site)
    assert result_of("hardware.gpus_per_node", findings)[0] == "unknown" and not any(
        finding.is_fault for finding in findings
    )


def test_nodes_that_slurm_does_not_show_are_unknown_and_no_fault(tmp_path: Path) -> None:
    site = replace(SITE, partitions=(Partition("gpus", nodes=4),))
    findings = check_findings(tmp_path, "slurm: {constraint: whatever}", site)
    assert result_of("hardware.gpus_per_node", findings)[0] == result_of("slurm.constraint", findings)[0] == "unknown"
    assert not any(finding.is_fault for finding in findings)


def test_a_reservation_is_unknown_where_slurm_does_not_list_them(tmp_path: Path) -> None:
    site = replace(SITE, reservations=(), complaints=("scontrol show reservation: Access/permission denied",))
    assert result_of("slurm.reservation", check_findings(tmp_path, "slurm: {reservation: x}", site))[0] == "unknown"


# ---- accounting ----------------------------------------------------------------------------------------------


def test_a_partition_that_accepts_only_other_accounts_and_qos_is_a_fault(tmp_path: Path) -> None:
    picky = replace(SITE.partitions[0], deny_accounts=frozenset({"research"}), allow_qos=frozenset({"long"}))
    account, qos = faults(tmp_path, site=replace(SITE, partitions=(picky,)))
    assert "slurm.account: partition gpus does not accept research; ask the administrator of the cluster" in account
    assert qos.endswith("slurm.qos normal: partition gpus does not accept it; there are: long")


def test_an_account_of_another_partition_alone_is_a_fault(tmp_path: Path) -> None:
    site = replace(SITE, associations=(Association("research", ("normal",), partition="debug"),))
    (message,) = faults(tmp_path, site=site)
    assert "slurm.account: research cannot use partition gpus" in message


def test_no_account_is_a_fault_only_where_slurm_asks_for_one_and_there_is_no_default(tmp_path: Path) -> None:
    none = "slurm: {account: null, qos: null}"
    without_default = replace(SITE, associations=(Association("a"), Association("b")))
    assert faults(tmp_path, none) == []
    (message,) = faults(tmp_path, none, without_default)
    assert message.endswith("slurm.account: missing, but Slurm requires one; your accounts are: a, b")
    free = replace(without_default, settings={"AccountingStorageEnforce": "none"})
    assert faults(tmp_path, none, free) == faults(tmp_path, "slurm: {account: any, qos: null}", free) == []


def test_accounting_that_does_not_answer_leaves_account_and_qos_unknown(tmp_path: Path) -> None:
    findings = check_findings(tmp_path, site=replace(SITE, associations=None, qos=None))
    assert result_of("slurm.account", findings)[0] == result_of("slurm.qos normal", findings)[0] == "unknown"
    assert not any(finding.is_fault for finding in findings)


TINY = replace(SITE, associations=(Association("research", ("normal", "tiny"), "tiny", is_default=True),))


def test_a_qos_with_lower_limits_than_the_profile_is_a_fault_of_its_line(tmp_path: Path) -> None:
    changed = (
        "slurm:\n  qos:\n    - {name: tiny, max_nodes: 3, max_gpus: 24, max_time: 0:30:00}\n    - {name: normal}\n"
    )
    (message,) = faults(tmp_path, changed, TINY)
    assert message == (
        "site.local.yaml:3:7 slurm.qos tiny: jobs may have 3 nodes, Slurm's limit is 2; "
        "jobs may take 0:30:00, Slurm's limit is 0:10:00; set max_nodes: 2, max_time: 0:10:00"
    )
    assert faults(tmp_path, changed.replace("3, max_gpus: 24, max_time: 0:30:00", "2, max_time: 0:10:00"), TINY) == []


def test_a_qos_without_limits_in_the_profile_is_checked_against_the_largest_job(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, "slurm: {qos: tiny, max_nodes: 2}", TINY)
    assert message.endswith("slurm.qos tiny: jobs may take 1:00:00, Slurm's limit is 0:10:00; set time_limit: 0:10:00")
    gpus = replace(TINY, qos=(Qos("tiny", {"job gres/gpu": 8}),))
    (message,) = faults(tmp_path, "slurm: {qos: tiny}", gpus)
    assert message.endswith("jobs may have 32 GPUs, Slurm's limit is 8; set max_nodes: 1")


def test_the_limits_of_the_default_qos_are_checked(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, "slurm: {qos: null, time_limit: 0:10:00}", TINY)
    assert message.endswith("slurm.qos tiny: jobs may have 4 nodes, Slurm's limit is 2; set max_nodes: 2")
    assert faults(tmp_path, "slurm: {qos: null, time_limit: 0:10:00, max_nodes: 2}", TINY) == []


def test_the_partitions_own_qos_has_the_first_word(tmp_path: Path) -> None:
    wide = replace(
        TINY,
        partitions=(replace(SITE.partitions[0], qos="wide"),),
        qos=(*(SITE.qos or ()), Qos("wide", {"job node": 100, "job gres/gpu": 800, "job wall": 86400})),
    )
    assert faults(tmp_path, "slurm: {qos: tiny}", wide) == []
    narrow = replace(wide, qos=(Qos("normal"), Qos("wide", {"job node": 1})))
    (message,) = faults(tmp_path, site=narrow)
    assert message.endswith("slurm.qos normal: jobs may have 4 nodes, Slurm's limit is 1; set max_nodes: 1")


def test_a_limit_below_a_node_or_of_nothing_has_a_hint_that_helps(tmp_path: Path) -> None:
    site = replace(TINY, qos=(Qos("tiny", {"job gres/gpu": 2}),))
    (message,) = faults(tmp_path, "slurm: {qos: tiny, exclusive: true}", site)
    assert message.endswith(
        "Slurm's limit is 2; jobs may have all 8 GPUs of a node (exclusive), Slurm's limit is 2; "
        "set qos: [{name: tiny, max_gpus: 2}], exclusive: false"
    )
    assert faults(tmp_path, "slurm: {qos: [{name: tiny, max_gpus: 2}], exclusive: false}", site) == []
    zero = replace(TINY, qos=(Qos("normal"), Qos("tiny", {"group gres/gpu:a100": 0})))
    (message,) = faults(tmp_path, "slurm: {qos: tiny}", zero)
    assert message.endswith("slurm.qos tiny: QOS tiny allows no GPUs; set qos: normal")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ("hardware: {gpu: H100, peak_tflops: {bf16: 1979}}\nslurm: {gres_type: null}", "set bf16: 989"),
        (
            "hardware: {gpu: H100}",
            "hardware.gpu: is H100, but gres_type requests A100; set gpu: A100, or another gres_type",
        ),
        ("hardware: {gpu_memory_gb: 81559}", "set gpu_memory_gb: 85"),
    ],
)
@pytest.mark.fault(
    section="Submissions",
    fault="The profile has a sparse peak, another GPU than its `gres_type`, or memory in MB",
    promise="`clusters check` names the value of the data sheet.",
)
def test_values_against_the_data_sheet_are_faults(tmp_path: Path, changed: str, line: str) -> None:
    (message,) = faults(tmp_path, changed)
    assert message.endswith(line), message


def test_a_partition_of_another_group_or_of_slices_is_a_fault_with_the_usable_one(tmp_path: Path) -> None:
    closed = replace(SITE.partitions[0], allow_groups=frozenset({"lab"}))
    site = replace(SITE, partitions=(closed, SITE.partitions[1]), groups=frozenset({"users"}))
    (message,) = faults(tmp_path, site=site)
    assert message.endswith("gpus is only for the groups lab; use another partition: debug")


# ---- containers ----------------------------------------------------------------------------------------------


def test_a_site_without_pyxis_is_named_once(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, f"{PYXIS}  pass_env: [NCCL_DEBUG]\n")
    assert "container.runtime: srun has no --container-image, the option of pyxis; install pyxis, or remove" in message


@pytest.mark.parametrize("field", ["pass_env: [NCCL_DEBUG]", "writable: true"])
def test_a_pyxis_too_old_for_what_the_profile_asks_of_it_is_named(tmp_path: Path, field: str) -> None:
    old = replace(SITE, srun=pyxis_of((0, 8)))
    message = faults(tmp_path, f"container:\n  runtime: pyxis\n  {field}\n", old)[0]
    name = field.partition(":")[0]
    assert message.startswith(f"site.local.yaml:3:3 container.{name}: this pyxis has no --container-")
    assert message.endswith(f"pyxis 0.8, older than 0.11; install a newer version, or remove container.{name}:")


def test_a_pyxis_without_an_option_for_a_readonly_image_wants_its_version_in_the_profile(tmp_path: Path) -> None:
    old = replace(SITE, srun=pyxis_of((0, 8)))
    (message,) = faults(tmp_path, "container:\n  runtime: pyxis\n", old)
    assert message.startswith("site.local.yaml:1:1 container.version: this pyxis has no --container-readonly; ")
    assert message.endswith('set container: version: "0.8"')
    assert faults(tmp_path, 'container:\n  runtime: pyxis\n  version: "0.8"\n', old) == []


def test_a_pyxis_that_cannot_pass_the_submitters_secrets_is_named(tmp_path: Path) -> None:
    changed = "container: {runtime: pyxis}\nenv_from: [HF_TOKEN]\n"
    (message,) = faults(tmp_path, changed, replace(SITE, srun=pyxis_of((0, 14))))
    assert message.startswith("site.local.yaml:2:1 env_from: this pyxis has no --container-env; ")
    assert faults(tmp_path, changed, replace(SITE, srun=pyxis_of((0, 15)))) == []


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ((0, 14), 'is 0.20, but srun\'s options are those of pyxis 0.11, older than 0.15; set version: "0.11"'),
        ((0, 20), None),
        ((0, 23), None),
        ((0, 24), 'is 0.20, but srun\'s options are those of pyxis 0.24 or newer; set version: "0.24"'),
    ],
)
def test_a_pyxis_version_is_checked_against_the_options_of_srun(
    tmp_path: Path, there: tuple[int, int], message: str | None
) -> None:
    findings = faults(tmp_path, PYXIS, replace(SITE, srun=pyxis_of(there)))
    assert findings == ([f"site.local.yaml:3:3 container.version: {message}"] if message else [])


def test_the_engine_of_cscs_is_looked_for_under_its_own_option(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, "container: {runtime: edf}\n")
    assert message.startswith("site.local.yaml:1:13 container.runtime: srun has no --environment; ")
    assert (
        faults(tmp_path, "container: {runtime: edf}\n", replace(SITE, srun=SrunOptions(frozenset({"environment"}))))
        == []
    )


def test_missing_facts_of_gpus_are_listed_and_are_no_fault(tmp_path: Path) -> None:
    findings = check_findings(tmp_path, "hardware: {gpu_memory_gb: , peak_tflops: }")
    later = [(finding.check, finding.hint) for finding in findings if finding.result == "later"]
    assert later == [
        ("hardware.gpu_memory_gb", "add hardware: gpu_memory_gb:"),
        ("hardware.peak_tflops", "add hardware: peak_tflops:"),
    ]
    assert not any(finding.is_fault for finding in findings)


# ---- open values, and checks without an answer ---------------------------------------------------------------


def test_a_blank_is_open_once_and_one_that_only_a_program_needs_can_wait(tmp_path: Path) -> None:
    changed = (
        "slurm: {account: <yours>, partition: <which>, constraint: <feature>, qos: <qos>}\n"
        "container: {runtime: pyxis, images: {pretrain: <file>}, mounts: [<data>]}\n"
        "programs: {megatron-2026: {checkout: <where>}}\n"
    )
    findings = check_findings(tmp_path, changed, replace(SITE, srun=pyxis_of((0, 24))))
    results = {finding.check: finding.result for finding in findings}
    waiting = {name for name, result in results.items() if result == "later"}
    assert waiting == {"container.images.pretrain", "programs.megatron-2026.checkout"}
    faulty = [finding for finding in findings if finding.is_fault]
    assert {finding.result for finding in faulty} == {"open"}
    assert {finding.check for finding in faulty} == {
        *(f"slurm.{name}" for name in ("account", "partition", "constraint", "qos")),
        "container.mounts.0",
    }
    assert all(finding.hint and finding.hint.endswith("site.local.yaml") for finding in faulty)


def test_container_options_in_sbatch_are_refused_before_any_query(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="container options belong to container:"):
        cluster_of(tmp_path, PROFILE, 'slurm: {sbatch: ["--container-image=/x.sqsh"]}')


# ---- hints -------------------------------------------------------------------------------------------------------

SMALL = NodeKind(2, 8, 250_000, (Gres("gpu", "v100", 4),), frozenset({"v100"}), "x86_64")
SLICED = replace(GPUS, gres=(Gres("gpu", "a100", 8), Gres("gpu", "a100_1g.10gb", 7)))
NO_GPUS = Association("research", is_default=True, limits={"group gres/gpu": 0})
OTHER = Partition("other", nodes=4, max_time_s=86400, kinds=(GPUS,))


def with_gpus(others: tuple[Partition, ...] = (OTHER,), **changes: Any) -> Site:
    """Return the site with these changes of its first partition."""
    return replace(SITE, partitions=(replace(SITE.partitions[0], **changes), *others))


def with_account(limits: dict[str, int], *others: Association, **changes: Any) -> Site:
    mine = Association("research", ("normal",), "normal", is_default=True, limits=limits)
    return replace(with_gpus(**changes), associations=(mine, *others))


def applied(overlay: dict[str, Any], finding: Finding) -> bool:
    """Apply the hint of a finding to the overlay. Return False if a person has to help."""
    hint, block = finding.hint or "", finding.check.split()[0].partition(".")[0]
    field = finding.check.split()[0].partition(".")[2]
    if match := re.match(r"use another partition: ([\w-]+)", hint):
        needs = re.search(r"\(\S+ with (.*)\)", hint)
        values = {"partition": match[1], **yaml.safe_load("{" + (needs[1] if needs else "") + "}")}
    elif hint.startswith("remove qos"):
        values = {"qos": None}
    elif match := re.match(r'(?:there are: |your accounts are: |did you mean ")([\w-]+)', hint):
        values = {field: match[1]}
    elif hint.startswith("set "):
        text = re.sub(r", which .*|, or .*| or [\w-]+$", "", hint.removeprefix("set "))
        values = yaml.safe_load("{" + text + "}")
    else:
        assert hint.startswith("ask the administrator"), hint
        return False
    for key, value in values.items():
        if key in ("bf16", "fp16", "fp32"):
            overlay.setdefault("hardware", {}).setdefault("peak_tflops", {})[key] = value
        else:
            of = "hardware" if key in ("nodes", "gpus_per_node", "gpu", "gpu_memory_gb") else "slurm"
            overlay.setdefault(of, {})[key] = value
    assert block in ("slurm", "hardware")
    return True


@pytest.mark.parametrize(
    ("site", "changed"),
    [
        (with_gpus(allow_groups=frozenset({"owners"})), {}),
        (with_gpus(allow_groups=frozenset()), {}),
        (with_gpus(needs_reservation=True), {}),
        (with_gpus(is_up=True, deny_accounts=frozenset({"research"}), allow_qos=frozenset({"long"})), {}),
        (with_gpus(allow_accounts=frozenset({"small"}), allow_qos=None), {}),
        (with_gpus(allow_qos=frozenset({"owners"})), {}),
        (with_gpus(allow_qos=frozenset({"owners"})), {"slurm": {"qos": None}}),
        (with_gpus(allow_qos=frozenset({"long"})), {"slurm": {"qos": None}}),
        (with_gpus(max_nodes=2, max_time_s=600), {}),
        (with_gpus(max_time_s=600), {"slurm": {"max_time": "2-0:00:00"}}),
        (with_gpus(kinds=(SLICED,)), {"slurm": {"gres_type": "a100_1g.10gb"}}),
        (with_gpus(kinds=(SLICED,)), {"slurm": {"gres_type": None}}),
        (with_gpus(kinds=(replace(GPUS, gres=SLICED.gres[1:]),)), {}),
        (with_gpus(kinds=(SMALL,), nodes=2), {}),
        (with_gpus(kinds=(replace(GPUS, cpus=4),)), {}),
        (with_gpus(kinds=(), nodes=0), {}),
        (with_gpus(), {"slurm": {"account": "reserch"}}),
        (with_account({"group gres/gpu": 16}), {}),
        (with_account({"group gres/gpu": 3}), {}),
        (with_account({"group gres/gpu": 3}, is_exclusive=True), {}),
        (with_account({"group gres/gpu": 3}), {"slurm": {"qos": None}}),
        (with_account({"group gres/gpu:a100": 0}, Association("small")), {}),
        (with_account({"group gres/gpu:a100": 0}, Association("small")), {"slurm": {"account": None, "qos": None}}),
        (with_account({"group gres/gpu:a100": 0}), {"slurm": {"gres_type": None}}),
        (replace(with_gpus(), associations=(NO_GPUS, Association("small"))), {}),
        (replace(with_gpus(), associations=(NO_GPUS, Association("small"))), {"slurm": {"qos": None}}),
        (with_account({"job node": 1, "job wall": 600, "user jobs": 0}), {}),
        (with_account({"job node": 1, "job wall": 600}), {}),
        (with_account({"job node": 0}), {"slurm": {"qos": None}}),
        (with_account({}, qos="zero"), {}),
        (replace(TINY, qos=(Qos("normal"), Qos("tiny", {"group gres/gpu": 0}))), {"slurm": {"qos": "tiny"}}),
        (replace(TINY, qos=(Qos("normal"), Qos("tiny", {"group gres/gpu": 0}))), {"slurm": {"qos": None}}),
        (replace(TINY, qos=(Qos("tiny", {"user gres/gpu": 5}),)), {"slurm": {"qos": "tiny"}}),
        (SITE, {"hardware": {"gpu": "H100", "peak_tflops": {"bf16": 1979, "fp32": 989}}}),
        (SITE, {"hardware": {"gpu_memory_gb": 81920}}),
        (SITE, {"hardware": {"gpu": "NVIDIA L40S"}}),
    ],
)
@pytest.mark.fault(
    section="Submissions",
    fault="The profile asks for GPUs, an account or a QOS that Slurm does not give to the user",
    promise="`clusters check` reports it, and no hint leads to the same fault again.",
)
def test_a_hint_never_leads_to_the_same_fault(tmp_path: Path, site: Site, changed: dict[str, Any]) -> None:
    zero = Qos("zero", {"group gres/gpu": 0})
    site = replace(site, qos=(*(site.qos or ()), zero), groups=frozenset({"users"}))
    overlay = json.loads(json.dumps(changed))
    seen: set[tuple[str, str]] = set()
    for number in range(8):
        found = [finding for finding in check_findings(tmp_path, yaml.dump(overlay), site) if finding.is_fault]
        assert found or number, "a fault that is not found"
        if not found:
            return
        first = found[0]
        assert (first.check, first.found) not in seen, f"{first.hint} leads to the same fault"
        seen.add((first.check, first.found))
        if not applied(overlay, first):
            return
    raise AssertionError(f"no end: {seen}")


def test_another_account_that_can_use_the_partition_is_proposed(tmp_path: Path) -> None:
    site = replace(with_gpus(deny_accounts=frozenset({"research"})), associations=(*(SITE.associations or ()),))
    account, *_ = faults(tmp_path, site=site)
    assert account.endswith(
        "partition gpus does not accept research; set account: small, qos: null, which can use partition gpus"
    )


def test_a_preemptible_partition_or_qos_is_named(tmp_path: Path) -> None:
    site = with_gpus(preempt_mode="REQUEUE")
    shown = result_of("slurm.partition", check_findings(tmp_path, site=site))
    assert shown == ("ok", "gpus, 4 nodes, preemptible by jobs of other partitions (PreemptMode=REQUEUE)")
    settings = {**SITE.settings, "PreemptType": "preempt/qos", "PreemptMode": "CANCEL"}
    urgent = replace(SITE, settings=settings, qos=(Qos("normal"), Qos("urgent", preempts=frozenset({"normal"}))))
    shown = result_of("slurm.qos normal", check_findings(tmp_path, site=urgent))
    assert shown[1].endswith("; preemptible by jobs of QOS urgent (PreemptMode=CANCEL)")


def test_a_flag_of_the_qos_lifts_the_limits_of_the_partition(tmp_path: Path) -> None:
    flags = frozenset({"PartitionTimeLimit", "PartitionMaxNodes"})
    site = replace(with_gpus(max_time_s=600, max_nodes=1), qos=(Qos("normal", flags=flags),))
    assert faults(tmp_path, site=site) == []


# ---- profiles that `clusters new` writes ---------------------------------------------------------------------------

LIMITS = st.dictionaries(
    st.sampled_from(
        ["job gres/gpu", "user gres/gpu", "group gres/gpu", "group gres/gpu:a100", "job node", "user jobs", "job wall"]
    ),
    st.sampled_from([0, 1, 3, 8, 16, 600]),
    max_size=2,
)
QOS_NAMES = ("normal", "long", "spare")
SOME = st.none() | st.frozensets(st.sampled_from(("research", "small")))


@st.composite
def partitions(draw: st.DrawFn, name: str) -> Partition:
    allowed = draw(st.none() | st.frozensets(st.sampled_from(QOS_NAMES)))
    return Partition(
        name,
        is_default=name == "gpus",
        nodes=4,
        max_nodes=draw(st.sampled_from([None, 1, 2])),
        max_time_s=86400,
        allow_accounts=draw(SOME),
        allow_qos=allowed,
        qos=draw(st.sampled_from([None, *QOS_NAMES])),
        is_exclusive=draw(st.booleans()),
        kinds=(draw(st.sampled_from([GPUS, SLICED, replace(GPUS, gres=SLICED.gres[1:])])),),
        allow_groups=draw(st.sampled_from([None, frozenset({"owners"}), frozenset({"users"})])),
        needs_reservation=draw(st.integers(0, 5)) == 0,
        preempt_mode=draw(st.sampled_from([None, "REQUEUE"])),
        priority_tier=draw(st.integers(1, 2)),
    )


@st.composite
def sites(draw: st.DrawFn) -> Site:
    links = tuple(
        Association(
            account,
            tuple(draw(st.lists(st.sampled_from(QOS_NAMES), unique=True, min_size=1, max_size=3))),
            is_default=account == "research",
            limits=draw(LIMITS),
        )
        for account in ("research", "small")
    )
    links = tuple(replace(link, default_qos=draw(st.sampled_from([None, *link.qos]))) for link in links)
    flags = st.frozensets(st.sampled_from(("OverPartQOS", "PartitionMaxNodes", "PartitionTimeLimit")), max_size=1)
    qos = tuple(Qos(name, draw(LIMITS), draw(flags)) for name in QOS_NAMES)
    both = (draw(partitions("gpus")), draw(partitions("other")))
    return replace(SITE, partitions=both, associations=links, qos=qos, groups=frozenset({"users"}))


@given(site=sites())
def test_check_finds_what_new_avoids_and_accepts_what_it_writes(tmp_path_factory: Any, site: Site) -> None:
    folder = tmp_path_factory.mktemp("profile")
    for name in ("gpus", "other"):
        choice = choose(site, name)
        found = check_login(cluster_of(folder, profile_text(site, "site", name, "schema.json")), site)
        found = [finding for finding in found if finding.is_fault]
        is_open = any(finding.result == "open" for finding in found)
        if choice.obstacle is None and choice.kind.gpu and not is_open:
            assert found == []
        elif choice.obstacle is not None:
            assert found, choice.obstacle
