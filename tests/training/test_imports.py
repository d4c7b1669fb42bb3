"""Where Python keeps compiled files of large packages, and who may write there."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from orchestrator.pretrain import environment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which does not exist yet. There is one large package, without compiled files."""
    (tmp_path / "large_package").mkdir()
    (tmp_path / "large_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, "_LARGE_PACKAGES", ("large_package",))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path / f"pretrain-bytecode-{tmp_path.stat().st_uid}"


def _import_quickly() -> str | None:
    with environment.quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    return sys.pycache_prefix


def test_compiled_files_are_kept_where_an_installation_has_none_and_may_not_write_them(folder: Path) -> None:
    assert _import_quickly() == str(folder)
    assert not sys.dont_write_bytecode
    assert folder.stat().st_mode & 0o777 == 0o700


def test_python_keeps_its_own_files_where_it_can(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert _import_quickly() is None and not folder.exists()


def test_compiled_files_of_the_installation_are_used(folder: Path) -> None:
    compiled = Path(cache_from_source(str(folder.parent / "large_package" / "__init__.py")))
    compiled.parent.mkdir()
    compiled.touch()
    assert _import_quickly() is None and sys.dont_write_bytecode


@pytest.mark.parametrize("trap", ["open to others", "of another user", "a link", "a file"])
def test_nothing_is_imported_from_a_folder_that_another_user_can_fill(
    trap: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trap == "a link":
        folder.symlink_to(folder.parent)
    elif trap == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777 if trap == "open to others" else 0o700)
    if trap == "of another user":
        uid = folder.stat().st_uid + 1
        monkeypatch.setattr(os, "getuid", lambda: uid)
        folder.rename(folder.with_name(f"pretrain-bytecode-{uid}"))
    assert _import_quickly() is None and sys.dont_write_bytecode
