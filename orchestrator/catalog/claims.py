"""Claims of a paper about its figure, as predicates over the metrics of its cases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.config.model import Count, Strict, Text, optional, required
from orchestrator.job_spec import Value
from orchestrator.programs.axes import ByAxis, MetricName, Settings

HowStated = Literal["printed", "derived"]

_KIND = "Kind of the claim. It decides which further fields the claim has."


class ClaimFields(Strict):
    """Fields of every claim."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")] = required(
        "Name of the claim in this file: small letters, digits and -.", "best-microbatch-is-2"
    )
    says: Text = required("Statement of the paper, as one sentence.", "The best microbatch size is 2.")
    source: Text = optional("Place of the statement in the paper.", "section 5.5", default="this experiment")
    stated: HowStated = required("printed: the paper has the statement. derived: it follows from the paper.")
    judged_at: Annotated[list[Text], Field(min_length=1)] = optional(
        "Scales at which the claim is judged. `paper` is the top level of the file.",
        ["paper", "quad"],
        default=["paper"],
    )
    not_judged_because: Text | dict[Text, Text] | None = optional(
        "Reason why the claim is not judged at the other scales: one for all, or one for each by name.",
        "the numbers were measured on 32 GPUs",
        {"pair": "two GPUs have one layout", "cpu": "CPUs share cores"},
    )
    where: Settings = optional("Cases that the claim is about. Without it: all.", {"gbs": 512}, default={})
    metric: MetricName | None = optional(
        "Metric of the claim. Without it: that of `axes.y`.", "max_memory_allocated_bytes"
    )
    tolerance: Annotated[float, Field(ge=0, lt=1)] = optional(
        "Relative tolerance, a share of the number. 0.1 is 10 %.", 0.1, default=0.0
    )
    tolerance_is: Literal["the source's", "ours"] = optional(
        "Author of the tolerance: the source, or the author of this file.", default="ours"
    )
    tolerance_because: Text | None = optional("Reason for the tolerance, or for none.", "the table has two digits")
    not_met_by_source: Text | None = optional(
        "Numbers of the source that do not satisfy the claim. Without it: all of its numbers do.",
        "the figure's own points have 1.54",
    )

    @model_validator(mode="after")
    def _reasons_are_of_other_scales(self) -> ClaimFields:
        both = [scale for scale in self.reasons if scale in self.judged_at]
        if both:
            raise ValueError(f"not_judged_because has a reason for {both[0]}, at which the claim is judged")
        return self

    @model_validator(mode="after")
    def _tolerance_leaves_a_claim(self) -> ClaimFields:
        if self.tolerance:
            self._check_tolerance()
        return self

    def _check_tolerance(self) -> None:
        """Raise ValueError if the claim has no number to apply the tolerance to, or if it could not fail with it."""
        raise _wrong_tolerance("must not be in this kind of claim, which has no number to apply it to", "remove it")

    @property
    def reasons(self) -> dict[str, str]:
        """Return the reasons of `not_judged_because` that are for one scale each."""
        return self.not_judged_because if isinstance(self.not_judged_because, dict) else {}

    def why_not_at(self, scale: str) -> str:
        """Return why the claim is not judged at a scale."""
        reason = self.not_judged_because if isinstance(self.not_judged_because, str) else self.reasons.get(scale)
        return reason or f"it is judged at {', '.join(self.judged_at)}"


