"""`repro status` of 10,000 jobs, 1,000 of them held in a real Slurm: its Slurm calls and its own time.

    python -m benchmarks.status [--rounds 5]

The limit is the time of the same squeue and sacct alone, plus one second. The fastest round counts, because other load
only slows it down. `status EXPERIMENT` prints a line for each job and has no limit here. Then five terminals watch at
the same time: together they may query Slurm at most every 15 s. Needs root on Debian or Ubuntu, and two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.submitting import JOBS, called, counted_calls, folders_at, held_slurm, ledger_at, thousand_plans
from orchestrator.launch.submit import submit
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import ENDED, VERIFIED, Attempt, Job, Metric, RunJob, Table
from tests.slurm.cluster import SlurmCluster
from tests.waiting import wait_until

VERIFIED_JOBS = 9 * JOBS
REPRO = str(Path(sys.executable).with_name("repro"))
MORE_S = 1.0
TERMINALS, WATCH_S, ASK_EVERY_S = 5, 40, 15
CANCELLED = 100


@dataclass(frozen=True)
class Usage:
    """Wall and CPU time of a command, the Slurm commands that it called, and their time alone."""

    seconds: float
    core_s: float
    calls: list[list[str]]
    alone_s: float

    def of(self, command: str) -> int:
        return sum(Path(arguments[0]).name == command for arguments in self.calls)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with held_slurm(accounting=True, min_job_age_s=2) as (slurm, home), counted_calls(home, ["squeue", "sacct"]) as log:
        ids = fill(home)
        print(f"{VERIFIED_JOBS + JOBS:,} jobs, {JOBS:,} of them held in Slurm")
        print(f"{'command':<28}{'s':>7}{'of a core':>10}{'squeue':>8}{'sacct':>7}{'these alone s':>15}{'more s':>8}")
        missed = 0
        for arguments in (["status"], ["status", "--json"]):
            missed += row(arguments, [asked(home, log, arguments) for _ in range(rounds)])
        for arguments in (["status", "figure-13"], ["status", "figure-13", "--where", "pp=1"]):
            row(
                arguments,
                [asked(home, log, arguments) for _ in range(rounds)],
                f" a line for each of {VERIFIED_JOBS + JOBS:,}",
            )
        cancel(slurm, ids)
        missed += row(["status"], [asked(home, log, ["status"])], f" after {CANCELLED} were cancelled")
        missed += watched(home, log)
    print(f"one squeue, at most one sacct, {MORE_S:.0f} s more, no query too often: {'no' if missed else 'yes'}")
    return 1 if missed else 0


def row(arguments: Sequence[str], usages: Sequence[Usage], note: str = "") -> bool:
    """Print the fastest round; return whether its time or its number of calls exceeds a limit."""
    seconds, core_s, alone = (
        min(some) for some in zip(*((t.seconds, t.core_s, t.alone_s) for t in usages), strict=True)
    )
    squeue, sacct = (max(entry.of(command) for entry in usages) for command in ("squeue", "sacct"))
    more = seconds - alone
    print(
        f"{' '.join(arguments):<28}{seconds:>7.2f}{core_s:>10.2f}{squeue:>8}{sacct:>7}{alone:>15.2f}{more:>8.2f}{note}"
    )
    return more > MORE_S or squeue != 1 or sacct > 1


def asked(home: Path, log: Path, arguments: Sequence[str]) -> Usage:
    """Measure the command, then its scheduler calls alone."""
    log.write_text("")
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([REPRO, *arguments], env=environment(home), cwd=home, capture_output=True, check=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    core_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    calls = called(log)
    start = time.perf_counter()
    for call in calls:
        subprocess.run(call, env=environment(home), capture_output=True, check=True)
    return Usage(seconds, core_s, calls, time.perf_counter() - start)


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "REPRO_HOME": str(home)}


def cancel(slurm: SlurmCluster, ids: Sequence[str]) -> None:
    """Cancel some jobs, so that squeue forgets them and only accounting has them."""
    gone = [f"{entry}_{index}" for entry in ids for index in range(CANCELLED)]
    slurm.run("scancel", *gone)
    left = JOBS - len(gone)
    wait_until(lambda: queued(slurm) == left, what=f"squeue knows {left} jobs")


def queued(slurm: SlurmCluster) -> int:
    return len(slurm.run("squeue", "-h", "-r", "-t", "all", "-o", "%i").splitlines())


def watched(home: Path, log: Path) -> bool:
    """Return whether several watching terminals query Slurm too often."""
    log.write_text("")
    with contextlib.ExitStack() as open_ones:
        start = time.perf_counter()
        terminals = []
        for number in range(TERMINALS):
            out = open_ones.enter_context((home / f"watch-{number}").open("w"))
            arguments = [REPRO, "status", "--watch"]
            terminals.append(subprocess.Popen(arguments, env=environment(home), cwd=home, stdout=out, stderr=out))
        time.sleep(WATCH_S)
        ended = [entry.returncode for entry in terminals if entry.poll() is not None]
        used = [cpu_seconds(entry, start) for entry in terminals]
    counts = Counter(Path(arguments[0]).name for arguments in called(log))
    most = WATCH_S // ASK_EVERY_S + 1
    queries = f"{counts['squeue']} squeue (at most {most}), {counts['sacct']} sacct"
    print(f"{TERMINALS} terminals watch for {WATCH_S} s: {queries}")
    print(f"  each uses {statistics.median(used):.0%} of a core; ended by themselves: {ended or 'none'}")
    return counts["squeue"] > most or counts["sacct"] > most or bool(ended)


def cpu_seconds(terminal: subprocess.Popen[bytes], start: float) -> float:
    """End a process and return its share of a core, with its Slurm commands."""
    terminal.send_signal(signal.SIGINT)
    _, _, usage = os.wait4(terminal.pid, 0)
    return (usage.ru_utime + usage.ru_stime) / (time.perf_counter() - start)


def fill(home: Path) -> list[str]:
    """Create 1,000 held jobs as `repro submit` does, and 9,000 verified jobs like them; return Slurm's ids."""
    plans, cluster = thousand_plans(home)
    ledger = ledger_at(home)
    ids = submit(plans, cluster, ledger, folders_at(home), ["repro", "submit"]).sent.ids
    add_verified(ledger)
    return ids


def add_verified(ledger: Ledger) -> None:
    """Copy the first job to jobs that ended long ago."""
    with ledger.writing() as session:
        job, asked_for, attempt = (
            values(session.scalars(sa.select(kind).limit(1)).one()) for kind in (Job, RunJob, Attempt)
        )
        ended = {"phase": ENDED, "state": "COMPLETED", "verdict": VERIFIED, "ended_at": now(), "exit_code": 0}
        first = 1_000_000
        new: dict[type[Table], list[dict[str, Any]]] = {Job: [], RunJob: [], Attempt: [], Metric: []}
        for i in range(VERIFIED_JOBS):
            name, number = f"{i:012x}", first + i
            new[Job].append({**job, "id": name, "repeat": number})
            new[RunJob].append({**asked_for, "job_id": name, "position": number})
            new[Attempt].append({**attempt, **ended, "id": number, "job_id": name, "scheduler_id": str(number)})
            new[Metric].append({"attempt_id": number, "name": "tflops_per_gpu", "value": 1.0, "unit": "teraFLOP/s"})
        for kind, rows in new.items():
            session.execute(sa.insert(kind), rows)


def values(row: Table) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in sa.inspect(type(row)).column_attrs}


if __name__ == "__main__":
    sys.exit(main())
