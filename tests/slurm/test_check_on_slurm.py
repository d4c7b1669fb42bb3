"""`repro clusters new` and `check` on a real Slurm: a correct profile passes, each common fault is one plain line.

pyxis is simulated (tests/slurm/pyxis.py): an image is a text file of NAME=value lines, the programs are the host's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm.accounting import OTHER_USER
from tests.slurm.cluster import SlurmCluster
from tests.slurm.pyxis import Pyxis, write_image
from tests.slurm.site import SlurmSite

pytestmark = pytest.mark.usefixtures("slurm_cluster")

PYTHON_MOUNTS = [sys.prefix] if sys.prefix.startswith("/tmp/") else []
"""An image has its own /tmp, and this environment may be there."""


@pytest.fixture(scope="module")
def written(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> str:  # noqa: ARG001  needs it up
    """Return the profile that `repro clusters new` writes here."""
    site = SlurmSite(tmp_path_factory.mktemp("new"))
    answer = site.repro("clusters", "new", "mine")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"{site.folder}/clusters/mine.yaml\n"
    return (site.folder / "clusters" / "mine.yaml").read_text()


class Checked:
    """That profile in its own site, with an overlay, checked."""

    def __init__(self, folder: Path, profile: str) -> None:
        self.site = SlurmSite(folder)
        (folder / "clusters").mkdir()
        (folder / "clusters" / "mine.yaml").write_text(profile)
        self.image = write_image(folder / "torch.sqsh", {"IMAGE_NAME": "torch"})
        self.overlay: dict[str, Any] = {"container": None}
        self.findings: list[dict[str, Any]] = []
        self.stderr: list[str] = []

    def contained(self, **fields: Any) -> None:
        """Return a site with pyxis and this test's image. Python is the host's, which the stand-in shows inside."""
        container = {"runtime": "pyxis", "images": {"pretrain": str(self.image)}, "mounts": PYTHON_MOUNTS, **fields}
        self.overlay["container"] = container
        self.overlay["programs"] = {"pretrain": {"python": sys.executable}}

    def write(self, **changed: Any) -> None:
        """Add fields to the overlay of the profile. Earlier fields remain."""
        for name, value in changed.items():
            before = self.overlay.get(name)
            both = isinstance(before, dict) and isinstance(value, dict)
            self.overlay[name] = {**before, **value} if both else value  # type: ignore[dict-item]
        (self.site.folder / "clusters" / "mine.local.yaml").write_text(yaml.safe_dump(self.overlay))

    def check(self, *options: str, **changed: Any) -> int:
        """Return the exit code. `findings` and `stderr` have the output."""
        self.write(**changed)
        answer = self.site.repro("clusters", "check", "mine", "--json", *options)
        assert "Traceback" not in answer.stderr and "defect" not in answer.stderr, answer.stderr
        self.findings = json.loads(answer.stdout)["checks"]
        self.stderr = answer.stderr.splitlines()
        return answer.returncode

    def replace_sbatch(self, body: str) -> None:
        """Put a script of this name before the real one."""
        programs = self.site.folder / "bin"
        programs.mkdir()
        (programs / "sbatch").write_text(f"#!/bin/bash\n{body}\n")
        (programs / "sbatch").chmod(0o755)
        self.site.variables["PATH"] = f"{programs}:{os.environ['PATH']}"

    def line_of(self, word: str) -> int:
        """Return the number of the overlay's line that contains this word."""
        lines = (self.site.folder / "clusters" / "mine.local.yaml").read_text().splitlines()
        return next(number for number, line in enumerate(lines, start=1) if word in line)

    @property
    def faults(self) -> list[str]:
        """Return the printed faults, without `repro: ` and the folder of the file."""
        return [line.removeprefix("repro: clusters/mine.") for line in self.stderr if line.startswith("repro: ")]

    @property
    def compute(self) -> dict[str, str]:
        """Return the last finding of a node for each check."""
        return {row["check"]: row["found"] for row in self.findings if row["place"] == "compute"}


@pytest.fixture
def mine(tmp_path: Path, written: str) -> Checked:
    return Checked(tmp_path, written)


# ---- correct profiles ----------------------------------------------------------------------------------------


def test_a_generated_profile_leaves_open_only_unreported_values(mine: Checked) -> None:
    del mine.overlay["container"]
    assert mine.check() == 0, mine.stderr
    still = [row["check"] for row in mine.findings if row["result"] != "ok"]
    assert still == ["container.images.pretrain", "hardware.gpu_memory_gb"]
    mine.contained()
    assert mine.check() == 0, mine.stderr
    assert [row["check"] for row in mine.findings if row["result"] != "ok"] == ["hardware.gpu_memory_gb"]


