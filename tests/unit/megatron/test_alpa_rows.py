"""Parser of the result rows of Alpa's benchmark. The samples follow `write_tsv` and its caller."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from orchestrator.megatron.logs.alpa import AlpaRow, RowKey, key_of_case, printed_row, row_pattern, table_rows
from orchestrator.megatron.model import ModelShape

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
ROW = AlpaRow("e2e", "p3.16", 1, 4, "gpt", "megatron", "{'tflops': 55.89, 'parameter_count': 1.313}", "1634066706")
LINE = b"\t".join(FIELDS) + b"\n"
PRINTED = b"".join(head + b": " + field + b"  " for head, field in zip(HEADS, FIELDS, strict=True))
GPT_1_3B = ModelShape(layers=24, hidden=2048, heads=32, seq=1024, vocab=51200)
KEY = RowKey(num_hosts=1, num_devices_per_host=4, parameters_billion=1.313409024)


def with_value(line: bytes, value: bytes) -> bytes:
    return line.replace(b"{'tflops': 55.89, 'parameter_count': 1.313}", value)


def test_a_table_is_read_with_its_comments_and_both_names_of_the_count() -> None:
    other = LINE.replace(b"parameter_count", b"param_count")
    rows = list(table_rows(b"# GPT\n\n" + LINE + b"  # more\n" + other + b"\t".join(FIELDS)))
    assert (rows[0], rows[2]) == (ROW, ROW)
    assert [(row.tflops, row.parameters_billion) for row in rows] == [(55.89, 1.313)] * 3


def test_a_run_out_of_memory_has_no_rate() -> None:
    (row,) = table_rows(with_value(LINE, b"{'tflops': -1}"))
    assert (row.tflops, row.parameters_billion) == (None, None)


@pytest.mark.parametrize(
    ("printed", "tflops"),
    [(b"np.float64(55.89)", 55.89), (b"inf", math.inf), (b"-inf", None), (b"0.0", None), (b"'fast'", None)],
)
def test_numbers_are_read_as_each_version_of_numpy_prints_them(printed: bytes, tflops: float | None) -> None:
    (row,) = table_rows(with_value(LINE, b"{'tflops': %b, 'parameter_count': 1.313}" % printed))
    assert (row.tflops, row.parameters_billion) == (tflops, 1.313)


def test_a_rate_that_is_not_a_number_is_kept() -> None:
    for printed in (b"nan", b"np.float64(nan)"):
        (row,) = table_rows(with_value(LINE, b"{'tflops': %b, 'parameter_count': 1.313}" % printed))
        assert row.tflops is not None and math.isnan(row.tflops)


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
def test_an_invalid_row_is_ignored(line: bytes) -> None:
    assert list(table_rows(line)) == []


def test_the_row_that_rank_0_prints_is_read() -> None:
    log = b"0: exp_name: e2e\n0: " + PRINTED + b"\r\nexp_name: cut  instance: x\nmore\n"
    assert printed_row(log, 0, len(log)) == ROW
    assert printed_row(b"exp_name: e2e  instance: x", 0, 26) is None
    assert printed_row(b"", 0, 0) is None


def test_the_last_of_several_printed_rows_counts() -> None:
    log = PRINTED + b"\n" + PRINTED.replace(b"55.89", b"50.0") + b"\n"
    row = printed_row(log, 0, len(log))
    assert row is not None and row.tflops == 50.0


# Published rows of results_e2e_ref.tsv have 8 devices for 8 GPUs; the script writes 0.
@pytest.mark.parametrize(
    ("gpus", "hosts", "devices"), [(1, 1, 1), (4, 1, 4), (8, 1, 0), (16, 2, 8), (32, 4, 8), (64, 8, 8)]
)
def test_a_case_has_the_hosts_devices_and_parameters_of_the_script(gpus: int, hosts: int, devices: int) -> None:
    assert key_of_case(GPT_1_3B, gpus) == replace(KEY, num_hosts=hosts, num_devices_per_host=devices)


def test_a_row_differs_from_another_case_in_each_field_of_the_key() -> None:
    own = replace(ROW, value="{'tflops': 55.89, 'parameter_count': 1.313409024}")
    assert list(own.differences(KEY)) == []
    value = "{'tflops': 55.89, 'parameter_count': 6.653659136}"
    other = replace(own, num_hosts=2, num_devices_per_host=8, value=value, method="parax.auto")
    assert list(other.differences(KEY)) == [
        "num_hosts 2, not 1",
        "num_devices_per_host 8, not 4",
        "parameters_billion 6.653659136, not 1.313409024",
        "method parax.auto, not megatron",
    ]
    assert list(replace(own, value="{}").differences(KEY)) == ["parameters_billion None, not 1.313409024"]


@pytest.mark.parametrize(
    ("value", "matches"),
    [
        (b"{'tflops': 56.05602634094983, 'parameter_count': 1.313409024}", True),
        (b"{'tflops': np.float64(56.05602634094983), 'parameter_count': 1.313409024}", True),
        (b"{'tflops': 9e-05, 'parameter_count': 1.313409024}", True),
        (b"{'tflops': -1, 'parameter_count': 1.313409024}", False),
        (b"{'tflops': nan, 'parameter_count': 1.313409024}", False),
        (b"{'tflops': inf, 'parameter_count': 1.313409024}", False),
        (b"{'tflops': 56.056, 'parameter_count': 1.3134090245}", False),
        (b"{'tflops': 56.056, 'parameter_count': 6.653659136}", False),
    ],
)
def test_the_pattern_of_a_row_matches_only_its_case_with_a_finite_rate(value: bytes, matches: bool) -> None:
    line = with_value(PRINTED, value).decode()
    assert bool(re.search(row_pattern(KEY), line)) is matches
    assert not re.search(row_pattern(replace(KEY, num_devices_per_host=8)), line)
