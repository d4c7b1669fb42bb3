"""Conditions of a verified output: comparisons of numbers, joined by `and`, `or`, `not`, `all()` and `any()`.

    out_of_bounds == 0 and rows == 32 and all(wrong == 0)

Python's parser reads a condition; nothing is evaluated as Python.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic_core import PydanticCustomError

from orchestrator.text import counted

Names = Mapping[str, object]
"""Number or text by name."""

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_TEXT = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_RESERVED = re.compile(r"\b(and|or|not|all|any)\s*[=!<>]=?|[=!<>]=?\s*\b(and|or|not|all|any)\b")
"""A word of the grammar next to a comparison, where only the name of an axis or a column can be."""
_KEYWORD = re.compile(
    rf"{_TEXT.pattern}|\b(?:{'|'.join({*keyword.kwlist} - {'and', 'or', 'not', 'True', 'False', 'None'})})\b"
)
_GRAMMAR = "comparisons of names and numbers, and, or, not, all(...), any(...)"


@dataclass(frozen=True)
class Row:
    """Values of a row by column, with its key as text and its line; the line is 0 if the key has it."""

    key: str
    line: int
    values: Names

    def __str__(self) -> str:
        return f"{self.key} (line {self.line})" if self.line else self.key


@dataclass(frozen=True)
class Unmet:
    """A part of a condition that does not hold: why, the names in it, and the line of the first row in question."""

    why: str
    names: frozenset[str] = frozenset()
    line: int = 0


@dataclass(frozen=True)
class Condition:
    """Condition of a verified output."""

    tree: ast.expr

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names outside of `all()` and `any()`, and those inside, where columns of rows are names, too."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        in_rows = {name for call in calls for name in ast.walk(call.args[0]) if isinstance(name, ast.Name)}
        named = {name for name in ast.walk(self.tree) if isinstance(name, ast.Name)}
        outside = named - in_rows - {call.func for call in calls if isinstance(call.func, ast.Name)}
        return {name.id for name in outside}, {name.id for name in in_rows}

    def unmet(self, values: Names, rows: Sequence[Row]) -> list[Unmet]:
        """Return the parts that do not hold, for the values of the whole output and its rows; none if it holds."""
        return _unmet(self.tree, values, rows)


def condition_of(text: str) -> Condition:
    """Parse a condition. ValueError if it has more than the grammar."""
    plain = _TEXT.sub("''", text)
    if reserved := _RESERVED.search(plain):
        hint = "a condition cannot compare an axis or a column of this name: rename it"
        raise PydanticCustomError("reserved", f"{reserved[1] or reserved[2]} is a word of the grammar", {"hint": hint})
    try:
        tree = ast.parse(_KEYWORD.sub(_as_name, text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"is not a condition: {_GRAMMAR}") from None
    _require_condition(tree, in_rows=False)
    return Condition(tree)


def _as_name(match: re.Match[str]) -> str:
    """Return a keyword of Python, such as `from`, in a form that the parser reads as a name.

    Python's parser changes a mathematical letter to the plain one in names, but does not find keywords with one.
    """
    word = match[0]
    return word if word[0] in "'\"" else chr(ord("\N{MATHEMATICAL BOLD SMALL A}") + ord(word[0]) - ord("a")) + word[1:]


def _require_condition(node: ast.expr, in_rows: bool) -> None:
    """Raise ValueError for a node that is no condition."""
    match node:
        case ast.BoolOp():
            for part in node.values:
                _require_condition(part, in_rows)
        case ast.UnaryOp(op=ast.Not()):
            _require_condition(node.operand, in_rows)
        case ast.Call(func=ast.Name(id="all" | "any"), args=[condition], keywords=[]) if not in_rows:
            _require_condition(condition, in_rows=True)
        case ast.Compare(ops=[comparison], comparators=[right]) if type(comparison) in _COMPARISONS:
            _require_value(node.left)
            _require_value(right)
        case _:
            raise ValueError(f"{ast.unparse(node)} is not a condition: {_GRAMMAR}")


def _require_value(node: ast.expr) -> None:
    """Raise ValueError for a node that is neither a name, nor a text, nor a number."""
    match node:
        case ast.Name() | ast.Constant(value=str()):
            return
        case ast.Constant(value=value) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(
            value, (int, float)
        ) and not isinstance(value, bool):
            return
    raise ValueError(f"{ast.unparse(node)} is neither a name nor a number")


def _unmet(node: ast.expr, values: Names, rows: Sequence[Row]) -> list[Unmet]:
    match node:
        case ast.BoolOp():
            each = [_unmet(part, values, rows) for part in node.values]
            holds = not any(each) if isinstance(node.op, ast.And) else not all(each)
            return [] if holds else list(chain.from_iterable(each))
        case ast.UnaryOp():
            holds = bool(_unmet(node.operand, values, rows))
            return [] if holds else [Unmet(f"{ast.unparse(node.operand)}, and must not")]
        case ast.Call():
            return _unmet_by_rows(node, values, rows)
    assert isinstance(node, ast.Compare)
    return _unmet_comparison(node, values)


def _unmet_by_rows(call: ast.Call, values: Names, rows: Sequence[Row]) -> list[Unmet]:
    assert isinstance(call.func, ast.Name)
    condition = call.args[0]
    if not rows:
        return [Unmet(f"{ast.unparse(call)}: the output has no row")]
    failed: dict[str, list[Row]] = {}
    names: dict[str, frozenset[str]] = {}
    for row in rows:
        parts = _unmet(condition, {**values, **row.values}, ())
        if parts:
            why = "; ".join(part.why for part in parts)
            failed.setdefault(why, []).append(row)
            names[why] = frozenset().union(*(part.names for part in parts))
    if call.func.id == "any":
        in_none = sum(map(len, failed.values())) == len(rows)
        return [Unmet(f"{ast.unparse(condition)} in none of {len(rows)} rows")] if in_none else []
    return [
        Unmet(
            f"{why} at {unmet[0]}" + (f" and in {counted(len(unmet) - 1, 'more row')}" if unmet[1:] else ""),
            names[why],
            unmet[0].line,
        )
        for why, unmet in failed.items()
    ]


def _unmet_comparison(node: ast.Compare, values: Names) -> list[Unmet]:
    sides = [(side, _value(side, values)) for side in (node.left, node.comparators[0])]
    text, names = ast.unparse(node), frozenset(side.id for side, _ in sides if isinstance(side, ast.Name))
    for side, value in sides:
        if value is None:
            return [Unmet(f"{text}: {ast.unparse(side)} was not found")]
    (_, left), (_, right) = sides
    try:
        if _COMPARISONS[type(node.ops[0])](left, right):
            return []
    except TypeError:
        return [Unmet(f"{text}: {left!r} and {right!r} cannot be compared")]
    compared = ", ".join(f"{side.id} is {_shown(value)}" for side, value in sides if isinstance(side, ast.Name))
    return [Unmet(f"{text}: {compared}", names)]


def _value(node: ast.expr, values: Names) -> object:
    return values.get(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _shown(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, (int, float)) else repr(value)
