"""JSON Schema for editors: it accepts every experiment, and marks values that `find_experiment` refuses."""

from __future__ import annotations

from functools import cache

import pytest
from jsonschema import Draft202012Validator

from orchestrator.catalog.template import EXPERIMENT_TEMPLATE, PAPER_TEMPLATE, experiment_schema
from orchestrator.config.yaml import parse_document, read_document
from tests.stand_in_site import CHECKOUT


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(experiment_schema())


def faults(text: str) -> set[str]:
    """Return the paths of the values that the schema refuses, and of the reasons in each choice of a union."""
    todo = list(validator().iter_errors(parse_document(text, "figure.yaml").value))
    paths = set()
    while todo:
        error = todo.pop()
        paths.add(".".join(map(str, error.absolute_path)))
        todo += error.context or ()
    return paths


def test_every_shipped_experiment_and_the_template_are_valid() -> None:
    of_paper = Draft202012Validator(experiment_schema(of_paper=True))
    for schema in (experiment_schema(), experiment_schema(of_paper=True)):
        Draft202012Validator.check_schema(schema)
    files = list((CHECKOUT / "experiments").rglob("*.yaml"))
    assert len(files) > 30
    for file in files:
        (of_paper if file.name == "paper.yaml" else validator()).validate(read_document(file).value)
    assert faults(EXPERIMENT_TEMPLATE) == set()
    of_paper.validate(parse_document(PAPER_TEMPLATE, "paper.yaml").value)


@pytest.mark.parametrize(
    "output",
    [
        "rows: {columns: a b c, key: a, text: b}",
        "rows: {columns: [a, b, c], key: [a], text: [b]}",
        "csv: a",
        "csv: [a]",
    ],
)
def test_names_may_be_a_text_or_a_list(output: str) -> None:
    program = f"program: {{command: [x], output: {{{output}}}, metrics: {{c: {{better: lower}}}}}}"
    assert faults(EXPERIMENT_TEMPLATE.replace("program: pretrain ", program)) == set()


@pytest.mark.parametrize(
    ("right", "wrong", "path"),
    [
        ("figure: Figure 1", "figur: Figure 1", ""),
        ("dtype: bf16", "dtype: bf8", "training.dtype"),
        ("kind: peak", "kind: [peak]", "claims.0"),
        ("stated: printed", "stated: yes", "claims.0.stated"),
        ('time_limit: "0:30:00"', "time_limit: 30", "time_limit"),
    ],
)
def test_a_mistake_is_marked_at_its_place(right: str, wrong: str, path: str) -> None:
    assert right in EXPERIMENT_TEMPLATE and path in faults(EXPERIMENT_TEMPLATE.replace(right, wrong, 1))


def test_a_claim_of_a_package_is_accepted() -> None:
    assert faults(EXPERIMENT_TEMPLATE.replace("kind: peak", "kind: doubles", 1)) == faults(EXPERIMENT_TEMPLATE)
