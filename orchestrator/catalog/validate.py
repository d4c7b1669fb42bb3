"""Checks of an experiment that concern several fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.catalog.axes import AXES, Matrix, axis_hint, checked_value
from orchestrator.catalog.claims import ClosesClaim, GainClaim, PeakClaim, TrendClaim
from orchestrator.catalog.experiment import Experiment, Paper, ScaleFields, scale_names
from orchestrator.config.yaml import Document, KeyPath
from orchestrator.errors import Problem, did_you_mean


def problems(
    document: Document, experiment: Experiment, paper: Paper, scale: str, fields: ScaleFields
) -> Iterator[Problem]:
    """Yield every contradiction between the fields at `scale`, each with its location."""
    yield from _twice_given(document, scale, fields)
    yield from _unknown_axes(document, experiment)
    yield from _axes_without_values(document, experiment, fields)
    yield from _unknown_scales(document, experiment)
    yield from _unknown_models(document, paper, scale, fields)
    yield from _claims_of_one_name(document, experiment)


def value_problems(document: Document, experiment: Experiment) -> Iterator[Problem]:
    """Yield the values of matrices that their axis cannot have, at all scales. Rows are checked when they are read."""
    matrices: list[tuple[KeyPath, Matrix | None]] = [((), experiment.matrix)]
    matrices += [(("scales", name), fields.matrix) for name, fields in experiment.scales.items()]
    for path, matrix in matrices:
        for axis, values in (matrix or {}).items():
            for i, value in enumerate(values):
                try:
                    checked_value(axis, value)
                except ValueError as error:
                    yield Problem(f"matrix.{axis}.{i}: {error}", str(document.place((*path, "matrix", axis, i))))


def name_problems(document: Document, scale: str, names: Sequence[str]) -> list[Problem]:
    """Return a problem for each case whose name an earlier case has."""
    seen: set[str] = set()
    duplicates = []
    for i, name in enumerate(names):
        if name in seen:
            where = str(document.place(own_path(document, scale, "cases", i)))
            hint = "give the rows different names, or change named_by"
            duplicates.append(Problem(f"{name}: two cases have this name", where, hint))
        seen.add(name)
    return duplicates


def own_path(document: Document, scale: str, *path: str | int) -> KeyPath:
    """Return the path of a scale's field: in its block, or at the top level that it inherits from."""
    own: KeyPath = ("scales", scale, *path)
    return own if own[:3] in document.keys else tuple(path)


def _twice_given(document: Document, scale: str, fields: ScaleFields) -> Iterator[Problem]:
    """Yield the axes that two of matrix, cases, fixed and rules set: one of the values would be ignored."""
    rows = {axis for row in fields.cases or () for axis in row.given()}
    sources = {
        "matrix": set(fields.matrix or ()),
        "cases": rows,
        "fixed": set(fields.fixed.given()),
        "rules": set(fields.rules or ()),
    }
    for first, second in (("matrix", "fixed"), ("matrix", "rules"), ("fixed", "rules"), ("cases", "rules")):
        for axis in sorted(sources[first] & sources[second]):
            own: KeyPath = ("scales", scale, second, axis)
            where = str(document.key_place(own if own in document.keys else (second, axis)))
            yield Problem(f"{axis}: set by {first} and by {second} at scale {scale}", where, "keep one of them")


def _unknown_axes(document: Document, experiment: Experiment) -> Iterator[Problem]:
    for path, axis in _named_axes(experiment):
        if axis not in AXES:
            yield Problem(f"{axis}: no such axis", str(document.place(path)), axis_hint(axis))


def _axes_without_values(document: Document, experiment: Experiment, fields: ScaleFields) -> Iterator[Problem]:
    rows = dict.fromkeys(axis for row in fields.cases or () for axis in row.given())
    known = [
        *(fields.matrix or ()),
        *(fields.rules or ()),
        *rows,
    ]
    for path, axis in _named_axes(experiment):
        if axis in AXES and axis not in known:
            where = "neither in matrix nor set by a rule" if fields.matrix else "in no case, nor set by a rule"
            yield Problem(f"{axis}: {where}", str(document.place(path)), f"there are: {', '.join(known)}")


def _named_axes(experiment: Experiment) -> Iterator[tuple[KeyPath, str]]:
    for i, axis in enumerate(experiment.axes.x.of):
        yield ("axes", "x", "of", i), axis
    if experiment.axes.series is not None:
        yield ("axes", "series", "of"), experiment.axes.series.of
    if experiment.cases is not None:
        yield from ((("named_by", i), axis) for i, axis in enumerate(experiment.named_by))
    for i, claim in enumerate(experiment.claims):
        if isinstance(claim, PeakClaim):
            yield from ((("claims", i, "at", axis), axis) for axis in claim.at)
        elif isinstance(claim, GainClaim):
            yield ("claims", i, "along"), claim.along
            yield ("claims", i, "where_largest"), claim.where_largest
        elif isinstance(claim, (TrendClaim, ClosesClaim)):
            yield ("claims", i, "along"), claim.along


def _unknown_scales(document: Document, experiment: Experiment) -> Iterator[Problem]:
    known = scale_names(experiment)
    for i, claim in enumerate(experiment.claims):
        for j, name in enumerate(claim.judged_at):
            if name not in known:
                hint = did_you_mean(name, known) or f"there are: {', '.join(known)}"
                yield Problem(f"{name}: no such scale", str(document.place(("claims", i, "judged_at", j))), hint)


def _unknown_models(document: Document, paper: Paper, scale: str, fields: ScaleFields) -> Iterator[Problem]:
    """Yield the names of models that paper.yaml does not describe."""
    known = list(paper.models)
    named = [(own_path(document, scale, "cases", i, "model"), row.model) for i, row in enumerate(fields.cases or ())]
    named.append((own_path(document, scale, "fixed", "model"), fields.fixed.model))
    listed = (fields.matrix or {}).get("model", [])
    named += [(own_path(document, scale, "matrix", "model", i), str(name)) for i, name in enumerate(listed)]
    for path, name in named:
        if name is not None and name not in known:
            hint = did_you_mean(name, known) or f"paper.yaml has: {', '.join(known) or 'none'}"
            yield Problem(f"{name}: no such model", str(document.place(path)), hint)


def _claims_of_one_name(document: Document, experiment: Experiment) -> Iterator[Problem]:
    seen: set[str] = set()
    for i, claim in enumerate(experiment.claims):
        if claim.id in seen:
            yield Problem(f"{claim.id}: two claims have this id", str(document.place(("claims", i, "id"))))
        seen.add(claim.id)
