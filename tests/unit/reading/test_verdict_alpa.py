"""Verdicts and metrics of Alpa's benchmark, which prints a result row and no iterations."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ReproError
from orchestrator.job_spec import JobSpec
from orchestrator.ledger.measurements import Measurement
from orchestrator.ledger.tables import RUNNING
from orchestrator.megatron.logs.alpa import TABLE
from orchestrator.megatron.model import flops_per_iteration, tflops_per_gpu
from orchestrator.megatron.spec import training_spec
from orchestrator.reading.collect import measure
from tests.recorded_jobs import job_row
from tests.unit.catalog.entries import find_case
from tests.unit.megatron.programs.places import arguments_of

LOGS = Path(__file__).parent / "logs"
STEP_MS = 51_900.0
"""Time of a step from which the throughput in the golden logs was computed."""

SETTINGS = (
    *("micro_batch_size", "global_batch_size", "num_layers", "hidden_size", "num_attention_heads", "seq_length"),
    *("world_size", "data_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("max_position_embeddings", "loss_scale", "DDP_impl", "activations_checkpoint_method", "hidden_dropout"),
    *("attention_dropout", "scatter_gather_tensors_in_pipeline"),
)


def golden(name: str) -> str:
    return (LOGS / f"alpa-osdi22-{name}.log").read_text()


GOOD = golden("4-gpus")
(PRINTED,) = (line for line in GOOD.splitlines() if "exp_name: " in line)


class Job:
    """An ended job of a case, with its log and its table in a folder."""

    def __init__(self, folder: Path, gpus: int = 4) -> None:
        case = find_case("alpa-gpt", f"gpus={gpus}")
        configuration = {
            "model": asdict(case.model),
            "layout": asdict(case.layout),
            "training": asdict(case.training),
            "arguments": arguments_of("megatron-alpa", case),
            "gpu": "V100-SXM2-16GB",
            "peak_tflops": 125,
        }
        made = replace(job_row(folder), folder=str(folder), exit_code=0, verdict=None, iteration=None)
        spec: dict[str, Any] = {"program": case.program, "spec": JobSpec.from_json(configuration), "gpus": gpus}
        self.row = replace(made, iterations=case.training.iterations, **spec)
        self.folder = folder

    def measured(self, log: str = GOOD, table: str | None = None, **ending: Any) -> Measurement:
        """Return the measurement with this log. Without a `table`, the table has the rows of the log."""
        (self.folder / "log.txt").write_text(log)
        (self.folder / TABLE).write_text(table_of(log) if table is None else table)
        return measure(replace(self.row, **ending))


def table_of(log: str) -> str:
    """Return the table that the program writes while it prints this log."""
    rows = (line.partition("exp_name: ")[2] for line in log.splitlines() if "exp_name: " in line)
    fields = (["exp_name: " + row.split("  ")[0], *row.split("  ")[1:-1]] for row in rows)
    return "".join("\t".join(field.partition(": ")[2] for field in row) + "\n" for row in fields)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_complete_run_of_the_planned_case_is_verified(job: Job) -> None:
    measured = job.measured()
    assert (measured.verdict, measured.verdict_reason, measured.failure) == ("verified", None, None)
    assert (measured.iteration, measured.iterations) == (None, ())


def test_output_of_the_script_itself_is_verified_and_gives_the_time_of_a_step(tmp_path: Path) -> None:
    measured = Job(tmp_path, gpus=1).measured(golden("without-training"))
    metrics = {metric.name: metric.value for metric in measured.metrics}
    assert (measured.verdict, measured.verdict_reason) == ("verified", None)
    assert 30 < metrics["iteration_ms"] < 31, "its three timers have about 10 ms each"


def test_throughput_follows_from_equation_3_and_the_step_time_behind_the_printed_one(job: Job) -> None:
    metrics = {metric.name: metric for metric in job.measured().metrics}
    own = training_spec(job.row.spec)
    model, layout = own.model, own.layout
    assert model and layout
    assert metrics["iteration_ms"].value == pytest.approx(STEP_MS)
    planned = tflops_per_gpu(flops_per_iteration(model, layout.global_batch_size, True), STEP_MS, 4)
    assert metrics["tflops_per_gpu"].value == pytest.approx(planned)
    assert metrics["reported_tflops_per_gpu"].value == pytest.approx(planned)
    assert metrics["aggregate_pflops"].value == pytest.approx(planned * 4 / 1e3)
    assert metrics["percent_of_peak"].value == pytest.approx(100 * planned / 125)
    assert metrics["sequences_per_s"].value == pytest.approx(1024 / (STEP_MS / 1e3))
    assert metrics["parameters_billion"].value == pytest.approx(1.3156, abs=1e-4)
    assert {metrics[name].count for name in ("iteration_ms", "tflops_per_gpu", "reported_tflops_per_gpu")} == {1}


def test_reported_throughput_counts_recomputation_that_the_case_does_not_have(job: Job) -> None:
    spec = job.row.spec
    training = {**spec.own["training"], "recompute": "none"}
    job.row = replace(job.row, spec=replace(spec, own={**spec.own, "training": training}))
    log = GOOD.replace(
        "activations_checkpoint_method ................... uniform",
        "activations_checkpoint_method ................... None",
    )
    measured = job.measured(log)
    metrics = {metric.name: metric.value for metric in measured.metrics}
    assert measured.verdict == "verified"
    assert metrics["iteration_ms"] == pytest.approx(STEP_MS)
    assert 0.7 < metrics["tflops_per_gpu"] / metrics["reported_tflops_per_gpu"] < 0.8


def test_a_program_without_iterations_that_reached_its_time_limit_failed_even_with_its_result_row(job: Job) -> None:
    measured = job.measured(state="TIMEOUT", exit_code=124)
    assert (measured.verdict, measured.failure) == ("failed", "timeout")
    assert measured.verdict_reason == "TIMEOUT with exit code 124"


def test_running_job_has_no_verdict_and_its_table_is_not_read(job: Job) -> None:
    (job.folder / TABLE).mkdir()
    (job.folder / "log.txt").write_text(GOOD)
    measured = measure(replace(job.row, phase=RUNNING, state="RUNNING"))
    assert (measured.verdict, measured.iteration, measured.metrics) == (None, None, ())


FAILURES = {
    "out-of-memory": (
        *("FAILED", 1, "gpu-oom", 1),
        "out of memory on the GPU (rank 1, tried to allocate 512.00 MiB); FAILED with exit code 1; the log has no "
        "result row",
    ),
    "wrong-layout": (
        *("FAILED", 1, "configuration", 1),
        "FAILED with exit code 1 (failed assertion: AssertionError); ran with world size 1, not 4; ran with "
        "pipeline-parallel size 1, not 2; ran with data-parallel size 1, not 2; the log has no result row",
    ),
    "killed": (
        *("FAILED", 137, "killed", 3),
        "FAILED with exit code 137 (a rank was killed: srun: error: n2: task 3: Killed); the log has no result row",
    ),
    "nan": (
        *("COMPLETED", 0, "numbers", None),
        "the throughput in its result row is nan",
    ),
    "another-case": (
        *("COMPLETED", 0, "configuration", None),
        "ran with hidden size 1536, not 2048; ran with attention heads 16, not 32; ran with microbatch 16, not 4; "
        "ran with 420194304 parameters on tensor-parallel rank 0 of stage 0, not 711254016; its result row has "
        "parameters_billion 0.758577152, not 1.313409024",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failed_runs_have_the_class_rank_and_reasons(job: Job, name: str) -> None:
    state, code, failure, rank, reason = FAILURES[name]
    measured = job.measured(golden(name), state=state, exit_code=code)
    assert (measured.verdict, measured.failure, measured.deciding_rank) == ("failed", failure, rank)
    assert measured.verdict_reason == reason


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_setting_must_be_listed_with_the_planned_value(job: Job, setting: str) -> None:
    (line,) = (line for line in GOOD.splitlines() if line.startswith(f"0:   {setting} ."))
    log = "\n".join(part for part in GOOD.splitlines() if part != line)
    measured = job.measured(log)
    assert (measured.verdict, measured.failure) == ("failed", "incomplete")
    assert measured.verdict_reason == f"its list of arguments lacks {setting}"
    if setting in ("world_size", "data_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"):
        return  # the line of the world size decides
    other = job.measured(GOOD.replace(line, line.rpartition(" ")[0] + " 77"))
    assert (other.verdict, other.failure) == ("failed", "configuration")
    assert other.verdict_reason and "77" in other.verdict_reason


@pytest.mark.parametrize(
    ("before", "after", "failure", "reason"),
    [
        ("num_devices_per_host: 4", "num_devices_per_host: 8", "configuration", "num_devices_per_host 8, not 4"),
        ("num_hosts: 1", "num_hosts: 4", "configuration", "num_hosts 4, not 1"),
        ("1.313409024}", "2.64860672}", "configuration", "parameters_billion 2.64860672, not 1.313409024"),
        ("method: megatron", "method: parax.auto", "configuration", "method parax.auto, not megatron"),
        ("56.05602634094983", "-1", "incomplete", "its result row has no throughput"),
        ("56.05602634094983", "inf", "numbers", "the throughput in its result row is inf"),
        ("using world size: 4, data-parallel-size: 2", "using world size: 8, data-parallel-size: 4", "configuration",
         "ran with world size 8, not 4; ran with data-parallel size 4, not 2"),
        (PRINTED, "", "incomplete", "the log has no result row"),
        ("batch_size ............................... 1024", "batch_size ............................... 512",
         "configuration", "ran with global batch 512, not 1024"),
        ("rank (0, 1): 709160960", "rank (0, 1): 709161984", "configuration", "709161984 parameters"),
        ("params_dtype .................................... torch.float16",
         "params_dtype .................................... torch.bfloat16", "configuration", "ran in bf16, not fp16"),
    ],
)  # fmt: skip
def test_exit_code_0_alone_verifies_nothing(job: Job, before: str, after: str, failure: str, reason: str) -> None:
    assert before in GOOD
    measured = job.measured(GOOD.replace(before, after))
    assert (measured.verdict, measured.failure) == ("failed", failure)
    assert measured.verdict_reason and reason in measured.verdict_reason


def test_row_without_a_list_of_arguments_is_incomplete(job: Job) -> None:
    begin, end = GOOD.index("0: -----"), GOOD.index("0: setting number")
    measured = job.measured(GOOD[:begin] + GOOD[end:])
    assert (measured.failure, measured.verdict_reason) == ("incomplete", "the log has no list of arguments")


def test_row_without_a_world_size_is_not_verified(job: Job) -> None:
    log = "\n".join(line for line in GOOD.splitlines() if "world size" not in line and "world_size" not in line)
    reason = job.measured(log).verdict_reason
    assert reason == "the log has no world size; its list of arguments lacks world_size"


def test_failed_exit_code_after_the_row_is_not_verified(job: Job) -> None:
    measured = job.measured(state="FAILED", exit_code=1)
    assert (measured.verdict, measured.failure, measured.verdict_reason) == (
        "failed",
        "program",
        "FAILED with exit code 1",
    )


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The table of Alpa's benchmark lacks the row that is in the log, or ends with another row",
    promise="Class `incomplete`; not verified.",
)
@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("", f"{TABLE} in its folder has no row"),
        ("e2e\tp3.16\n", f"{TABLE} in its folder has no row"),
        (table_of(GOOD.replace("56.05", "57.05")), f"the last row of {TABLE} is not the one in the log"),
        (table_of(GOOD.replace("1634066706", "1634066707")), f"the last row of {TABLE} is not the one in the log"),
        (table_of(GOOD) + table_of(golden("another-case")), f"the last row of {TABLE} is not the one in the log"),
    ],
)
def test_table_must_end_with_the_row_in_the_log(job: Job, table: str, reason: str) -> None:
    measured = job.measured(table=table)
    assert (measured.verdict, measured.failure, measured.verdict_reason) == ("failed", "incomplete", reason)


def test_table_may_have_rows_of_an_earlier_start(job: Job) -> None:
    assert job.measured(table=table_of(golden("another-case")) + table_of(GOOD)).verdict == "verified"


def test_missing_table_is_not_a_result_and_one_that_is_no_file_is_not_read(job: Job) -> None:
    (job.folder / "log.txt").write_text(GOOD)
    assert measure(job.row).verdict_reason == f"{TABLE} in its folder has no row"
    (job.folder / TABLE).symlink_to(job.folder / "log.txt")
    with pytest.raises(ReproError, match=rf"{TABLE}: is a link and not a file"):
        measure(job.row)


def test_program_that_starts_again_has_not_printed_its_row_yet(job: Job) -> None:
    again = GOOD + GOOD[: GOOD.index("0: exp_name")]
    assert job.measured(again).verdict_reason == "the log has no result row"
    assert job.measured(again + PRINTED + "\n").verdict == "verified"


def test_row_in_the_log_of_another_program_is_no_result(job: Job) -> None:
    job.row = replace(job.row, program="megatron-2021")
    measured = job.measured()
    assert (measured.verdict, measured.metrics) == ("failed", ())
    assert measured.verdict_reason and "the log has no iteration" in measured.verdict_reason
