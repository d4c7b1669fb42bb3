"""Who submitted what from which code."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.launch.run_record import provenance


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@here", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    made = provenance(checkout)
    assert (made.git_commit, made.git_dirty) == (git(checkout, "rev-parse", "HEAD"), False)
    assert (made.user, made.host) == (pwd.getpwuid(os.getuid()).pw_name, socket.gethostname())


def test_a_changed_file_makes_it_dirty_and_a_new_one_does_not(checkout: Path) -> None:
    (checkout / "results.txt").write_text("new")
    assert provenance(checkout).git_dirty is False
    (checkout / "file").write_text("two")
    assert provenance(checkout).git_dirty is True


def test_a_folder_that_is_no_checkout_says_nothing_of_the_one_it_lies_in(checkout: Path) -> None:
    (checkout / "installed").mkdir()
    made = provenance(checkout / "installed")
    assert (made.git_commit, made.git_dirty) == (None, None)


def test_a_checkout_without_a_commit_and_a_machine_without_git_are_no_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "--quiet")
    assert provenance(tmp_path).git_commit is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance(tmp_path).git_commit is None


def test_a_user_without_a_name_is_known_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless(_uid: int) -> pwd.struct_passwd:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    assert provenance(tmp_path).user == str(os.getuid())


def test_the_environment_does_not_say_whose_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    assert provenance(tmp_path).user == pwd.getpwuid(os.getuid()).pw_name


def test_the_versions_of_what_computes_and_what_submits_are_kept(tmp_path: Path) -> None:
    versions = provenance(tmp_path).versions
    assert versions["repro"] == __version__
    assert {"python", "submitit", "sqlalchemy"} <= set(versions)
