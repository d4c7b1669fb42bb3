"""Descriptions and examples of the fields of YAML files, and the pages of docs/reference about the code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter

from orchestrator import errors
from orchestrator.catalog.experiment import Experiment, Paper
from orchestrator.catalog.template import experiment_schema
from orchestrator.cli import main
from orchestrator.clusters.profile import profile_model, profile_schema
from orchestrator.config.user import UserConfig
from orchestrator.launch.cluster_check import OUTSIDE_IMAGE
from orchestrator.launch.executors import NOT_STARTED, TIMED_OUT
from orchestrator.megatron.axes import MegatronSettings, ModelFields, TrainingFields
from orchestrator.megatron.model import Training
from orchestrator.programs.record import programs
from tests.pages import CHECKOUT
from tests.reference.pages import PAGES

FILES: dict[str, type[BaseModel]] = {
    "experiment": Experiment,
    "paper": Paper,
    "model": ModelFields,
    "training": TrainingFields,
    "profile": profile_model(frozenset(programs())),
    "configuration": UserConfig,
}
"""Model of each kind of file, and of the groups of axes in experiments."""

# A number has a unit, in its name or in its description.
UNITS = (
    *("number of", "iterations", "in seconds", "gb/s", "gbit/s", "tflop/s", "10^9 bytes", "amount of money", "port of"),
    *("in sequences", "in tokens", "tokens of", "share", "factor", "in the unit of", "number of any unit"),
)


def models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the model and all models of its fields, by name."""
    below = [inner for field in model.model_fields.values() for inner in models_in(field.annotation)]
    return {model.__name__: model} | {name: inner for each in below for name, inner in models(each).items()}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def kinds(annotation: Any) -> set[Any]:
    """Return the types of a field without None: a union has several."""
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Literal, list, dict) or not get_args(annotation):
        return {get_origin(annotation) or annotation} - {type(None)}
    return set().union(*map(kinds, get_args(annotation)))


def properties(schema: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """Yield the path and the schema of each property, at any depth."""
    for key, item in (
        schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    ):
        yield from properties(item, f"{path}.{key}")
        if path.rpartition(".")[2] == "properties":
            yield f"{path}.{key}", item


@pytest.mark.parametrize(
    "schema",
    [profile_schema, experiment_schema, partial(experiment_schema, of_paper=True), UserConfig.model_json_schema],
    ids=["profile", "experiment", "paper", "configuration"],
)
def test_every_property_of_a_schema_has_a_description(schema: Callable[[], dict[str, Any]]) -> None:
    # pydantic leaves out a description that is that of the model.
    described = {path: "description" in field or "$ref" in field for path, field in properties(schema())}
    assert described and [path for path, is_described in described.items() if not is_described] == []


@pytest.mark.parametrize("name", FILES)
def test_a_description_is_a_sentence_with_a_unit_and_its_examples_are_valid(name: str) -> None:
    faults = []
    for model in models(FILES[name]).values():
        for field, info in model.model_fields.items():
            text, found = info.description or "", kinds(info.annotation)
            is_number = bool(found & {int, float})
            if not text.endswith(".") or (is_number and not any(unit in text.lower() for unit in UNITS)):
                faults.append(f"{model.__name__}.{field}: no sentence with a unit: {text}")
            explains_itself = found <= {bool, Literal} or any(models_in(info.annotation))
            if not info.examples and not explains_itself:
                faults.append(f"{model.__name__}.{field}: no example")
            for example in info.examples or ():
                TypeAdapter(Annotated[info.annotation, info]).validate_python(example)  # type: ignore[arg-type]
    assert faults == []


def test_the_description_of_a_training_option_has_its_default() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Training) if field.default is not None}
    fields = MegatronSettings.model_fields | TrainingFields.model_fields
    for name, default in defaults.items():
        text = str(default).lower() if isinstance(default, bool) else str(default).removesuffix(".0")
        assert f"Without it: {text}" in (fields[name].description or ""), name


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (CHECKOUT / page).read_text(encoding="utf-8") == PAGES[page](), "`python -m tests.reference` writes it"


def code_cells(page: str) -> set[str]:
    """Return the first cells of the tables of a page, without their backticks."""
    text = (CHECKOUT / "docs" / "reference" / page).read_text(encoding="utf-8")
    return set(re.findall(r"^\| `?([\w-]+)`? \|", text, re.MULTILINE))


def test_the_page_of_exit_codes_has_those_of_the_code() -> None:
    codes = {value for name, value in vars(main).items() if name.startswith("EXIT_")}
    codes |= {errors.EXIT_TIMEOUT, errors.EXIT_UNREACHABLE, NOT_STARTED, OUTSIDE_IMAGE, TIMED_OUT}
    for template in (CHECKOUT / "templates").glob("*.sh.j2"):
        codes |= set(map(int, re.findall(r"\bexit (\d+)\b", template.read_text(encoding="utf-8")))) - {129}
    assert {cell for cell in code_cells("exit-codes.md") if cell.isdigit()} == set(map(str, codes))


def test_the_page_of_variables_has_every_variable_that_the_code_reads() -> None:
    read: set[str] = set()
    for file in (CHECKOUT / "orchestrator").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        read |= set(re.findall(r"""environ(?:\.get\(|\[)"([A-Z]\w+)"(?!\] =)""", text))
        read |= set(re.findall(r"""^\w+_VARIABLE = "(\w+)"$""", text, re.MULTILINE))
    page = (CHECKOUT / "docs/reference/environment-variables.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z][A-Z_]+)`", page))
    assert "REPRO_CLUSTER" in read and sorted(read - named) == []
    code = "".join(file.read_text("utf-8") for file in sorted((CHECKOUT / "orchestrator").rglob("*.py")))
    code += "".join(file.read_text("utf-8") for file in sorted((CHECKOUT / "templates").iterdir()))
    listed = {name for name in code_cells("environment-variables.md") if name.isupper()}
    assert len(listed) > 10 and [name for name in sorted(listed) if name not in code] == []


def test_the_help_has_words_of_the_field_and_fits_a_line_of_80_columns() -> None:
    page = (CHECKOUT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert not re.search(r"<(?:str|list|int|path)", page)
    assert [
        summary
        for commands in main.all_panels().values()
        for summary in commands.values()
        if len(f"  experiments  {summary}") > 80
    ] == []
