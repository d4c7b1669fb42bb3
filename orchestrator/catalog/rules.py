"""The arithmetic a figure's rules are written in: `tp: gpus / pp`. Whole numbers, names and + - * / only.

A rule that is a name alone takes over what that axis has, of whatever kind: `sequence_parallel: scatter_gather`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from orchestrator.documents.model import LARGEST_COUNT

_LONGEST = 200  # so that neither depth nor numbers can grow out of hand


class RuleError(ValueError):
    """The rule cannot be read, or its result is not a whole positive number."""


def evaluate(text: str, names: Mapping[str, int | float | bool | str]) -> int | float | bool | str:
    """The value of a rule; a division must come out whole."""
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


def _value(node: ast.expr, text: str, names: Mapping[str, int | float | bool | str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise RuleError(f"rule `{text}`: {node.id} is not known here (known: {', '.join(names)})")
        value = names[node.id]
        if type(value) is not int:
            raise RuleError(f"rule `{text}`: {node.id} is {value}, not a whole number")
        return value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, text, names), _value(node.right, text, names)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            if right == 0 or left % right:
                raise RuleError(f"{left} does not divide by {right} (rule `{text}`)")
            return left // right
    raise RuleError(f"rule `{text}`: only whole numbers, names and + - * / are read")
