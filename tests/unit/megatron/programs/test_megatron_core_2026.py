"""Tests of the arguments of today's Megatron-LM for every paper; SC21 is in test_megatron_sc21."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ReproError
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import padded_vocabulary
from orchestrator.megatron.programs.megatron_core import vocabulary_divisor
from orchestrator.programs.command import read_flags
from tests.unit.catalog.entries import find_case
from tests.unit.megatron.programs.places import arguments_of

DATA = {"data_path": "/DATA", "vocab_file": "/VOCAB", "merge_file": "/MERGE"}


def today(experiment: str, name: str, **training: Any) -> TrainingCase:
    case = find_case(experiment, name)
    return replace(case, program="megatron-2026", training=replace(case.training, **training))


def flags(case: TrainingCase, data: dict[str, str] | None = None) -> dict[str, tuple[str, ...]]:
    return read_flags(arguments_of("megatron-2026", case, **(data or {})))


def test_llama_flags_differ_from_gpt() -> None:
    # llama2-70b of examples/atc24 at b2646e4d9f, 8,192 tokens, tp 2, cp 4, pp 8 and 5 chunks of 2 layers a stage
    result = flags(today("atc-figure-9", "model=llama2-70b,gpus=256"))
    expected = (
        "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
        "--untie-embeddings-and-output-weights --ffn-hidden-size 28672 --group-query-attention --num-query-groups 8 "
        "--hidden-dropout 0.0 --attention-dropout 0.0 --context-parallel-size 4 --cp-comm-type p2p --sequence-parallel "
        "--use-distributed-optimizer --bf16 --num-layers-per-virtual-pipeline-stage 2 --tensor-model-parallel-size 2 "
        "--pipeline-model-parallel-size 8 --num-layers 80 --hidden-size 8192 --num-attention-heads 64 "
        "--seq-length 8192 --max-position-embeddings 8192"
    )
    assert read_flags(expected.split()).items() <= result.items()
    assert not {"--loss-scale", "--recompute-granularity", "--fp16"} & set(result)


def test_expert_flags_are_those_of_the_tutorials() -> None:
    result = flags(today("core-ep", "case=511"))
    expected = (
        "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 1024 --expert-model-parallel-size 4 "
        "--expert-tensor-parallel-size 2 --moe-grouped-gemm --overlap-grad-reduce"
    )
    assert read_flags(expected.split()).items() <= result.items()
    assert "--ffn-hidden-size" not in result


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ("none", []),
        ("selective", ["--recompute-granularity", "selective"]),
        (
            "full",
            ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
        ),
    ],
)
def test_recomputation_flags_of_today(recompute: str, expected: list[str]) -> None:
    result = arguments_of("megatron-2026", today("figure-13", "pp=8,tp=8,gbs=32", recompute=recompute))
    assert result[: len(expected)] == expected
    assert [word for word in result if word.startswith("--recompute")] == expected[::2]


def test_arguments_of_a_case_come_once_and_last() -> None:
    case = replace(today("figure-13", "pp=8,tp=8,gbs=32"), arguments=("--eval-interval=25", "--swiglu"))
    result = arguments_of("megatron-2026", case)
    assert result[-2:] == ["--eval-interval=25", "--swiglu"]
    assert sum(word.startswith("--eval-interval") for word in result) == 1


def test_run_longer_than_the_script_trains_to_its_end() -> None:
    result = flags(today("figure-13", "pp=8,tp=8,gbs=32", iterations=600))
    assert (result["--train-iters"], result["--exit-interval"]) == (("600",), ("600",))


def test_attention_flag_is_given_only_if_the_case_sets_it() -> None:
    assert flags(today("figure-13", "pp=8,tp=8,gbs=32", attention="unfused"))["--attention-backend"] == ("unfused",)
    assert "--attention-backend" not in flags(today("figure-13", "pp=8,tp=8,gbs=32"))


def test_site_data_replace_mock_data_with_the_same_padding() -> None:
    case = today("figure-13", "pp=2,tp=32,gbs=32")
    mock, own = flags(case), flags(case, DATA)
    assert mock.keys() - own.keys() == {"--mock-data", "--vocab-size"}
    assert own.keys() - mock.keys() == {"--data-path", "--vocab-file", "--merge-file"}
    assert (own["--data-path"], own["--tokenizer-type"]) == (("/DATA",), ("GPT2BPETokenizer",))
    assert (own["--vocab-file"], own["--merge-file"]) == (("/VOCAB",), ("/MERGE",))
    # 50,257 entries are padded to the paper's 51,200 as well: by 128 they would be 53,248
    assert own["--make-vocab-size-divisible-by"] == mock["--make-vocab-size-divisible-by"] == ("32",)


@pytest.mark.parametrize(
    ("experiment", "name", "change", "reason"),
    [
        ("atc-table-8", "case=ours", {"offload": 0.0}, "recomputation ours (only none, selective, full)"),
        ("atc-table-8", "case=baseline", {"offload": 0.5}, "offloading"),
        (
            "atc-table-8",
            "case=ours",
            {},
            "recomputation ours (only none, selective, full), offloading",
        ),
    ],
)
def test_settings_of_megatron_kwai_are_refused(experiment: str, name: str, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ReproError) as caught:
        arguments_of("megatron-2026", today(experiment, name, **change))
    assert str(caught.value) == f"{name}: megatron-2026 does not support {reason}"


@pytest.mark.parametrize(
    ("experiment", "name", "change", "reason"),
    [
        ("figure-13", "pp=8,tp=8,gbs=32", {"attention": "flash"}, "flash attention without transformer-engine"),
        (
            "atc-figure-9",
            "model=llama2-70b,gpus=256",
            {},
            "context parallelism without transformer-engine, sequence parallelism without transformer-engine",
        ),
        ("core-ep", "case=511", {}, "grouped products of the experts without transformer-engine"),
    ],
)
def test_transformer_engine_settings_are_refused_without_it(
    experiment: str, name: str, change: dict[str, Any], reason: str
) -> None:
    case = today(experiment, name, **change)
    assert arguments_of("megatron-2026", case)
    with pytest.raises(ReproError) as caught:
        arguments_of("megatron-2026", case, transformer_engine=False)
    assert str(caught.value) == f"{name}: megatron-2026 does not support {reason}"


def test_own_layers_use_unfused_attention() -> None:
    result = arguments_of(
        "megatron-2026", today("figure-13", "pp=8,tp=8,gbs=32", attention="unfused"), transformer_engine=False
    )
    assert result[result.index("--transformer-impl") + 1] == "local"


def test_data_with_more_tokens_than_the_vocabulary_are_refused() -> None:
    case = today("atc-table-8", "case=baseline")
    with pytest.raises(ReproError, match=r"does not support padding the 50,257 entries of the site's data to 32,004$"):
        arguments_of("megatron-2026", case, **DATA)


def test_vocabulary_without_divisor_gets_the_default_padding() -> None:
    case = today("atc-table-8", "case=baseline")
    result = flags(replace(case, layout=replace(case.layout, tensor_parallel=8)))  # 32,004 does not divide by 8
    assert result["--vocab-size"] == ("32004",) and "--make-vocab-size-divisible-by" not in result


@given(
    vocab=st.one_of(st.integers(2, 60_000), st.sampled_from([32_004, 50_304, 51_200, 51_456])),
    tensor_parallel=st.integers(1, 64),
    fewer=st.integers(1, 2_000),
)
def test_divisor_pads_to_exactly_the_vocabulary(vocab: int, tensor_parallel: int, fewer: int) -> None:
    tokens = max(1, vocab - fewer)
    divisor = vocabulary_divisor(vocab, tensor_parallel, tokens)
    if divisor is None:
        assert vocab % tensor_parallel
    else:
        assert padded_vocabulary(tokens, tensor_parallel, divisor) == vocab
