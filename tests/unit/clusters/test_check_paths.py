"""Paths of a profile, and the machine on which each is checked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.clusters.check import Finding, Presence, path_findings, presence, site_paths
from tests.unit.clusters.sites import PLAIN, cluster_of

EVERYTHING = """\
site: {staging_folder: /scratch/images}
slurm: {sbatch: ["--chdir=/home/ann/work", "--mail-type=FAIL"]}
container:
  runtime: pyxis
  images:
    nvidia/pytorch:20.12-py3: /images/torch.sqsh
    pretrain: registry.example/team/torch:1
  mounts:
    - /lustre/data:/data
    - /home/{user}:/home
    - tmpfs:/scratch
    - mount: /opt/fabric
      when: nodes > 1
programs:
  pretrain: {python: /opt/conda/bin/python}
  megatron-2021:
    checkout: /code/Megatron-LM
    data_path: /data/gpt2_text_document
    vocab_file: /data/gpt2-vocab.json
    merge_file: /vocab/gpt2-merges.txt
"""


def paths(folder: Path, overlay: str) -> dict[str, str]:
    cluster = cluster_of(folder, PLAIN, overlay)
    return {finding.path: f"{finding.check} {finding.location.rpartition('/')[2]}" for finding in site_paths(cluster)}


def test_every_path_that_can_be_checked_before_a_job_has_its_field_and_line(tmp_path: Path) -> None:
    assert paths(tmp_path, EVERYTHING) == {
        "/images/torch.sqsh": "container.images.nvidia/pytorch:20.12-py3 site.local.yaml:6:5",
        "/scratch/images/team+torch+1.sqsh": "container.images.pretrain site.local.yaml:7:5",
        "/lustre/data": "container.mounts site.local.yaml:9:7",
        "/code/Megatron-LM": "programs.megatron-2021.checkout site.local.yaml:17:5",
        "/lustre/data/gpt2_text_document.bin": "programs.megatron-2021.data_path site.local.yaml:18:5",
        "/lustre/data/gpt2_text_document.idx": "programs.megatron-2021.data_path site.local.yaml:18:5",
        "/lustre/data/gpt2-vocab.json": "programs.megatron-2021.vocab_file site.local.yaml:19:5",
        "/vocab/gpt2-merges.txt": "programs.megatron-2021.merge_file site.local.yaml:20:5",
        "/home/ann/work": "slurm.sbatch --chdir site.local.yaml:2:18",
        "/scratch/images": "site.staging_folder site.local.yaml:1:8",
    }


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The user cannot write to the staging folder",
    promise="`repro clusters check` reports it.",
    count=0,
)
@pytest.mark.parametrize(("writable", "result"), [(True, "ok"), (False, "later")])
def test_a_staging_folder_without_write_permission_is_reported(
    writable: bool, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, _mode: writable or str(path) != str(tmp_path))
    (finding,) = path_findings(cluster_of(tmp_path, PLAIN, f"site: {{staging_folder: {tmp_path}}}\n"), "login")
    assert (finding.check, finding.result, finding.is_fault) == ("site.staging_folder", result, False)
    assert ("you cannot write to it" in finding.found) == (not writable)


def test_a_python_is_a_path_of_the_node_only_without_a_container(tmp_path: Path) -> None:
    python = "programs: {pretrain: {python: /opt/conda/bin/python}}\n"
    assert list(paths(tmp_path, python)) == ["/opt/conda/bin/python"]
    assert paths(tmp_path, f"{python}container: {{runtime: pyxis}}\n") == {}


def test_what_is_still_to_be_filled_in_is_not_looked_for(tmp_path: Path) -> None:
    blank = "container: {runtime: pyxis, images: {a: <file>}, mounts: [<data>]}\nsite: {staging_folder: <where>}\n"
    assert paths(tmp_path, blank) == {}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a profile with an image that exists, and a mount that does not exist."""
    (tmp_path / "there.sqsh").touch()
    return tmp_path


