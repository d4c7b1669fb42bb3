"""Tests of list, show and plan: their contents, and one line for each problem."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from orchestrator.catalog.case import shown_value
from tests.stand_in_site import CHECKOUT
from tests.unit.cli.calling import Caller, everything_in

PAPER = "title: t\nvenue: v\n"
FIGURE = (CHECKOUT / "experiments" / "sc21" / "figure-13.yaml").read_text()


def write(repro: Caller, text: str = FIGURE, name: str = "own/figure-99", paper: str = PAPER) -> Path:
    """An experiment of one's own in the working folder."""
    file = repro.site.folder / "experiments" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / "paper.yaml").write_text(paper)
    file.write_text(text)
    return file


def test_list_shows_cases_gpus_hours_and_progress_of_every_experiment(repro: Caller) -> None:
    rows = {row["experiment"]: row for row in json.loads(repro("list", "--json").stdout)["experiments"]}
    papers = {name.partition("/")[0] for name in rows}
    assert papers == {"sc21", "atc24", "mlsys23", "megatron-core", "alpa", "tutorials", "caraml"}
    assert (rows["sc21/table-1"]["cases"], rows["sc21/table-1"]["gpus_min"], rows["sc21/table-1"]["gpus_max"]) == (
        10,
        32,
        3072,
    )
    assert all(row["done"] == [] for row in rows.values())
    assert (
        repro("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", "pp=1", "--wait").returncode == 0
    )
    rows = {row["experiment"]: row for row in json.loads(repro("list", "--json").stdout)["experiments"]}
    (done,) = rows["sc21/figure-13"]["done"]
    assert (done["verified"], done["jobs"], done["scale"], done["cluster"]) == (2, 2, "cpu", "here")
    assert "  2/2 cpu@here  " in repro("list").stdout


def test_show_has_the_cases_the_published_numbers_and_the_claims(repro: Caller) -> None:
    shown = json.loads(repro("show", "table-1", "--json").stdout)
    (about,) = shown["experiments"]
    (last,) = (row for row in shown["cases"] if row["case"] == "case=1T")
    assert (last["gpus"], last["tp"], last["pp"], last["microbatches"]) == (3072, 8, 64, 512)
    (rate,) = (point for point in last["published"] if point["metric"] == "tflops_per_gpu")
    assert (rate["value"], rate["how"], rate["confirmed"]) == (163, "printed", True)
    assert about["axes"]["y"]["metric"] == "tflops_per_gpu" and shown["claims"] and about["differences"]
    assert [difference["what"] for difference in about["differences"] if difference["follows"] == "neither"][1:] == [
        "SRUN.sh sets no OMP_NUM_THREADS. Jobs here set 1.",
        "SRUN.sh passes --overcommit to sbatch. Jobs here do not.",
    ]
    assert "neither" not in repro("show", "table-1", "--scale", "cpu", "--json").stdout
    text = repro("show", "table-1")
    assert "jobs and source differ: SRUN.sh passes --overcommit to sbatch. Jobs here do not. Reason: " in text.stderr
    assert len(text.stdout.splitlines()) > 10 and "paper and script differ: " in text.stderr


SHOWN_OF_EACH_CASE = (
    *("layers", "hidden", "heads", "seq", "vocab", "tp", "pp", "dp", "cp", "vp", "mbs", "gbs", "microbatches"),
    *("recompute", "offload", "scatter_gather", "ddp", "sequence_parallel"),
)


def test_show_has_model_layout_and_training_of_each_case(repro: Caller) -> None:
    (ours,) = json.loads(repro("show", "atc-demo", "--where", "case=ours", "--json").stdout)["cases"]
    values = {name: ours[name] for name in SHOWN_OF_EACH_CASE}
    assert values == {
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
    lines = repro("show", "atc-demo", "--where", "case=ours").stdout.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines[1 : lines.index("")])
    assert {name: shown[name] for name in values} == {name: shown_value(value) for name, value in values.items()}


