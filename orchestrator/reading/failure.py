"""Failure classes of attempts, the policy of each class, verdicts, and the nodes at fault. Pure.

An attempt is verified if the job ended well, ran as planned, and its output is complete. The scheduler's state alone
verifies nothing. An attempt that reached its time limit is partial if that is a result, and nothing else is wrong. The
reader of a program finds the problems (`reading.reader`).

The class decides whether an attempt is repeated. A failure that another node or another time can correct is repeated,
up to `MOST_ATTEMPTS` and after a pause. A person must ask for the others: `repro retry --class timeout --time +50%`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.ledger.tables import CANCELLED_BY, FAILED, PARTIAL, STOPPED_AFTER, VERIFIED
from orchestrator.reading import cause_kinds as kinds
from orchestrator.reading.causes import ANY_PROGRAM, Cause, CauseFinder, ProgramLines
from orchestrator.reading.logs import lines_with

if TYPE_CHECKING:
    from orchestrator.catalog.case import Case  # `status` loads no catalog

MOST_ATTEMPTS = 3
"""Number of submissions of a job without a request by a person."""
BACK_OFF_S = (0, 60, 300)
"""Pause before the next submission, by the number of failures: a site that has lost a node may lose another."""


PREEMPTED_IN_GRACE = "preempted, and ended within its grace"
"""Reason of a job that Slurm calls FAILED because it ended by itself after the signal of a preemption."""


class Failure(str, enum.Enum):
    """Failure classes: never started, ended by others, failed by itself."""

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
    DEADLINE = "deadline"
    IMAGE = "image"
    CONFIGURATION = "configuration"
    NUMBERS = "numbers"
    INCOMPLETE = "incomplete"
    PROGRAM = "program"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of a failure class.

    `retry`: repeat the attempt without a request. `exclude_node`: exclude the node at fault. `reason` is for a person.
    """

    retry: bool
    exclude_node: bool
    reason: str


POLICIES: dict[Failure, Policy] = {
    Failure.NOT_SUBMITTED: Policy(True, False, "the scheduler never received the job"),
    Failure.REFUSED: Policy(True, False, "the scheduler refused the job; it used no GPU time"),
    Failure.NODE_FAIL: Policy(True, True, "a node failed, not the job"),
    Failure.PREEMPTED: Policy(True, False, "another job preempted it"),
    Failure.LOST: Policy(True, False, "no record shows how the job ended"),
    Failure.STOPPED: Policy(True, False, "the job was stopped before it started"),
    Failure.CANCELLED: Policy(False, False, "a user cancelled the job"),
    Failure.GPU_IN_USE: Policy(True, True, "another process used the GPU; `nvidia-smi` shows which"),
    Failure.GPU_FAULT: Policy(True, True, "a GPU or its driver failed, not the job; see `nvidia-smi` and `dmesg`"),
    # The kernel kills processes if the host has no memory left, and writes nothing to any log of the job.
    Failure.KILLED: Policy(
        False, False, "the job was killed from outside; `dmesg` shows whether the host had no memory left"
    ),
    Failure.GPU_OOM: Policy(False, False, "the job would run out of GPU memory again"),
    Failure.HOST_OOM: Policy(False, False, "the job would run out of host memory again; see `mem` in the profile"),
    # A broken link, a failed adapter or a lost rank may be gone at another time. A wrong network configuration fails at
    # the first collective, which costs little. No line proves which node it was, as all nodes report it.
    Failure.NCCL_ERROR: Policy(True, False, "the network failed, or a rank was lost without an error message"),
    # The program may have a deadlock, and each time all its GPUs wait for the time-out, ten minutes or more.
    Failure.NCCL_TIMEOUT: Policy(False, False, "ranks waited for each other; all GPUs may hang again"),
    Failure.TIMEOUT: Policy(
        False, False, "the job would reach the time limit again; `repro retry --class timeout --time +50%`"
    ),
    Failure.DEADLINE: Policy(False, False, "the job could not end before its `--deadline`; give it a later one"),
    Failure.IMAGE: Policy(True, True, "its container did not start"),
    Failure.CONFIGURATION: Policy(False, False, "the job would fail in the same way"),
    Failure.NUMBERS: Policy(
        False, False, "a number of the log is NaN, infinite or impossible, or most iterations were skipped"
    ),
    Failure.INCOMPLETE: Policy(False, False, "exit code 0, but the log is incomplete"),
    Failure.PROGRAM: Policy(False, False, "the program failed; see its log"),
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
    "DEADLINE": Failure.DEADLINE,
}

