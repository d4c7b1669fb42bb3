"""Tests of the arguments of Megatron-LM of 2021 against the published scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ReproError
from orchestrator.megatron.case import TrainingCase
from tests.cases import expand
from tests.unit.catalog.entries import shipped
from tests.unit.megatron.programs.places import arguments_of

# MEGATRON_PARAMS of CONFIG.sh at 6985e58938, examples/sc21, after MEGATRON_EXTRA_PARAMS of run_figure_13.sh.
SCRIPT = (
    "--activations-checkpoint-method uniform "
    "--tensor-model-parallel-size {TP} --pipeline-model-parallel-size {PP} --micro-batch-size 1 "
    "--global-batch-size {GBS} --num-layers 32 --hidden-size 20480 --num-attention-heads 128 --DDP-impl local "
    "--data-path /DATA --vocab-file /VOCAB --merge-file /MERGE --log-interval 5 --seq-length 2048 "
    "--max-position-embeddings 2048 --train-iters 500 --lr-decay-iters 320 --lr 0.0001 --min-lr 0.00001 "
    "--lr-decay-style cosine --lr-warmup-fraction 0.01 --split 969,30,1 --eval-iters 100 --eval-interval 1000 "
    "--clip-grad 1.0 --fp16 --loss-scale 8192"
)
OURS = {"--train-iters": "25", "--eval-iters": "1"}


def arguments(case: TrainingCase) -> list[str]:
    return arguments_of("megatron-2021", case)


@pytest.mark.parametrize("case", expand(shipped()), ids=lambda case: case.slug)
def test_figure_13_arguments_are_published_except_iterations(case: TrainingCase) -> None:
    published = SCRIPT.format(
        TP=64 // case.layout.pipeline_parallel, PP=case.value("pp"), GBS=case.value("gbs")
    ).split()
    for flag, value in OURS.items():
        published[published.index(flag) + 1] = value
    assert arguments(case) == published


def test_interleaving_arguments_come_first_like_in_the_scripts() -> None:
    case = expand(shipped())[4]  # pp=8: four layers a stage
    interleaved = replace(case, layout=replace(case.layout, virtual_stages=2))
    assert arguments(interleaved)[:4] == [
        "--activations-checkpoint-method",
        "uniform",
        "--num-layers-per-virtual-pipeline-stage",
        "2",
    ]


def test_without_recomputation_and_half_precision_their_flags_are_absent() -> None:
    case = expand(shipped())[0]
    plain = replace(case, training=replace(case.training, recompute="none", dtype="fp32", loss_scale=None))
    assert not {"--activations-checkpoint-method", "--fp16", "--loss-scale"} & set(arguments(plain))


def test_arguments_save_no_checkpoint() -> None:
    flags = set(arguments(expand(shipped())[0]))
    assert not {"--exit-interval", "--save", "--save-interval"} & flags


def test_values_other_than_program_defaults_are_given() -> None:
    case = expand(shipped())[0]
    training = replace(case.training, dtype="bf16", dropout=0.0)
    result = arguments(replace(case, training=training, model=replace(case.model, ffn=32768)))
    assert result[-8:] == (
        ["--loss-scale", "8192", "--ffn-hidden-size", "32768", "--hidden-dropout", "0.0", "--attention-dropout", "0.0"]
    )
    assert "--bf16" in result and "--fp16" not in result


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("model", {"family": "llama"}, "models other than dense GPT with separate keys for each head"),
        ("model", {"experts": 8}, "models other than dense GPT with separate keys for each head"),
        ("model", {"kv_groups": 8}, "models other than dense GPT with separate keys for each head"),
        ("training", {"recompute": "selective"}, "recomputation selective (only none, full)"),
        ("training", {"recompute": "ours"}, "recomputation ours (only none, full)"),
        ("training", {"offload": 0.5}, "offloading"),
        ("training", {"distributed_optimizer": True}, "the distributed optimizer"),
        ("training", {"attention": "flash"}, "flash attention"),
        ("layout", {"context_parallel": 2}, "context parallelism"),
        ("layout", {"sequence_parallel": True}, "sequence parallelism"),
    ],
)
def test_later_features_are_refused(part: str, change: dict[str, Any], reason: str) -> None:
    case = expand(shipped())[0]
    changed = replace(case, **{part: replace(getattr(case, part), **change)})
    with pytest.raises(ReproError) as caught:
        arguments(changed)
    assert str(caught.value) == f"{case.name}: megatron-2021 does not support {reason}"
