"""The files of `orchestrator.pretrain` that jobs import, copied to a folder that contains nothing else.

Jobs do not import from the environment in which `repro` is installed: its other packages, such as numpy, would replace
those of the image. The copy also keeps a queued job on the code that it was submitted with.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.job_dir import private_folder
from orchestrator.paths import Folders

_SOURCES = Path(__file__).resolve().parent.parent / "pretrain"
_INIT = '"""The part of repro that jobs import."""\n'
_FILE_MODE = 0o640
_MEND = "remove this folder, then repeat the command"


@cache
def code_version() -> str:
    """Return the name of this version of the program, which has a digest of its sources in it.

    It is part of a job's identity: another version is another job.
    """
    digest = hashlib.sha256()
    for name, content in _sources().items():
        digest.update(name.encode() + b"\0" + content + b"\0")
    return f"pretrain-{digest.hexdigest()[:12]}"


def program_folder(folders: Folders) -> Path:
    """Return the folder that PYTHONPATH of a job needs; `copy_program` makes it."""
    return folders.program(code_version())


def copy_program(folders: Folders) -> None:
    """Copy the program to its folder unless it is there; for user and group only, and complete or not at all.

    ReproError where the copy cannot be written, or where the folder has other contents.
    """
    folder, files = program_folder(folders), _files()
    try:
        if not folder.exists():
            private_folder(folder.parent)
            _write_at_once(folder, files)
        _require_same(folder, files)
    except OSError as error:
        what = f"the files that jobs import cannot be copied ({error.strerror or error})"
        hint = "set REPRO_HOME to a folder that you can write to"
        raise ReproError(Problem(what, str(error.filename or folder), hint)) from None


@cache
def _sources() -> Mapping[str, bytes]:
    """Return name -> contents of each source file, read once: the copy has the files of `code_version`."""
    return {file.name: file.read_bytes() for file in sorted(_SOURCES.glob("*.py"))}


def _files() -> dict[str, bytes]:
    """Return path in the folder -> contents."""
    package = {f"orchestrator/pretrain/{name}": content for name, content in _sources().items()}
    return {"orchestrator/__init__.py": _INIT.encode(), **package}


def _write_at_once(folder: Path, files: Mapping[str, bytes]) -> None:
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        for name, content in files.items():
            path = unfinished / name
            private_folder(path.parent)
            path.write_bytes(content)
            path.chmod(_FILE_MODE)
        unfinished.rename(folder)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.exists():  # else another process was faster
            raise


def _require_same(folder: Path, files: Mapping[str, bytes]) -> None:
    """ReproError where a file differs, or where there is something beside the package for a job to import."""
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            raise ReproError(Problem("differs from the file of this version of repro", str(path), _MEND))
    beside = sorted(path for path in folder.iterdir() if path.name != "orchestrator")
    if beside:
        raise ReproError(Problem("not a file of repro, and jobs could import it", str(beside[0]), _MEND))
