"""Time to read a log of 100 MB, compared with lower limits and with two peers, in one run.

    python -m benchmarks.logs [--mb 100] [--rounds 7]

The `dense` log has only iteration lines. In the `sparse` log one line of a hundred is an iteration line, among lines of
NCCL and of timers. Both are read as `repro collect` reads them: block by block, into columns of all numbers and into
facts. The limits are 1.5 times a loop over the same pattern's matches in the dense log in memory, without converting
numbers, and 3 times `grep -c` of a few words in the sparse file.

The peers read two numbers of a line, TFLOP/s and milliseconds. ReFrame uses its own `sn.extractall`, once per number,
if `reframe-hpc` is installed. Otherwise the code of its version 4.10 is repeated here: a pattern over the whole decoded
text. CloudAI is not on PyPI. Its source of 2026-08 is repeated here: a pattern for both numbers on each line, once for
its report and once for each of its two metrics. Each time is the fastest of the rounds, which are interleaved: other
load only slows a reader down.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import zstandard

from orchestrator.megatron.logs.iteration_lines import IN_ORDER, IterationLines
from orchestrator.megatron.logs.parse import LogFacts, effective_of, read_part
from orchestrator.reading.logs import log_files

DENSE_LIMIT, SPARSE_LIMIT = 1.5, 3.0
HOLE_BYTES = 5 * 10**9
FEW_MB = 20
"""Largest additional memory in MB for a log of `HOLE_BYTES`."""

LINE = (
    " [2026-01-16 15:22:22.{micro:06d}] iteration {number:8d}/  500000 | consumed samples: {samples:12d} |"
    " elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    " learning rate: 1.000000E-04 | global batch size:   512 | lm loss: {loss:.6E} | loss scale: 8192.0 |"
    " grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
OTHERS = (
    "node{a:03d}:{b}:{b} [{c}] NCCL INFO Channel {c:02d}/16 : {c}[{c}] -> {c}[{c}] via P2P/CUMEM/read\n",
    "node{a:03d}:{b}:{b} [{c}] NCCL INFO Connected all rings\n",
    "node{a:03d}:{b}:{b} [{c}] NCCL INFO Trees [0] {c}/-1/-1->{c}->-1 [1] {c}/-1/-1->{c}->-1 [2] -1/-1/-1->{c}->{c}\n",
    "(min, max) time across ranks (ms):\n",
    "    forward-backward ...............................: ({b}.25, {b}.50)\n",
    "    optimizer ......................................: ({b}.25, {b}.50)\n",
    "    all-grads-sync .................................: ({b}.25, {b}.50)\n",
)
PATTERNS = (
    r"throughput per GPU \(TFLOP/s/GPU\):\s*([0-9.]+)",
    r"elapsed time per iteration \(ms\):\s*([0-9.]+)",
)
BOTH = re.compile(
    r"elapsed time per iteration \(ms\):\s*([0-9.]+).*?throughput per GPU \(TFLOP/s/GPU\):\s*([0-9.]+)", re.IGNORECASE
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.read is not None:
        return read_once(asked.read)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dense, sparse = (write(folder / kind, lines(kind), asked.mb * 10**6) for kind in ("dense", "sparse"))
        missed = in_turns(dense, sparse, asked.rounds) + memory(folder, dense)
        packed(folder, sparse)
    print("within the limits:", "no" if missed else "yes")
    return 1 if missed else 0


def in_turns(dense: Path, sparse: Path, rounds: int) -> int:
    """Measure all readers, print the table, and return the number of exceeded limits."""
    data = dense.read_bytes()
    extract = reframes_extractall()
    counts = " and ".join(f"{len(lines_of(log.parent)):,}" for log in (dense, sparse))
    print(f"{len(data) / 1e6:.0f} MB, {counts} iteration lines")
    todo: dict[str, Callable[[], object]] = {
        "dense: a bare loop over the matches": lambda: bare_loop(data),
        "dense: this": lambda: lines_of(dense.parent),
        f"dense: ReFrame{extract[0]}": lambda: [extract[1](pattern, dense) for pattern in PATTERNS],
        "dense: CloudAI (restated)": lambda: cloudais_report(dense),
        "sparse: grep -c": lambda: grep(sparse),
        "sparse: this": lambda: lines_of(sparse.parent),
        f"sparse: ReFrame{extract[0]}": lambda: [extract[1](pattern, sparse) for pattern in PATTERNS],
        "sparse: CloudAI (restated)": lambda: cloudais_report(sparse),
    }
    seconds = dict.fromkeys(todo, float("inf"))
    for _ in range(rounds):
        for name, do in todo.items():
            start = time.perf_counter()
            do()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    missed = 0
    for kind, limit in (("dense", DENSE_LIMIT), ("sparse", SPARSE_LIMIT)):
        (_, least), (_, ours), *peers = ((name, seconds[name]) for name in todo if name.startswith(kind))
        missed += (ours > limit * least) + sum(ours > theirs for _, theirs in peers)
        for name in todo:
            if name.startswith(kind):
                print(f"{name:<46}{seconds[name]:>8.3f} s{seconds[name] / least:>8.2f}")
    return missed


def lines(kind: str) -> Iterator[str]:
    chance = random.Random(1)
    for number in range(1, 500_000):
        yield LINE.format(
            number=number,
            micro=chance.randrange(10**6),
            samples=512 * number,
            ms=3000 + 100 * chance.random(),
            tflops=100 + chance.random(),
            loss=9 + chance.random(),
            norm=chance.random(),
        )
        if kind == "sparse":
            for _ in range(99):
                other = chance.choice(OTHERS)
                yield other.format(a=chance.randrange(999), b=chance.randrange(99_999), c=chance.randrange(64))


def write(folder: Path, texts: Iterator[str], size: int) -> Path:
    folder.mkdir()
    log = folder / "log.txt"
    with log.open("w") as file:
        while file.tell() < size:
            file.write("".join(islice(texts, 10_000)))
    return log


def lines_of(folder: Path) -> IterationLines:
    """Read everything of a job."""
    parts, facts = [], LogFacts()
    for file in log_files(folder):
        for block in file.blocks():
            parts.append(read_part(block, facts, final=True))
            facts = parts[-1].facts
    return effective_of(parts)


def bare_loop(data: bytes) -> None:
    for _ in IN_ORDER.finditer(data):
        pass


def grep(log: Path) -> None:
    """Run grep. Its output is not /dev/null, for which GNU grep stops at the first match."""
    subprocess.run(["grep", "-c", "elapsed time per iteration", log], check=True, capture_output=True)


def reframes_extractall() -> tuple[str, Callable[[str, Path], object]]:
    """Return ReFrame's extractall, or the same code repeated here."""
    try:
        from reframe.utility.sanity import extractall  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return " (restated)", all_of_the_text
    return "", lambda pattern, log: extractall(pattern, str(log), 1, float).evaluate()


