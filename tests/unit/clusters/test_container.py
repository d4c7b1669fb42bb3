"""Container settings of a profile, and settings that a runtime does not support."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.clusters.container import ContainerFields
from orchestrator.errors import ReproError
from tests.unit.clusters.sites import PLAIN, cluster_of, short


def container(folder: Path, fields: str) -> ContainerFields:
    result = cluster_of(folder, f"{PLAIN}container: {{{fields}}}\n").profile.container
    assert result is not None
    return result


def messages(folder: Path, fields: str) -> str:
    with pytest.raises(ReproError) as caught:
        container(folder, fields)
    (only,) = caught.value.problems
    return short(only)


@pytest.mark.parametrize(
    ("version", "asked", "since"),
    [
        ("0.10", "writable: true", "0.11"),
        ("0.9.1", "writable: true", "0.11"),
        ("0.14", "pass_env: [NCCL_*]", "0.15"),
        ("0.7", "entrypoint: false", "0.8"),
    ],
)
def test_what_the_sites_pyxis_is_too_old_for_is_refused(version: str, asked: str, since: str, tmp_path: Path) -> None:
    fault = messages(tmp_path, f"runtime: pyxis, version: '{version}', {asked}")
    name = asked.partition(":")[0]
    assert fault == f"site.yaml:5:1 container: {name} needs pyxis {since} or newer, but version is {version}"


@pytest.mark.parametrize("version", ["0.15", "0.15.1", "0.20.0", "0.100", "1"])
def test_a_new_pyxis_and_an_unknown_version_support_all_options(version: str, tmp_path: Path) -> None:
    fields = "writable: true, pass_env: [NCCL_DEBUG]"
    assert container(tmp_path, f"runtime: pyxis, version: '{version}', {fields}").writable
    assert container(tmp_path, f"runtime: pyxis, {fields}").version is None


def test_an_old_pyxis_is_no_fault_of_a_profile_that_asks_for_nothing_new(tmp_path: Path) -> None:
    assert not container(tmp_path, "runtime: pyxis, version: '0.8', mounts: [/data]").writable


def test_the_version_of_another_runtime_is_not_pyxis_own(tmp_path: Path) -> None:
    assert container(tmp_path, "runtime: apptainer, version: '0.1', writable: true").writable


@pytest.mark.parametrize(("version", "has"), [(None, True), ("0.24.0", True), ("0.11", True), ("0.10.9", False)])
def test_a_pyxis_has_an_option_for_a_readonly_image_from_0_11_on(
    version: str | None, has: bool, tmp_path: Path
) -> None:
    said_version = f", version: '{version}'" if version else ""
    assert container(tmp_path, f"runtime: pyxis{said_version}").has("writable") == has


@pytest.mark.parametrize("version", ["v0.20", "0.20-rc1", "new", "0."])
def test_a_version_is_numbers_and_points(version: str, tmp_path: Path) -> None:
    assert "container.version: must match ^" in messages(tmp_path, f"runtime: pyxis, version: {version}")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("runtime: pyxis, modules: [gpu]", "modules needs runtime shifter, but runtime is pyxis"),
        ("runtime: shifter, annotations: {a.b: c}", "annotations needs runtime edf, but runtime is shifter"),
        (
            "runtime: pyxis, options: [--x]",
            "options needs runtime shifter or podman-hpc or docker or apptainer, but runtime is pyxis",
        ),
        ("runtime: apptainer, entrypoint: false", "entrypoint needs runtime pyxis, but runtime is apptainer"),
        ("runtime: edf, remap_root: false", "remap_root needs runtime pyxis, but runtime is edf"),
        ("runtime: docker, workdir: /tmp", "workdir needs runtime pyxis, but runtime is docker"),
        ("runtime: shifter, name: torch", "name needs runtime pyxis, but runtime is shifter"),
        (
            "runtime: pyxis, gpu_flag: --rocm",
            "gpu_flag needs runtime podman-hpc or docker or apptainer, but runtime is pyxis",
        ),
        (
            "runtime: edf, options: [--x]",
            "options needs runtime shifter or podman-hpc or docker or apptainer, but runtime is edf",
        ),
    ],
)
def test_what_only_another_runtime_has_is_refused(fields: str, why: str, tmp_path: Path) -> None:
    assert messages(tmp_path, fields) == f"site.yaml:5:1 container: {why}"


@pytest.mark.parametrize(
    "fields",
    [
        "runtime: shifter, modules: [gpu], options: [--x]",
        "runtime: edf, annotations: {com.hooks.x: 'true'}",
        "runtime: podman-hpc, options: [--openmpi-pmi2]",
        "runtime: apptainer, options: [--cleanenv]",
        "runtime: apptainer, gpu_flag: --rocm",
        "runtime: docker, gpu_flag: none, options: [--device=/dev/kfd]",
        "runtime: pyxis, entrypoint: false, remap_root: true, workdir: /tmp, name: torch",
    ],
)
def test_supported_fields_of_a_runtime_are_accepted(fields: str, tmp_path: Path) -> None:
    assert container(tmp_path, fields)


def test_an_unknown_runtime_is_refused(tmp_path: Path) -> None:
    assert "container.runtime: must be 'pyxis', 'edf', 'shifter'" in messages(tmp_path, "runtime: rkt")
    assert "write `container: null` to run jobs without containers" in messages(tmp_path, "runtime: none")


@pytest.mark.parametrize(
    "mount",
    [
        "/data",
        "./data",
        "/a:/b",
        "/a:/b:ro+rprivate",
        "tmpfs:/tmp",
        "umount:/x",
        "/run/net-{job_id}",
        "/home/{user}:/h",
    ],
)
def test_mounts_of_every_form_are_kept(mount: str, tmp_path: Path) -> None:
    assert container(tmp_path, f"runtime: pyxis, mounts: ['{mount}']").mounts == [mount]


@pytest.mark.fault(
    section="Safety",
    fault="Commas, braces, substitutions, quotes and backslashes in a mount, which pyxis writes into a shell script",
    promise="Refused, with the line of the profile.",
)
@pytest.mark.parametrize(
    ("mount", "why"),
    [
        ("data:/data", "a mount must start with / or ./"),
        ("/a:/a,/b:/b", "a mount must not contain a comma, where pyxis splits its list of mounts"),
        ("/a:/b:ro:rw", "a mount is SOURCE:TARGET:FLAGS"),
        ("/data/$(id)", 'a mount must not contain $, `, " or \\, which a shell on the node expands; use {job_id} and'),
        ("/data/`id`:/data", "a mount must not contain $, `, "),
        ("/data:/$HOME", "a mount must not contain $, `, "),
        ("/data:/data:ro$(id)", "a mount must not contain $, `, "),
        ('/data"', "a mount must not contain $, `, "),
        ("/data\\", "a mount must not contain $, `, "),
        ("/run/{job}", "{job} is not supported here, only {job_id}, {user}"),
    ],
)
def test_mounts_that_a_runtime_would_misread_are_refused_with_or_without_a_condition(
    mount: str, why: str, tmp_path: Path
) -> None:
    assert f"container.mounts.0: {why}" in messages(tmp_path, f"runtime: pyxis, mounts: ['{mount}']")
    assert f"container.mounts.0: {why}" in messages(
        tmp_path, f"runtime: pyxis, mounts: [{{mount: '{mount}', when: nodes > 1}}]"
    )


@pytest.mark.fault(
    section="Safety",
    fault="A blank in an image or a mount of pyxis, which ends a field of the file that it writes",
    promise="Refused, with the line of the profile, the reason and a hint.",
)
@pytest.mark.parametrize(
    ("field", "name", "path"),
    [
        ("mounts: ['/a b:/b']", "mounts.0", "/a b:/b"),
        ("mounts: [/a, '/a:/b c']", "mounts.1", "/a:/b c"),
        ("mounts: [{mount: '/a b', when: nodes > 1}]", "mounts.0", "/a b"),
        ("images: {pretrain: /i/a b.sqsh}", "images.pretrain", "/i/a b.sqsh"),
    ],
)
def test_a_blank_in_a_path_of_pyxis_is_refused_with_its_line(field: str, name: str, path: str, tmp_path: Path) -> None:
    (line,) = messages(tmp_path, f"runtime: pyxis, {field}").splitlines()
    assert re.match(
        rf"site.yaml:5:\d+ container.{name}: '{path}' has a blank; pyxis writes paths into lines of a", line
    )
    assert line.endswith("Hint: use a path without blanks, such as a link to the file or folder")
    assert container(tmp_path, f"runtime: apptainer, {field}")


@pytest.mark.parametrize("name", ["NCCL", "NCCL_*", "_x"])
def test_a_name_to_be_passed_on_may_stand_for_all_that_start_so(name: str, tmp_path: Path) -> None:
    assert container(tmp_path, f"runtime: pyxis, pass_env: ['{name}']").pass_env == [name]


@pytest.mark.parametrize("name", ["*", "*_X", "A,B", "A=1", "A*B", ""])
def test_what_is_no_variables_name_cannot_be_passed_on(name: str, tmp_path: Path) -> None:
    assert "container.pass_env.0: must match ^" in messages(tmp_path, f"runtime: pyxis, pass_env: ['{name}']")
