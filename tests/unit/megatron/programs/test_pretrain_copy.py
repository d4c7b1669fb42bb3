"""Tests of the copy of `orchestrator.pretrain` that jobs import: complete, alone, and protected."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

import orchestrator.pretrain
from orchestrator.errors import ReproError
from orchestrator.megatron.programs.pretrain import PretrainSite, code_version, copy_program, program_folder
from orchestrator.paths import Folders

SOURCES = Path(orchestrator.pretrain.__file__).parent


def folders_at(home: Path) -> Folders:
    return Folders(shipped=home, home=home)


def test_code_version_is_stable_and_has_the_stored_form() -> None:
    first = code_version()
    assert first == code_version()
    name, _, digest = first.partition("-")
    assert name == "pretrain" and len(digest) == 12 and int(digest, 16) >= 0


def test_python_of_a_profile_is_absolute_or_in_path_because_jobs_run_in_their_own_folder() -> None:
    for python in ("python3", "/venv/python", None):
        assert PretrainSite(python=python).python == python
    with pytest.raises(ValidationError, match="must be an absolute path"):
        PretrainSite(python="venv/python")


def test_copy_has_only_the_files_of_the_program(tmp_path: Path) -> None:
    folders = folders_at(tmp_path)
    copy_program(folders)
    folder = program_folder(folders)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    expected = {f"orchestrator/pretrain/{file.name}" for file in SOURCES.glob("*.py")}
    assert files == expected | {"orchestrator/__init__.py"}
    assert all((SOURCES / Path(name).name).read_bytes() == (folder / name).read_bytes() for name in expected)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_copy_runs_without_the_rest_of_repro(tmp_path: Path) -> None:
    folders = folders_at(tmp_path)
    copy_program(folders)
    command = [sys.executable, "-Sc", "import orchestrator.pretrain.arguments as one; print(one.__file__)"]
    clean = {"PYTHONPATH": str(program_folder(folders)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith(str(program_folder(folders))), done.stderr


@pytest.mark.fault(
    section="Safety",
    fault="Any umask, for the copy of the program that jobs import",
    promise="User and group can read it, nobody else.",
)
@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_copy_is_readable_for_user_and_group_with_any_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        copy_program(folders_at(tmp_path))
    finally:
        os.umask(before)
    folder = program_folder(folders_at(tmp_path))
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Eight processes make the copy of the program at the same time",
    promise="There is one complete copy.",
)
def test_concurrent_copies_leave_one_complete_copy(tmp_path: Path) -> None:
    folders = folders_at(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(copy_program, folders) for _ in range(8)]:
            future.result()
    assert [path.name for path in program_folder(folders).parent.iterdir()] == [code_version()]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The copy of the program that jobs import was changed, or a file was added to it",
    promise="Refused, with the file.",
)
@pytest.mark.parametrize("name", ["orchestrator/pretrain/model.py", "numpy.py"])
def test_changed_copy_is_refused(name: str, tmp_path: Path) -> None:
    folders = folders_at(tmp_path)
    copy_program(folders)
    (program_folder(folders) / name).write_text("changed")
    with pytest.raises(ReproError, match=rf"{name} .*. Hint: remove this folder, then repeat the command$"):
        copy_program(folders)


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The copy of the program cannot be written",
    promise="Refused, with the hint to set `REPRO_HOME`.",
)
def test_unwritable_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ReproError, match=r"runs.* cannot be copied .*File exists.*set REPRO_HOME"):
        copy_program(folders_at(tmp_path))