def overlay(folder: Path, also: str = "") -> str:
    image, mount = folder / "there.sqsh", folder / "gone"
    return f"container: {{runtime: pyxis, images: {{pretrain: {image}}}, mounts: ['{mount}']}}\n{also}"


def rows(results: list[Finding]) -> list[tuple[str, str, str, str | None]]:
    return [(finding.check, finding.place, finding.result, finding.hint) for finding in results]


def test_a_login_node_that_sees_the_paths_names_those_that_are_not_there(files: Path) -> None:
    results = path_findings(cluster_of(files, PLAIN, overlay(files)), "login")
    assert rows(results) == [
        ("container.images.pretrain", "login", "ok", None),
        ("container.mounts", "login", "wrong", "correct the path, or create it"),
    ]
    assert results[1].found == f"{files / 'gone'}: no such file or folder"


def test_a_login_node_that_does_not_see_them_leaves_them_to_a_job(files: Path) -> None:
    cluster = cluster_of(files, PLAIN, overlay(files, "site: {login_sees_paths: false}\n"))
    for results in (path_findings(cluster, "login"), path_findings(cluster, "compute")):
        assert {(finding.place, finding.result, finding.hint) for finding in results} == {
            ("compute", "not checked", "use --job")
        }


def test_what_a_job_saw_counts_and_not_what_this_machine_has(files: Path) -> None:
    cluster = cluster_of(files, PLAIN, overlay(files))
    seen: dict[str, Presence] = {str(files / "there.sqsh"): "no", str(files / "gone"): "yes"}
    results = path_findings(cluster, "compute", seen)
    assert [(finding.place, finding.result) for finding in results] == [("compute", "wrong"), ("compute", "ok")]


def test_a_file_that_the_user_may_not_read_is_a_fault_of_an_image_and_not_of_a_mount(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode == os.R_OK and path.startswith(str(files))))
    file = str(files / "there.sqsh")
    assert (presence(file), presence(str(files / "gone"))) == ("unreadable", "no")
    text = f"container: {{runtime: pyxis, images: {{pretrain: {file}}}, mounts: ['{file}:/x']}}\n"
    cluster = cluster_of(files, PLAIN, text)
    for results in (path_findings(cluster, "login"), path_findings(cluster, "compute", {file: "unreadable"})):
        assert [(finding.check, finding.result, finding.found) for finding in results] == [
            ("container.images.pretrain", "wrong", f"{file}: you may not read it"),
            ("container.mounts", "ok", file),
        ]
        assert results[0].location == cluster.location(("container", "images", "pretrain"))


def test_a_missing_import_of_a_registry_image_has_the_command_as_hint(files: Path) -> None:
    text = f"site: {{staging_folder: {files}}}\ncontainer: {{runtime: pyxis, images: {{a: registry.example/a:1}}}}\n"
    image, folder = path_findings(cluster_of(files, PLAIN, text), "login")
    assert (image.result, image.hint) == ("wrong", "repro images import --cluster site")
    assert folder.result == "ok"


def test_missing_code_and_data_have_the_fetch_as_hint_and_fetched_ones_their_time(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").touch()
    record: dict[str, object] = {"source": "https://example.org/v", "commit": "", "sha256": {}, "user": "ann"}
    record["fetched"] = "2026-11-01T10:00:00Z"
    (tmp_path / "vocab.json.fetched.json").write_text(json.dumps(record))
    values = {"checkout": "code", "data_path": "tokens", "vocab_file": "vocab.json", "merge_file": "merges.txt"}
    settings = ", ".join(f"{field}: {tmp_path / name}" for field, name in values.items())
    results = path_findings(cluster_of(tmp_path, PLAIN, f"programs: {{megatron-2021: {{{settings}}}}}\n"), "login")
    hints = {finding.found.removeprefix(f"{tmp_path}/"): finding.hint for finding in results}
    command = "repro programs fetch megatron-2021 --cluster site"
    assert hints == {
        "code: no such file or folder": command,
        "tokens.bin: no such file or folder": command,
        "tokens.idx: no such file or folder": command,
        "vocab.json, fetched 2026-11-01T10:00:00Z": None,
        "merges.txt: no such file or folder": command,
    }
