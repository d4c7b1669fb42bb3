"""The figure as a picture, on the paper's own axes: a file, or a part of a page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.results.compare import Result
from orchestrator.results.plot.figure import drawn, matplotlib_as_shipped
from orchestrator.results.plot.svg import for_page
from orchestrator.results.plot.words import heading
from orchestrator.results.written import written_whole

FORMATS = ("png", "svg", "pdf")
_NO_DATE: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""The same data gives the same bytes."""
_DOTS_PER_INCH = 200


def plot(entry: Entry, scale: str, cluster: str, found: Sequence[Result], file: Path) -> None:
    """Draw the verified results beside the published numbers into `file`; its ending says the format."""
    ending = known_format(file)
    with matplotlib_as_shipped():
        figure = drawn(entry, scale, cluster, found)
        with written_whole(file) as part:
            figure.savefig(part, format=ending, dpi=_DOTS_PER_INCH, metadata=_NO_DATE[ending])


def picture(entry: Entry, scale: str, cluster: str, found: Sequence[Result], prefix: str = "plot") -> str:
    """The same as an <svg> element for an HTML page, where nothing is verified as well.

    Every id in it begins with `prefix`, so that several can stand in one page. Its background is the page's, its text
    has the colour of the text around it; on a dark page (by its `color-scheme`) the lines are lighter.
    """
    text = io.StringIO()
    with matplotlib_as_shipped():
        figure = drawn(entry, scale, cluster, found)
        figure.savefig(text, format="svg", metadata=_NO_DATE["svg"], transparent=True)
    return for_page(text.getvalue(), prefix, f"{heading(entry)}, scale {scale} on {cluster}")


def known_format(file: Path) -> str:
    """The picture format that the name ends in; ReproError where that is none."""
    ending = file.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ReproError(Problem(f"{file}: no such picture format", mend=f"end it in .{', .'.join(FORMATS)}"))
    return ending
