"""Exact memory and parameters of any rank without a GPU, from the real code on the meta device."""

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
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeAlias

from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import MemoryFacts, gradient_width, step_width
from orchestrator.megatron.model import Attention, Training
from orchestrator.megatron.programs import find_megatron
from orchestrator.programs.record import ExactCase

_COMMAND = [sys.executable, "-m", "orchestrator.megatron.meta_memory"]
_MOST_CHILDREN = 2  # each needs 0.3 GB of memory and three seconds to start


@dataclass(frozen=True, slots=True)
class ExactJob:
    """A job as arguments of `python -m orchestrator.pretrain`.

    `attention` is `flash` for `pretrain`, whose --attention-backend applies, and `unfused` for Megatron-LM's attention
    of 2021 with its masked-softmax kernel, which keeps the scores. Megatron-LM of 2021 also keeps the outputs that a
    stage has sent (`frees_outputs`).
    """

    arguments: tuple[str, ...]
    world_size: int
    attention: Attention = "flash"
    frees_outputs: bool = True


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank. Activations are the peak over an iteration, with buffers of single kernels.

    Only tensors of the program are counted, not the CUDA context, NCCL's buffers, cuBLAS's workspaces (on Hopper 32 MiB
    for each of two threads) and fragments of the allocator.
    """

    rank: int
    pipeline_rank: int
    parameters: int
    weights_and_gradients_bytes: int
    optimizer_bytes: int
    activations_peak_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes at the peak of an iteration."""
        return self.weights_and_gradients_bytes + self.optimizer_bytes + self.activations_peak_bytes


ExactMemory: TypeAlias = "tuple[RankMemory, ...]"
"""Memory of the first tensor- and data-parallel rank of the first and of the last pipeline stage.

No other stage needs more: all have the same number of layers, earlier stages keep more microbatches in flight, and
only these two have an embedding or logits.
"""


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
    """Plan each job, in up to three seconds. The result of a job that cannot be planned is the reason, in one line."""
    absent = absent_packages()
    if absent:
        return [f"planning with the real model needs {' and '.join(absent)}, not installed here"] * len(jobs)
    results: list[ExactMemory | str] = ["not planned"] * len(jobs)
    waiting = deque(range(len(jobs)))
    with ExitStack() as stack:  # stops the children, also when interrupted
        busy: dict[_Child, int] = {}

        def assign_next(child: _Child | None) -> None:
            if child is None or not child.alive:
                child = _Child()
                stack.callback(child.stop)
            busy[child] = waiting.popleft()
            child.start(jobs[busy[child]])

        for _ in range(min(_MOST_CHILDREN, len(jobs))):
            assign_next(None)
        while busy:
            ready = wait([child.fileno() for child in busy])
            for child in [child for child in busy if child.fileno() in ready]:
                results[busy.pop(child)] = child.result()
                if waiting:
                    assign_next(child)
    return results


class _Child:
    """A process that plans one job after another until it ends, for example because a job needs too much memory."""

    def __init__(self) -> None:
        package = Path(__file__).resolve().parents[2]
        path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  it lives as long as the process
        self._process = subprocess.Popen(
            _COMMAND,
            cwd=package,  # Python imports from the working folder first
            # Planning runs on the CPU even if there is a GPU.
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # the parent handles an interrupt from the keyboard
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout
        self.alive = True

    def fileno(self) -> int:
        """Return the file descriptor to wait on for the answer to `start`."""
        return self._answers.fileno()

    def start(self, job: ExactJob) -> None:
        """Start planning a job."""
        with suppress(BrokenPipeError):  # `result` returns the cause
            self._jobs.write(json.dumps(asdict(job)) + "\n")
            self._jobs.flush()

    def result(self) -> ExactMemory | str:
        """Wait for the answer to `start` and return it."""
        answer = self._answers.readline()
        if not answer:
            return self._cause_of_death()
        fields = json.loads(answer)
        if "reason" in fields:
            return str(fields["reason"])
        return tuple(RankMemory(**rank) for rank in fields["ranks"])

    def stop(self) -> None:
        """End the process, also in the middle of a job."""
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
        messages = [line for line in lines if line.strip()]
        return f"the planning process ended: {messages[-1] if messages else f'exit code {code}'}"


def plan_exactly(cases: Sequence[TrainingCase]) -> list[ExactCase | str]:
    """Plan each case with the real model. The result of a case that cannot be planned is the reason, in one line."""
    results: list[ExactCase | str] = [
        "the exact planner builds no experts" if case.model.experts else "planned for GPUs only" for case in cases
    ]
    planned = [i for i, case in enumerate(cases) if not case.model.experts and case.device == "gpu"]
    for i, memory in zip(planned, exact_memory([exact_job(cases[i]) for i in planned]), strict=True):
        if isinstance(memory, str):
            results[i] = memory
            continue
        facts, training = find_megatron(cases[i].program).memory_of(cases[i]), cases[i].training
        totals = {rank.pipeline_rank: _total_bytes(rank, facts, training) for rank in memory}
        worst = max(memory, key=lambda rank: totals[rank.pipeline_rank])
        results[i] = ExactCase(worst.parameters, worst.pipeline_rank, totals[worst.pipeline_rank])
    return results


def exact_job(case: TrainingCase) -> ExactJob:
    """Return the job of `pretrain` for a case, without features that the case's own program lacks."""
    facts = find_megatron(case.program).memory_of(case)
    own, training = find_megatron("pretrain"), replace(case.training, attention=None)
    arguments = own.arguments(replace(case, training=training), own.site())
    if not facts.shards_optimizer and "--use-distributed-optimizer" in arguments:
        arguments.remove("--use-distributed-optimizer")
    if not facts.fuses_weight_gradients:  # as Megatron-LM of 2021, which fuses neither this nor the loss
        arguments += ["--no-gradient-accumulation-fusion", "--no-cross-entropy-fusion"]
    if facts.microbatch_slots is None:
        arguments += ["--cuda-graph-impl", "none"]
    return ExactJob(tuple(arguments), case.gpus, facts.attention, facts.frees_outputs)


def _total_bytes(rank: RankMemory, facts: MemoryFacts, training: Training) -> int:
    """Return the bytes of a rank, with the program's size of gradients; Megatron-Core's have four bytes."""
    narrower = (4 - gradient_width(facts, training)) * rank.parameters
    states = rank.weights_and_gradients_bytes - narrower + rank.optimizer_bytes
    step = step_width(facts) * rank.optimizer_bytes // 12 if training.dtype != "fp32" else 0  # 12 of a parameter
    return states + max(rank.activations_peak_bytes, step)
