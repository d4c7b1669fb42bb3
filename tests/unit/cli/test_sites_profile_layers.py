"""Tests of files that change a profile: they are named, and refused if another user can write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.clusters.resolve import find_cluster
from orchestrator.errors import ReproError
from orchestrator.paths import Folders
from tests.unit.cli.calling import Caller
from tests.unit.clusters.sites import PLAIN, write_profile

SETUP = "setup: [touch /tmp/added-by-a-layer]\n"
CASE = ("figure-13", "--scale", "cpu", "--where", "pp=1,gbs=4")


@pytest.mark.fault(
    section="Safety",
    fault="An overlay in the working folder adds commands to a shipped profile",
    promise="`render`, `submit` and `submit --dry-run` name the file and the fields that it sets.",
)
@pytest.mark.parametrize("command", [("render",), ("submit", "--dry-run"), ("submit", "--wait")])
def test_an_overlay_of_the_working_folder_is_named_on_stderr(
    repro: Caller, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "work" / "clusters").mkdir(parents=True)
    overlay = tmp_path / "work" / "clusters" / "local.local.yaml"
    program = repro.site.folder / "train.sh"
    overlay.write_text(f'setup: ["true"]\nprograms: {{pretrain: {{python: "{program}"}}}}\n')
    done = repro(command[0], *CASE, "--cluster", "local", *command[1:], folder=tmp_path / "work")
    assert done.returncode == 0, done.stderr
    named = "note: profile local: the layer clusters/local.local.yaml sets setup, programs"
    assert done.stderr.splitlines().count(named) == 1


def test_the_script_names_every_file_of_its_profile(repro: Caller) -> None:
    folder = repro.site.folder / "clusters"
    plain = repro("render", *CASE, "--cluster", "here").stdout
    assert "profile" not in plain.partition("set -euo")[0]
    (folder / "here.local.yaml").write_text(SETUP)
    script = repro("render", *CASE, "--cluster", "here").stdout
    assert f"# The profile is merged from {folder}/here.yaml, {folder}/here.local.yaml\n" in script


@pytest.mark.fault(
    section="Safety",
    fault="A profile in the working folder has the name of a shipped one",
    promise="`render`, `submit` and `submit --dry-run` name the file and the fields that it sets.",
)
def test_a_profile_that_replaces_a_shipped_one_is_named(repro: Caller) -> None:
    folder = repro.site.folder / "clusters"
    (folder / "here.yaml").rename(folder / "local.yaml")
    done = repro("render", *CASE, "--cluster", "local")
    assert "note: profile local: clusters/local.yaml replaces the shipped profile of this name" in done.complaints


@pytest.mark.fault(
    section="Safety",
    fault="A file of a profile that every user can write",
    promise="Refused.",
)
@pytest.mark.parametrize("name", ["site.yaml", "site.local.yaml", "base.yaml"])
def test_a_layer_that_every_user_can_write_is_refused(tmp_path: Path, name: str) -> None:
    (only,) = refusals(tmp_path, name, lambda path: path.chmod(0o646))
    assert only.startswith(f"{tmp_path}/own/clusters/{name}: every user can write to it")
    assert only.endswith(f"check its content, then: chmod o-w {tmp_path}/own/clusters/{name}")


@pytest.mark.fault(
    section="Safety",
    fault="A file of a profile that belongs to another user",
    promise="Refused.",
)
@pytest.mark.parametrize("name", ["site.yaml", "site.local.yaml", "base.yaml"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_layer_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    (only,) = refusals(tmp_path, name, lambda path: os.chown(path, 4321, -1))
    assert only.startswith(
        f"{tmp_path}/own/clusters/{name}: belongs to user 4321, whose commands would run as you. Hint: "
    )
    assert only.endswith(f": cp {tmp_path}/own/clusters/{name} COPY")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_layer_of_the_user_or_of_the_owner_of_the_package_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (tmp_path / "own").mkdir()
    write_profile(tmp_path / "own", PLAIN, SETUP)
    profile, overlay = (tmp_path / "own" / "clusters" / name for name in ("site.yaml", "site.local.yaml"))
    os.chown(shipped, 77, -1)
    os.chown(profile, 78, -1)
    os.chown(overlay, 77, -1)
    monkeypatch.setattr("os.geteuid", lambda: 78)
    assert find_cluster(Folders(shipped=shipped, home=tmp_path), str(profile)).files == (profile, overlay)


def refusals(tmp_path: Path, name: str, change: object) -> list[str]:
    """What is said of the profile `site`, which extends `base` and has an overlay, after a change of one file."""
    (tmp_path / "own").mkdir()
    write_profile(tmp_path / "own", PLAIN, name="base")
    folders = write_profile(tmp_path / "own", "extends: base\nabout: a site\n", SETUP)
    assert callable(change)
    change(tmp_path / "own" / "clusters" / name)
    with pytest.raises(ReproError) as caught:
        find_cluster(Folders(shipped=tmp_path, home=folders.home), str(tmp_path / "own" / "clusters" / "site.yaml"))
    return list(dict.fromkeys(map(str, caught.value.problems)))
