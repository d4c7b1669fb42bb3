"""Tolerances of claims: those that leave nothing to fail are refused at their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.errors import ReproError
from tests.unit.catalog.entries import BASE, entry_of, short

SPREAD = "kind: spread, at_least: 1.15"
GAIN = "kind: ratio, of: {pp: 2}, over: {pp: 1}, at_least: 1.1"
LOSS = "kind: ratio, of: {pp: 2}, over: {pp: 1}, at_most: 0.8"
CLAIM = """\
claims:
  - {{id: a, says: b, source: c, stated: printed, judged_at: [paper], {kind},
    tolerance: {tolerance}}}
"""


def complaints(folder: Path, kind: str, tolerance: Any) -> list[str]:
    with pytest.raises(ReproError) as caught:
        expand(entry_of(folder, BASE + CLAIM.format(kind=kind, tolerance=tolerance)))
    return [short(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("kind", "tolerance", "problem", "hint"),
    [
        (SPREAD, -0.1, "must be 0 or more", "relative tolerance, a share of the number"),
        (SPREAD, 1, "must be below 1", "relative tolerance, a share of the number"),
        (SPREAD, 0.2, "turns 1.15 into 0.92, so that the claim holds without an effect", "write less than 0.13"),
        (GAIN, 0.1, "turns 1.1 into 0.99, so that the claim holds without an effect", "write less than 0.0909"),
        (LOSS, 0.25, "turns 0.8 into 1, so that the claim holds without an effect", "write less than 0.25"),
        ("kind: peak, at: {pp: 1}", 0.1, "must not be in this kind of claim", "remove it"),
        ("kind: gain, along: gbs, where_largest: pp", 0.1, "must not be in this kind of claim", "remove it"),
        ("kind: closes, of: {pp: 2}, over: {pp: 1}, along: gbs", 0.1, "must not be in this kind of claim", "remove it"),
        ("kind: outcome, outcome: ok", 0.1, "must not be in this kind of claim", "remove it"),
    ],
)
def test_a_tolerance_with_which_the_claim_cannot_fail_is_refused_at_its_line(
    tmp_path: Path, kind: str, tolerance: float, problem: str, hint: str
) -> None:
    (complaint,) = complaints(tmp_path, kind, tolerance)
    line = (BASE + "claims:\n").count("\n") + 2
    assert complaint.startswith(f"figure-1.yaml:{line}:16 claims.0.tolerance: {problem}")
    assert complaint.endswith(f"Hint: {hint}")


@pytest.mark.parametrize(
    ("kind", "tolerance"), [(SPREAD, 0.1), (GAIN, 0.05), (LOSS, 0.2), (GAIN.replace("1.1", "1.0"), 0.05)]
)
def test_a_tolerance_that_leaves_an_effect_is_accepted(tmp_path: Path, kind: str, tolerance: float) -> None:
    (claim,) = entry_of(tmp_path, BASE + CLAIM.format(kind=kind, tolerance=tolerance)).experiment.claims
    assert claim.tolerance == tolerance


def test_bounds_that_no_ratio_satisfies_are_refused(tmp_path: Path) -> None:
    (complaint,) = complaints(tmp_path, GAIN + ", at_most: 1.05", 0)
    assert "no ratio is at least 1.1 and at most 1.05" in complaint
