"""Tests of the arguments of the Megatron tutorials against their scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ReproError
from orchestrator.megatron.case import TrainingCase
from orchestrator.programs.command import read_flags
from tests.unit.catalog.entries import find_case
from tests.unit.megatron.programs.places import arguments_of

# What all scripts of vuiseng9/megatron-tutorials at 0b2c030a1d have after their model's arguments, but for
# --train-iters 500000, which a later one overrides, and --tensorboard-dir.
TRAINING = (
    "--micro-batch-size {MBS} --global-batch-size {GBS} --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 "
    "--init-method-std 0.006 --clip-grad 1.0 --bf16 --lr 6.0e-5 --lr-decay-style cosine --min-lr 6.0e-6 "
    "--lr-warmup-fraction .001 --lr-decay-iters 430000 "
)
PARALLEL = "--tensor-model-parallel-size {TP} --pipeline-model-parallel-size {PP} --context-parallel-size {CP} "
DATA = "--data-path /DATA --vocab-file /VOCAB --merge-file /MERGE --split 949,50,1 "
LOGGING = (
    "--train-iters 100 --log-interval 1 --log-throughput --save-interval 0 --eval-interval {EVERY} --eval-iters 10 "
)
ZERO = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
COMMON = TRAINING + PARALLEL + DATA + LOGGING
ONE = {"MBS": 8, "GBS": 8, "TP": 1, "PP": 1, "CP": 1, "EVERY": 50}


def model(layers: int, hidden: int, heads: int, seq: int, backend: str = "auto") -> str:
    return (
        f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --seq-length {seq} "
        f"--max-position-embeddings {seq} --attention-backend {backend} "
    )


def arguments(case: TrainingCase) -> list[str]:
    return arguments_of("megatron-core-0.14", case)


def test_row_124_has_the_published_arguments() -> None:
    # 100_gpt2xl_ddp_gpuX_gbsX.sh 4 64 1; the overlaps stand last, as they are the experiment's own.
    training = TRAINING.format(MBS=16, GBS=64)
    rest = (PARALLEL + DATA + LOGGING).format(**ONE)
    expected = model(48, 1600, 25, 1024) + training + "--use-distributed-optimizer " + rest
    assert arguments(find_case("core-dp", "case=124")) == [
        *expected.split(),
        "--overlap-grad-reduce",
        "--overlap-param-gather",
    ]


# The other scripts name the same arguments in other orders.
@pytest.mark.parametrize(
    ("experiment", "row", "published"),
    [
        ("core-dp", "101", model(48, 1600, 25, 1024) + COMMON.format(**ONE | {"MBS": 1, "GBS": 1})),
        ("core-dp", "112", model(48, 1600, 25, 1024) + COMMON.format(**ONE | {"MBS": 15, "GBS": 60})),
        ("core-dp", "130", model(62, 1600, 25, 1024) + ZERO + COMMON.format(**ONE | {"MBS": 16, "GBS": 128})),
        ("core-tp-weak", "228", model(72, 3072, 32, 1024) + COMMON.format(**ONE | {"MBS": 20, "GBS": 20, "TP": 8})),
        (
            "core-sp",
            "282",
            model(48, 6144, 64, 2048) + "--sequence-parallel " + COMMON.format(**ONE | {"MBS": 4, "GBS": 4, "TP": 8}),
        ),
        (
            "core-sp",
            "283",
            model(48, 6144, 64, 2048) + RECOMPUTE + COMMON.format(**ONE | {"MBS": 4, "GBS": 4, "TP": 8}),
        ),
        (
            "core-pp",
            "438",
            model(72, 3072, 32, 1024)
            + "--num-layers-per-virtual-pipeline-stage 3 "
            + COMMON.format(**ONE | {"MBS": 4, "GBS": 32, "PP": 8}),
        ),
        (
            "core-tp-pp",
            "446",
            model(72, 3072, 32, 1024)
            + "--sequence-parallel --num-layers-per-virtual-pipeline-stage 6 "
            + COMMON.format(**ONE | {"MBS": 8, "GBS": 32, "TP": 2, "PP": 4}),
        ),
        (
            "core-ep",
            "511",
            model(16, 1024, 16, 4096)
            + "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 1024 --moe-grouped-gemm "
            + "--moe-permute-fusion --disable-bias-linear --moe-router-force-load-balancing "
            + "--expert-model-parallel-size 4 --expert-tensor-parallel-size 2 --moe-token-dispatcher-type alltoall "
            + ZERO
            + COMMON.format(**ONE | {"MBS": 4, "GBS": 32}),  # less --sequence-parallel, as the experiment says
        ),
    ],
)
def test_other_tables_have_the_flags_of_their_scripts(experiment: str, row: str, published: str) -> None:
    assert read_flags(arguments(find_case(experiment, f"case={row}"))) == read_flags(published.split())


@pytest.mark.parametrize(
    ("row", "switches"),
    [
        ("300", {"CP": 1, "COMM": None, "RA": RECOMPUTE, "SEQ": 4096}),  # the script's p2p is the default
        ("302", {"CP": 2, "COMM": "p2p", "RA": "", "SEQ": 4096}),
        ("348", {"CP": 8, "COMM": "all_gather", "RA": "", "SEQ": 16384}),
        ("328", {"CP": 8, "COMM": "a2a", "RA": "", "SEQ": 4096}),
    ],
)
def test_context_parallelism_sets_flash_attention_and_communication(row: str, switches: dict[str, Any]) -> None:
    published = model(40, 1536, 16, switches["SEQ"], "flash") + switches["RA"]
    published += COMMON.format(**ONE | {"CP": switches["CP"]})
    if switches["COMM"]:
        published += f"--cp-comm-type {switches['COMM']}"
    result, expected = read_flags(arguments(find_case("core-cp", f"case={row}"))), read_flags(published.split())
    # The experiment sets how often that table evaluates.
    assert {**result, "--eval-interval": ()} == {**expected, "--eval-interval": ()}


def test_eval_interval_of_the_experiment_is_kept() -> None:
    case = find_case("core-cp", "case=302")
    for typed in (("--eval-interval", "25"), ("--eval-interval=25",)):
        result = arguments(replace(case, arguments=typed))
        assert read_flags(result)["--eval-interval"] == ("25",)
        assert sum(word.startswith("--eval-interval") for word in result) == 1


def test_first_generation_has_the_flags_of_its_script() -> None:
    # 310_gpt2xl_gbsX_lenX_cpX.sh 4 16384 8 of vuiseng9/megatron-lm at 6ac43930b5, for 100 of its 200 iterations.
    published = model(48, 1600, 25, 16384) + COMMON.format(**ONE | {"MBS": 4, "GBS": 4, "CP": 8})
    published += "--cp-comm-type p2p"  # the default
    assert read_flags(arguments(find_case("tutorial-cp", "case=312"))) == read_flags(published.split())


def test_dropout_other_than_the_default_is_given() -> None:
    case = find_case("core-dp", "case=101")
    flags = read_flags(arguments(replace(case, training=replace(case.training, dropout=0.0))))
    assert (flags["--hidden-dropout"], flags["--attention-dropout"]) == (("0.0",), ("0.0",))


def test_loss_scale_is_given_only_with_fp16() -> None:
    case = find_case("core-dp", "case=101")
    half = read_flags(arguments(replace(case, training=replace(case.training, dtype="fp16", loss_scale=8192))))
    assert half["--loss-scale"] == ("8192",) and "--fp16" in half and "--bf16" not in half
    full = read_flags(arguments(replace(case, training=replace(case.training, dtype="fp32", loss_scale=8192))))
    assert not {"--fp32", "--bf16", "--fp16", "--loss-scale"} & set(full)


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("training", {"recompute": "ours"}, "recomputation ours (only none, full)"),
        ("training", {"offload": 0.5}, "offloading"),
        ("training", {"scatter_gather": False}, "disabling scatter/gather"),
        ("training", {"ddp": "torch"}, "DDP torch"),
        ("model", {"family": "llama"}, "models other than GPT-2's, with or without experts"),
        ("model", {"kv_groups": 5}, "models other than GPT-2's, with or without experts"),
        ("model", {"ffn": 4096}, "models other than GPT-2's, with or without experts"),
    ],
)
def test_settings_outside_the_tutorials_are_refused(part: str, change: dict[str, Any], reason: str) -> None:
    case = find_case("core-dp", "case=101")
    changed = replace(case, **{part: replace(getattr(case, part), **change)})
    with pytest.raises(ReproError) as caught:
        arguments(changed)
    assert str(caught.value) == f"case=101: megatron-core-0.14 does not support {reason}"
