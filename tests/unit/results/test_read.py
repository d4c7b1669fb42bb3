"""What a log says about itself, in the formats Megatron-LM has had, cut, doubled and mixed with other talk."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.pretrain import log_lines
from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.interval import IntervalSummary
from orchestrator.results.read import log_bytes, read_log

NOW = datetime(2026, 1, 1)
WORLD_2021 = (
    b"using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 8, pipeline-model-parallel size: 8 \n"
)
LINE_2021 = (
    b" iteration        5/      25 | consumed samples:          160 | elapsed time per iteration (ms): 6150.3 |"
    b" learning rate: 1.500E-04 | global batch size:    32 | lm loss: 1.085371E+01 | loss scale: 8192.0 |"
    b" grad norm: 11.347 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
WORLD_TODAY = (
    b"using world size: 4, data-parallel size: 1, context-parallel size: 1, hierarchical context-parallel sizes: None, "
    b"tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
)


def line(iteration: int, elapsed_ms: float = 100.0, loss: float | None = 6.9, nan: int = 0) -> bytes:
    """A line as our own program prints it."""
    arguments = parse_arguments(
        [
            "--tensor-model-parallel-size",
            "1",
            "--num-layers",
            "2",
            "--hidden-size",
            "8",
            "--num-attention-heads",
            "2",
            "--seq-length",
            "8",
            "--vocab-size",
            "16",
            "--micro-batch-size",
            "1",
            "--global-batch-size",
            "4",
            "--train-iters",
            "8",
            "--lr",
            "0.001",
        ]
    )
    summary = IntervalSummary(iteration, elapsed_ms, loss, loss_scale=1.0, grad_norm=1.5, skipped=0, nan=nan)
    return (log_lines.iteration(summary, arguments, NOW) + "\n").encode()


def test_a_log_of_2021_is_read() -> None:
    report = read_log(WORLD_2021 + LINE_2021)
    (first,) = report.iterations
    assert (first.iteration, first.elapsed_ms, first.loss, first.grad_norm) == (5, 6150.3, 10.85371, 11.347)
    assert report.world is not None
    assert (report.world.world_size, report.world.tensor_parallel, report.world.pipeline_parallel) == (64, 8, 8)
    assert report.last_iteration == 5


def test_what_our_own_program_prints_is_read() -> None:
    report = read_log(WORLD_TODAY + line(1, 612.5) + line(2) + b"[after training is done] datetime: 2026-01-01 \n")
    assert [(one.iteration, one.elapsed_ms, one.loss) for one in report.iterations] == [
        (1, 612.5, 6.9),
        (2, 100.0, 6.9),
    ]
    assert report.says_done and report.cause is None


def test_lines_that_srun_labels_with_their_rank_are_read() -> None:
    report = read_log(b"".join(b"0: " + text for text in (WORLD_2021, LINE_2021)))
    assert report.last_iteration == 5 and report.world is not None


def test_a_line_still_being_written_is_left_for_the_next_reading() -> None:
    whole = line(1) + line(2)
    for end in range(len(line(1)), len(whole) - 2):
        assert read_log(whole[:end]).last_iteration == 1
    assert read_log(whole).last_iteration == 2


def test_an_iteration_reported_twice_counts_once_as_reported_last() -> None:
    report = read_log(line(1) + line(2, 100.0) + line(3) + line(2, 300.0))
    assert [(one.iteration, one.elapsed_ms) for one in report.iterations] == [(1, 100.0), (2, 300.0), (3, 100.0)]


def test_a_loss_that_is_no_number_makes_its_line_not_finite() -> None:
    report = read_log(line(1) + line(2).replace(b"6.900000E+00", b"nan") + line(3, nan=1) + line(4, loss=None))
    assert [one.is_finite for one in report.iterations] == [True, False, False, True]


def test_the_memory_that_ran_out_is_the_cause_and_not_the_noise_it_made() -> None:
    log = (
        b"slurmstepd: error: *** STEP 17.0 CANCELLED ***\n[rank3]: Watchdog caught collective operation timeout: x\n"
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert str(read_log(log).cause).startswith("out of GPU memory: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 324.00 MiB. GPU 0 has a total",
            "out of memory on the GPU (rank 3, tried to allocate 324.00 MiB)",
        ),
        (
            b"11: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 23.69 GiB total",
            "out of memory on the GPU (rank 11, tried to allocate 26.00 MiB)",
        ),
        (
            b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 5; 39.59 GiB total capacity;",
            "out of memory on the GPU (tried to allocate 2.00 GiB)",
        ),
        (b"RuntimeError: CUDA error: out of memory", "out of memory on the GPU"),
        (b"2026-01-01 10:00:05: CUDA out of memory", "out of memory on the GPU"),
        (b" 3: NCCL WARN Cuda failure 2 'out of memory'", "out of memory on the GPU (rank 3)"),
    ],
)
def test_a_gpu_without_memory_is_found_with_its_rank_however_it_is_said(line: bytes, said: str) -> None:
    noise = b"0: Watchdog caught collective operation timeout: rank 7\n"
    assert read_log(LINE_2021 + noise + line + b"\n" + noise).out_of_memory == said
    assert read_log(line).out_of_memory == said


@pytest.mark.parametrize(
    "line",
    [
        b"slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
        b"srun: error: node001: task 3: Out Of Memory",
        b"CUDA_VISIBLE_DEVICES is out of range",
    ],
)
def test_the_hosts_memory_is_not_the_gpus(line: bytes) -> None:
    assert read_log(LINE_2021 + line).out_of_memory is None


@pytest.mark.parametrize("log", [b"", b"\0\xff\xfe" * 100, b"iteration 1/ 8 | nothing |\n" * 3])
def test_a_log_that_says_nothing_is_no_fault(log: bytes) -> None:
    report = read_log(log)
    assert (report.iterations, report.world, report.last_iteration, report.says_done) == ((), None, None, False)


def test_the_log_comes_before_what_the_script_printed_and_either_may_be_missing(tmp_path: Path) -> None:
    assert log_bytes(tmp_path) == b""
    (tmp_path / "batch.txt").write_bytes(b"around it")
    assert log_bytes(tmp_path) == b"around it"
    (tmp_path / "log.txt").write_bytes(b"in it")
    assert log_bytes(tmp_path) == b"in it\naround it"
