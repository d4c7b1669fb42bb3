"""State of a new process that can train: `python -m tests.training.process_state`. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tests.training.fork_server import thread_count


def main() -> None:
    state = {
        "arguments": sys.argv[1:],
        "folder": str(Path.cwd()),
        "variables": {name: value for name, value in os.environ.items() if name.startswith("OF_TEST")},
        "threads": thread_count(),
        "compute threads": torch.get_num_threads(),
        "has process group": dist.is_initialized(),
        "has CUDA": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
    }
    numbers = [random.random(), float(np.random.random()), torch.rand(()).item()]
    print(json.dumps([state, numbers]))


if __name__ == "__main__":
    main()
