"""Tests of the space of a search and of the experiment that it becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog.experiment import Experiment, Paper
from orchestrator.catalog.library import experiment_names
from orchestrator.config.model import read_model
from orchestrator.config.yaml import parse_document, read_document
from orchestrator.errors import ReproError
from orchestrator.job_spec import Value
from orchestrator.megatron.search.prepare import (
    NamedModel,
    Space,
    divisors,
    experiment_text,
    find_model,
    require_complete,
)
from orchestrator.paths import find_folders

SIZES: dict[str, Value] = {"layers": 24, "hidden": 2048, "heads": 16, "seq": 1024, "vocab": 51200}
SPACE = Space(
    model=NamedModel("1.3b", SIZES),
    gpus=16,
    global_batch_size=64,
    gpus_per_node=8,
    program="pretrain",
    keeps_scores=True,
    training={"dtype": "bf16", "iterations": 20},
    wanted={},
)


def papers() -> dict[str, Paper]:
    files = {file.parent.name: file.parent / "paper.yaml" for file in experiment_names(find_folders()).values()}
    return {name: read_model(Paper, read_document(file)) for name, file in files.items()}


def test_a_model_is_found_by_its_name_with_or_without_prefix_case_and_paper() -> None:
    models = papers()
    for text in ("gpt-6.7b", "6.7B", "alpa/6.7B", "alpa/gpt-6.7b"):
        model = find_model(text, models)
        assert (model.label, model.fields["layers"], model.fields["hidden"]) == ("6.7b", 32, 4096), text


def test_a_model_of_sizes_has_them_and_a_label_of_its_own() -> None:
    model = find_model("layers=24,hidden=2048,heads=16,seq=1024,vocab=51200", {})
    assert (model.label, dict(model.fields)) == ("24x2048", SIZES)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpt-6.8b", 'gpt-6.8b: no such model. Did you mean "'),
        ("layers=24,hiden=2048", "hiden"),
        ("layers=many,hidden=2048", "layers=many"),
    ],
)
def test_a_wrong_model_is_named_with_a_hint(text: str, reason: str) -> None:
    with pytest.raises(ReproError) as refused:
        find_model(text, papers())
    assert reason.lower() in str(refused.value).lower()


def test_a_model_without_sequence_length_asks_for_the_option() -> None:
    with pytest.raises(ReproError, match="llama-7b: seq not given. Hint: add --seq N"):
        require_complete(find_model("atc24/llama-7b", papers()))


def test_every_layout_fills_the_gpus_stays_inside_a_node_and_divides_layers_and_batch() -> None:
    rows = list(SPACE.rows())
    for row in rows:
        sizes = {axis: int(row[axis]) for axis in ("dp", "tp", "pp", "cp", "vp", "mbs")}
        assert sizes["dp"] * sizes["tp"] * sizes["pp"] * sizes["cp"] == 16
        assert sizes["tp"] <= 8
        assert 24 % (sizes["pp"] * sizes["vp"]) == 0
        assert 64 % (sizes["dp"] * sizes["mbs"]) == 0
    names = {tuple(row.get(axis) for axis in ("tp", "pp", "cp", "vp", "mbs", "recompute", "offload")) for row in rows}
    assert len(names) == len(rows)
    assert {(row["tp"], row["pp"]) for row in rows} >= {(1, 1), (8, 2), (4, 4), (1, 8), (2, 8)}


def test_wanted_values_restrict_every_layout() -> None:
    rows = list(replace(SPACE, wanted={"tp": 2, "recompute": "full", "sequence_parallel": False}).rows())
    assert rows
    assert {(row["tp"], row["recompute"], row["sequence_parallel"]) for row in rows} == {(2, "full", False)}


def test_the_experiment_is_read_as_it_was_made() -> None:
    rows = list(replace(SPACE, wanted={"cp": 1, "pp": 2}).rows())
    fields = SPACE.experiment(rows, "A: title")
    text = experiment_text(fields, ["a comment"])
    read = read_model(Experiment, parse_document(text, "a.yaml"))
    assert read == Experiment.model_validate(fields)
    assert read.cases is not None and len(read.cases) == len(rows)


@given(st.integers(1, 5000))
def test_divisors_divide_and_none_is_missing(number: int) -> None:
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
