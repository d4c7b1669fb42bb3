"""What only looks: status before anything, dry runs, scripts on stdout, tables, other folders and other ledgers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.output import as_json, table
from orchestrator.paths import find_folders
from tests.unit.cli.calling import Caller, everything_in

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


def test_a_dry_run_shows_what_would_be_submitted_and_claims_nothing_about_outcomes(repro: Caller) -> None:
    before = everything_in(repro.site.folder)
    done = repro("submit", *HERE, "--dry-run")
    assert done.returncode == 0 and "nothing was submitted" in done.stderr
    assert len(done.stdout.splitlines()) == 7
    for word in ("verified", "COMPLETED", "holds"):
        assert word not in done.stdout + done.stderr
    assert everything_in(repro.site.folder) == before


def test_the_job_a_dry_run_names_is_the_job_that_is_submitted(repro: Caller) -> None:
    planned = json.loads(repro("submit", *HERE, "--where", "pp=1", "--dry-run", "--json").stdout)
    made = json.loads(repro("submit", *HERE, "--where", "pp=1", "--json").stdout)
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
    assert origin["--micro-batch-size 1 \\"].startswith(
        "workload pretrain, experiments/sc21/figure-13.yaml, templates/"
    )
    (python,) = (where for said, where in origin.items() if "train.sh" in said)
    assert python.startswith("clusters/here.yaml:")


def test_a_dry_run_says_which_program_on_what_data_and_json_says_it_of_each_job(repro: Caller) -> None:
    done = repro("submit", *HERE, "--dry-run")
    assert "workload pretrain; code pretrain-" in done.stderr and "; data synthetic" in done.stderr
    rows = json.loads(repro("submit", *HERE, "--dry-run", "--json").stdout)
    assert {(row["workload"], row["data"], row["image"], row["iterations"]) for row in rows} == {
        ("pretrain", "synthetic", None, 8)
    }


def test_what_could_never_be_verified_is_rendered_and_not_submitted(repro: Caller) -> None:
    (repro.site.folder / "clusters" / "gpus.yaml").write_text(
        "about: x\nscheduler: slurm\n"
        "hardware: {nodes: 8, gpus_per_node: 8, gpu: V100, gpu_memory_gb: 16, peak_tflops: {fp16: 125}}\n"
        "slurm: {time_limit: 1:00:00}\n"
        "workloads: {megatron-alpa: {checkout: /fork, benchmark: /alpa/osdi22_artifact/megatron}}\n"
    )
    alpa = ("alpa-gpt", "--cluster", "gpus", "--where", "gpus=4")
    for words in (("submit", *alpa), ("submit", *alpa, "--dry-run")):
        done = repro(*words)
        assert done.returncode == 2 and done.stderr.startswith(
            "repro: megatron-alpa: its program prints only the mean of"
        )
    assert "benchmark_gpt_one_case.py" in repro("render", *alpa).stdout


def test_a_ledger_elsewhere_is_taken_from_the_option_before_the_environment(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repro.site.folder
    monkeypatch.setenv("REPRO_DATABASE", str(folder / "from environment.db"))
    assert repro("submit", *HERE, "--where", "pp=1,gbs=4", "--wait").returncode == 0
    assert (folder / "from environment.db").exists() and not (folder / "results.db").exists()
    assert len(json.loads(repro("status", "--json").stdout)) == 1
    assert json.loads(repro("status", "--json", "--database", "another.db").stdout) == []
    url = f"sqlite:///{folder}/another.db"
    assert repro("submit", *HERE, "--where", "pp=1,gbs=4", "--database", url, "--wait").returncode == 0
    assert len(json.loads(repro("status", "--json", "--database", "another.db").stdout)) == 1


def test_jobs_are_submitted_from_one_folder_and_seen_from_another(repro: Caller, tmp_path: Path) -> None:
    profile = str(repro.site.folder / "clusters" / "here.yaml")
    words = ("figure-13", "--cluster", profile, "--scale", "cpu", "--where", "pp=1,gbs=4")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert repro("submit", *words, "--wait", folder=elsewhere).returncode == 0
    assert list(elsewhere.iterdir()) == []
    assert [row["verdict"] for row in json.loads(repro("status", "--json").stdout)] == ["verified"]


def test_a_relative_home_is_the_same_folder_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPRO_HOME", "mine")
    assert find_folders().home == tmp_path / "mine"
    monkeypatch.setenv("REPRO_HOME", "")
    assert find_folders().home == find_folders().shipped


def test_a_file_of_the_working_folder_is_taken_before_the_shipped_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "local.yaml").write_text("about: mine\n")
    monkeypatch.chdir(tmp_path)
    files = list(find_folders().cluster_files())
    assert [file for file in files if file.name == "local.yaml"] == [tmp_path / "clusters" / "local.yaml"]
    assert "selene.yaml" in [file.name for file in files]


def test_a_table_is_aligned_never_cropped_and_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"name": "a" * 300, "rate": 1.23456}, {"name": "\x1b[2J\nb", "rate": None}]
    table(rows, ["name", "rate"])
    header, long, evil = capsys.readouterr().out.splitlines()
    assert (header.split(), len(long)) == (["NAME", "RATE"], 307)
    assert long.endswith("1.235") and evil.startswith("?[2J?b ") and evil.endswith("    -")


def test_json_of_nothing_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    as_json([])
    assert json.loads(capsys.readouterr().out) == []
