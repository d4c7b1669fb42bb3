"""Twenty terminals with one ledger and one scheduler, for three minutes, and a SIGKILL for one command in four.

    python -m benchmarks.terminals [--terminals 20] [--minutes 3] [--seed 1]

Each terminal runs `submit`, `status`, `collect`, `cancel` and `retry` of the cases of figure 13 in random order. Half
of the killed commands are killed alone, and half together with the scheduler commands that they have called. The
scheduler is `benchmarks/stand_in_slurm.py`. At the end no case was twice in the queue at a time, the ledger has every
attempt and each job that the scheduler accepted, and SQLite finds no damage. A command that ends by itself prints no
defect. Exit code 1 if any of this is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from benchmarks.stand_in_slurm import Element, elements, install
from benchmarks.submitting import ledger_at
from orchestrator.launch.run_record import COMMENT, sent_of_run
from orchestrator.ledger.tables import ENDED, LOST, OPEN, Attempt
from tests.stand_in_site import Site

PROFILE = """\
about: a stand-in
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 4}
slurm: {partition: batch, time_limit: "0:10:00", gpu_request: none, max_running: 4}
"""
FIGURE = ("figure-13", "--cluster", "here", "--scale", "cpu")
CASES = tuple(f"pp={pp},gbs={gbs}" for pp in (1, 2, 4) for gbs in (4, 16))
KILLED_SHARE, KILLED_WITHIN_S = 0.25, 4.0
LIMIT_S = 300


@dataclass
class Counted:
    """Number of commands by name, of kills, of exit codes and of error messages; output of commands with a defect."""

    commands: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    defects: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terminals", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="terminals") as name:
        site, bin_folder = site_in(Path(name))
        counted = Counted()
        until = time.monotonic() + 60 * options.minutes
        threads = [
            threading.Thread(target=use, args=(site, random.Random(f"{options.seed} {number}"), until, counted))
            for number in range(options.terminals)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{options.terminals} terminals, {options.minutes:g} min, seed {options.seed}")
        print(f"commands: {sum(counted.commands.values())} ({listing(counted.commands)}), {counted.killed} killed")
        print(f"exit codes of the others: {listing(counted.exits)}")
        for error, number in counted.errors.most_common():
            print(f"  {number} x {error}")
        violations = [*counted.defects, *faults_of(site, bin_folder)]
    print("\n".join(violations) or "no case twice in the queue, no job or attempt missing, no damage, no defect")
    return 1 if violations else 0


def site_in(folder: Path) -> tuple[Site, Path]:
    """Return a home folder whose cluster `here` is the stand-in, and the folder of its commands."""
    site, bin_folder = Site(folder / "home"), folder / "bin"
    (site.folder / "clusters").mkdir(parents=True)
    (site.folder / "clusters" / "here.yaml").write_text(PROFILE + site.write_program())
    install(bin_folder)
    site.variables["PATH"] = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    return site, bin_folder


def use(site: Site, chance: random.Random, until: float, counted: Counted) -> None:
    """Run commands until this time, as a user in a terminal does."""
    while time.monotonic() < until:
        words = a_command(chance)
        kill_after = chance.uniform(0, KILLED_WITHIN_S) if chance.random() < KILLED_SHARE else None
        process = started(site, words)
        was_killed = False
        try:
            _, stderr = process.communicate(timeout=LIMIT_S if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            was_killed = kill_after is not None
            end = os.killpg if not was_killed or chance.random() < 0.5 else os.kill
            end(process.pid, signal.SIGKILL)
            # Not `communicate`: commands of the scheduler may still have the pipes open.
            process.wait()
            stderr = "" if was_killed else f"no end within {LIMIT_S} s"
        counted.commands[words[0]] += 1
        counted.killed += was_killed
        if not was_killed:
            counted.exits[process.returncode] += 1
            if process.returncode > 1:
                line = next((line for line in stderr.splitlines() if line.startswith("repro: ")), stderr)
                counted.errors[re.sub(r"\S*/\S*|\b[0-9a-f]*\d[0-9a-f]*\b", "_", line)] += 1
            if "defect" in stderr or "Traceback" in stderr or process.returncode not in (0, 1, 2, 3):
                counted.defects.append(f"repro {' '.join(words)}: exit {process.returncode}: {stderr.strip()}")
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def started(site: Site, words: list[str]) -> subprocess.Popen[str]:
    """Start `repro` in a session of its own, as in a terminal."""
    command = [str(Path(sys.executable).with_name("repro")), *words]
    return subprocess.Popen(
        command,
        cwd=site.folder,
        env=site.environment,
        text=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def a_command(chance: random.Random) -> list[str]:
    name = chance.choice(("submit", "submit", "submit", "status", "collect", "cancel", "retry"))
    where = ["--where", chance.choice(CASES)] if chance.random() < 0.7 else []
    if name == "submit":
        return [name, *FIGURE, *where, *(["--rerun"] if chance.random() < 0.3 else [])]
    return [name, "figure-13", *where, *(["--yes"] if name == "cancel" else [])]


def faults_of(site: Site, bin_folder: Path) -> Iterator[str]:
    """Yield each invariant that does not hold, after one last `repro status`."""
    last = site.repro("status")
    if last.returncode not in (0, 1):
        yield f"the last status: exit {last.returncode}: {last.stderr.strip()}"
    with contextlib.closing(sqlite3.connect(site.folder / "results.db")) as connection:
        (check,) = connection.execute("PRAGMA integrity_check").fetchone()
        broken = connection.execute("PRAGMA foreign_key_check").fetchall()
    if check != "ok" or broken:
        yield f"integrity_check: {check}; foreign_key_check: {len(broken)} rows"
    accepted = elements(bin_folder)
    attempts = ledger_at(site.folder).scalars(sa.select(Attempt).order_by(Attempt.job_id, Attempt.number))
    by_state = Counter(attempt.state for attempt in attempts)
    print(f"{len(attempts)} attempts ({listing(by_state)}), {len(accepted)} jobs and elements accepted")
    yield from lost_attempts(attempts)
    yield from unrecorded(accepted, attempts)
    yield from twice_in_queue(accepted, site)


def lost_attempts(attempts: list[Attempt]) -> Iterator[str]:
    """Yield the jobs whose attempts have gaps, and attempts without an end or a place in the queue."""
    numbers: dict[str, list[int]] = {}
    for attempt in attempts:
        numbers.setdefault(attempt.job_id, []).append(attempt.number)
        if attempt.state == LOST or (attempt.phase not in (*OPEN, ENDED)):
            yield f"{attempt.job_id} attempt {attempt.number}: {attempt.state}, {attempt.phase}"
    for job_id, found in numbers.items():
        if found != list(range(1, len(found) + 1)):
            yield f"{job_id}: attempts {found}"


def unrecorded(accepted: list[Element], attempts: list[Attempt]) -> Iterator[str]:
    """Yield what the scheduler accepted and the ledger does not have, unless `repro` cancelled it as a copy."""
    recorded = {attempt.scheduler_id for attempt in attempts}
    for element in accepted:
        if element.job_id not in recorded and element.cancelled_at is None:
            yield f"{element.job_id} ({element.comment}) was accepted, and is not in the ledger"


def twice_in_queue(accepted: list[Element], site: Site) -> Iterator[str]:
    """Yield the cases that were in the queue twice at a time, by the records of the run folders."""
    jobs = {
        (sent.token, sent.array_index): sent.job_id
        for run in (site.folder / "runs").iterdir()
        for sent in sent_of_run(run)
    }
    last: dict[str, Element] = {}
    for element in sorted(accepted, key=lambda entry: entry.submitted):
        job_id = jobs.get((element.comment.removeprefix(COMMENT), element.index))
        if job_id is None:
            yield f"{element.job_id} ({element.comment}) has no record in a run folder"
            continue
        before = last.get(job_id)
        if before is not None and element.submitted < before.end:
            yield f"{job_id}: {before.job_id} until {before.end}, and {element.job_id} since {element.submitted}"
        if before is None or element.end > before.end:
            last[job_id] = element


def listing(counts: Counter[str] | Counter[int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