def test_values_that_all_cases_share_are_on_one_line_and_others_in_the_table(repro: Caller) -> None:
    lines = repro("show", "figure-18").stdout.splitlines()
    assert lines[0].split()[:3] == ["CASE", "GBS", "MICROBATCHES"] and "SCATTER_GATHER" in lines[0]
    (shared,) = (line for line in lines if line.startswith("all cases: "))
    assert "layers=96, hidden=12288, heads=96, seq=2048, vocab=51200" in shared and "vp=4" in shared
    assert "gbs=" not in shared and "scatter_gather=" not in shared


def test_scripts_are_shown_with_what_the_cases_do_differently(repro: Caller) -> None:
    done = repro("show", "tutorial-cp", "--script")
    lines = done.stdout.splitlines()
    assert lines[1].split(maxsplit=1) == [
        "case=301",
        "vuiseng9/megatron-lm at 6ac43930b5: examples/gpt3/300_cpN_gpt2xl_gbs4_len4096.sh 1",
    ]
    assert any(line.startswith("case=314: Row 314 passes length 16384.") for line in lines)
    assert any(line.startswith("all cases: The scripts pass --tensorboard-dir. Jobs here do not. (") for line in lines)
    origin = repro("show", "atc-demo", "--script", "--where", "case=origin").stdout
    assert "kwai/Megatron-Kwai at b2646e4d9f: examples/atc24/3_run_7b_4gpus_origin_megatron.sh" in origin
    (row,) = json.loads(repro("show", "figure-13", "--where", "pp=8,gbs=32", "--json").stdout)["cases"]
    assert row["script"] == "NVIDIA/Megatron-LM at 6985e58938: examples/sc21/run_figure_13.sh"
    without = repro("show", "table-2", "--script")
    assert "the source of table-2 has no script for these cases" in without.stderr
    assert "SRUN.sh" not in without.stdout


def test_a_label_of_the_source_selects_its_case(repro: Caller) -> None:
    label = "301-cp1-gpt2xl-gbs4-len4096-oom"
    (row,) = json.loads(repro("show", "tutorial-cp", "--where", f"label={label}", "--json").stdout)["cases"]
    assert (row["case"], row["label"]) == ("case=301", label)
    assert label in repro("show", "tutorial-cp").stdout
    planned = json.loads(repro("plan", "tutorial-cp", "--where", f"label={label}", "--json").stdout)["cases"]
    assert [row["case"] for row in planned] == ["case=301"]


def test_where_and_scale_choose_cases_by_anything_they_have(repro: Caller) -> None:
    def names(*words: str) -> list[str]:
        return [row["case"] for row in json.loads(repro(*words, "--json").stdout)["cases"]]

    assert names("show", "figure-13", "--where", "tp=8,gbs=32") == ["pp=8,tp=8,gbs=32"]
    assert names("show", "figure-17", "--where", "recompute=none,gbs=4") == ["recompute=none,gbs=4"]
    assert names("plan", "atc-figure-9", "--where", "model=llama-65b,gpus=56") == ["model=llama-65b,gpus=56"]
    assert len(names("plan", "atc-figure-9", "--where", "model=llama2-70b,cp=4")) == 5
    assert len(names("plan", "figure-13", "--scale", "quad")) == 6
    planned = json.loads(repro("plan", "sc21", "--where", "tp=8,gbs=32", "--json").stdout)["cases"]
    assert {row["experiment"] for row in planned} == {"sc21/figure-13", "sc21/figure-15", "sc21/figure-17"}


DURATION_PARTS = (
    "compute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_bubble",
    "pipeline_transfer",
    "data_parallel",
)


