"""Time of `repro collect` for finished jobs, compared with only reading their logs, and its memory by number of jobs.

    python -m benchmarks.collecting [--jobs 1000 10000]

Jobs of 200 interval lines each are read, judged and stored in one run, each number of jobs in a process of its own. For
comparison the same files are only read, and collected a second time when nothing is new. 10,000 logs take 600 MB of
disk and some minutes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.tables import ENDED, Attempt, Job, RunJob, Table, rows_of
from orchestrator.reading.collect import collect
from orchestrator.reading.job_status import experiment_statuses
from tests.recorded_jobs import JOB_SPEC, new_ledger, record_jobs

LINES = 200
ALLOWED_GROWTH = 1.15
"""Largest ratio of the peak memory of ten thousand jobs to that of a thousand."""

WORLD = "using world size: 4, data-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
LINE = (
    " [2026-01-01 00:00:00.000000] iteration {n:8d}/{of:8d} | consumed samples: {n:12d} | elapsed time per iteration"
    " (ms): {ms:.1f} | learning rate: 1.000000E-04 | global batch size:     4 | lm loss: {loss:.6E} | loss scale: 1.0 |"
    " grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measured(given.measure)))
        return 0
    print(f"{'jobs':>7}{'ms a job':>10}{'only reading ms':>17}{'ratio':>7}{'again ms':>10}{'most memory MB':>16}")
    peaks = []
    for number in given.jobs:
        command = [sys.executable, "-m", "benchmarks.collecting", "--measure", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seen = json.loads(done.stdout)
        each_ms, bare_ms, again_ms = (1e3 * seen[name] / number for name in ("collect_s", "read_s", "again_s"))
        peaks.append(seen["peak_mb"])
        ratio = each_ms / bare_ms
        print(f"{number:>7,}{each_ms:>10.2f}{bare_ms:>17.3f}{ratio:>7.0f}{again_ms:>10.3f}{peaks[-1]:>16.1f}")
    grows = max(peaks) > ALLOWED_GROWTH * peaks[0]
    print(f"memory does not grow with the number of jobs: {'no' if grows else 'yes'}")
    return 1 if grows else 0


def measured(number: int) -> dict[str, float]:
    """Create the jobs in a child process, whose memory does not count, and collect them in this one."""
    with tempfile.TemporaryDirectory(prefix="repro-collecting-") as folder:
        home = Path(folder)
        subprocess.run([sys.executable, "-c", MAKE, str(home), str(number)], check=True)
        ledger = new_ledger(home)
        begin = time.perf_counter()
        for job in range(number):
            (home / f"{job}" / "log.txt").read_bytes()
        read_s = time.perf_counter() - begin
        begin = time.perf_counter()
        complaints = collect(ledger)
        collect_s = time.perf_counter() - begin
        begin = time.perf_counter()
        collect(ledger)
        again_s = time.perf_counter() - begin
        (counts,), _ = experiment_statuses(ledger)
        assert not complaints and counts.verified == number, (complaints[:1], counts)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"read_s": read_s, "collect_s": collect_s, "again_s": again_s, "peak_mb": peak_mb}


MAKE = """
import sys
from pathlib import Path
from benchmarks.collecting import make
make(Path(sys.argv[1]), int(sys.argv[2]))
"""


def make(home: Path, number: int) -> None:
    """Create jobs that have ended and were not read yet."""
    ledger = new_ledger(home)
    record_jobs(ledger, "first", scheduler="slurm")
    for job in range(number):
        (home / f"{job}").mkdir()
        (home / f"{job}" / "log.txt").write_text(log(job))
    add_ended(ledger, home, number)


def log(job: int) -> str:
    lines = (
        LINE.format(n=n, of=LINES, ms=800 + (n * 7 + job) % 13 / 10, loss=10 / n**0.1, norm=1 + 1 / n)
        for n in range(1, LINES + 1)
    )
    return WORLD + "".join(lines) + "[after training is done] datetime: 2026-01-01 00:00:00 \n"


def add_ended(ledger: Ledger, home: Path, number: int) -> None:
    """Copy the first job to ended jobs, each with its own folder, and remove the first job."""
    with ledger.writing() as session:
        job, asked_for, attempt = (
            values(session.scalars(sa.select(kind).limit(1)).one()) for kind in (Job, RunJob, Attempt)
        )
        for table in (RunJob, Attempt, Job):
            session.execute(sa.delete(table))
        configuration = JOB_SPEC | {"device": "gpu", "peak_tflops": 312.0}
        new: dict[type[Table], list[dict[str, Any]]] = {Job: [], RunJob: [], Attempt: []}
        ended = {"phase": ENDED, "state": "COMPLETED", "exit_code": 0, "started_at": now(), "ended_at": now()}
        for index in range(number):
            name = f"{index:012x}"
            new[Job].append({**job, "id": name, "iterations": LINES, "configuration": configuration})
            new[RunJob].append({**asked_for, "job_id": name, "position": index, "case_name": f"case={index}"})
            new[Attempt].append({**attempt, **ended, "id": index + 1, "job_id": name, "folder": str(home / f"{index}")})
        for kind, rows in new.items():
            session.execute(sa.insert(rows_of(kind)), rows)


def values(row: Table) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in sa.inspect(type(row)).column_attrs}


if __name__ == "__main__":
    sys.exit(main())
