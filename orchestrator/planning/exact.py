"""Exact memory and parameters of any rank without a GPU: the real code on the meta device."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, cast

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.workloads import find_workload, pretrain

_COMMAND = [sys.executable, "-m", "orchestrator.planning.meta_memory"]
_MOST_CHILDREN = 2  # each takes some 0.3 GB of memory and three seconds to start

CoreAttention = Literal["flash", "unfused"]


@dataclass(frozen=True, slots=True)
class ExactJob:
    """A job in the arguments of `python -m orchestrator.pretrain`, which say the optimizer's sharding and the fusions.

    `attention` is `flash` for that program, whose own --attention-backend applies, and `unfused` for Megatron-LM's own
    attention with its masked-softmax kernel, which keeps the scores: what Megatron-LM of 2021 has. That one also does
    not let go of what a stage has sent on (`frees_outputs`).
    """

    arguments: tuple[str, ...]
    world_size: int
    attention: CoreAttention = "flash"
    frees_outputs: bool = True


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What one rank holds. Activations are at their peak over an iteration, which includes buffers of single kernels.

    Not included is what is no tensor of the program: the CUDA context, NCCL's buffers, cuBLAS's workspaces (torch takes
    32 MiB for each of the two threads that call it on Hopper) and the allocator's fragments.
    """

    rank: int
    pipeline_rank: int
    parameters: int
    weights_and_gradients_bytes: int
    optimizer_bytes: int
    activations_peak_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_and_gradients_bytes + self.optimizer_bytes + self.activations_peak_bytes


@dataclass(frozen=True, slots=True)
class ExactMemory:
    """The first and the last pipeline stage of a job, of each the first tensor- and data-parallel rank.

    No other stage is worse: stages have equally many layers, earlier ones keep more microbatches in flight, and only
    these two have an embedding or logits. `seconds` is how long planning took.
    """

    ranks: tuple[RankMemory, ...]
    seconds: float


def absent_packages() -> list[str]:
    """Return the packages of the real model that are not installed here."""
    return [name for name in ("torch", "megatron") if importlib.util.find_spec(name) is None]


def install_command() -> str:
    """Return the command that installs the packages of the extra `local`, with the versions of pyproject.toml."""
    try:
        requirements = metadata.requires("repro-orchestrator") or []
    except metadata.PackageNotFoundError:
        requirements = []
    pins = [pin.partition(";")[0].strip() for pin in requirements if re.search(r"extra == .local", pin)]
    return shlex.join(["pip", "install", *(pins or [".[local]"])])


def exact_memory(jobs: Sequence[ExactJob]) -> list[ExactMemory | str]:
    """Plan each job, a second to some ten; in place of one that cannot be planned stands the reason, in one line."""
    absent = absent_packages()
    if absent:
        return [f"planning with the real model needs {' and '.join(absent)}, not installed here"] * len(jobs)
    results: list[ExactMemory | str] = ["not planned"] * len(jobs)
    waiting = deque(range(len(jobs)))
    with ExitStack() as stack:  # stops the children, also when interrupted
        busy: dict[_Child, int] = {}

        def give_next(child: _Child | None) -> None:
            if child is None or not child.alive:
                child = _Child()
                stack.callback(child.stop)
            busy[child] = waiting.popleft()
            child.ask(jobs[busy[child]])

        for _ in range(min(_MOST_CHILDREN, len(jobs))):
            give_next(None)
        while busy:
            for child in cast("list[_Child]", wait(cast(Any, list(busy)))):
                results[busy.pop(child)] = child.result()
                if waiting:
                    give_next(child)
    return results


class _Child:
    """A process that plans one job after another until one of them kills it, for example for want of memory."""

    def __init__(self) -> None:
        package = Path(__file__).resolve().parents[2]
        path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  it lives as long as the process
        self._process = subprocess.Popen(
            _COMMAND,
            # Planning is for the CPU, also where there is a GPU.
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is the parent's to deal with
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout
        self.alive = True

    def fileno(self) -> int:
        """What to wait on for the answer to `ask`."""
        return self._answers.fileno()

    def ask(self, job: ExactJob) -> None:
        with suppress(BrokenPipeError):  # `result` will say what it died of
            self._jobs.write(json.dumps(asdict(job)) + "\n")
            self._jobs.flush()

    def result(self) -> ExactMemory | str:
        """The answer to `ask`, waited for."""
        answer = self._answers.readline()
        if not answer:
            return self._cause_of_death()
        fields = json.loads(answer)
        if "reason" in fields:
            return str(fields["reason"])
        return ExactMemory(tuple(RankMemory(**rank) for rank in fields["ranks"]), fields["seconds"])

    def stop(self) -> None:
        """End the process, in the middle of a job if need be."""
        self.alive = False
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._jobs.close()
        self._answers.close()
        self._errors.close()

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().split("\n")
        self.stop()
        if code < 0:
            return f"the planning process was ended by {signal.Signals(-code).name}"
        said = [line for line in lines if line.strip()]
        return f"the planning process ended: {said[-1] if said else f'exit code {code}'}"


@dataclass(frozen=True, slots=True)
class ExactCase:
    """What the GPU that needs most of a case holds. `parameters` are its own, of pipeline stage `stage`."""

    parameters: int
    stage: int
    total_bytes: int


def plan_exactly(cases: Sequence[Case]) -> list[ExactCase | str]:
    """Each case by the real model; in place of one that cannot be planned stands the reason, in one line."""
    results: list[ExactCase | str] = [_not_ours(case) or "" for case in cases]
    planned = [i for i, reason in enumerate(results) if not reason]
    for i, found in zip(planned, exact_memory([exact_job(cases[i]) for i in planned]), strict=True):
        if isinstance(found, str):
            results[i] = found
            continue
        facts = find_workload(cases[i].workload).memory_of(cases[i])
        worst = max(found.ranks, key=lambda rank: _total_bytes(rank, facts))
        results[i] = ExactCase(worst.parameters, worst.pipeline_rank, _total_bytes(worst, facts))
    return results


def exact_job(case: Case) -> ExactJob:
    """The case as our program would run it, less what the case's own program does not do."""
    facts = find_workload(case.workload).memory_of(case)
    arguments = pretrain.model_arguments(case)
    if not facts.shards_optimizer and "--use-distributed-optimizer" in arguments:
        arguments.remove("--use-distributed-optimizer")
    if not facts.fuses_weight_gradients:  # as Megatron-LM of 2021, which fuses neither this nor the loss
        arguments += ["--no-gradient-accumulation-fusion", "--no-cross-entropy-fusion"]
    if facts.microbatch_slots is None:
        arguments += ["--cuda-graph-impl", "none"]
    return ExactJob(tuple(arguments), case.layout.gpus, facts.attention, facts.frees_outputs)


def _not_ours(case: Case) -> str | None:
    if case.model.experts:
        return "the exact planner builds no experts"
    if case.device == "cpu":
        return "planned for GPUs only"
    return None


def _total_bytes(rank: RankMemory, facts: MemoryFacts) -> int:
    """Megatron-Core keeps gradients of four bytes. Where the program's have two, it is that much less, and the
    optimizer's step makes fp32 copies of them while there are no activations.
    """
    narrower = (4 - facts.gradient_bytes) * rank.parameters
    states = rank.weights_and_gradients_bytes - narrower + rank.optimizer_bytes
    step = 4 * rank.parameters if narrower and not facts.shards_optimizer else 0
    return states + max(rank.activations_peak_bytes, step)
