"""Parts of a job's time outside its iterations, from the files of its folder.

    python -m benchmarks.job_parts RUNS/*/*

The folders are those of jobs of `pretrain`, below the folder `runs`. Times are in seconds. The script starts when it
writes the file `start`, and ends when it writes `end`.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path

TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)"
BEGIN = re.compile(rf"\[before the start of training step\] datetime: {TIME}")
ITERATION = re.compile(rf"\[{TIME}\] iteration ")
PARTS = ("script to training", "first iteration", "later iterations", "last iteration to end", "job")


def main() -> int:
    print(f"{'job':40}" + "".join(f"{part:>23}" for part in PARTS))
    for folder in map(Path, sys.argv[1:]):
        if (folder / "end").exists():
            parts_s = parts(folder)
            print(f"{'/'.join(folder.parts[-2:])[-38:]:40}" + "".join(f"{part_s:23.2f}" for part_s in parts_s))
    return 0


def parts(folder: Path) -> list[float]:
    """Return the seconds of each of PARTS."""
    log = (folder / "log.txt").read_text(errors="replace")
    begin = BEGIN.search(log)
    lines = ITERATION.findall(log)
    if begin is None or not lines:
        sys.exit(f"{folder}: no iterations")
    start_s, end_s = ((folder / name).stat().st_mtime for name in ("start", "end"))
    moments_s = [start_s, *map(_seconds, (begin[1], lines[0], lines[-1])), end_s]
    return [*(after - before for before, after in pairwise(moments_s)), end_s - start_s]


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f").timestamp()


if __name__ == "__main__":
    sys.exit(main())
