"""Catalog: sizes and progress of experiments, their cases with published numbers, papers, and plans of cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.paths import find_folders
from tests.recorded_jobs import record_results
from tests.stand_in_site import CHECKOUT
from tests.unit.api.project import Project, problems
from tests.unit.catalog.entries import figure_13

FIGURE = (CHECKOUT / "experiments" / "sc21" / "figure-13.yaml").read_text()


def write(project: Project, text: str = FIGURE, name: str = "own/figure-99") -> Path:
    """Write an experiment of the user."""
    file = project.folder / "experiments" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / "paper.yaml").write_text("title: t\nvenue: v\n")
    file.write_text(text)
    return file


def test_every_experiment_is_listed_with_its_size_and_progress(project: Project) -> None:
    record_results(project.ledger, figure_13(), "cpu", {"pp=1,tp=4,gbs=4": 1.0, "pp=1,tp=4,gbs=16": 1.0})
    listed = api.experiments(project.session)
    rows = {row.experiment: row for row in listed.rows}
    papers = {name.partition("/")[0] for name in rows}
    assert papers == {
        "sc21",
        "atc24",
        "mlsys23",
        "megatron-core",
        "alpa",
        "tutorials",
        "caraml",
        "examples",
        "machine",
        "torchtitan",
    }
    table_1, table_2 = rows["sc21/table-1"], rows["sc21/table-2"]
    assert (table_1.cases, table_1.gpus_min, table_1.gpus_max) == (10, 32, 3072)
    assert (table_2.cases, table_2.gpus_min, table_2.gpus_max) == (6, 384, 2240), "without cases for reference only"
    (done,) = rows["sc21/figure-13"].done
    assert (done.verified, done.jobs, done.scale, done.cluster) == (2, 2, "cpu", "selene")
    assert all(not row.done for name, row in rows.items() if name != "sc21/figure-13") and listed.problems == []


@pytest.mark.usefixtures("project")
def test_an_experiment_has_its_published_numbers_claims_and_differences() -> None:
    shown = api.show("table-1")
    last = next(row for row in shown.rows if row.case == "case=1T")
    assert {name: last.settings[name] for name in ("gpus", "tp", "pp", "microbatches")} == {
        "gpus": 3072,
        "tp": 8,
        "pp": 64,
        "microbatches": 512,
    }
    (rate,) = (point for point in last.published if point.metric == "tflops_per_gpu")
    assert (rate.value, rate.how, rate.confirmed) == (163, "printed", True)
    assert shown.entry.experiment.plot.y.metric == "tflops_per_gpu" and shown.claims
    assert [difference.what for difference in shown.differences if difference.follows == "neither"][1:] == [
        "SRUN.sh sets no OMP_NUM_THREADS. Jobs here set 1.",
        "SRUN.sh passes --overcommit to sbatch. Jobs here do not.",
    ]
    assert not [one for one in api.show("table-1", "cpu").differences if one.follows == "neither"]


@pytest.mark.usefixtures("project")
def test_a_case_has_its_model_layout_training_label_and_script() -> None:
    (ours,) = api.show("atc-demo", where="case=ours").rows
    expected = {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "seq": 12288,
        "vocab": 32004,
        "tp": 1,
        "pp": 4,
        "dp": 1,
        "cp": 1,
        "vp": 8,
        "mbs": 1,
        "gbs": 16,
        "microbatches": 16,
        "recompute": "ours",
        "offload": 0.1,
        "scatter_gather": True,
        "ddp": "local",
        "sequence_parallel": False,
    }
    assert {name: ours.settings[name] for name in expected} == expected
    (case,) = api.show("figure-13", where="pp=8,gbs=32").rows
    assert case.script == "NVIDIA/Megatron-LM at 6985e58938: examples/sc21/run_figure_13.sh"
    label = "301-cp1-gpt2xl-gbs4-len4096-oom"
    (labelled,) = api.show("tutorial-cp", where=f"label={label}").rows
    assert (labelled.case, labelled.label) == ("case=301", label)


@pytest.mark.usefixtures("project")
def test_where_and_scale_choose_cases_by_anything_they_have() -> None:
    def shown(name: str, where: str) -> list[str]:
        return [row.case for row in api.show(name, where=where).rows]

    def planned(names: str, **options: str) -> list[tuple[str, str]]:
        batch = api.plan(names, **options).batch  # type: ignore[arg-type]
        return [(one.case.experiment, one.case.name) for one in batch.planned]

    assert shown("figure-13", "tp=8,gbs=32") == ["pp=8,tp=8,gbs=32"]
    assert shown("figure-17", "recompute=none,gbs=4") == ["recompute=none,gbs=4"]
    label = "301-cp1-gpt2xl-gbs4-len4096-oom"
    assert [case for _, case in planned("tutorial-cp", where=f"label={label}")] == ["case=301"]
    assert [case for _, case in planned("atc-figure-9", where="model=llama-65b,gpus=56")] == ["model=llama-65b,gpus=56"]
    assert len(planned("atc-figure-9", where="model=llama2-70b,cp=4")) == 5
    assert len(planned("figure-13", scale="quad")) == 6
    names = {experiment for experiment, _ in planned("sc21", where="tp=8,gbs=32")}
    assert names == {"sc21/figure-13", "sc21/figure-15", "sc21/figure-17"}


def test_a_plan_has_memory_time_and_cost_of_each_case_and_writes_nothing(project: Project) -> None:
    before = sorted(project.folder.rglob("*"))
    plan = api.plan("figure-13")
    assert plan.batch.refusals == [] and plan.totals.jobs == 10 and (plan.totals.gpu_hours or 0) > 50
    for row in plan.rows.values():
        assert (row.nodes, row.gpus, row.fit) == (8, 64, "fits")
        assert row.memory_gb is not None and row.usable_gb == 74 and 40 < row.memory_gb < row.usable_gb
        assert row.iteration_s is not None and row.iteration_s > 5
        assert row.uncertainty is not None and 0 < row.uncertainty < 1
    assert sorted(project.folder.rglob("*")) == before


@pytest.mark.usefixtures("project")
def test_rows_for_reference_only_are_shown_and_not_planned() -> None:
    rows = {row.case: row for row in api.show("table-2").rows}
    assert len(rows) == 12 and str(rows["case=zero3-530b,gpus=640"].reference_only).startswith("neither a script")
    plan = api.plan("table-2")
    assert [one.case.name for one in plan.batch.planned] == [
        name for name, row in rows.items() if not row.reference_only
    ]
    assert [*plan.notes] == [
        "table-2: 6 of 12 cases are for reference only: neither a script for ZeRO-3 nor its code is published"
    ]


@pytest.mark.usefixtures("project")
def test_a_paper_has_its_experiments_and_the_parts_that_no_experiment_runs() -> None:
    entries = api.find_entries(find_folders(), "sc21")
    assert "sc21/figure-13" in {entry.name for entry in entries}
    not_run = entries[0].paper.not_run
    assert [part.part for part in not_run] == ["Figure 7", "Figure 8", "Section 5.9", "Section 5.10"]
    assert all(part.because and part.numbers for part in not_run)


def test_the_users_own_file_replaces_the_shipped_one_and_ambiguous_names_are_refused(project: Project) -> None:
    own = write(project, FIGURE.replace("gbs: [32, 128]\nrules", "gbs: [32]\nrules"), "sc21/figure-13")
    assert api.show("figure-13").replaces_shipped and len(api.show("figure-13").cases) == 5
    note = "sc21/figure-13 is experiments/sc21/figure-13.yaml, not the shipped file"
    assert note in api.plan("figure-13", "selene").notes and not api.show("figure-12").replaces_shipped
    own.unlink()
    write(project, FIGURE, "own/figure-13")
    with pytest.raises(ReproError, match="^figure-13: could be own/figure-13 or sc21/figure-13. Hint: give the full"):
        api.show("figure-13")
    write(project, FIGURE, "own/figure-13").with_suffix(".yml").write_text(FIGURE)
    used_twice = (
        "own/figure-13: this name is used twice, by experiments/own/figure-13.yaml and "
        "experiments/own/figure-13.yml. Hint: rename one of them"
    )
    for function in (api.experiments, lambda: api.show("figure-12")):
        with pytest.raises(ReproError) as caught:
            function()
        assert problems(caught) == [used_twice]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  tp: gpus / pp", "  tp: gpus / 0", "64 does not divide by 0"),
        ("  tp: gpus / pp", "  tp: gpus / ppp", "unknown name ppp"),
        ("  tp: gpus / pp", "  tp: tpx * 1\n  dp: tp", "unknown name tpx"),
        ("      pp: [1, 2, 4]\n      gbs: [32, 128]", "      {}", "figure-99.yaml:"),
        ("  dtype: fp16", "  dtype: fp61", "figure-99.yaml:"),
        ("  mbs: 1", "  mbs: 08", "fixed.mbs: must be an integer, got '08'"),
        ("  mbs: 1", "  mbs: 1e3", "fixed.mbs: must be an integer, got 1000.0"),
        ("  mbs: 1", "  mbs: 1\n  scatter_gather: no", "fixed.scatter_gather: must be true or false, got 'no'"),
        (
            "  gbs: [32, 128]\nrules",
            "  gbs: [32, 128]\n  model: [7b]\nrules",
            "7b: no such model. Hint: paper.yaml has: none",
        ),
        ("  - id: poor-layouts-cost-2x", "  - id: peak-at-node-size", "peak-at-node-size: two claims have this id"),
    ],
)
def test_a_fault_in_a_figures_file_has_its_place(project: Project, old: str, new: str, problem: str) -> None:
    assert FIGURE.count(old) == 1, old
    write(project, FIGURE.replace(old, new))
    with pytest.raises(ReproError) as caught:
        api.plan("figure-99", "selene")
    assert any("figure-99.yaml:" in line and problem in line for line in problems(caught)), problems(caught)


ROWS = """\
figure: Table 9
title: t
program: pretrain
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
cases:
  - {case: a, gpus: 1, mbs: 1, gbs: 8}
  - {case: a, gpus: 2, mbs: 1, gbs: 8}
plot:
  x: {label: x, of: [case]}
  y: {label: y, metric: iteration_ms}
"""


def test_experiments_that_cannot_be_planned_are_refused_with_the_reason(project: Project) -> None:
    def refused(cluster: str | None = None) -> str:
        with pytest.raises(ReproError) as caught:
            api.plan("figure-99", cluster)
        (line,) = problems(caught)
        return line

    write(project, ROWS)
    assert "figure-99.yaml:7:5 case=a: two cases have this name" in refused("selene")
    write(project)
    machine = "own/figure-99: paper.yaml describes no machine to plan for. Hint: --cluster NAME names one; "
    machine += "`repro clusters list` lists them"
    assert refused() == machine and api.plan("figure-99", "selene").totals.jobs == 10
    write(project, FIGURE + "\nreference_only: too large\n")
    assert api.show("figure-99").cases and refused() == "figure-99: reference only: too large"
