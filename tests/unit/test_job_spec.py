"""The configuration of a job, in memory and as the ledger stores it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.job_spec import JobSpec
from orchestrator.results.bundle.archive import unpacked
from tests.recorded_jobs import JOB_SPEC

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def test_an_empty_configuration_has_no_parts() -> None:
    spec = JobSpec.from_json({})
    assert (spec.model, spec.layout, spec.training, spec.computes, spec.arguments) == (None, None, None, None, ())
    assert spec == JobSpec() and spec.warmup_iterations == 0


@pytest.mark.parametrize("part", [{}, {"layers": 4}, [], 7, {"from_the_future": 1}])
def test_a_part_of_another_version_is_refused(part: object) -> None:
    with pytest.raises(TypeError):
        JobSpec.from_json(JOB_SPEC | {"model": part})


@pytest.mark.parametrize("figure", ["figure-13", "figure-17"])  # with `computes`, and from before it was stored
def test_a_stored_configuration_is_written_byte_for_byte_as_it_was_read(figure: str) -> None:
    with unpacked(RESULTS / "h200" / f"{figure}.tar.zst") as (folder, _):
        lines = (folder / "ledger" / "jobs.jsonl").read_text().splitlines()
    stored = [json.dumps(json.loads(line)["configuration"]) for line in lines]
    assert stored and [json.dumps(JobSpec.from_json(json.loads(text)).to_json()) for text in stored] == stored
