"""Alpa's benchmark from submission to claims, on this machine with a stand-in for the program and for its GPUs."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.megatron.logs.alpa import TABLE
from tests import alpa_stand_in
from tests.unit.cli.calling import Caller
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow

ALPA = ("alpa-gpt", "--cluster", "here", "--scale", "paper", "--where")


@pytest.fixture
def alpa(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """Return `repro` on a machine of eight V100 whose `python` stands in for the benchmark."""
    folder = repro.site.folder
    profile = "about: a machine of the tests\nscheduler: local\n" + alpa_stand_in.programs(folder)
    (folder / "clusters" / "here.yaml").write_text(profile)
    monkeypatch.setenv("PATH", f"{alpa_stand_in.install(folder)}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return repro


def jobs(alpa: Caller) -> list[dict[str, Any]]:
    """Return the rows of `repro status alpa-gpt`."""
    rows: list[dict[str, Any]] = json.loads(alpa("status", "alpa-gpt", "--json").stdout)["jobs"]
    return rows


def job_folders(alpa: Caller) -> list[Path]:
    return sorted(path.parent for path in alpa.site.folder.glob("runs/*/*/job.sh"))


def test_jobs_without_their_code_are_refused_with_the_command_that_fetches_it(alpa: Caller) -> None:
    (alpa.site.folder / "alpa" / "osdi22_artifact" / "megatron").rmdir()
    done = alpa("submit", *ALPA, "gpus=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "alpa/osdi22_artifact/megatron: no such file or folder" in done.stderr
    assert "Hint: repro programs fetch megatron-alpa --cluster here" in done.stderr
    assert job_folders(alpa) == []


def test_figure_is_submitted_verified_compared_and_judged(alpa: Caller) -> None:
    for case in ("gpus=1", "gpus=4", "gpus=8"):
        done = alpa("submit", *ALPA, case, "--wait")
        assert done.returncode == 0, done.stderr
    assert [(row["case"], row["verdict"], row["iteration"]) for row in jobs(alpa)] == [
        (f"gpus={gpus}", "verified", None) for gpus in (1, 4, 8)
    ]
    assert all((folder / TABLE).exists() for folder in job_folders(alpa))

    compared = alpa("compare", "alpa-gpt", "--json")
    rows = {(row["case"], row["metric"]): row for row in json.loads(compared.stdout)["numbers"]}
    assert compared.returncode == 0
    published = {1: (47.1, 47.53), 4: (55.2, 55.89), 8: (50.9, 50.44)}
    for gpus, (ours, theirs) in published.items():
        row = rows[f"gpus={gpus}", "tflops_per_gpu"]
        assert (row["measured"], row["published"], row["within"]) == (pytest.approx(ours), theirs, True)

    claims = alpa("claims", "alpa-gpt")
    assert claims.returncode == 0 and "gpus=8  tflops_per_gpu 50.9 " in claims.stdout
    collected = csv.DictReader(io.StringIO(alpa("collect", "alpa-gpt", "--export", "csv").stdout))
    numbers = {row["case"]: row for row in collected if row["verdict"]}
    assert float(numbers["gpus=4"]["reported_tflops_per_gpu"]) == 55.2
    assert float(numbers["gpus=4"]["iteration_ms"]) == pytest.approx(52705, abs=1)

    assert alpa("bundle", "alpa-gpt", "-o", "alpa.tar.zst").returncode == 0
    checked = alpa("bundle", "verify", "alpa.tar.zst")
    assert checked.returncode == 0 and "3 attempts read again" in checked.stdout, checked.stderr


@pytest.mark.parametrize(
    ("behave", "failure", "why"),
    [
        ("oom", "gpu-oom", "out of memory on the GPU (tried to allocate 512.00 MiB)"),
        ("nan", "numbers", "the throughput in its result row is nan"),
        ("half", "configuration", "ran with global batch 512, not 1024"),
        ("lone", "configuration", "ran with world size 1, not 4"),
        ("silent", "incomplete", "the log has no result row"),
        ("two-rates", "incomplete", f"the last row of {TABLE} is not the one in the log"),
        ("killed", "killed", "FAILED with exit code 137"),
    ],
)
def test_run_that_is_not_the_planned_one_has_its_class_and_reason(
    alpa: Caller, behave: str, failure: str, why: str
) -> None:
    alpa.site.behave(behave)
    assert alpa("submit", *ALPA, "gpus=4", "--wait").returncode == 1
    (row,) = jobs(alpa)
    assert (row["verdict"], row["failure"], row["iteration"]) == ("failed", failure, None)
    assert str(row["why"]).startswith(why)


def test_candidate_that_runs_out_of_memory_as_in_the_suite_is_no_failure_of_the_run(alpa: Caller) -> None:
    search = ("alpa-search", *ALPA[1:])
    alpa.site.behave("oom")
    assert alpa("submit", *search, "case=L192", "--wait").returncode == 0
    assert alpa("submit", *search, "case=L222", "--wait").returncode == 1
    rows = {row["case"]: row["failure"] for row in json.loads(alpa("status", "alpa-search", "--json").stdout)["jobs"]}
    assert rows == {"case=L192": "gpu-oom", "case=L222": "gpu-oom"}
    shown = alpa("show", "alpa-search").stderr
    assert 'case=L607: the suite\'s comment is "cannot run because of bugs"' in shown
    assert 'case=L812: the suite\'s comment is "buggy"' in shown


@pytest.mark.parametrize(("behave", "verdicts"), [("well", ["verified"] * 2), ("nan", ["failed"] * 2)])
def test_canary_of_a_program_without_iterations_decides_whether_the_others_start(
    alpa: Caller, behave: str, verdicts: list[str]
) -> None:
    alpa.site.behave(behave)
    alpa("submit", *ALPA, "gpus=4", "--repeat", "2", "--canary", "--wait")
    rows = jobs(alpa)
    assert [row["verdict"] for row in rows] == verdicts
    assert len(alpa.site.started()) == (2 if behave == "well" else 1)
    if behave != "well":
        assert rows[1]["failure"] == "stopped" and "its canary" in rows[1]["why"]


def test_running_job_shows_its_state_and_no_iterations(alpa: Caller) -> None:
    alpa.site.behave("gated")
    assert alpa("submit", *ALPA, "gpus=4").returncode == 0
    wait_until(alpa.site.started)
    waiting = alpa.site.start("wait", "alpa-gpt")
    try:
        (row,) = jobs(alpa)
        assert (row["state"], row["iteration"], row["tflops_per_gpu"]) == ("RUNNING", None, None)
        assert waiting.stderr is not None
        lines = iter(waiting.stderr.readline, "")
        assert next(line for line in lines if "running" in line) == "0/1 cases ended; gpus=4 running\n"
    finally:
        (alpa.site.folder / "go").touch()
        _, rest = waiting.communicate(timeout=LIMIT_S)
    assert waiting.returncode == 0 and "1/1 cases ended" in rest, rest


def test_folder_that_is_not_absolute_is_refused_with_its_place(alpa: Caller) -> None:
    profile = alpa.site.folder / "clusters" / "here.yaml"
    profile.write_text(profile.read_text().replace(f'"{alpa.site.folder}/Megatron-LM"', '"Megatron-LM"'))
    done = alpa("submit", *ALPA, "gpus=4")
    assert done.returncode == 2 and "here.yaml:3:" in done.stderr
    assert "checkout: must be an absolute path, because a job runs this program in its own folder" in done.stderr


def test_script_by_hand_runs_in_the_folder_that_it_is_given(alpa: Caller, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(alpa("render", *ALPA, "gpus=4").stdout)
    subprocess.run(["bash", str(script), "by hand"], cwd=tmp_path, check=True, timeout=LIMIT_S)
    assert {TABLE, "log.txt", "end"} <= {path.name for path in (tmp_path / "by hand").iterdir()}
