"""JSON Schema for editors: it accepts every profile file, and marks values that `find_cluster` refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from orchestrator.clusters.profile import ClusterProfile, profile_schema, schema_text
from orchestrator.config.yaml import parse_document, read_document
from tests.unit.clusters.sites import CHECKOUT, PLAIN, SELENE_FILLED, shipped_names


def faults(text: str) -> set[str]:
    return faults_of(parse_document(text, "site.yaml").value)


def faults_of(value: Any) -> set[str]:
    """Return the paths of the values that the schema refuses, and of the reasons in each choice of a union."""
    return {path for error in Draft202012Validator(profile_schema()).iter_errors(value) for path in paths(error)}


def paths(error: ValidationError) -> Iterator[str]:
    yield ".".join(map(str, error.absolute_path))
    for reason in error.context or ():
        yield from paths(reason)


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(profile_schema())


def test_every_model_and_top_level_field_of_a_profile_is_in_it() -> None:
    schema = profile_schema()
    assert schema["properties"].keys() == ClusterProfile.model_fields.keys()
    assert all(model["description"] for model in schema["$defs"].values())
    assert "megatron-2021" in schema["$defs"]["ProgramSites"]["properties"]


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_profile_validates(name: str) -> None:
    assert faults_of(read_document(CHECKOUT / "clusters" / f"{name}.yaml").value) == set()


@pytest.mark.parametrize(
    "overlay",
    [
        "",
        SELENE_FILLED,
        "slurm: {sbatch: {add: [--exclusive], remove: [--mem]}, qos: {remove: {name: a}}}",
        "container: {mounts: {add: {mount: /a, when: nodes > 1}, remove: /b}}",
        "setup: {add: module load x}",
        "slurm: {qos: , constraint: ~}\nnetwork:\nenvironment: {A: , B: 1, C: {value: x, when: nodes == 1}}",
        "hardware: {peak_tflops: {bf16: }}\nprograms: {megatron-2021: }",
        "extends: aws-parallelcluster-p5\n",
    ],
)
def test_fields_of_an_overlay_validate(overlay: str) -> None:
    assert faults(overlay) == set()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (PLAIN.replace("about:", "abuot:"), ""),
        (PLAIN.replace("time_limit", "time_limits"), "slurm"),
        (PLAIN.replace("gpus_per_node", "gpus"), "hardware"),
        ("slurm: {sbatch: {ad: [--x]}}", "slurm.sbatch"),
        ("slurm: {time_limit: 90}", "slurm.time_limit"),
        ("slurm: {time_limit: 1 h}", "slurm.time_limit"),
        ("slurm: {tasks: per-core}", "slurm.tasks"),
        ("hardware: {nodes: '4'}", "hardware.nodes"),
        ("hardware: {nodes: 0}", "hardware.nodes"),
        ("container: {runtime: [docker]}", "container.runtime"),
        ("container: {mounts: [{mount: /a, when: nodes > 2}]}", "container.mounts"),
        ("environment: {A-B: 1}", "environment"),
        ("environment: {A: true}", "environment.A"),
        ("programs: {megatron-2020: {checkout: /a}}", "programs"),
        ("setup: module load x", "setup"),
    ],
)
def test_a_mistake_does_not_validate_and_is_marked_at_its_place(text: str, where: str) -> None:
    assert where in faults(text)


def test_the_shipped_text_is_plain_json() -> None:
    assert json.loads(schema_text()) == profile_schema()
