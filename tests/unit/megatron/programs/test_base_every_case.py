"""Tests of every case with every program: arguments that can be parsed, or a refusal in one line."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from orchestrator.catalog.experiment import Paper, scale_names
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.program import program_for
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.megatron.case import TrainingCase
from orchestrator.paths import Folders
from orchestrator.programs.command import read_flags
from orchestrator.programs.record import programs
from tests.cases import expand, megatron_names
from tests.unit.catalog.entries import CHECKOUT
from tests.unit.clusters.sites import PLAIN, cluster_of
from tests.unit.megatron.programs.places import EVERYWHERE

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home")


@cache
def catalogue() -> list[tuple[Paper, TrainingCase]]:
    """Return every case of every experiment with its paper. The code of each program is that of all papers."""
    entries = [find_experiment(FOLDERS, name) for name in megatron_names(FOLDERS)]
    code = {program: code for entry in entries for program, code in entry.paper.code.items()}
    return [
        (entry.paper.model_copy(update={"code": code}), case)
        for entry in entries
        for scale in scale_names(entry.experiment)
        for case in expand(entry, scale)
    ]


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder: Path = tmp_path_factory.mktemp("site")
    return cluster_of(folder, PLAIN + EVERYWHERE)


@pytest.mark.parametrize("program", programs())
def test_every_case_gives_arguments_or_a_one_line_refusal(program: str, everywhere: Cluster) -> None:
    supported = 0
    for paper, own in catalogue():
        case = replace(own, program=program)
        try:
            arguments = program_for(case, paper, everywhere, FOLDERS).arguments
        except ReproError as refused:
            assert len(refused.problems) == 1 and "\n" not in str(refused)
            assert str(refused).startswith(f"{case.name}: ") and own.program != program
            continue
        supported += 1
        assert not {"", "None", "True", "False"} & set(arguments), case.name
        assert sizes(arguments) == (
            str(case.layout.tensor_parallel),
            str(case.layout.pipeline_parallel),
            str(case.layout.micro_batch_size),
            str(case.layout.global_batch_size),
            str(case.model.layers),
            str(case.model.hidden),
            str(case.model.heads),
            str(case.model.seq),
        ), f"{program} {case.name}"
    assert supported >= sum(own.program == program for _, own in catalogue())
    assert supported


def sizes(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return layout and model as the program parses them."""
    if arguments[-1] == "megatron_results_e2e":
        case = ast.literal_eval(arguments[-2])
        micro_batch = case[1] // case[7] // case[12]
        return tuple(str(size) for size in (case[8], case[11], micro_batch, *(case[i] for i in (1, 4, 3, 5, 2))))
    flags = read_flags(arguments)
    names = (
        "tensor-model-parallel-size pipeline-model-parallel-size micro-batch-size global-batch-size num-layers "
        "hidden-size num-attention-heads seq-length"
    )
    return tuple(flags[f"--{name}"][0] for name in names.split())
