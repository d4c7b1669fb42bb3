"""Output and bundles of claims that compare two experiments of a paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recorded_jobs import new_ledger, record_results
from tests.unit.catalog.entries import CHECKOUT, shipped
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

FIGURE_12 = "default-schedule-wins-without-scatter-gather"
CLAIM = """\
claims:
  - id: first-against-second
    kind: ratio
    says: the first is faster
    source: section 1
    stated: printed
    of: {pp: 1, tp: 4, gbs: 4}
    over: {pp: 2, tp: 2, gbs: 4}
    experiment: figure-2
    at_least: 1.0
    judged_at: [cpu]

"""


def test_claims_read_the_other_experiment_on_the_same_cluster_only(repro: Caller) -> None:
    ledger, other = new_ledger(repro.site.folder), shipped("figure-18")
    record_results(ledger, shipped("figure-12"), "paper", {"vp=1,gbs=60": 145.0})
    record_results(ledger, other, "paper", {"scatter_gather=false,gbs=60": 140.0}, cluster="eos")

    def verdict() -> dict[str, Any]:
        rows = json.loads(repro("claims", "figure-12", "--json").stdout)["claims"]
        return next(row for row in rows if row["claim"] == FIGURE_12)

    assert verdict()["because"].endswith("has no job at scale paper on this cluster")
    record_results(ledger, other, "paper", {"scatter_gather=false,gbs=60": 131.0})
    assert verdict()["verdict"] == "holds"
    assert [used["experiment"] for used in verdict()["used"]] == ["sc21/figure-12", "sc21/figure-18"]
    text = repro("claims", "figure-12").stdout
    assert "vp=1 over vp=4,scatter_gather=false of figure-18 is 1.107" in text
    assert "            sc21/figure-18 scatter_gather=false,gbs=60  tflops_per_gpu 131" in text


def test_a_bundle_contains_the_jobs_of_the_other_experiment_and_verifies(repro: Caller, tmp_path: Path) -> None:
    figure = (CHECKOUT / "experiments" / "sc21" / "figure-13.yaml").read_text()
    small = figure[: figure.index("claims:")] + "CLAIMS\n" + figure[figure.index("scales:") :]
    own = repro.site.folder / "experiments" / "own"
    own.mkdir(parents=True)
    (own / "paper.yaml").write_text("title: t\nvenue: v\n")
    (own / "figure-1.yaml").write_text(small.replace("CLAIMS\n", CLAIM))
    (own / "figure-2.yaml").write_text(small.replace("CLAIMS\n", ""))
    for name, where in (("own/figure-1", "pp=1,gbs=4"), ("own/figure-2", "pp=2,gbs=4"), ("own/figure-2", "pp=4")):
        done = repro("submit", name, "--cluster", "here", "--scale", "cpu", "--where", where, "--wait")
        assert done.returncode == 0, done.stderr
    file = tmp_path / "figure-1.tar.zst"
    assert repro("bundle", "own/figure-1", "-o", str(file)).returncode == 0
    checked = repro("bundle", "verify", str(file))
    assert checked.returncode == 0, checked.stdout
    assert "numbers   2 attempts read again" in checked.stdout  # without the cases that no claim compares with
