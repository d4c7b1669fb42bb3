"""Kinds of claims of a paper about its figure: predicates over the metrics of its cases.

Each kind is one class: its fields, the cases and metrics that it compares, and the name of the function that judges it.
Packages add kinds by entry points of the group `repro.claims`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from orchestrator.config.model import Count, Strict, Text, optional, required
from orchestrator.config.yaml import KeyPath
from orchestrator.job_spec import Value
from orchestrator.programs.axes import ByAxis, MetricName, Settings, checked_part
from orchestrator.programs.plug_ins import Registry

HowStated = Literal["printed", "derived"]

_KIND = "Kind of the claim. It decides which further fields the claim has."


class ClaimFields(Strict):
    """Fields of every claim."""

    # Function that judges a claim by its `results.evidence.Evidence`, as `module:name`; it returns a `ClaimFinding`.
    judge: ClassVar[str]
    compares: ClassVar[Literal["cases", "pairs", "losses", "outcomes"]] = "cases"
    # Fields with the name of an axis, or with values by axis.
    axis_fields: ClassVar[tuple[str, ...]] = ()
    takes_tolerance: ClassVar[bool] = False
    # It is not judged if another program ran, or one with changed arguments.
    is_of_program: ClassVar[bool] = False
    is_of_arguments: ClassVar[bool] = False

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
        if self.tolerance and not self.takes_tolerance:
            what = "must not be in this kind of claim, which has no number to apply it to"
            raise _wrong_tolerance(what, "remove it")
        for name, factor in (("at_least", 1 - self.tolerance), ("at_most", 1 + self.tolerance)):
            if self.tolerance and (bound := getattr(self, name, None)) is not None:
                _require_effect(bound, bound * factor)
        return self

    @property
    def reasons(self) -> dict[str, str]:
        """Return the reasons of `not_judged_because` that are for one scale each."""
        return self.not_judged_because if isinstance(self.not_judged_because, dict) else {}

    @property
    def other_experiment(self) -> str | None:
        """Name of another experiment of the paper whose cases the claim compares with."""
        return None

    def metrics_of(self, default: str) -> list[str]:
        """Return the metrics that the claim compares; `default` is its own, or that of the plot."""
        return [default] if self.compares in ("cases", "pairs") else []

    def axes(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield the axes that the claim names, with their paths."""
        for name in self.axis_fields:
            value = getattr(self, name)
            yield from [((name,), value)] if isinstance(value, str) else (((name, axis), axis) for axis in value)

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

    judge = "orchestrator.results.claims:judge_peak"
    axis_fields = ("at",)
    kind: Literal["peak"] = required(_KIND)
    at: ByAxis[Value] = required(
        "Values of the best case, by axis: a value of the axis, or `gpus_per_node`.",
        {"mbs": 2},
        {"tp": "gpus_per_node"},
    )


class SpreadClaim(ClaimFields):
    """In at least one series the best case is at least `at_least` times as fast as the worst."""

    judge = "orchestrator.results.claims:judge_spread"
    takes_tolerance = True
    kind: Literal["spread"] = required(_KIND)
    at_least: Annotated[float, Field(gt=1)] = required(
        "Smallest ratio of the best case to the worst case of a line, a factor above 1.", 1.15
    )


class GainClaim(ClaimFields):
    """At the largest value of `where_largest` the metric grows from the smallest to the largest value of `along`."""

    judge = "orchestrator.results.claims:judge_gain"
    axis_fields = ("along", "where_largest")
    kind: Literal["gain"] = required(_KIND)
    along: Text = required("Axis whose smallest and largest values are compared.", "gbs")
    where_largest: Text = required("Axis whose largest value selects the cases.", "pp")


