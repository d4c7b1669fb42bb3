"""Claims of a paper about its figure, as predicates over the metrics of its cases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from orchestrator.catalog.axes import ByAxis, Settings
from orchestrator.config.model import Count, Strict, Text

Metric = Literal[
    "tflops_per_gpu",
    "iteration_ms",
    "sequences_per_s",
    "percent_of_peak",
    "aggregate_pflops",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu_percent",
    "max_memory_allocated_bytes",
    "gpu_memory_used_gb",
    "parameters_billion",
    "training_days",
]
"""Metrics that papers report, with the unit in the name. `gpu_memory_used_gb` counts the whole GPU in 10^9 bytes,
`max_memory_allocated_bytes` is the framework's count."""

HowStated = Literal["printed", "derived"]


class ClaimFields(Strict):
    """Fields of every claim.

    `judged_at` are the scales at which the claim is judged; `not_judged_because` is the reason at the other scales, one
    for all or one for each by name. `where` restricts it to some cases. The default of `metric`
    is the figure's metric. `tolerance` is relative; `tolerance_is` names its author.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    says: Text
    source: Text
    stated: HowStated
    judged_at: Annotated[list[Text], Field(min_length=1)]
    not_judged_because: Text | dict[Text, Text] | None = None
    where: Settings = Settings()
    metric: Metric | None = None
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tolerance_is: Literal["the source's", "ours"] = "ours"

    @model_validator(mode="after")
    def _reasons_are_of_other_scales(self) -> ClaimFields:
        both = [scale for scale in self.reasons if scale in self.judged_at]
        if both:
            raise ValueError(f"not_judged_because has a reason for {both[0]}, at which the claim is judged")
        return self

    @property
    def reasons(self) -> dict[str, str]:
        """Return the reasons of `not_judged_because` that are for one scale each."""
        return self.not_judged_because if isinstance(self.not_judged_because, dict) else {}

    def why_not_at(self, scale: str) -> str:
        """Return why the claim is not judged at a scale."""
        reason = self.not_judged_because if isinstance(self.not_judged_because, str) else self.reasons.get(scale)
        return reason or f"it is judged at {', '.join(self.judged_at)}"


class PeakClaim(ClaimFields):
    """The best case of each series has this value on an axis; `gpus_per_node` is the cluster's number."""

    kind: Literal["peak"]
    at: ByAxis[Count | Literal["gpus_per_node"]]


class SpreadClaim(ClaimFields):
    """In at least one series the best case is at least `at_least` times as fast as the worst."""

    kind: Literal["spread"]
    at_least: Annotated[float, Field(gt=1)]


class GainClaim(ClaimFields):
    """At the largest value of `where_largest` the metric grows from the smallest to the largest value of `along`."""

    kind: Literal["gain"]
    along: Text
    where_largest: Text


class TrendClaim(ClaimFields):
    """In each series the metric falls, or rises, monotonically along an axis."""

    kind: Literal["trend"]
    along: Text
    direction: Literal["falls", "rises"]


class PairFields(ClaimFields):
    """Fields of claims that compare the cases `of` with the cases `over`.

    `over` selects cases of `experiment`, another experiment of the paper, at the same scale and on the same cluster.
    The default is the claim's own experiment.
    """

    of: Settings
    over: Settings
    experiment: Text | None = None

    @property
    def compared(self) -> set[str]:
        """Return the axes on which the two cases of a pair may differ."""
        return {*self.of.given(), *self.over.given()}


class RatioClaim(PairFields):
    """The metric of the cases `of` over that of the cases `over`.

    Two cases that differ only in these settings are a pair. `pick` selects the ratio: of `each` pair, the `largest` of
    all pairs ("up to"), the `smallest`, or the ratio of the `best` case of each side.
    """

    kind: Literal["ratio"]
    pick: Literal["each", "largest", "smallest", "best"] = "each"
    at_least: Annotated[float, Field(gt=0)] | None = None
    at_most: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _has_a_limit(self) -> RatioClaim:
        if self.at_least is None and self.at_most is None:
            raise ValueError("neither at_least nor at_most: the claim cannot fail")
        return self


class ClosesClaim(PairFields):
    """The gap between the cases `of` and `over` is smaller at the largest value of an axis than at the smallest."""

    kind: Literal["closes"]
    along: Text


class PublishedClaim(ClaimFields):
    """Every published number of these metrics is reproduced within the tolerance."""

    kind: Literal["published"]
    metrics: Annotated[list[Metric], Field(min_length=1)]


class OutcomeClaim(ClaimFields):
    """The selected cases end with this outcome."""

    kind: Literal["outcome"]
    outcome: Literal["ok", "oom"]


class LossCurveClaim(PairFields):
    """From an iteration on, the smoothed losses of two cases differ by at most the tolerance."""

    kind: Literal["loss curves"]
    from_iteration: Count
    smoothed_over: Count


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
