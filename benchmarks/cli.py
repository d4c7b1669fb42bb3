"""Cold start of the commands as whole processes, compared with their lower limits and with a peer.

    python benchmarks/cli.py [--rounds 15]

Rounds are interleaved, so that other load on the machine affects all commands alike. Each number is a median. The
ledger of `repro status` has 10,000 ended jobs. ReFrame is measured if it is installed (pip install reframe-hpc).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa

from orchestrator.job_spec import JobSpec
from orchestrator.ledger.database import ledger_url, now, open_ledger
from orchestrator.ledger.runs import Disposition, NewAttempt, NewJob, NewRun, new_run
from orchestrator.ledger.tables import ENDED, VERIFIED, Attempt

JOBS = 10_000
REACH = (("repro --help", "import submitit", 1.5), ("repro status", "import sqlalchemy.orm", 2.5))
"""Command, the command that it is compared with, and the limit of the ratio."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "results.db"
        fill(database)
        medians = measure(commands(), rounds, {**os.environ, "REPRO_DATABASE": str(database)})
    floor = medians["python -c pass"]
    print(f"{'command':<26}{'ms':>8}{'x python':>10}")
    for name, milliseconds in medians.items():
        print(f"{name:<26}{milliseconds:>8.1f}{milliseconds / floor:>10.1f}")
    missed = 0
    for command, against, most in REACH:
        ratio = medians[command] / medians[against]
        missed += ratio > most
        print(f"{command} is {ratio:.2f} times {against}; to stay within {most}: {'yes' if ratio <= most else 'no'}")
    return 1 if missed else 0


def commands() -> dict[str, list[str]]:
    python, repro = sys.executable, str(Path(sys.executable).with_name("repro"))
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "import submitit": [python, "-c", "import submitit"],
        "import sqlalchemy.orm": [python, "-c", "import sqlalchemy.orm"],
        "repro --help": [repro, "--help"],
        "repro list": [repro, "list"],
        "repro status": [repro, "status"],
    }
    reframe = shutil.which("reframe")
    return commands | ({"reframe --help": [reframe, "--help"]} if reframe else {})


def measure(named: Mapping[str, Sequence[str]], rounds: int, environment: Mapping[str, str]) -> dict[str, float]:
    """Return the median wall time in ms of each command; a first, unmeasured round fills the caches."""
    times: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(rounds + 1):
        for name, command in named.items():
            start = time.perf_counter()
            subprocess.run(command, env=environment, capture_output=True, check=True)
            if turn:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def fill(database: Path) -> None:
    """Return a ledger in which 10,000 jobs have ended."""
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
    jobs = [NewJob(f"{i:012x}", f"pp={i}", "local", "pretrain", "c", None, spec, 4, 8, "local") for i in range(JOBS)]
    with new_run(ledger, run, jobs) as transaction:
        missing = transaction.missing({job.id: Disposition.MISSING for job in jobs})
        attempts = {job_id: NewAttempt("/f", i, (), False, "/", "", "") for i, job_id in enumerate(missing)}
        transaction.add(attempts, {})
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(phase=ENDED, state="COMPLETED", verdict=VERIFIED, ended_at=now()))


if __name__ == "__main__":
    sys.exit(main())
