"""`python -m orchestrator.pretrain.launch`: import torch and Megatron-Core once, then fork the ranks of this node.

It takes torchrun's options for one or several nodes and then the arguments of the training program:

    python -u -m orchestrator.pretrain.launch --nproc-per-node=4 --num-layers 32 ...

torch's elastic agent starts, watches and ends the ranks, as it does for torchrun.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from orchestrator.pretrain.arguments import TrainingArguments, parse_arguments
from orchestrator.pretrain.bytecode import keep_bytecode
from orchestrator.pretrain.place import Place, find_place, set_environment, set_node_environment

_NAME = "pretrain"
_LOOPBACK = "127.0.0.1"
_HANDLED_BY_THE_LAUNCHER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 all ranks trained, 1 a rank failed, 2 refused, 128 and the signal that ended the run."""
    options, words = _parser().parse_known_args(argv)
    arguments = parse_arguments(words)
    ranks, nodes = options.nproc_per_node, options.nnodes
    set_node_environment(os.environ)
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    # torch must ask NVML for the GPUs: in a process that has asked CUDA, no child could use them.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    keep_bytecode()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from orchestrator.pretrain.devices import import_megatron
    from orchestrator.pretrain.rank import EXIT_REFUSED, is_refused

    last = Place(rank=(options.node_rank + 1) * ranks - 1, world_size=nodes * ranks, local_rank=ranks - 1)
    if is_refused(arguments, last, prints=options.node_rank == 0):
        return EXIT_REFUSED
    import_megatron()
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=ranks,
        run_id=_NAME,
        max_restarts=0,
        start_method="fork",
        **_meeting(options),
    )

    def pretrain() -> None:
        _run_rank(arguments)

    try:
        elastic_launch(config, pretrain)()
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)  # the report that torchrun prints: which rank failed first, and how
        return 1
    except SignalException as error:
        return 128 + error.sigval
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", allow_abbrev=False, add_help=False)
    parser.add_argument("--nproc-per-node", type=int, required=True, metavar="RANKS")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", help="host of the first node; this host alone unless given")
    parser.add_argument("--master-port", type=int)
    return parser


def _meeting(options: argparse.Namespace) -> dict[str, Any]:
    """Where the launchers of all nodes meet: a free port of this host, or the given address of the first node."""
    if options.master_addr is None:
        return {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": _LOOPBACK}
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": f"{options.master_addr}:{options.master_port}",
        "rdzv_configs": {"rank": options.node_rank},
    }


def _run_rank(arguments: TrainingArguments) -> None:
    """Train in a forked process. An error is printed here, as a process of its own would print it."""
    from orchestrator.pretrain.rank import train_rank

    for number in _HANDLED_BY_THE_LAUNCHER:  # its handlers are inherited, and run only between two steps of Python
        signal.signal(number, signal.SIG_DFL)
    place = find_place(os.environ)
    set_environment(os.environ, place)
    try:
        train_rank(arguments, place)
    except Exception:
        sys.excepthook(*sys.exc_info())  # torch's own, which names the rank
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
