"""Message about a search that has ended: the fastest candidate, the jobs and the next command."""

from __future__ import annotations

from orchestrator.results.message import Message
from orchestrator.search.answer import SearchAnswer, fastest_text
from orchestrator.search.prepare import PreparedSearch
from orchestrator.text import counted, printable_line


def search_message(prepared: PreparedSearch, answer: SearchAnswer) -> Message:
    """Return the message about the answer of a search."""
    entry, cluster = prepared.entry, prepared.cluster.name
    fastest = fastest_text(answer) or "no candidate is measured"
    measured = f"{len(answer.measured)} of {counted(len(answer.candidates), 'candidate')} measured"
    unit = "GPU-hours" if prepared.candidates[0].case.device == "gpu" else "process-hours on CPU cores"
    used = f"{answer.hours:.3g} {unit} in {counted(answer.jobs, 'job')}"
    lines = [f"{entry.name} on {cluster}: {entry.experiment.title}", fastest, f"{measured}: {used}"]
    lines += [f"stopped: {answer.stopped}"] if answer.stopped else []
    command = "plot" if answer.winner is not None else "status"
    lines += [f"next: repro {command} {entry.short_name}"]
    title = f"search {entry.short_name} on {cluster}: {fastest}"
    text = "\n".join(map(printable_line, lines))
    return Message(printable_line(title), text, failed=answer.winner is None, complete=True)
