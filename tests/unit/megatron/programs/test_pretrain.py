"""Tests of the arguments of `orchestrator.pretrain`, parsed by that program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import ReproError
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import Attention
from orchestrator.megatron.programs import pretrain
from orchestrator.pretrain.arguments import parse_arguments
from tests.cases import expand
from tests.unit.catalog.entries import find_case, shipped
from tests.unit.megatron.programs.places import arguments_of

CASES = [case for scale in ("quad", "cpu") for case in expand(shipped(), scale)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.scale}-{case.slug}")
def test_parsed_arguments_match_the_case(case: TrainingCase) -> None:
    read = parse_arguments(arguments_of("pretrain", case))
    model, layout, training = case.model, case.layout, case.training
    assert (read.num_layers, read.hidden_size, read.num_attention_heads) == (model.layers, model.hidden, model.heads)
    assert (read.seq_length, read.vocab_size) == (model.seq, model.vocab)
    assert (read.tensor_model_parallel_size, read.pipeline_model_parallel_size) == (
        layout.tensor_parallel,
        layout.pipeline_parallel,
    )
    assert (read.micro_batch_size, read.global_batch_size) == (layout.micro_batch_size, layout.global_batch_size)
    assert (read.train_iters, read.log_interval) == (training.iterations, training.log_interval)
    assert read.recompute_granularity == ("full" if training.recompute == "full" else None)
    assert (read.bf16, read.fp16) == (training.dtype == "bf16", training.dtype == "fp16")
    assert (read.hidden_dropout, read.attention_dropout) == (training.dropout, training.dropout)
    assert read.use_distributed_optimizer


def test_parsed_arguments_match_settings_outside_figure_13() -> None:
    case = CASES[0]
    layout = replace(case.layout, virtual_stages=2, context_parallel=4, sequence_parallel=True)
    training = replace(case.training, dtype="fp16", loss_scale=8192, recompute="selective")
    read = parse_arguments(arguments_of("pretrain", replace(case, layout=layout, training=training)))
    assert (read.num_virtual_stages_per_pipeline_rank, read.context_parallel_size, read.sequence_parallel) == (
        2,
        4,
        True,
    )
    assert (read.fp16, read.loss_scale, read.recompute_granularity) == (True, 8192, "selective")


def test_rotary_positions_are_requested_and_keep_the_other_parts_of_a_gpt() -> None:
    case = CASES[0]
    read = parse_arguments(arguments_of("pretrain", replace(case, model=replace(case.model, positions="rotary"))))
    assert read == replace(parse_arguments(arguments_of("pretrain", case)), position_embedding_type="rope")


def test_loss_scale_is_given_only_with_fp16() -> None:
    case = replace(CASES[0], training=replace(CASES[0].training, dtype="bf16", loss_scale=8192))
    assert "--loss-scale" not in arguments_of("pretrain", case)


@pytest.mark.parametrize("attention", ["unfused", "flash"])
def test_attention_flag_comes_before_arguments_of_the_case(attention: Attention) -> None:
    training = replace(CASES[0].training, attention=attention)
    typed = ("--attention-backend", "fused")
    assert (
        parse_arguments(arguments_of("pretrain", replace(CASES[0], training=training))).attention_backend == attention
    )
    both = arguments_of("pretrain", replace(CASES[0], training=training, arguments=typed))
    assert tuple(both[-2:]) == typed and parse_arguments(both).attention_backend == "fused"
    assert arguments_of("pretrain", CASES[0]) == [*pretrain.model_arguments(CASES[0]), *CASES[0].arguments]


def test_unsupported_settings_are_refused() -> None:
    case = find_case("core-ep", "case=511")
    with pytest.raises(ReproError, match=r"^case=511: pretrain does not support experts$"):
        arguments_of("pretrain", replace(case, program="pretrain"))
    exchanged = replace(find_case("core-cp", "case=328"), program="pretrain")
    with pytest.raises(ReproError, match=r"^case=328: pretrain does not support a2a for context parallelism$"):
        arguments_of("pretrain", exchanged)
