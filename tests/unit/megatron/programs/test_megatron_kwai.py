"""Tests of the arguments of ATC'24's two programs against their scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ReproError
from orchestrator.megatron.case import TrainingCase
from orchestrator.programs.command import read_flags
from tests.cases import expand
from tests.unit.catalog.entries import find_case, shipped
from tests.unit.megatron.programs.places import arguments_of

# From `python3 ../../pretrain_gpt.py` on, examples/atc24/pretrain_llama.sh at b2646e4d9f, with the variables of
# 6_run_175b_256gpus_ours.sh and llama-175b.
KWAI = (
    "--use-distributed-optimizer --accumulate-allreduce-grads-in-fp32 --initial-loss-scale 1 --use-flash-attn "
    "--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 8 "
    "--num-layers-per-virtual-pipeline-stage 2 --overlap-p2p-communication --context-parallel-size 1 "
    "--kaimm-recompute-mlp-activation-func --kaimm-recompute-norm --overlap-sp-ag --overlap-sp-rs "
    "--kaimm-overlap-cp-slow-ctas 4 --kaimm-cuda-synchronize-level 2 --kaimm-gc-interval 9999 --use-fast-rms-norm "
    "--use-fast-rope --kaimm-offload-activation-ratio 0.63 --kaimm-async-dataloader --prefetch-factor 64 "
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --ffn-hidden-size 32768 --seq-length 8192 "
    "--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 256 --lr 1.5e-4 --train-iters 200 "
    "--lr-decay-iters 500000 --lr-decay-style cosine --min-lr 1.5e-5 --weight-decay 0.1 --lr-warmup-iters 2000 "
    "--clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-5 --bf16 --no-position-embedding "
    "--use-rotary-position-embeddings --swiglu --rms-norm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --hidden-dropout 0. --attention-dropout 0. --no-query-key-layer-scaling "
    "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --data-path /DATA "
    "--tokenizer-type NullTokenizer --vocab-size 32004 --split 949,50,1 --log-interval 1 --save-interval 10000 "
    "--eval-interval 1000 --eval-iters 0"
)
# The same of pretrain_llama_using_origin_megatron.sh, with the variables of 3_run_7b_4gpus_origin_megatron.sh.
ORIGIN = (
    "--use-distributed-optimizer --accumulate-allreduce-grads-in-fp32 --initial-loss-scale 1 --use-flash-attn "
    "--tensor-model-parallel-size 1 --sequence-parallel --pipeline-model-parallel-size 4 "
    "--num-layers-per-virtual-pipeline-stage 1 --context-parallel-size 1 --recompute-granularity full "
    "--recompute-method uniform --recompute-num-layers 1 --use-mcore-models --tp-comm-overlap --manual-gc "
    "--manual-gc-interval 9999 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 "
    "--seq-length 12288 --max-position-embeddings 12288 --micro-batch-size 1 --global-batch-size 16 --lr 1.5e-4 "
    "--train-iters 200 --lr-decay-iters 500000 --lr-decay-style cosine --min-lr 1.5e-5 --weight-decay 0.1 "
    "--lr-warmup-iters 2000 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-5 --bf16 "
    "--no-position-embedding --use-rotary-position-embeddings --swiglu --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --hidden-dropout 0. --attention-dropout 0. --no-masked-softmax-fusion "
    "--no-bias-gelu-fusion --no-bias-dropout-fusion --data-path /DATA --tokenizer-type NullTokenizer "
    "--vocab-size 32004 --split 949,50,1 --log-interval 1 --save-interval 10000 --eval-interval 1000 --eval-iters 0"
)
OURS = {"--hidden-dropout": "0.0", "--attention-dropout": "0.0"}  # the same numbers, written otherwise

CKPT = {"none": "no", "full": "full", "ours": "ours"}
# Rows of "Reproduce Figure 9" in the artifact README: model, GPUs, layers per chunk, CKPT, OFFLOAD_ALPHA.
FIGURE_9 = """
llama-175b 256 1 no 0.522|llama-175b 240 1 no 0.276|llama-175b 192 1 no 0.41|llama-175b 160 2 ours 0.334
llama-175b 144 2 ours 0.746|llama-175b 128 1 ours 0.751|llama-175b 120 2 ours 0.851|llama-175b 96 2 ours 0.324
llama-175b 64 1 ours 0.979|llama-175b 48 1 ours 0.999|llama-65b 256 2 no 0.355|llama-65b 240 2 no 0.302
llama-65b 200 4 no 0|llama-65b 192 2 no 0|llama-65b 160 2 no 0.331|llama-65b 128 2 ours 0
llama-65b 120 2 ours 0.383|llama-65b 112 4 no 0|llama-65b 96 2 ours 0.035|llama-65b 80 2 ours 0
llama-65b 64 2 ours 0.162|llama-65b 56 2 ours 0.945|llama-65b 48 2 ours 0.29|llama-65b 40 2 ours 0.815
llama-65b 32 2 ours 0.544|llama2-70b 256 2 no 0|llama2-70b 240 2 no 0|llama2-70b 224 4 ours 0.352
llama2-70b 200 2 ours 0.368|llama2-70b 192 2 no 0|llama2-70b 160 2 no 0|llama2-70b 144 2 ours 0.755
llama2-70b 128 2 ours 0.012|llama2-70b 120 2 ours 0.46|llama2-70b 112 2 ours 0.811|llama2-70b 96 2 ours 0.08
llama2-70b 80 2 ours 0.024|llama2-70b 64 2 ours 0.654|llama2-70b 48 2 ours 0.722|llama2-70b 40 2 ours 0.713
llama2-70b 32 2 ours 0.858
"""


def scripted(text: str, iterations: int) -> list[str]:
    """Return the script's arguments with the values of the case, and the end of ours."""
    scripted_arguments = text.split()
    for flag, value in OURS.items():
        scripted_arguments[scripted_arguments.index(flag) + 1] = value
    return [*scripted_arguments, "--exit-interval", str(iterations)]


