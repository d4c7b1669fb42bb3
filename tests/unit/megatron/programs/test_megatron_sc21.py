"""Tests of all 99 cases of SC21 in arguments of 2021 and of today against the published scripts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.errors import ReproError
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.rules import RuleContext
from tests.cases import expand
from tests.unit.catalog.entries import shipped
from tests.unit.megatron.programs.places import arguments_of


@cache
def sc21_arguments() -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(
        Path(__file__).with_name("sc21_arguments.yaml").read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return content


@cache
def points() -> dict[str, dict[str, Any]]:
    return {point["id"]: point for point in sc21_arguments()["points"]}


# How each run_*.sh calls its jobs, less `results_FIGURE_`.
NAMES = {
    "table-1": "model_size_{case}",
    "figure-11": "pipeline_parallel_size_{pp}_batch_size_{gbs}",
    "figure-12": "interleaved_{interleaved}_batch_size_{gbs}",
    "figure-13": "pipeline_parallel_size_{pp}_tensor_parallel_size_{tp}_batch_size_{gbs}",
    "figure-14": "pipeline_parallel_size_{pp}_data_parallel_size_{dp}_batch_size_{gbs}",
    "figure-15": "tensor_parallel_size_{tp}_data_parallel_size_{dp}_batch_size_{gbs}",
    "figure-16": "microbatch_size_{mbs}_batch_size_{gbs}",
    "figure-17": "activation_recomputation_{recomputes}_batch_size_{gbs}",
    "figure-18": "scatter_gather_{scatters}_batch_size_{gbs}",
}


def job_name(experiment: str, case: TrainingCase) -> str:
    name = NAMES[experiment].format(
        case=dict(case.point).get("case"),
        pp=case.layout.pipeline_parallel,
        tp=case.layout.tensor_parallel,
        dp=case.layout.data_parallel,
        mbs=case.layout.micro_batch_size,
        gbs=case.layout.global_batch_size,
        interleaved="YES" if case.layout.virtual_stages > 1 else "NO",
        recomputes="YES" if case.training.recompute == "full" else "NO",
        scatters="YES" if case.training.scatter_gather else "NO",
    )
    return f"results_{experiment.replace('-', '_')}_{name}"


@cache
def cases() -> list[tuple[str, TrainingCase]]:
    return [(job_name(experiment, case), case) for experiment in NAMES for case in expand(shipped(experiment))]


def published(name: str, year: str, substitutions: dict[str, object]) -> list[str]:
    """Return the published list with our values for these flags, each of which it must contain."""
    point = points()[name]
    text = sc21_arguments()["extras"][point["extra"]][f"first_{year}"] + " " + sc21_arguments()[f"then_{year}"]
    arguments: list[str] = text.format(**point, divisor=1024 // point["tp"]).split()
    for flag, value in substitutions.items():
        arguments[arguments.index(flag) + 1] = str(value)
    return arguments


def test_published_jobs_and_cases_match_one_to_one() -> None:
    names = [name for name, _ in cases()]
    assert len(names) == len(set(names)) == len(points()) == 99
    assert set(names) == set(points())


def ours(case: TrainingCase, last: str) -> dict[str, object]:
    """Return the flags whose values are the experiment's: for how long a case trains, and how often it reports."""
    training = case.training
    return {
        last: training.iterations,
        "--log-interval": training.log_interval,
        "--eval-iters": training.evaluation_iterations,
    }


def test_arguments_of_2021_are_those_of_the_scripts() -> None:
    # The scripts' 500 iterations outlast their own 30 minutes. DATA, VOCAB and MERGE are the site's paths.
    for name, case in cases():
        assert arguments_of("megatron-2021", case) == published(name, "2021", ours(case, "--train-iters")), name


def test_arguments_of_today_match_the_scripts_or_are_refused() -> None:
    for name, case in cases():
        today = replace(case, program="megatron-2026")
        if points()[name].get("caveat"):
            with pytest.raises(ReproError) as caught:
                arguments_of("megatron-2026", today)
            assert str(caught.value) == (
                f"{case.name}: megatron-2026 does not support disabling scatter/gather (10e7b74597 removed the option)"
            )
        else:
            # The published translation ends after 20 of its 500 iterations; ours after the experiment's number.
            assert arguments_of("megatron-2026", today) == published(name, "today", ours(case, "--exit-interval")), name


def test_only_five_cases_of_figure_18_are_refused_today() -> None:
    caveats = {name for name, point in points().items() if point.get("caveat")}
    assert caveats == {name for name, case in cases() if not case.training.scatter_gather}
    assert len(caveats) == 5 and all("figure_18" in name for name in caveats)


@pytest.mark.parametrize("program", ["megatron-2021", "megatron-2026"])
def test_vocabulary_padding_of_2021_and_today(program: str) -> None:
    traits = find_megatron(program)
    for name, case in cases():
        tokens = traits.tokens(case.model, case.layout.tensor_parallel)
        made = RuleContext(case.model, case.layout, case.training, traits.dialect, tokens=tokens).vocabulary
        assert made == (points()[name]["padded"] if program == "megatron-2021" else 51200), name
