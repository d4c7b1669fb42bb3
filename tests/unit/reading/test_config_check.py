"""Tests of the comparison of plan and log: each size from each part of the log that has it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.library import find_experiment
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.rows import JobRow
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.logs.fact_lines import WorldLine
from orchestrator.megatron.logs.iteration_lines import IterationLines
from orchestrator.megatron.logs.parse import LogFacts, LogReport, read_log
from orchestrator.megatron.logs.verdict import Expected, expected_of, mismatches, world_size_of
from orchestrator.megatron.programs import megatron_named
from orchestrator.megatron.rules import RuleContext
from orchestrator.paths import Folders
from orchestrator.pretrain import log_lines
from orchestrator.programs.command import read_flags
from orchestrator.programs.record import programs
from tests.cases import expand, megatron_names
from tests.recorded_jobs import job_row
from tests.unit.catalog.entries import CHECKOUT, find_case
from tests.unit.megatron.programs.places import arguments_of

PLANNED = Expected(
    iterations=20,
    sizes={
        "gpus": 64,
        "tensor_parallel": 8,
        "pipeline_parallel": 2,
        "context_parallel": 2,
        "data_parallel": 2,
        "virtual_stages": 1,
        "layers": 24,
        "hidden": 2048,
        "heads": 16,
        "seq": 4096,
        "micro_batch_size": 2,
        "global_batch_size": 64,
    },
    padded_vocabulary=51200,
    dtype="bf16",
    parameters=(100, 90),
    commit="6985e58938d40ad91ac07b0fddcfad8132e1447e",
)
# As the dump of arguments has them.
SETTINGS = {
    "world_size": "64",
    "tensor_model_parallel_size": "8",
    "pipeline_model_parallel_size": "2",
    "context_parallel_size": "2",
    "data_parallel_size": "2",
    "virtual_pipeline_model_parallel_size": "None",
    "num_layers": "24",
    "hidden_size": "2048",
    "num_attention_heads": "16",
    "seq_length": "4096",
    "micro_batch_size": "2",
    "global_batch_size": "64",
    "params_dtype": "torch.bfloat16",
    "fp16": "False",
    "bf16": "True",
    "padded_vocab_size": "None",
}
FACTS = LogFacts(
    world=WorldLine(64, 2, 8, 2, 2),
    settings=SETTINGS,
    padded_vocab=51200,
    parameters={(0, 0): 100, (7, 0): 100, (0, 1): 90},
    code_commit="6985e58",
)


def reasons(facts: LogFacts = FACTS, expected: Expected = PLANNED, commit: str | None = None) -> list[str]:
    return [mismatch.reason for mismatch in mismatches(LogReport(IterationLines(), facts), expected, commit)]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A job for GPUs finds none and trains on the CPU",
    promise="Class `configuration`; not verified.",
    count=0,
)
@pytest.mark.parametrize(
    ("device", "ran", "differs"),
    [("gpu", "cpu", True), ("gpu", "NVIDIA H200", False), ("cpu", "cpu", False), (None, "cpu", False)],
)
def test_gpu_job_that_ran_on_the_cpu_is_a_mismatch(device: str | None, ran: str, differs: bool) -> None:
    """torch only warns about a failing driver and continues without a GPU."""
    facts = replace(FACTS, software=f"torch 2.11.0+cu130 | megatron-core 0.16.1 | backend gloo | device {ran}")
    result = reasons(facts, replace(PLANNED, device=device))
    assert result == (["ran on the CPU, not on GPUs"] if differs else [])


def test_job_that_ran_as_planned_has_no_mismatch() -> None:
    assert reasons() == []
    assert reasons(commit=PLANNED.commit) == []


def test_value_that_is_not_in_the_log_is_no_mismatch() -> None:
    assert reasons(LogFacts()) == []
    assert reasons(LogFacts(settings=dict.fromkeys(SETTINGS, "None"))) == []
    unplanned = Expected(20, {"gpus": 64, "tensor_parallel": 8, "pipeline_parallel": 2})
    assert reasons(expected=unplanned) == []


@pytest.mark.parametrize(
    ("setting", "ran", "reason"),
    [
        ("world_size", "8", "ran with world size 8, not 64"),
        ("tensor_model_parallel_size", "1", "ran with tensor-parallel size 1, not 8"),
        ("pipeline_model_parallel_size", "1", "ran with pipeline-parallel size 1, not 2"),
        ("context_parallel_size", "1", "ran with context-parallel size 1, not 2"),
        ("data_parallel_size", "4", "ran with data-parallel size 4, not 2"),
        ("virtual_pipeline_model_parallel_size", "3", "ran with virtual stages 3, not 1"),
        ("num_layers", "12", "ran with layers 12, not 24"),
        ("hidden_size", "1024", "ran with hidden size 1024, not 2048"),
        ("num_attention_heads", "32", "ran with attention heads 32, not 16"),
        ("seq_length", "2048", "ran with sequence length 2048, not 4096"),
        ("micro_batch_size", "1", "ran with microbatch 1, not 2"),
        ("global_batch_size", "32", "ran with global batch 32, not 64"),
        ("params_dtype", "torch.float16", "ran in fp16, not bf16"),
        ("params_dtype", "torch.float32", "ran in fp32, not bf16"),
    ],
)
def test_each_size_in_the_argument_dump_is_compared_with_the_plan(setting: str, ran: str, reason: str) -> None:
    assert reasons(replace(FACTS, world=None, settings=SETTINGS | {setting: ran})) == [reason]


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (WorldLine(8, 2, 8, 2, 2), "ran with world size 8, not 64"),
        (WorldLine(64, 4, 8, 2, 2), "ran with data-parallel size 4, not 2"),
        (WorldLine(64, 2, 1, 2, 2), "ran with tensor-parallel size 1, not 8"),
        (WorldLine(64, 2, 8, 1, 2), "ran with pipeline-parallel size 1, not 2"),
        (WorldLine(64, 2, 8, 2, 1), "ran with context-parallel size 1, not 2"),
    ],
)
def test_each_size_in_the_world_line_is_compared_before_the_dump(world: WorldLine, reason: str) -> None:
    (mismatch,) = mismatches(LogReport(IterationLines(), replace(FACTS, world=world)), PLANNED)
    assert (mismatch.reason, mismatch.is_of_world) == (reason, True)


def test_every_mismatch_is_reported_once() -> None:
    settings = SETTINGS | {"tensor_model_parallel_size": "1", "num_layers": "12", "params_dtype": "torch.half"}
    facts = replace(FACTS, world=WorldLine(32, 8, 1, 2, 2), settings=settings, padded_vocab=50304)
    assert reasons(facts) == [
        "ran with world size 32, not 64",
        "ran with tensor-parallel size 1, not 8",
        "ran with data-parallel size 8, not 2",
        "ran with layers 12, not 24",
        "ran in fp16, not bf16",
        "ran with padded vocabulary 50304, not 51200",
    ]


def test_dtype_of_old_programs_follows_from_their_switches() -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "params_dtype"}
    assert reasons(replace(FACTS, settings=settings)) == []
    assert reasons(replace(FACTS, settings=settings | {"bf16": "False", "fp16": "True"})) == ["ran in fp16, not bf16"]


def test_different_parameter_counts_are_reported_for_planned_stages() -> None:
    assert reasons(replace(FACTS, parameters={(0, 0): 100, (3, 1): 91, (4, 1): 91, (0, 7): 5})) == [
        "ran with 91 parameters on tensor-parallel rank 3 of stage 1, not 90"
    ]
    assert reasons(expected=replace(PLANNED, parameters=(None, None))) == []


def test_other_commit_is_a_mismatch_and_an_abbreviation_is_not() -> None:
    other = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
    assert reasons(replace(FACTS, code_commit=None), commit=other) == ["ran commit d98e8a64ddf3, not 6985e58938d4"]
    assert reasons(replace(FACTS, code_commit=other[:7])) == ["ran commit d98e8a6, not 6985e58938d4"]
    assert reasons(replace(FACTS, code_commit=None), replace(PLANNED, commit=None), commit=other) == []
    assert reasons(replace(FACTS, code_commit=None), commit="unknown") == []


def test_other_version_of_pretrain_on_any_node_is_a_mismatch_with_both_versions_and_the_folder() -> None:
    version, folder = log_lines.program().removeprefix(" > program: ").split(" in ")
    planned, recorded = replace(PLANNED, program=version), "pretrain-0123456789ab"
    log = f"0: {log_lines.program()}\n4:  > program: {recorded} in /other\n".encode()
    facts = read_log(log).facts
    assert facts.programs == {version: folder, recorded: "/other"}
    assert reasons(facts, planned) == [f"ran {recorded} in /other, not {version}"]
    assert reasons(facts, replace(planned, program=recorded)) == [f"ran {version} in {folder}, not {recorded}"]
    assert reasons(facts) == reasons(LogFacts(), planned) == []


def test_world_size_comes_from_its_line_or_the_dump() -> None:
    assert world_size_of(LogReport(IterationLines(), FACTS)) == 64
    assert world_size_of(LogReport(IterationLines(), replace(FACTS, world=None))) == 64
    assert world_size_of(LogReport(IterationLines(), LogFacts())) is None


# ---- what the ledger has of a plan -----------------------------------------------------------------------------------


def row_of(folder: Path, case: TrainingCase, arguments: list[str], code: str = "c0ffee1") -> JobRow:
    return replace(planned_as(job_row(folder), case, arguments), code=code)


def planned_as(row: JobRow, case: TrainingCase, arguments: list[str]) -> JobRow:
    """Return the configuration as the ledger stores it."""
    configuration = {
        "model": asdict(case.model),
        "layout": asdict(case.layout),
        "training": asdict(case.training),
        "arguments": arguments,
    }
    planned: dict[str, Any] = {
        "program": case.program,
        "spec": JobSpec.from_json(configuration),
        "gpus": case.layout.gpus,
    }
    return replace(row, iterations=case.training.iterations, **planned)


def case_of(experiment: str, scale: str = "paper", **point: Any) -> TrainingCase:
    cases = expand(find_experiment(Folders(CHECKOUT, CHECKOUT), experiment), scale)
    return next(case for case in cases if all(case.value(axis) == value for axis, value in point.items()))


def test_planned_configuration_is_read_from_the_ledger(tmp_path: Path) -> None:
    case = case_of("figure-13", pp=8, gbs=32)
    expected = expected_of(row_of(tmp_path, case, arguments_of("megatron-2021", case), PLANNED.commit or ""))
    model, layout, training = case.model, case.layout, case.training
    assert expected == Expected(
        iterations=training.iterations,
        sizes={
            "gpus": layout.gpus,
            "tensor_parallel": layout.tensor_parallel,
            "pipeline_parallel": 8,
            "context_parallel": 1,
            "data_parallel": layout.data_parallel,
            "virtual_stages": layout.virtual_stages,
            "layers": model.layers,
            "hidden": model.hidden,
            "heads": model.heads,
            "seq": model.seq,
            "micro_batch_size": layout.micro_batch_size,
            "global_batch_size": 32,
        },
        padded_vocabulary=51200,
        dtype="fp16",
        commit=PLANNED.commit,
    )
    assert layout.tensor_parallel == 8, "with which GPT-2's 50,257 entries are padded to the paper's 51,200"


def test_incomplete_row_of_an_older_ledger_is_compared_as_far_as_possible(tmp_path: Path) -> None:
    expected = expected_of(job_row(tmp_path))
    sizes = {"gpus": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "layers": 4, "data_parallel": 1}
    assert expected.sizes.items() >= sizes.items()
    assert (expected.padded_vocabulary, expected.commit) == (None, None)
    assert expected.parameters == ()


def test_branch_or_digest_is_not_compared_as_a_commit(tmp_path: Path) -> None:
    row = job_row(tmp_path)
    for code in ("core_r0.14.0", "pretrain-0123456789ab", "code"):
        assert expected_of(replace(row, code=code)).commit is None
    assert expected_of(replace(row, code="pretrain-0123456789ab")).program == "pretrain-0123456789ab"
    assert expected_of(row).program is None


def shipped_cases() -> list[TrainingCase]:
    """Return a case for each shipped model, layout and program at every scale."""
    folders = Folders(CHECKOUT, CHECKOUT)
    cases: dict[object, TrainingCase] = {}
    for name in megatron_names(folders):
        entry = find_experiment(folders, name)
        for scale in ("paper", *entry.experiment.scales):
            for case in expand(entry, scale):
                key = case.program, case.model, case.layout.tensor_parallel, case.arguments
                cases.setdefault(key, case)
    return list(cases.values())


def test_expected_vocabulary_is_that_of_the_program_for_shipped_cases(tmp_path: Path) -> None:
    row, seen = job_row(tmp_path), set()
    for case in shipped_cases():
        if case.program not in programs():  # reference values only
            continue
        program = megatron_named(case.program)  # None for other programs of a paper, such as zero-3
        if program is None or program.unsupported_settings(case):
            continue
        tokens = program.tokens(case.model, case.layout.tensor_parallel)
        setting = RuleContext(case.model, case.layout, case.training, program.dialect, case.arguments, tokens=tokens)
        planned = expected_of(planned_as(row, case, arguments_of(case.program, case))).padded_vocabulary
        assert planned == setting.vocabulary, (case.experiment, case.name)
        seen.add(case.program)
    assert seen == set(programs())


def test_site_data_are_padded_to_the_planned_vocabulary(tmp_path: Path) -> None:
    case = replace(case_of("figure-13", pp=8, gbs=32), program="megatron-2026")
    for data in ({}, {"data_path": "/d", "vocab_file": "/v", "merge_file": "/m"}):
        row = row_of(tmp_path, case, arguments_of("megatron-2026", case, **data))
        assert expected_of(row).padded_vocabulary == 51200
    arguments = [*arguments_of("megatron-2026", case), "--padded-vocab-size", "60000"]
    assert expected_of(row_of(tmp_path, case, arguments)).padded_vocabulary == 60000
    assert expected_of(row_of(tmp_path, case, ["--tokenizer-type", "Llama2Tokenizer"])).padded_vocabulary is None


def test_null_tokenizer_has_one_more_entry(tmp_path: Path) -> None:
    case = case_of("figure-13", pp=8, gbs=32)
    arguments = ["--tokenizer-type", "NullTokenizer", "--vocab-size"]
    for size, padded in (("51199", 51200), ("51200", 52224)):
        assert expected_of(row_of(tmp_path, case, [*arguments, size])).padded_vocabulary == padded


def test_only_megatron_kwai_counts_context_parallelism_as_data_parallelism(tmp_path: Path) -> None:
    case = case_of("figure-13", pp=8, gbs=32)
    case = replace(case, layout=replace(case.layout, context_parallel=2))
    data = case.layout.data_parallel
    for program, counted in (("megatron-kwai", 2 * data), ("megatron-jan-2024", data)):
        assert expected_of(row_of(tmp_path, replace(case, program=program), [])).sizes["data_parallel"] == counted


# What programs print, in the format strings of their commits; the model is ATC'24's 65B.
WORLDS = {
    "megatron-kwai": (
        b"using world size: 16, data-parallel-size: 2, tensor-model-parallel size: 4, "
        b"pipeline-model-parallel size: 2, context-parallel size: 2"
    ),
    "megatron-jan-2024": (
        b"using world size: 16, data-parallel size: 1, context-parallel size: 2 tensor-model-parallel size: 4, "
        b"pipeline-model-parallel size: 2 "
    ),
}
DUMP = b"""
------------------------ arguments ------------------------
  context_parallel_size ........................... 2
  global_batch_size ............................... 256
  num_layers ...................................... 80
  params_dtype .................................... torch.bfloat16
  seq_length ...................................... 8192
  tensor_model_parallel_size ...................... 4
  virtual_pipeline_model_parallel_size ............ 5
  world_size ...................................... 16
