"""Tests of `--arg` and `--no-arg`: their syntax, what they may change, and the jobs with changed arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.case import require_changeable, select, with_changes
from orchestrator.clusters.program import program_for
from orchestrator.errors import ReproError
from orchestrator.job_spec import shown_changes
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.programs import find_megatron
from orchestrator.planning.plan import identity, job_content
from orchestrator.programs.command import (
    BoundProgram,
    changes_of,
    parse_changes,
    read_flags,
    without_flags,
)
from tests.cases import expand
from tests.unit.catalog.entries import shipped
from tests.unit.clusters.sites import PLAIN, cluster_of
from tests.unit.megatron.programs.places import EVERYWHERE, FOLDERS

DROPPED = ("--no-arg=--overlap-sp-ag", "--no-arg=--overlap-sp-rs")


def problems(arguments: Sequence[str], dropped: Sequence[str] = ()) -> list[str]:
    with pytest.raises(ReproError) as caught:
        require_changeable(expand(shipped("figure-13")), parse_changes(arguments, dropped))
    return [str(problem) for problem in caught.value.problems]


def case_of(name: str, **where: str) -> TrainingCase:
    return select(expand(shipped(name)), where)[0]


def program_of(folder: Path, name: str, case: TrainingCase) -> BoundProgram:
    return program_for(case, shipped(name).paper, cluster_of(folder, PLAIN + EVERYWHERE), FOLDERS)


# ---- the options ----------------------------------------------------------------------------------------------------


def test_changes_are_in_the_order_of_their_flags_and_are_shown_as_typed() -> None:
    changes = parse_changes(["--seed=7", "--lr=0.001", "--log-params-norm"], ["--overlap-sp-ag"])
    assert changes == ("--arg=--log-params-norm", "--arg=--lr=0.001", "--no-arg=--overlap-sp-ag", "--arg=--seed=7")
    assert shown_changes(changes) == "--arg --log-params-norm --arg --lr=0.001 --no-arg --overlap-sp-ag --arg --seed=7"
    assert changes_of([changes[2:], changes[:3]]) == changes
    assert parse_changes([], []) == ()


@pytest.mark.parametrize(
    ("arguments", "dropped", "expected"),
    [
        (["lr=1"], [], "--arg lr=1: must be --name or --name=value. Hint: for example --arg --lr=0.001"),
        (["-l"], [], "--arg -l: must be --name or --name=value. Hint: for example --arg --lr=0.001"),
        ([], ["--lr=1"], "--no-arg --lr=1: must be --name. Hint: for example --no-arg --overlap-sp-ag"),
        (["--lr=1", "--lr=2"], [], "--arg --lr=2: --lr is given twice. Hint: give it once"),
        (["--lr=1"], ["--lr"], "--no-arg --lr: --lr is given twice. Hint: give it once"),
        (
            ["--tensor-model-parallel-size=4"],
            [],
            "--arg --tensor-model-parallel-size=4: the case sets this argument, and the verdict compares it with the "
            "log. Hint: select cases with --where tp=..., or set tp in an experiment of your own",
        ),
        (
            [],
            ["--num-layers"],
            "--no-arg --num-layers: the case sets this argument, and the verdict compares it with the log. "
            "Hint: select cases with --where layers=..., or set layers in an experiment of your own",
        ),
        (
            ["--train-iters=5"],
            [],
            "--arg --train-iters=5: the case sets this argument. Hint: --time-budget reduces the iterations; "
            "set training: iterations in an experiment of your own",
        ),
        (
            [],
            ["--fp16"],
            "--no-arg --fp16: the case sets this argument. Hint: set training: dtype in an experiment of your own",
        ),
        (
            ["--data-path=/d"],
            [],
            "--arg --data-path=/d: the cluster's profile sets this argument. Hint: set it in programs: of the profile",
        ),
        (
            [],
            ["--swiglu"],
            "--no-arg --swiglu: the family of the model sets this argument. "
            "Hint: set model: family in an experiment of your own",
        ),
    ],
)
def test_a_change_that_cannot_be_made_is_one_line_with_a_hint(
    arguments: list[str], dropped: list[str], expected: str
) -> None:
    assert problems(arguments, dropped) == [expected]


def test_all_wrong_values_are_reported_at_once() -> None:
    assert len(problems(["lr"], ["--x=1"])) == 2
    assert len(problems(["--hidden-size=8"], ["--bf16"])) == 2


def test_an_unknown_flag_of_no_arg_names_the_nearest_one_of_the_program() -> None:
    with pytest.raises(ReproError) as caught:
        require_changeable(expand(shipped("figure-13")), ["--no-arg=--lr-warmup", "--arg=--anything"])
    assert str(caught.value) == (
        '--no-arg --lr-warmup: megatron-2021 does not get this argument. Did you mean "--lr-warmup-fraction"?'
    )


@pytest.mark.parametrize("name", ["figure-13", "figure-18", "atc-table-8", "core-ep", "core-cp", "tutorial-cp"])
def test_no_flag_that_differs_between_cases_can_be_changed(name: str) -> None:
    by_program: dict[str, list[Mapping[str, tuple[str, ...]]]] = {}
    for case in expand(shipped(name)):
        program = find_megatron(case.program)
        fields = program.site.model_fields.items()
        required: dict[str, Any] = {field: field for field, info in fields if info.is_required()}
        words = program.arguments(case, program.site.model_construct(**required))
        by_program.setdefault(case.program, []).append(read_flags(words))
    for cases in by_program.values():
        for flag in {flag for flags in cases for flag in flags}:
            if len({flags.get(flag) for flags in cases}) > 1:
                assert len(problems([], [flag])) == 1, flag


# ---- the jobs -------------------------------------------------------------------------------------------------------


def test_a_flag_is_replaced_added_or_left_out_with_its_values() -> None:
    words = ["--lr", "0.1", "--mock-data", "--betas", "0.9", "0.95", "--seed=1"]
    assert without_flags(words, ["--no-arg=--betas", "--arg=--seed=7"]) == ["--lr", "0.1", "--mock-data"]


def test_the_program_gets_each_changed_flag_once_with_the_new_value(tmp_path: Path) -> None:
    (plain,) = (case for case in expand(shipped("atc-table-8")) if case.value("case") == "ours")
    (changed,) = with_changes([plain], parse_changes(["--lr=0.5", "--log-params-norm"], ["--overlap-sp-ag"]))
    before, after = (program_of(tmp_path, "atc-table-8", case).arguments for case in (plain, changed))
    assert after.count("--lr") == 1 and read_flags(after)["--lr"] == ("0.5",)
    assert read_flags(before).keys() - read_flags(after).keys() == {"--overlap-sp-ag"}
    assert read_flags(after).keys() - read_flags(before).keys() == {"--log-params-norm"}
    others = read_flags(before).keys() & read_flags(after).keys() - {"--lr"}
    assert all(read_flags(before)[flag] == read_flags(after)[flag] for flag in others)


def test_without_overlapped_tensor_communication_the_job_needs_no_mpi(tmp_path: Path) -> None:
    case = case_of("atc-table-8", case="ours")
    assert program_of(tmp_path, "atc-table-8", case).needs_mpi
    (one,) = with_changes([case], DROPPED[:1])
    assert program_of(tmp_path, "atc-table-8", one).needs_mpi
    (both,) = with_changes([case], DROPPED)
    assert not program_of(tmp_path, "atc-table-8", both).needs_mpi
    origin = case_of("atc-demo", case="origin")
    assert program_of(tmp_path, "atc-demo", origin).needs_mpi
    (changed,) = with_changes([origin], ["--no-arg=--tp-comm-overlap"])
    assert not program_of(tmp_path, "atc-demo", changed).needs_mpi


def test_changes_are_part_of_the_identity_whatever_their_order(tmp_path: Path) -> None:
    case = case_of("figure-13")
    program = program_of(tmp_path, "figure-13", case)
    orders = [parse_changes(["--lr=0.5", "--seed=7"], []), parse_changes(["--seed=7", "--lr=0.5"], [])]
    changed = [with_changes([case], changes)[0] for changes in orders]
    ids = {identity(one, program, "c") for one in changed}
    assert len(ids) == 1 and identity(case, program, "c") not in ids
    (dropped,) = with_changes([case], ["--no-arg=--clip-grad"])
    assert job_content(dropped) != job_content(case)


def test_a_change_without_an_effect_gives_the_published_job() -> None:
    origin, ours = case_of("atc-demo", case="origin"), case_of("atc-demo", case="ours")
    assert with_changes([origin, ours], DROPPED)[0] == origin  # the program of January 2024 has no such argument
    assert with_changes([ours], DROPPED)[0].argument_changes == DROPPED
    assert with_changes([case_of("figure-13")], ["--arg=--lr=0.0001"]) == [case_of("figure-13")]


def test_an_argument_of_the_experiment_can_be_replaced_and_left_out() -> None:
    case = case_of("fused-operators", case="175b-unfused")
    (changed,) = with_changes([case], ["--no-arg=--no-bias-gelu-fusion"])
    assert changed.arguments == ("--no-masked-softmax-fusion", "--no-bias-dropout-fusion")
    (fused,) = with_changes([case_of("fused-operators", case="175b-fused")], ["--arg=--no-bias-gelu-fusion"])
    assert fused.arguments == ("--no-bias-gelu-fusion",)
