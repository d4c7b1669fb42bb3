"""What the fields of an experiment must agree on among themselves, which no single field can say."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.catalog.experiment import Experiment, GainClaim, PeakClaim, ScaleFields, scale_names
from orchestrator.documents.source import Document, Path_
from orchestrator.errors import Problem, did_you_mean


def problems(document: Document, experiment: Experiment, scale: str, fields: ScaleFields) -> Iterator[Problem]:
    """Every disagreement, for `fields` as they are at `scale`; each at the place to change."""
    yield from _twice_given(document, scale, fields)
    yield from _axes_without_values(document, experiment, fields)
    yield from _unknown_scales(document, experiment)


def _twice_given(document: Document, scale: str, fields: ScaleFields) -> Iterator[Problem]:
    """An axis that two of matrix, fixed and rules give: one of them would be ignored in silence."""
    givers = {
        "matrix": set(fields.matrix.given() if fields.matrix else ()),
        "fixed": set(fields.fixed.given()),
        "rules": set(fields.rules.given() if fields.rules else ()),
    }
    for first, second in (("matrix", "fixed"), ("matrix", "rules"), ("fixed", "rules")):
        for axis in sorted(givers[first] & givers[second]):
            own: Path_ = ("scales", scale, second, axis)
            path = own if own in document.keys else (second, axis)
            where = str(document.key_place(path))
            yield Problem(f"{axis}: given by {first} and by {second} at scale {scale}", where, "keep one of them")


def _axes_without_values(document: Document, experiment: Experiment, fields: ScaleFields) -> Iterator[Problem]:
    known = [*(fields.matrix.given() if fields.matrix else ()), *(fields.rules.given() if fields.rules else ())]
    for path, axis in _named_axes(experiment):
        if axis not in known:
            what = f"{axis}: neither in matrix nor given by a rule"
            yield Problem(what, str(document.place(path)), f"there are: {', '.join(known)}")


def _named_axes(experiment: Experiment) -> Iterator[tuple[Path_, str]]:
    for i, axis in enumerate(experiment.axes.x.of):
        yield ("axes", "x", "of", i), axis
    if experiment.axes.series is not None:
        yield ("axes", "series", "of"), experiment.axes.series.of
    for i, claim in enumerate(experiment.claims):
        if isinstance(claim, PeakClaim):
            yield from ((("claims", i, "at", axis), axis) for axis in claim.at)
        elif isinstance(claim, GainClaim):
            yield ("claims", i, "along"), claim.along
            yield ("claims", i, "where_largest"), claim.where_largest


def _unknown_scales(document: Document, experiment: Experiment) -> Iterator[Problem]:
    known = scale_names(experiment)
    for i, claim in enumerate(experiment.claims):
        for j, name in enumerate(claim.judged_at):
            if name not in known:
                mend = did_you_mean(name, known) or f"there are: {', '.join(known)}"
                yield Problem(f"{name}: no such scale", str(document.place(("claims", i, "judged_at", j))), mend)
