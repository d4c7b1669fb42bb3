"""Tests of plans of many cases: costs, refusals, shared jobs, and totals of the shipped catalogue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.library import find_entries
from orchestrator.clusters.machine import Machine
from orchestrator.config.model import Hardware
from orchestrator.megatron.predictions import memory_of
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import BatchPlan, ChosenCases, plan_batch
from orchestrator.planning.plan import check_case, cost_of, fit_of
from orchestrator.planning.target import Target
from tests.cases import cases_to_run, expand
from tests.unit.catalog.entries import BASE, CHECKOUT, entry_of, shipped

pytestmark = pytest.mark.slow

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home")
A100S = Hardware.model_validate(
    {"nodes": 8, "gpus_per_node": 8, "gpu": "A100", "gpu_memory_gb": 80, "peak_tflops": {"fp16": 312, "bf16": 312}}
)


def campaign(*papers: str) -> BatchPlan:
    """Return the plan of every published case on its paper's machine."""
    entries = [entry for name in papers for entry in find_entries(FOLDERS, name)]
    runnable = [entry for entry in entries if not entry.experiment.reference_only]
    return plan_batch([ChosenCases(e, tuple(cases_to_run(e)), Target.of_paper(e)) for e in runnable])


@pytest.mark.parametrize(("paper", "cases", "jobs"), [("sc21", 111, 105), ("atc24", 73, 73), ("tutorials", 76, None)])
def test_published_cases_are_valid_on_their_paper_machine(paper: str, cases: int, jobs: int | None) -> None:
    plan = campaign(paper)
    assert [(planned.label, planned.checked.refusals) for planned in plan.refused] == []
    assert len(plan.planned) == cases
    assert jobs is None or len(plan.jobs) == jobs


def test_job_shared_by_two_figures_is_counted_once() -> None:
    plan = campaign("sc21")
    shared = {planned.label: planned.same_as for planned in plan.planned if planned.same_as}
    assert shared == {
        **{f"figure-18 scatter_gather=true,gbs={gbs}": f"figure-12 vp=4,gbs={gbs}" for gbs in (12, 24, 36, 48, 60)},
        "training-time case=1T": "table-1 case=1T",
    }
    costs = [planned.checked.cost for planned in plan.planned if not planned.same_as]
    alone = [cost.gpu_hours or 0 for cost in costs if cost]
    assert plan.gpu_hours == pytest.approx(sum(alone))


def test_every_scale_is_valid_on_its_intended_machine() -> None:
    gpus = Hardware.model_validate(A100S.model_dump() | {"nodes": 1, "gpus_per_node": 4})
    processes = Machine(2)
    for paper in ("sc21", "atc24", "alpa", "tutorials"):
        for entry in find_entries(FOLDERS, paper):
            for scale in entry.experiment.scales:
                cases = tuple(expand(entry, scale))
                machine = Target("here", processes.hardware(), processes)
                target = Target("quad", gpus) if cases[0].device == "gpu" else machine
                refused = plan_batch([ChosenCases(entry, cases, target)]).refused
                assert [(planned.label, planned.checked.refusals) for planned in refused] == []


def test_refused_case_has_every_reason_and_no_cost(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, BASE.replace("layers: 8", "layers: 6").replace("heads: 8", "heads: 4"))
    plan = plan_batch([ChosenCases(entry, tuple(expand(entry)), Target("site", A100S))])
    assert len(plan.planned) == 6 and plan.jobs == []
    assert all(planned.checked.cost is None for planned in plan.planned)
    assert [str(problem) for problem in plan.refusals] == [
        "figure-1 all 6 cases: A100 of site has no fp32 (it has bf16, fp16)",
        "figure-1 pp=1,tp=8,gbs=8 and pp=1,tp=8,gbs=16: attention heads 4 does not divide by tensor-parallel 8",
        "figure-1 pp=4,tp=2,gbs=8 and pp=4,tp=2,gbs=16: 6 layers do not divide by pipeline-parallel 4",
    ]


def test_memory_between_the_usable_share_and_the_whole_gpu_is_tight() -> None:
    target = Target.of_paper(shipped())
    assert target.hardware.gpu_memory_gb == 80
    assert [fit_of(needed, 74e9, target) for needed in (74e9, 75e9, 80e9, 81e9)] == ["fits", "tight", "tight", "OOM"]


@pytest.mark.parametrize(("memory_gb", "fit", "warned"), [(50, "tight", True), (48, "OOM", True), (80, "fits", False)])
def test_a_tight_case_is_submitted_with_a_warning_and_costs_its_whole_run(
    memory_gb: int, fit: str, warned: bool
) -> None:
    """The case needs 48.4 GB; of 50 GB 46.2 are usable."""
    target = Target.of_paper(shipped())
    hardware = target.hardware.model_copy(update={"gpu_memory_gb": memory_gb})
    case = next(case for case in expand(shipped()) if case.name == "pp=8,tp=8,gbs=32")
    checked = check_case(case, replace(target, hardware=hardware))
    assert checked.refusals == () and checked.cost is not None and checked.cost.fit == fit
    assert any("memory" in text for text in checked.warnings) is warned
    runs = checked.cost.job_s is not None and checked.cost.job_s > 100
    assert runs is (fit != "OOM")


