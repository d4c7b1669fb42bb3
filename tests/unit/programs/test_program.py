"""Programs that an experiment describes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.unit.programs.programs import SWEEP, TRAINING, program

AXES = ("gpus", "from", "to")


def problems(text: str, axes: tuple[str, ...] = AXES) -> list[tuple[str, str, str | None]]:
    return [(".".join(map(str, path)), what, hint) for path, what, hint in program(text).problems(axes)]


def test_shown_programs_have_no_problem() -> None:
    assert problems(SWEEP) == []
    assert problems(TRAINING, ("width", "steps")) == []


def test_a_size_in_bytes_is_an_integer_in_the_command() -> None:
    words = [program(SWEEP).filled(word, {"from": 8, "to": "16G"}) for word in program(SWEEP).command]
    assert words == ["all_reduce", "-b", "8", "-e", str(2**34)]


def test_a_text_without_unit_of_bytes_stays_as_it_is() -> None:
    assert [program(TRAINING).filled(word, {"width": "16G", "steps": 10}) for word in program(TRAINING).command][
        3
    ] == "16G"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/opt/bin/sweep {from}", "sweep"),
        ("python3 train_toy.py --width {width}", "train_toy.py"),
        ("python3 -m timeit -n 100", "timeit"),
        ("env A=1 torchrun --nproc-per-node 8 ./run/train.py", "train.py"),
        ("mpirun -n 4 xhpl", "xhpl"),
        ("bash -c {script}", "bash"),
    ],
)
def test_the_name_is_that_of_the_program_that_the_interpreters_run(command: str, name: str) -> None:
    assert program(TRAINING).model_copy(update={"command": command.split()}).shown_name == name


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('"{from}"', '"{form}"', ("command.2", "{form}: no such axis", 'did you mean "from"?')),
        ('"{from}"', '"{iterations}"', ("command.2", "{iterations}: no such axis", "there are: from, gpus, to")),
        (
            "size: {unit: B}",
            "sise: {unit: B}",
            ("axes.sise", "sise: neither given nor a key of rows", 'did you mean "size"?'),
        ),
        ("metrics: {busbw", "metrics: {busbv", ("metrics.busbv", "busbv: not in the output", 'did you mean "busbw"?')),
        ("all(wrong == 0)", "all(wrongs == 0)", ("verified", "wrongs: no such number", 'did you mean "wrong"?')),
        (
            "all(wrong == 0)",
            "wrong == 0",
            ("verified", "wrong: no such number", "write all(...) or any(...) around columns of rows"),
        ),
    ],
)
def test_a_name_that_does_not_exist_is_named_with_its_place(
    old: str, new: str, found: tuple[str, str, str | None]
) -> None:
    assert problems(SWEEP.replace(old, new)) == [found]


def test_a_key_of_rows_cannot_be_set() -> None:
    assert problems(SWEEP, (*AXES, "size")) == [
        ("output", "size names a row of the output, so the matrix cannot set it", None)
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("key: size", "key: bytes", "bytes is not a column"),
        ("size count type", "size size type", "has a name twice"),
        ("size count type", "size count ty-pe", "a name has letters"),
        ("{number}", "{number} {other}", "must have one {number}"),
        ("{number}", "({number}", "is not a regular expression"),
        ("rows == 3", "sum(rows) == 3", "is neither a name nor a number"),
        ("processes: one per GPU", "processes: per GPU", "processes"),
        ("values: {out_of_bounds", "values: {wrong", "a column or an iteration has this name, too"),
        ("  values:", "  json: {a: b}\n  values:", "json and csv are the whole output"),
        ("better: higher", "better: faster", "better"),
        ("verified:", "failures: {Bad Link: x}\nverified:", "a class has lower-case letters"),
        ("verified:", "failures: {bad-link: x*}\nverified:", "matches an empty line"),
        ("verified:", "failures: {bad-link: (}\nverified:", "is not a regular expression"),
        ("verified:", "warmup: -1\nverified:", "warmup"),
        ("output:\n", "output:\n  file: ../other\n", "must be the name of a file in the job's folder"),
    ],
)
def test_a_block_that_cannot_be_meant_is_refused(old: str, new: str, message: str) -> None:
    text = SWEEP.replace(old, new)
    assert text != SWEEP
    with pytest.raises(ValidationError, match=message):
        program(text)


def test_a_line_of_iterations_needs_its_number() -> None:
    with pytest.raises(ValidationError, match=r"must have \{iteration\}"):
        program(TRAINING.replace("{iteration}", "{step}"))