-------------------- end of arguments ---------------------
 > padded vocab (size: 32005) with 251 dummy tokens (new size: 32256)
"""


@pytest.mark.parametrize("program", ["megatron-kwai", "megatron-jan-2024"])
def test_logs_of_old_programs_match_their_plan(tmp_path: Path, program: str) -> None:
    shipped = next(case for case in shipped_cases() if case.program == "megatron-kwai" and case.model.layers == 80)
    sizes = {"tensor_parallel": 4, "pipeline_parallel": 2, "context_parallel": 2, "virtual_stages": 5}
    layout = replace(shipped.layout, gpus=16, sequence_parallel=True, global_batch_size=256, **sizes)
    training = replace(shipped.training, recompute="full", offload=0.0)
    case = replace(shipped, program=program, layout=layout, training=training)
    expected = expected_of(row_of(tmp_path, case, arguments_of(program, case)))
    log = WORLDS[program] + DUMP
    assert [mismatch.reason for mismatch in mismatches(read_log(log), expected)] == []
    broken = read_log(log.replace(b"......... 5\n", b"......... None\n").replace(b"32256", b"32128"))
    assert [mismatch.reason for mismatch in mismatches(broken, expected)] == [
        "ran with virtual stages 1, not 5",
        "ran with padded vocabulary 32128, not 32256",
    ]


def test_parameters_of_a_gpt_with_rotary_positions_are_exact_and_those_of_other_positions_unknown(
    tmp_path: Path,
) -> None:
    case = find_case("llm-800m", "gbs=16")
    arguments = arguments_of("pretrain", case)
    assert expected_of(row_of(tmp_path, case, arguments)).parameters == (908_759_040,)
    typed = [word for word in arguments if word not in ("--position-embedding-type", "rope")]
    assert expected_of(row_of(tmp_path, case, typed)).parameters == ()


def test_parameters_of_pretrain_are_exact(tmp_path: Path) -> None:
    case = next(case for case in shipped_cases() if case.program == "pretrain" and case.experiment.startswith("atc24"))
    expected = expected_of(row_of(tmp_path, case, arguments_of("pretrain", case)))
    assert len(expected.parameters) == case.layout.pipeline_parallel and None not in expected.parameters
    typed = [*arguments_of("pretrain", case)]
    typed.remove("--swiglu")
    assert expected_of(row_of(tmp_path, case, typed)).parameters == ()
    assert "--swiglu" not in read_flags(typed)