def settings_of(case: TrainingCase) -> tuple[int, str, float]:
    """Return PP_l, CKPT and OFFLOAD_ALPHA of an argument list."""
    flags = read_flags(arguments_of("megatron-kwai", case))
    ckpt = "no"
    if flags.get("--recompute-granularity") == ("full",):
        assert (flags["--recompute-method"], flags["--recompute-num-layers"]) == (("uniform",), ("1",))
        ckpt = "full"
    elif "--kaimm-recompute-norm" in flags:
        assert "--kaimm-recompute-mlp-activation-func" in flags
        ckpt = "ours"
    (per_chunk,), (alpha,) = (
        flags["--num-layers-per-virtual-pipeline-stage"],
        flags["--kaimm-offload-activation-ratio"],
    )
    return int(per_chunk), ckpt, float(alpha)


def test_script_6_has_the_published_arguments_and_ends_early() -> None:
    assert arguments_of("megatron-kwai", find_case("atc-table-8", "case=ours")) == scripted(KWAI, 20)


def test_script_3_has_the_published_arguments_and_ends_early() -> None:
    assert arguments_of("megatron-jan-2024", find_case("atc-demo", "case=origin")) == scripted(ORIGIN, 40)


def test_origin_overlaps_tensor_parallel_communication_without_context_parallelism() -> None:
    alone, shared = find_case("atc-demo", "case=origin"), find_case("atc-table-8", "case=origin")
    assert "--tp-comm-overlap" in arguments_of("megatron-jan-2024", alone)
    assert "--tp-comm-overlap" not in arguments_of("megatron-jan-2024", shared)


@pytest.mark.parametrize(
    ("experiment", "name", "expected"),
    [  # PP_l, CKPT and OFFLOAD_ALPHA of scripts 1, 2, 4, 5, 6 and 8
        ("atc-demo", "case=baseline", (1, "full", 0.0)),
        ("atc-demo", "case=ours", (1, "ours", 0.10)),
        ("atc-demo", "case=no-recompute", (1, "no", 0.0)),
        ("atc-table-8", "case=baseline", (1, "full", 0.0)),
        ("atc-table-8", "case=ours", (2, "ours", 0.63)),
        ("atc-table-8", "case=no-recompute", (1, "no", 0.0)),
    ],
)
def test_chunks_checkpointing_and_alpha_match_the_scripts(
    experiment: str, name: str, expected: tuple[int, str, float]
) -> None:
    assert settings_of(find_case(experiment, name)) == expected


def test_figure_9_chunks_checkpointing_and_alpha_match_its_table() -> None:
    rows = [row.split() for row in FIGURE_9.replace("\n", "|").split("|") if row]
    expected = {(m, int(gpus)): (int(chunk), ckpt, float(alpha)) for m, gpus, chunk, ckpt, alpha in rows}
    cases = expand(shipped("atc-figure-9"))
    assert {(case.value("model"), case.layout.gpus): settings_of(case) for case in cases} == expected
    assert len(cases) == 41


