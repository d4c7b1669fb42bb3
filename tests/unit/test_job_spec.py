"""The configuration of a job, in memory and as the ledger stores it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import ReproError
from orchestrator.job_spec import JobSpec
from orchestrator.megatron.spec import TrainingSpec, training_spec
from orchestrator.results.bundle.extract import unpacked
from tests.recorded_jobs import JOB_SPEC

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def test_an_empty_configuration_has_no_parts() -> None:
    spec = JobSpec.from_json({})
    assert spec == JobSpec() and (spec.own, spec.arguments) == ({}, ())
    assert training_spec(spec) == TrainingSpec() and training_spec(spec).warmup_iterations == 0


@pytest.mark.parametrize("part", [{}, {"layers": 4}, [], 7, {"from_the_future": 1}])
def test_a_part_of_another_version_is_refused(part: object) -> None:
    with pytest.raises(ReproError, match="another version of repro"):
        training_spec(JobSpec.from_json(JOB_SPEC | {"model": part}))
    with pytest.raises(TypeError):
        JobSpec.from_json(JOB_SPEC | {"resources": {"nodes": 1}})


@pytest.mark.parametrize("figure", ["figure-13", "figure-17"])  # with `computes`, and from before it was stored
def test_a_stored_configuration_is_written_as_it_was_read(figure: str) -> None:
    with unpacked(RESULTS / "h200" / f"{figure}.tar.zst") as (folder, _):
        lines = (folder / "ledger" / "jobs.jsonl").read_text().splitlines()
    stored = [json.loads(line)["configuration"] for line in lines]
    assert stored and [JobSpec.from_json(one).to_json() for one in stored] == stored
    parts = ("model", "layout", "training", "computes", "peak_tflops")
    assert all(
        training_spec(JobSpec.from_json(one)).to_json() == {name: one.get(name) for name in parts} for one in stored
    )
