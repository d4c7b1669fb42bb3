"""`repro` in processes of its own that are forked from a server with all its imports. A start takes 0.02 s of CPU time.

A forked process has its own arguments, environment, working folder and output. Two things differ from a new process:
its imports are done, and variables that Python reads at its start have no effect.

The server is `python -m tests.forked_repro`. A line of its stdin is a JSON object: the arguments of `run_forked`, with
paths of the two outputs. Lines of its stdout are the id of the process, and, when it has ended, its exit code.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.waiting import LIMIT_S

REPRO = "from orchestrator.cli.main import main; main()"

_NOT_IMPORTED = ("orchestrator.pretrain", "orchestrator.planning.meta_", "orchestrator.ledger.migrations.")
"""Modules that need torch, or alembic's context."""


class ForkedRepro:
    """A running `repro`, or another Python program that uses its modules.

    The caller keeps the outputs open until the constructor returns.
    """

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        program: str = REPRO,
    ) -> None:
        outputs = [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in (stdout, stderr)]
        request = {"program": program, "words": words, "cwd": str(cwd), "env": dict(env), "outputs": outputs}
        self._server = _server()
        assert self._server.stdin is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        self.pid = self._answer()

    def wait(self) -> int:
        """Return the exit code, or the negative number of the signal that ended the process."""
        return self._answer()

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


def run_forked(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], program: str = REPRO
) -> subprocess.CompletedProcess[str]:
    """Run `repro`, or another program, until it has ended and its output is closed, as subprocess.run does."""
    pipes = [os.pipe(), os.pipe()]
    (_, stdout), (_, stderr) = pipes
    process = ForkedRepro(words, cwd, env, stdout, stderr, program)
    for _, write in pipes:
        os.close(write)
    try:
        texts = _contents([read for read, _ in pipes])
    except TimeoutError:
        os.kill(process.pid, signal.SIGKILL)
        raise
    finally:
        code = process.wait()
        for read, _ in pipes:
            os.close(read)
    return subprocess.CompletedProcess(words, code, *texts)


def _contents(pipes: Sequence[int]) -> list[str]:
    """Read the pipes until all are closed."""
    contents = dict.fromkeys(pipes, b"")
    still_open, end = set(pipes), time.monotonic() + LIMIT_S
    while still_open:
        ready, _, _ = select.select(still_open, (), (), max(0, end - time.monotonic()))
        if not ready:
            raise TimeoutError(f"the output was not closed within {LIMIT_S:.0f} s")
        for pipe in ready:
            block = os.read(pipe, 1 << 16)
            contents[pipe] += block
            if not block:
                still_open.remove(pipe)
    return [content.decode() for content in contents.values()]


@cache
def _server() -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "tests.forked_repro"]
    server = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    atexit.register(server.stdin.close)
    return server


def _serve() -> str:
    """Answer requests. Return the program of a forked process, or "" when the requests have ended."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        request = json.loads(line)
        outputs = [os.open(path, os.O_WRONLY) for path in request["outputs"]]
        pid = os.fork()
        if pid == 0:
            requests.close()
            answers.close()
            _become(request["words"], request["cwd"], request["env"], outputs)
            return str(request["program"])
        for output in outputs:
            os.close(output)
        print(pid, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)
    return ""


def _become(words: Sequence[str], cwd: str, env: Mapping[str, str], outputs: Sequence[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, *outputs)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.argv = ["repro", *words]


def _import_all() -> None:
    import orchestrator

    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.startswith(_NOT_IMPORTED) and not module.name.endswith("__main__"):
            import_module(module.name)
    import_module("alembic.command")
    import_module("submitit")
    gc.freeze()


if __name__ == "__main__":
    _import_all()
    exec(_serve(), {"__name__": "__main__"})
