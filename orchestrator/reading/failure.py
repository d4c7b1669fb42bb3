"""Why an attempt failed, as one word, and what that means for running it again; pure.

The class decides the policy. What another node or another day can mend is run again, up to `MOST_ATTEMPTS` and after
a pause; what would fail again is left to a person, and asked for by name: `repro retry --class timeout --time +50%`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.megatron.logs.root_cause_kinds import (
    ASSERTION,
    CONTAINER,
    FAULTS,
    GPU_FAULT,
    GPU_IN_USE,
    GPU_UNUSABLE,
    KILLED,
    NCCL_ERROR,
    NCCL_LOST,
    NCCL_MISUSED,
    NCCL_TIMEOUT,
    NO_GPU_MEMORY,
    NO_HOST_MEMORY,
    NOT_A_NUMBER,
    TIME_LIMIT,
)

if TYPE_CHECKING:
    from orchestrator.megatron.logs.root_cause import Cause
    from orchestrator.reading.verdict import Ending

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
    GPU_IN_USE = "gpu-in-use"
    GPU_FAULT = "gpu-fault"
    KILLED = "killed"
    GPU_OOM = "gpu-oom"
    HOST_OOM = "host-oom"
    NCCL_ERROR = "nccl-error"
    NCCL_TIMEOUT = "nccl-timeout"
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
    Failure.GPU_IN_USE: Policy(True, True, "another process had the GPU; `nvidia-smi` shows which"),
    Failure.GPU_FAULT: Policy(True, True, "a GPU or its driver failed, not the job's fault; `nvidia-smi`, `dmesg`"),
    # The kernel kills for the host's memory, and leaves no word of it in any log.
    Failure.KILLED: Policy(
        False, False, "it was killed from outside; `dmesg` says whether the host's memory was short"
    ),
    Failure.GPU_OOM: Policy(False, False, "it would run out of memory again"),
    Failure.HOST_OOM: Policy(False, False, "it would run out of memory again; `mem` in the profile"),
    # What a link, an adapter or a rank that is lost without a word does to a job, another day may mend; a network that
    # is set up wrongly fails at the first collective and costs little. Which node it was no line proves: all complain.
    Failure.NCCL_ERROR: Policy(True, False, "the network failed it, or a rank was lost without a word"),
    # It may be a deadlock of the program's own, and each time all its GPUs wait for the time-out, ten minutes or more.
    Failure.NCCL_TIMEOUT: Policy(False, False, "ranks waited for each other; it may hang again, on all its GPUs"),
    Failure.TIMEOUT: Policy(False, False, "it would reach the limit again; `repro retry --class timeout --time +50%`"),
    Failure.IMAGE: Policy(True, True, "its container did not start"),
    Failure.CONFIGURATION: Policy(False, False, "it would fail in the same way"),
    Failure.NUMBERS: Policy(False, False, "its numbers are no numbers"),
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

# By the kind that megatron/log_causes gives the line that says best why a job failed.
_BY_CAUSE = {
    "not started": Failure.STOPPED,
    "outside its image": Failure.CONFIGURATION,
    "argument error": Failure.CONFIGURATION,
    ASSERTION: Failure.CONFIGURATION,
    GPU_FAULT: Failure.GPU_FAULT,
    GPU_UNUSABLE: Failure.CONFIGURATION,
    GPU_IN_USE: Failure.GPU_IN_USE,
    NO_GPU_MEMORY: Failure.GPU_OOM,
    NO_HOST_MEMORY: Failure.HOST_OOM,
    "not found": Failure.CONFIGURATION,
    KILLED: Failure.KILLED,
    NCCL_MISUSED: Failure.CONFIGURATION,
    NCCL_ERROR: Failure.NCCL_ERROR,
    NCCL_LOST: Failure.NCCL_ERROR,
    NCCL_TIMEOUT: Failure.NCCL_TIMEOUT,
    TIME_LIMIT: Failure.TIMEOUT,
    "node failure": Failure.NODE_FAIL,
    "preempted": Failure.PREEMPTED,
    CONTAINER: Failure.IMAGE,
}

WHATEVER_THE_END = frozenset(
    {"argument error", ASSERTION, GPU_FAULT, GPU_UNUSABLE, GPU_IN_USE, NO_GPU_MEMORY, NO_HOST_MEMORY}
    | {NCCL_ERROR, NCCL_TIMEOUT}
)
"""Kinds of lines that decide also where the scheduler saw a good end, or one at the time limit: the ranks that were
left waited until then."""

KILLED_CODE = 128 + 9
"""What a shell says of a process that SIGKILL ended."""

_LEFT_OVER = (Failure.TIMEOUT, Failure.LOST, Failure.INCOMPLETE, Failure.PROGRAM)
"""Classes that no kind of line has, or that may be without one."""

_OTHERS_DID_IT = (Failure.NOT_SUBMITTED, Failure.NODE_FAIL, Failure.PREEMPTED, Failure.LOST, Failure.CANCELLED)


def failing_line(failure: Failure, cause: Cause | None) -> Cause | None:
    """What of a log decided that class: a line of its own kinds, or, where it has none, the best that there is."""
    if cause is None or failure is Failure.CANCELLED:
        return None
    kinds = [kind for kind, one in _BY_CAUSE.items() if one is failure]
    if failure is Failure.NUMBERS:
        kinds = [NOT_A_NUMBER]
    found = cause.of(*kinds)
    if found is None and failure in _LEFT_OVER and cause.is_fault:
        found = cause
    return found


def failure_of(
    ending: Ending, kind: str | None, *, differs: bool = False, is_whole: bool = False, is_finite: bool = True
) -> Failure:
    """The class of an attempt that was judged to have failed.

    Of a lost node, or a limit that is reached, the scheduler knows; ranks that are taken along complain of other
    things. Otherwise the log knows better: Slurm calls a job that lost a rank to the host's memory FAILED. `kind` is
    that of the line which says best why; `differs`: it ran otherwise than planned, and whatever came of that is no
    result; `is_whole`: its last iteration was read; `is_finite`: no number is NaN.
    """
    by_state, by_cause = _BY_STATE.get(ending.state), _BY_CAUSE.get(kind or "", Failure.PROGRAM)
    if by_state is Failure.CANCELLED and "dependency" in (ending.reason or "").lower():
        return Failure.STOPPED
    if by_state in _OTHERS_DID_IT:
        return by_state
    if differs:
        return Failure.CONFIGURATION
    if by_state is Failure.TIMEOUT and kind in WHATEVER_THE_END:  # ranks that wait for one that failed
        return by_cause
    if by_state is not None:
        return by_state
    if by_cause in (Failure.GPU_OOM, Failure.GPU_IN_USE) and not is_whole:
        return by_cause
    if ending.reason == MADE_WAY:
        return Failure.PREEMPTED
    if kind not in FAULTS and ending.exit_code == KILLED_CODE:
        return Failure.KILLED
    if _lacks_proof(ending, kind):  # whatever is wrong with the site's container runtime, other nodes have the same
        return Failure.CONFIGURATION
    if ending.state != "COMPLETED" or (kind in WHATEVER_THE_END and not is_whole):
        return by_cause
    return Failure.INCOMPLETE if is_finite else Failure.NUMBERS


def _lacks_proof(ending: Ending, kind: str | None) -> bool:
    """Whether the missing proof of the image decides: the log has no better reason.

    Where no node has started the program inside its image, an error line comes from a launcher.
    """
    if not ending.outside_image:
        return False
    has_no_reason = kind not in FAULTS or (kind not in _BY_CAUSE and ending.nodes_inside == 0)
    return ending.state == "COMPLETED" or has_no_reason
