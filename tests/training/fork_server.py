"""Process that imports torch and Megatron-Core once, and forks the programs that need them.

Run `python -m tests.training.fork_server`. A line of stdin is a JSON list of programs (`Program`), which run at the
same time. When all have ended, a line of stdout is the JSON list of their exit codes.

A forked program runs as `python -m MODULE` does: with its own arguments, environment and output, and the interpreter
ends it. Three things differ: its imports are done, variables that libraries read at import have no effect, and it is
bound to one core, as the launcher binds a rank. All programs run on CPU cores.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from orchestrator.pretrain.environment import cores_of, quick_imports


@dataclass(frozen=True)
class Program:
    """A module with its arguments and environment, and the files of its output."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    stdout: str
    stderr: str


def import_libraries() -> None:
    """Import what a rank imports before its process group exists."""
    with quick_imports():
        from orchestrator.pretrain.rank import import_megatron

        import_megatron()


def serve() -> Program | None:
    """Fork the programs of each request. Return a program in a forked process, None at the end of the requests."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for request in requests:
        programs = [Program(**fields) for fields in json.loads(request)]
        pids = []
        for index, program in enumerate(programs):
            check_state()
            pid = os.fork()
            if pid == 0:
                requests.close()
                answers.close()
                become(program, index, len(programs))
                return program
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), file=answers, flush=True)
    return None


def check_state() -> None:
    """Raise RuntimeError if this process has state that a forked process cannot use."""
    import torch
    import torch.distributed as dist

    threads = thread_count()
    has_group = dist.is_initialized()
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if threads > 1 or has_group or has_cuda:
        raise RuntimeError(
            f"the fork server has {threads} threads, process group: {has_group}, CUDA: {has_cuda}."
            " Hint: a module that it imports has started them"
        )


def thread_count() -> int:
    """Return the number of threads of this process, on Linux including those of libraries."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def become(program: Program, index: int, count: int) -> None:
    """Give a forked process the environment, output and random state of a new process."""
    import numpy as np
    import torch

    os.environ.clear()
    os.environ.update(program.environment)
    for target, file, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, program.stdout, os.O_WRONLY | os.O_CREAT),
        (2, program.stderr, os.O_WRONLY | os.O_CREAT),
    ):
        descriptor = os.open(file, flags)
        os.dup2(descriptor, target)
        os.close(descriptor)
    np.random.seed()  # the module `random` does this itself
    torch.default_generator.seed()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores_of(index, count, sorted(os.sched_getaffinity(0))))


def main() -> None:
    import_libraries()
    program = serve()
    if program is not None:
        sys.argv[1:] = program.arguments
        runpy.run_module(program.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
