"""Submission of 1,000 equal jobs to a real Slurm that holds them: `repro` and two ways of submitit in turn.

    python -m benchmarks.submitting [--rounds 3]

submitit's `submit` is measured on 30 jobs and extrapolated to 1,000, with and without the 0.2 s that it waits before
each job. The time of `repro` includes the scripts, their files and the rows of an existing ledger. Needs root on Debian
or Ubuntu.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from submitit.slurm.slurm import SlurmExecutor

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.launch.submit import submit
from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from orchestrator.paths import Folders, find_folders
from orchestrator.planning.plan import Plan, plan_cases, repeated
from tests.slurm.cluster import SlurmCluster
from tests.slurm.configuration import Shape

JOBS = 1000
SAMPLE = 30
"""Number of jobs that are submitted singly; the others would take the same time each."""
LEAST_GAIN = 20
MOST_OF_ARRAY = 1.5
END_OF_WORD = "\x1e"

PROFILE = """\
about: nodes that hold every job
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 4}
slurm:
  partition: batch
  time_limit: "0:10:00"
  gpu_request: none
  sbatch: [--hold]
"""


@dataclass(frozen=True)
class Measurement:
    """Seconds for 1,000 jobs, and the number of sbatch calls for the measured ones."""

    seconds: float
    calls: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with held_slurm() as (slurm, home), counted_calls(home, ["sbatch"]) as log:
        plans, cluster = thousand_plans(home)
        ways: dict[str, Callable[[Path], int]] = {
            "submitit submit": lambda folder: one_by_one(folder, pause=True),
            "submitit submit, no pause": lambda folder: one_by_one(folder, pause=False),
            "submitit map_array": in_array,
            "repro submit": lambda folder: ours(folder, plans, cluster),
        }
        measurements: dict[str, list[Measurement]] = {name: [] for name in ways}
        for turn in range(rounds):
            for number, (name, way) in enumerate(ways.items()):
                folder = home / f"{turn}-{number}"
                folder.mkdir()
                measurements[name].append(measured(way, folder, log, slurm))
    return 1 if report(measurements) else 0


def report(measurements: dict[str, list[Measurement]]) -> int:
    medians = {name: statistics.median(way.seconds for way in some) for name, some in measurements.items()}
    mine = medians["repro submit"]
    print(f"{JOBS:,} held jobs{'':<16}{'s':>9}{'x ours':>9}{'sbatch calls':>14}")
    for name, seconds in medians.items():
        extrapolated = f" ({SAMPLE} jobs, extrapolated)" if measurements[name][0].calls == SAMPLE else ""
        print(f"{name:<27}{seconds:>9.3f}{seconds / mine:>9.2f}{measurements[name][0].calls:>14}{extrapolated}")
    gain, share = medians["submitit submit"] / mine, mine / medians["submitit map_array"]
    missed = (gain < LEAST_GAIN) + (share > MOST_OF_ARRAY)
    print(f"{gain:.0f} times faster than one by one, {share:.2f} times map_array")
    print(f"at least {LEAST_GAIN} and at most {MOST_OF_ARRAY}: {'no' if missed else 'yes'}")
    return missed


def measured(way: Callable[[Path], int], folder: Path, log: Path, slurm: SlurmCluster) -> Measurement:
    """Measure one way of submission, then cancel its jobs."""
    ledger_at(folder)
    log.write_text("")
    start = time.perf_counter()
    jobs = way(folder)
    seconds = (time.perf_counter() - start) * JOBS / jobs
    queued = len(slurm.run("squeue", "-h", "-r", "-t", "pending", "-o", "%i").splitlines())
    if queued != jobs:
        raise SystemExit(f"{queued} jobs are in the queue, not {jobs}")
    slurm.run("scancel", "--user=root")
    shutil.rmtree(folder)
    return Measurement(seconds, len(called(log)))


def one_by_one(folder: Path, pause: bool) -> int:
    executor = submitits(folder)
    if not pause:
        executor._throttling = 0.0
    for _ in range(SAMPLE):
        executor.submit(print, "held")
    return SAMPLE


def in_array(folder: Path) -> int:
    submitits(folder).map_array(print, range(JOBS))
    return JOBS


def submitits(folder: Path) -> SlurmExecutor:
    executor = SlurmExecutor(folder)
    executor.update_parameters(time=10, partition="batch", array_parallelism=4, additional_parameters={"hold": True})
    return executor


def ours(folder: Path, plans: Sequence[Plan], cluster: Cluster) -> int:
    return submit(plans, cluster, ledger_at(folder), folders_at(folder), ["repro", "submit"]).sent.jobs


def ledger_at(home: Path) -> Ledger:
    ledger = open_ledger(ledger_url(None, home))
    assert ledger is not None
    return ledger


def thousand_plans(home: Path) -> tuple[list[Plan], Cluster]:
    """Return the plans of a case repeated 1,000 times."""
    (home / "site.yaml").write_text(PROFILE)
    folders = folders_at(home)
    cluster = find_cluster(folders, str(home / "site.yaml"))
    entry = find_experiment(folders, "sc21/figure-13")
    return repeated(plan_cases(entry, expand(entry, "cpu")[:1], cluster, folders), JOBS), cluster


def folders_at(home: Path) -> Folders:
    return replace(find_folders(), home=home)


@contextlib.contextmanager
def held_slurm(*, accounting: bool = False, min_job_age_s: int = 300) -> Iterator[tuple[SlurmCluster, Path]]:
    """Start a Slurm of four nodes for the commands of this process, with a folder for everything else."""
    with tempfile.TemporaryDirectory(prefix="sf") as name, pytest.MonkeyPatch.context() as patch:
        Path(name).chmod(0o755)  # the database runs as another user
        slurm = SlurmCluster(Path(name) / "slurm", Shape(accounting=accounting, min_job_age_s=min_job_age_s))
        patch.setenv("SLURM_CONF", str(slurm.conf))
        try:
            slurm.up()
            yield slurm, Path(name)
        finally:
            slurm.down()


@contextlib.contextmanager
def counted_calls(home: Path, commands: Sequence[str]) -> Iterator[Path]:
    """Record each call of these commands as a line in the log: its words, each followed by END_OF_WORD."""
    folder, log = home / "bin", home / "calls"
    folder.mkdir()
    log.write_text("")
    for command in commands:
        record = f"""printf '%s{END_OF_WORD}' {shutil.which(command)} "$@" >>{log}; echo >>{log}"""
        (folder / command).write_text(f'#!/bin/sh\n{record}\nexec {shutil.which(command)} "$@"\n')
        (folder / command).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield log


def called(log: Path) -> list[list[str]]:
    """Return the calls that `counted_calls` has recorded."""
    return [line.split(END_OF_WORD)[:-1] for line in log.read_text().split("\n")[:-1]]


if __name__ == "__main__":
    sys.exit(main())
