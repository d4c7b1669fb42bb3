"""Size of a job whose program does not fill whole nodes: nodes, processes and GPUs of each node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.text import counted


@dataclass(frozen=True, slots=True)
class JobSize:
    """Nodes of a job, and the places (GPUs, or processes on CPU cores) and processes of each."""

    nodes: int
    places_per_node: int
    processes_per_node: int
    problems: tuple[str, ...] = ()


def job_size(case: Case, per_node: int) -> JobSize:
    """Return the size of a case on nodes with so many places.

    The axis `nodes` decides before the number of GPUs, and the axis `processes` before the program.
    """
    nodes = _whole(case, "nodes") or max(1, -(-case.gpus // max(per_node, 1)))
    places = -(-case.gpus // nodes)
    problems = []
    if case.gpus % nodes:
        problems.append(f"{counted(case.gpus, 'GPU')} cannot be divided among {counted(nodes, 'node')}")
    processes, problem = _processes(case, nodes, places)
    problems += [problem] if problem is not None else []
    return JobSize(nodes, places, processes, tuple(problems))


def _processes(case: Case, nodes: int, places: int) -> tuple[int, str | None]:
    """Return the processes of a node, and why there cannot be so many."""
    count = _whole(case, "processes") or (case.described or case.record).processes
    assert count is not None
    if count == "one":
        hint = "processes: one per node starts one on each"
        return 1, f"processes: one is on one node, and the case needs {nodes}; {hint}" if nodes > 1 else None
    if count == "one per node":
        return 1, None
    if count == "one per GPU":
        return max(places, 1), None if places else "processes: one per GPU, and the case has no GPU; set gpus"
    what = f"{counted(count, 'process')} cannot be divided among {counted(nodes, 'node')}"
    return -(-count // nodes), what if count % nodes else None


def _whole(case: Case, axis: str) -> int | None:
    """Return the value on an axis of whole numbers; None if the case has none."""
    value = case.settings.get(axis)
    return value if isinstance(value, int) and value > 0 else None


def size_refusals(case: Case, per_node: int, nodes: int, name: str) -> Iterator[str]:
    """Yield why a machine with so many nodes cannot hold a case."""
    size = job_size(case, per_node)
    yield from size.problems
    if size.nodes > nodes:
        yield f"needs {counted(size.nodes, 'node')}, {name} has {nodes}"
    elif size.places_per_node > per_node:
        unit = "GPU" if case.device == "gpu" else "process"
        yield f"needs {counted(size.places_per_node, unit)} on a node, the nodes of {name} have {per_node}"
