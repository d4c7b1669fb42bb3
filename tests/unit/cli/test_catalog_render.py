"""Tests of dry runs and of `repro render`: nothing is submitted, and a printed script can be run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.unit.cli.calling import Caller, everything_in

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


def test_a_dry_run_shows_the_jobs_and_no_outcomes(repro: Caller) -> None:
    before = everything_in(repro.site.folder)
    done = repro("submit", *HERE, "--dry-run")
    assert done.returncode == 0 and "nothing was submitted" in done.stderr
    assert len(done.stdout.splitlines()) == 7
    for word in ("verified", "COMPLETED", "holds"):
        assert word not in done.stdout + done.stderr
    assert everything_in(repro.site.folder) == before


def test_the_job_a_dry_run_names_is_the_job_that_is_submitted(repro: Caller) -> None:
    planned = json.loads(repro("submit", *HERE, "--where", "pp=1", "--dry-run", "--json").stdout)["plans"]
    made = json.loads(repro("submit", *HERE, "--where", "pp=1", "--json").stdout)["jobs"]
    assert [row["job"] for row in planned] == [row["job"] for row in made]


def test_a_script_on_stdout_is_raw_and_can_be_run(repro: Caller) -> None:
    done = repro("render", *HERE, "--where", "pp=1,gbs=4")
    assert done.stdout.startswith("#!/bin/bash\n")
    checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert subprocess.run(["bash"], input=done.stdout, text=True, check=False, cwd=repro.site.folder).returncode == 0
    assert repro.site.started() == ["pp=1,tp=4,gbs=4"]


def test_scripts_in_a_folder_are_all_there_executable_and_named_on_stdout(repro: Caller) -> None:
    done = repro("render", *HERE, "-o", "my scripts")
    files = [Path(line) for line in done.stdout.splitlines()]
    assert len(files) == 6 and all(file.stat().st_mode & 0o100 for file in files)
    suggested = done.stderr.splitlines()[-1].removeprefix("next: ").partition("   #")[0]
    assert subprocess.run(["bash", "-c", suggested], check=False).returncode == 0
    assert repro.site.started() == ["pp=1,tp=4,gbs=4"]


def test_each_line_of_a_script_is_shown_with_where_it_comes_from(repro: Caller) -> None:
    script = repro("render", *HERE, "--where", "pp=1,gbs=4").stdout.splitlines()
    done = repro("render", *HERE, "--where", "pp=1", "--explain")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and "the first of 2; --where selects another" in done.stderr
    assert len(lines) == len(script) and all(line.endswith(said) for line, said in zip(lines, script, strict=True))
    origin = {said.strip(): line.removesuffix(said).strip() for line, said in zip(lines, script, strict=True)}
    assert origin["set -euo pipefail"].startswith("templates/job.sh.j2:")
    assert origin["--micro-batch-size 1 \\"].startswith("program pretrain, experiments/sc21/figure-13.yaml, templates/")
    (python,) = (where for said, where in origin.items() if "train.sh" in said and not said.startswith("probe"))
    assert python.startswith("clusters/here.yaml:")


def test_a_dry_run_prints_program_and_data_and_json_has_them_for_each_job(repro: Caller) -> None:
    done = repro("submit", *HERE, "--dry-run")
    assert "program pretrain; code pretrain-" in done.stderr and "; data synthetic" in done.stderr
    rows = json.loads(repro("submit", *HERE, "--dry-run", "--json").stdout)["plans"]
    assert {(row["program"], row["data"], row["image"], row["iterations"]) for row in rows} == {
        ("pretrain", "synthetic", None, 8)
    }


def test_alpas_benchmark_is_rendered_and_would_be_submitted(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "gpus.yaml").write_text(
        "about: x\nscheduler: slurm\n"
        "hardware: {nodes: 8, gpus_per_node: 8, gpu: V100, gpu_memory_gb: 16, peak_tflops: {fp16: 125}}\n"
        "slurm: {time_limit: 1:00:00}\n"
        "programs: {megatron-alpa: {checkout: /fork, benchmark: /alpa/osdi22_artifact/megatron}}\n"
    )
    alpa = ("alpa-gpt", "--cluster", "gpus", "--where", "gpus=4")
    done = repro("submit", *alpa, "--dry-run")
    assert done.returncode == 0 and "would submit 1 job at scale paper" in done.stderr
    assert "benchmark_gpt_one_case.py" in repro("render", *alpa).stdout