def test_a_completed_profile_passes_the_check_for_figure_13_and_on_a_node(
    mine: Checked, slurm_cluster: SlurmCluster
) -> None:
    assert mine.check("--experiment", "figure-13", "--scale", "cpu", "--job") == 0, mine.stderr
    assert {row["result"] for row in mine.findings} <= {"ok", "later"}
    tried = [row["found"] for row in mine.findings if row["check"].startswith("sbatch --test-only")]
    assert len(tried) == 2 and all("on nodes n" in fault for fault in tried)
    assert mine.compute["folder for runs"] == "the files of the job are visible here"
    assert mine.compute["job"] == "ran on a node, without a container"
    assert mine.compute["hardware.gpus_per_node"] == f"each task sees {slurm_cluster.shape.gpus_per_node} GPUs"
    assert mine.compute["torch"].startswith("torch ")


def test_the_check_job_runs_inside_the_image_despite_shell_variables(
    mine: Checked, slurm_cluster: SlurmCluster
) -> None:
    mine.contained()
    before = slurm_cluster.pyxis_records
    mine.site.variables |= {"PYXIS_CONTAINER_IMAGE": "/nosuch", "SBATCH_PARTITION": "nosuch", "SLURM_NNODES": "3"}
    assert mine.check("--job", hardware={"gpu": None}) == 0, mine.stderr  # the tests' torch has no GPU support
    assert mine.compute["container.images.pretrain"] == "the job ran inside it"
    assert mine.compute["torch"].startswith("torch ")
    (record,) = [record for record in slurm_cluster.pyxis_records if record not in before]
    assert record["container-image"] == str(mine.image) and not record["batch"]


def test_a_site_without_accounting_passes_the_check(mine: Checked, slurm_cluster: SlurmCluster) -> None:
    with slurm_cluster.without_accounting():
        assert mine.check() == 0, mine.stderr
    unknown = [row["check"] for row in mine.findings if row["result"] == "unknown"]
    assert unknown == ["slurm.account", "slurm.qos normal"]


# ---- faults that the login node sees -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"slurm": {"partition": "bach"}}, 'slurm.partition: bach: no such partition. Did you mean "batch"?'),
        (
            {"slurm": {"account": "reserch"}},
            'slurm.account: reserch is not an account of root. Did you mean "research"?',
        ),
        ({"slurm": {"qos": "limitd"}}, 'slurm.qos limitd: no such QOS. Did you mean "limited"?'),
        (
            {"slurm": {"qos": [{"name": "limited", "max_nodes": 3}]}},
            "slurm.qos limited: jobs may have 3 nodes, Slurm's limit is 2. Hint: set max_nodes: 2",
        ),
        ({"slurm": {"gres_type": "h10"}}, 'slurm.gres_type: h10: no such GPU type in batch. Did you mean "h100"?'),
        (
            {"hardware": {"gpus_per_node": 8}},
            "hardware.gpus_per_node: is 8, but the nodes have 4. Hint: set gpus_per_node: 4",
        ),
        ({"hardware": {"nodes": 9}}, "hardware.nodes: is 9, but batch has 4. Hint: set nodes: 4"),
        ({"slurm": {"constraint": "h200"}}, 'slurm.constraint: no node of batch has h200. Did you mean "h100"?'),
        ({"slurm": {"time_limit": "5:00:00"}}, "slurm.time_limit: 5:00:00, but batch allows 4:00:00. Hint: "),
        ({"slurm": {"cpus_per_task": 5}}, "slurm.cpus_per_task: 4 tasks of 5, but the nodes have 16 CPUs. Hint: "),
        ({"slurm": {"mpi": "pmi3"}}, "slurm.mpi: pmi3: srun has no such MPI type. Did you mean "),
        ({"slurm": {"reservation": "day"}}, "slurm.reservation: day: no such reservation. Hint: there are: none"),
        ({"slurm": {"srun": ["--unbufered"]}}, 'slurm.srun: srun has no --unbufered. Did you mean "--unbuffered"?'),
        ({"slurm": {"srun": ["--auto-resume=1"]}}, "slurm.srun: srun has no --auto-resume. Hint: remove it"),
        ({"slurm": {"srun": ["--mem-bind=zz"]}}, "slurm.srun: --mem-bind=zz: srun reports: "),
        ({"slurm": {"sbatch": ["--pty"]}}, "slurm.sbatch: sbatch has no --pty. Hint: "),
        ({"slurm": {"sbatch": ["--chdir=/nosuch"]}}, "slurm.sbatch --chdir: /nosuch: no such file or folder. Hint: "),
    ],
)  # fmt: skip
def test_a_common_fault_is_one_line_with_its_location(mine: Checked, changed: dict[str, Any], line: str) -> None:
    assert mine.check(**changed) == 2
    (fault,) = mine.faults
    place, _, text = fault.partition(" ")
    assert place.startswith("local.yaml:") and text.startswith(line), fault


