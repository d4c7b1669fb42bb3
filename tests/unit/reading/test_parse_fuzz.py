"""Fuzz tests of the log parser: any bytes, in parts or as a whole, in linear time."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.megatron.logs import fact_lines, iteration_lines
from orchestrator.megatron.logs.alpa import table_rows
from orchestrator.megatron.logs.fact_lines import DUMP_BEGINS
from orchestrator.megatron.logs.iteration_lines import ITERATION_TOKEN
from orchestrator.megatron.logs.parse import LogReport, read_log
from tests.examples import examples
from tests.unit.reading.test_parse_golden_logs import LOGS, content_of, in_parts

pytestmark = pytest.mark.slow

GOLDEN = [log.read_bytes() for log in LOGS]
LINES = sorted({line for log in GOLDEN for line in log.splitlines(keepends=True)})
WORDS = [
    b"|",
    b"\r",
    b"\n",
    b" ",
    b"\x1b[0m",
    b"\xff",
    b"nan",
    b"-1",
    b"1e400",
    b"9" * 400,
    ITERATION_TOKEN,
    DUMP_BEGINS,
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a log after several random changes."""
    log = draw(st.sampled_from(GOLDEN))
    chance = random.Random(draw(st.integers(0, 2**32)))
    for change in draw(
        st.lists(st.sampled_from(["cut", "glue", "double", "shuffle", "flip", "insert", "other"]), max_size=4)
    ):
        lines = log.splitlines(keepends=True) or [b""]
        at = chance.randrange(len(log) + 1)
        if change == "cut":
            log = log[:at] + log[at + chance.randrange(200) :]
        elif change == "glue":
            log = b"".join(line.rstrip(b"\n") if chance.random() < 0.3 else line for line in lines)
        elif change == "double":
            log = b"".join(line * chance.choice([1, 1, 2]) for line in lines)
        elif change == "shuffle":
            log = b"".join(chance.sample(lines, len(lines)))
        elif change == "flip":
            places = bytearray(log)
            for place in chance.sample(range(len(log)), min(len(log), 8)):
                places[place] = chance.randrange(256)
            log = bytes(places)
        elif change == "insert":
            log = log[:at] + chance.choice(WORDS) + log[at:]
        else:
            log = b"".join((*lines, *chance.sample(LINES, 20)))
    return log


LOGGED = mutated() | st.binary(max_size=500) | st.lists(st.sampled_from(LINES + WORDS), max_size=20).map(b"".join)


@given(log=LOGGED, cuts=st.lists(st.integers(0, 6000), max_size=8))
@settings(max_examples=examples(200))
def test_any_log_gives_the_same_in_parts_and_as_a_whole(log: bytes, cuts: list[int]) -> None:
    whole = read_log(log)
    assert in_parts(log, iter(sorted(cut for cut in cuts if cut < len(log)))) == whole
    numbers = [line.iteration for line in whole.iterations]
    assert all(before < after for before, after in pairwise(numbers))
    json.dumps(content_of(log), allow_nan=False)
    list(table_rows(log))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small blocks, so that a golden log is read like a large one."""
    monkeypatch.setattr(fact_lines, "_WINDOW_BYTES", 700)
    monkeypatch.setattr(fact_lines, "_SAMPLE_BYTES", 200)
    monkeypatch.setattr(fact_lines, "_BYTES_PER_BAR", 60)
    monkeypatch.setattr(iteration_lines, "_PIECE_BYTES", 350)


def test_many_small_blocks_give_the_same_as_one(request: pytest.FixtureRequest) -> None:
    @given(log=LOGGED)
    @settings(max_examples=examples(100))
    def read(log: bytes) -> None:
        reports.append((log, read_log(log)))

    reports: list[tuple[bytes, LogReport]] = []
    read()
    request.getfixturevalue("small_pieces")
    for log, report in reports:
        assert read_log(log) == report


LINE = next(line for line in LINES if line.startswith(b" iteration"))
ENDLESS = [
    *(word for word in WORDS if word != b"9" * 400),
    b"a",
    b"1",
    b"\0",
    b"a: ",
    b"iteration ",
    b"iteration 1/ 2 |",
    b"iterations) memory (MB) | allocate",
    b"iterations) memory (MB) | allocated: 1 | max allocated: 1",
    b"using world size: ",
    b"using world size: 1, data-parallel-size: 1",
    b"number of parameters on (tensor, ",
    b"  aa .. ",
    b"exp_name: x  ",
    b"[exiting program at iteration ",
    b"Theoretical memory footprints: weight and optimizer=1 ",
    b"max_memory_allocated ",
    b"padded vocab (size: ",
    LINE.rstrip()[:-1],
    LINE.rstrip(),
    LINE[:-40] + b"\n",
]


@pytest.mark.parametrize("word", ENDLESS, ids=repr)
def test_very_long_line_is_read_in_bounded_time(word: bytes) -> None:
    """An unbounded repetition in a pattern would take hours."""
    for log in (word * (300_000 // len(word)), DUMP_BEGINS + b"\n" + word * (300_000 // len(word)) + LINE * 5):
        read_log(log)


def work(log: bytes) -> int:
    """Return the number of function calls to read a log."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        read_log(log)
    finally:
        sys.setprofile(None)
    return calls


def numbered(count: int) -> Iterator[bytes]:
    return (LINE.replace(b" 1/       3", b"%2d/%8d" % (number, count)) for number in range(1, count + 1))


GROWING: dict[str, Callable[[int], bytes]] = {
    "iterations": lambda count: b"".join(numbered(count)),
    "iterations among other words": lambda count: b"".join(line + b"other words\n" * 99 for line in numbered(count)),
    "every rank prints": lambda count: b"".join(line * 2 for line in numbered(count)),
    "falling numbers": lambda count: b"".join(reversed(list(numbered(count)))),
    "lines run into one another": lambda count: b"".join(line.rstrip() for line in numbered(count)),
    "no numbers": lambda count: b"".join(numbered(count)).replace(b"9000.2", b"nan"),
    "no iteration": lambda count: b"other words | and more\n" * count,
    "parameters": lambda count: b"number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1\n" * count,
    "memory": lambda count: b"iterations) memory (MB) | allocated: 1.0 | max allocated: 1.0\n" * count,
}


@pytest.mark.parametrize("kind", GROWING)
def test_work_grows_linearly_with_the_log(kind: str) -> None:
    few, many = (work(GROWING[kind](count)) for count in (500, 2000))
    assert many < 5 * few
