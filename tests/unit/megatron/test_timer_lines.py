"""Timers in their four shapes; the strings are those of megatron/timers.py."""

from __future__ import annotations

import pytest

from orchestrator.megatron.logs.timers import BLOCK_BYTES, begin_block, last_block, read_block


def dotted(name: str, times: str) -> str:
    return "    {}: {}\n".format((name + " ").ljust(48, "."), times)


LINE = "time (ms) | forward-compute: 1102.31 | backward-compute: 2204.62 | optimizer: 44.21 | batch-generator: 3.20"
LEAST_AND_MOST = (
    "(min, max) time across ranks (ms):\n"
    + dotted("forward-backward", "(1.25, 2.5)")
    + dotted("optimizer", "(3.00, 4.00)")
)
MOST = "max time across ranks (ms):\n" + dotted("forward-backward", "2.50") + dotted("optimizer", "4.00")
ALL = (
    "times across ranks (ms):\n  forward-backward:\n     rank  0: 1.25\n     rank 12: 2.50\n"
    "  optimizer:\n     rank  0: 4.00\n"
)
NAMES = {
    LINE: {
        "forward-compute": (1102.31, 1102.31),
        "backward-compute": (2204.62, 2204.62),
        "optimizer": (44.21, 44.21),
        "batch-generator": (3.2, 3.2),
    },
    LEAST_AND_MOST: {"forward-backward": (1.25, 2.5), "optimizer": (3.0, 4.0)},
    MOST: {"forward-backward": (2.5, 2.5), "optimizer": (4.0, 4.0)},
    ALL: {"forward-backward": (1.25, 2.5), "optimizer": (4.0, 4.0)},
}


@pytest.mark.parametrize("text", NAMES, ids=["2021", "least and most", "most", "all"])
@pytest.mark.parametrize("label", ["", "7: "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_shape_is_read_and_the_last_block_counts(text: str, label: str, end: str) -> None:
    before = "time (ms) | forward-compute: 1.00\n" + dotted("forward-backward", "(8.0, 9.0)")
    log = "".join(f"{label}{line}{end}" for line in (before + text).splitlines()).encode()
    at = last_block(log, 0, len(log))
    assert at is not None and begin_block(log, at, len(log)).ms == NAMES[text]


def test_the_timers_of_set_up_and_saving_are_not_those_of_an_iteration() -> None:
    log = ("time (ms) | save-checkpoint: 1.0\n" + dotted("model-and-optimizer-setup", "(1.0, 2.0)")).encode()
    assert last_block(log, 0, len(log)) is None


@pytest.mark.parametrize("text", [LEAST_AND_MOST, MOST, ALL])
def test_a_block_that_is_cut_between_lines_is_the_same(text: str) -> None:
    log = text.replace("\n", "\nanother rank's line: 5.0\n").encode()
    at = last_block(log, 0, len(log))
    assert at is not None
    for cut in (place + 1 for place in range(at, len(log)) if log[place : place + 1] == b"\n"):
        first = begin_block(log, at, cut)
        assert read_block(log, cut, len(log), first) == begin_block(log, at, len(log))


def test_a_block_does_not_go_on_for_ever() -> None:
    log = (dotted("forward-backward", "(1.0, 2.0)") + "x\n" * BLOCK_BYTES + dotted("optimizer", "(1.0, 2.0)")).encode()
    found = begin_block(log, 0, len(log))
    assert list(found.ms) == ["forward-backward"] and found.bytes_left == 0
