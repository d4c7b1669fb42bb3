"""Cold start of the commands as whole processes, compared with their lower limits and with a peer.

    python benchmarks/cli.py [--rounds 10]

Rounds are interleaved, so that other load on the machine affects all commands alike. Each number is the least CPU time
of its rounds (user and system), because other load only adds to it. ReFrame is measured if it is installed
(pip install reframe-hpc).
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.database import ledger_url, now, open_ledger
from orchestrator.ledger.runs import Disposition, NewAttempt, NewJob, NewRun, new_run
from orchestrator.ledger.tables import ENDED, VERIFIED, Attempt

FEW, MANY = 6, 10_000
REACH = (
    ("repro --help", "import submitit", 1.5),
    (f"repro list, {FEW} jobs", "import sqlalchemy.orm", 1.5),
    (f"repro status, {FEW} jobs", "import sqlalchemy.orm", 1.5),
    (f"repro status, {MANY} jobs", "import sqlalchemy.orm", 2.5),
)
"""Command, the command that it is compared with, and the limit of the ratio."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {jobs: Path(folder) / f"{jobs}.db" for jobs in (FEW, MANY)}
        for jobs, database in ledgers.items():
            fill(database, jobs)
        times = measure(commands(ledgers), rounds)
    floor = times["python -c pass"]
    print(f"{'command':<28}{'ms':>8}{'x python':>10}")
    for name, milliseconds in times.items():
        print(f"{name:<28}{milliseconds:>8.1f}{milliseconds / floor:>10.1f}")
    missed = 0
    for command, against, most in REACH:
        ratio = times[command] / times[against]
        missed += ratio > most
        print(f"{command}: {ratio:.2f} times {against}; to stay within {most}: {'yes' if ratio <= most else 'no'}")
    return 1 if missed else 0


def commands(ledgers: Mapping[int, Path]) -> dict[str, list[str]]:
    """Return the commands by name; those of `repro` read a ledger."""
    python, repro = sys.executable, str(Path(sys.executable).with_name("repro"))
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "import submitit": [python, "-c", "import submitit"],
        "import sqlalchemy.orm": [python, "-c", "import sqlalchemy.orm"],
        "repro --help": [repro, "--help"],
    }
    for jobs, database in ledgers.items():
        for word in ("list", "status"):
            commands[f"repro {word}, {jobs} jobs"] = [repro, word, "--database", str(database)]
    reframe = shutil.which("reframe")
    return commands | ({"reframe --help": [reframe, "--help"]} if reframe else {})


def measure(named: Mapping[str, Sequence[str]], rounds: int) -> dict[str, float]:
    """Return the least CPU time in ms of each command; a first, unmeasured round fills the caches of bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(rounds + 1):
        for name, command in named.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, env=environment, capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if turn:
                times[name].append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return {name: min(values) for name, values in times.items()}


def fill(database: Path, count: int) -> None:
    """Write a ledger in which so many jobs have ended."""
    ledger = open_ledger(ledger_url(str(database), database.parent))
    assert ledger is not None
    run = NewRun(
        id="r",
        experiment="sc21/figure-13",
        scale="cpu",
        cluster="local",
        user="u",
        host="h",
        pid=1,
        command=[],
        git_commit=None,
        git_dirty=None,
        versions={},
        profile={},
    )
    spec = JobSpec(point={"pp": 1}, gpus_per_node=4)
    jobs = [NewJob(f"{i:012x}", f"pp={i}", "local", "pretrain", "c", None, spec, 4, 8, "local") for i in range(count)]
    with new_run(ledger, run, jobs) as transaction:
        attempts = {job.id: NewAttempt("/f", i, (), False, "/", "", "") for i, job in enumerate(jobs)}
        transaction.add({job.id: Disposition.MISSING for job in jobs}, attempts, {})
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(phase=ENDED, state="COMPLETED", verdict=VERIFIED, ended_at=now()))


if __name__ == "__main__":
    sys.exit(main())
