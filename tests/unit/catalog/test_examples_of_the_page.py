"""The examples of docs/how-to/add-an-experiment.md: each one is accepted, and together they have every key."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from orchestrator.catalog.claims import Claim
from orchestrator.catalog.experiment import Experiment, Paper, ScaleFields
from orchestrator.config.yaml import parse_document
from orchestrator.megatron.axes import TrainingFields
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import check_experiment
from tests.pages import CHECKOUT

PAGE = CHECKOUT / "docs" / "how-to" / "add-an-experiment.md"
_EXAMPLE = re.compile(r"^```yaml\n# (in )?experiments/own/([\w-]+)\.yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@cache
def examples() -> tuple[tuple[str, str, bool], ...]:
    """Return the file and the text of each example, and whether it is only a part of its file."""
    page = PAGE.read_text(encoding="utf-8")
    found = tuple((name, text, bool(part)) for part, name, text in _EXAMPLE.findall(page))
    assert len(found) == page.count("```yaml\n") > 15
    return found


def value(text: str) -> dict[str, Any]:
    read: Any = parse_document(text, "page").value
    return dict(read)


def write(folder: Path, parts: list[str]) -> Folders:
    """Write the four files of the page, figure 1 with these parts; return the folders of a project with them."""
    own = folder / "experiments" / "own"
    own.mkdir(parents=True, exist_ok=True)
    files = {name: value(text) for name, text, is_part in examples() if not is_part}
    for part in map(value, parts):
        claims = files["figure-1"].get("claims", []) + part.get("claims", [])
        files["figure-1"] |= part | ({"claims": claims} if claims else {})
    for name, content in files.items():
        (own / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return Folders(CHECKOUT, folder)


PARTS = [text for name, text, is_part in examples() if is_part]
SCALES = next(text for text in PARTS if text.startswith("scales:"))


@pytest.mark.parametrize("part", PARTS, ids=lambda text: " ".join(text.split()[:4]))
def test_each_part_is_accepted(tmp_path: Path, part: str) -> None:
    _, scales = check_experiment("own/figure-1", write(tmp_path, [SCALES, part]))
    assert [scale.cases for scale in scales] == [6, 6, 4, 6]


@pytest.mark.parametrize(("name", "cases"), [("figure-1", [6, 6, 4, 6]), ("figure-2", [4]), ("table-9", [3])])
def test_the_whole_files_are_accepted(tmp_path: Path, name: str, cases: list[int]) -> None:
    _, scales = check_experiment(f"own/{name}", write(tmp_path, PARTS))
    assert [scale.cases for scale in scales] == cases


def test_the_examples_have_every_kind_of_claim_and_every_key() -> None:
    read = [(name, value(text)) for name, text, _ in examples()]
    claims = [claim for _, content in read for claim in content.get("claims", [])]
    models = get_args(get_args(Claim)[0])
    assert {claim["kind"] for claim in claims} == {
        get_args(model.model_fields["kind"].annotation)[0] for model in models
    }
    assert {key for claim in claims for key in claim} == {key for model in models for key in model.model_fields}
    trainings = [content["training"] for _, content in read if "training" in content]
    assert max(trainings, key=len).keys() == TrainingFields.model_fields.keys()
    keys = {key for name, content in read if name != "paper" for key in content}
    assert Experiment.model_fields.keys() - keys <= ScaleFields.model_fields.keys() | {
        *("reference_only", "notes"),
        "program",  # a tutorial of its own has it
    }
    assert {key for name, content in read if name == "paper" for key in content} == Paper.model_fields.keys() - {
        "programs"
    }
