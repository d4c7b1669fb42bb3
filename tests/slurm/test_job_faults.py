"""Faults of running jobs on a real Slurm: each has its class and policy, and differs from an expected end.

All faults are injected at once, each into a job on its own node, and then waited for together.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.pyxis import Pyxis, write_image
from tests.slurm.site import SlurmSite

CASE = ("--where", "pp=1,gbs=4")
JOB = "pp=1,tp=4,gbs=4"


def pinned(node: str, *more: str) -> str:
    return f'sbatch: ["--nodelist={node}"]' + "".join(f"\n  {line}" for line in more)


@dataclass(frozen=True)
class Fault:
    """Behaviour of the program, settings of the profile, the expected result, and further options."""

    behave: str
    profile: str
    state: str
    failure: str | None
    options: tuple[str, ...] = ()


FAULTS = {
    "node": Fault("hang", pinned("n2"), "NODE_FAIL", "node-fail"),
    "preempted": Fault("hang", pinned("n3", "qos: low"), "FAILED", "preempted"),
    "requeued": Fault("hang", pinned("n4", "requeue: true"), "COMPLETED", None),
    "timeout": Fault("begun", pinned("n1"), "TIMEOUT", "timeout"),
    "late": Fault("late", pinned("n1"), "TIMEOUT", None, ("--set", "training.iterations=20")),
    "administrator": Fault("hang", pinned("n1"), "CANCELLED", "cancelled"),
    "gpu": Fault("fail", pinned("n1"), "FAILED", "gpu-oom"),
    "host": Fault("host", pinned("n1"), "FAILED", "host-oom"),
    "usage": Fault("usage", pinned("n1"), "FAILED", "configuration"),
    "nan": Fault("nan", pinned("n1"), "COMPLETED", "numbers"),
    "short": Fault("short", pinned("n1"), "COMPLETED", "incomplete"),
}


@pytest.fixture(scope="module")
def faulty(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SlurmSite]]:
    """Return a site for each fault, after its job was submitted, ran, got its fault and ended."""
    folder = tmp_path_factory.mktemp("faulty")
    sites = {name: SlurmSite(folder / name).use_stand_in(fault.profile, gpus=4) for name, fault in FAULTS.items()}
    for name, site in sites.items():
        site.behave(FAULTS[name].behave)
        done = site.submit(*CASE, *FAULTS[name].options)
        assert done.returncode == 0, (name, done.stderr)
    ids = {name: row_of(site)["id"] for name, site in sites.items()}
    for name in ("node", "preempted", "requeued", "timeout", "late", "administrator"):
        sites[name].wait_for(lambda rows: rows[0]["iteration"])
    for name in ("timeout", "late"):
        slurm_cluster.run("scontrol", "update", f"jobid={ids[name]}", "EndTime=now+5")
    slurm_cluster.run("scancel", ids["administrator"])
    slurm_cluster.set_node("n2", "down")
    sites["requeued"].behave("well")
    slurm_cluster.set_node("n4", "down")
    other = ("--parsable", "-A", "research", "-q", "high", "--exclusive", "-w", "n3", "-t", "10", "--wrap", "sleep 1")
    slurm_cluster.run("sbatch", "-D", str(folder), *other)
    slurm_cluster.set_node("n4", "resume")
    for site in sites.values():
        site.wait_until_ended()
    slurm_cluster.set_node("n2", "resume")
    yield sites


def row_of(site: SlurmSite) -> dict[str, Any]:
    (row,) = site.status()
    return row


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Eleven faults at once, each in a running job: its node goes down; a job of higher priority; its node goes "
    "down with `requeue: true`; its time limit, early and late; the administrator's scancel; GPU memory; host memory; "
    "a wrong argument; NaN; a log that ends early",
    promise="Each job has the right state, class and reason.",
    count=len(FAULTS),
)
def test_each_fault_has_its_state_class_and_reason(faulty: dict[str, SlurmSite]) -> None:
    seen = {name: (row_of(site)["state"], row_of(site)["failure"]) for name, site in faulty.items()}
    assert seen == {name: (fault.state, fault.failure) for name, fault in FAULTS.items()}
    why = {name: str(row_of(site)["why"]) for name, site in faulty.items()}
    assert "not by repro" in why["administrator"]
    assert "tried to allocate" not in why["gpu"] and why["gpu"].startswith("out of memory on the GPU")
    assert "oom-kill" in why["host"] and "unrecognized arguments" in why["usage"]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A bundle of each of these jobs",
    promise="States and exit codes that Slurm reports agree with records and logs: the bundle verifies.",
    count=0,
)
def test_a_bundle_of_each_of_these_jobs_verifies(faulty: dict[str, SlurmSite], tmp_path: Path) -> None:
    bundles = {
        name: site.repro("bundle", "figure-13", "-o", f"{tmp_path}/{name}.tar.zst") for name, site in faulty.items()
    }
    assert {name: (done.returncode, done.stderr) for name, done in bundles.items() if done.returncode} == {}


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The job that Slurm requeued",
    promise="It has one submission, ran twice and is verified.",
    count=0,
)
def test_a_job_that_slurm_requeued_has_one_submission_and_is_verified(faulty: dict[str, SlurmSite]) -> None:
    site = faulty["requeued"]
    row = row_of(site)
    assert row["verdict"] == "verified"
    history = site.repro("history", row["job"]).stdout
    assert history.count(" submitted ") == 1 and "RUNNING -> " in history
    assert len(site.started()) > 4, "the program began twice"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The job that had few iterations at its time limit",
    promise="It keeps its measurements. `repro retry --time` gives it more time.",
    count=0,
)
def test_a_timed_out_job_keeps_its_measurements_and_retry_gives_it_more_time(
    faulty: dict[str, SlurmSite], slurm_cluster: SlurmCluster
) -> None:
    site = faulty["timeout"]
    row = row_of(site)
    assert row["iteration"] == 3 and row["tflops_per_gpu"] > 0
    again = site.submit(*CASE)
    assert "1 failed and not submitted again, 0 submitted" in again.stderr and "--class timeout" in again.stderr
    site.behave("well")
    done = site.repro("retry", "figure-13", "--class", "timeout", "--time", "+50%")
    assert done.returncode == 0, done.stderr
    row = row_of(site)
    limit = slurm_cluster.run("squeue", "-h", "--states=all", "-o", "%l", "-j", row["id"])
    assert limit == "45:00", "the experiment asks for 30 minutes at this scale"
    assert site.wait_until_ended()[0]["verdict"] == "verified"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The job that had enough iterations at its time limit",
    promise="It is partial, with its last iteration.",
    count=0,
)
def test_a_job_with_enough_samples_at_its_time_limit_is_partial(faulty: dict[str, SlurmSite]) -> None:
    row = row_of(faulty["late"])
    assert (row["iteration"], row["verdict"]) == (12, "partial") and row["tflops_per_gpu"] > 0
    assert "1 done, 0 submitted" in faulty["late"].submit(*CASE, *FAULTS["late"].options).stderr


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The job that lost its node",
    promise="It runs again on another node and is verified.",
    count=0,
)
def test_a_job_that_lost_its_node_runs_again_on_another(
    faulty: dict[str, SlurmSite], slurm_cluster: SlurmCluster
) -> None:
    site = faulty["node"]
    site.use_stand_in(gpus=4)
    site.behave("well")
    done = site.submit(*CASE)
    assert done.returncode == 0 and "1 submitted" in done.stderr, done.stderr
    row = row_of(site)
    shown = slurm_cluster.run("scontrol", "show", "job", row["id"])
    assert "ExcNodeList=n2" in shown and "Requeue=0" in shown
    row = site.wait_until_ended()[0]
    assert row["verdict"] == "verified"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="The other jobs",
    promise="The preempted job is submitted again. Jobs that would fail again are left alone.",
    count=0,
)
def test_a_preempted_job_is_submitted_again_and_a_job_that_would_fail_again_is_not(
    faulty: dict[str, SlurmSite],
) -> None:
    assert "1 submitted" in faulty["preempted"].submit(*CASE).stderr
    faulty["preempted"].repro("cancel", "figure-13")
    for name in ("administrator", "gpu", "host", "usage", "nan", "short"):
        done = faulty[name].submit(*CASE)
        assert "1 failed and not submitted again, 0 submitted" in done.stderr, (name, done.stderr)
        assert f"repro retry figure-13 --class {FAULTS[name].failure}" in done.stderr


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:  # noqa: ARG001  needs it up
    made = SlurmSite(tmp_path)
    yield made
    made.repro("cancel", "figure-13", "--yes")


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A job is held by the administrator; a job depends on a failed job",
    promise="Both are reported with a hint. No command waits for them.",
)
def test_held_jobs_and_jobs_that_can_never_start_are_reported_and_not_waited_for(
    site: SlurmSite, slurm_cluster: SlurmCluster
) -> None:
    site.use_stand_in('sbatch: ["--hold"]', gpus=4)
    site.submit("--where", "gbs=4")
    ids = [row["id"] for row in site.status()]
    failed = slurm_cluster.run("sbatch", "--parsable", "-A", "research", "-o", "/dev/null", "--wrap", "false")
    slurm_cluster.run("scontrol", "update", f"jobid={ids[0]}", f"Dependency=afterok:{failed}")
    slurm_cluster.run("scontrol", "release", ids[0])
    slurm_cluster.run("scontrol", "hold", ids[1])  # by root, who is user and administrator here
    rows = site.wait_for(lambda rows: "DependencyNeverSatisfied" in str(rows[0]["why"]))
    assert rows[0]["state"] == "PENDING" and "Held" in str(rows[2]["why"])
    done = site.repro("wait", "figure-13")
    assert done.returncode == 1 and "scontrol release" in done.stderr, done.stderr


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A job is suspended; a job is requeued and held",
    promise="Their states are shown. They are not submitted a second time.",
)
def test_suspended_and_requeued_held_jobs_are_shown_and_not_submitted_again(
    site: SlurmSite, slurm_cluster: SlurmCluster
) -> None:
    site.use_stand_in("requeue: true", gpus=4)
    site.behave("hang")
    site.submit("--where", "gbs=4")
    ids = [row["id"] for row in site.wait_for(lambda rows: all(row["state"] == "RUNNING" for row in rows))]
    slurm_cluster.run("scontrol", "suspend", ids[0])
    slurm_cluster.run("scontrol", "requeuehold", ids[1])

    def is_held(row: dict[str, Any]) -> bool:
        """Return whether the job is held and its first start has ended. Slurm gives the reason before that end."""
        return "eld" in f"{row['state']} {row['why']}" and row["state"] not in ("RUNNING", "COMPLETING")

    site.wait_for(lambda rows: rows[0]["state"] == "SUSPENDED" and is_held(rows[1]))
    assert "2 running" in site.submit("--where", "gbs=4").stderr
    slurm_cluster.run("scontrol", "resume", ids[0])
    site.wait_for(lambda rows: rows[0]["state"] == "RUNNING")


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--canary`: the smallest case fails",
    promise="No other case starts. Each has the reason.",
    count=1,
)
@pytest.mark.parametrize("canary", ["well", "fail"])
def test_a_failed_canary_stops_the_whole_matrix(site: SlurmSite, canary: str) -> None:
    site.use_stand_in(gpus=4)
    site.behave(canary)
    done = site.submit("--canary")
    assert done.returncode == 0 and f"the canary is {JOB}" in done.stderr, done.stderr
    rows = site.wait_until_ended()
    began = set(site.started())
    if canary == "well":
        assert {row["verdict"] for row in rows} == {"verified"} and len(began) == 6
    else:
        assert began == {JOB} and {row["failure"] for row in rows if row["case"] != JOB} == {"stopped"}
        site.behave("well")
        again = site.submit("--canary")
        assert again.returncode == 2 and "the others wait for it. Hint: repro retry figure-13" in again.stderr, (
            again.stderr
        )
        assert "5 submitted" in site.submit().stderr


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--stop-after 2`, and every job fails in the same way",
    promise="Two jobs run, four are stopped.",
)
def test_stop_after_starts_no_job_after_equal_failures(site: SlurmSite) -> None:
    site.use_stand_in("max_running: 1", gpus=4)
    site.behave("fail")
    assert site.submit("--stop-after", "2").returncode == 0
    rows = site.wait_until_ended()
    assert sorted(row["failure"] for row in rows) == ["gpu-oom"] * 2 + ["stopped"] * 4
    assert len(set(site.started())) == 2


@pytest.mark.fault(
    section="Faults of jobs",
    fault="`--max-parallel 1` for jobs with different options",
    promise="Never two jobs run at the same time.",
    count=0,
)
def test_max_parallel_limits_jobs_with_different_options(site: SlurmSite, slurm_cluster: SlurmCluster) -> None:
    site.use_stand_in(gpus=4)
    site.behave("slow")
    first = site.submit("--where", "pp=1", "--max-parallel", "1")
    assert first.returncode == 0
    last = [row["id"] for row in site.status()][-1]
    then = site.submit("--where", "pp=2", "--max-parallel", "1", "--after", last.partition("_")[0])
    assert then.returncode == 2 or "2 submitted" in then.stderr, then.stderr
    rows = site.wait_until_ended()
    ids = ",".join(row["id"] for row in rows)
    spans = slurm_cluster.run("squeue", "-h", "-r", "--states=all", "-o", "%S|%e", "-j", ids).splitlines()
    ordered = sorted(tuple(line.split("|")) for line in spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered)), spans


def nodes_excluded(site: SlurmSite, slurm_cluster: SlurmCluster) -> str:
    """Return the nodes that the newest attempt excludes."""
    shown = slurm_cluster.run("scontrol", "show", "job", row_of(site)["id"])
    return shown.partition("ExcNodeList=")[2].split()[0]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A GPU fails on one of four nodes, and srun ends the other tasks",
    promise="The next attempt excludes only that node and is verified.",
)
def test_a_gpu_fault_on_one_of_four_nodes_excludes_only_that_node(site: SlurmSite, slurm_cluster: SlurmCluster) -> None:
    site.use_stand_in(gpus=1)
    site.behave("ecc")
    assert site.submit(*CASE).returncode == 0
    (row,) = site.wait_until_ended()
    assert (row["failure"], row["nodes"]) == ("gpu-fault", "n[1-4]"), row["why"]
    batch = next(site.folder.glob("runs/*/*/batch.txt")).read_text()
    assert len(re.findall(r"error: n[124]: tasks? [0-9]: (?:Terminated|Killed)", batch)) == 3, batch
    site.use_stand_in(gpus=2)  # so that the other nodes are enough
    done = site.submit(*CASE)
    assert done.returncode == 0 and "any node" not in done.stderr, done.stderr
    assert nodes_excluded(site, slurm_cluster) == "n3"
    (row,) = site.wait_until_ended()
    assert row["verdict"] == "verified"


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A container does not start on one of two nodes",
    promise="Class `image`, with the image's file and the reason. The job runs again on other nodes and is verified.",
)
def test_a_container_that_fails_on_one_node_runs_again_on_others(site: SlurmSite, slurm_cluster: SlurmCluster) -> None:
    image = write_image(site.folder / "torch.sqsh")
    images = f"images: {{pretrain: {image}}}, mounts: [{site.folder}]"
    site.use_stand_in(f"tasks: per-gpu\ncontainer: {{runtime: pyxis, {images}}}")
    with slurm_cluster.pyxis(Pyxis(broken_node="n2", shown_in=site.folder / "runs")):
        done = site.submit(*CASE, "--wait")
        assert done.returncode == 0, done.stderr
    row = row_of(site)
    assert (row["verdict"], nodes_excluded(site, slurm_cluster)) == ("verified", "n2")
    first, _ = json.loads(site.repro("history", row["job"], "--json").stdout)["attempts"]
    assert (first["failure"], first["nodes"]) == ("image", "n[1-2]")
    assert f"for image: {image}; [ERROR] Invalid image format" in first["verdict_reason"]


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A mount source is missing, with a pyxis that does not check it; a Python that the image does not contain",
    promise="Classes `image` and `configuration`, with the path.",
)
@pytest.mark.parametrize(
    ("mount", "python", "failure", "message"),
    [
        ("/nosuch:/data", None, "image", "enroot-mount: failed to mount: /nosuch at "),
        (None, "/nosuch/bin/python", "configuration", ": /nosuch/bin/python: No such file or directory"),
    ],
    ids=["mount source", "python"],
)
def test_a_missing_mount_source_or_python_is_reported(
    site: SlurmSite,
    slurm_cluster: SlurmCluster,
    mount: str | None,
    python: str | None,
    failure: str,
    message: str,
) -> None:
    """The test uses a pyxis that does not check mount sources itself."""
    image, mounts = write_image(site.folder / "torch.sqsh"), json.dumps([mount] if mount else [])
    site.use_stand_in(f"tasks: per-gpu\ncontainer: {{runtime: pyxis, images: {{pretrain: {image}}}, mounts: {mounts}}}")
    if python is not None:
        profile = site.folder / "site.yaml"
        profile.write_text(profile.read_text().replace(str(site.folder / "train.sh"), python))
    with slurm_cluster.pyxis(Pyxis(version="0.23", shown_in=site.folder / "runs")):
        assert site.submit(*CASE).returncode == 0
        (row,) = site.wait_until_ended()
    assert row["failure"] == failure and message in row["why"], row["why"]
