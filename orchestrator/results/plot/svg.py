"""Picture of matplotlib as an <svg> element of a page: its own ids and styles, in the colours of the page."""

from __future__ import annotations

import html
import re

from orchestrator.results.plot.panels import BACKGROUND, INK, SERIES, SERIES_ON_DARK

_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_DARK_PAPER = "#16181b"


def for_page(svg: str, prefix: str, about: str) -> str:
    """Return the <svg> element alone, with `about` as its text for screen readers.

    The style sheet of matplotlib applies to every element of a page, so it is limited to this one.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = _IDS.sub(rf"\g<1>{prefix}-", body)
    body = re.sub(r"<style type=\"text/css\">\*", f'<style type="text/css">#{prefix} *', body)
    body = body.replace(INK, "currentColor").replace(BACKGROUND, "var(--plot-paper)")
    for number, colour in enumerate(SERIES, 1):
        body = body.replace(colour, f"var(--plot-{number})")
    opening = f'<svg id="{prefix}" role="img" aria-label="{html.escape(about, quote=True)}"'
    return body.replace("<svg", opening, 1).replace("<defs>", f"{_colours(prefix)}\n <defs>", 1)


def _colours(prefix: str) -> str:
    """Return the light colours, and for browsers that support it those of the page's `color-scheme`."""
    names = [("--plot-paper", "#ffffff", _DARK_PAPER)]
    names += [
        (f"--plot-{number}", light, dark)
        for number, (light, dark) in enumerate(zip(SERIES, SERIES_ON_DARK, strict=True), 1)
    ]
    light_only = "; ".join(f"{name}: {colour}" for name, colour, _ in names)
    both = "; ".join(f"{name}: light-dark({light}, {dark})" for name, light, dark in names)
    if_supported = f"@supports (color: light-dark(#fff, #000)) {{ #{prefix} {{ {both} }} }}"
    return f" <style>#{prefix} {{ {light_only} }} {if_supported}</style>"
