"""Tests of folders and ledgers that options, the environment and the working folder name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.paths import find_folders
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


def test_a_ledger_elsewhere_is_taken_from_the_option_before_the_environment(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repro.site.folder
    monkeypatch.setenv("REPRO_DATABASE", str(folder / "from environment.db"))
    assert repro("submit", *HERE, "--where", "pp=1,gbs=4", "--wait").returncode == 0
    assert (folder / "from environment.db").exists() and not (folder / "results.db").exists()
    assert len(json.loads(repro("status", "--json").stdout)["jobs"]) == 1
    assert json.loads(repro("status", "--json", "--database", "another.db").stdout)["jobs"] == []
    url = f"sqlite:///{folder}/another.db"
    assert repro("submit", *HERE, "--where", "pp=1,gbs=4", "--database", url, "--wait").returncode == 0
    assert len(json.loads(repro("status", "--json", "--database", "another.db").stdout)["jobs"]) == 1


def test_jobs_are_submitted_from_one_folder_and_seen_from_another(repro: Caller, tmp_path: Path) -> None:
    profile = str(repro.site.folder / "clusters" / "here.yaml")
    words = ("figure-13", "--cluster", profile, "--scale", "cpu", "--where", "pp=1,gbs=4")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert repro("submit", *words, "--wait", folder=elsewhere).returncode == 0
    assert list(elsewhere.iterdir()) == []
    assert [row["verdict"] for row in json.loads(repro("status", "--json").stdout)["jobs"]] == ["verified"]


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
