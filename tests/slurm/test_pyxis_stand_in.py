"""Stand-in for pyxis on a real Slurm: it prints and does what pyxis 0.24 was observed to print and do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.slurm import pyxis
from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.host import ClusterUnavailable
from tests.slurm.pyxis import Pyxis, write_image

pytestmark = pytest.mark.usefixtures("slurm_cluster")

NEW_TARGET = "/pyxis-stand-in"
"""A path that the host does not have."""

OPTIONS = {
    "container-image": "0.1",
    "container-mounts": "0.1",
    "container-workdir": "0.1",
    "container-name": "0.1",
    "container-save": "0.7",
    "container-mount-home": "0.3",
    "no-container-mount-home": "0.3",
    "container-remap-root": "0.4",
    "no-container-remap-root": "0.4",
    "container-entrypoint": "0.8",
    "no-container-entrypoint": "0.8",
    "container-entrypoint-log": "0.20",
    "container-writable": "0.11",
    "container-readonly": "0.11",
    "container-env": "0.15",
    "container-unshare": "0.24",
}
"""With the first pyxis that has them, from its changelog."""


@dataclass
class Steps:
    """Runner of steps in a folder that holds an image file."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        return f"--container-image={self.folder}/image"

    def srun(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.variables, **variables}
        return subprocess.run(
            ["srun", "-Q", "-t10", *arguments],
            cwd=self.folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=600,
            check=False,
        )

    def shell(self, command: str, *options: str, **variables: str) -> str:
        """Return the output of a successful command in a step of the image."""
        done = self.srun(self.image, *options, "bash", "-c", command, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    write_image(tmp_path / "image")
    return Steps(tmp_path)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """Return a folder that is not in /tmp."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def messages_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the error messages of pyxis on the nodes, in order, with N for process and job ids."""
    lines = re.findall(r"^slurmstepd(?:-\w+)?: error: pyxis: (.*)$", done.stderr, re.M)
    return [re.sub(r"(?<=child )\d+|(?<=pyxis_)\d+", "N", line) for line in lines]


def newer(cluster: SlurmCluster, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Yield the records that are new."""
    return [record for record in cluster.pyxis_records if record not in before]


# ---- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.24", "0.20", "0.14", "0.10"])
def test_srun_lists_only_the_options_of_its_pyxis_version(slurm_cluster: SlurmCluster, version: str) -> None:
    with slurm_cluster.pyxis(Pyxis(version=version)):
        text = slurm_cluster.run("srun", "--help")
    listed = re.findall(r"--((?:no-)?container-[a-z-]+)\b[^\[]*(?:\[[^p][^\[]*)*?\[pyxis\]", text)
    number = int(version.split(".")[1])
    assert listed == [name for name, since in OPTIONS.items() if int(since.split(".")[1]) <= number]


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (["--container-image="], ["--container-image: argument required"]),
        (["--container-mounts="], ["--container-mounts: argument required"]),
        (
            ["--container-mounts=data:/data"],
            [
                'mount source must be a relative path, an absolute path, "tmpfs" or "umount"',
                "could not add mount entry: data:/data",
            ],
        ),
        (
            ["--container-mounts=/tmp:/ok,a:b:c:d"],
            [
                'mount source must be a relative path, an absolute path, "tmpfs" or "umount"',
                "could not add mount entry: a:b",
            ],
        ),
        (
            ["--container-mounts=/tmp:data"],
            ["mount target must be a relative path or an absolute path", "could not add mount entry: /tmp:data"],
        ),
        (["--container-image=/a", "--container-image=/b"], ["--container-image specified multiple times"]),
        (
            ["--container-remap-root", "--no-container-remap-root"],
            ["both --container-remap-root and --no-container-remap-root were specified"],
        ),
        (["--container-unshare=net,foo"], ["--container-unshare: unknown namespace 'foo'"]),
    ],
)
def test_srun_refuses_invalid_options(steps: Steps, options: list[str], messages: list[str]) -> None:
    done = steps.srun(*options, "true")
    assert done.returncode == 255
    option, _, value = options[-1].partition("=")
    last = f"srun: error: Invalid {option} argument: {value if '=' in options[-1] else '(null)'}"
    assert done.stderr.splitlines() == [*(f"srun: error: pyxis: {line}" for line in messages), last]


def test_a_repeated_option_with_the_same_value_is_accepted(steps: Steps) -> None:
    assert steps.shell("echo ran", steps.image) == "ran"


def test_options_without_an_image_are_ignored_and_the_step_runs_on_the_host(
    slurm_cluster: SlurmCluster, steps: Steps
) -> None:
    before = slurm_cluster.pyxis_records
    done = steps.srun("--container-mounts=/tmp:/data", "--container-writable", "pwd")
    assert (done.returncode, done.stdout.strip()) == (0, str(steps.folder))
    reason = "because neither --container-image nor --container-name is set"
    assert done.stderr.splitlines() == [
        f"srun: error: pyxis: ignoring --container-mounts {reason}",
        f"srun: error: pyxis: ignoring --container-writable {reason}",
    ]
    assert slurm_cluster.pyxis_records == before


def test_the_last_of_two_mount_options_reaches_the_node(slurm_cluster: SlurmCluster, steps: Steps) -> None:
    # srun accepts both. Slurm (22.05) ignores the first without a message.
    before = slurm_cluster.pyxis_records
    steps.shell("true", "--container-mounts=/tmp:/a", "--container-mounts=/tmp:/b")
    assert [record["container-mounts"] for record in newer(slurm_cluster, before)] == ["/tmp:/b"]


# ---- failures on the node ------------------------------------------------------------------------------------


REMOVAL = "child N failed with error code: 1"
"""At the end of a step pyxis removes a container that was never created."""

NOT_STARTED = "container was not started successfully by another task"


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("/nosuch/x.sqsh", "No such file or directory: /nosuch/x.sqsh"),
        ("./nope.sqsh", "No such file or directory: {folder}/nope.sqsh"),
        ("/tmp", "No such file or directory: /tmp"),
        ("./link", "Invalid image format: {folder}/target"),
    ],
)
def test_a_file_that_is_not_an_image_is_refused(steps: Steps, image: str, reason: str) -> None:
    (steps.folder / "target").write_text("this is no image\n")
    (steps.folder / "link").symlink_to(steps.folder / "target")
    done = steps.srun("-wn1,n2", f"--container-image={image}", "true")
    messages = [
        "child N failed with error code: 1",
        f"failed to create container filesystem for image: {image}",
        "printing enroot log file:",
        f"    [ERROR] {reason.format(folder=steps.folder)}",
        REMOVAL,
    ]
    assert done.returncode == 1 and sorted(messages_of(done)) == sorted(2 * messages), "the lines of two nodes mix"
    assert messages_of(steps.srun(f"--container-image={image}", "true")) == messages
    assert len(re.findall(r"required plugin spank_pyxis.so: task_init\(\) failed with rc=-1", done.stderr)) == 2
    assert done.stderr.count("error: Failed to invoke spank plugin stack") == 2
    assert re.search(r"srun: error: n2: task 1: Exited with exit code 1", done.stderr)


def test_one_task_of_a_node_reports_the_cause_and_the_others_that_another_task_failed(
    slurm_cluster: SlurmCluster, steps: Steps
) -> None:
    options = ("-wn1", "-n3", "--container-image=/nosuch/x.sqsh", "true")
    cause = "    [ERROR] No such file or directory: /nosuch/x.sqsh"
    messages = messages_of(steps.srun(*options))
    assert (messages.count(cause), messages.count(NOT_STARTED), messages.count(REMOVAL)) == (1, 2, 2)
    with slurm_cluster.pyxis(Pyxis(version="0.23")):
        messages = messages_of(steps.srun(*options))
    assert (messages.count(cause), messages.count("couldn't start container"), NOT_STARTED in messages) == (1, 3, False)


@pytest.mark.parametrize(
    ("image", "host"),
    [("image", "registry.example"), ("docker://me@hub.example#library/x:1", "hub.example")],
)
def test_an_image_without_leading_slash_or_dot_is_pulled_from_a_registry(steps: Steps, image: str, host: str) -> None:
    done = steps.srun(f"--container-image={image}", "true")
    assert done.returncode == 1
    assert f"pyxis: importing docker image: {image}" in done.stderr.splitlines()
    assert messages_of(done) == [
        "child N failed with error code: 6",
        f"failed to import docker image: {image}",
        "printing enroot log file:",
        "    [INFO] Querying registry for permission grant",
        f"    curl: (6) Could not resolve host: {host}",
        REMOVAL,
    ]
    assert "importing" not in steps.srun("-n2", f"--container-image={image}", "true").stderr


def test_pyxis_0_24_checks_mount_sources_before_the_container_starts(slurm_cluster: SlurmCluster, steps: Steps) -> None:
    arguments = (steps.image, f"--container-mounts=/nosuch:{NEW_TARGET}", "true")
    done = steps.srun(*arguments)
    assert done.returncode == 1
    assert messages_of(done) == [
        "--container-mounts: source path does not exist: /nosuch",
        "couldn't create enroot start configuration script",
        "printing enroot log file:",
        "    [INFO] Extracting squashfs filesystem...",
        "    Parallel unsquashfs: Using 2 processors",
        "    2 inodes (1 blocks) to write",
        "    ",
        "    ",
        "    created 1 file",
        "    created 1 directory",
        "    created 1 symlink",
        "    created 0 devices",
        "    created 0 fifos",
        "    created 0 sockets",
        "    created 0 hardlinks",
        NOT_STARTED,
    ]
    with slurm_cluster.pyxis(Pyxis(version="0.23")):
        done = steps.srun(*arguments)
    assert done.returncode == 1
    first, *_, third, last = messages_of(done)
    assert (first, last) == ("container start failed with error code: 1", "couldn't start container")
    assert re.fullmatch(
        rf"    enroot-mount: failed to mount: /nosuch at \S+{NEW_TARGET}: No such file or directory", third
    )


@pytest.mark.parametrize("folder", ["/nosuch", "nosuch"])
def test_a_missing_working_directory_fails_the_step(steps: Steps, folder: str) -> None:
    done = steps.srun(steps.image, f"--container-workdir={folder}", "pwd")
    assert done.returncode == 1 and done.stdout == ""
    assert messages_of(done) == [f"couldn't chdir to {folder}: No such file or directory"]


def test_a_named_container_is_not_kept(steps: Steps) -> None:
    done = steps.srun("--container-name=mine", "true")
    missing = 'error: a container with name "pyxis_N_mine" does not exist, and --container-image is not set'
    assert (done.returncode, messages_of(done)) == (1, [missing])
    done = steps.srun(steps.image, "--container-name=mine:exec", "true")
    not_running = 'error: "exec" flag was passed to --container-name but the container is not running'
    assert (done.returncode, messages_of(done)) == (1, [not_running])


def test_the_step_has_the_exit_code_of_the_program(steps: Steps) -> None:
    assert steps.srun(steps.image, "bash", "-c", "exit 42").returncode == 42


# ---- inside the container ------------------------------------------------------------------------------------


def test_missing_mount_targets_exist_in_the_step_and_not_on_the_host(steps: Steps) -> None:
    data = steps.folder / "data"
    data.mkdir()
    (data / "x").write_text("from the host\n")
    mounts = f"{data}:{NEW_TARGET}/deep,{data / 'x'}:{NEW_TARGET}/file:ro,./data:./{NEW_TARGET}/ro:zz+ro,/tmp"
    command = f"pwd; cat x ../file; touch ../ro/y || echo refused; echo back > y; test -e {data} && echo same"
    options = ("-wn1,n2", f"--container-mounts={mounts}", f"--container-workdir={NEW_TARGET}/deep")
    expected = [f"{NEW_TARGET}/deep", "from the host", "from the host", "refused", "same"]
    assert sorted(steps.shell(command, *options).splitlines()) == sorted(2 * expected)
    assert (data / "y").read_text() == "back\n"
    assert not Path(NEW_TARGET).exists()


def test_the_image_is_writable_only_on_request_and_the_host_is_unchanged(steps: Steps) -> None:
    command = f"mkdir {NEW_TARGET} && echo written || echo refused"
    assert steps.shell(command) == steps.shell(command, "--container-readonly") == "refused"
    assert steps.shell(command, "--container-writable") == "written"
    assert not Path(NEW_TARGET).exists()


def test_the_home_folder_of_the_host_is_visible_only_if_mounted(steps: Steps, elsewhere: Path) -> None:
    (elsewhere / "home").mkdir()
    command = "pwd; touch ~/mark && echo written || echo refused"
    home = str(elsewhere / "home")
    assert steps.shell(command, HOME=home).split() == [home, "refused"]
    assert steps.shell(command, "--container-mount-home", HOME=home).split() == [home, "written"]
    assert (elsewhere / "home/mark").exists()


def test_tasks_of_a_node_share_a_temporary_folder_that_is_not_the_hosts(steps: Steps) -> None:
    assert steps.shell(f"ls -A /tmp; test -e {steps.folder} && echo host; true") == ""
    mark = f"/tmp/{steps.folder.name}-{os.getpid()}-"
    meet = f"touch {mark}$SLURM_PROCID; until [ -e {mark}0 ] && [ -e {mark}1 ]; do sleep 0.1; done; echo met"
    assert steps.shell(meet, "-wn1", "-n2").split() == ["met", "met"]
    assert not any(Path(f"{mark}{task}").exists() for task in range(2))


def test_a_user_with_private_files_runs_in_an_image(elsewhere: Path) -> None:
    shutil.chown(elsewhere, OTHER_USER)
    image = write_image(elsewhere / "image", {"NAME": "torch"})
    command = f"id -un; umask; echo $NAME; cat {NEW_TARGET}/deep/x; touch /tmp/a {NEW_TARGET}/deep/y && echo written"
    (elsewhere / "x").write_text("from the host\n")
    options = (f"--container-image={image}", f"--container-mounts={elsewhere}:{NEW_TARGET}/deep,{elsewhere}:/tmp/new")
    user = ("setpriv", "--reuid", OTHER_USER, "--regid", "nogroup", "--clear-groups")
    started = ("srun", "-Q", "-t10", "-n2", "-wn1", *options, "bash", "-c", command)
    done = subprocess.run(
        [*user, "bash", "-c", 'umask 027; exec "$@"', "bash", *started],
        cwd=elsewhere,
        env={**os.environ, "HOME": "/"},
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    expected = [OTHER_USER, "0027", "torch", "from the host", "written"]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, sorted(2 * expected)), done.stderr
    assert (elsewhere / "y").owner() == OTHER_USER
    image.chmod(0)
    shutil.chown(image, "root")
    done = subprocess.run([*user, *started], cwd=elsewhere, text=True, capture_output=True, timeout=600, check=False)
    assert f"    [ERROR] Invalid image format: {image}" in messages_of(done), done.stderr


def test_a_shell_on_the_node_expands_the_mounts_and_the_names_of_variables(steps: Steps) -> None:
    for name in ("one", "two words"):
        (steps.folder / name).mkdir()
        (steps.folder / name / "x").write_text(f"{name}\n")
    (steps.folder / "name").write_text("one\n")
    sources = ("$NAME", "$(<name)", "`<name`", "two words")
    mounts = ",".join(f"./{source}:{NEW_TARGET}/{i}" for i, source in enumerate(sources))
    printed = steps.shell(f"cat {NEW_TARGET}/?/x", f"--container-mounts={mounts}", NAME="one")
    assert printed.splitlines() == ["one", "one", "one", "two words"]
    for i, option in enumerate((f"--container-mounts=/usr:{NEW_TARGET}:ro$(>mark0)", "--container-env=A[$(>mark1)0]")):
        steps.shell("true", option)
        assert (steps.folder / f"mark{i}").exists()


def test_a_mount_that_the_shell_cannot_expand_ends_the_step(steps: Steps) -> None:
    done = steps.srun(steps.image, "--container-mounts=./$NOSUCH:/data", "true")
    assert done.returncode == 1
    first, second, log, last = messages_of(done)
    assert (first, second) == ("container start failed with error code: 1", "printing enroot log file:")
    assert re.fullmatch(r"    /tmp/\.enroot_config_\w+: line \d+: NOSUCH: unbound variable", log)
    assert last == NOT_STARTED


def test_image_variables_override_the_jobs_unless_container_env_names_them(steps: Steps) -> None:
    write_image(steps.folder / "image", {"ONE": "image", "TWO": "image=2", "THREE": "image"})
    job = {"ONE": "job", "TWO": "job", "FOUR": "job", "LANG": "C", "LC_ALL": "C"}
    command = "echo $ONE $TWO $THREE $FOUR $LANG $LC_ALL"
    assert steps.shell(command, **job) == "image image=2 image job"
    assert steps.shell(command, "--container-env=ONE,THREE,LANG", **job) == "job image=2 image job C"


def test_an_image_with_pytorch_gives_every_task_its_rank(steps: Steps) -> None:
    command = "echo $SLURM_PROCID:$RANK $SLURM_LOCALID:$LOCAL_RANK"
    write_image(steps.folder / "image", {"PYTORCH_VERSION": "2.9"})
    options = ("-wn1,n2", "--ntasks-per-node=2")
    assert sorted(steps.shell(command, *options, RANK="9").splitlines()) == ["0:0 0:0", "1:1 1:1", "2:2 0:0", "3:3 1:1"]
    write_image(steps.folder / "image")
    assert steps.shell(command, "-n1") == "0: 0:"


# ---- records, defaults, and steps without pyxis --------------------------------------------------------------


def test_each_step_is_recorded_once_per_node(slurm_cluster: SlurmCluster, steps: Steps) -> None:
    before = slurm_cluster.pyxis_records
    options = ("--container-mounts=/tmp:/a:ro,/tmp", "--container-env=A,B", "--container-workdir=/usr")
    job = steps.shell("echo $SLURM_JOB_ID", "-wn1,n2", "--ntasks-per-node=2", *options, "--no-container-remap-root")
    new = newer(slurm_cluster, before)
    assert [record["node"] for record in new] == ["n1", "n2"]
    given = {
        "container-image": f"{steps.folder}/image",
        "container-mounts": "/tmp:/a:ro,/tmp",
        "container-env": "A,B",
        "container-workdir": "/usr",
        "no-container-remap-root": True,
    }
    about = {"job": int(job.split()[0]), "step": 0, "batch": False}
    for record in new:
        assert record == {**dict.fromkeys(OPTIONS), **about, **given, "node": record["node"]}


def test_an_image_of_the_batch_script_is_passed_to_its_steps(slurm_cluster: SlurmCluster, steps: Steps) -> None:
    before = slurm_cluster.pyxis_records
    options = (steps.image, "--container-mounts=/tmp:/a", "--wait", "-t1", "-o/dev/null", "--parsable")
    with slurm_cluster.pyxis(Pyxis(sbatch_support=True)):
        job = slurm_cluster.run("sbatch", *options, "--wrap", "srun true")
    script, step = newer(slurm_cluster, before)
    assert (script["job"], script["batch"]) == (step["job"], not step["batch"]) == (int(job), True)
    assert script["container-mounts"] == step["container-mounts"] == "/tmp:/a"


def test_sbatch_without_pyxis_refuses_its_options(steps: Steps) -> None:
    done = subprocess.run(["sbatch", steps.image, "--wrap", "true"], capture_output=True, text=True, check=False)
    assert f"sbatch: unrecognized option '{steps.image}'" in done.stderr


def test_shell_variables_change_a_run_silently_since_pyxis_0_21(slurm_cluster: SlurmCluster, steps: Steps) -> None:
    write_image(steps.folder / "image", {"WHERE": "image"})
    write_image(steps.folder / "other", {"WHERE": "other"})
    left = {
        "PYXIS_CONTAINER_IMAGE": str(steps.folder / "other"),
        "PYXIS_CONTAINER_MOUNTS": f"/tmp:{NEW_TARGET}",
        "PYXIS_CONTAINER_WORKDIR": NEW_TARGET,
    }
    command = ("bash", "-c", "echo ${WHERE:-host} $PWD")
    done = steps.srun(*command, **left)
    assert (done.stdout.strip(), done.stderr) == (f"other {NEW_TARGET}", "")
    assert steps.shell(command[2], "--container-workdir=/usr", **left) == "image /usr"
    with slurm_cluster.pyxis(Pyxis(version="0.20")):
        assert steps.srun(*command, **left).stdout.strip() == f"host {steps.folder}"


def test_shell_variables_set_boolean_options(steps: Steps) -> None:
    command = f"mkdir {NEW_TARGET} && echo written || echo refused"
    assert steps.shell(command, PYXIS_CONTAINER_WRITABLE="yes") == "written"
    assert steps.shell(command, PYXIS_CONTAINER_READONLY="n") == "written"
    assert steps.shell(command, PYXIS_CONTAINER_WRITABLE="on") == "refused", "no boolean of pyxis"
    assert steps.shell(command, "--container-readonly", PYXIS_CONTAINER_WRITABLE="1") == "refused"


def test_enroot_variables_make_an_image_writable_and_mount_the_home_unless_an_option_is_set(
    steps: Steps, elsewhere: Path
) -> None:
    command = f"mkdir {NEW_TARGET} && echo written || echo refused"
    assert steps.shell(command, ENROOT_ROOTFS_WRITABLE="y") == "written"
    assert steps.shell(command, "--container-readonly", ENROOT_ROOTFS_WRITABLE="y") == "refused"
    home = {"HOME": str(elsewhere), "ENROOT_MOUNT_HOME": "y"}
    command = "touch ~/mark && echo written || echo refused"
    assert steps.shell(command, "--no-container-mount-home", **home) == "refused"
    assert steps.shell(command, **home) == "written"


def test_a_step_without_options_is_unchanged_and_fast(slurm_cluster: SlurmCluster, steps: Steps) -> None:
    before = slurm_cluster.pyxis_records
    began = time.monotonic()
    done = steps.srun("bash", "-c", "readlink /proc/self/ns/mnt /proc/self/cwd; echo $LANG", LANG="C")
    assert time.monotonic() - began < 5
    assert done.stdout.splitlines() == [str(Path("/proc/self/ns/mnt").readlink()), str(steps.folder), "C"]
    assert (done.returncode, done.stderr, slurm_cluster.pyxis_records) == (0, "", before)


def test_a_plugin_that_cannot_be_built_is_an_error(
    slurm_cluster: SlurmCluster, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    (steps.folder / "broken.c").write_text("int main(\n")
    monkeypatch.setattr(pyxis, "_SOURCE", steps.folder / "broken.c")
    with pytest.raises(ClusterUnavailable, match="gcc failed"):
        pyxis.build_pyxis(slurm_cluster.folder)
    assert steps.shell("echo ran") == "ran", "the plug-in that is there stays"
