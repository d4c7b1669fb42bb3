"""How values read on the page: numbers as far as they can be trusted, times, and texts that do nothing but be read."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Kind = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict: the word says it, the kind chooses sign and colour."""

    kind: Kind
    word: str


class _Shown(dict[int, int | str]):
    """For `str.translate`: every character as it is shown, found out once for each."""

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        if character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs":
            self[code] = code
        elif code < 0x20 or code == 0x7F:  # Unicode has pictures of these
            self[code] = 0x2421 if code == 0x7F else 0x2400 + code
        else:
            self[code] = f"⟨U+{code:04X}⟩"
        return self[code]


_SHOWN = _Shown()


def visible(text: str) -> str:
    """`text` with a sign for everything that steers what shows it, has no width, or is half a character."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


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


def shown_moment(moment: datetime | None) -> str:
    """`2026-01-01 12:00:07`; the ledger's times are UTC."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