_BY_KIND = {name: Failure(kind.failure) for name, kind in kinds.FAULTS.items() if kind.failure}
"""Classes by the kind of the line that `reading.causes` finds."""

DECIDES_ANY_END = frozenset(name for name, kind in kinds.FAULTS.items() if kind.decides)

KILLED_CODE, TERMINATED_CODE = 128 + 9, 128 + 15
"""Exit codes of a shell whose process SIGKILL or SIGTERM ended."""

_NEED_NO_KIND = (Failure.TIMEOUT, Failure.DEADLINE, Failure.LOST, Failure.INCOMPLETE, Failure.PROGRAM)
"""Classes without a kind of line, or that may occur without one."""

_BY_OTHERS = (Failure.NOT_SUBMITTED, Failure.NODE_FAIL, Failure.PREEMPTED, Failure.LOST, Failure.CANCELLED)
BY_SCHEDULER = frozenset((*_BY_OTHERS, Failure.STOPPED))
"""Classes that a program's own failure classes do not replace."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of an attempt as the scheduler reports it.

    `outside_image` explains why the job's end record does not prove that it ran inside its image. `commit` is the
    commit of the program's checkout in that record. `nodes_inside` is the number of nodes that ran the program inside
    the image; None if it is not known.
    """

    phase: str
    state: str
    exit_code: int | None
    reason: str | None
    outside_image: str | None = None
    commit: str | None = None
    nodes_inside: int | None = None

    @property
    def succeeded(self) -> bool:
        """Return whether the scheduler reports success."""
        return self.state == "COMPLETED" and self.exit_code in (0, None)

    @property
    def reached_limit(self) -> bool:
        """Return whether the scheduler ended the job at its time limit or its deadline."""
        return self.state in ("TIMEOUT", "DEADLINE")


def class_named(name: str | None) -> str:
    """Return the failure class with this name, which may be one of a described program; PROGRAM without a name."""
    return next((member for member in Failure if member == name), name or Failure.PROGRAM)


def failure_named(name: str | None) -> Failure:
    """Return the failure class with this name; PROGRAM for those of described programs, and without a name."""
    return next((member for member in Failure if member == name), Failure.PROGRAM)


def is_of_classes(failure: str | None, classes: Collection[str]) -> bool:
    """Return whether a failure has one of these classes. Those of described programs are also of the class PROGRAM."""
    return class_named(failure) in classes or failure_named(failure) in classes


def policy_of(failure: str | None) -> Policy:
    """Return the policy of a failure class."""
    return POLICIES[failure_named(failure)]


def pause_before(submitted: int, failure: Failure) -> int:
    """Return the seconds that the next submission waits after so many submissions."""
    if not POLICIES[failure].retry or submitted == 0:
        return 0
    return BACK_OFF_S[min(submitted - 1, len(BACK_OFF_S) - 1)]


def ran_out_of_memory(failure: str | None) -> bool:
    """Return whether this is the class of an attempt that failed because a GPU's memory was too small."""
    return failure == Failure.GPU_OOM.value


def fails_as_published(case: Case, failure: str | None) -> bool:
    """Return whether a failed job of this case ended as its source reports: it ran out of GPU memory."""
    return case.expected is not None and case.expected.outcome == "oom" and ran_out_of_memory(failure)


def failing_line(failure: Failure, cause: Cause | None) -> Cause | None:
    """Return the line of a log that decided the class: of the class's kinds, or the best line if it needs no kind."""
    if cause is None or failure is Failure.CANCELLED:
        return None
    of_class = Failure.TIMEOUT if failure is Failure.DEADLINE else failure
    own_kinds = [kind for kind, of_kind in _BY_KIND.items() if of_kind is of_class]
    line = cause.of(*own_kinds, *([kinds.NOT_A_NUMBER] if failure is Failure.NUMBERS else []))
    if line is None and failure in _NEED_NO_KIND and cause.is_fault:
        line = cause
    return line


