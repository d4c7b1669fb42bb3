"""`repro` in processes of its own that are forked from a server with all its imports. A start takes 0.01 s of CPU time.

A forked process has its own arguments, environment, working folder and output. Two things differ from a new process:
its imports are done and some caches are filled, and variables that Python reads at its start have no effect.

The server is `python -m tests.forked_repro`. A line of its stdin is a JSON value, a line of its stdout is the answer:

* an object with the arguments of `run_forked` and the paths of standard input, output and error: the id of the process,
* the id of a process: its exit code, when it has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn
from unittest import mock

from tests.waiting import LIMIT_S

_ROOT = Path(__file__).resolve().parents[1]
REPRO = "from orchestrator.cli.main import main; main()"

_NOT_IMPORTED = ("orchestrator.pretrain", "orchestrator.megatron.meta_")
"""Modules that need torch."""


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
        stdin: int | None = None,
    ) -> None:
        paths = [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in (stdout, stderr)]
        paths.insert(0, os.devnull if stdin is None else f"/proc/{os.getpid()}/fd/{stdin}")
        request = {"program": program, "words": words, "cwd": str(cwd), "env": dict(env), "paths": paths}
        self.pid = _answer(request)

    def wait(self) -> int:
        """Return the exit code, or the negative number of the signal that ended the process."""
        return _answer(self.pid)


class ForkedProgram:
    """A running Python program with pipes for its input and its outputs, in the folder and environment of the tests.

    Several can run at once.
    """

    def __init__(self, program: str, words: Sequence[str]) -> None:
        (stdin, to), (of, stdout) = os.pipe(), os.pipe()
        self.stdin, self.output = os.fdopen(to, "w"), os.fdopen(of)
        self._process = ForkedRepro(words, _ROOT, os.environ, stdout, stdout, program, stdin)
        os.close(stdin)
        os.close(stdout)

    def write_line(self, text: str) -> None:
        """Write a line to the standard input."""
        print(text, file=self.stdin, flush=True)

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self._process.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """Close the input, wait for the end, and return the exit code and the rest of the output."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        with self.output:
            rest = self.output.read()
        return self._process.wait(), rest


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


def _answer(request: object) -> int:
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps(request), file=server.stdin, flush=True)
    return int(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.forked_repro"]
    server = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    atexit.register(server.stdin.close)
    return server


def _serve() -> str:
    """Answer requests. Return the program of a forked process, or "" when the requests have ended."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        request = json.loads(line)
        if isinstance(request, int):
            print(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1]), file=answers, flush=True)
            continue
        stdin, *outputs = request["paths"]
        descriptors = [os.open(stdin, os.O_RDONLY), *(os.open(path, os.O_WRONLY) for path in outputs)]
        pid = os.fork()
        if pid == 0:
            requests.close()
            answers.close()
            _become(request["words"], request["cwd"], request["env"], descriptors)
            return str(request["program"])
        for descriptor in descriptors:
            os.close(descriptor)
        print(pid, file=answers, flush=True)
    return ""


def _become(words: Sequence[str], cwd: str, env: Mapping[str, str], descriptors: Sequence[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.argv = ["repro", *words]


def _run(program: str) -> NoReturn:
    """Run the program, and end the process without the clean-up of all imported modules, which takes 0.03 s."""
    code = 0
    try:
        exec(program, {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120  # as Python
    os._exit(code)


def _import_all() -> None:
    import orchestrator

    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not module.name.startswith(_NOT_IMPORTED) and not module.name.endswith("__main__"):
            import_module(module.name)
    import_module("submitit")
    import_module("tests.process_caches")


def _fill_caches() -> None:
    """Plan a submission and read a recorded figure, so that SQL statements and commands are made once."""
    from orchestrator.cli.main import run
    from tests.recorded_jobs import Outcome, new_ledger, record_figure
    from tests.unit.catalog.entries import shipped

    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(mock.patch.dict(os.environ, REPRO_HOME=str(home)))
        nowhere = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        ledger = new_ledger(home)
        record_figure(ledger, shipped("figure-13"), "cpu", lambda *_: Outcome(100.0))
        ledger.engine.dispose()
        run(["submit", "figure-13", "--cluster", "local", "--scale", "cpu", "--dry-run"])
        for command in ("status", "wait", "cancel", "collect", "claims"):
            run([command, "figure-13"])


if __name__ == "__main__":
    _import_all()
    _fill_caches()
    gc.freeze()
    _run(_serve())
