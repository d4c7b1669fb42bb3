"""Logs without secrets: of any size and of any bytes, wherever a secret stands, and with all that a verdict needs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.masking import masked
from orchestrator.megatron.logs.iteration_lines import iteration_lines
from orchestrator.results.bundle import write as bundle_masking
from orchestrator.results.bundle.extract import anonymized
from orchestrator.results.bundle.write import masked_blocks, masked_bytes
from tests.examples import examples
from tests.recorded_jobs import INTERVAL_LINE

pytestmark = pytest.mark.slow

SECRET = "hf_abcdefghijklmnopqrstuvwxyz01234567"
PEM = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 30 + "-----END PRIVATE KEY-----\n"
VALUE = "+ export HF_TOKEN='correct horse\nbattery staple'\n"


def iteration(number: int) -> str:
    return INTERVAL_LINE.format(number, 9_000_000, number, 100.0)


def pieces(log: bytes) -> Iterator[bytes]:
    """As a disk gives them."""
    return (log[start : start + 700] for start in range(0, len(log), 700))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are cut often."""
    monkeypatch.setattr(bundle_masking, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(bundle_masking, "_MOST_MASKED_BYTES", 1 << 15)
    monkeypatch.setattr(bundle_masking, "_BESIDE_CUT_BYTES", 1 << 11)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("secret", [PEM, VALUE, f"HF_TOKEN={SECRET}\n", f"url https://me:hunter22@h/x {SECRET}\n"])
def test_a_secret_is_masked_wherever_a_block_ends(secret: str) -> None:
    for before in range(0, 3000, 43):
        log = (" " * before + "\n" + iteration(1) + secret + iteration(2) * 12).encode()
        found = b"".join(masked_blocks(pieces(log)))
        assert found == masked(log.decode()).encode(), before
        for word in (b"MIIE", b"horse", b"battery", b"hunter22", SECRET.encode()):
            assert word not in found


@settings(max_examples=examples(60))
@given(
    log=st.lists(st.binary(max_size=80) | st.sampled_from([b"\n", b"\r\n", b"\xff\xfe", iteration(3).encode()])).map(
        b"".join
    )
)
def test_bytes_that_are_no_text_stay_as_they_are(log: bytes) -> None:
    if masked(log.decode("utf-8", "surrogateescape")) == log.decode("utf-8", "surrogateescape"):
        assert b"".join(masked_blocks(pieces(log))) == log


def test_a_quote_that_nobody_closes_takes_no_line_that_a_verdict_stands_on() -> None:
    world = (
        "using world size: 4, data-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
    )
    lines = [world, iteration(1), 'HF_TOKEN="abc def\n', iteration(2), "between\n", iteration(3)]
    log = "".join([*lines, "[after training is done]\n", 'and a " at last\n']).encode()
    assert len([*iteration_lines(masked(log.decode()).encode())]) == 1, (
        "the whole is masked otherwise: nothing is tested"
    )
    found = masked_bytes(log)
    assert [*iteration_lines(found)] == [*iteration_lines(log)]
    assert world.encode() in found and b"[after training is done]" in found and b"abc def" not in found


def test_a_key_between_two_iterations_is_masked_where_a_quote_before_them_is_left_open() -> None:
    log = ('HF_TOKEN="abc\n' + iteration(1) + PEM + iteration(2) + 'x"\n').encode()
    found = masked_bytes(log)
    assert b"MIIE" not in found and len([*iteration_lines(found)]) == 2


@pytest.mark.usefixtures("small")
def test_a_line_without_an_end_is_cut_in_the_end() -> None:
    found = [*masked_blocks(pieces(b"x" * 100_000))]
    assert b"".join(found) == b"x" * 100_000 and len(found) > 1


def test_memory_does_not_grow_with_the_log() -> None:
    line = iteration(7).encode()

    block = line * (1_000_000 // len(line))
    tracemalloc.start()
    assert sum(map(len, masked_blocks(block for _ in range(40)))) == 40 * len(block)
    assert tracemalloc.get_traced_memory()[1] < 30_000_000
    tracemalloc.stop()


def test_nobody_is_named_in_a_path_and_words_that_only_look_like_it_stay() -> None:
    row = {"command": ["repro", "--cluster", "/home/mia/x.yaml"], "code": "/scratch/mia", "n": 3, "b": [True, None]}
    expected = {
        "command": ["repro", "--cluster", "/home/user/x.yaml"],
        "code": "/scratch/user",
        "n": 3,
        "b": [True, None],
    }
    assert anonymized(row, {"mia", ""}) == expected
    for text in ("mia", "/home/miaou/x", "/data/mia-old", "x/amia", "/mia.txt"):
        assert anonymized(text, {"mia"}) == text
    assert anonymized({"n": 1, "x": "/home/a.b/x"}, {"a.b"}) == {"n": 1, "x": "/home/user/x"}
    assert anonymized("/home/mia", set()) == "/home/mia"