def failure_of(
    ending: Ending, kind: str | None, *, differs: bool = False, is_whole: bool = False, is_finite: bool = True
) -> Failure:
    """Return the class of an attempt that failed.

    The scheduler decides for lost nodes and limits: the ranks only report the consequences. Otherwise the log decides:
    Slurm reports FAILED for a job that lost a rank because the host had no memory. `kind` is the kind of the best line
    of the log. `differs`: the job ran in another configuration than planned, so that its result is invalid. `is_whole`:
    its last iteration was read. `is_finite`: no number is NaN.
    """
    by_state, by_kind = _BY_STATE.get(ending.state), _BY_KIND.get(kind or "", Failure.PROGRAM)
    reason = (ending.reason or "").lower()
    if reason.startswith(CANCELLED_BY):
        return Failure.CANCELLED
    if by_state is Failure.CANCELLED and ("dependency" in reason or reason.startswith(STOPPED_AFTER)):
        return Failure.STOPPED
    if by_state is Failure.CANCELLED and kind == kinds.NO_HOST_MEMORY:  # by old versions of Slurm
        return by_kind
    if by_state in _BY_OTHERS:
        return by_state
    if differs:
        return Failure.CONFIGURATION
    if ending.reached_limit and kind in DECIDES_ANY_END:  # ranks waited for a failed rank
        return by_kind
    if by_state is not None:
        return by_state
    if by_kind in (Failure.GPU_OOM, Failure.GPU_IN_USE) and not is_whole:
        return by_kind
    if ending.reason == PREEMPTED_IN_GRACE:
        return Failure.PREEMPTED
    if kind not in kinds.FAULTS and ending.exit_code == KILLED_CODE:
        return Failure.KILLED
    if _lacks_proof(ending, kind):  # other nodes have the same container runtime
        return Failure.CONFIGURATION
    if ending.state != "COMPLETED" or (kind in DECIDES_ANY_END and not is_whole):
        return by_kind
    return Failure.INCOMPLETE if is_finite else Failure.NUMBERS


def _lacks_proof(ending: Ending, kind: str | None) -> bool:
    """Return whether the missing proof of the image decides, because the log has no better reason.

    If no node started the program inside its image, an error line comes from a launcher.
    """
    if not ending.outside_image:
        return False
    has_no_reason = kind not in kinds.FAULTS or (kind not in _BY_KIND and ending.nodes_inside == 0)
    return ending.state == "COMPLETED" or has_no_reason


# ---- verdict ----------------------------------------------------------------------------------------------

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between the plan and the log. `is_of_world`: the log's line of the world size shows it."""

    reason: str
    is_of_world: bool = False


def other_commit(ran: str | None, planned: str | None) -> Iterator[Mismatch]:
    """Yield the difference if another commit ran than planned."""
    if ran and planned and _COMMIT.fullmatch(ran) and not (ran.startswith(planned) or planned.startswith(ran)):
        yield Mismatch(f"ran commit {ran[:12]}, not {planned[:12]}")


OUT_OF_MEMORY = "out of memory on the GPU"
"""First words of the reason of a job that ran out of GPU memory."""
_IN_USE = "a GPU was in use by another process"

