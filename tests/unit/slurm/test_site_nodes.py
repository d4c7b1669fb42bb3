"""Partitions, kinds of nodes and generic resources from scontrol's lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.nodes import Gres, NodeKind, Partition, names, number, parse_gres, parse_partitions, records
from tests.unit.slurm.site_texts import NODES, PARTITIONS, node_line

WORD = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


def partitions(nodes: str = NODES) -> dict[str, Partition]:
    return {one.name: one for one in parse_partitions(PARTITIONS, nodes)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:h100:8(S:0-1)", [Gres("gpu", "h100", 8)]),
        ("gpu:4", [Gres("gpu", None, 4)]),
        ("gpu", [Gres("gpu", None, 1)]),
        ("(null)", []),
        ("", []),
        ("N/A", []),
        ("gpu:a100:4(S:0,2),gpu:v100:2(S:1)", [Gres("gpu", "a100", 4), Gres("gpu", "v100", 2)]),
        ("gpu:h100:8, nvme:1", [Gres("gpu", "h100", 8), Gres("nvme", None, 1)]),
        ("gpu:a100_1g.5gb:7(S:0-1)", [Gres("gpu", "a100_1g.5gb", 7)]),
        ("gpu:4090:2", [Gres("gpu", "4090", 2)]),
        ("bandwidth:lustre:no_consume:4G", [Gres("bandwidth", "lustre", 4 * 2**30)]),
        ("gpu:h100:2(IDX:0,3-4", [Gres("gpu", "h100", 2)]),
    ],
)
def test_generic_resources_are_read_in_every_form(text: str, found: list[Gres]) -> None:
    assert list(parse_gres(text)) == found


@given(st.lists(st.builds(Gres, WORD.map(lambda text: f"x{text}"), WORD, st.integers(0, 10**6)), max_size=4))
def test_a_resource_is_printed_as_slurm_reads_it(listed: list[Gres]) -> None:
    listed = [gres for gres in listed if gres.kind != "no_consume"]
    assert list(parse_gres(",".join(f"{gres}(S:0,1)" for gres in listed))) == listed


@given(st.text() | st.text(alphabet="gpu:,()0123456789KMG ", max_size=40), st.text())
def test_no_text_breaks_the_parsers(text: str, other: str) -> None:
    parse_gres(text)
    parse_partitions(text, other)
    parse_partitions(f"PartitionName={text}", f"NodeName={other} Gres={text} Partitions={text}")
    assert records(text, text[:4]) is not None and names(text) is not None
    number(text)


def test_a_partition_has_its_limits_and_its_rights() -> None:
    found = partitions()
    batch, short, picky, denies = (found[name] for name in ("batch", "short", "picky", "denies"))
    assert (batch.is_default, batch.max_nodes, batch.max_time_s, batch.default_time_s) == (True, None, 14400, 1800)
    assert (short.is_default, short.max_nodes, short.max_time_s, short.default_time_s) == (False, 2, 600, 120)
    assert (batch.nodes, batch.allow_accounts, batch.qos) == (4, None, None)
    assert (picky.is_up, picky.is_exclusive, picky.qos, picky.default_time_s) == (False, True, "limited", None)
    assert picky.takes_account("small") and not picky.takes_account("research")
    assert picky.takes_qos("low") and not picky.takes_qos("normal")
    assert denies.takes_account("research") and not denies.takes_account("small")
    assert denies.takes_qos("low") and not denies.takes_qos("normal")
    assert (found["empty"].nodes, found["empty"].kinds) == (0, ())


def test_like_nodes_are_one_kind_with_a_count() -> None:
    found = partitions()
    kind = NodeKind(4, 16, 256_000, (Gres("gpu", "h100", 4),), frozenset({"h100"}), "x86_64")
    assert found["batch"].kinds == (kind,) and found["batch"].gpu_nodes == 4
    assert found["picky"].kinds[0].count == 2, "each partition counts its own nodes"


def test_unlike_nodes_are_kept_apart_and_the_partition_says_the_most_of_each() -> None:
    nodes = node_line("a") + node_line("b") + node_line("c", gres="gpu:a100:8(S:0-1),nvme:1", features="a100,big")
    batch = partitions(nodes + node_line("d", gres="(null)", features="(null)", cpus=14))["batch"]
    assert [(kind.count, kind.gpu and kind.gpu.kind) for kind in batch.kinds] == [(2, "h100"), (1, "a100"), (1, None)]
    assert batch.gpu_nodes == 3
    assert {gres for kind in batch.kinds for gres in kind.gres} == {
        Gres("gpu", "h100", 4),
        Gres("gpu", "a100", 8),
        Gres("nvme", None, 1),
    }
    assert frozenset().union(*(kind.features for kind in batch.kinds)) == {"h100", "a100", "big"}
    assert batch.kinds[2].cpus == 14, "what slurmd keeps for itself, no job can have"


def test_a_node_that_never_reported_is_taken_for_one_of_its_like() -> None:
    nodes = node_line("a", arch=None) + node_line("b", arch="aarch64") + node_line("c", gres="gpu:a100:8", arch=None)
    assert [(kind.count, kind.architecture) for kind in partitions(nodes)["batch"].kinds] == [(2, "aarch64"), (1, None)]


def test_the_reason_why_a_node_is_drained_takes_no_fields_place() -> None:
    drained = node_line("n1", reason="bad gpu Gres=gpu:x:1 Partitions=zz AvailableFeatures=y [root@2026-11-21]")
    assert partitions(drained)["batch"].kinds == partitions(node_line())["batch"].kinds


def test_a_partition_whose_nodes_are_kept_from_the_user_still_counts_them() -> None:
    batch = partitions("")["batch"]
    assert (batch.nodes, batch.kinds) == (4, ())


def test_of_two_types_of_gpu_the_more_numerous_is_the_nodes_own() -> None:
    kind = NodeKind(1, 1, 1, parse_gres("nvme:9,gpu:v100:2,gpu:a100:6"))
    assert kind.gpu == Gres("gpu", "a100", 6)
    assert NodeKind(1, 1, 1, parse_gres("gpu:h100:0")).gpu is None
