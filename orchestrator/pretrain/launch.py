"""Launcher of the ranks of a node (`python -m orchestrator.pretrain.launch`): one import of torch, then forks.

It takes torchrun's options for one or several nodes, then the arguments of the training program:

    python -u -m orchestrator.pretrain.launch --nproc-per-node=4 --num-layers 32 ...

When a rank fails, the launcher ends the others and prints torchrun's report with the first failure. torch's own agent
(`elastic_launch` with start method fork) polls every 100 ms and reports the lowest failed rank. That is often a rank
that lost its connection to a killed one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe, active_children
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, NoReturn

from orchestrator.pretrain import log_lines
from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.environment import Place, cores_of, quick_imports, set_environment, set_node_environment

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_LOOPBACK = "127.0.0.1"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_GRACE_S = 0.5
"""Seconds from the first failure of a rank to SIGTERM to the others, which print their own errors in that time."""
_TERMINATION_S = 30.0
"""Seconds between SIGTERM and SIGKILL, as in torchrun."""


class _Signalled(Exception):
    """A signal that ends the run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks of this node. Return 0 trained, 1 a rank failed, 2 refused, 128 + number of the ending signal."""
    options, training_argv = _parser().parse_known_args(argv)
    print(log_lines.program(), flush=True)
    arguments = parse_arguments(training_argv, prints=options.node_rank == 0)
    ranks, world_size = options.nproc_per_node, options.nnodes * options.nproc_per_node
    places = [Place(options.node_rank * ranks + local_rank, world_size, local_rank) for local_rank in range(ranks)]
    set_node_environment(os.environ)
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    # torch must query NVML, not CUDA: after a CUDA query, forked processes cannot use the GPUs.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with quick_imports():
        import torch

        from orchestrator.pretrain.rank import EXIT_REFUSED, import_megatron, is_refused, train_rank

        if is_refused(arguments, places[-1], prints=options.node_rank == 0):
            return EXIT_REFUSED
        import_megatron()
    store = _start_store(options.master_addr, options.master_port)

    def pretrain(local_rank: int) -> None:
        place = places[local_rank]
        set_environment(os.environ, place)
        if not torch.cuda.is_available() and hasattr(os, "sched_setaffinity"):
            # The threads of a rank wake each other often. Across cores that takes twice as long.
            os.sched_setaffinity(0, cores_of(local_rank, ranks, sorted(os.sched_getaffinity(0))))
        train_rank(arguments, place, None if store is None else store.port)

    try:
        failed = _fork(pretrain, ranks)
    except _Signalled as signalled:
        return 128 + signalled.number
    if failed:
        _print_report({places[local_rank].rank: (local_rank, process) for local_rank, process in failed.items()})
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.pretrain.launch", allow_abbrev=False, add_help=False)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", help="host of rank 0; without it all ranks are on this host")
    parser.add_argument("--master-port")
    return parser


def _start_store(address: str | None, port: str | None) -> TCPStore | None:
    """Set the address of the rendezvous in the environment. Without an address, start a store in this process."""
    if address is not None and port is not None:
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=port)
        return None
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    os.environ["MASTER_ADDR"] = _LOOPBACK
    return TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)  # on a free port


def _fork(train: Callable[[int], None], ranks: int) -> dict[int, BaseProcess]:
    """Run `train` in one process per local rank and return the failed processes by local rank.

    Raise _Signalled if a signal ends the run. All processes have ended when the function returns or raises.
    """
    from torch.multiprocessing.spawn import start_processes

    reports, reporter = Pipe(duplex=False)

    def run(local_rank: int) -> None:
        for number in _SIGNALS:  # the launcher's handlers do not end a rank that waits for a GPU
            signal.signal(number, signal.SIG_DFL)
        try:
            train(local_rank)
        except Exception:
            reporter.send(local_rank)  # before this process ends and the others lose their connections to it
            sys.excepthook(*sys.exc_info())  # torch's own hook names the rank
            sys.exit(1)

    try:
        with _signals_raised():
            # Each process gets SIGINT when this one ends, also by SIGKILL.
            started = start_processes(run, nprocs=ranks, join=False, start_method="fork")  # type: ignore[no-untyped-call]
            return _failures_of(started.processes, reports)
    finally:
        _end(active_children())


@contextmanager
def _signals_raised() -> Iterator[None]:
    def handle(number: int, _: object) -> NoReturn:
        raise _Signalled(number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failures_of(processes: Sequence[BaseProcess], reports: Connection[int, int]) -> dict[int, BaseProcess]:
    """Wait until a process fails or all have ended. Return the failed processes by local rank, in order of failure.

    A rank whose error is an exception reports its number before it ends. The other ranks get time to print their own
    errors. A process that a signal ended comes first: the others fail because they lost it.
    On a busy machine this process may see their ends earlier.
    """
    running = {process.sentinel: rank for rank, process in enumerate(processes)}
    failed: list[int] = []
    deadline = None
    while running and (
        ready := wait([*running, reports], None if deadline is None else max(0.0, deadline - time.monotonic()))
    ):
        while reports.poll():
            failed.append(reports.recv())
        ended = [running.pop(sentinel) for sentinel in ready if isinstance(sentinel, int)]
        for rank in ended:
            processes[rank].join()
        others = [rank for rank in ended if processes[rank].exitcode and rank not in failed]
        failed += sorted(others, key=lambda rank: processes[rank].exitcode or 0)
        if failed and deadline is None:
            deadline = time.monotonic() + _GRACE_S
    for rank in failed:
        processes[rank].join(_TERMINATION_S)
    return {rank: processes[rank] for rank in sorted(failed, key=lambda rank: not _is_ended_by_signal(processes[rank]))}


def _is_ended_by_signal(process: BaseProcess) -> bool:
    """Return whether a signal ended a process, except SIGABRT: libraries abort a process that lost another one."""
    return process.exitcode is not None and process.exitcode < 0 and process.exitcode != -signal.SIGABRT


def _end(processes: Sequence[BaseProcess]) -> None:
    """End the processes that still run, with SIGTERM and then with SIGKILL."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _TERMINATION_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _print_report(failed: dict[int, tuple[int, BaseProcess]]) -> None:
    """Print torchrun's report of the failed ranks. The first failure is the root cause."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {
        rank: ProcessFailure(local_rank, process.pid or 0, process.exitcode or 0, error_file="")
        for rank, (local_rank, process) in failed.items()
    }
    print(ChildFailedError("pretrain", failures), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