def test_a_plan_has_memory_time_and_cost_of_each_case_and_touches_nothing(repro: Caller) -> None:
    before = everything_in(repro.site.folder)
    done = repro("plan", "figure-13", "--json")
    plan = json.loads(done.stdout)
    assert done.returncode == 0 and plan["errors"] == []
    assert plan["totals"][0]["jobs"] == 10 and plan["totals"][0]["gpu_hours"] > 50
    for row in plan["cases"]:
        assert (row["nodes"], row["gpus"], row["fit"]) == (8, 64, "fits")
        assert 40 < row["memory_gb"] < row["usable_gb"] == 74
        assert row["iteration_s"] > 5 and 0 < row["uncertainty"] < 1 and row["gpu_hours"] > 0
        parts = [row[f"{part}_ms"] for part in DURATION_PARTS]
        assert sum(parts) == pytest.approx(1e3 * row["iteration_s"], abs=1) and all(part >= 0 for part in parts)
    assert any("tensor-parallel 32 spans nodes of 8 GPUs" in text for text in plan["warnings"])
    assert "memory is a prediction" in done.stderr and "time is a prediction: ±" in done.stderr
    assert everything_in(repro.site.folder) == before


def test_refused_cases_are_exit_2_with_every_reason_and_the_others_are_still_planned(repro: Caller) -> None:
    write(repro, FIGURE.replace("layers: 32, hidden: 20480", "layers: 36, hidden: 20480"))
    done = repro("plan", "figure-99", "--cluster", "selene")
    assert done.returncode == 2
    assert (
        "repro: figure-99 pp=8,tp=8,gbs=32 and pp=8,tp=8,gbs=128: 36 layers do not divide by pipeline-parallel 8"
        in (done.stderr)
    )
    assert len(done.stdout.splitlines()) == 1 + 4 and "10 cases on selene, 6 refused: 4 jobs" in done.stderr


def test_alpha_is_solved_where_activations_can_be_offloaded_and_refused_elsewhere(repro: Caller) -> None:
    rows = json.loads(repro("plan", "atc-figure-9", "--solve-alpha", "--json").stdout)["cases"]
    exact = sum(row["alpha"] == row["solved_alpha"] for row in rows)
    assert (len(rows), exact) == (41, 39)
    assert all(abs(row["alpha"] - row["solved_alpha"]) < 0.0011 for row in rows)
    done = repro("plan", "figure-13", "--solve-alpha")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints == [
        "repro: --solve-alpha: no case keeps activations that ATC'24 would offload. "
        "Hint: for example repro plan atc-figure-9 --solve-alpha"
    ]


@pytest.mark.torch
def test_exact_without_torch_or_for_cpu_cores_is_one_line(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    done = repro("plan", "figure-13", "--cluster", "local", "--scale", "cpu", "--exact")
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1)
    assert done.complaints[0].startswith("repro: --exact: no case runs on GPUs. Hint: leave --exact out")
    monkeypatch.setitem(sys.modules, "torch", None)
    done = repro("plan", "figure-13", "--exact")
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1)
    assert done.complaints[0].startswith("repro: --exact needs torch. Hint: pip install ")