def _wrong_tolerance(problem: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("tolerance", "{problem}", {"problem": problem, "hint": hint, "field": ("tolerance",)})


def _require_effect(bound: float, allowed: float) -> None:
    """Raise an error if a bound above or below 1 allows 1 with its tolerance, which is no effect at all."""
    if bound != 1 and (allowed - 1) * (bound - 1) <= 0:
        most = abs(1 - 1 / bound) if bound > 1 else 1 / bound - 1
        raise _wrong_tolerance(
            f"turns {bound:g} into {allowed:.4g}, so that the claim holds without an effect",
            f"write less than {most:.3g}",
        )


class PeakClaim(ClaimFields):
    """The best case of each series has this value on an axis; `gpus_per_node` is the cluster's number."""

    kind: Literal["peak"] = required(_KIND)
    at: ByAxis[Value] = required(
        "Values of the best case, by axis: a value of the axis, or `gpus_per_node`.",
        {"mbs": 2},
        {"tp": "gpus_per_node"},
    )


class SpreadClaim(ClaimFields):
    """In at least one series the best case is at least `at_least` times as fast as the worst."""

    kind: Literal["spread"] = required(_KIND)
    at_least: Annotated[float, Field(gt=1)] = required(
        "Smallest ratio of the best case to the worst case of a line, a factor above 1.", 1.15
    )

    def _check_tolerance(self) -> None:
        _require_effect(self.at_least, self.at_least * (1 - self.tolerance))


class GainClaim(ClaimFields):
    """At the largest value of `where_largest` the metric grows from the smallest to the largest value of `along`."""

    kind: Literal["gain"] = required(_KIND)
    along: Text = required("Axis whose smallest and largest values are compared.", "gbs")
    where_largest: Text = required("Axis whose largest value selects the cases.", "pp")


class TrendClaim(ClaimFields):
    """In each series the metric falls, or rises, monotonically along an axis."""

    kind: Literal["trend"] = required(_KIND)
    along: Text = required("Axis whose values are in ascending order.", "pp")
    direction: Literal["falls", "rises"] = required(
        "Direction of every step. With `tolerance`, a step may go the other way by this share, and the last value "
        "must still be beyond the first one."
    )

    def _check_tolerance(self) -> None:
        """Accept every tolerance, because the ends of the line have none."""


class PairFields(ClaimFields):
    """Fields of claims that compare the cases `of` with the cases `over`."""

    of: Settings = required("Settings of the first cases of each pair, the numerator.", {"vp": 2})
    over: Settings = required("Settings of the second cases of each pair, the denominator.", {"vp": 1})
    experiment: Text | None = optional(
        "Another experiment of the paper, whose cases `over` selects, at the same scale and on the same cluster. "
        "Without it: this experiment.",
        "figure-18",
    )

    @property
    def compared(self) -> set[str]:
        """Return the axes on which the two cases of a pair may differ."""
        return {*self.of, *self.over}


class RatioClaim(PairFields):
    """The metric of the cases `of` over that of the cases `over`. Two cases that differ in nothing else are a pair."""

    kind: Literal["ratio"] = required(_KIND)
    pick: Literal["each", "largest", "smallest", "best"] = optional(
        "Ratio that is judged: that of each pair, the largest or smallest of all pairs, or that of the best case of "
        "each side.",
        default="each",
    )
    at_least: Annotated[float, Field(gt=0)] | None = optional(
        "Smallest ratio, a factor. `at_least`, `at_most` or both are required.", 1.1
    )
    at_most: Annotated[float, Field(gt=0)] | None = optional("Largest ratio, a factor.", 1.25)

    @model_validator(mode="after")
    def _has_a_limit(self) -> RatioClaim:
        if self.at_least is None and self.at_most is None:
            raise ValueError("neither at_least nor at_most: the claim cannot fail")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"no ratio is at least {self.at_least:g} and at most {self.at_most:g}")
        return self

    def _check_tolerance(self) -> None:
        if self.at_least is not None:
            _require_effect(self.at_least, self.at_least * (1 - self.tolerance))
        if self.at_most is not None:
            _require_effect(self.at_most, self.at_most * (1 + self.tolerance))


class ClosesClaim(PairFields):
    """The gap between the cases `of` and `over` is smaller at the largest value of an axis than at the smallest."""

    kind: Literal["closes"] = required(_KIND)
    along: Text = required("Axis: the gap at its largest value must be smaller than at its smallest.", "gbs")


class PublishedClaim(ClaimFields):
    """Every published number of these metrics is reproduced within the tolerance."""

    kind: Literal["published"] = required(_KIND)
    metrics: Annotated[list[MetricName], Field(min_length=1)] = required(
        "Metrics whose published numbers are compared.", ["tflops_per_gpu"]
    )

    def _check_tolerance(self) -> None:
        """Accept every tolerance below 1."""


class OutcomeClaim(ClaimFields):
    """The selected cases end with this outcome."""

    kind: Literal["outcome"] = required(_KIND)
    outcome: Literal["ok", "oom"] = required("ok: the cases end successfully. oom: they run out of memory.")


class LossCurveClaim(PairFields):
    """From an iteration on, the smoothed losses of two cases differ by at most the tolerance."""

    kind: Literal["loss curves"] = required(_KIND)
    from_iteration: Count = required("First of the iterations that are compared.", 20)
    smoothed_over: Count = required("Number of iterations of the moving mean.", 10)

    def _check_tolerance(self) -> None:
        """Accept every tolerance below 1."""


Claim = Annotated[
    PeakClaim
    | SpreadClaim
    | GainClaim
    | TrendClaim
    | RatioClaim
    | ClosesClaim
    | PublishedClaim
    | OutcomeClaim
    | LossCurveClaim,
    Field(discriminator="kind"),
]
