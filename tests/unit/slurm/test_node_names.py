"""Slurm's short form of node lists."""

from __future__ import annotations

import pytest

from orchestrator.slurm.notation import MOST_NODES, expand_node_names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("n4", ["n4"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],login-1.site", ["n08", "n09", "n10", "n12", "login-1.site"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        (None, []),
        ("", []),
        ("(null)", []),
        ("n[1-", []),
        ("n[1-2-3]", []),
        ("n[3-1]", []),
        ("n[1-999999999999]", []),
    ],
)
def test_a_list_is_expanded_in_its_order(names: str | None, expected: list[str]) -> None:
    assert list(expand_node_names(names)) == expected


def test_the_largest_list_is_expanded() -> None:
    assert len(expand_node_names(f"n[1-{MOST_NODES}]")) == MOST_NODES
    assert expand_node_names(f"n[0-{MOST_NODES}]") == ()
