"""Parts without Megatron-Core: flags, place, layout, log lines, split of a sequence, weight gradients."""

from __future__ import annotations

import json
import math
from datetime import datetime

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.megatron.logs.fact_lines import execution
from orchestrator.megatron.logs.iteration_lines import iteration_lines
from orchestrator.pretrain import log_lines
from orchestrator.pretrain.arguments import RunLayout, TrainingArguments, communication_options, parse_arguments
from orchestrator.pretrain.environment import Place, cores_of, find_place, missing_gpu_reason, set_environment
from orchestrator.pretrain.layers import join_shares, take_share
from orchestrator.pretrain.log_lines import Interval, IntervalSummary, StepResult
from orchestrator.pretrain.rank import accumulate_weight_gradient
from tests.training.launching import SMALL_MODEL


def _arguments(flags: str = "") -> TrainingArguments:
    return parse_arguments([*SMALL_MODEL, *flags.split()])


def test_parsing_and_the_dataclass_have_the_same_defaults() -> None:
    required = "--num-layers 1 --hidden-size 2 --num-attention-heads 3 --seq-length 4 --vocab-size 5"
    parsed = parse_arguments(f"{required} --micro-batch-size 6 --global-batch-size 7 --train-iters 8".split())
    model = TrainingArguments(
        num_layers=1,
        hidden_size=2,
        num_attention_heads=3,
        seq_length=4,
        vocab_size=5,
        micro_batch_size=6,
        global_batch_size=7,
        train_iters=8,
    )
    assert parsed == model


@pytest.mark.parametrize(
    "flags",
    ["--num-layer 4", "--train-iters 0", "--hidden-dropout 1", "--bf16 --fp16", "--offload-activation-ratio 1.1"],
)
def test_an_abbreviated_or_invalid_flag_is_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        _arguments(flags)
    assert refused.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "padded"),
    [
        ("--vocab-size 50257", 50257),
        ("--vocab-size 50257 --make-vocab-size-divisible-by", 50304),
        ("--vocab-size 50257 --make-vocab-size-divisible-by 128 --tensor-model-parallel-size 8", 51200),
        ("--vocab-size 51200 --make-vocab-size-divisible-by 128 --tensor-model-parallel-size 32", 53248),
    ],
)
def test_vocabulary_is_padded_as_megatron_pads_it(flags: str, padded: int) -> None:
    assert _arguments(flags).padded_vocab_size == padded


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place(0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Place(5, 8, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, Place(5, 8, 0)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}, Place(3, 4, 1)),
    ],
)
def test_rank_is_read_from_the_launcher_that_set_it(environ: dict[str, str], place: Place) -> None:
    assert find_place(environ) == place


@pytest.mark.parametrize(
    ("ranks", "cores", "shares"),
    [
        (4, [0, 1], [[0], [1], [0], [1]]),
        (2, [0, 1], [[0], [1]]),
        (2, [4, 5, 6, 7, 9], [[4, 6, 9], [5, 7]]),
        (1, [0, 1], [[0, 1]]),
    ],
)
def test_ranks_share_all_cores(ranks: int, cores: list[int], shares: list[list[int]]) -> None:
    assert [cores_of(local_rank, ranks, cores) for local_rank in range(ranks)] == shares


def test_user_settings_override_defaults() -> None:
    environ = {"NCCL_NVLS_ENABLE": "1", "MASTER_ADDR": "node7", "SLURM_JOB_ID": "4012345"}
    set_environment(environ, Place(1, 2, 1))
    assert (environ["NCCL_NVLS_ENABLE"], environ["MASTER_ADDR"]) == ("1", "node7")
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == ("1", "2", "1")
    assert environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert 1024 < int(environ["MASTER_PORT"]) < 32768
    assert "GLOO_SOCKET_IFNAME" not in environ, "the loopback device reaches no other node"


def test_single_processes_on_one_machine_do_not_share_a_port() -> None:
    environ: dict[str, str] = {}
    set_environment(environ, Place(0, 1, 0))
    assert environ["MASTER_PORT"] == "0", "the system chooses a free port"


@pytest.mark.parametrize("virtual_stages", [1, 2])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_pipelines_never_use_settings_with_wrong_gradients(virtual_stages: int, on_gpu: bool) -> None:
    flags = f"--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank {virtual_stages}"
    options = communication_options(RunLayout.of(_arguments(flags), 2), on_gpu=on_gpu)
    assert not (virtual_stages > 1 and options["batch_p2p_comm"])
    assert options["overlap_p2p_comm"] != options["batch_p2p_comm"], "Megatron-Core refuses both"
    assert not (options["deallocate_pipeline_outputs"] and not on_gpu)


def test_data_parallel_size_is_the_rest_of_the_world_size() -> None:
    layout = RunLayout.of(
        _arguments("--tensor-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel"), 16
    )
    assert (layout.data_parallel, layout.num_microbatches, layout.sequence_parallel) == (4, 2, True)


@given(st.integers(1, 5), st.integers(1, 3))
def test_shares_of_a_sequence_form_the_whole(context_parallel: int, piece_length: int) -> None:
    whole = torch.arange(2 * context_parallel * piece_length)
    shares = [take_share(whole, rank, context_parallel, dim=0) for rank in range(context_parallel)]
    assert torch.equal(join_shares(torch.cat(shares), context_parallel), whole)


