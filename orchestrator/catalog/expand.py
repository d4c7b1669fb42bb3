"""Expansion of an experiment at a scale into its cases. Pure: the same file gives the same cases in the same order."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.catalog.case import Case, alike, shown_value
from orchestrator.catalog.claims import PairFields
from orchestrator.catalog.experiment import (
    GROUPS,
    PAPER,
    CaseFields,
    ExpectedOutcome,
    PublishedPoint,
    ScaleFields,
    scale_names,
)
from orchestrator.catalog.library import Entry, named_values, repetitions, scale_problems
from orchestrator.config.model import LARGEST_COUNT
from orchestrator.errors import Problem, ReproError, did_you_mean, names_hint, require_none
from orchestrator.job_spec import Value
from orchestrator.programs.record import known_program, programs
from orchestrator.text import counted

MOST_CASES = 20_000
"""Largest number of cases that is expanded. Listing more would take minutes."""


def expand(entry: Entry, scale: str = PAPER) -> list[Case]:
    """Return every case of the experiment at a scale; ReproError has every rule without a whole number as result."""
    fields = scale_fields(entry, scale)
    require_none(scale_problems(entry, scale, fields))
    count = case_count(fields)
    if count > MOST_CASES:
        source = "matrix" if fields.cases is None else "cases"
        what = f"{source}: {count:,} cases at scale {scale}, and the limit is {MOST_CASES:,}"
        raise ReproError(Problem(what, entry.scale_location(scale, source), "remove values of the axes"))
    cases: list[Case] = []
    problems: list[Problem] = []
    of_rules: dict[str, list[str]] = {}
    shared, naming = _shared(entry, fields), _naming_axes(entry, fields)
    for i, (row, given) in enumerate(_rows(fields)):
        try:
            case = _case(entry, scale, fields, row, {**shared, **given})
        except RuleError as error:
            at = ",".join(f"{axis}={value}" for axis, value in given.items())
            of_rules.setdefault(str(error), []).append(at)
            continue
        if nameless := next((axis for axis in naming if axis not in case.settings), None):
            what = f"{nameless}: missing, and named_by names cases by it"
            hint = f"add {nameless}: to the row, or change named_by"
            problems.append(Problem(what, entry.scale_location(scale, "cases", i), hint))
            continue
        point = tuple((axis, case.settings[axis]) for axis in naming)
        expected, published = _of_source(entry, row, case.settings) if scale == PAPER else (None, ())
        cases.append(replace(case, point=point, expected=expected, published=published))
    for error_text, places in of_rules.items():
        more = f" and {counted(len(places) - 1, 'more case')}" if places[1:] else ""
        what = f"{entry.short_name} {places[0]}{more}: {error_text}"
        problems.append(Problem(what, entry.scale_location(scale, "rules")))
    hint = "give the rows different names, or change named_by"
    for i, name in repetitions(case.name for case in cases):
        where = entry.scale_location(scale, "cases", i)
        problems.append(Problem(f"{name}: two cases have this name", where, hint))
    require_none(problems or _pair_problems(entry, scale, cases))
    return cases


def _pair_problems(entry: Entry, scale: str, cases: Sequence[Case]) -> Iterator[Problem]:
    """Yield the claims about two experiments that have no pair of cases at a scale at which they are judged."""
    for i, claim in enumerate(entry.experiment.claims):
        name = claim.other_experiment
        if not isinstance(claim, PairFields) or name is None or scale not in claim.judged_at:
            continue
        other = entry.others[name]
        if scale not in scale_names(other.experiment):
            location = entry.location("claims", i, "judged_at", claim.judged_at.index(scale))
            hint = f"it has: {', '.join(scale_names(other.experiment))}"
            yield Problem(f"{scale}: {name} has no such scale", location, hint)
            continue
        sides: list[list[Case]] = []
        for key, which, available in (("of", entry, cases), ("over", other, expand(other, scale))):
            rows = which.described.output.key if which.described is not None else ()
            wanted = {axis: value for axis, value in (claim.where | getattr(claim, key)).items() if axis not in rows}
            sides.append([case for case in available if case.has(wanted)])
            if not sides[-1]:
                text = ",".join(f"{axis}={shown_value(value)}" for axis, value in wanted.items())
                what = f"{text}: {which.short_name} has no such case at scale {scale}"
                hint = f"repro show {shlex.quote(which.argument)} --scale {scale} has its cases"
                yield Problem(what, entry.location("claims", i, key), hint)
        if all(sides) and not any(alike(of, over, claim.compared) for of in sides[0] for over in sides[1]):
            what = f"{name}: no case of it differs from a case of {entry.short_name} only in the compared settings"
            hint = f"compare cases that differ in nothing but {', '.join(sorted(claim.compared))}"
            yield Problem(what, entry.location("claims", i, "experiment"), hint)


def cases_to_run(entry: Entry, scale: str = PAPER) -> list[Case]:
    """Return the cases of the experiment at a scale that have a job."""
    return [case for case in expand(entry, scale) if case.reference_only is None]


def unknown_programs(entry: Entry) -> Iterator[Problem]:
    """Yield each program that an experiment names for its jobs and that does not exist."""
    for scale in scale_names(entry.experiment) if entry.experiment.reference_only is None else ():
        fields = scale_fields(entry, scale)
        named = [(("program",), fields.program)] if entry.described is None else []
        for path, name in (*named, *named_values(fields, "program", to_run=True)):
            if known_program(str(name)) is None:
                hint = names_hint(str(name), programs())
                yield Problem(f"{name}: no such program", entry.scale_location(scale, *path), hint)


def case_count(fields: ScaleFields, *, to_run: bool = False) -> int:
    """Return the number of cases, or of cases with a job, without expanding them."""
    if fields.cases is not None:
        return sum(not to_run or row.reference_only is None for row in fields.cases)
    return math.prod(map(len, (fields.matrix or {}).values()))


def reference_notes(entry: Entry, scale: str) -> list[str]:
    """Return how many cases of the scale have no job, for each reason, without expanding them."""
    rows = scale_fields(entry, scale).cases or []
    count = Counter(row.reference_only for row in rows if row.reference_only)
    return [
        f"{entry.short_name}: {number} of {counted(len(rows), 'case')} {'is' if number == 1 else 'are'} for reference "
        f"only: {reason}"
        for reason, number in count.items()
    ]


def values_on(entry: Entry, fields: ScaleFields, axis: str) -> set[Value] | None:
    """Return the values of all cases with a job on `gpus` or `program` without expanding them.

    Return None if a rule derives them.
    """
    if fields.rules is not None and axis in fields.rules:
        return None
    shared = _shared(entry, fields).get(axis)
    if fields.cases is not None:
        values = {row.settings.get(axis, shared) for row in fields.cases if row.reference_only is None}
    else:
        values = set((fields.matrix or {}).get(axis, [shared]))
    return {value for value in values if value is not None} or None


def scale_fields(entry: Entry, scale: str) -> ScaleFields:
    """Return the fields of the published figure with the changes of a scale."""
    experiment = entry.experiment
    if scale != PAPER and scale not in experiment.scales:
        names = scale_names(experiment)
        hint = did_you_mean(scale, names) or f"{entry.short_name} has: {', '.join(names)}"
        raise ReproError(Problem(f"{scale}: no such scale", hint=hint))
    base = {name: getattr(experiment, name) for name in ScaleFields.model_fields}
    if scale == PAPER:
        return ScaleFields.model_construct(None, **base)
    smaller = experiment.scales[scale]
    over = {name: value for name in base if (value := getattr(smaller, name)) is not None}
    merged = base | over | {group: base[group] | over[group] for group in ("fixed", *GROUPS)}
    if smaller.cases is not None:
        merged["matrix"] = None
    elif smaller.matrix is not None:
        merged["cases"] = None
    return ScaleFields.model_construct(None, **merged)


def _rows(fields: ScaleFields) -> Iterable[tuple[CaseFields, Mapping[str, Value]]]:
    """Return the row and the settings of each case; those of a matrix share an empty row."""
    if fields.cases is not None:
        return [(row, row.settings) for row in fields.cases]
    matrix, none = fields.matrix or {}, CaseFields()
    return [(none, dict(zip(matrix, values, strict=True))) for values in itertools.product(*matrix.values())]


def _case(entry: Entry, scale: str, fields: ScaleFields, row: CaseFields, given: Mapping[str, Value]) -> Case:
    """Return a case without its name and its published numbers."""
    settings = _settings(entry, fields, given)
    case = Case(
        experiment=entry.name,
        scale=scale,
        point=(),
        program=str(settings["program"]) if entry.described is None else entry.described.shown_name,
        described=entry.described,
        device=fields.device or "gpu",
        time_limit=fields.time_limit,
        gpu_memory_gb=fields.gpu_memory_gb,
        arguments=(*(fields.arguments or ()), *row.arguments),
        note=row.note,
        reference_only=row.reference_only,
        script=(row.script or entry.experiment.script) if scale == PAPER else None,
        settings=settings,
    )
    return case if entry.record is None else entry.record.case(case, entry, fields)


def _naming_axes(entry: Entry, fields: ScaleFields) -> list[str]:
    """Return the axes that name a case, in order: for a matrix, varied and drawn axes; for rows, `named_by`."""
    if fields.cases is not None:
        naming = set(entry.experiment.named_by)
    else:
        axes = entry.experiment.plot
        drawn = {*axes.x.of, *([axes.series.of] if axes.series else [])}
        naming = {*(fields.matrix or ()), *(axis for axis in (fields.rules or ()) if axis in drawn)}
    return [axis for axis in entry.axes if axis in naming]


def _shared(entry: Entry, fields: ScaleFields) -> dict[str, Value]:
    """Return the settings that all cases of the scale share."""
    program = fields.program or entry.experiment.program
    return {
        **({"program": str(program)} if entry.described is None else {}),
        **({"gpus": fields.gpus} if fields.gpus else {}),
        **{axis: group[axis] for group in (fields.model, fields.training) for axis in entry.axes if axis in group},
        **fields.fixed,
    }


def _settings(entry: Entry, fields: ScaleFields, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return all settings of a case: those of the named model, overridden by given ones, and those of rules."""
    name = given.get("model")
    has_models = "model" in entry.names.groups and name is not None
    model = entry.paper.models[str(name)] if has_models else {}
    settings = {**{axis: value for axis, value in model.items() if axis in entry.axes}, **given}
    return settings | _derived(fields.rules or {}, settings)


