"""Jobs in containers of Debian's podman, on a real Slurm. A wrapper has the name `podman-hpc`."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.host import ClusterUnavailable, install_packages
from tests.slurm.site import SlurmSite
from tests.unavailable import give_up

_PROGRAMS = ("bash", "cat", "date", "dirname", "env", "sleep", "uname")
_IMAGE = "localhost/mini:1"
_WRAPPER = """\
#!/bin/bash
exec podman --root={folder}/store --runroot={folder}/run --storage-driver=vfs --cgroup-manager=cgroupfs \\
  --events-backend=file --runtime=runc "$@"
"""
# podman's own limits are higher than those of a sandbox.
_LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")


def image_files(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield programs of this machine and their libraries, with their places in an image."""
    for name in _PROGRAMS:
        program = Path(str(shutil.which(name))).resolve()
        yield program, root / "usr/bin" / name
        libraries = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        yield from ((Path(word), root / word[1:]) for word in libraries.split() if word.startswith("/"))


@pytest.fixture(scope="module")
def podman() -> Iterator[Path]:
    """Yield the folder of `podman-hpc` with an image whose entrypoint does not run its arguments."""
    folder = Path(tempfile.mkdtemp(prefix="repro-podman-"))
    try:
        install_packages(["podman", "runc"])
    except ClusterUnavailable as reason:
        give_up(f"no podman: {reason}")
    wrapper, root = folder / "podman-hpc", folder / "root"
    wrapper.write_text(_WRAPPER.format(folder=folder))
    wrapper.chmod(0o755)
    for source, target in image_files(root):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    (root / "bin").symlink_to("usr/bin")
    (root / "tmp").mkdir()
    archive = shutil.make_archive(str(folder / "mini"), "tar", root)
    commands = (
        [str(wrapper), "import", "--change", 'ENTRYPOINT ["/bin/cat", "--"]', archive, _IMAGE],
        [str(wrapper), "run", "--rm", "--entrypoint=", *_LIMITS, _IMAGE, "bash", "-c", "exit 0"],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            give_up(f"podman does not run here: {done.stderr.strip()}")
    yield folder
    subprocess.run([str(wrapper), "unmount", "--all"], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def site_of(folder: Path, podman: Path, mount: str) -> SlurmSite:
    site = SlurmSite(folder).use_stand_in()
    options = f"[{', '.join(_LIMITS)}]"
    with (folder / "site.yaml").open("a") as profile:
        profile.write(f"setup: ['export PATH={podman}:$PATH']\n")
        profile.write("container:\n  runtime: podman-hpc\n  gpu_flag: none\n")
        profile.write(f"  images: {{pretrain: {_IMAGE}}}\n  options: {options}\n  mounts: [{folder}, {mount}]\n")
    return site


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The entrypoint of an image does not run its arguments, with podman",
    promise="The program runs without the entrypoint, and the job is verified.",
)
def test_a_job_runs_in_an_image_whose_entrypoint_does_not_run_its_arguments(
    podman: Path,
    slurm_cluster: SlurmCluster,  # noqa: ARG001  needs it up
    tmp_path: Path,
) -> None:
    site = site_of(tmp_path, podman, "/tmp")
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    (row,) = site.wait_until_ended()
    assert row["verdict"] == "verified", row


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A container of podman does not start, because the source of a mount is missing",
    promise="Class `image`, with the line of podman.",
)
def test_a_container_of_podman_that_does_not_start_has_its_class_and_reason(
    podman: Path,
    slurm_cluster: SlurmCluster,  # noqa: ARG001  needs it up
    tmp_path: Path,
) -> None:
    site = site_of(tmp_path, podman, "/no/such/data")
    assert site.submit("--where", "pp=1,gbs=4").returncode == 0
    (row,) = site.wait_until_ended()
    assert (row["verdict"], row["failure"]) == ("failed", "image"), row
    assert "statfs /no/such/data: no such file or directory" in row["why"]
