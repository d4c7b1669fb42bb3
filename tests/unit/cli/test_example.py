from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.clusters.resolve import find_cluster
from orchestrator.paths import Folders
from tests.stand_in_site import CHECKOUT
from tests.unit.cli.calling import Caller, everything_in

SITES = sorted(file.stem for file in (CHECKOUT / "clusters").glob("*.yaml") if not file.stem.endswith(".local"))
CPU = ("local", "jean-zay-v100")
"""Sites whose script is one of scale cpu: V100 has no bf16."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.torch) if name == "local" else name for name in SITES]
)
def test_the_script_of_each_shipped_site_can_be_read_before_its_values_are_filled_in(name: str, repro: Caller) -> None:
    options = ("--cluster", name, "--scale", "cpu" if name in CPU else "pair", "--example")
    done = repro("render", "figure-13", *options, "--where", "pp=2,tp=1,gbs=8" if name not in CPU else "pp=1,gbs=4")
    if "no such case" in done.stderr:
        done = repro("render", "figure-13", *options)
    assert done.returncode == 0, done.stderr
    assert ("EXAMPLE" in done.stdout.upper()) == bool(has_open_values(name)), done.stdout
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def has_open_values(name: str) -> bool:
    folders = Folders(shipped=CHECKOUT, home=Path("/no-such-home"))
    blanks = find_cluster(folders, str(CHECKOUT / "clusters" / f"{name}.yaml")).unfilled
    return any(blank.path[0] != "programs" or blank.path[1] == "pretrain" for blank in blanks)


@pytest.mark.parametrize("name", ["azure-ndv5", "aws-parallelcluster-p5", "eos", "perlmutter"])
def test_an_image_of_a_paper_that_the_profile_lacks_has_an_example(name: str, repro: Caller) -> None:
    fields = ("checkout", "data_path", "vocab_file", "merge_file")
    settings = [word for field in fields for word in ("--set", f"programs.megatron-2021.{field}=/code/{field}")]
    case = ("figure-11", "--cluster", name, "--scale", "paper", "--where", "pp=2,gbs=128", *settings, "--example")
    done = repro("render", *case)
    image = (
        "example/nvidia-pytorch-20-12-py3:latest" if name == "perlmutter" else "/EXAMPLE/nvidia-pytorch-20-12-py3.sqsh"
    )
    assert done.returncode == 0 and image in done.stdout, done.stderr
    dry_run = repro("submit", *case, "--dry-run")
    assert dry_run.returncode == 0 and "container.images.nvidia/pytorch:20.12-py3" in dry_run.stderr, dry_run.stderr
    assert f"{name} has no container image for nvidia/pytorch:20.12-py3" in repro("render", *case[:-1]).stderr


def test_examples_are_planned_and_never_submitted(repro: Caller) -> None:
    options = ("figure-13", "--cluster", "selene", "--example")
    for words in (("plan", *options), ("submit", *options, "--dry-run")):
        done = repro(*words)
        assert done.returncode == 0 and done.stderr.splitlines()[-1].count("--example") == 1, done.stderr
    before = everything_in(repro.site.folder)
    done = repro("submit", *options)
    assert done.returncode == 2
    assert done.stderr.startswith("repro: --example: example values cannot be submitted. Hint: add --dry-run, or fill")
    assert everything_in(repro.site.folder) == before


def test_a_dry_run_for_a_site_with_open_values_plans_and_names_what_a_submission_needs(repro: Caller) -> None:
    done = repro("submit", "figure-13", "--cluster", "selene", "--dry-run")
    assert done.returncode == 0 and "would submit 10 jobs" in done.stderr and "/EXAMPLE/" not in done.stdout
    (note,) = (line for line in done.stderr.splitlines() if line.startswith("note: selene has 8 open values. "))
    assert "slurm.account, slurm.partition" in note and "megatron-2021.merge_file" in note
    command = done.stderr.splitlines()[-1].partition("   # ")[0]
    assert repro(*command.removeprefix("next: repro ").split()).returncode == 0
