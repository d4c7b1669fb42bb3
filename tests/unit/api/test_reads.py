"""Number of times that a command reads a YAML file and expands a matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.catalog import expand
from orchestrator.catalog.experiment import ScaleFields
from orchestrator.config import yaml

COMMANDS: dict[str, Callable[[], object]] = {
    "render": lambda: api.render("figure-13", "local", scale="cpu", where="pp=2,gbs=4"),
    "render --explain": lambda: api.render("figure-13", "local", explain=True, scale="cpu", where="pp=2,gbs=4"),
    "plan": lambda: api.plan("figure-13", cluster="local", scale="cpu"),
    "submit --dry-run": lambda: api.plan_runs("figure-13", "local", scale="cpu"),
}


@pytest.mark.torch
@pytest.mark.parametrize("command", COMMANDS)
def test_each_yaml_file_is_read_once_and_the_matrix_is_expanded_once(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reads: Counter[str] = Counter()
    expansions: list[ScaleFields] = []
    parse, rows = yaml.parse_document, expand._rows

    def counted_parse(text: str, name: str) -> yaml.Document:
        reads[Path(name).name] += 1
        return parse(text, name)

    def counted_rows(fields: ScaleFields) -> object:
        expansions.append(fields)
        return rows(fields)

    monkeypatch.setattr(yaml, "parse_document", counted_parse)
    monkeypatch.setattr(expand, "_rows", counted_rows)
    monkeypatch.setenv("REPRO_HOME", str(tmp_path))
    COMMANDS[command]()
    assert reads == {"figure-13.yaml": 1, "paper.yaml": 1, "local.yaml": 1}
    assert len(expansions) == 1
