"""Where a user's jobs would go on a site."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ReproError
from orchestrator.slurm.accounting import Association, Qos
from orchestrator.slurm.nodes import Gres, NodeKind, Partition
from orchestrator.slurm.site import Site, choose

H100 = NodeKind(4, 64, 10**6, (Gres("gpu", "h100", 8),), frozenset({"h100"}))
A100 = NodeKind(9, 64, 10**6, (Gres("gpu", "a100", 4),), frozenset({"a100"}))
PLAIN = NodeKind(50, 64, 10**6)


def partition(name: str, *kinds: NodeKind, default: bool = False, up: bool = True) -> Partition:
    return Partition(name, default, up, sum(kind.count for kind in kinds), kinds=kinds)


def site(*partitions: Partition, accounts: tuple[Association, ...] | None = (), qos: tuple[Qos, ...] = ()) -> Site:
    return Site("me", "c", "22.05.8", partitions, accounts, qos)


def test_the_partition_asked_for_is_taken_even_if_it_is_no_good_one() -> None:
    found = choose(site(partition("gpu", H100, default=True), partition("cpu", PLAIN, up=False)), "cpu")
    assert found.partition.name == "cpu" and found.kind == PLAIN


@pytest.mark.parametrize(
    ("partitions", "name"),
    [
        ((partition("a", A100), partition("d", H100, default=True)), "d"),
        ((partition("d", PLAIN, default=True), partition("h", H100), partition("a", A100)), "a"),
        ((partition("off", H100, up=False), partition("on", H100)), "on"),
        ((partition("x", PLAIN), partition("d", PLAIN, default=True)), "d"),
        ((partition("d", default=True), partition("x", PLAIN)), "x"),
    ],
)
def test_without_a_word_it_is_the_default_one_with_gpus_or_the_one_with_most(
    partitions: tuple[Partition, ...], name: str
) -> None:
    assert choose(site(*partitions)).partition.name == name


@pytest.mark.parametrize(
    "change",
    [
        {"allow_groups": frozenset({"other"})},
        {"allow_accounts": frozenset({"other"})},
        {"deny_accounts": frozenset({"a"})},
        {"allow_qos": frozenset({"other"})},
        {"preempt_mode": "REQUEUE"},
        {"qos": "zero"},
        {"kinds": (replace(A100, gres=(Gres("gpu", "a100_10g", 14), Gres("gpu", "a100_40g", 2))),)},
    ],
)
@pytest.mark.fault(
    section="Submissions",
    fault="The largest GPU partition is closed to the user, preemptible, without GPUs by its QOS, or has MIG slices",
    promise="`clusters new` chooses a partition that the user can use, and lists the others with the reason.",
)
def test_a_partition_that_the_user_cannot_use_is_not_chosen(change: dict[str, Any]) -> None:
    closed, usable = replace(partition("closed", A100, default=True), **change), partition("usable", H100)
    account = (Association("a", ("n",), "n", is_default=True),)
    answer = replace(
        site(closed, usable, accounts=account, qos=(Qos("n"), Qos("zero", {"job gres/gpu": 0}))),
        groups=frozenset({"mine"}),
    )
    assert choose(answer).partition.name == "usable"


@pytest.mark.parametrize(
    "kind",
    [
        "a100_10g",
        "3g.20gb",
        "a100_3g.20gb",
        "nvidia_a100_1g.5gb",
        "1g_10gb",
        "a100mig",
        "mig-2g",
        "h100_20gb",
        "a100_2g",
        "MIG-3g.40gb",
        "a100-7g.80gb",
        "nvidia_a100_80gb_pcie_1g.10gb",
        "1g10gb",
        "H100.2g.20gb.me",
        "nvidia_h100_80gb_hbm3_1g.10gb",
        "h200_1g.18gb",
        "a30_1g.6gb",
        "a100_20",
    ],
)
def test_a_mig_slice_is_no_gpu_in_any_spelling(kind: str) -> None:
    assert replace(A100, gres=(Gres("gpu", kind, 7), Gres("gpu", "a100", 2))).gpu == Gres("gpu", "a100", 2)


@pytest.mark.parametrize(
    "kind",
    ["a100_40g", "nvidia_a100-sxm4-80gb", "v100-16g", "nvidia_gh200_120gb", "h200_141g", "a100-4", "nvidia_h100_nvl"],
)
def test_a_memory_size_alone_makes_no_slice(kind: str) -> None:
    assert replace(A100, gres=(Gres("gpu", kind, 4),)).gpu == Gres("gpu", kind, 4)


def test_a_qos_with_overpartqos_comes_before_the_qos_of_the_partition() -> None:
    gpu = replace(partition("gpu", H100), qos="zero")
    lane = Qos("lane", {"group gres/gpu": 32, "group gres/gpu:h100": 16}, frozenset({"OverPartQOS"}))
    accounts = (Association("a", ("n",), "n", is_default=True), Association("group", ("lane",), "lane"))
    found = choose(
        site(gpu, accounts=accounts, qos=(Qos("n"), Qos("zero", {"group gres/gpu": 0, "group gres/gpu:h100": 0}), lane))
    )
    assert (found.association, found.qos, found.largest) == (accounts[1], "lane", 16)


HI = replace(partition("hi", H100), priority_tier=100, preempt_mode="REQUEUE")
BATCH = replace(partition("batch", H100, default=True), priority_tier=10, preempt_mode="REQUEUE")
LO = replace(partition("lo", A100), priority_tier=1, preempt_mode="REQUEUE")


def preempting(kind: str, *partitions: Partition, qos: tuple[Qos, ...] = (), own: str = "n") -> Site:
    account = (Association("a", tuple(name.name for name in qos) or (own,), own, is_default=True),)
    answer = site(*partitions, accounts=account, qos=qos)
    return replace(answer, settings={"PreemptType": f"preempt/{kind}", "PreemptMode": "REQUEUE"})


@pytest.mark.parametrize(
    ("answer", "name", "preemption"),
    [
        (preempting("qos", HI, BATCH, LO), "batch", None),
        (preempting("none", HI, BATCH, LO), "batch", None),
        (preempting("partition_prio", HI, BATCH, LO), "batch", "preemptible by jobs of partition hi"),
        (preempting("partition_prio", LO, replace(BATCH, is_default=False, priority_tier=100)), "batch", None),
        (preempting("partition_prio", LO, replace(BATCH, preempt_mode=None)), "batch", None),
        (preempting("partition_prio", replace(LO, neighbors=frozenset({"lo"})), HI), "lo", None),
        (
            preempting("qos", HI, BATCH, qos=(Qos("n"), Qos("urgent", preempts=frozenset({"n"})))),
            "batch",
            "preemptible by jobs of QOS urgent (PreemptMode=REQUEUE)",
        ),
        (
            preempting(
                "qos",
                replace(BATCH, allow_qos=frozenset({"spare"})),
                HI,
                qos=(Qos("n", preempts=frozenset({"spare"})), Qos("spare", preempt_mode="CANCEL")),
            ),
            "hi",
            None,
        ),
    ],
)
def test_the_default_partition_wins_over_urgent_ones_and_not_over_safer_ones(
    answer: Site, name: str, preemption: str | None
) -> None:
    choice = choose(answer)
    assert choice.partition.name == name
    assert str(choice.preemption or "").startswith(preemption or "") and (choice.preemption is None) == (not preemption)


def test_of_equal_qos_the_one_that_no_other_preempts_is_chosen() -> None:
    qos = (Qos("n", preempts=frozenset({"spare"})), Qos("spare", preempt_mode="CANCEL"))
    answer = preempting("qos", HI, qos=qos)
    links = (Association("a", ("spare", "n")),)
    assert choose(replace(answer, associations=links)).qos == "n"
    assert choose(answer).preemption is None
    (spare,) = [choose(replace(answer, associations=(Association("a", ("spare",)),)))]
    assert str(spare.preemption) == "preemptible by jobs of QOS n (PreemptMode=CANCEL)" and spare.is_preemptible


@pytest.mark.parametrize(
    ("limits", "largest"),
    [
        ({"group gres/gpu": 16}, 16),
        ({"job gres/gpu": 8, "group gres/gpu": 16}, 8),
        ({"group gres/gpu:h100": 0}, 0),
        ({"group gres/gpu:a100": 0}, 32),
        ({"job node": 2}, 16),
        ({"user jobs": 0}, 0),
        ({"group queue": 0}, 0),
        ({}, 32),
    ],
)
def test_the_limits_of_an_association_bound_the_jobs(limits: dict[str, int], largest: int) -> None:
    account = (Association("a", ("n",), "n", limits=limits),)
    assert choose(site(partition("gpu", H100), accounts=account)).largest == largest
    unenforced = replace(
        site(partition("gpu", H100), accounts=account), settings={"AccountingStorageEnforce": "associations"}
    )
    assert choose(unenforced).largest == 32


def test_each_limit_is_that_of_the_first_level_which_has_it_and_the_least_of_them_applies() -> None:
    gpu = replace(partition("gpu", H100), qos="p")
    of_partition, own = Qos("p", {"group gres/gpu": 24}), Qos("n", {"user gres/gpu": 8, "group gres/gpu": 16})
    account = Association("a", ("n",), "n", limits={"user gres/gpu": 4, "group gres/gpu": 4, "job node": 3})
    answer = site(gpu, accounts=(account,), qos=(of_partition, own))
    bounds = choose(answer).bounds
    assert bounds["gres/gpu"] == (8, "QOS n") and bounds["node"] == (3, "account a")
    assert choose(replace(answer, qos=(of_partition, Qos("n")))).bounds["gres/gpu"] == (4, "account a")


@pytest.mark.parametrize(
    ("flag", "most"), [("", (2, 600)), ("PartitionMaxNodes", (4, 600)), ("PartitionTimeLimit", (2, None))]
)
def test_a_flag_of_the_qos_lifts_a_limit_of_the_partition(flag: str, most: tuple[int, int | None]) -> None:
    gpu = replace(partition("gpu", H100), max_nodes=2, max_time_s=600)
    account = (Association("a", ("n",), "n"),)
    found = choose(site(gpu, accounts=account, qos=(Qos("n", flags=frozenset({flag})),)))
    assert (found.largest // 8, found.longest_s) == most


def test_the_account_is_one_whose_limits_allow_jobs() -> None:
    none, other = Association("a", ("n",), "n", limits={"group gres/gpu": 0}), Association("b", ("n",), "n")
    found = choose(site(partition("gpu", H100), accounts=(replace(none, is_default=True), other)))
    assert found.association == other and found.usable_accounts == ("b",)
    closed = choose(site(partition("gpu", H100), accounts=(none,)))
    assert closed.obstacle == "account a allows no GPUs" and closed.usable_accounts == ()


def test_a_partition_for_reservations_or_for_root_is_not_chosen() -> None:
    reserved = replace(partition("r", A100, default=True), needs_reservation=True)
    for_root = replace(partition("o", A100), allow_groups=frozenset())
    answer = replace(site(reserved, for_root, partition("gpu", H100)), groups=frozenset({"users"}))
    assert choose(answer).partition.name == "gpu"
    assert choose(replace(answer, groups=None), "o").obstacle is None


def test_a_partition_that_is_not_there_or_has_no_nodes_is_refused() -> None:
    with pytest.raises(ReproError, match=r'batcn: no such partition. Did you mean "batch"'):
        choose(site(partition("batch", H100)), "batcn")
    with pytest.raises(ReproError, match="empty: a partition without nodes"):
        choose(site(partition("empty")), "empty")
    with pytest.raises(ReproError, match="no partition with nodes"):
        choose(site(partition("empty")))


def test_of_unlike_nodes_those_with_gpus_come_first_and_then_the_most() -> None:
    found = choose(site(partition("p", PLAIN, A100, H100)))
    assert found.kind == A100 and found.rivals == ()
    twin = replace(A100, count=2, memory_mb=1)
    assert choose(site(partition("p", A100, twin, PLAIN))).rivals == (twin,)
    bigger = replace(A100, gres=(Gres("gpu", None, 8),))
    untyped = replace(A100, gres=(Gres("gpu", None, 4),), count=99)
    assert choose(site(partition("p", untyped, bigger))).rivals == (bigger,), "a job for 4 GPUs fits a node of 8"


def test_nodes_that_slurm_keeps_to_itself_are_counted_all_the_same() -> None:
    hidden = Partition("p", nodes=7, max_nodes=3)
    found = choose(site(hidden))
    assert found.kind.gpu is None and found.node_limits == {"scontrol show partition: MaxNodes": 3}


def test_the_account_is_the_default_one_or_the_only_one_that_the_partition_takes() -> None:
    a, b = Association("a", ("normal",)), Association("b", ("normal",), is_default=True)
    gpu = partition("gpu", H100)
    both = choose(site(gpu, accounts=(a, b)))
    assert (both.accounts, both.association) == (("a", "b"), b)
    only_a = choose(site(replace(gpu, allow_accounts=frozenset("a")), accounts=(a, b)))
    assert (only_a.accounts, only_a.association) == (("a",), a)
    unclear = choose(site(replace(gpu, deny_accounts=frozenset("b")), accounts=(a, b, Association("c"))))
    assert (unclear.accounts, unclear.association) == (("a", "c"), None)
    elsewhere = choose(site(gpu, accounts=(replace(b, partition="other"),)))
    assert elsewhere.accounts == ()
    assert choose(site(gpu, accounts=None)).association is None


def test_the_association_for_the_partition_comes_before_the_one_for_all() -> None:
    every, here = Association("a", ("normal",)), Association("a", ("big",), partition="gpu")
    assert choose(site(partition("gpu", H100), accounts=(every, here))).association == here


@pytest.mark.parametrize(
    ("own", "allow", "deny", "qos", "needed"),
    [
        (Association("a", ("n", "m"), "n"), None, "", "n", False),
        (Association("a", ("n", "m"), "n"), "m", "", "m", False),
        (Association("a", ("n", "m", "k"), "n"), "mk", "", None, True),
        (Association("a", ("n", "m", "k"), "n"), None, "n", None, True),
        (Association("a", ("n", "m")), None, "", None, False),
        (Association("a", ("n",)), None, "", "n", False),
        (Association("a", ("n",)), "k", "", None, True),
        (Association("a", (), "n"), None, "", "n", False),
        (Association("a"), None, "", None, False),
    ],
)
def test_the_qos_is_the_default_if_the_partition_takes_it_or_the_only_one_it_takes(
    own: Association, allow: str | None, deny: str, qos: str | None, needed: bool
) -> None:
    where = replace(
        partition("gpu", H100), allow_qos=None if allow is None else frozenset(allow), deny_qos=frozenset(deny)
    )
    found = choose(site(where, accounts=(own,)))
    assert (found.qos, found.needs_qos) == (qos, needed)


def test_the_partitions_own_qos_limits_a_job_before_the_jobs_does() -> None:
    jobs = Qos("n", {"job wall": 3600, "job node": 3, "job gres/gpu": 16})
    own = Qos("p", {"job wall": 7200, "job node": 2})
    where = replace(partition("gpu", H100), max_time_s=7000)
    account = (Association("a", ("n",), "n"),)
    found = choose(site(where, accounts=account, qos=(jobs, own)))
    assert (found.bounds["node"].value, found.longest_s) == (3, 3600)
    assert sorted(found.node_limits.values()) == [2, 3], "16 GPUs are two nodes of eight"
    found = choose(site(replace(where, qos="p"), accounts=account, qos=(jobs, own)))
    assert (found.bounds["node"].value, found.longest_s) == (2, 7000)
    assert list(found.node_limits.values()) == [2, 2]
    assert choose(site(partition("gpu", H100))).longest_s is None
