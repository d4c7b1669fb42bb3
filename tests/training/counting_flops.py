"""FLOPs of one iteration of `pretrain` by torch's counter: `python -m tests.training.counting_flops RUNS.json`.

RUNS.json maps names to the arguments of runs. The counts go to stdout as JSON with the same names.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.environment import find_place, set_environment
from orchestrator.pretrain.rank import prepare_megatron, start_processes, stop_processes


def main(runs_file: str) -> None:
    place = find_place(os.environ)
    set_environment(os.environ, place)
    device = start_processes(place)
    prepare_megatron(device)
    from orchestrator.pretrain.train import pretrain

    counted = {}
    for name, flags in json.loads(Path(runs_file).read_text()).items():
        with FlopCounterMode(display=False) as counter:
            pretrain(parse_arguments([*flags, "--train-iters", "1"]), device)
        counted[name] = counter.get_total_flops()
    print(json.dumps(counted))
    stop_processes(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
