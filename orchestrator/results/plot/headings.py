"""Text above a picture: its title, and the source, size, GPUs and programs of its numbers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.catalog.library import Entry
from orchestrator.catalog.published import PublishedPoint
from orchestrator.results.cases import Result
from orchestrator.results.plot.panels import Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LETTER, _BOLD_LETTER = 0.061, 0.087
"""Width of a letter in inches, in a line below the title and in the title."""
_LINE, _TITLE_LINE, _MARGIN = 0.155, 0.2, 0.06
"""Height of a line below the title, of a line of the title, and the margins above and below, in inches."""
_LEFT = 0.08


def heading(entry: Entry) -> str:
    """Return `SC21 Figure 13: Pipeline- against tensor-parallel size`."""
    return f"{source_name(entry)}: {entry.experiment.title}"


def source_name(entry: Entry) -> str:
    """Return `SC21 Figure 13`."""
    return f"{entry.paper.venue} {entry.experiment.figure}"


def setup(entry: Entry, scale: str, cluster: str, width: float) -> list[str]:
    """Return `SC21 Figure 13, scale pair on h200: 3.4 billion parameters on 2 GPUs` in one line or two."""
    name, about = f"{source_name(entry)}, scale {scale} on {cluster}", entry.experiment.about_scale(scale)
    if not about:
        return [name]
    together = f"{name}: {about}"
    return [together] if len(wrapped(together, width)) <= len(wrapped(about, width)) else [f"{name}:", about]


def origins(entry: Entry, results: Sequence[Result], panels: Sequence[Panel]) -> str:
    """Return `published: A100; measured: H200` if the GPUs differ, and likewise the programs."""
    points = [point.published for panel in panels for point in panel.points if point.published]
    is_measured = any(point.value is not None for panel in panels for point in panel.points)
    own = next((result.instead_of for result in results if result.instead_of), None)
    ran = results[0].case.workload if own else None
    if not points:
        return f"measured with {ran} instead of {own}" if own and is_measured else ""
    published_gpus, gpu = _gpus(entry, points), results[0].gpu
    if not is_measured:
        return f"published: {_on(own, published_gpus)}" if own or published_gpus else ""
    if not own and _is_same_gpu(published_gpus, gpu):
        return ""
    return f"published: {_on(own, published_gpus or 'unknown GPU')}; measured: {_on(ran, gpu or 'unknown GPU')}"


def _gpus(entry: Entry, points: Sequence[PublishedPoint]) -> str | None:
    """Return the GPUs of the published numbers; without a GPU of its own, a number has the paper's."""
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    named = dict.fromkeys(point.gpu or machine for point in points)
    return ", ".join(filter(None, named)) or None


def _is_same_gpu(published: str | None, measured: str | None) -> bool:
    return published is not None and measured is not None and (published in measured or measured in published)


def _on(program: str | None, gpu: str | None) -> str:
    return " on ".join(filter(None, (program, gpu)))


def write_above(figure: Figure, title: str, lines: Sequence[str], width: float, height: float) -> float:
    """Write the title and the lines below it above the panels; return the height in inches that they take.

    `height` is that of the rest of the picture. The picture gets its size.
    """
    above, below = wrapped(title, width, bold=True), [part for line in lines for part in wrapped(line, width)]
    text_inches = _TITLE_LINE * len(above) + _LINE * len(below) + (2 * _MARGIN if above or below else 0.0)
    whole = height + text_inches
    figure.set_size_inches(width, whole)
    at = whole - _MARGIN
    for part in above:
        figure.text(_LEFT / width, at / whole, part, fontsize=10, fontweight="bold", va="top")
        at -= _TITLE_LINE
    for part in below:
        figure.text(_LEFT / width, at / whole, part, fontsize=8, va="top")
        at -= _LINE
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, 0, 1, height / whole))  # type: ignore[call-arg]
    return text_inches


_TOGETHER = re.compile(r"\([^()]{1,24}\)(?: = \([^()]{1,24}\))?|\d (?=[\w%])")
"""Text that stays in one line: `(t, p) = (8, 8)`, and a number with the next word."""


def wrapped(text: str, width: float, bold: bool = False) -> list[str]:
    """Return the text in lines that fit a picture of this width, in inches."""
    return balanced(text, int((width - 2 * _LEFT) / (_BOLD_LETTER if bold else _LETTER)))


def balanced(text: str, letters: int) -> list[str]:
    """Return the text in as few lines as possible, about equally long."""
    whole = _TOGETHER.sub(lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    lines = textwrap.wrap(whole, letters)
    for fewer in range(letters - 1, letters // 2, -1):
        narrower = textwrap.wrap(whole, fewer)
        if len(narrower) > len(lines):
            break
        lines = narrower
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
