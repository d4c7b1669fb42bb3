"""The verdict: every way in which a job that looks well is not, and why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.jobs import Observation, job_rows, record_observations
from orchestrator.ledger.measurements import metrics_of
from orchestrator.ledger.tables import ENDED, RUNNING
from orchestrator.megatron.log_lines import IterationLine, WorldLine
from orchestrator.results import collect as collecting
from orchestrator.results.collect import collect, measure
from orchestrator.results.outcome import Ending, Expected, judge, ran_out_of_memory
from orchestrator.results.read import LogReport
from tests.unit.ledger.making import new_ledger, record

WELL = Ending(ENDED, "COMPLETED", 0, None)
PLANNED = Expected(gpus=4, tensor_parallel=2, pipeline_parallel=2, iterations=3)
WORLD = WorldLine(4, 1, 2, 2)
LINES = tuple(IterationLine(n, 3, 100.0, 6.9, 1.0, 0, 0) for n in (1, 2, 3))
GOOD = LogReport(LINES, WORLD, True, None)


def reason(report: LogReport = GOOD, ending: Ending = WELL) -> str:
    verdict, why = judge(report, PLANNED, ending)
    assert verdict == "failed" and why
    return why


def test_a_job_that_ended_well_as_planned_with_every_number_is_verified() -> None:
    assert judge(GOOD, PLANNED, WELL) == ("verified", None)
    assert judge(GOOD, PLANNED, replace(WELL, exit_code=None)) == ("verified", None)


def test_a_job_that_cannot_prove_that_it_ran_inside_its_image_is_not_verified() -> None:
    outside = "0 of 2 nodes ran it inside torch:1"
    assert reason(ending=replace(WELL, outside_image=outside)) == outside
    failed = reason(ending=Ending(ENDED, "FAILED", 97, None, outside))
    assert failed == "FAILED with exit code 97", "what it failed of stands in its log"


@pytest.mark.parametrize("phase", ["submitting", "waiting", RUNNING])
def test_a_job_under_way_has_no_verdict(phase: str) -> None:
    assert judge(GOOD, PLANNED, replace(WELL, phase=phase)) == (None, None)
    assert judge(replace(GOOD, world=None), PLANNED, replace(WELL, phase=phase)) == (None, None)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Ending(ENDED, "FAILED", 7, None), "FAILED with exit code 7"),
        (Ending(ENDED, "NODE_FAIL", None, "its process is gone"), "NODE_FAIL (its process is gone)"),
        (Ending(ENDED, "CANCELLED", None, None), "CANCELLED"),
        (Ending(ENDED, "COMPLETED", 3, None), "COMPLETED with exit code 3"),
        (Ending(ENDED, "A_NEW_WORD", 0, None), "A_NEW_WORD"),
    ],
)
def test_a_job_that_did_not_end_well_is_failed_whatever_its_log_says(ending: Ending, expected: str) -> None:
    assert reason(ending=ending) == expected


def test_a_job_that_reached_its_limit_has_a_result_only_if_its_training_was_done() -> None:
    limit = Ending(ENDED, "TIMEOUT", 124, "the time limit")
    assert judge(GOOD, PLANNED, limit) == ("verified", "reached its time limit when its training was done")
    assert reason(replace(GOOD, says_done=False), limit) == "TIMEOUT with exit code 124 (the time limit)"
    assert "ends at iteration 2 of 3" in reason(replace(GOOD, iterations=LINES[:2]), limit)
    assert "world size" in reason(replace(GOOD, world=replace(WORLD, world_size=1)), limit)


def test_the_logs_cause_tells_more_than_the_schedulers_word() -> None:
    ending = Ending(ENDED, "FAILED", 1, "NonZeroExitCode")
    assert reason(replace(GOOD, cause="out of GPU memory: x"), ending) == (
        "FAILED with exit code 1 (out of GPU memory: x)"
    )


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (replace(WORLD, world_size=1), "ran with world size 1, not 4"),
        (replace(WORLD, tensor_parallel=1), "ran with tensor-parallel size 1, not 2"),
        (replace(WORLD, pipeline_parallel=4), "ran with pipeline-parallel size 4, not 2"),
        (None, "its log does not say what world size it ran with"),
    ],
)
def test_a_job_that_ran_otherwise_than_planned_is_failed(world: WorldLine | None, expected: str) -> None:
    assert reason(replace(GOOD, world=world)) == expected


def test_success_without_a_single_iteration_is_no_success() -> None:
    assert reason(replace(GOOD, iterations=())) == "no iteration was read from its log"
    assert reason(LogReport((), None, True, None)) == "no iteration was read from its log"


def test_a_log_that_ends_early_is_no_success() -> None:
    assert reason(replace(GOOD, iterations=LINES[:2])) == "its log ends at iteration 2 of 3"


@pytest.mark.parametrize("bad", [{"loss": math.nan}, {"grad_norm": math.inf}, {"nan": 1}])
def test_a_number_that_is_none_is_no_success(bad: dict[str, float]) -> None:
    broken = replace(LINES[1], **bad)  # type: ignore[arg-type]
    assert reason(replace(GOOD, iterations=(LINES[0], broken, LINES[2]))) == "NaN or infinite numbers at iteration 2"


def test_every_reason_is_given_the_first_cause_first() -> None:
    report = LogReport(LINES[:1], replace(WORLD, world_size=1), False, "error: it broke")
    assert reason(report, Ending(ENDED, "FAILED", 1, None)) == (
        "FAILED with exit code 1 (error: it broke); ran with world size 1, not 4; its log ends at iteration 1 of 3"
    )


NO_MEMORY = "out of memory on the GPU (rank 3)"


@pytest.mark.parametrize(
    ("report", "ending", "expected"),
    [
        (LogReport((), WORLD, False, "error: x"), Ending(ENDED, "FAILED", 1, None), "FAILED with exit code 1"),
        (LogReport((), WORLD, False, "error: x"), Ending(ENDED, "TIMEOUT", None, "the limit"), "TIMEOUT"),
        (LogReport((), WORLD, False, None), WELL, None),
    ],
)
def test_memory_that_ran_out_is_the_first_reason_whatever_came_of_it(
    report: LogReport, ending: Ending, expected: str | None
) -> None:
    said = "; ".join(filter(None, [NO_MEMORY, expected, "no iteration was read from its log"]))
    assert reason(replace(report, out_of_memory=NO_MEMORY), ending) == said


def test_a_job_that_ran_to_its_end_is_verified_though_memory_was_short_at_times() -> None:
    assert judge(replace(GOOD, out_of_memory=NO_MEMORY), PLANNED, WELL) == ("verified", None)


def test_only_a_failed_job_whose_first_reason_is_memory_ran_out_of_it(ledger: Ledger) -> None:
    row = replace(job_rows(ledger)[0], verdict="failed", verdict_reason=f"{NO_MEMORY}; FAILED with exit code 1")
    assert ran_out_of_memory(row)
    for other in ("FAILED (out of host memory: oom_kill event)", f"TIMEOUT; {NO_MEMORY}", None):
        assert not ran_out_of_memory(replace(row, verdict_reason=other))
    assert not ran_out_of_memory(replace(row, verdict="verified"))


def test_an_attempt_without_memory_is_known_by_its_verdict(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(log(1) + "[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    record_observations(ledger, {1: Observation("FAILED", ENDED, exit_code=1)}, [])
    collect(ledger)
    (row,) = job_rows(ledger)
    assert ran_out_of_memory(row)
    assert row.verdict_reason == (
        "out of memory on the GPU (rank 1); FAILED with exit code 1; its log ends at iteration 1 of 8"
    )


WORLD_LINE = (
    "using world size: 4, data-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
)


def log(upto: int) -> str:
    tail = "lm loss: 6.9E+00 | grad norm: 1.0 | number of nan iterations:   0 |\n"
    return WORLD_LINE + "".join(
        f" iteration {n:8d}/       8 | elapsed time per iteration (ms): {100 + n}.0 | {tail}"
        for n in range(1, upto + 1)
    )


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """One job under way, whose log is in `tmp_path`."""
    ledger = new_ledger(tmp_path)
    record(ledger, "a")
    monkeypatch.setattr(collecting, "log_bytes", lambda _folder: (tmp_path / "log.txt").read_bytes())
    return ledger


def test_the_log_of_a_running_job_is_read_as_far_as_it_goes_and_judged_at_its_end(
    ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text(log(5))
    record_observations(ledger, {1: Observation("RUNNING", RUNNING)}, [])
    collect(ledger)
    (row,) = job_rows(ledger)
    assert (row.iteration, row.verdict) == (5, None)
    assert metrics_of(ledger, [1])[1]["iteration_ms"].value == 104
    (tmp_path / "log.txt").write_text(log(8))
    record_observations(ledger, {1: Observation("COMPLETED", ENDED, exit_code=0)}, [])
    collect(ledger)
    collect(ledger)
    (row,) = job_rows(ledger)
    assert (row.iteration, row.verdict, row.verdict_reason) == (8, "verified", None)
    assert metrics_of(ledger, [1])[1]["iteration_ms"].count == 6


def test_a_job_all_of_whose_iterations_are_warm_up_is_no_success(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(log(8))
    (row,) = job_rows(ledger)
    training = {"recompute": "full", "warmup_iterations": 8}
    row = replace(row, phase=ENDED, state="COMPLETED", configuration=row.configuration | {"training": training})
    measured = measure(row)
    assert (measured.verdict, measured.verdict_reason) == ("failed", "no iteration is left after the warm-up")


@pytest.mark.parametrize("none", ["nan", "inf", "-inf", "1e999"])
def test_numbers_that_are_none_can_be_stored(ledger: Ledger, tmp_path: Path, none: str) -> None:
    (tmp_path / "log.txt").write_text(log(8).replace("6.9E+00", none).replace("(ms): 104.0", f"(ms): {none}"))
    record_observations(ledger, {1: Observation("COMPLETED", ENDED, exit_code=0)}, [])
    collect(ledger)
    (row,) = job_rows(ledger)
    assert (row.verdict, row.verdict_reason) == ("failed", "NaN or infinite numbers at iteration 1")


@pytest.mark.parametrize(
    ("lines", "verdict", "why"),
    [
        (["image=torch:1", "inside_image=2/2"], "verified", None),
        (["image=torch:1", "inside_image=1/2"], "failed", "1 of 2 nodes ran it inside torch:1"),
        ([], "failed", "its end record does not prove that it ran inside torch:1"),
        (None, "failed", "its end record does not prove that it ran inside torch:1"),
    ],
)
def test_the_proof_is_read_from_the_jobs_own_end_record(
    ledger: Ledger, tmp_path: Path, lines: list[str] | None, verdict: str, why: str | None
) -> None:
    (tmp_path / "log.txt").write_text(log(8))
    row = replace(job_rows(ledger)[0], image="torch:1", scheduler="slurm", folder=str(tmp_path))
    row = replace(row, state="COMPLETED", phase=ENDED, exit_code=0)
    if lines is not None:
        own = ["exit_code=0", "at=2026-11-21T16:00:00Z", "host=n1", "scheduler_id=1", "pid=1", *lines]
        (tmp_path / "end").write_text("".join(f"{line}\n" for line in own))
    measured = measure(row)
    assert (measured.verdict, measured.verdict_reason) == (verdict, why)
