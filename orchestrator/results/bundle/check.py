"""Result of a check of a bundle, and the check of its pages: report.html and README.txt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from orchestrator.fields import Field
from orchestrator.results.plot.figure import matplotlib_version
from orchestrator.results.report.page import without_picture

_CLOSE = 1e-9
"""Relative; two machines may differ in the last digits of a median."""
_MOST_SHOWN = 5
"""Differences that are listed per attempt or per case."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check: what was compared, and one line per difference.

    `unchecked` are the parts for which there was nothing to compare with. `notes` are facts for the reader that
    are no differences.
    """

    name: str
    what: str
    differences: tuple[str, ...]
    unchecked: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Return whether everything was compared."""
        return self.unchecked is None


@dataclass(frozen=True, slots=True)
class BundleCheckRow:
    """A check of a bundle as a row. `proven` is false if there was nothing to compare with."""

    check: Annotated[str, Field(of="name")]
    what: str
    proven: Annotated[bool, Field(of="is_proven")]
    differences: Sequence[str]
    notes: Sequence[str]


def check_of_pages(
    stored: Mapping[str, str], rendered: Mapping[str, str], *, same_code: bool, drawn_with: str | None
) -> Check:
    """Compare the pages of a bundle with those that its rows give.

    Another version of repro may render other pages. Another matplotlib (`drawn_with` is its version, None if it is
    unknown or was not installed) draws another picture, and none draws none.
    """
    pages = " and ".join(rendered)
    differing = [path for path in rendered if stored[path] != rendered[path]]
    unlike = [path for path in differing if without_picture(stored[path]) != without_picture(rendered[path])]
    here = matplotlib_version()
    if differing and not unlike and (here is None or here != drawn_with):
        why = f"matplotlib {drawn_with or 'of unknown version'} drew it" if here else "matplotlib is not installed"
        what = f"{pages} rendered again: no difference; the picture is not compared, because {why}"
        return Check("pages", what, (), unchecked=f"the picture of {' and '.join(differing)}")
    if differing and not same_code:
        what = f"{' and '.join(differing)} not compared: another version of repro made the bundle"
        return Check("pages", what, (), unchecked=pages)
    differences = tuple(f"{path}: differs from what the ledger in the bundle gives" for path in differing)
    return Check("pages", f"{pages} rendered again", differences)


def first_of(differences: Sequence[str], location: str) -> Iterator[str]:
    """Yield the first differences, and the number of the others."""
    yield from differences[:_MOST_SHOWN]
    if len(differences) > _MOST_SHOWN:
        yield f"{location}: {len(differences) - _MOST_SHOWN} more like these"


def shown(value: object) -> str:
    """Return a value as text."""
    return "nothing" if value is None else str(value)


def same(stored: object, derived: object) -> bool:
    """Return whether two values are equal; numbers up to rounding, and NaN is stored as nothing."""
    if isinstance(derived, float):
        if not math.isfinite(derived):
            return stored is None
        return isinstance(stored, (int, float)) and math.isclose(stored, derived, rel_tol=_CLOSE)
    return bool(stored == derived)