def test_weight_gradients_are_added_to_existing_ones() -> None:
    inputs, grad_output, before = torch.randn(3, 2, 5), torch.randn(3, 2, 4), torch.randn(4, 5)
    main_grad = before.clone()
    accumulate_weight_gradient(inputs, grad_output, main_grad)
    torch.testing.assert_close(main_grad, before + torch.einsum("sbo,sbi->oi", grad_output, inputs))


def _interval() -> Interval:
    return Interval(synchronize=lambda: None, largest=lambda value: value)


def test_interval_counts_skipped_and_nan_iterations_apart() -> None:
    interval = _interval()
    interval.add(StepResult(loss=4.0, grad_norm=1.0, updated=True))
    interval.add(StepResult(loss=2.0, grad_norm=math.inf, updated=True))
    interval.add(StepResult(loss=9.0, grad_norm=None, updated=False))
    summary = interval.finish(iteration=3, loss_scale=8192.0)
    assert (summary.loss, summary.grad_norm, summary.skipped, summary.nan) == (3.0, None, 1, 1)


def test_a_printed_line_starts_a_new_interval() -> None:
    interval = _interval()
    interval.add(StepResult(loss=math.nan, grad_norm=math.nan, updated=True))
    interval.restart()
    interval.add(StepResult(loss=2.0, grad_norm=1.0, updated=True))
    summary = interval.finish(iteration=2, loss_scale=1.0)
    assert (summary.loss, summary.nan) == (2.0, 0)


def test_a_record_keeps_every_digit() -> None:
    summary = IntervalSummary(1, 0.1 + 0.2, 4.1481404304504395, 1.0, math.nan, 0, 1)
    line = json.loads(summary.as_json())
    assert (line["elapsed_ms"], line["loss"]) == (0.1 + 0.2, 4.1481404304504395)
    assert math.isnan(line["grad_norm"])


NOW = datetime(2026, 8, 22, 15, 22, 22, 123456)


def test_iteration_line_equals_megatrons() -> None:
    arguments = _arguments("--train-iters 500 --global-batch-size 512 --lr 1e-4 --fp16 --loss-scale 8192")
    summary = IntervalSummary(10, 3520.1234, 9.912345, 8192.0, 2.3104, 0, 0)
    assert log_lines.iteration(summary, arguments, NOW) == (
        " [2026-08-22 15:22:22.123456] iteration       10/     500 | consumed samples:         5120 |"
        " elapsed time per iteration (ms): 3520.1 | learning rate: 1.000000E-04 | global batch size:   512 |"
        " lm loss: 9.912345E+00 | loss scale: 8192.0 | grad norm: 2.310 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |"
    )


@pytest.mark.parametrize("loss", [None, math.nan])
def test_iteration_line_omits_a_missing_loss(loss: float | None) -> None:
    line = log_lines.iteration(IntervalSummary(1, 1.0, loss, 1.0, None, 1, 1), _arguments(), NOW)
    assert "lm loss" not in line and "grad norm" not in line
    assert line.endswith("| number of skipped iterations:   1 | number of nan iterations:   1 |")


def test_iteration_line_has_a_measured_host_wait_after_the_time() -> None:
    summary = IntervalSummary(10, 3520.1234, 9.912345, 8192.0, 2.3104, 0, 0, host_wait_ms=12.34)
    line = log_lines.iteration(summary, _arguments(), NOW)
    assert " | elapsed time per iteration (ms): 3520.1 | host wait per iteration (ms): 12.3 | learning rate: " in line
    assert [read.host_wait_ms for read in iteration_lines(line.encode())] == [12.3]


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_execution_line_is_read_back_by_the_parser(mode: log_lines.ExecutionMode) -> None:
    line = log_lines.execution(mode)
    assert line == f" > execution: {mode}"
    assert execution(line.encode(), 0, len(line)) == mode


def test_memory_line_equals_megatrons() -> None:
    sizes_mb = {"allocated": 28123.5, "max allocated": 51234.25, "reserved": 60012.0, "max reserved": 60012.0}
    assert log_lines.memory(8, 2, sizes_mb) == (
        "[Rank 8] (after 2 iterations) memory (MB) | allocated: 28123.50 | max allocated: 51234.25"
        " | reserved: 60012.00 | max reserved: 60012.00"
    )


def test_offloading_line_has_share_and_total() -> None:
    assert log_lines.offloaded(0, 3, 7, 109.2, 1092.0) == (
        " > activations on (tensor, pipeline) model parallel rank (0, 3), chunk 7:"
        " 109.20 of 1092.00 MB per microbatch offloaded"
    )


def test_vocabulary_line_has_the_padding() -> None:
    arguments = _arguments("--vocab-size 50257 --make-vocab-size-divisible-by 128 --tensor-model-parallel-size 8")
    assert log_lines.vocabulary(arguments) == " > padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)"


def test_a_rank_that_shares_a_gpu_is_reported_and_a_rank_bound_to_one_gpu_is_not() -> None:
    third = Place(rank=2, world_size=4, local_rank=2)
    assert missing_gpu_reason(third, visible_gpus=2) == "local rank 2 has no GPU: this process sees 2"
    assert missing_gpu_reason(third, visible_gpus=4) is None
    assert missing_gpu_reason(third, visible_gpus=1) is None, "a task bound to one GPU"
    assert missing_gpu_reason(third, visible_gpus=0) is None, "CPU"
    assert missing_gpu_reason(third, visible_gpus=0, named_gpus="") is None, "a job that asked for none"
    assert missing_gpu_reason(third, 0, "0,1") == "CUDA_VISIBLE_DEVICES names 0,1, and torch sees no GPU"
