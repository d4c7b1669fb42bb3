"""Stand-in for Slurm's commands: a queue in a file, for many processes at a time, whose jobs end by the clock.

`install` writes the commands. It uses only the standard library, so that a call takes 0.05 s. A job waits, then runs,
then ends without a log; how long each takes and how it ends follow from its id. Each change is one line that is
written at once, so a SIGKILL leaves no half of it. One call in ten of sbatch accepts the job and then answers that it
timed out. Each call pauses before and after it accepts, so a client that is killed can leave a job without its id.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo")
QUEUE = "queue.jsonl"
WAITS_S, RUNS_S = 4, 8
"""Longest time of a job in the queue and on a node."""
_ENDS = ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL")
_SETTINGS = """\
MaxArraySize            = 1001
AccountingStoreFlags    = job_comment
ClusterName             = standin
SlurmctldHost[0]        = c1(127.0.0.1)
SlurmctldPort           = 6817
SLURM_VERSION           = 22.05.8
"""


@dataclass
class Element:
    """A job, or an element of an array, that sbatch accepted; `cancelled_at` is the time of scancel."""

    base: int
    index: int | None
    comment: str
    name: str
    output: str
    submitted: float
    cancelled_at: float | None = None

    @property
    def job_id(self) -> str:
        return str(self.base) if self.index is None else f"{self.base}_{self.index}"

    @property
    def times(self) -> tuple[float, float]:
        """Return start and end of a job that is not cancelled, in seconds since the epoch."""
        chance = random.Random(self.job_id)
        start = self.submitted + chance.uniform(0, WAITS_S)
        return start, start + chance.uniform(1, RUNS_S)

    @property
    def end(self) -> float:
        end = self.times[1]
        return end if self.cancelled_at is None else min(end, self.cancelled_at)

    def state(self, now: float) -> str:
        if now >= self.end:
            return "CANCELLED" if self.end != self.times[1] else random.Random(f"{self.job_id} end").choice(_ENDS)
        return "RUNNING" if now >= self.times[0] else "PENDING"

    def fields(self, now: float) -> dict[str, str]:
        """Values of the fields of squeue and sacct, by their names in lower case."""
        state, start = self.state(now), self.times[0]
        failed = state not in ("COMPLETED", "PENDING", "RUNNING", "CANCELLED")
        code = "256" if failed else "0"
        return {
            "jobarrayid": self.job_id,
            "jobid": self.job_id,
            "state": f"CANCELLED by {os.getuid()}" if state == "CANCELLED" else state,
            "exit_code": code,
            "exitcode": "1:0" if failed else "0:0",
            "nodelist": "n1" if start <= min(now, self.end) else "",
            "submittime": str(int(self.submitted)),
            "submit": str(int(self.submitted)),
            "starttime": str(int(start)),
            "start": str(int(start)),
            "endtime": str(int(self.end)) if now >= self.end else "Unknown",
            "end": str(int(self.end)) if now >= self.end else "Unknown",
            "timelimit": "0:10:00",
            "username": os.environ.get("USER", "root"),
            "user": os.environ.get("USER", "root"),
            "uid": str(os.getuid()),
            "name": self.name,
            "jobname": self.name,
            "stdout": self.output,
            "comment": self.comment,
        }


def install(folder: Path) -> None:
    """Write the commands into the folder, which must be the first one on PATH."""
    folder.mkdir()
    (folder / QUEUE).touch()
    for name in COMMANDS:
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {Path(__file__)} {name} {folder} "$@"\n')
        (folder / name).chmod(0o755)


def elements(folder: Path) -> list[Element]:
    """Return everything that sbatch ever accepted."""
    accepted: dict[str, Element] = {}
    for line in (folder / QUEUE).read_text().splitlines():
        row = json.loads(line)
        if "cancel" in row:
            for element in accepted.values():
                covered = row["cancel"] in (element.job_id, str(element.base))
                if covered and row["at"] < element.end:
                    element.cancelled_at = row["at"]
        else:
            element = Element(**row)
            accepted[element.job_id] = element
    return list(accepted.values())


def append(folder: Path, rows: list[dict[str, object]]) -> None:
    with (folder / QUEUE).open("ab", buffering=0) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def sbatch(folder: Path, words: list[str]) -> int:
    script = next(word for word in words if not word.startswith("-"))
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", Path(script).read_text(), re.MULTILINE))
    options |= dict(re.findall(r"--([\w-]+)=(.*)", word)[0] for word in words if re.match(r"--[\w-]+=", word))
    chance = random.Random()
    time.sleep(chance.uniform(0, 0.3))
    base = 1 + max((element.base for element in elements(folder)), default=100)
    indexes = [*spanned(options["array"])] if "array" in options else [None]
    name = options.get("job-name", "")
    output = options.get("output", "").replace("%A", str(base)).replace("%j", str(base))
    new = [Element(base, index, options.get("comment", ""), name, output, time.time()) for index in indexes]
    append(folder, [asdict(element) for element in new])
    fcntl.flock(LOCK, fcntl.LOCK_UN)
    time.sleep(chance.uniform(0, 0.3))
    if chance.random() < 0.1:
        print("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print(base)
    return 0


def spanned(text: str) -> Iterator[int]:
    """Yield the indexes of `0-3,5%2`."""
    for part in text.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def listed(folder: Path, words: list[str], command: str) -> int:
    """Print the jobs that squeue or sacct lists, in the form that the options ask for."""
    options = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    if command == "squeue":
        columns = [part.partition(":")[0] for part in options["Format"].split(",")]
        separator = options["Format"].partition(":")[2].partition(",")[0]
    else:
        columns, separator = options["format"].split(","), options["delimiter"]
    wanted = set(options["jobs"].split(",")) if "jobs" in options else None
    print(separator.join(["JOBID", *columns[1:]]))
    now = time.time()
    for element in elements(folder):
        in_queue = now < element.end + 5
        # An element that is cancelled before it starts leaves no trace in accounting.
        is_traced = element.index is None or element.times[0] <= element.end
        if (in_queue if command == "squeue" else is_traced) and (wanted is None or str(element.base) in wanted):
            fields = element.fields(now)
            if command == "squeue":
                fields["state"] = fields["state"].partition(" ")[0]
            print(separator.join(fields.get(column.lower(), "") for column in columns))
    return 0


def main(command: str, folder: Path, words: list[str]) -> int:
    fcntl.flock(LOCK, fcntl.LOCK_EX)
    if command == "sbatch":
        return sbatch(folder, words)
    if command in ("squeue", "sacct"):
        return listed(folder, words, command)
    if command == "scancel":
        append(folder, [{"cancel": word, "at": time.time()} for word in words if not word.startswith("-")])
    elif command == "scontrol":
        print(_SETTINGS if "config" in words else "Slurmctld(primary) at c1 is UP")
    return 0


if __name__ == "__main__":
    LOCK = os.open(Path(sys.argv[2]) / QUEUE, os.O_RDONLY)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
