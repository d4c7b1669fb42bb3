"""How values read on the page: numbers as far as they can be trusted, times, and texts that do nothing but be read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict: the word says it, the kind chooses sign and colour."""

    kind: Kind
    word: str


def shown_number(value: float | None) -> str:
    """Four digits that count, all of them before the point: `533`, `1.042`, `14,974`."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_spread(value: float | None, spread: float | None) -> str:
    """`142.3 ± 1.2`: the spread as far as the value goes, and its first digit where that would be nothing."""
    shown = shown_number(value)
    if not shown or spread is None or not math.isfinite(spread):
        return shown
    off = f"{spread:,.{len(shown.partition('.')[2])}f}"
    return f"{shown} ± {off if float(off.replace(',', '')) or not spread else f'{spread:.1g}'}"


def shown_hours(hours: float) -> str:
    """Two digits behind the point; what is less and not nothing says so."""
    return "< 0.01" if 0 < hours < 0.01 else f"{hours:,.2f}"
