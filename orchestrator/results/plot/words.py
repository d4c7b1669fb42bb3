"""What stands above a picture: which figure, at which scale, where, and whose numbers lie beside each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.catalog.library import Entry
from orchestrator.results.cases import Result
from orchestrator.results.plot.series import Panel

_LETTER, _BOLD_LETTER = 0.06, 0.085
"""Inches, of the lines below the first and of the first."""


def heading(entry: Entry) -> str:
    """`SC21 Figure 13: Pipeline- against tensor-parallel size ...`."""
    return f"{entry.paper.venue} {entry.experiment.figure}: {entry.experiment.title}"


def subheading(
    entry: Entry, scale: str, cluster: str, found: Sequence[Result], panels: Sequence[Panel], width: float
) -> list[str]:
    """The scale and the cluster; and where numbers of another GPU or program lie beside, whose they are."""
    about = entry.experiment.scales[scale].about if scale in entry.experiment.scales else None
    where = f"scale {scale} on {cluster}{f': {about}' if about else ''}"
    return [*wrapped(where, width), *wrapped(origins(entry, found, panels), width)]


def origins(entry: Entry, found: Sequence[Result], panels: Sequence[Panel]) -> str:
    """`published: A100; measured: H200`: the GPUs, where they are not the same, and likewise the programs."""
    points = [spot.published for panel in panels for spot in panel.spots if spot.published]
    is_measured = any(spot.value is not None for panel in panels for spot in panel.spots)
    own = next((result.instead_of for result in found if result.instead_of), None)
    ran = found[0].case.workload if own else None
    if not points:
        return f"measured with {ran} instead of {own}" if own and is_measured else ""
    whose, ours = _gpus(entry, points), found[0].gpu
    if not is_measured:
        return f"published: {_on(own, whose)}" if own or whose else ""
    if not own and _same(whose, ours):
        return ""
    return f"published: {_on(own, whose or 'unknown GPU')}; measured: {_on(ran, ours or 'unknown GPU')}"


def error_bars(found: Sequence[Result], metric: str) -> str:
    """What the error bars span, for the legend; empty where there are none."""
    known = [measured for result in found if (measured := result.metric(metric)) is not None]
    several = [measured for measured in known if measured.interval_low is not None]
    single = [measured for measured in known if measured.interval_low is None and measured.spread]
    if several and single:
        return "95 % interval of repeats, else quartiles"
    if several:
        return "95 % confidence interval of the repeats"
    return "middle half of the iterations" if single else ""


def _gpus(entry: Entry, points: Sequence[PublishedPoint]) -> str | None:
    """Whose numbers are published: as each says, else the machine that the paper measured on."""
    machine = entry.paper.machine.gpu if entry.paper.machine else None
    named = dict.fromkeys(point.gpu or machine for point in points)
    return ", ".join(filter(None, named)) or None


def _same(published: str | None, measured: str | None) -> bool:
    return published is not None and measured is not None and (published in measured or measured in published)


def _on(program: str | None, gpu: str | None) -> str:
    return " on ".join(filter(None, (program, gpu)))


def wrapped(text: str, width: float, bold: bool = False) -> list[str]:
    """In lines that fit a picture of this width, in inches."""
    return textwrap.wrap(text, int((width - 0.1) / _BOLD_LETTER if bold else (width - 0.7) / _LETTER))
