"""`repro status` of 10,000 jobs, 1,000 of them held in a real Slurm: what it asks, and what it takes beside asking.

    python -m benchmarks.status [--rounds 5]

The limit is what the same squeue and sacct take by themselves, and one second; of each the quickest round counts, as
what else the machine does makes it only slower. Naming an experiment prints a line for each of its jobs: shown, without
a limit. Then five terminals watch at once: they may ask no oftener than every
15 s together. As root on Debian or Ubuntu; takes two minutes.
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
from tests.slurm.host import wait_until

VERIFIED_JOBS = 9 * JOBS
REPRO = str(Path(sys.executable).with_name("repro"))
MORE_S = 1.0
TERMINALS, WATCH_S, ASK_EVERY_S = 5, 40, 15
CANCELLED = 100


@dataclass(frozen=True)
class Taken:
    """A command, what it used of a core, the Slurm commands that it called, and what these take by themselves."""

    seconds: float
    core_s: float
    calls: list[list[str]]
    alone_s: float

    def of(self, command: str) -> int:
        return sum(Path(words[0]).name == command for words in self.calls)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with held_slurm(accounting=True, min_job_age_s=2) as (slurm, home), counted_calls(home, ["squeue", "sacct"]) as log:
        ids = fill(home)
        print(f"{VERIFIED_JOBS + JOBS:,} jobs, {JOBS:,} of them held in Slurm")
        print(f"{'command':<28}{'s':>7}{'of a core':>10}{'squeue':>8}{'sacct':>7}{'these alone s':>15}{'more s':>8}")
        missed = 0
        for words in (["status"], ["status", "--json"]):
            missed += row(words, [asked(home, log, words) for _ in range(rounds)])
        for words in (["status", "figure-13"], ["status", "figure-13", "--where", "pp=1"]):
            row(
                words, [asked(home, log, words) for _ in range(rounds)], f" a line for each of {VERIFIED_JOBS + JOBS:,}"
            )
        cancel(slurm, ids)
        missed += row(["status"], [asked(home, log, ["status"])], f" after {CANCELLED} were cancelled")
        missed += watched(home, log)
    print(f"one squeue, at most one sacct, {MORE_S:.0f} s more, no watching too often: {'no' if missed else 'yes'}")
    return 1 if missed else 0


def row(words: Sequence[str], taken: Sequence[Taken], note: str = "") -> bool:
    """Print the quickest round; whether it, or any call too many, is beyond the limit."""
    seconds, core_s, alone = (
        min(some) for some in zip(*((t.seconds, t.core_s, t.alone_s) for t in taken), strict=True)
    )
    squeue, sacct = (max(one.of(command) for one in taken) for command in ("squeue", "sacct"))
    more = seconds - alone
    print(f"{' '.join(words):<28}{seconds:>7.2f}{core_s:>10.2f}{squeue:>8}{sacct:>7}{alone:>15.2f}{more:>8.2f}{note}")
    return more > MORE_S or squeue != 1 or sacct > 1


def asked(home: Path, log: Path, words: Sequence[str]) -> Taken:
    """Time the command as a person types it, then its scheduler calls alone."""
    log.write_text("")
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([REPRO, *words], env=environment(home), cwd=home, capture_output=True, check=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    core_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    calls = called(log)
    start = time.perf_counter()
    for call in calls:
        subprocess.run(call, env=environment(home), capture_output=True, check=True)
    return Taken(seconds, core_s, calls, time.perf_counter() - start)


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "REPRO_HOME": str(home)}


def cancel(slurm: SlurmCluster, ids: Sequence[str]) -> None:
    """Cancel some jobs, so that squeue forgets them and only accounting has them."""
    gone = [f"{one}_{index}" for one in ids for index in range(CANCELLED)]
    slurm.run("scancel", *gone)
    left = JOBS - len(gone)
    wait_until(lambda: queued(slurm) == left, seconds=120, what=f"squeue knows {left} jobs")


def queued(slurm: SlurmCluster) -> int:
    return len(slurm.run("squeue", "-h", "-r", "-t", "all", "-o", "%i").splitlines())


def watched(home: Path, log: Path) -> bool:
    """Whether several terminals that watch together ask too often."""
    log.write_text("")
    with contextlib.ExitStack() as open_ones:
        start = time.perf_counter()
        terminals = []
        for number in range(TERMINALS):
            out = open_ones.enter_context((home / f"watch-{number}").open("w"))
            words = [REPRO, "status", "--watch"]
            terminals.append(subprocess.Popen(words, env=environment(home), cwd=home, stdout=out, stderr=out))
        time.sleep(WATCH_S)
        ended = [one.returncode for one in terminals if one.poll() is not None]
        used = [cpu_seconds(one, start) for one in terminals]
    counts = Counter(Path(words[0]).name for words in called(log))
    most = WATCH_S // ASK_EVERY_S + 1
    said = f"{counts['squeue']} squeue (at most {most}), {counts['sacct']} sacct"
    print(f"{TERMINALS} terminals watch for {WATCH_S} s: {said}")
    print(f"  each uses {statistics.median(used):.0%} of a core; ended by themselves: {ended or 'none'}")
    return counts["squeue"] > most or counts["sacct"] > most or bool(ended)


def cpu_seconds(terminal: subprocess.Popen[bytes], start: float) -> float:
    """End it; what it used of a core, its calls of Slurm included."""
    terminal.send_signal(signal.SIGINT)
    _, _, usage = os.wait4(terminal.pid, 0)
    return (usage.ru_utime + usage.ru_stime) / (time.perf_counter() - start)


def fill(home: Path) -> list[str]:
    """1,000 held jobs, submitted as `repro submit` does it, and 9,000 like them that were verified; Slurm's ids."""
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
