"""Time to read a log of a described program, compared with a plain loop over its lines, in one run.

    python -m benchmarks.described_output [--mb 100] [--rounds 5]

The log has lines of NCCL, none of which has a number of the program: the common case of a log of 1 GB. It is read as
`repro experiments check --log` reads it, by three programs: rows, rows and a value, iterations. The peers are a loop
over the lines of the file, and `grep -c` of a few words. Each time is the fastest of the rounds, which are interleaved:
other load only slows a reader down.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import yaml

from orchestrator.api.plans import lines_of
from orchestrator.programs.program import ProgramFields, judge_output

LIMIT = 40.0
"""Largest time of a reader, in times of the plain loop."""

LINE = b"node%03d:%d:%d [0] NCCL INFO Channel 02/16 : 2[2] -> 3[3] via P2P/CUMEM/read, of the first communicator\n"
PROGRAM = "{command: [x], output: {%s}, metrics: {busbw: {better: higher}}}"
ROWS = "rows: {columns: size count type time_us busbw wrong, key: size}"
OUTPUTS = {
    "rows": ROWS,
    "rows and a value": f"{ROWS}, values: {{wrongs: 'Out of bounds values *: *{{number}}'}}",
    "iterations": "iterations: 'step={iteration} busbw={busbw}'",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        lines = write(log, asked.mb * 10**6)
        readers: dict[str, Callable[[], object]] = {
            "plain loop": lambda: plain_loop(log),
            "grep -c": lambda: subprocess.run(
                ["grep", "-c", "Out of bounds", log], stdout=subprocess.DEVNULL, check=False
            ),
        }
        readers |= {name: reader(log, output) for name, output in OUTPUTS.items()}
        times: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(asked.rounds):
            for name, read in readers.items():
                begin = time.perf_counter()
                read()
                times[name].append(time.perf_counter() - begin)
    best = {name: min(of_rounds) for name, of_rounds in times.items()}
    for name, seconds in best.items():
        ratio = seconds / best["plain loop"]
        print(f"{name:17} {seconds:6.2f} s, {ratio:5.1f} times the loop, {seconds / lines * 1e6:.2f} us a line")
    missed = [name for name in OUTPUTS if best[name] > LIMIT * best["plain loop"]]
    print("within the limits:", "no" if missed else "yes")
    return 1 if missed else 0


def write(log: Path, size: int) -> int:
    """Write the log, and return the number of its lines."""
    with log.open("wb") as file:
        for number in count(1):
            file.write(LINE % (number % 999, number, number))
            if file.tell() >= size:
                return number
    raise AssertionError


def plain_loop(log: Path) -> int:
    lines = 0
    with log.open("rb") as file:
        for _ in file:
            lines += 1
    return lines


def reader(log: Path, output: str) -> Callable[[], object]:
    program = ProgramFields.model_validate(yaml.safe_load(PROGRAM % output))
    return lambda: judge_output(program, {}, lines_of(log))


if __name__ == "__main__":
    sys.exit(main())