class TrendClaim(ClaimFields):
    """In each series the metric falls, or rises, monotonically along an axis."""

    judge = "orchestrator.results.claims:judge_trend"
    takes_tolerance = True
    axis_fields = ("along",)
    kind: Literal["trend"] = required(_KIND)
    along: Text = required("Axis whose values are in ascending order.", "pp")
    direction: Literal["falls", "rises"] = required(
        "Direction of every step. With `tolerance`, a step may go the other way by this share, and the last value "
        "must still be beyond the first one."
    )


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

    @property
    def other_experiment(self) -> str | None:
        """Name of the experiment of the cases `over`, if it is another one."""
        return self.experiment


class RatioClaim(PairFields):
    """The metric of the cases `of` over that of the cases `over`. Two cases that differ in nothing else are a pair."""

    judge = "orchestrator.results.claims:judge_ratio"
    compares = "pairs"
    takes_tolerance = True
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


class ClosesClaim(PairFields):
    """The gap between the cases `of` and `over` is smaller at the largest value of an axis than at the smallest."""

    judge = "orchestrator.results.claims:judge_closes"
    compares = "pairs"
    axis_fields = ("along",)
    kind: Literal["closes"] = required(_KIND)
    along: Text = required("Axis: the gap at its largest value must be smaller than at its smallest.", "gbs")


class PublishedClaim(ClaimFields):
    """Every published number of these metrics is reproduced within the tolerance."""

    judge = "orchestrator.results.claims:judge_published"
    takes_tolerance = is_of_program = is_of_arguments = True
    kind: Literal["published"] = required(_KIND)
    metrics: Annotated[list[MetricName], Field(min_length=1)] = required(
        "Metrics whose published numbers are compared.", ["tflops_per_gpu"]
    )

    def metrics_of(self, default: str) -> list[str]:  # noqa: ARG002
        """Return the metrics with published numbers."""
        return list(self.metrics)


class OutcomeClaim(ClaimFields):
    """The selected cases end with this outcome."""

    judge = "orchestrator.results.claims:judge_outcome"
    compares = "outcomes"
    is_of_program = is_of_arguments = True
    kind: Literal["outcome"] = required(_KIND)
    outcome: Literal["ok", "oom"] = required("ok: the cases end successfully. oom: they run out of memory.")


class LossCurveClaim(PairFields):
    """From an iteration on, the smoothed losses of two cases differ by at most the tolerance."""

    judge = "orchestrator.results.claims:judge_loss_curves"
    compares = "losses"
    takes_tolerance = is_of_program = True
    kind: Literal["loss curves"] = required(_KIND)
    from_iteration: Count = required("First of the iterations that are compared.", 20)
    smoothed_over: Count = required("Number of iterations of the moving mean.", 10)


_Own = (
    PeakClaim
    | SpreadClaim
    | GainClaim
    | TrendClaim
    | RatioClaim
    | ClosesClaim
    | PublishedClaim
    | OutcomeClaim
    | LossCurveClaim
)


_OWN = {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in get_args(_Own)}


def _checked(name: str, found: object) -> type[ClaimFields]:
    if not (isinstance(found, type) and issubclass(found, ClaimFields)) or not hasattr(found, "judge"):
        raise TypeError("is not a class of catalog.claims.ClaimFields with a judge")
    field = found.model_fields.get("kind")
    if field is None or get_args(field.annotation) != (name,):
        raise TypeError(f"has no field `kind: Literal[{name!r}]`")
    return found


KINDS = Registry[type[ClaimFields]]("repro.claims", _checked, _OWN)


def _read(value: object, read_own: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
    """Return the claim, of a kind of `repro` or of a package."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind in _OWN:
        return read_own(value)
    if (model := KINDS.find(kind)) is not None:
        return checked_part(model, value, info.context)
    names = ", ".join(map(repr, KINDS.names()))
    raise PydanticKnownError("union_tag_invalid", {"discriminator": "'kind'", "tag": kind, "expected_tags": names})


Claim = Annotated[_Own, Field(discriminator="kind"), WrapValidator(_read)]
"""A claim in YAML. One of a package is of another class."""