_ALLOCATING = re.compile(r"Tried to allocate ([0-9.]{1,9} [KMGT]?i?B)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict of an attempt.

    `reason` contains every reason, the first cause first. `failure` is the class of a failed attempt, and `cause` the
    line of its log that decided.
    """

    verdict: str
    reason: str | None
    failure: str | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class LogFindings:
    """Problems of the log of any program.

    `differs` are differences from the plan, `reasons` the other wrong contents, `lacking` the missing
    contents. `at_limit` returns how far a job came until its time limit, if that is a result. `own_failure`
    returns the line of a failure class of the program itself, whose kind is the class.
    """

    differs: Sequence[Mismatch] = ()
    reasons: Sequence[str] = ()
    lacking: Sequence[str] = ()
    is_finite: bool = True
    at_limit: Callable[[Cause | None], str | None] = lambda _cause: None
    own_failure: Callable[[], Cause | None] = lambda: None


def judgement_of(findings: LogFindings, ending: Ending, find_cause: Callable[[], Cause | None]) -> Judgement:
    """Return the judgement of a job that has ended.

    `find_cause` searches the log for errors. It is called only if the job is not verified.
    """
    differs = findings.differs
    reasons = [*(mismatch.reason for mismatch in differs), *findings.reasons]
    if ending.succeeded and not findings.lacking and not reasons and not ending.outside_image:
        return Judgement(VERIFIED, None)
    cause = find_cause()
    at_limit = findings.at_limit(cause) if ending.reached_limit and not reasons else None
    if at_limit and not ending.outside_image:
        return Judgement(PARTIAL, at_limit, None, cause.of(kinds.TIME_LIMIT) if cause else None)
    reasons += findings.lacking
    kind, is_whole = cause.kind if cause else None, not findings.lacking
    failure = failure_of(ending, kind, differs=bool(differs), is_whole=is_whole, is_finite=findings.is_finite)
    is_of_signal = ending.exit_code in (KILLED_CODE, TERMINATED_CODE)
    if is_of_signal and cause and cause.exit_code is not None and failure not in (Failure.KILLED, Failure.HOST_OOM):
        ending = replace(ending, exit_code=cause.exit_code)  # srun returns the largest code, of the tasks that it ended
    if failure is Failure.STOPPED and ending.state == "CANCELLED":
        return Judgement(FAILED, f"not started: {ending.reason}", failure)
    own = findings.own_failure() if failure not in BY_SCHEDULER and not differs else None
    if own is not None:
        return Judgement(FAILED, "; ".join([*_end(ending, own.kind, own), *reasons]), own.kind, own)
    line = failing_line(failure, cause)
    lacks_proof = failure is Failure.CONFIGURATION and not differs and line is None and bool(ending.outside_image)
    if ending.outside_image and (lacks_proof or ending.state == "COMPLETED" or at_limit):
        reasons.append(ending.outside_image)  # any other failure has its own reason
    if lacks_proof and ending.state != "COMPLETED" and cause and cause.is_fault:
        line = cause
    if failure is Failure.CONFIGURATION and differs:  # other errors may follow from the configuration
        line = cause.of(kinds.WHAT_RAN) if cause and any(mismatch.is_of_world for mismatch in differs) else None
    fault = cause if differs and failure is Failure.CONFIGURATION else line
    return Judgement(FAILED, "; ".join([*_end(ending, failure, fault), *reasons]), failure, line)


def _end(ending: Ending, failure: str, fault: Cause | None) -> list[str]:
    """Return reasons from the scheduler's state and the deciding line."""
    reasons: list[str] = []
    is_of_memory = failure in (Failure.GPU_OOM, Failure.GPU_IN_USE)
    if is_of_memory and fault:
        asked, short = _ALLOCATING.search(fault.line), kinds.memory_short(fault.line)
        details = [f"rank {fault.rank}"] if fault.rank is not None else []
        if failure is Failure.GPU_IN_USE and short is not None:
            details.append(f"others had {short.others_gib:.1f} of its {short.total_gib:.1f} GiB")
        details += [f"tried to allocate {asked[1]}"] if asked else []
        problem = OUT_OF_MEMORY if failure is Failure.GPU_OOM else _IN_USE
        reasons.append(f"{problem} ({', '.join(details)})" if details else problem)
    if failure is Failure.CANCELLED and (ending.reason or "").startswith(CANCELLED_BY):
        reasons.append(str(ending.reason))
    elif not ending.succeeded:
        code = f" with exit code {ending.exit_code}" if ending.exit_code else ""
        # The log of a cancelled job only shows the effect of the signal.
        why = str(fault) if fault and fault.is_fault and failure is not Failure.CANCELLED else ending.reason
        reasons.append(f"{ending.state}{code}" + (f" ({why})" if why and not is_of_memory else ""))
    return reasons


# ---- nodes at fault ------------------------------------------------------------------------------------------

_MOST_LINES = 100_000
"""Limit of stored lines about nodes: srun prints a few for each node."""

_NODE = rb"([A-Za-z0-9_.\-]{1,64})"
_NODE_LOST = re.compile(
    rb"srun: error: (?:(?:Node failure on |Task launch for .{1,80} failed on node )"
    + _NODE
    + rb"(?![\w.-]|: No such process)|task ([0-9]{1,9}) launch failed: )"
)
_ENDED = rb"(Terminated|Killed|Exited with exit code 1(?:37|43)\b)?"  # by srun, because of another task
_TASKS_ENDED = re.compile(rb"srun: error: " + _NODE + rb": tasks? ([0-9][0-9,\- ]{0,1000}): " + _ENDED)
_SPAN = re.compile(rb"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes of an attempt in Slurm's order, and the distribution of tasks and ranks.

    A launcher that starts the ranks of its node is one task. The numbers are None if the distribution is not known.
    """

    nodes: tuple[str, ...]
    tasks_per_node: int | None = None
    ranks_per_node: int | None = None

    def node_of(self, number: int | None, per_node: int | None) -> str | None:
        """Return the node of a task or a rank, by the number of tasks or ranks per node."""
        if number is None or not per_node or number // per_node >= len(self.nodes):
            return None
        return self.nodes[number // per_node]


def failed_nodes(
    failure: Failure, log: Iterable[bytes], allocation: Allocation, lines: ProgramLines = ANY_PROGRAM
) -> tuple[str, ...]:
    """Return the nodes at fault, which the next attempt excludes; an empty tuple if nothing proves which node it was.

    `log` is a log in blocks of whole lines, `lines` are those of its program. A failed rank ends the ranks of all other
    nodes, and Slurm reports all of them, so only the node of the deciding line is at fault. A lone node is always at
    fault, and the log is not read.
    """
    if len(allocation.nodes) == 1:
        return allocation.nodes
    finder, ends = CauseFinder(lines), _TaskEnds()
    for block in log:
        finder.feed(block)
        ends.feed(block)
    if failure is Failure.NODE_FAIL:
        nodes: Iterable[str] = filter(
            None, (node or allocation.node_of(task, allocation.tasks_per_node) for node, task in ends.lost)
        )
    else:
        nodes = _nodes_of_line(failing_line(failure, finder.cause()), ends, allocation)
    # Other names are output of a program, or of an earlier start of the job on other nodes.
    return tuple(node for node in dict.fromkeys(nodes) if not allocation.nodes or node in allocation.nodes)


def _nodes_of_line(line: Cause | None, ends: _TaskEnds, allocation: Allocation) -> tuple[str, ...]:
    """Return the nodes that printed the deciding line, else the node of the first task that failed."""
    origins = line.origins if line else ()
    by_origin = (
        origin.node or ends.node_of_task(origin.task) or allocation.node_of(origin.task, allocation.tasks_per_node)
        for origin in origins
    )
    by_rank = allocation.node_of(line.rank, allocation.ranks_per_node) if line else None
    nodes = tuple(node for node in by_origin if node) or ((by_rank,) if by_rank else ())
    return nodes or ends.first_failed


class _TaskEnds:
    """Nodes that srun reports as lost or as unable to launch a task, and the ends of tasks by node."""

    def __init__(self) -> None:
        self.lost: dict[tuple[str, int], None] = {}  # node, or task
        self.first_failed: tuple[str, ...] = ()
        self._spans: list[tuple[int, int, str]] = []

    def feed(self, block: bytes) -> None:
        """Read the next block of the log."""
        for start, end in lines_with(block, b"srun: error: "):
            lost = _NODE_LOST.search(block, start, end)
            if lost and len(self.lost) < _MOST_LINES:
                self.lost[(lost[1] or b"").decode(), int(lost[2] or 0)] = None
            ended = _TASKS_ENDED.search(block, start, end)
            if ended is None:
                continue
            node = ended[1].decode()
            if not ended[3] and not self.first_failed:
                self.first_failed = (node,)
            if len(self._spans) < _MOST_LINES:
                self._spans += [(int(span[1]), int(span[2] or span[1]), node) for span in _SPAN.finditer(ended[2])]

    def node_of_task(self, task: int | None) -> str | None:
        """Return the node that srun printed for a task; the last one, as Slurm may restart a job on other nodes."""
        if task is None:
            return None
        return next((node for low, high, node in reversed(self._spans) if low <= task <= high), None)
