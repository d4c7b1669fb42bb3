"""Parser of iteration lines of all versions. The samples are format strings of the named versions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ledger.tables import IterationLine
from orchestrator.megatron.logs.iteration_lines import IterationLines, add_iterations, iteration_lines

E2021 = (
    b" iteration        5/     500 | consumed samples:         2560 | elapsed time per iteration (ms): 3520.1 |"
    b" learning rate: 1.000E-04 | global batch size:   512 | lm loss: 1.042536E+01 | loss scale: 8192.0 |"
    b" grad norm: 4.157 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
V0_5 = (
    b" iteration       10/     500 | consumed samples:         5120 | elapsed time per iteration (ms): 3520.1 |"
    b" throughput per GPU (TFLOP/s/GPU): 104.4 | learning rate: 1.000E-04 | global batch size:   512 |"
    b" lm loss: 9.912345E+00 | loss scale: 8192.0 | grad norm: 2.310 | number of skipped iterations:   0 |"
    b" number of nan iterations:   0 |"
)
V0_6 = b" [2024-04-18 10:11:12]" + V0_5.replace(b"1.000E-04", b"1.000000E-04")
NEWEST = (
    b" [2026-08-22 15:22:22.123456] iteration       10/     500 | consumed samples:         5120 |"
    b" skipped samples:          512 | elapsed time per iteration (ms): 3520.1 |"
    b" throughput per GPU (TFLOP/s/GPU): 98.1 | energy per GPU (J/iter/GPU): 1290.4 | power per GPU (W/GPU): 366.6 |"
    b" learning rate: 1.000000E-04 | global batch size:   512 | lm loss: 9.912345E+00 | loss scale: 8192.0 |"
    b" grad norm: 2.310 | num zeros: 12 | params norm: 812.345 | number of skipped iterations:   1 |"
    b" number of nan iterations:   0 |"
)
PRETRAIN = E2021.replace(b" learning rate", b" host wait per iteration (ms): 12.3 | learning rate")
FIVE = IterationLine(5, 3520.1, 10.42536, 4.157, True, 8192.0, 0, 0)
TEN = IterationLine(10, 3520.1, 9.912345, 2.310, True, 8192.0, 0, 0, 104.4)
KWAI = E2021.replace(b" learning rate", b" tokens per sec per gpu: 3016.01234 | learning rate")
PRIMUS = V0_5.replace(b"3520.1", b"3520.1/3518.2").replace(b"104.4", b"104.4/104.5")
EXPERTS = E2021.replace(b" loss scale", b" load_balancing_loss: 1.000000E+00 | aux [1, 2] free text | loss scale")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (E2021, FIVE),
        (V0_5, TEN),
        (V0_6, TEN),
        (NEWEST, replace(TEN, skipped=1, reported_tflops_per_gpu=98.1, power_w=366.6)),
        (KWAI, replace(FIVE, reported_tokens_per_s_per_gpu=3016.01234)),
        (EXPERTS, FIVE),
        (PRIMUS, TEN),
        (PRETRAIN, replace(FIVE, host_wait_ms=12.3)),
        (PRETRAIN.replace(b"12.3", b"0.0"), replace(FIVE, host_wait_ms=0.0)),
        (PRETRAIN.replace(b"| loss scale", b"| a new field: 7 | loss scale"), replace(FIVE, host_wait_ms=12.3)),
    ],
    ids=[
        *("2021", "core_v0.5", "core_v0.6", "newest", "Megatron-Kwai", "mixture of experts", "Primus"),
        *("pretrain", "no host wait", "pretrain with a field of a later version"),
    ],
)
def test_the_iteration_line_of_every_era_is_read(line: bytes, expected: IterationLine) -> None:
    assert list(iteration_lines(line + b"\n")) == [expected]
    assert expected.is_finite


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"63: ", b"\n"),
        (b"   7: ", b"\n"),
        (b"P1  3: ", b"\n"),
        (b"[node3321:2]:", b"\n"),
        (b"2026-10-26 21:31:00,318 [Rank 15]: ", b"\n"),
        (b"", b"\r\n"),
        (b"\x1b[32m", b"\x1b[0m\n"),
        (b"\xff\xfe ", b"\xc3\n"),
    ],
    ids=[
        "label",
        "padded label",
        "heterogeneous label",
        "label of torchrun",
        "label of a logger",
        "CRLF",
        "ANSI",
        "not UTF-8",
    ],
)
def test_text_around_a_line_does_not_hide_it(before: bytes, after: bytes) -> None:
    log = b"".join(before + line + after for line in (b" > setting up", E2021, b"[Rank 8] memory | x", E2021))
    assert list(iteration_lines(log)) == [FIVE, FIVE]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_an_incomplete_last_line_is_left_for_the_next_read(cut: int) -> None:
    assert list(iteration_lines(E2021 + b"\n" + E2021[:-cut])) == [FIVE]


def test_a_missing_loss_is_none_and_a_nan_iteration_is_not_finite() -> None:
    without = E2021.replace(b" lm loss: 1.042536E+01 |", b"").replace(b"nan iterations:   0", b"nan iterations:   2")
    (line,) = iteration_lines(without)
    assert (line.loss, line.nan, line.is_finite) == (None, 2, False)


@pytest.mark.parametrize("word", [b"nan", b"inf", b"-inf"])
@pytest.mark.parametrize("number", [b"1.042536E+01", b"4.157", b"3520.1"])
def test_a_printed_nan_or_infinity_is_not_finite(word: bytes, number: bytes) -> None:
    (line,) = iteration_lines(E2021.replace(number, word))
    assert not line.is_finite


@pytest.mark.parametrize(
    "line",
    [
        E2021.replace(b"3520.1", b"..."),
        E2021.replace(b"3520.1", b"1.2.3"),
        E2021.replace(b"3520.1", b"3520.1/x"),
        E2021.replace(b"nan iterations:   0", b"nan iterations:   ."),
        E2021.replace(b"     500", b"5" * 5000),
    ],
    ids=["dots", "two points", "no mean", "no count", "5000 digits"],
)
def test_a_garbled_number_gives_no_line_and_no_crash(line: bytes) -> None:
    assert list(iteration_lines(line)) == []


@pytest.mark.parametrize("garbled", [b"1.2.3", b"12x", b"?", b""])
def test_a_line_with_a_garbled_host_wait_counts(garbled: bytes) -> None:
    assert list(iteration_lines(PRETRAIN.replace(b"12.3", garbled))) == [FIVE]


@pytest.mark.parametrize("garbled", [b"1.04.2", b"1.04x", b"?", b""])
def test_a_garbled_loss_differs_from_a_missing_loss(garbled: bytes) -> None:
    for line in (E2021, EXPERTS):
        (read,) = iteration_lines(line.replace(b"1.042536E+01", garbled))
        assert read.loss is not None and not read.is_finite


def test_a_count_that_is_not_a_number_is_an_error() -> None:
    (line,) = iteration_lines(E2021.replace(b"nan iterations:   0", b"nan iterations: nan"))
    assert line.nan == 1 and not line.is_finite


def test_a_validation_line_is_not_an_iteration_line() -> None:
    text = b" validation loss at iteration 10 | lm loss value: 9.9E+00 | lm loss PPL: 2.0E+04 | \n"
    assert list(iteration_lines(text)) == []


@given(st.binary(), st.binary())
def test_no_bytes_crash_the_reader(before: bytes, after: bytes) -> None:
    log = before + E2021 + after
    list(iteration_lines(log))


VALUES = st.text(alphabet="0123456789.eE+-naif |:", max_size=12).map(str.encode)


@given(VALUES, VALUES, VALUES)
def test_no_field_crashes_the_reader(elapsed: bytes, loss: bytes, count: bytes) -> None:
    line = (
        E2021.replace(b"3520.1", elapsed)
        .replace(b"1.042536E+01", loss)
        .replace(b"iterations:   0", b"iterations: " + count)
    )
    for read in iteration_lines(line):
        assert read.nan is not None and read.nan >= 0 and isinstance(read.is_finite, bool)


def numbered(number: int, **replaced: str) -> bytes:
    """Return a line of 2021 with this number and with replaced texts."""
    line = E2021.replace(b"  5/", b"%3d/" % number) + b"\n"
    for old, new in replaced.items():
        line = line.replace(FIELDS[old], new.encode())
    return line


FIELDS = {
    "loss": b" lm loss: 1.042536E+01 |",
    "scale": b"8192.0",
    "norm": b"4.157",
    "skipped": b"skipped iterations:   0",
}
OTHERS = st.sampled_from(
    [
        numbered(1),
        numbered(2),
        numbered(3, loss=""),
        numbered(4, scale="4096.0"),
        numbered(5, skipped="skipped iterations:   1"),
        numbered(6, norm="nan"),
        numbered(7, norm="1.2.3"),
        EXPERTS + b"\n",
        EXPERTS.replace(b" loss scale: 8192.0 |", b"") + b"\n",
        EXPERTS.replace(b"| loss scale", b"| loss scale: x y | loss scale") + b"\n",
        EXPERTS.replace(b"| loss scale", b"| grad norm: 9 | loss scale") + b"\n",
        EXPERTS.replace(b"| loss scale", b"| cut iteration 9/  12 | loss scale") + b"\n",
        E2021.replace(b" grad norm: 4.157 |", b"") + b"\n",
        NEWEST + b"\n",
        KWAI + b"\n",
        PRETRAIN + b"\n",
        PRETRAIN.replace(b"12.3", b"nan") + b"\n",
        PRETRAIN.replace(b"12.3", b"1.2.3") + b"\n",
        E2021[:150] + b"\n",
        E2021 + E2021 + b"\n",
        b"node1:2:3 [0] NCCL INFO Connected all rings\n",
    ]
)


@given(st.lists(OTHERS, max_size=30))
def test_lines_read_at_once_equal_lines_read_one_by_one(lines: list[bytes]) -> None:
    together = IterationLines()
    replaced = add_iterations(together, b"".join(lines), 0, sum(map(len, lines)))
    assert repr(list(together)) == repr([read for line in lines for read in iteration_lines(line)])
    assert replaced == b"".join(lines).count(b"| elapsed time per iteration (ms): ")


@pytest.mark.parametrize("cut", [30, 90, 200, E2021.index(b" loss scale")])
def test_a_line_that_another_rank_cut_in_two_has_no_numbers_of_the_other(cut: int) -> None:
    whole = V0_5.replace(b" lm loss: 9.912345E+00 |", b"")
    assert list(iteration_lines(E2021[:cut] + whole + b"\n" + E2021[cut:])) == [replace(TEN, loss=None)]


def test_two_lines_without_a_newline_between_them_are_both_read() -> None:
    memory = b"[Rank 3] (after 5 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0"
    assert list(iteration_lines(E2021 + V0_5 + memory + E2021 + b"\n")) == [FIVE, TEN, FIVE]
