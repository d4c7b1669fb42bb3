"""Style of pictures: colours, markers and hatches that also differ in greyscale and for colour-blind readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.catalog.experiment import PublishedPoint

SERIES = ("#0a396d", "#e49d00", "#057c5f", "#c46ba1", "#833d3d", "#86c9ef", "#755d00", "#e97c47")
"""Okabe and Ito's hues, each at a lightness (CIE L*) of its own: 24, 70, 46, 57, 35, 78, 41 and 64."""
SERIES_ON_DARK = ("#d7eaff", "#b37c00", "#2ccda6", "#dc80b8", "#ecc9a3", "#3377ad", "#c3a846", "#ffcee6")
"""The same lines where the page is dark."""
INK = "#151617"
"""Text, ticks and frames."""
BACKGROUND = "#fdfefe"
"""What lies behind, to be seen in an open marker."""
_MARKERS = ("o", "s", "D", "^", "v", "P", "<", ">")
_DASHES = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)))

PARAMETERS: Any = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # text that can be selected
    "svg.fonttype": "none",
    "svg.hashsalt": "repro",  # the same data, the same file
    "text.color": INK,
    "text.parse_math": False,  # a name may have a dollar
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Colour, marker and dashes of a line."""

    colour: str
    marker: str
    dashes: Any


def line_style(index: int) -> LineStyle:
    """Return the style of a line by its number; from the ninth on, colours repeat with other dashes."""
    which = index % len(SERIES)
    dashes = _DASHES[(index // len(SERIES)) % len(_DASHES)]
    return LineStyle(SERIES[which], _MARKERS[(which + index // len(SERIES)) % len(_MARKERS)], dashes)


@dataclass(frozen=True, slots=True)
class HowKnown:
    """Drawing of a published number by its source: hatch of a bar, inner mark of a marker, tint."""

    hatch: str
    inner: str | None
    tinted: bool


HOW: dict[str, HowKnown] = {
    "printed": HowKnown("", None, True),
    "derived": HowKnown("---", "_", False),
    "read off the plot": HowKnown("xxx", "x", False),
}


@dataclass(frozen=True, slots=True)
class Inside:
    """Inside of a measured marker or bar: filled with the line's colour or open, and the hatch of a bar.

    A half marker is filled on its left side only.
    """

    filled: bool
    half: bool = False
    hatch: str = ""


MEASURED: dict[str, Inside] = {
    "measured": Inside(filled=True),
    "measured, host-bound": Inside(filled=True, half=True, hatch="///"),
    "measured, too noisy to compare": Inside(filled=False),
}
"""Measured numbers by how far they can be compared, in the words and the order of the legend."""

CONFIRMED, UNCONFIRMED = "-", (0, (2, 1.2))
"""The outline of a published number."""


def outline(point: PublishedPoint) -> Any:
    """Return the dashes of the outline of a published number."""
    return CONFIRMED if point.confirmed else UNCONFIRMED


@dataclass(frozen=True, slots=True)
class AxisMark:
    """Mark at the axis for a case without a number, or published without one; `ring` is its outline."""

    label: str
    marker: str
    filled: bool
    ring: Any = None


OOM_BOTH = "out of memory as published"
OOM_BOTH_UNCONFIRMED = "out of memory as published, unconfirmed"
OOM_PUBLISHED = "out of memory (published)"
OOM_PUBLISHED_UNCONFIRMED = "out of memory (published, unconfirmed)"
OOM_MEASURED = "out of memory (measured)"
FLAGGED = "flagged, no number"
NOT_RUN = "not run"
UNDER_WAY = "under way"
FAILED = "failed"
NO_NUMBER = "ran, without this number"

AXIS_MARKS: dict[str, AxisMark] = {
    mark.label: mark
    for mark in (
        AxisMark(OOM_BOTH, "X", filled=True, ring=CONFIRMED),
        AxisMark(OOM_BOTH_UNCONFIRMED, "X", filled=True, ring=UNCONFIRMED),
        AxisMark(OOM_PUBLISHED, "X", filled=False, ring=CONFIRMED),
        AxisMark(OOM_PUBLISHED_UNCONFIRMED, "X", filled=False, ring=UNCONFIRMED),
        AxisMark(OOM_MEASURED, "X", filled=True),
        AxisMark(FLAGGED, "*", filled=False),
        AxisMark(FAILED, "x", filled=True),
        AxisMark(UNDER_WAY, ">", filled=False),
        AxisMark(NO_NUMBER, "_", filled=True),
        AxisMark(NOT_RUN, "|", filled=True),
    )
}
"""In the order of the legend."""
OOM = tuple(words for words in AXIS_MARKS if words.startswith("out of memory"))
