"""Places and owners of bytecode of large packages."""

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
    """Return the cache folder, which does not exist yet. There is one large package, without bytecode."""
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


def test_bytecode_of_a_readonly_installation_is_cached_elsewhere(folder: Path) -> None:
    assert _import_quickly() == str(folder)
    assert not sys.dont_write_bytecode
    assert folder.stat().st_mode & 0o777 == 0o700


def test_bytecode_of_a_writable_installation_stays_in_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert _import_quickly() is None and not folder.exists()


def test_existing_bytecode_is_used(folder: Path) -> None:
    compiled = Path(cache_from_source(str(folder.parent / "large_package" / "__init__.py")))
    compiled.parent.mkdir()
    compiled.touch()
    assert _import_quickly() is None and sys.dont_write_bytecode


@pytest.mark.parametrize("trap", ["open to others", "of another user", "a link", "a file"])
def test_no_bytecode_is_read_from_a_folder_of_another_user(
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
