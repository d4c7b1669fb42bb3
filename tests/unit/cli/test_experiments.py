from __future__ import annotations

import json

import pytest

from orchestrator.catalog.template import experiment_schema
from tests.stand_in_site import CHECKOUT
from tests.unit.cli.calling import Caller


def test_a_new_experiment_passes_the_check_and_is_planned(repro: Caller) -> None:
    done = repro("experiments", "new", "my/figure.yaml", "--json")
    assert [row["file"] for row in json.loads(done.stdout)["files"]] == ["my/figure.yaml", "my/paper.yaml"]
    checked = repro("experiments", "check", "my/figure.yaml", "--json")
    assert json.loads(checked.stdout)["scales"] == [{"scale": "paper", "cases": 6}, {"scale": "cpu", "cases": 6}]
    assert "my/figure: no problem found" in repro("experiments", "check", "my/figure.yaml").stderr
    assert repro("plan", "my/figure.yaml", "--cluster", "here").returncode == 0
    schemas = CHECKOUT / "experiments"
    for name, schema in (("figure.yaml", "schema.json"), ("paper.yaml", "paper.schema.json")):
        first = (repro.site.folder / "my" / name).read_text().partition("\n")[0]
        assert first == f"# yaml-language-server: $schema={schemas / schema}" and (schemas / schema).exists()
    again = repro("experiments", "new", "my/figure.yaml")
    assert again.returncode == 2 and again.stderr.startswith("repro: my/figure.yaml: exists already.")
    assert repro("experiments", "new", "my/paper.yaml").returncode == 2
    assert json.loads(repro("experiments", "schema").stdout) == experiment_schema()


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        ("gpus: 8\n", "gpu: 8\n", ['my/figure.yaml:8:1 gpu: unknown field. Did you mean "gpus"?']),
        (
            "program: pretrain ",
            "program: pretran ",
            ['my/figure.yaml:7:10 pretran: no such program. Did you mean "pretrain"?'],
        ),
        ("tp: gpus / pp", "tp: gpus / 3", ["my/figure.yaml:", "my/figure.yaml:"]),
        (
            "fixed:\n",
            "fixed:\n  experts: 4\n",
            [
                f"my/figure.yaml:7:10 all 6 cases at scale {scale}: pretrain does not support experts"
                for scale in ("paper", "cpu")
            ],
        ),
    ],
)
def test_the_check_reports_problems_of_every_scale_with_their_place(
    repro: Caller, old: str, new: str, problems: list[str]
) -> None:
    repro("experiments", "new", "my/figure.yaml")
    file = repro.site.folder / "my" / "figure.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    done = repro("experiments", "check", "my/figure.yaml")
    assert done.returncode == 2 and len(done.complaints) >= len(problems), done.stderr
    for line, start in zip(done.complaints, problems, strict=False):
        assert line.startswith(f"repro: {start}"), done.stderr