def _derived(rules: Mapping[str, str], settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings that the rules derive. A rule may use the result of another rule."""
    derived: dict[str, Value] = {}
    waiting = dict(rules)
    while waiting:
        ready = [axis for axis, text in waiting.items() if not {*re.findall(r"\w+", text)} & (waiting.keys() - {axis})]
        if not ready:
            raise RuleError(f"the rules of {' and '.join(waiting)} depend on each other")
        for axis in ready:
            derived[axis] = evaluate(waiting.pop(axis), {**settings, **derived})
    return derived


def _of_source(
    entry: Entry, row: CaseFields, settings: Mapping[str, Value]
) -> tuple[ExpectedOutcome | None, tuple[PublishedPoint, ...]]:
    """Return the outcome and the published numbers of a case in the source, those of its own row first."""
    experiment, source = entry.experiment, entry.experiment.published_as
    expected = next((outcome for outcome in experiment.expected if outcome.where.items() <= settings.items()), None)
    if row.expect is not None:
        expected = ExpectedOutcome(where={}, outcome=row.expect, confirmed=True, source="declared by the source")
    published = [source.point(*number) for number in row.published.items()] if source is not None else []
    published += [point for point in experiment.published if point.where.items() <= settings.items()]
    return expected, tuple(published)


_LONGEST = 200  # limits the depth of a rule and the size of its numbers


class RuleError(ValueError):
    """Rule that cannot be read, or whose result is not a positive whole number."""


def evaluate(text: str, names: Mapping[str, Value]) -> Value:
    """Return the value of a rule. RuleError if a division has a remainder."""
    if len(text) > _LONGEST:
        raise RuleError(f"rule `{text[:40]}...` is longer than {_LONGEST} characters")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise RuleError(f"rule `{text}` is not arithmetic") from None
    if isinstance(tree.body, ast.Name) and tree.body.id in names:
        return names[tree.body.id]
    value = _value(tree.body, text, names)
    if value < 1:
        raise RuleError(f"rule `{text}` gives {value}")
    if value > LARGEST_COUNT:
        raise RuleError(f"rule `{text}` gives more than {LARGEST_COUNT:,}")
    return value


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


def _value(node: ast.expr, text: str, names: Mapping[str, Value]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise RuleError(f"rule `{text}`: unknown name {node.id} (there are: {', '.join(names)})")
        value = names[node.id]
        if type(value) is not int:
            raise RuleError(f"rule `{text}`: {node.id} is {value}, not a whole number")
        return value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, text, names), _value(node.right, text, names)
        if isinstance(node.op, ast.Div) and (right == 0 or left % right):
            raise RuleError(f"{left} does not divide by {right} (rule `{text}`)")
        if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](left, right)
    raise RuleError(f"rule `{text}`: only whole numbers, names and + - * / are allowed")