NO_FACTS = "about: x\nscheduler: slurm\nhardware: {nodes: 8, gpus_per_node: 8}\nslurm: {time_limit: 1:00:00}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("show figure-133", 'figure-133: no such experiment. Did you mean "figure-13"?'),
        ("plan sc22", 'sc22: no such experiment. Did you mean "sc21"?'),
        (
            "show sc21 --where pp=8",
            "sc21: a paper, which has no cases for --scale, --where and --script. Hint: repro show EXPERI",
        ),
        ("render sc21 --cluster here", "sc21: a paper, not an experiment. Hint: it has figure-11, figure-12, "),
        ("show figure-13 --scale qad", 'qad: no such scale. Did you mean "quad"?'),
        ("show figure-13 --where pp=3", "--where pp=3: no such case. Hint: there are pp: 2, 4, 8, 16, 32"),
        ("plan sc21 --where pp=3", "--where pp=3: no such case. Hint: there are pp: "),
        ("plan figure-13 --where fish=3", "--where fish=3: no such axis. Hint: there are: case, model, "),
        ("plan figure-13 --where gbs=08x", "--where gbs=08x: must be an integer"),
        (
            "plan table-2 --where case=zero3-175b",
            "--where case=zero3-175b: table-2 has these cases for reference only: neither a script",
        ),
        (
            "plan figure-13 --cluster bare",
            "bare does not define gpu and gpu_memory_gb and peak_tflops of its GPUs. Hint: add",
        ),
        ("plan figure-13 --cluster beer", 'beer: no such cluster. Did you mean "here"?'),
        ("plan sc21 --scale none", "none: no such scale. Hint: figure-11 has: paper, quad, pair, cpu"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_2(repro: Caller, words: str, expected: str) -> None:
    (repro.site.folder / "clusters" / "bare.yaml").write_text(NO_FACTS)
    done = repro(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.complaints[0].startswith(f"repro: {expected}"), done.stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  tp: gpus / pp", "  tp: gpus / 0", "64 does not divide by 0"),
        ("  tp: gpus / pp", "  tp: gpus / ppp", "unknown name ppp"),
        ("  tp: gpus / pp", "  tp: tpx * 1\n  dp: tp", "unknown name tpx"),
        ("      pp: [1, 2, 4]\n      gbs: [32, 128]", "      {}", "figure-99.yaml:"),
        ("  dtype: fp16", "  dtype: fp61", "figure-99.yaml:"),
        ("  mbs: 1", "  mbs: 08", "fixed.mbs: must be an integer, got '08'"),
        ("  mbs: 1", "  mbs: 1e3", "fixed.mbs: must be an integer, got 1000.0"),
        (
            "  mbs: 1",
            "  mbs: 1\n  scatter_gather: no",
            "fixed.scatter_gather: must be true or false, got 'no'",
        ),
        (
            "  gbs: [32, 128]\nrules",
            "  gbs: [32, 128]\n  model: [7b]\nrules",
            "7b: no such model. Hint: paper.yaml has: none",
        ),
    ],
)
def test_a_fault_in_a_figures_file_is_one_line_with_its_place(repro: Caller, old: str, new: str, expected: str) -> None:
    assert FIGURE.count(old) == 1, old
    write(repro, FIGURE.replace(old, new))
    done = repro("plan", "figure-99", "--cluster", "selene")
    assert (done.returncode, done.stdout) == (2, "")
    assert all(line.startswith("repro: ") for line in done.complaints)
    assert any("figure-99.yaml:" in line and expected in line for line in done.complaints), done.stderr


ROWS = """\
figure: Table 9
title: t
workload: pretrain
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
cases:
  - {case: a, gpus: 1, mbs: 1, gbs: 8}
  - {case: a, gpus: 2, mbs: 1, gbs: 8}
axes:
  x: {label: x, of: [case]}
  y: {label: y, metric: iteration_ms}
"""


def test_two_rows_of_one_name_are_refused_at_the_second(repro: Caller) -> None:
    write(repro, ROWS, "own/table-9")
    done = repro("plan", "table-9", "--cluster", "selene")
    assert done.returncode == 2
    (line,) = done.complaints
    assert "table-9.yaml:7:5 case=a: two cases have this name" in line


def test_a_short_name_that_two_papers_have_lists_both(repro: Caller) -> None:
    write(repro, FIGURE, "own/figure-13")
    done = repro("plan", "figure-13")
    assert (done.returncode, done.complaints) == (
        2,
        ["repro: figure-13: could be own/figure-13 or sc21/figure-13. Hint: give the full name"],
    )


