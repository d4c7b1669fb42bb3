"""Verdicts on outputs of described programs."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable, Mapping

import pytest

from orchestrator.programs import output
from orchestrator.programs.output import Scalar
from orchestrator.programs.program import JudgedOutput, failure_line, judge_output
from tests.shipped_programs import problem_texts
from tests.unit.programs.programs import SWEEP, SWEEP_OUTPUT, TRAINING, program

SETTINGS: Mapping[str, Scalar] = {"gpus": 2, "from": 8, "to": "1M"}


def judged(text: str, output: str | Iterable[bytes], settings: Mapping[str, float | str]) -> JudgedOutput:
    lines = output.encode().splitlines(keepends=True) if isinstance(output, str) else output
    return judge_output(program(text), settings, lines)


def problems(output: str) -> tuple[str, ...]:
    return problem_texts(judged(SWEEP, output, SETTINGS))


def test_each_row_of_a_table_is_found_with_its_line() -> None:
    result = judged(SWEEP, SWEEP_OUTPUT, SETTINGS)
    assert problem_texts(result) == ()
    assert list(result.output.rows) == [(8,), (1024,), (2**20,)]
    busbw = result.output.rows[2**20,]["busbw"]
    assert (busbw.value, busbw.line) == (67.04, 6)
    assert result.output.values["out_of_bounds"].line == 7


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("67.04       0", "67.04       3", ["wrong == 0: wrong is 3 at size=1048576 (line 6)"]),
        ("    1024 ", "       8 ", ["line 5: the row size=8 is also in line 4", "rows == 3: rows is 2"]),
        ("27.37   67.04       0", "27.37   67.04", ["line 6: a row with 5 of 6 columns", "rows == 3: rows is 2"]),
        ("27.37   67.04", "27.37   6x.04", ["line 6: busbw is not a number: '6x.04'", "rows == 3: rows is 2"]),
        ("27.37   67.04", "27.37   nan", ["busbw is nan at size=1048576 (line 6)"]),
        ("bounds values : 0", "bounds values : 1", ["out_of_bounds == 0: out_of_bounds is 1"]),
        (
            "Out of bounds values",
            "Out of bound values",
            [
                "output.values.out_of_bounds: matches no line; the nearest is line 7: # Out of bound values : 0 OK",
                "out_of_bounds == 0: out_of_bounds was not found",
            ],
        ),
        (
            "# Out",
            "# Out of bounds values : 0 OK\n# Out",
            ["output.values.out_of_bounds: matches lines 7 and 8, and must match one"],
        ),
    ],
)
def test_a_damaged_output_is_not_verified(old: str, new: str, expected: list[str]) -> None:
    damaged = SWEEP_OUTPUT.replace(old, new)
    assert damaged != SWEEP_OUTPUT
    assert list(problems(damaged)) == expected


@pytest.mark.parametrize("lines", range(7))
def test_an_output_that_is_cut_off_is_not_verified(lines: int) -> None:
    assert problems("".join(SWEEP_OUTPUT.splitlines(keepends=True)[:lines]))


def test_no_output_cut_off_inside_a_line_is_verified() -> None:
    whole = SWEEP_OUTPUT.index("0 OK") + 1
    assert all(problems(SWEEP_OUTPUT[:length]) for length in range(whole))


def test_iterations_are_counted_once_each() -> None:
    lines = "step=1 loss=2.5\nstep=1 loss=2.4\nstep=2 loss=2.0\n"
    result = judged(TRAINING, lines, {"width": 64, "steps": 2})
    assert problem_texts(result) == ()
    assert [found["loss"].value for found in result.output.iterations.values()] == [2.4, 2.0]


def test_missing_iterations_and_numbers_that_are_not_finite_are_problems() -> None:
    result = judged(TRAINING, "step=1 loss=nan\n", {"width": 64, "steps": 2})
    assert problem_texts(result) == (
        "loss is nan at iteration 1 (line 1)",
        "iterations == steps: iterations is 1, steps is 2",
    )


def test_a_json_document_is_read_by_paths() -> None:
    text = """
