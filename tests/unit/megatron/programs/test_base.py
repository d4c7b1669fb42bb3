"""Tests of the registry, of flags as arguments, and of unsupported settings."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.errors import ReproError
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.flags import flag_arguments
from orchestrator.programs.record import program_name, programs
from tests.unit.catalog.entries import CHECKOUT, find_case
from tests.unit.megatron.programs.places import arguments_of

pytestmark = pytest.mark.slow

PACKAGE = Path(orchestrator.__file__).parent

TOY = '''
"""A program of one module."""

from orchestrator.megatron.predictions import PlannedProgram
from orchestrator.megatron.programs.base import megatron_program
from orchestrator.megatron.programs.base import CheckoutSite
from orchestrator.megatron.programs.megatron_2021 import MEMORY


def _arguments(case, site):
    return ["--toy-layers", str(case.model.layers)]


def _program(job, arguments):
    return megatron_program(job, arguments, data="toy data", default_commit="0" * 40)


PROGRAM = PlannedProgram(
    name="toy",
    about="a program of one module",
    site=CheckoutSite,
    dialect="2021",
    memory=MEMORY,
    arguments=_arguments,
    unsupported=lambda case, site: ["offloading"] if case.training.offload else [],
    program=_program,
    other_names=("plaything",),
)
'''

PROFILE = """\
about: A site with the toy.
scheduler: slurm
hardware: {nodes: 16, gpus_per_node: 8, gpu: A100, gpu_memory_gb: 80, peak_tflops: {fp16: 312}}
slurm: {time_limit: "1:00:00"}
programs: {toy: {checkout: /code/toy}}
"""

ENTRIES = """\
[repro.programs]
toy = toy_program:PROGRAM
plaything = toy_program:PROGRAM
"""


def test_flag_arguments_omit_false_and_keep_zero() -> None:
    flags = {"--on": True, "--off": False, "--none": None, "--zero": 0, "--share": 0.0, "--one": 1}
    assert flag_arguments(flags) == ["--on", "--zero", "0", "--share", "0.0", "--one", "1"]


def test_all_unsupported_settings_of_a_case_are_one_line() -> None:
    case = find_case("atc-table-8", "case=ours")
    with pytest.raises(ReproError) as caught:
        arguments_of("megatron-2026", case)
    lacking = "recomputation ours (only none, selective, full), offloading"
    assert str(caught.value) == f"case=ours: megatron-2026 does not support {lacking}"


def test_programs_are_sorted_by_name() -> None:
    assert list(programs()) == sorted(programs())
    assert all(find_megatron(name).name == name for name in programs())
    with pytest.raises(ReproError, match='Did you mean "pretrain"'):
        find_megatron("pretrian")


def test_program_of_one_new_module_is_planned_and_rendered(tmp_path: Path) -> None:
    package, site = tmp_path / "package", tmp_path / "site.yaml"
    (package / "toy-1.0.dist-info").mkdir(parents=True)
    (package / "toy-1.0.dist-info" / "entry_points.txt").write_text(ENTRIES)
    (package / "toy_program.py").write_text(TOY)
    site.write_text(PROFILE)

    def repro(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": f"{CHECKOUT}:{package}", "REPRO_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "orchestrator.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    options = ("figure-13", "--cluster", str(site), "--program", "toy", "--where", "pp=8,gbs=32")
    planned = repro("plan", *options)
    assert planned.returncode == 0, planned.stderr
    assert repro("plan", *options[:-3], "plaything", *options[-2:]).stdout == planned.stdout
    rendered = repro("render", *options)
    assert rendered.returncode == 0, rendered.stderr
    assert "/code/toy/pretrain_gpt.py" in rendered.stdout and "--toy-layers" in rendered.stdout


def test_only_records_of_programs_contain_their_names() -> None:
    names = {name for program in programs().values() for name in (program.name, *program.other_names)}
    # The torch package is called megatron-core. Fields have examples.
    elsewhere = {("megatron-core", "launch"), ("pretrain", "catalog"), ("megatron-2021", "catalog")}
    elsewhere |= {("pretrain", "clusters")}
    literals = {
        (node.value, str(file.relative_to(PACKAGE).parent))
        for file in PACKAGE.rglob("*.py")
        if not {"megatron", "pretrain"}.intersection(file.relative_to(PACKAGE).parts)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert literals <= elsewhere


def test_other_name_of_a_program_gives_its_name() -> None:
    assert program_name("megatron-core") == "megatron-2026"
    assert program_name("pretrain") == "pretrain" and program_name("pretrian") == "pretrian"
