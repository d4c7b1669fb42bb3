"""The lines Megatron-LM prints, from 2021 to today; `orchestrator.pretrain` prints the same.

Sources: the format strings of megatron/training.py at 6985e58938 (2021) to core_v0.16. Patterns work on bytes, and
those of the numbers start with a literal, so that a log of a gigabyte is one pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Counts of at most 18 digits: longer ones are no count, and Python refuses to read the very long ones. Iterations are
# kept in 32 bits.
ITERATION = re.compile(rb"iteration +([0-9]{1,9})/ *([0-9]{1,9}) \|([^\r\n]*)\|")
NUMBER = re.compile(rb"[-+]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|nan|inf)")
WORLD = re.compile(
    rb"using world size: ([0-9]{1,18}), data-parallel[- ]size: ([0-9]{1,18})[^\r\n]*?"
    rb"tensor-model-parallel size: ([0-9]{1,18}), pipeline-model-parallel size: ([0-9]{1,18})"
)
# Why a job failed, the more telling first: a device out of memory shows as watchdog and exit noise on other ranks.
CAUSES: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("not started", re.compile(rb"repro: not started: [^\r\n]*")),  # our own scripts' word, and the next line's
    ("outside its image", re.compile(rb"repro: [^\r\n]* outside its image")),
    ("out of GPU memory", re.compile(rb"OutOfMemoryError[^\r\n]*|CUDA (?:error: )?out of memory[^\r\n]*")),
    (
        "argument error",
        re.compile(
            rb"(?:pretrain: error: |error: unrecognized arguments|error: argument |error: the following )[^\r\n]*"
        ),
    ),
    ("container", re.compile(rb"error: pyxis: [^\r\n]*")),
    ("time limit", re.compile(rb"DUE TO TIME LIMIT")),
    ("out of host memory", re.compile(rb"oom[_-]kill event[^\r\n]*|task [^\r\n]{0,60}: Out Of Memory")),
    (
        "not found",
        re.compile(
            rb"(?:ModuleNotFoundError: |must be exported in the shell|can't open file |execve\(\): )[^\r\n]*"
            rb"|[^\r\n]{1,200}: (?:command not found|No module named [^\r\n]*)"
        ),
    ),
    # torchrun's report; the ranks it then ended itself got SIGTERM.
    ("a rank was killed", re.compile(rb"Signal [0-9]+ \(SIG(?:KILL|SEGV|ABRT|BUS|FPE|ILL)\) received[^\r\n]*")),
    ("NCCL error", re.compile(rb"NCCL error in[^\r\n]*|Watchdog caught collective operation timeout[^\r\n]*")),
    ("error", re.compile(rb"(?<![A-Za-z.])[A-Za-z.]*(?:Error|Exception): [^\r\n]*[^\r\n ]")),
    ("error", re.compile(rb"(?:slurmstepd|srun|pretrain|bash|timeout): [^\r\n]*")),
)
# Of pyxis' lines one says what went wrong, an indented one of enroot's log why; the others follow from it, and may come
# first (pyxis 0.24's pyxis_slurmstepd.c).
_PYXIS = re.compile(rb"error: pyxis: ([^\r\n]*)")
_FOLLOWS = re.compile(rb" |child [0-9]|printing |container was not started|a previous task terminated")
_ENROOT_WHY = re.compile(rb" +(\[ERROR\] |curl: |FATAL ERROR: )")
TRAINING_DONE = re.compile(rb"\[after training is done\]|\[exiting program at iteration [0-9]+\]")


@dataclass(frozen=True, slots=True)
class IterationLine:
    """One interval report: averages over the iterations since the line before it."""

    iteration: int
    train_iterations: int
    elapsed_ms: float
    loss: float | None
    grad_norm: float | None
    skipped: int
    nan: int

    @property
    def is_finite(self) -> bool:
        """False when a NaN or inf was printed, or an iteration was counted as one."""
        numbers = [self.elapsed_ms, self.loss or 0.0, self.grad_norm or 0.0]
        return self.nan == 0 and all(math.isfinite(number) for number in numbers)


@dataclass(frozen=True, slots=True)
class WorldLine:
    """What the job says it really ran as; to be held against the plan."""

    world_size: int
    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int


def iteration_lines(log: bytes) -> Iterator[IterationLine]:
    """Every complete iteration line, in the order printed; a line cut short at the end is left for the next reading."""
    for match in ITERATION.finditer(log):
        fields = dict(_numbers(match[3]))
        elapsed, nan = fields.get("elapsed time per iteration (ms)"), fields.get("number of nan iterations")
        if not elapsed or nan is None:  # cut short, or no time that a rate could be computed from
            continue
        yield IterationLine(
            iteration=int(match[1]),
            train_iterations=int(match[2]),
            elapsed_ms=elapsed,
            loss=fields.get("lm loss"),
            grad_norm=fields.get("grad norm"),
            skipped=_count(fields.get("number of skipped iterations", 0.0)),
            nan=_count(nan),
        )


def world_line(log: bytes) -> WorldLine | None:
    match = WORLD.search(log)
    if match is None:
        return None
    world, data, tensor, pipeline = (int(group) for group in match.groups())
    return WorldLine(world, data, tensor, pipeline)


def cause(log: bytes) -> str | None:
    """The line that says best why a job failed, with its kind."""
    for kind, pattern in CAUSES:
        match = pattern.search(log)
        if match is not None:
            line = (_of_pyxis(log) if kind == "container" else match[0]).decode("utf-8", errors="replace")
            return f"{kind}: {''.join(c for c in line if c.isprintable())[:200]}"
    return None


def _of_pyxis(log: bytes) -> bytes:
    """What went wrong and why, of all that pyxis said."""
    lines = [match[1] for match in _PYXIS.finditer(log)]
    telling = next((line for line in lines if not _FOLLOWS.match(line)), lines[0])
    why = next((line.strip() for line in lines if _ENROOT_WHY.match(line)), b"")
    why = why.removesuffix(b": " + telling.rpartition(b": ")[2])  # the same path again
    return b"pyxis: " + telling + (b"; " + why if why else b"")


def _numbers(fields: bytes) -> Iterator[tuple[str, float]]:
    """The `name: number` pieces of a line; the others (a MoE's free text) are passed over."""
    for piece in fields.split(b"|"):
        name, _, value = piece.strip().rpartition(b": ")
        if NUMBER.fullmatch(value.strip()):
            yield name.decode("utf-8", errors="replace"), float(value)


def _count(value: float) -> int:
    return int(min(abs(value), 1e9)) if math.isfinite(value) else 1