command: [fio, --output-format=json]
output: {json: {read_bw: jobs.0.read.bw_bytes, errors: jobs.0.error}}
metrics: {read_bw: {unit: B/s, better: higher}}
verified: errors == 0
"""
    document = {"jobs": [{"error": 0, "read": {"bw_bytes": 5e8}}]}
    result = judged(text, json.dumps(document, indent=1), {})
    assert problem_texts(result) == ()
    assert result.output.values["read_bw"].value == 5e8
    assert problem_texts(judged(text, "{", {}))[0].startswith("not a JSON document")
    without = judged(text, json.dumps({"jobs": [{"error": 0, "read": {}}]}), {})
    assert problem_texts(without) == ("output.json.read_bw: jobs.0.read.bw_bytes is missing",)


def test_a_key_of_a_json_document_with_a_dot_has_quotes() -> None:
    text = """
command: [fio]
output: {json: {p99: 'jobs.0.percentile."99.000000"', last: '"a.b".c'}}
metrics: {p99: {better: lower}}
"""
    result = judged(text, json.dumps({"jobs": [{"percentile": {"99.000000": 7}}], "a.b": {"c": 2}}), {})
    assert problem_texts(result) == ()
    assert {name: found.value for name, found in result.output.values.items()} == {"p99": 7, "last": 2}
    with pytest.raises(ValueError, match="has a quote that is not closed"):
        program(text.replace('.000000"', ".000000"))


def test_a_missing_number_is_one_problem_for_all_rows() -> None:
    text = SWEEP.replace("metrics: {", "metrics: {out_of_bounds: {better: lower}, ").replace(
        "out_of_bounds == 0 and ", ""
    )
    assert list(problem_texts(judged(text, SWEEP_OUTPUT.replace("bounds", "bound"), SETTINGS))) == [
        "output.values.out_of_bounds: matches no line; the nearest is line 7: # Out of bound values : 0 OK"
    ]
    csv = "{command: [x], output: {csv: size}, metrics: {busbw: {better: higher}}, verified: all(wrong == limit)}"
    assert problem_texts(judged(csv, "size,wrong\n8,0\n16,0\n", {})) == (
        "busbw: no such column in the header",
        "wrong == limit: limit was not found at size=8 (line 2) and in 1 more row",
    )


def test_failures_are_named_by_the_first_class_with_a_line() -> None:
    classes = program(SWEEP.replace("verified:", "failures: {second: Second, first: 'First|Fir'}\nverified:"))
    lines = [b"First\n", b"Second\n"]
    found = failure_line(classes, lines)
    assert (found.failure, found.line, found.problems) == ("second", 2, ())
    assert failure_line(classes, lines[:1]).failure == "first"
    assert failure_line(classes, [b"none\n"]).failure is None


def test_a_slow_pattern_of_a_failure_is_stopped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SLOWEST_S", 0.05)
    slow = program(SWEEP.replace("verified:", "failures: {bad-link: '(a|a|aa)+$'}\nverified:"))
    assert failure_line(slow, [b"a" * 5000 + b"!\n"]).problems[0].startswith("failures.bad-link: took more than")


def test_a_csv_file_has_a_row_for_each_line() -> None:
    text = "{command: [x], output: {csv: size}, metrics: {busbw: {better: higher}}, verified: all(wrong == 0)}"
    result = judged(text, "size,busbw,wrong\n8,0.5,0\n16,1.5,0\n", {})
    assert problem_texts(result) == ()
    assert result.output.rows[(16,)]["busbw"].value == 1.5
    assert (
        problem_texts(judged(text, "bytes,busbw\n8,1\n", {}))[0]
        == "output.csv: no column size; there are: bytes, busbw"
    )
    assert "line 3: not as many fields as the header" in problem_texts(
        judged(text, "size,busbw,wrong\n8,1,0\n16\n", {})
    )
    assert "busbw is x at size=8 (line 2)" in problem_texts(judged(text, "size,busbw,wrong\n8,x,0\n", {}))


def test_a_slow_pattern_is_stopped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SLOWEST_S", 0.05)
    text = TRAINING.replace("step={iteration}", "(a|a|aa)+$ {iteration}")
    result = judged(text, "a" * 5000 + "! 1\n", {"width": 1, "steps": 1})
    assert problem_texts(result)[0].startswith("output.iterations: took more than")


def test_a_large_output_needs_little_memory() -> None:
    """A hundred thousand lines, each of a kilobyte: 100 MB."""
    lines = (b"%08d " % number + b"x" * 1000 + b"\n" for number in range(100_000))
    tracemalloc.start()
    judged(SWEEP, lines, SETTINGS)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6
