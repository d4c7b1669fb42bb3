"""Tests of list, show and plan: their contents, and one line for each problem."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

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


def test_list_has_the_progress_of_each_figure(looking: Caller) -> None:
    done = looking("list")
    assert done.returncode == 0 and "  6/6 cpu@here  " in done.stdout


def test_show_has_cases_claims_and_differences(repro: Caller) -> None:
    text = repro("show", "table-1")
    assert "jobs and source differ: SRUN.sh passes --overcommit to sbatch. Jobs here do not. Reason: " in text.stderr
    assert len(text.stdout.splitlines()) > 10 and "paper and script differ: " in text.stderr
    lines = repro("show", "atc-demo", "--where", "case=ours").stdout.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines[1 : lines.index("")])
    assert {shown[name] for name in ("layers", "offload", "scatter_gather", "ddp")} == {"32", "0.1", "true", "local"}


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


DURATION_PARTS = (
    "compute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_bubble",
    "pipeline_transfer",
    "data_parallel",
)


def test_a_plan_has_the_parts_of_each_time_and_touches_nothing(repro: Caller) -> None:
    before = everything_in(repro.site.folder)
    done = repro("plan", "figure-13", "--json")
    plan = json.loads(done.stdout)
    assert done.returncode == 0 and plan["errors"] == []
    for row in plan["cases"]:
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


def test_an_own_file_replaces_the_shipped_file_with_a_note(repro: Caller) -> None:
    write(repro, FIGURE.replace("gbs: [32, 128]\nrules", "gbs: [32]\nrules"), "sc21/figure-13")
    note = "sc21/figure-13 is experiments/sc21/figure-13.yaml, not the shipped file"
    shown, planned = repro("show", "figure-13"), repro("plan", "figure-13", "--cluster", "selene")
    assert note in shown.stderr and f"note: {note}" in planned.stderr
    assert "5 cases on selene" in planned.stderr
    assert "not the shipped file" not in repro("show", "figure-12").stderr


def test_a_reference_only_experiment_is_shown_and_no_plan_is_suggested(repro: Caller) -> None:
    write(repro, FIGURE + "\nreference_only: too large\n")
    done = repro("show", "figure-99")
    assert done.returncode == 0 and "reference only: " in done.stderr
    assert done.stderr.splitlines()[-1] == "next: repro list   # the experiments that can be run"
    assert repro("plan", "figure-99").complaints == ["repro: figure-99: reference only: too large"]


def test_rows_for_reference_only_are_noted(repro: Caller) -> None:
    note = "note: table-2: 6 of 12 cases are for reference only: neither a script for ZeRO-3 nor its code is published"
    assert note in repro("show", "table-2").stderr and note in repro("plan", "table-2").stderr


def test_a_paper_is_shown_with_its_experiments_and_the_parts_that_no_experiment_runs(repro: Caller) -> None:
    text = repro("show", "sc21")
    assert text.returncode == 0 and "figure-13" in text.stdout
    assert "  effective bisection bandwidth of pipeline communication: 892 GB/s (printed)" in text.stderr
