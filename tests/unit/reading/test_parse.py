"""Tests of the log parser: formats of Megatron-LM versions, incomplete, repeated and mixed lines."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.megatron.logs.fact_lines import DUMP_BEGINS
from orchestrator.megatron.logs.parse import LogFacts, LogReport, effective_of, read_log, read_part
from orchestrator.pretrain import log_lines
from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.log_lines import IntervalSummary
from orchestrator.reading.logs import log_blocks

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
    """Return an iteration line of `orchestrator.pretrain`."""
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


def read_in(parts: list[bytes]) -> LogReport:
    """Read the parts one after another, as a log grows."""
    facts, read = LogFacts(), []
    for part in parts:
        read.append(read_part(part, facts, final=False))
        facts = read[-1].facts
    return LogReport(effective_of(read), facts)


def numbers(report: LogReport) -> list[tuple[int, float]]:
    return [(entry.iteration, entry.elapsed_ms) for entry in report.iterations]


def test_a_log_of_2021_is_read() -> None:
    report = read_log(WORLD_2021 + LINE_2021)
    (first,) = report.iterations
    assert (first.iteration, first.elapsed_ms, first.loss, first.grad_norm) == (5, 6150.3, 10.85371, 11.347)
    world = report.facts.world
    assert world is not None
    assert (world.world_size, world.tensor_parallel, world.pipeline_parallel) == (64, 8, 8)
    assert report.last_iteration == 5


def test_log_of_pretrain_is_read() -> None:
    log = (
        WORLD_TODAY
        + log_lines.software("2.9.0", "0.16.1", "nccl", "x").encode()
        + b"\n"
        + b"".join(log_lines.parameters(0, stage, 100 + stage).encode() + b"\n" for stage in range(2))
        + line(1, 612.5)
        + log_lines.memory(
            0, 1, {"allocated": 1.0, "max allocated": 2.0, "reserved": 3.0, "max reserved": 4.0}
        ).encode()
        + b"\n"
        + line(2)
        + log_lines.moment("after training is done", NOW).encode()
    )
    report = read_log(log)
    assert numbers(report) == [(1, 612.5), (2, 100.0)] and [entry.loss for entry in report.iterations] == [6.9, 6.9]
    assert report.facts.says_done
    facts = report.facts
    assert facts.software == "torch 2.9.0 | megatron-core 0.16.1 | backend nccl | device x"
    assert facts.parameters == {(0, 0): 100, (0, 1): 101}
    assert (facts.max_allocated_bytes, facts.max_reserved_bytes) == (2 * 2**20, 4 * 2**20)


def test_lines_with_srun_labels_are_read() -> None:
    report = read_log(b"".join(b"0: " + text for text in (WORLD_2021, LINE_2021)))
    assert report.last_iteration == 5 and report.facts.world is not None


def test_incomplete_last_line_is_left_for_the_next_part() -> None:
    whole = line(1) + line(2)
    for end in (*range(len(line(1)), len(whole), 7), len(whole) - 1):
        assert read_log(whole[:end]).last_iteration == (2 if end == len(whole) - 1 else 1)
        part = read_part(whole[:end], LogFacts(), final=False)
        assert (part.consumed, part.facts.last_iteration) == (len(line(1)), 1)
    assert read_log(whole).last_iteration == 2
    assert read_part(whole, LogFacts(), final=False).consumed == len(whole)


def test_iteration_printed_by_two_ranks_counts_once() -> None:
    log = line(1) + line(2, 100.0) + line(2, 300.0) + line(3)
    assert numbers(read_log(log)) == [(1, 100.0), (2, 300.0), (3, 100.0)]
    assert read_in(log.splitlines(keepends=True)) == read_log(log)
    assert read_log(log).facts.restarts == 0


def test_lines_before_a_restart_do_not_count() -> None:
    log = line(1) + line(2, 100.0) + line(3) + b"requeued\n" + line(1, 300.0) + line(2, 400.0)
    assert numbers(read_log(log)) == [(1, 300.0), (2, 400.0)] and read_log(log).facts.restarts == 1
    first = read_part(line(1) + line(2) + line(3), LogFacts(), final=False)
    second = read_part(line(1, 300.0) + line(2, 400.0), first.facts, final=False)
    assert (first.is_restarted, second.is_restarted, second.facts.last_iteration) == (False, True, 2)


def test_implausible_number_is_counted_and_is_no_restart() -> None:
    report = read_log(line(1) + line(2, -5.0) + line(3) + line(999) + line(4))
    assert [entry.is_finite for entry in report.iterations] == [True, False, True, True] and report.last_iteration == 4
    assert (report.facts.odd_lines, report.facts.first_odd) == (2, "iteration 2: -5 ms per iteration")
    assert report.facts.restarts == 0


def test_nan_loss_makes_its_line_not_finite() -> None:
    report = read_log(line(1) + line(2).replace(b"6.900000E+00", b"nan") + line(3, nan=1) + line(4, loss=None))
    assert [entry.is_finite for entry in report.iterations] == [True, False, False, True]


DONE = b"[after training is done] datetime: 2026-01-01 \n"


@pytest.mark.parametrize(
    ("log", "done"),
    [
        (line(1) + DONE, True),
        (line(1) + DONE + b"noise\n" * 5000, True),
        (line(1) + DONE + line(2), True),
        (line(1) + DONE + line(2) + line(3), False),
        (line(1) + line(2), False),
    ],
    ids=["at the end", "before other words", "before a line of another rank", "before another training", "never"],
)
def test_done_message_followed_by_iterations_does_not_count(log: bytes, done: bool) -> None:
    assert read_log(log).facts.says_done == done
    assert read_in(log.splitlines(keepends=True)).facts.says_done == done


def test_first_world_line_and_last_settings_count() -> None:
    dots = "." * (48 - len("hf_token"))
    dump = f"{DUMP_BEGINS.decode()}\n  hf_token {dots} verysecret\n  lr {'.' * 46} 0.1\n".encode()
    lone = WORLD_TODAY.replace(b"world size: 4", b"world size: 1")
    report = read_log(
        WORLD_TODAY + lone + dump + dump.replace(b"0.1", b"0.2") + line(1) + b"  x " + b"." * 47 + b" 1\n"
    )
    assert report.facts.world is not None and report.facts.world.world_size == 4
    assert report.facts.settings["lr"] == "0.2" and "verysecret" not in str(report.facts)


def test_parameter_shards_are_added_and_repeated_ranks_count_once() -> None:
    text = b" > number of parameters on (tensor, gtp_weight_remat, pipeline) model parallel rank (0, %d, 0): %d\n"
    log = b"".join(text % pair for pair in ((0, 5), (1, 7), (0, 6)))
    assert read_log(log).facts.parameters == {(0, 0): 13}
    assert read_in(log.splitlines(keepends=True)).facts.parameters == {(0, 0): 13}


@pytest.mark.parametrize("log", [b"", b"\0\xff\xfe" * 100, b"iteration 1/ 8 | nothing |\n" * 3])
def test_log_without_facts_is_read(log: bytes) -> None:
    report = read_log(log)
    assert not report.iterations
    assert (report.last_iteration, report.facts) == (None, LogFacts())


def test_log_comes_before_script_output_and_either_may_be_missing(tmp_path: Path) -> None:
    assert list(log_blocks(tmp_path)) == []
    (tmp_path / "batch.txt").write_bytes(b"around it")
    assert list(log_blocks(tmp_path)) == [b"around it"]
    (tmp_path / "log.txt").write_bytes(b"in it")
    assert list(log_blocks(tmp_path)) == [b"in it", b"around it"]
