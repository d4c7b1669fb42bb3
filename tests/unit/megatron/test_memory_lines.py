"""Memory, in every shape it is printed in."""

from __future__ import annotations

import pytest

from orchestrator.megatron.logs.memory import Memory, memory_of_all, reported_memory, theoretical_memory

MIB = 2**20
# The samples of 2021 and of core_v0.16 with --log-device-memory-used.
OLD = (
    b"[Rank 0] (after 2 iterations) memory (MB) | allocated: 1234.5 | max allocated: 56178.51953125 | reserved: 57000.0"
)
OLD += b" | max reserved: 58300.0"
NEW = b"[Rank 8] (after 2 iterations) memory (MB) | allocated: 28123.50 | max allocated: 51234.25 | reserved: 60012.00"
NEW += b" | max reserved: 60012.00 | total device memory used: 61999.12"


def reported(log: bytes) -> Memory:
    return reported_memory(log, 0, len(log))


@pytest.mark.parametrize("between", [b"\n", b"\r\n3: ", b""], ids=["lines", "labels", "run into one another"])
def test_the_largest_of_all_ranks_and_reports_counts(between: bytes) -> None:
    log = between.join((OLD, NEW, OLD.replace(b"56178.51953125", b"100.0")))
    assert reported(log) == Memory(round(56178.51953125 * MIB), round(60012.00 * MIB), round(61999.12 * MIB))


def test_what_saving_a_checkpoint_took_is_not_the_trainings() -> None:
    assert reported(OLD.replace(b"after 2 iterations", b"after save_checkpoint for iteration 2")) == Memory()


@pytest.mark.parametrize("number", [b"nan", b"inf", b"-1.0", b"1e300", b"5.6.7", b"x", b""])
def test_a_size_that_is_none_is_not_taken(number: bytes) -> None:
    assert reported(OLD.replace(b"56178.51953125", number)) == Memory(None, round(58300.0 * MIB))


BYTES = b"""\
max_memory_allocated 58907409920
memory_reserved 60000000000
max_memory_reserved 61123592192
memory_info.used 66123592192
memory_info.total 85520809984
"""


def test_of_megatron_kwais_two_sets_the_second_counts() -> None:
    second = BYTES.replace(b"58907409920", b"58907405824").replace(b"66123592192", b"7")
    log = b"0: " + BYTES.replace(b"\n", b"\r\n0: ") + b"\n[1,0]<stdout>:" + second.replace(b"\n", b"\n[1,0]<stdout>:")
    assert memory_of_all(log, 0, len(log)) == Memory(58907405824, 61123592192, 7)


def test_other_words_of_memory_are_not_taken_for_it() -> None:
    log = b"torch.cuda.max_memory_allocated is 5\nmax_memory_allocated 5.5\nmax_memory_reserved " + b"9" * 30
    assert memory_of_all(log, 0, len(log)) == Memory()


def test_the_theoretical_footprint_is_read() -> None:
    log = b"Theoretical memory footprints: weight and optimizer=7078.45 MB, activation=1234.00 MB, total=8312.45 MB\n\n"
    assert theoretical_memory(log, 0, len(log)) == round(8312.45 * MIB)
    log = b"Theoretical memory footprints not yet supported for hybrid Mamba-Transformer models."
    assert theoretical_memory(log, 0, len(log)) is None
