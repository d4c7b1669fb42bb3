"""What a paper says about its figure, as predicates over the metrics of its cases."""

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
"""What a paper reports. The unit is in the name; `gpu_memory_used_gb` is the whole GPU's, in 10^9 bytes,
`max_memory_allocated_bytes` the framework's own count."""

HowStated = Literal["printed", "derived"]


class ClaimFields(Strict):
    """`judged_at` are the scales at which the claim can be true or false; `where` restricts it to some cases.

    `metric` is the figure's own unless given. `tolerance` is relative; `tolerance_is` says whose it is.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    says: Text
    source: Text
    stated: HowStated
    judged_at: Annotated[list[Text], Field(min_length=1)]
    not_judged_because: Text | None = None
    where: Settings = Settings()
    metric: Metric | None = None
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tolerance_is: Literal["the source's", "ours"] = "ours"


class PeakClaim(ClaimFields):
    """The best case of each series has this axis value; a text names a fact of the cluster."""

    kind: Literal["peak"]
    at: ByAxis[Count | Literal["gpus_per_node"]]


class SpreadClaim(ClaimFields):
    """Within some series the best case is at least this many times as fast as the worst."""

    kind: Literal["spread"]
    at_least: Annotated[float, Field(gt=1)]


class GainClaim(ClaimFields):
    """Where the given axis is at its largest, the metric grows along another axis, smallest to largest value."""

    kind: Literal["gain"]
    along: Text
    where_largest: Text


class TrendClaim(ClaimFields):
    """In each series the metric only falls, or only rises, along an axis."""

    kind: Literal["trend"]
    along: Text
    direction: Literal["falls", "rises"]


class RatioClaim(ClaimFields):
    """The metric of the cases `of` over that of the cases `over`.

    Cases that differ in nothing but these two settings are pairs. `pick` says which ratio counts: that of `each` pair,
    the `largest` of the pairs ("up to"), the `smallest`, or the ratio of the `best` of either side.
    """

    kind: Literal["ratio"]
    of: Settings
    over: Settings
    pick: Literal["each", "largest", "smallest", "best"] = "each"
    at_least: Annotated[float, Field(gt=0)] | None = None
    at_most: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _says_how_far(self) -> RatioClaim:
        if self.at_least is None and self.at_most is None:
            raise ValueError("neither at_least nor at_most: nothing could fail it")
        return self


class ClosesClaim(ClaimFields):
    """The gap between the cases `of` and `over` is smaller at the largest value of an axis than at its smallest."""

    kind: Literal["closes"]
    of: Settings
    over: Settings
    along: Text


class PublishedClaim(ClaimFields):
    """Every published number of these metrics comes out, within the tolerance."""

    kind: Literal["published"]
    metrics: Annotated[list[Metric], Field(min_length=1)]


class OutcomeClaim(ClaimFields):
    """The cases `where` end like this."""

    kind: Literal["outcome"]
    outcome: Literal["ok", "oom"]


class LossCurveClaim(ClaimFields):
    """The smoothed losses of two cases stay within the tolerance of each other from an iteration on."""

    kind: Literal["loss curves"]
    of: Settings
    over: Settings
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
