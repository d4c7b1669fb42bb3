"""A drawn SVG as a part of an HTML page: its ids its own, its colours those of the page, light or dark."""

from __future__ import annotations

import html
import re

from orchestrator.results.plot.style import INK, PAPER, SERIES, SERIES_ON_DARK

_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_DARK_PAPER = "#16181b"


def for_page(svg: str, prefix: str, about: str) -> str:
    """The <svg> element alone. `about` says what a reader who does not see it misses.

    matplotlib's style sheet is for every element of a page, so it is bound to this one.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = _IDS.sub(rf"\g<1>{prefix}-", body)
    body = re.sub(r"<style type=\"text/css\">\*", f'<style type="text/css">#{prefix} *', body)
    body = body.replace(INK, "currentColor").replace(PAPER, "var(--plot-paper)")
    for number, colour in enumerate(SERIES, 1):
        body = body.replace(colour, f"var(--plot-{number})")
    opening = f'<svg id="{prefix}" role="img" aria-label="{html.escape(about, quote=True)}"'
    return body.replace("<svg", opening, 1).replace("<defs>", f"{_colours(prefix)}\n <defs>", 1)


def _colours(prefix: str) -> str:
    """The light colours, and where the browser knows how to choose, those of the page's `color-scheme`."""
    names = [("--plot-paper", "#ffffff", _DARK_PAPER)]
    names += [
        (f"--plot-{number}", light, dark)
        for number, (light, dark) in enumerate(zip(SERIES, SERIES_ON_DARK, strict=True), 1)
    ]
    light = "; ".join(f"{name}: {colour}" for name, colour, _ in names)
    both = "; ".join(f"{name}: light-dark({one}, {other})" for name, one, other in names)
    choosing = f"@supports (color: light-dark(#fff, #000)) {{ #{prefix} {{ {both} }} }}"
    return f" <style>#{prefix} {{ {light} }} {choosing}</style>"
