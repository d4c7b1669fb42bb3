"""Programs of the shipped experiments: the examples of their outputs, damaged ones, and a run of the smallest."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from orchestrator.programs.output import Scalar
from tests.shipped_programs import ShippedProgram, problem_texts, shipped_program

SETTINGS: Mapping[str, Mapping[str, Scalar]] = {
    "examples/loss": {"width": 16, "steps": 10},
    "machine/all-reduce": {"gpus": 2, "smallest": "1K", "largest": "16M", "sizes": 15},
    "machine/collectives": {
        "gpus": 4, "collective": "all_reduce", "smallest": "1K", "largest": "16G", "factor": 2, "sizes": 25,
    },
    "machine/fio": {"block": "4K", "file_size": "16M", "direct": 1, "runtime_s": 2},
    "machine/hpcc": {"n": 250, "ranks": 2},
    "torchtitan/llama-8b": {
        "gpus": 4, "technique": "fsdp", "batch": 1, "steps": 90, "log_lines": 10, "assets": "/opt/assets",
        "text": "/opt/text",
    },
}  # fmt: skip
"""Settings of the case that the example of each program is of."""


@pytest.fixture(params=SETTINGS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_axis_metric_and_condition_of_the_program_exists(name: str) -> None:
    assert list(shipped_program(name).fields.problems(SETTINGS[name])) == []


def test_the_example_is_verified(name: str) -> None:
    program = shipped_program(name)
    assert problem_texts(program.judged(program.example.read_bytes(), SETTINGS[name])) == ()


def test_an_example_that_lacks_its_last_number_is_not_verified(name: str) -> None:
    program = shipped_program(name)
    lines = program.example.read_bytes().splitlines(keepends=True)
    found = program.judged(b"".join(lines), SETTINGS[name]).output
    rows = [*found.rows.values(), *found.iterations.values(), found.values]
    last = len(lines) if program.fields.output.json_ else max(cell.line for row in rows for cell in row.values())
    for end in {0, 1, last // 2, last - 2, last - 1}:
        assert program.judged(b"".join(lines[:end]), SETTINGS[name]).problems, end


def test_a_program_names_its_failures(name: str) -> None:
    assert shipped_program(name).fields.failures or name == "examples/loss"


def example_of(name: str) -> tuple[ShippedProgram, str]:
    program = shipped_program(name)
    return program, program.example.read_text(encoding="utf-8")


def test_the_numbers_of_the_nccl_tests_example_are_those_of_its_lines() -> None:
    program, text = example_of("machine/all-reduce")
    output = program.judged(text.encode(), SETTINGS["machine/all-reduce"]).output
    row = output.rows[2**24,]
    found = [row[name].value for name in ("count", "time_us", "busbw", "busbw_in")]
    assert found == [2097152, 34753.78, 0.2414, 0.2905]
    assert text.splitlines()[row["busbw"].line - 1].split()[7] == "0.2414"
    assert (len(output.rows), output.values["average_busbw"].value) == (15, 0.143964)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_bus_bandwidth_of_the_sweep_follows_from_size_and_time(collective: str) -> None:
    """By the formulas of nccl-tests, doc/PERFORMANCE.md, for four ranks."""
    program = shipped_program("machine/collectives")
    text = (program.folder / f"outputs/{collective}.txt").read_bytes()
    result = program.judged(text, {**SETTINGS["machine/collectives"], "collective": collective})
    assert result.problems == ()
    factor = {"all_reduce": 2 * (4 - 1) / 4}.get(collective, (4 - 1) / 4)
    for (size,), row in result.output.rows.items():
        places = ("_in",) if collective == "all_reduce" else ("", "_in")
        for place in places:
            seconds = float(row["time_in" if place else "time_us"].value) / 1e6
            assert float(row[f"busbw{place}"].value) == pytest.approx(factor * float(size) / seconds / 1e9, rel=1e-3)
        ranks = 1 if collective == "all_reduce" else 4
        assert row["count"].value == float(size) / 4 / ranks


def test_a_wrong_result_a_lost_rank_and_a_missing_size_of_the_sweep_are_not_verified() -> None:
    program, text = example_of("machine/collectives")
    settings = SETTINGS["machine/collectives"]
    wrong = text.replace(": 0 OK", ": 3 FAILED")
    assert problem_texts(program.judged(wrong.encode(), settings)) == ("out_of_bounds == 0: out_of_bounds is 3",)
    lost = problem_texts(program.judged(text.encode(), {**settings, "gpus": 8}))
    assert lost == ("ranks == gpus: ranks is 4, gpus is 8",)
    lines = [line for line in text.splitlines() if not line.startswith("        65536")]
    assert problem_texts(program.judged("\n".join(lines).encode(), settings)) == (
        "rows == sizes: rows is 24, sizes is 25",
    )


def test_the_numbers_of_hpcc_are_those_of_its_summary() -> None:
    program, text = example_of("machine/hpcc")
    values = program.judged(text.encode(), SETTINGS["machine/hpcc"]).output.values
    found = {name: values[name].value for name in ("hpl", "triad", "dgemm", "ptrans", "started", "hpl_n")}
    summary = dict(re.findall(r"^(\w+)=(\S+)$", text, re.MULTILINE))
    names = ("HPL_Tflops", "StarSTREAM_Triad", "StarDGEMM_Gflops", "PTRANS_GBs", "CommWorldProcs", "HPL_N")
    assert list(found.values()) == [float(summary[name]) for name in names]
    assert (found["hpl"], found["triad"], found["hpl_n"]) == (0.000202288, 28.485, 250)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("0 tests completed and failed residual checks,", "1 tests completed and failed residual checks,", "hpl_f"),
        ("0 tests completed and failed residual checks.", "1 tests completed and failed residual checks.", "ptrans_f"),
        ("Success=1", "Success=0", "success == 1"),
        ("HPL_N=250", "HPL_N=500", "hpl_n == n"),
        ("CommWorldProcs=2", "CommWorldProcs=1", "started == ranks"),
        ("HPL_Tflops=0.000202288", "HPL_Tflops=nan", "hpl is nan"),
    ],
)
def test_a_damaged_output_of_hpcc_is_not_verified(old: str, new: str, problem: str) -> None:
    program, text = example_of("machine/hpcc")
    assert text.count(old) == 1
    (found,) = problem_texts(program.judged(text.replace(old, new).encode(), SETTINGS["machine/hpcc"]))
    assert found.startswith(problem)


def test_the_numbers_of_fio_are_those_of_its_document() -> None:
    program, text = example_of("machine/fio")
    values = program.judged(text.encode(), SETTINGS["machine/fio"]).output.values
    found = {name: value.value for name, value in values.items()}
    assert found == {"read_bw": 71259346, "iops": 17397.301349, "latency_ns": 56225.901126, "reads": 34812, "errors": 0}
    failed = text.replace('"error" : 0', '"error" : 5')
    assert problem_texts(program.judged(failed.encode(), SETTINGS["machine/fio"])) == ("errors == 0: errors is 5",)


def test_the_log_lines_of_torchtitan_are_read() -> None:
    program, text = example_of("torchtitan/llama-8b")
    output = program.judged(text.encode(), SETTINGS["torchtitan/llama-8b"]).output
    assert list(output.iterations) == [1, *range(10, 100, 10)]
    assert {name: cell.value for name, cell in output.iterations[90].items()} == {
        "loss": 3.0175, "memory": 62.49, "tps": 7995,
    }  # fmt: skip
    coloured = text.replace("step: ", "\x1b[31mstep: ").replace("  loss", "  \x1b[32mloss")
    assert program.judged(coloured.encode(), SETTINGS["torchtitan/llama-8b"]).output.iterations.keys() == {
        *output.iterations
    }
    validated = text + text.splitlines()[-4].replace("step: 90", "validate step: 95") + "\n"
    assert problem_texts(program.judged(validated.encode(), SETTINGS["torchtitan/llama-8b"])) == ()


def test_the_input_files_of_torchtitan_differ_in_the_technique_only() -> None:
    program = shipped_program("torchtitan/llama-8b")
    settings = {**SETTINGS["torchtitan/llama-8b"], "technique": "x"}
    lines = {
        technique: program.filled(f"{technique}.toml.in", settings).splitlines()
        for technique in program.content["matrix"]["technique"]
    }
    assert "local_batch_size = 1" in lines["fsdp"] and not any("{" in line for line in lines["fsdp"])
    changed = {"enable = false": "enable = true"}
    assert [changed.get(line, line) for line in lines["fsdp"]] == lines["compile"]
    assert [line for line in lines["float8"] if line not in lines["compile"]] == [
        'converters = ["quantize.linear.float8"]',
        "[quantize.linear.float8]",
        "enable_fsdp_float8_all_gather = true",
        "precompute_float8_dynamic_scale_for_fsdp = true",
        'filter_fqns = ["output"]',
    ]
    assert not set(lines["compile"]) - set(lines["float8"])


def test_the_published_numbers_of_nccl_tests_are_in_the_claims_range() -> None:
    content = shipped_program("machine/all-reduce").content
    points = {(point["metric"], point["where"]["size"]): point["value"] for point in content["published"]}
    assert points["busbw", 2**34] == 479.9
    assert 460 / points["busbw", 2**34] == pytest.approx(1 - content["claims"][0]["tolerance"], abs=1e-4)
    assert points["busbw", 2**34] / points["busbw", 2**20] > content["claims"][1]["at_least"]
    assert points["busbw", 2**34] / points["busbw", 2**30] > content["claims"][2]["at_least"]


def test_the_published_numbers_of_torchtitan_have_the_ratios_of_the_claims() -> None:
    content = shipped_program("torchtitan/llama-8b").content
    rates = {p["where"]["technique"]: p["value"] for p in content["published"] if p["metric"] == "tps"}
    for claim in content["claims"][:2]:
        ratio = rates[claim["of"]["technique"]] / rates[claim["over"]["technique"]]
        assert ratio == pytest.approx(claim["at_least"], abs=5e-4)


@pytest.mark.parametrize("point", shipped_program("examples/loss").content["published"], ids=str)
def test_the_toy_training_prints_its_published_losses(point: Mapping[str, Mapping[str, int]]) -> None:
    program = shipped_program("examples/loss")
    settings: dict[str, Scalar] = {**point["where"], **program.content["fixed"]}
    words = [sys.executable, *(program.fields.filled(word, settings) for word in program.fields.command[1:])]
    done = subprocess.run(words, cwd=program.folder, capture_output=True, check=True)
    result = program.judged(done.stdout, settings)
    assert result.problems == ()
    assert result.output.iterations[10]["loss"].value == pytest.approx(point["value"], rel=1e-5)