def all_of_the_text(pattern: str, log: Path) -> list[float]:
    """Return the values one after another, each through the call that evaluates deferred expressions."""

    def values(text: str) -> Iterator[float]:
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield float(match.group(1))

    def evaluated(value: float | Callable[[], float]) -> float:
        return value() if callable(value) else value

    with log.open(encoding="utf-8") as file:
        return [evaluated(value) for value in values(file.read())]


def cloudais_report(log: Path) -> None:
    for _ in ("the report", "milliseconds", "TFLOP/s"):
        both_of_each_line(log)


def both_of_each_line(log: Path) -> list[tuple[float, float]]:
    with log.open(encoding="utf-8", errors="ignore") as file:
        matches = (BOTH.search(line) for line in file)
        return [(float(match[1]), float(match[2])) for match in matches if match]


def memory(folder: Path, dense: Path) -> int:
    """Measure the peak memory of processes that read nothing, the dense log, and a log of 5 GB in one line."""
    (folder / "none").mkdir()
    (folder / "hole").mkdir()
    with (folder / "hole" / "log.txt").open("wb") as hole:
        hole.truncate(HOLE_BYTES)  # takes no room on the disk
    none, hole_mb = peak_mb(folder / "none"), peak_mb(folder / "hole")
    print(f"peak memory: {none:.0f} MB, {peak_mb(dense.parent):.0f} MB with the dense log's lines, ", end="")
    print(f"{hole_mb:.0f} MB with a line of {HOLE_BYTES / 1e9:.0f} GB")
    return hole_mb > none + FEW_MB


def peak_mb(folder: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.logs", "--read", str(folder)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def read_once(folder: Path) -> int:
    lines_of(folder)
    print(int(re.findall(r"VmHWM:\s*([0-9]+) kB", Path("/proc/self/status").read_text())[0]) / 1024)
    return 0


def packed(folder: Path, sparse: Path) -> None:
    """Print the time of reading the same log from an archive. There is no limit for it."""
    data = sparse.read_bytes()
    for name, pack in (("gz", gzip.compress), ("zst", zstandard.ZstdCompressor().compress)):
        (folder / name).mkdir()
        (folder / name / f"log.txt.{name}").write_bytes(pack(data))
        start = time.perf_counter()
        lines_of(folder / name)
        print(f"{'sparse: this, from a .' + name:<46}{time.perf_counter() - start:>8.3f} s")


if __name__ == "__main__":
    sys.exit(main())