def test_a_name_that_two_files_of_a_folder_have_is_refused(repro: Caller) -> None:
    write(repro, FIGURE, "own/figure-99").with_suffix(".yml").write_text(FIGURE)
    for words in (("list",), ("show", "figure-13"), ("plan", "figure-99", "--cluster", "selene")):
        done = repro(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.complaints == [
            "repro: own/figure-99: this name is used twice, by experiments/own/figure-99.yaml and "
            "experiments/own/figure-99.yml. Hint: rename one of them"
        ]


def test_an_own_file_replaces_the_shipped_file_with_a_note(repro: Caller) -> None:
    write(repro, FIGURE.replace("gbs: [32, 128]\nrules", "gbs: [32]\nrules"), "sc21/figure-13")
    note = "sc21/figure-13 is experiments/sc21/figure-13.yaml, not the shipped file"
    shown, planned = repro("show", "figure-13"), repro("plan", "figure-13", "--cluster", "selene")
    assert note in shown.stderr and f"note: {note}" in planned.stderr
    assert "5 cases on selene" in planned.stderr
    assert "not the shipped file" not in repro("show", "figure-12").stderr


def test_two_claims_of_one_id_are_refused_at_the_second(repro: Caller) -> None:
    write(repro, FIGURE.replace("  - id: poor-layouts-cost-2x", "  - id: peak-at-node-size"))
    done = repro("plan", "figure-99", "--cluster", "selene")
    (line,) = done.complaints
    assert done.returncode == 2 and "peak-at-node-size: two claims have this id" in line and "figure-99.yaml:" in line


def test_a_paper_without_a_machine_needs_a_cluster(repro: Caller) -> None:
    write(repro)
    done = repro("plan", "figure-99")
    assert (done.returncode, done.complaints) == (
        2,
        ["repro: own/figure-99: paper.yaml describes no machine to plan for. Hint: name a machine with --cluster"],
    )
    assert repro("plan", "figure-99", "--cluster", "selene").returncode == 0


def test_a_reference_only_experiment_is_shown_and_no_plan_is_suggested(repro: Caller) -> None:
    write(repro, FIGURE + "\nreference_only: too large\n")
    done = repro("show", "figure-99")
    assert done.returncode == 0 and "reference only: " in done.stderr
    assert done.stderr.splitlines()[-1] == "next: repro list   # the experiments that can be run"
    assert repro("plan", "figure-99").complaints == ["repro: figure-99: reference only: too large"]


def test_rows_for_reference_only_are_shown_and_neither_planned_nor_counted(repro: Caller) -> None:
    shown = repro("show", "table-2", "--json")
    rows = {row["case"]: row for row in json.loads(shown.stdout)["cases"]}
    assert len(rows) == 12 and rows["case=zero3-530b,gpus=640"]["reference_only"].startswith("neither a script")
    note = "note: table-2: 6 of 12 cases are for reference only: neither a script for ZeRO-3 nor its code is published"
    planned = repro("plan", "table-2", "--json")
    assert [row["case"] for row in json.loads(planned.stdout)["cases"]] == [
        name for name in rows if not rows[name]["reference_only"]
    ]
    assert json.loads(planned.stdout)["notes"] == [note.removeprefix("note: ")]
    assert note in repro("show", "table-2").stderr
    listed = {row["experiment"]: row for row in json.loads(repro("list", "--json").stdout)["experiments"]}
    assert (
        listed["sc21/table-2"]["cases"],
        listed["sc21/table-2"]["gpus_min"],
        listed["sc21/table-2"]["gpus_max"],
    ) == (6, 384, 2240)


def test_a_paper_is_shown_with_its_experiments_and_the_parts_that_no_experiment_runs(repro: Caller) -> None:
    shown = json.loads(repro("show", "sc21", "--json").stdout)
    assert "sc21/figure-13" in {row["experiment"] for row in shown["experiments"]}
    parts = {part["part"]: part for part in shown["papers"][0]["not_run"]}
    assert list(parts) == ["Figure 7", "Figure 8", "Section 5.9", "Section 5.10"]
    assert all(part["because"] and part["numbers"] for part in parts.values())
    text = repro("show", "sc21")
    assert text.returncode == 0 and "figure-13" in text.stdout
    assert "  effective bisection bandwidth of pipeline communication: 892 GB/s (printed)" in text.stderr
