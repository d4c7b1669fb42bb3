"""Refusal of an invalid run before it starts, with every reason."""

from __future__ import annotations

import pytest

from orchestrator.pretrain.arguments import parse_arguments, refusals
from orchestrator.pretrain.log_lines import program
from tests.training.launching import SMALL_MODEL, plain_environments, run_started


def test_rank_0_prints_every_reason_once_with_exit_code_2_and_no_traceback() -> None:
    bad = ["--tensor-model-parallel-size", "3", "--num-virtual-stages-per-pipeline-rank", "3", "--fp16"]
    command = ["-m", "orchestrator.pretrain", *SMALL_MODEL, *bad]
    first, last = run_started([command] * 2, plain_environments(2))
    assert (first.exit_code, last.exit_code) == (2, 2)
    assert first.stderr.splitlines() == [
        "pretrain: error: 4 attention heads do not divide over tensor-model-parallel size 3",
        "pretrain: error: ffn hidden size 128 does not divide over tensor-model-parallel size 3",
        "pretrain: error: vocabulary of 64 does not divide over tensor-model-parallel size 3"
        " (--make-vocab-size-divisible-by pads it)",
        "pretrain: error: 4 layers do not divide over 1 pipeline stages of 3 virtual stages",
        "pretrain: error: 3 virtual stages need a pipeline-model-parallel size over 1",
        "pretrain: error: world size 2 is not a multiple of tensor x pipeline x context parallel size 3",
        "pretrain: error: --fp16 needs a GPU; on CPU fp32 and --bf16 work",
        "pretrain: error: --fp16 needs a static --loss-scale",
    ]
    assert first.stdout == f"{program()}\n" and last.stdout == last.stderr == ""


def test_the_launcher_refuses_once_for_all_ranks() -> None:
    command = ["-m", "orchestrator.pretrain.launch", "--nproc-per-node=2", *SMALL_MODEL]
    bad, unknown = ["--tensor-model-parallel-size", "2", "--vocab-size", "63"], ["--tensor-parallel", "2"]
    refused, misspelled = run_started([[*command, *bad], [*command, *unknown]], [{}] * 2)
    assert (refused.exit_code, refused.stdout) == (misspelled.exit_code, misspelled.stdout) == (2, f"{program()}\n")
    assert refused.stderr.splitlines() == [
        "pretrain: error: vocabulary of 63 does not divide over tensor-model-parallel size 2"
        " (--make-vocab-size-divisible-by pads it)",
    ]
    assert misspelled.stderr.count("unrecognized arguments: --tensor-parallel 2") == 1


def test_an_unknown_flag_is_reported_once_with_exit_code_2() -> None:
    command = ["-m", "orchestrator.pretrain", *SMALL_MODEL, "--tensor-parallel", "2"]
    first, last = run_started([command] * 2, plain_environments(2))
    assert (first.exit_code, last.exit_code) == (2, 2)
    assert "unrecognized arguments: --tensor-parallel 2" in first.stderr
    assert last.stderr == ""


@pytest.mark.parametrize(
    ("flags", "world_size", "reason"),
    [
        ("--num-attention-heads 5", 1, "hidden size 32 is not a multiple of the 5 attention heads"),
        ("--ffn-hidden-size 90 --tensor-model-parallel-size 4", 4, "ffn hidden size 90 does not divide over"),
        ("--context-parallel-size 4 --seq-length 20", 4, "sequence length 20 is not a multiple of twice"),
        ("--tensor-model-parallel-size 4 --sequence-parallel --seq-length 18", 4, "as sequence parallelism needs"),
        ("--pipeline-model-parallel-size 3", 3, "4 layers do not divide over 3 pipeline stages"),
        ("--micro-batch-size 3", 1, "global batch size 8 is not a multiple of micro batch size 3"),
        ("", 3, "global batch size 8 is not a multiple of micro batch size 1 times data-parallel size 3"),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 3",
            2,
            "the interleaved schedule needs a multiple of pipeline-model-parallel size 2 microbatches",
        ),
        ("--loss-scale 1024", 1, "--loss-scale goes with --fp16 only"),
        ("--overlap-param-gather --overlap-grad-reduce", 1, "--overlap-param-gather needs"),
        ("--recompute-method uniform", 1, "go with --recompute-granularity full only"),
        ("--recompute-num-layers 2 --recompute-granularity selective", 1, "go with --recompute-granularity full"),
        ("--num-query-groups 2", 1, "--group-query-attention and --num-query-groups go together"),
        ("--group-query-attention", 1, "--group-query-attention and --num-query-groups go together"),
        ("--group-query-attention --num-query-groups 3", 1, "4 attention heads do not divide over 3 query groups"),
        (
            "--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 4",
            4,
            "2 query groups do not divide over tensor-model-parallel size 4",
        ),
        ("--position-embedding-type rope --hidden-size 36", 1, "heads of an even width, and 9 is odd"),
        ("--recompute-modules layernorm", 1, "goes with --recompute-granularity selective only"),
        ("--recompute-granularity full --recompute-norm", 1, "full leaves nothing to --recompute-norm"),
        ("--recompute-granularity full --offload-activation-ratio 0.5", 1, "not with full recomputation"),
        ("--recompute-granularity selective --offload-activation-ratio 1", 1, "nor with that of core_attn"),
        (
            "--recompute-granularity selective --recompute-modules mlp --recompute-activation-func",
            1,
            "the recomputed module mlp goes with no recomputation",
        ),
        ("--recompute-norm --overlap-grad-reduce", 1, "needs --no-gradient-accumulation-fusion"),
    ],
)
def test_one_wrong_number_has_one_reason(flags: str, world_size: int, reason: str) -> None:
    arguments = parse_arguments([*SMALL_MODEL, *flags.split()])
    (line,) = refusals(arguments, world_size, on_gpu=True)
    assert reason in line


@pytest.mark.parametrize(
    ("flags", "world_size"),
    [
        ("", 1),
        ("--tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2", 8),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", 8),
        ("--fp16 --loss-scale 8192", 2),
        ("--tensor-model-parallel-size 4 --vocab-size 50257 --make-vocab-size-divisible-by 128", 4),
        ("--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 2", 2),
        ("--recompute-norm --recompute-activation-func --offload-activation-ratio 0.1", 1),
        ("--recompute-granularity selective --recompute-modules layernorm --offload-activation-ratio 1", 1),
        ("--recompute-norm --overlap-grad-reduce --no-gradient-accumulation-fusion", 1),
    ],
)
def test_a_valid_layout_is_not_refused(flags: str, world_size: int) -> None:
    assert refusals(parse_arguments([*SMALL_MODEL, *flags.split()]), world_size, on_gpu=True) == []
