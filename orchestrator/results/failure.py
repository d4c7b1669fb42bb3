"""Why an attempt failed, as one word, and what that means for running it again; pure.

The class decides the policy. What another node or another day can mend is run again, up to `MOST_ATTEMPTS` and after
a pause; what would fail again is left to a person, and asked for by name: `repro retry --class timeout --time +50%`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from orchestrator.results.outcome import Ending
from orchestrator.results.read import LogReport

MOST_ATTEMPTS = 3
"""Submissions of a job that are made without being asked for."""
BACK_OFF_S = (0, 60, 300)
"""How long the next submission waits after so many failures: a site that has just lost a node may lose another."""


MADE_WAY = "preempted, and ended within its grace"
"""Reason of a job that Slurm calls FAILED because it ended by itself when it was told to make way."""


class Failure(str, enum.Enum):
    """The classes. What never began, what others did to it, what it did itself."""

    NOT_SUBMITTED = "not-submitted"
    REFUSED = "refused"
    NODE_FAIL = "node-fail"
    PREEMPTED = "preempted"
    LOST = "lost"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    GPU_OOM = "gpu-oom"
    HOST_OOM = "host-oom"
    TIMEOUT = "timeout"
    IMAGE = "image"
    CONFIGURATION = "configuration"
    NUMBERS = "numbers"
    INCOMPLETE = "incomplete"
    PROGRAM = "program"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Policy:
    """`again`: run it again without being asked; `elsewhere`: not on the node that failed; `why`, for a person."""

    again: bool
    elsewhere: bool
    why: str


POLICIES: dict[Failure, Policy] = {
    Failure.NOT_SUBMITTED: Policy(True, False, "the scheduler never had it"),
    Failure.REFUSED: Policy(True, False, "the scheduler refused it; nothing was spent"),
    Failure.NODE_FAIL: Policy(True, True, "a node was lost, not the job's fault"),
    Failure.PREEMPTED: Policy(True, False, "it gave way to another job"),
    Failure.LOST: Policy(True, False, "nobody knows how it ended"),
    Failure.STOPPED: Policy(True, False, "it was kept from starting"),
    Failure.CANCELLED: Policy(False, False, "somebody ended it"),
    Failure.GPU_OOM: Policy(False, False, "it would run out of memory again"),
    Failure.HOST_OOM: Policy(False, False, "it would run out of memory again; `mem` in the profile"),
    Failure.TIMEOUT: Policy(False, False, "it would reach the limit again; `repro retry --class timeout --time +50%`"),
    Failure.IMAGE: Policy(True, True, "its container did not start"),
    Failure.CONFIGURATION: Policy(False, False, "it would fail in the same way"),
    Failure.NUMBERS: Policy(False, False, "its numbers are no numbers, or not those that were planned"),
    Failure.INCOMPLETE: Policy(False, False, "it ended well and its log does not"),
    Failure.PROGRAM: Policy(False, False, "the program failed; its log says more"),
}

_BY_STATE = {
    "NEVER_SUBMITTED": Failure.NOT_SUBMITTED,
    "NODE_FAIL": Failure.NODE_FAIL,
    "BOOT_FAIL": Failure.NODE_FAIL,
    "LAUNCH_FAILED": Failure.NODE_FAIL,
    "PREEMPTED": Failure.PREEMPTED,
    "LOST": Failure.LOST,
    "CANCELLED": Failure.CANCELLED,
    "OUT_OF_MEMORY": Failure.HOST_OOM,
    "TIMEOUT": Failure.TIMEOUT,
    "DEADLINE": Failure.TIMEOUT,
}

# By the kind that megatron/log_lines gives the line that says best why a job failed.
_BY_CAUSE = {
    "not started": Failure.STOPPED,
    "outside its image": Failure.CONFIGURATION,
    "container": Failure.IMAGE,
    "out of GPU memory": Failure.GPU_OOM,
    "out of host memory": Failure.HOST_OOM,
    "argument error": Failure.CONFIGURATION,
    "not found": Failure.CONFIGURATION,
    "time limit": Failure.TIMEOUT,
}

_NODE_LOST = re.compile(rb"error: Node failure on ([A-Za-z0-9_.\-]{1,64})")
_CONTAINER_FAILED = re.compile(rb"slurmstepd-([A-Za-z0-9_.\-]{1,64}): error: pyxis")
_TASK_FAILED = re.compile(rb"srun: error: ([A-Za-z0-9_.\-]{1,64}): tasks? [0-9,\- ]{1,40}: ")


def failure_of(report: LogReport, ending: Ending) -> Failure:
    """The class of an attempt that was judged to have failed.

    Of a lost node, or a limit that is reached, the scheduler knows; ranks that are taken along complain of other
    things. Otherwise the log knows better: Slurm calls a job that lost a rank to the host's memory FAILED.
    """
    by_state = _BY_STATE.get(ending.state)
    if by_state is Failure.CANCELLED and "dependency" in (ending.reason or "").lower():
        return Failure.STOPPED
    if by_state is Failure.TIMEOUT and report.out_of_memory:  # ranks that wait for one that ran out of memory
        return Failure.GPU_OOM
    if by_state is not None:
        return by_state
    if report.out_of_memory:
        return Failure.GPU_OOM
    if ending.reason == MADE_WAY:
        return Failure.PREEMPTED
    if ending.outside_image:  # whatever is wrong with the site's pyxis, another node has the same
        return Failure.CONFIGURATION
    kind = (report.cause or "").partition(":")[0]
    if kind == "out of host memory" or ending.state != "COMPLETED":
        return _BY_CAUSE.get(kind, Failure.PROGRAM)
    return Failure.INCOMPLETE if all(line.is_finite for line in report.iterations) else Failure.NUMBERS


def failed_nodes(log: bytes, nodes: str | None) -> tuple[str, ...]:
    """The nodes that the log blames; where it blames none, a lone node that the attempt ran on."""
    for pattern in (_NODE_LOST, _CONTAINER_FAILED, _TASK_FAILED):
        blamed = tuple(dict.fromkeys(match[1].decode() for match in pattern.finditer(log)))
        if blamed:
            return blamed
    return (nodes,) if nodes and not any(character in nodes for character in "[,") else ()
