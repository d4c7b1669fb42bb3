"""What programs say of themselves, in the format strings of the tags that are named."""

from __future__ import annotations

import pytest

from orchestrator.megatron.logs.setup import (
    DUMP_BEGINS,
    DUMP_ENDS,
    RankParameters,
    WorldLine,
    code_commit,
    dump_borders,
    execution,
    padded_vocabulary,
    parameters,
    settings,
    software,
    world_line,
)

SIZES = b"tensor-model-parallel size: 8, pipeline-model-parallel size: 4"
ENCODER = (
    b"tensor-model-parallel size: 8, encoder-tensor-model-parallel size: 0, pipeline-model-parallel size: 4, "
    b"encoder-pipeline-model-parallel size: 0"
)


@pytest.mark.parametrize(
    ("line", "context"),
    [
        (b"data-parallel-size: 2, " + SIZES + b" ", None),
        (b"data-parallel size: 2, context-parallel size: 1 " + SIZES + b" ", 1),
        (b"data-parallel size: 2, context-parallel size: 1, " + ENCODER, 1),
        (b"data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: None" + ENCODER, 1),
        (b"data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: [2], " + ENCODER, 1),
        (b"data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: None, " + SIZES, 1),
        (b"data-parallel-size: 2, " + SIZES + b", context-parallel size: 16", 16),
    ],
    ids=["2021", "core_v0.4", "core_v0.9", "core_v0.10", "core_v0.13", "core_v0.15", "Megatron-Kwai"],
)
@pytest.mark.parametrize("label", [b"", b" 0: ", b"P0 0: ", b"[1,0]<stdout>:"])
def test_the_world_a_job_really_ran_as_is_read(line: bytes, context: int | None, label: bytes) -> None:
    log = b"x\n" + label + b"using world size: 64, " + line + b"\r\nusing world size: 1, ...\n"
    assert world_line(log, 0, len(log)) == WorldLine(64, 2, 8, 4, context)


def test_a_world_of_another_line_is_not_taken_for_it() -> None:
    log = b"using world size: 64, data-parallel-size: 2, \n" + SIZES
    assert world_line(log, 0, len(log)) is None


@pytest.mark.parametrize("digits", [b"", b"9" * 5000])
def test_a_world_without_a_size_is_none(digits: bytes) -> None:
    log = b"using world size: " + digits + b", data-parallel-size: 2, " + SIZES
    assert world_line(log, 0, len(log)) is None


def test_parameters_are_read_by_rank_in_both_shapes() -> None:
    log = (
        b" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 4179787776\n"
        b"7:  > number of parameters on (tensor, pipeline) model parallel rank (7, 11): 12 > number of parameters on"
        b" (tensor, pipeline) model parallel rank (6, 11): 13\n"
        b" > number of parameters on (tensor, gtp_weight_remat, pipeline) model parallel rank (7, 1, 11): 1825904640\n"
        b" > number of parameters on (tensor, gtp_remat, pipeline) model parallel rank (7, 2, 11): 5\n"
        b" > number of parameters on (tensor, pipeline) model parallel rank (7, 2, 11): 5\n"
        b" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): " + b"9" * 30 + b"\n"
    )
    assert list(parameters(log, 0, len(log))) == [
        RankParameters(0, 0, None, 4179787776),
        RankParameters(7, 11, None, 12),
        RankParameters(6, 11, None, 13),
        RankParameters(7, 11, 1, 1825904640),
        RankParameters(7, 11, 2, 5),
    ]


def dumped(**values: str) -> bytes:
    lines = ("  {} {} {}".format(name, "." * (48 - len(name)), value) for name, value in values.items())
    return "".join(f"0: {line}\r\n" for line in lines).encode()


def test_the_arguments_are_read_as_they_are_listed_and_nothing_else() -> None:
    listed = {"lr": "0.00015", "data_path": "['a b', 'c']", "hidden_size": "64", "save": "", "x" * 46: "True"}
    log = dumped(**listed) + b"  a warning ... with dots\n  too_few .. dots\nx\n" + dumped(lr="0.5")
    assert settings(log, 0, len(log)) == {**listed, "lr": "0.5"}


def test_a_list_of_arguments_that_is_cut_goes_on_in_the_next_part() -> None:
    log = b"1" + DUMP_BEGINS + b"22" + DUMP_ENDS + b"3" + DUMP_BEGINS + b"44"
    found = list(dump_borders(log, 0, len(log), is_open=False))
    assert [(log[start:end], goes_on) for start, end, goes_on in found] == [(b"22", False), (b"44", True)]
    assert list(dump_borders(b"55" + DUMP_ENDS + b"6", 0, 100, is_open=True)) == [(0, 2, False)]
    assert list(dump_borders(b"6", 0, 1, is_open=False)) == []


@pytest.mark.parametrize(
    ("log", "mode"),
    [
        (b" > execution: graph\n", "graph"),
        (b"0:  > execution: eager\r\n", "eager"),
        (b" > execution: eager\n > execution: graph", "graph"),
        (b" > execution: graph\n > execution: graphs\n", "graph"),
        (b" > execution: \n > execution: lazy\n > execution: eagerly\nexecution: graph\n", None),
    ],
    ids=["graph", "label", "two starts", "an unknown word after it", "no mode"],
)
def test_the_execution_mode_is_read_and_no_other_word_is_one(log: bytes, mode: str | None) -> None:
    assert execution(log, 0, len(log)) == mode


def test_the_vocabulary_the_software_and_the_commit_are_read() -> None:
    log = (
        b" > padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)\r\n"
        b" > software: torch 2.9.0 | megatron-core 0.16.1 | backend nccl | device x \r\n"
        b"**** Git info for Megatron: git_hash=5e0f373 git_branch=main ****\n"
    )
    assert padded_vocabulary(log, 0, len(log)) == 51200
    assert software(log, 0, len(log)) == "torch 2.9.0 | megatron-core 0.16.1 | backend nccl | device x"
    assert code_commit(log, 0, len(log)) == "5e0f373"
    for read in (padded_vocabulary, software, code_commit):
        assert read(b"git_hash=unknown padded vocab (size: x)", 0, 39) is None
