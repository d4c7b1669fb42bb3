"""The rows of Alpa's benchmark. The table's line is the artifact's, the second one is of its reference file."""

from __future__ import annotations

import pytest

from orchestrator.megatron.logs.alpa import AlpaRow, printed_row, table_rows

FIELDS = (
    b"e2e",
    b"p3.16",
    b"1",
    b"4",
    b"gpt",
    b"megatron",
    b"{'tflops': 55.89, 'parameter_count': 1.313}",
    b"1634066706",
)
HEADS = (
    b"exp_name",
    b"instance",
    b"num_hosts",
    b"num_devices_per_host",
    b"model_name",
    b"method",
    b"value",
    b"time_stamp",
)
ROW = AlpaRow("e2e", "p3.16", 1, 4, "gpt", "megatron", 55.89, 1.313, "1634066706")
LINE = b"\t".join(FIELDS) + b"\n"


def test_a_table_is_read_with_its_comments_and_both_names_of_the_count() -> None:
    other = LINE.replace(b"parameter_count", b"param_count")
    assert list(table_rows(b"# GPT\n\n" + LINE + b"  # more\n" + other + b"\t".join(FIELDS))) == [ROW, ROW, ROW]


def test_what_ran_out_of_memory_has_no_rate() -> None:
    (row,) = table_rows(LINE.replace(b"{'tflops': 55.89, 'parameter_count': 1.313}", b"{'tflops': -1}"))
    assert (row.tflops, row.parameters_billion) == (None, None)


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace(b"\t4\t", b"\tfour\t"),
        LINE.replace(b"\t4\t", b"\t\xc2\xb2\t"),
        LINE.replace(b"\t4\t", b"\t" + b"4" * 5000 + b"\t"),
        LINE.replace(b"\t1634066706", b""),
        LINE.replace(b"gpt", b""),
        b"x" * 10_000 + LINE,
    ],
)
def test_what_is_no_row_is_passed_over(line: bytes) -> None:
    assert list(table_rows(line)) == []


def test_what_rank_0_prints_is_read() -> None:
    printed = b"".join(head + b": " + field + b"  " for head, field in zip(HEADS, FIELDS, strict=True))
    log = b"0: exp_name: e2e\n0: " + printed + b"\r\nexp_name: cut  instance: x\nmore\n"
    assert printed_row(log, 0, len(log)) == ROW
    assert printed_row(b"exp_name: e2e  instance: x", 0, 26) is None
    assert printed_row(b"", 0, 0) is None