def test_the_values_that_exceed_a_smaller_partition_are_reported(mine: Checked) -> None:
    assert mine.check(slurm={"partition": "short", "max_time": None}) == 2
    time_limit, nodes = mine.faults
    assert time_limit.startswith("yaml:") and "time_limit: 0:30:00, but short allows 0:10:00" in time_limit
    assert "slurm.max_nodes: jobs may have 4 nodes, but short allows 2. Hint: set max_nodes: 2" in nodes


def test_a_refusal_by_sbatch_is_reported_at_the_field_to_correct(mine: Checked) -> None:
    assert mine.check(slurm={"mem": "999G"}) == 0
    assert mine.check("--experiment", "figure-13", "--scale", "cpu") == 2
    assert len(mine.faults) == 2
    assert all(
        "Requested node configuration is not available. Hint: compare GPUs, CPUs and memory" in fault
        for fault in mine.faults
    )
    assert mine.check("--job") == 2
    (fault,) = mine.faults
    assert fault.startswith("local.yaml:") and " job: Memory specification can not be satisfied" in fault
    assert ". Hint: lower `mem` in the profile" in fault


def test_an_experiment_too_large_for_the_cluster_is_a_finding(mine: Checked) -> None:
    assert mine.check("--experiment", "figure-13", "--scale", "paper") == 2
    assert mine.stderr == [
        "repro: plan: figure-13 all 10 cases: needs 64 GPUs, mine has 4 x 4 = 16. Hint: --scale quad, pair or cpu fits"
    ]


def test_a_missing_and_an_old_pyxis_are_reported(mine: Checked, slurm_cluster: SlurmCluster) -> None:
    mine.contained(pass_env=["NCCL_DEBUG"])
    conf = slurm_cluster.folder / "etc/plugstack.conf"
    before = conf.read_text()
    conf.write_text("")
    try:
        assert mine.check() == 2
    finally:
        conf.write_text(before)
    (fault,) = mine.faults
    assert "container.runtime: srun has no --container-image, the option of pyxis. Hint: install pyxis" in fault
    with slurm_cluster.pyxis(Pyxis(version="0.12")):
        assert mine.check(container={"version": None}) == 2
    (fault,) = mine.faults
    assert (
        "container.pass_env: this pyxis has no --container-env. Hint: srun's options are those of pyxis 0.11" in fault
    )


def test_a_wrong_pyxis_version_is_reported(mine: Checked) -> None:
    mine.contained(version="0.16")
    assert mine.check() == 2
    (fault,) = mine.faults
    assert fault.endswith(
        'container.version: is 0.16, but srun\'s options are those of pyxis 0.24 or newer. Hint: set version: "0.24"'
    )


def test_container_options_for_sbatch_are_refused_before_slurm_is_asked(mine: Checked) -> None:
    mine.write(slurm={"sbatch": ["--container-image=x"]})
    answer = mine.site.repro("clusters", "check", "mine")
    assert answer.returncode == 2 and answer.stdout == "" and len(answer.stderr.splitlines()) == 1
    assert "container options belong to container:" in answer.stderr


# ---- faults that a job sees ----------------------------------------------------------------------------------


def test_an_image_and_a_mount_missing_on_the_node_are_reported_once_each(mine: Checked) -> None:
    mine.contained(images={"pretrain": "/nosuch/torch.sqsh"})
    assert mine.check("--job", site={"login_sees_paths": False}) == 2
    assert len(mine.faults) == 1, mine.faults
    (fault,) = mine.faults
    assert "container.images.pretrain: /nosuch/torch.sqsh: no such file or folder. Hint: correct the path" in fault
    mine.contained(mounts=["/nosuch/data:/data"])
    assert mine.check("--job") == 2
    assert len(mine.faults) == 1, mine.faults
    (fault,) = mine.faults
    assert "container.mounts: /nosuch/data: no such file or folder. Hint: correct the path" in fault


