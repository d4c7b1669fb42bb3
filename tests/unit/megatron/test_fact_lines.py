"""Parser of lines other than iteration lines. The samples are format strings of the named versions."""

from __future__ import annotations

import pytest

from orchestrator.megatron.logs.fact_lines import (
    DUMP_BEGINS,
    DUMP_ENDS,
    MEMORY_SIZES,
    RankParameters,
    WorldLine,
    code_commit,
    dump_borders,
    execution,
    last_done,
    memory_of_all,
    padded_vocabulary,
    rank_parameters,
    reported_memory,
    settings,
    software,
    theoretical_memory,
    world_line,
)

# ---- world size, arguments, parameters -------------------------------------------------------------------

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
def test_the_world_line_is_read(line: bytes, context: int | None, label: bytes) -> None:
    log = b"x\n" + label + b"using world size: 64, " + line + b"\r\nusing world size: 1, ...\n"
    assert world_line(log, 0, len(log)) == WorldLine(64, 2, 8, 4, context)


def test_sizes_of_another_line_are_not_the_world() -> None:
    log = b"using world size: 64, data-parallel-size: 2, \n" + SIZES
    assert world_line(log, 0, len(log)) is None


@pytest.mark.parametrize("digits", [b"", b"9" * 5000])
def test_a_world_line_without_a_size_is_ignored(digits: bytes) -> None:
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
    assert list(rank_parameters(log, 0, len(log))) == [
        RankParameters(0, 0, None, 4179787776),
        RankParameters(7, 11, None, 12),
        RankParameters(6, 11, None, 13),
        RankParameters(7, 11, 1, 1825904640),
        RankParameters(7, 11, 2, 5),
    ]


def dumped(**values: str) -> bytes:
    lines = ("  {} {} {}".format(name, "." * (48 - len(name)), value) for name, value in values.items())
    return "".join(f"0: {line}\r\n" for line in lines).encode()


def test_only_listed_arguments_are_read() -> None:
    listed = {"lr": "0.00015", "data_path": "['a b', 'c']", "hidden_size": "64", "save": "", "x" * 46: "True"}
    log = dumped(**listed) + b"  a warning ... with dots\n  too_few .. dots\nx\n" + dumped(lr="0.5")
    assert settings(log, 0, len(log)) == {**listed, "lr": "0.5"}


def test_a_list_of_arguments_continues_in_the_next_part() -> None:
    log = b"1" + DUMP_BEGINS + b"22" + DUMP_ENDS + b"3" + DUMP_BEGINS + b"44"
    result = list(dump_borders(log, 0, len(log), is_open=False))
    assert [(log[start:end], goes_on) for start, end, goes_on in result] == [(b"22", False), (b"44", True)]
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
def test_only_graph_and_eager_are_execution_modes(log: bytes, mode: str | None) -> None:
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


# ---- end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [b"[after training is done]", b"[exiting program at iteration 20]"])
def test_the_end_of_training_is_read(mark: bytes) -> None:
    log = b"0: " + mark + b" datetime: x\n0: " + mark + b" datetime: x\n"
    assert last_done(log, 0, len(log)) == log.rfind(mark)


@pytest.mark.parametrize(
    "mark", [b"[exiting program after 60.0 minutes]", b"[exiting program after receiving SIGTERM.]"]
)
def test_a_program_that_a_signal_ended_is_not_done(mark: bytes) -> None:
    assert last_done(mark, 0, len(mark)) is None


# ---- memory ----------------------------------------------------------------------------------------------

MIB = 2**20
# The samples of 2021 and of core_v0.16 with --log-device-memory-used.
OLD = (
    b"[Rank 0] (after 2 iterations) memory (MB) | allocated: 1234.5 | max allocated: 56178.51953125 | reserved: 57000.0"
)
OLD += b" | max reserved: 58300.0"
NEW = b"[Rank 8] (after 2 iterations) memory (MB) | allocated: 28123.50 | max allocated: 51234.25 | reserved: 60012.00"
NEW += b" | max reserved: 60012.00 | total device memory used: 61999.12"


def reported(log: bytes) -> dict[str, int]:
    return reported_memory(log, 0, len(log))


def sizes(*in_bytes: int) -> dict[str, int]:
    return dict(zip(MEMORY_SIZES, in_bytes, strict=True))


@pytest.mark.parametrize("between", [b"\n", b"\r\n3: ", b""], ids=["lines", "labels", "run into one another"])
def test_the_largest_of_all_ranks_and_reports_counts(between: bytes) -> None:
    log = between.join((OLD, NEW, OLD.replace(b"56178.51953125", b"100.0")))
    assert reported(log) == sizes(round(56178.51953125 * MIB), round(60012.00 * MIB), round(61999.12 * MIB))


def test_memory_of_saving_a_checkpoint_does_not_count() -> None:
    assert reported(OLD.replace(b"after 2 iterations", b"after save_checkpoint for iteration 2")) == {}


@pytest.mark.parametrize("number", [b"nan", b"inf", b"-1.0", b"1e300", b"5.6.7", b"x", b""])
def test_an_invalid_size_is_ignored(number: bytes) -> None:
    assert reported(OLD.replace(b"56178.51953125", number)) == {"max_reserved_bytes": round(58300.0 * MIB)}


BYTES = b"""\
max_memory_allocated 58907409920
memory_reserved 60000000000
max_memory_reserved 61123592192
memory_info.used 66123592192
memory_info.total 85520809984
"""


def test_the_second_set_of_megatron_kwais_sizes_counts() -> None:
    second = BYTES.replace(b"58907409920", b"58907405824").replace(b"66123592192", b"7")
    log = b"0: " + BYTES.replace(b"\n", b"\r\n0: ") + b"\n[1,0]<stdout>:" + second.replace(b"\n", b"\n[1,0]<stdout>:")
    assert memory_of_all(log, 0, len(log)) == sizes(58907405824, 61123592192, 7)


def test_other_lines_about_memory_are_ignored() -> None:
    log = b"torch.cuda.max_memory_allocated is 5\nmax_memory_allocated 5.5\nmax_memory_reserved " + b"9" * 30
    assert memory_of_all(log, 0, len(log)) == {}


def test_the_theoretical_footprint_is_read() -> None:
    log = b"Theoretical memory footprints: weight and optimizer=7078.45 MB, activation=1234.00 MB, total=8312.45 MB\n\n"
    assert theoretical_memory(log, 0, len(log)) == round(8312.45 * MIB)
    log = b"Theoretical memory footprints not yet supported for hybrid Mamba-Transformer models."
    assert theoretical_memory(log, 0, len(log)) is None
