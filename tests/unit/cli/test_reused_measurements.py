"""Tests of measurements that another experiment made: they are marked with origin and age."""

from __future__ import annotations

import csv
import io
import json

import pytest

from orchestrator.paths import find_folders
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow


def test_a_reused_measurement_has_its_origin_and_age_in_every_table(repro: Caller) -> None:
    site = repro.site
    assert site.submit("--wait").returncode == 0
    copy = site.folder / "experiments" / "sc21" / "figure-99.yaml"
    copy.parent.mkdir(parents=True)
    for name, file in (("figure-13", copy), ("paper", copy.with_name("paper.yaml"))):
        file.write_text((find_folders().shipped / "experiments" / "sc21" / f"{name}.yaml").read_text())
    done = repro("submit", "figure-99", "--cluster", "here", "--scale", "cpu")
    assert "6 cases: 6 done, 0 submitted" in done.stderr, done.stderr
    assert "reused: pp=1,tp=4,gbs=4 from figure-13, " in done.stderr
    status = json.loads(repro("status", "--json").stdout)["jobs"]
    origins = {(row["experiment"], (row["reused"] or "").partition(",")[0]) for row in status}
    assert origins == {("sc21/figure-13", ""), ("sc21/figure-99", "from figure-13")}
    rows = list(csv.DictReader(io.StringIO(repro("collect", "figure-99").stdout)))
    assert {row["measured_for"] for row in rows} == {"sc21/figure-13"}
    assert {row["measured_for"] for row in csv.DictReader(io.StringIO(repro("collect", "figure-13").stdout))} == {""}
    compared = json.loads(repro("compare", "figure-99", "--json").stdout)
    assert all(row["reused"].startswith("from figure-13, ") for row in compared["numbers"])