def test_an_invalid_image_is_reported_with_pyxis_message(mine: Checked) -> None:
    mine.contained()
    mine.image.write_text("this is no image\n")
    assert mine.check("--job") == 2
    (fault,) = mine.faults
    assert fault.startswith("local.yaml:") and " container.images.pretrain: FAILED with exit code 1: " in fault
    assert f"for image: {mine.image}; [ERROR] Invalid image format (or this user may not read it). Hint: " in fault


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The user may not read an image, before a submission",
    promise="`clusters check` reports it as the login node and as a compute node see it.",
)
def test_an_unreadable_image_is_reported_by_the_login_node_and_by_a_node(tmp_path: Path, written: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        mine = Checked(folder, written)
        mine.contained()
        mine.image.chmod(0o600)
        mine.overlay["site"] = {"staging_folder": str(tmp_path)}
        mine.write()
        folder.chmod(0o777)
        mine.site.user = OTHER_USER
        assert mine.check() == 2
        assert f"container.images.pretrain: {mine.image}: you may not read it. Hint: ask its owner" in "".join(
            mine.faults
        )
        assert mine.check("--job", site={"login_sees_paths": False}) == 2
        assert f"container.images.pretrain: {mine.image}: you may not read it. Hint: ask its owner" in "".join(
            mine.faults
        )


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A torch without GPU support on nodes with GPUs, before a submission",
    promise="`clusters check --job` reports it at the line of its Python or image.",
)
def test_a_torch_without_gpu_support_is_reported(mine: Checked) -> None:
    mine.contained()
    assert mine.check("--job") == 2
    (fault,) = mine.faults
    gpus = mine.compute["hardware.gpus_per_node"].split()[3]
    assert (
        fault.startswith("local.yaml:") and f" is made for CPUs, the nodes have {gpus} GPUs. Hint: programs: " in fault
    )
    key = mine.line_of("python:")
    assert fault.startswith(f"local.yaml:{key}:"), fault


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A Python without torch; a Python that the image does not contain; before a submission",
    promise="`clusters check --job` reports it at the line of its Python or image.",
)
def test_a_python_without_torch_in_the_image_is_reported(mine: Checked) -> None:
    mine.contained(mounts=[str(mine.site.folder), *PYTHON_MOUNTS])
    bare = mine.site.folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without installed packages
    bare.chmod(0o755)
    assert mine.check("--job", programs={"pretrain": {"python": str(bare)}}) == 2
    (fault,) = mine.faults
    assert " torch: the python of image pretrain: ModuleNotFoundError: No module named 'torch'. Hint: " in fault
    assert mine.check("--job", programs={"pretrain": {"python": "/nosuch/python"}}) == 2
    (fault,) = mine.faults
    problem = "programs.pretrain.python: /nosuch/python: no such program in image pretrain. Hint: programs: pretrain: "
    assert fault.startswith(f"local.yaml:{mine.line_of('python:')}:") and problem in fault


def test_gpus_that_a_task_cannot_see_are_reported(mine: Checked) -> None:
    assert mine.check("--job", slurm={"gpu_bind": "single:1"}) == 2
    (fault,) = mine.faults
    assert "hardware.gpus_per_node: each task sees 1 GPU. Hint: all tasks of a node must see all its GPUs" in fault


def test_a_run_folder_that_nodes_do_not_see_is_reported(mine: Checked) -> None:
    """Until the job has ended, its folder has another name, so that it does not exist on the node."""
    mine.replace_sbatch("""\
script=${@: -1} folder=$(dirname "${@: -1}")
mv "$folder" "$folder.away"
job=$(/usr/bin/sbatch "${@:1:$#-1}" "$folder.away/$(basename "$script")")
while [ -n "$(squeue -h -j "$job")" ]; do sleep 0.2; done
mv "$folder.away" "$folder"
echo "$job"
""")
    assert mine.check("--job") == 2
    (fault,) = [line for line in mine.stderr if line.startswith("repro: ")]
    assert fault.startswith("repro: folder for runs: FAILED, and the files of the job are not visible here. Hint: ")
    assert fault.endswith(". Hint: set REPRO_HOME to a folder that the nodes see")


# ---- pending jobs, and an unreachable Slurm ------------------------------------------------------------------


