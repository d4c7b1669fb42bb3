"""The nodes at fault in a failed attempt, which the next attempt excludes.

A rank that fails ends the ranks of every other node, and Slurm reports all of them. So only the node of the line that
decided is at fault, never a node whose tasks were ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.megatron.logs.root_cause import CauseFinder
from orchestrator.megatron.logs.scan import Origin, lines_with
from orchestrator.reading.failure import Failure, failing_line

_MOST_LINES = 100_000
"""Lines about nodes that are kept: srun prints a few for each node."""

_NODE = rb"([A-Za-z0-9_.\-]{1,64})"
_NODE_LOST = re.compile(rb"error: Node failure on " + _NODE)
_ENDED = rb"(Terminated|Killed|Exited with exit code 1(?:37|43)\b)?"  # by srun, because of another task
_TASKS_ENDED = re.compile(rb"srun: error: " + _NODE + rb": tasks? ([0-9][0-9,\- ]{0,1000}): " + _ENDED)
_SPAN = re.compile(rb"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes that an attempt ran on, in Slurm's order, and how srun distributed tasks and ranks to them.

    A launcher that starts the ranks of its node is one task. The numbers are None where the distribution is not known.
    """

    nodes: tuple[str, ...]
    tasks_per_node: int | None = None
    ranks_per_node: int | None = None

    def node_of_task(self, task: int | None) -> str | None:
        """Return the node of a task of srun."""
        return self._node(task, self.tasks_per_node)

    def node_of_rank(self, rank: int | None) -> str | None:
        """Return the node of a rank."""
        return self._node(rank, self.ranks_per_node)

    def _node(self, number: int | None, per_node: int | None) -> str | None:
        if number is None or not per_node or number // per_node >= len(self.nodes):
            return None
        return self.nodes[number // per_node]


def failed_nodes(failure: Failure, log: Iterable[bytes], allocation: Allocation) -> tuple[str, ...]:
    """Return the nodes at fault, from a log in blocks of whole lines; empty where nothing proves which node it was.

    A lone node is always the one at fault, and then the log is not read.
    """
    if len(allocation.nodes) == 1:
        return allocation.nodes
    finder, ends = CauseFinder(), _TaskEnds()
    for block in log:
        finder.feed(block)
        ends.feed(block)
    found: Iterable[str] = ends.lost
    if failure is not Failure.NODE_FAIL:
        found = _of_the_deciding_line(failure, finder, ends, allocation)
    # Another name is a program's output, or from an earlier start of the job on other nodes.
    return tuple(node for node in dict.fromkeys(found) if not allocation.nodes or node in allocation.nodes)


def _of_the_deciding_line(
    failure: Failure, finder: CauseFinder, ends: _TaskEnds, allocation: Allocation
) -> tuple[str, ...]:
    """Return the nodes where the line that decided was printed, else the node of the first task that failed."""
    line = failing_line(failure, finder.cause())
    origins = line.origins if line else ()
    by_origin = (_node_of(origin, ends, allocation) for origin in origins)
    by_rank = allocation.node_of_rank(line.rank) if line else None
    nodes = tuple(node for node in by_origin if node) or ((by_rank,) if by_rank else ())
    return nodes or ends.first_failed


def _node_of(origin: Origin, ends: _TaskEnds, allocation: Allocation) -> str | None:
    return origin.node or ends.node_of_task(origin.task) or allocation.node_of_task(origin.task)


class _TaskEnds:
    """Lines of srun about nodes: the lost ones, and how the tasks of each ended."""

    def __init__(self) -> None:
        self.lost: dict[str, None] = {}
        self.first_failed: tuple[str, ...] = ()
        self._spans: list[tuple[int, int, str]] = []

    def feed(self, block: bytes) -> None:
        for start, end in lines_with(block, b"error: Node failure on "):
            lost = _NODE_LOST.search(block, start, end)
            if lost and len(self.lost) < _MOST_LINES:
                self.lost[lost[1].decode()] = None
        for start, end in lines_with(block, b"srun: error: "):
            ended = _TASKS_ENDED.search(block, start, end)
            if ended is None:
                continue
            node = ended[1].decode()
            if not ended[3] and not self.first_failed:
                self.first_failed = (node,)
            if len(self._spans) < _MOST_LINES:
                self._spans += [(low, high, node) for low, high in _spans(ended[2])]

    def node_of_task(self, task: int | None) -> str | None:
        """Return the node that srun printed for a task; the last one, as Slurm may start a job again elsewhere."""
        if task is None:
            return None
        return next((node for low, high, node in reversed(self._spans) if low <= task <= high), None)


def _spans(tasks: bytes) -> Iterator[tuple[int, int]]:
    for match in _SPAN.finditer(tasks):
        yield int(match[1]), int(match[2] or match[1])