def test_bf16_gradients_need_two_bytes_and_an_fp32_copy_of_the_ranks_share() -> None:
    case = replace(expand(shipped())[0], program="megatron-2026")
    case = replace(case, layout=replace(case.layout, gpus=8 * case.layout.gpus))
    bf16 = replace(case, training=replace(case.training, dtype="bf16", distributed_optimizer=True))
    wide, narrow = (memory_of(replace(bf16, arguments=given)) for given in ((), ("--grad-reduce-in-bf16",)))
    assert (wide.gradients_bytes, wide.step_bytes) == (4 * wide.parameters, 0)
    assert narrow.gradients_bytes == 2 * narrow.parameters
    assert narrow.step_bytes == pytest.approx(narrow.optimizer_bytes / 3)
    assert narrow.total_bytes < wide.total_bytes


def test_atc24_memory_failures_are_predicted_exactly() -> None:
    plan = {p.label: p.checked.cost.fit for p in campaign("atc24").planned if p.checked.cost}
    assert {label for label, fit in plan.items() if fit != "fits"} == {
        "atc-demo case=no-recompute",
        "atc-table-8 case=no-recompute",
        *(f"atc-figure-7 recompute=none,offload={alpha}" for alpha in (0.0, 0.1, 0.2)),
    }
    assert set(plan.values()) <= {"fits", "tight", "OOM"}


def test_tutorial_rows_that_ran_fit_and_4_of_6_that_ran_out_of_memory_do_not_fit_or_are_tight() -> None:
    plan = {p.label: p.checked.cost.fit for p in campaign("tutorials").planned if p.checked.cost}
    assert {label for label, fit in plan.items() if fit == "tight"} == {"tutorial-cp case=314"}
    assert sum(fit == "OOM" for fit in plan.values()) == 3


def test_a_case_that_fits_and_ran_out_of_memory_in_the_source_is_a_warning() -> None:
    warned = {p.label for p in campaign("tutorials").planned if any("in the source" in w for w in p.checked.warnings)}
    assert warned == {"core-dp case=121", "tutorial-cp case=301"}


def test_job_out_of_memory_costs_only_its_start_up() -> None:
    (entry,) = find_entries(FOLDERS, "atc-demo")
    oom = next(case for case in expand(entry) if case.expected)
    cost = cost_of(oom, Target.of_paper(entry))
    assert (cost.job_s, cost.gpu_hours) == (60, 4 * 60 / 3600)


def test_start_up_time_is_measured_for_pretrain_and_assumed_for_others() -> None:
    case = expand(shipped())[0]
    target = Target.of_paper(shipped())
    for program, start_s in (("pretrain", 25), ("megatron-2021", 60)):
        cost = cost_of(replace(case, program=program), target)
        assert cost.duration is not None and cost.job_s is not None
        runs = case.training.iterations + case.training.evaluation_iterations / 3
        assert cost.job_s == pytest.approx(start_s + runs * cost.duration.iteration_ms / 1e3)


def test_cpu_case_has_no_gpu_memory_and_no_gpu_hours() -> None:
    case = expand(shipped(), "cpu")[0]
    cost = cost_of(case, Target("here", Machine(2).hardware(), Machine(2)))
    assert (cost.nodes, cost.memory, cost.duration, cost.gpu_hours) == (1, None, None, None)


def test_job_longer_than_its_time_limit_is_a_warning() -> None:
    entry = shipped()
    cases = tuple(replace(case, time_limit="0:05:00") for case in expand(entry)[:1])
    (planned,) = plan_batch([ChosenCases(entry, cases, Target.of_paper(entry))]).planned
    assert any("minutes, asks for 0:05:00" in text for text in planned.checked.warnings)
    (planned,) = plan_batch([ChosenCases(entry, tuple(expand(entry)[:1]), Target.of_paper(entry))]).planned
    assert not any("asks for" in text for text in planned.checked.warnings)


def test_memory_depends_on_the_program() -> None:
    (case,) = (c for c in expand(shipped()) if c.name == "pp=8,tp=8,gbs=32")
    now = replace(case, program="megatron-core-0.14")
    sharded = replace(now, training=replace(case.training, distributed_optimizer=True))
    assert memory_of(case).gradients_bytes == 2 * memory_of(case).parameters
    assert memory_of(now).gradients_bytes == 4 * memory_of(now).parameters
    assert memory_of(sharded).optimizer_bytes == memory_of(now).optimizer_bytes  # data-parallel size 1
    wide = replace(sharded, layout=replace(case.layout, gpus=256))
    assert memory_of(wide).optimizer_bytes == pytest.approx(memory_of(now).optimizer_bytes / 4)
    assert not memory_of(case).calibrated and memory_of(replace(case, program="pretrain")).calibrated