def test_the_pending_reason_is_printed_and_ctrl_c_cancels_the_job(mine: Checked, slurm_cluster: SlurmCluster) -> None:
    mine.write(slurm={"sbatch": ["--begin=now+1hour"]})
    process = mine.site.start("clusters", "check", "mine", "--job")
    assert process.stderr is not None
    job_id = process.stderr.readline().split()[1]
    line = process.stderr.readline().strip()
    if line == "PENDING":  # Slurm has not scheduled it yet
        line = process.stderr.readline().strip()
    assert line == "PENDING (BeginTime)"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode not in (0, 2) and stdout == "" and "Traceback" not in stderr
    assert stderr.splitlines()[0] == f"job {job_id} was cancelled"
    state = slurm_cluster.run("squeue", "-h", "--states=all", "-o", "%T", "-j", job_id)
    assert state == "CANCELLED"


def test_an_unreachable_controller_is_exit_code_3_in_one_line(mine: Checked, slurm_cluster: SlurmCluster) -> None:
    mine.write()
    with slurm_cluster.without_controller():
        answer = mine.site.repro("clusters", "check", "mine")
    assert (answer.returncode, answer.stdout) == (3, "") and len(answer.stderr.splitlines()) == 1


# ---- a job of a figure inside an image -----------------------------------------------------------------------


def test_a_case_trains_inside_the_image_on_every_node_and_is_verified(
    mine: Checked, slurm_cluster: SlurmCluster
) -> None:
    mine.contained()
    mine.write(hardware={"gpus_per_node": 2, "nodes": 4})
    before = slurm_cluster.pyxis_records
    answer = _submit(mine)
    (row,) = mine.site.status()
    assert (row["state"], row["verdict"], row["iteration"]) == ("COMPLETED", "verified", 8), answer.stderr
    assert {"event=end", "exit_code=0", "image=pretrain", "inside_image=2/2"} <= _end_of(mine)
    steps = [record for record in slurm_cluster.pyxis_records if record not in before]
    assert len({record["node"] for record in steps}) == 2
    assert {record["container-image"] for record in steps} == {str(mine.image)}


def test_a_case_of_a_user_with_private_files_is_verified_inside_the_image() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        site = SlurmSite(Path(name)).use_stand_in()
        image = write_image(site.folder / "torch.sqsh")
        container = {"runtime": "pyxis", "images": {"pretrain": str(image)}, "mounts": [name, *PYTHON_MOUNTS]}
        profile = site.folder / "site.yaml"
        profile.write_text(f"{profile.read_text()}container: {json.dumps(container)}\n")
        for path in (site.folder, *site.folder.iterdir()):
            path.chmod(0o700)
            shutil.chown(path, OTHER_USER)
        site.user = OTHER_USER
        mask = os.umask(0o077)
        try:
            answer = site.submit("--where", "gbs=4,pp=1", "--wait")
        finally:
            os.umask(mask)
        (row,) = site.status()
        assert (row["state"], row["verdict"]) == ("COMPLETED", "verified"), answer.stderr
        (end,) = site.folder.glob("runs/*/*/end")
        assert "inside_image=2/2" in end.read_text().splitlines()


def test_a_job_that_loses_its_image_runs_on_the_host_and_is_never_verified(mine: Checked) -> None:
    """Without --container-image pyxis prints a warning, ignores its other options and runs the step on the host."""
    mine.contained()
    mine.write(hardware={"gpus_per_node": 2, "nodes": 4})
    mine.replace_sbatch('sed -i \'/^ *--container-image=/d\' "${@: -2:1}"; exec /usr/bin/sbatch "$@"')
    answer = _submit(mine)
    assert answer.returncode == 1, answer.stderr
    (row,) = mine.site.status()
    assert (row["state"], row["verdict"]) == ("FAILED", "failed")
    assert "exit code 97 (outside its image: repro: n" in answer.stdout
    end = _end_of(mine)
    assert {"exit_code=97", "inside_image=0/2"} <= end
    log = next(mine.site.folder.glob("runs/*/*/log.txt")).read_text()
    assert "runs the task outside its image" in log and "iteration" not in log
    batch = next(mine.site.folder.glob("runs/*/*/batch.txt")).read_text()
    assert "pyxis: ignoring --container-mounts because neither --container-image" in batch


def _submit(mine: Checked) -> subprocess.CompletedProcess[str]:
    options = ("--cluster", "mine", "--scale", "cpu", "--where", "pp=1,gbs=4", "--wait")
    return mine.site.repro("submit", "figure-13", *options)


def _end_of(mine: Checked) -> set[str]:
    (end,) = mine.site.folder.glob("runs/*/*/end")
    return set(end.read_text().splitlines())
