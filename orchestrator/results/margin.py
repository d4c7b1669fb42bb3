"""Margin of a verdict, and the two results of judging a claim: a finding, or a reason why it cannot be judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Margin:
    """Distance of a claim's number from the bound that decides, and the ends of the number's uncertainty.

    `percent` is a share of the bound. It is positive if the number satisfies the bound, else negative. `uncertainty` is
    the largest one of a measured number, with its origin.
    """

    number: float
    low: float
    high: float
    bound: float
    percent: float
    uncertainty: str

    def __str__(self) -> str:
        percent = abs(self.percent)
        shown = f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"
        if self.number >= self.bound:
            distance = f"exceeds {self.bound:.4g} by {shown}"
        else:
            distance = f"{'misses' if self.percent < 0 else 'stays below'} {self.bound:.4g} by {shown}"
        return f"{distance}: {self.interval}; {self.uncertainty}"

    @property
    def interval(self) -> str:
        """Return the number with its uncertainty: `1.135 ± 0.045`, or `0.24 (0.1 to 0.44)` if the ends differ."""
        below, above = self.number - self.low, self.high - self.number
        if max(below, above) > 1.2 * min(below, above):
            return f"{self.number:.4g} ({self.low:.2g} to {self.high:.2g})"
        return f"{self.number:.4g} ± {(below + above) / 2:.2g}" if above else f"{self.number:.4g}"


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """Verdict of a claim, its reason, and the distance from the bound, if the claim has one."""

    holds: bool
    because: str
    margin: Margin | None = None


class NotJudged(Exception):
    """Reason why a claim cannot be judged now, with the distance from the bound if noise is the reason."""

    def __init__(self, reason: str, margin: Margin | None = None) -> None:
        super().__init__(reason)
        self.margin = margin
