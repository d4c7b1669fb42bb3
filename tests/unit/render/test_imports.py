"""The program of a job is the recorded copy, whatever the submitting shell and its folder contain."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.megatron.programs.pretrain import code_version, copy_program, program_folder
from orchestrator.paths import Folders
from tests.unit.render.stand_ins import (
    KINDS,
    RUNTIMES,
    Stage,
    cluster_and_plan,
    executable,
    with_arguments,
    with_fields,
)

pytestmark = pytest.mark.slow

SHADOW = "import os\nos.write(2, b'SHADOWED by ' + __file__.encode() + b'\\n')\n"
WITHOUT_SAFE_PATH = {"PYTHONSAFEPATH": ""}  # as for Python 3.10, which does not have it


def write_shadows(folder: Path) -> str:
    """Write modules with the names of ours and of Python's."""
    (folder / "orchestrator" / "pretrain").mkdir(parents=True)
    for name in ("orchestrator/__init__.py", "typing.py", "queue.py"):
        (folder / name).write_text(SHADOW)
    (folder / "orchestrator" / "pretrain" / "__main__.py").write_text("")
    (folder / "orchestrator" / "pretrain" / "launch.py").write_text("")
    return str(folder)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The folder or the `PYTHONPATH` of the submitting shell has modules with the names of the program's or of "
    "Python's",
    promise="Jobs import the recorded copy of the program, and print its version and its folder.",
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_imports_the_recorded_copy_and_no_module_of_the_submitting_shell(kind: str, tmp_path: Path) -> None:
    folders = Folders(shipped=tmp_path, home=tmp_path)
    copy_program(folders)
    copy = str(program_folder(folders))
    cluster, plan = cluster_and_plan(kind)
    plan = replace(plan, program=replace(with_arguments(plan).program, python_path=copy, mounts=(copy,)))
    cluster = with_fields(cluster, environment=WITHOUT_SAFE_PATH, env_prepend={"PYTHONPATH": str(tmp_path / "site")})
    write_shadows(tmp_path / "site")
    (tmp_path / "site" / "typing.py").unlink()  # the profile may replace modules of Python, and not the program
    (tmp_path / "site" / "queue.py").unlink()
    stage = Stage.at(tmp_path)
    write_shadows(stage.submitting_folder)
    executable(
        tmp_path / "bin" / "python",
        f"""#!/bin/sh
[ "$1" != -c ] || exec {sys.executable} "$@"  # the fingerprint
exec {sys.executable} "$@" 2>&1 | tee -a "$RECORDS/output"
""",
    )
    shell = {name: write_shadows(tmp_path / name) for name in ("PYTHONPATH", "APPTAINERENV_PYTHONPATH")}
    stage.run(stage.render(plan, cluster), {**shell, "PYTHONHOME": "/nowhere", "TASKS": "0:0:0"})
    printed = (tmp_path / "output").read_text()
    assert "SHADOWED" not in printed
    assert printed.startswith(f" > program: {code_version()} in {copy}/orchestrator/pretrain\n")
    assert "error: the following arguments are required: --num-layers" in printed


@pytest.mark.parametrize("kind", KINDS)
def test_setup_and_env_from_may_set_the_import_path_and_images_do_not_use_packages_of_a_home(
    kind: str, tmp_path: Path
) -> None:
    cluster, plan = cluster_and_plan(kind)
    stage = Stage.at(tmp_path)
    cluster = with_fields(cluster, setup=["export PYTHONPATH=/of/setup"], env_from=["PYTHONUSERBASE"])
    stage.run_job(with_arguments(plan), cluster, {"PYTHONPATH": "/of/shell", "PYTHONUSERBASE": "/of/user"})
    environment = stage.environment()
    inherited = (
        [] if kind in ("mpirun", "podman-hpc", "docker") else ["/of/setup"]
    )  # they do not pass the variables of a script
    assert environment["PYTHONPATH"].split(":") == [str(plan.program.python_path), *inherited]
    assert (environment["PYTHONUSERBASE"], environment["PYTHONSAFEPATH"]) == ("/of/user", "1")
    assert environment.get("PYTHONNOUSERSITE") == ("1" if kind in RUNTIMES else None)