def test_figure_7_has_two_layers_per_chunk_and_published_alpha() -> None:
    for case in expand(shipped("atc-figure-7")):  # PP_l of script 9
        recompute = CKPT[str(case.value("recompute"))]
        assert settings_of(case) == (2, recompute, case.number("offload"))


def test_grouped_query_flags_are_given_only_for_grouped_keys() -> None:
    shared = find_case("atc-figure-9", "model=llama2-70b,gpus=32")
    flags = read_flags(arguments_of("megatron-kwai", shared))
    assert flags["--num-query-groups"] == ("8",)
    grouped = {"--group-query-attention", "--num-query-groups", "--no-context-parallel-comm-overlap-gemm"}
    assert grouped <= set(flags)
    assert not grouped & set(arguments_of("megatron-kwai", find_case("atc-figure-9", "model=llama-65b,gpus=32")))
    assert "--no-context-parallel-comm-overlap-gemm" not in arguments_of(
        "megatron-jan-2024", replace(find_case("atc-demo", "case=origin"), model=shared.model)
    )


def test_run_longer_than_the_script_trains_to_its_end() -> None:
    case = find_case("atc-demo", "case=ours")
    flags = read_flags(arguments_of("megatron-kwai", replace(case, training=replace(case.training, iterations=300))))
    assert (flags["--train-iters"], flags["--exit-interval"]) == (("300",), ("300",))


def test_arguments_save_no_checkpoint() -> None:
    for case in (find_case("atc-demo", "case=ours"), find_case("atc-table-8", "case=origin")):
        assert not {"--save", "--exit-duration-in-mins"} & set(arguments_of(case.program, case))


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("training", {"recompute": "selective"}, "recomputation selective (only full, ours, none)"),
        ("training", {"distributed_optimizer": False}, "an optimizer that is not distributed"),
        ("training", {"attention": "unfused"}, "attention other than flash attention"),
        ("training", {"dtype": "fp16", "loss_scale": 8192}, "a static loss scale"),
        ("training", {"scatter_gather": False}, "disabling scatter/gather"),
        ("training", {"ddp": "torch"}, "DDP torch"),
        ("layout", {"sequence_parallel": False}, "tensor parallelism without sequence parallelism"),
        ("model", {"family": "gpt"}, "models other than dense Llama"),
        ("model", {"experts": 8}, "models other than dense Llama"),
    ],
)
def test_settings_that_the_kwai_script_lacks_are_refused(part: str, change: dict[str, Any], reason: str) -> None:
    case = find_case("atc-table-8", "case=ours")
    changed = replace(case, **{part: replace(getattr(case, part), **change)})
    with pytest.raises(ReproError) as caught:
        arguments_of("megatron-kwai", changed)
    assert str(caught.value) == f"case=ours: megatron-kwai does not support {reason}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"recompute": "ours"}, "recomputation ours (only full, none)"),  # CKPT=ours ends that script with an error
        ({"offload": 0.5}, "offloading"),  # it reads no OFFLOAD_ALPHA
    ],
)
def test_origin_refuses_settings_of_kwai(change: dict[str, Any], reason: str) -> None:
    case = find_case("atc-demo", "case=origin")
    with pytest.raises(ReproError) as caught:
        arguments_of("megatron-jan-2024", replace(case, training=replace(case.training, **change)))
    assert str(caught.value) == f"case=origin: megatron-jan-2024 does not support {reason}"


def test_other_context_parallel_communication_is_refused() -> None:
    case = find_case("atc-table-8", "case=baseline")
    with pytest.raises(ReproError, match="does not support a2a for context parallelism$"):
        arguments_of("megatron-kwai", replace(case, training=replace(case.training, cp_comm="a2a")))
    alone = find_case("atc-table-8", "case=ours")
    assert arguments_of("megatron-kwai", replace(alone, training=replace(alone.training, cp_comm="a2a")))


def test_all_unsupported_settings_are_in_one_line() -> None:
    case = replace(find_case("figure-13", "pp=8,tp=8,gbs=32"), program="megatron-kwai")
    with pytest.raises(ReproError) as caught:
        arguments_of("megatron-kwai", case)
    assert str(caught.value) == (
        "pp=8,tp=8,gbs=32: megatron-kwai does not support models other than dense Llama, "
        "tensor parallelism without sequence parallelism, a static loss scale"
    )
