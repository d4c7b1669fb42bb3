"""Functions that are one kernel on a GPU, by torch.compile, and run as they are written elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


class Fused(Generic[Result]):
    """A function of tensors, the first of which says where it runs; compiled at its first call on a GPU."""

    def __init__(self, function: Callable[..., Result]) -> None:
        self.function = function
        self._compiled: Callable[..., Result] | None = None

    def __call__(self, tensor: torch.Tensor, *others: Any) -> Result:
        if not tensor.is_cuda:
            return self.function(tensor, *others)
        if self._compiled is None:
            # Code for exactly these shapes is faster, and the shapes of a run do not change.
            self._compiled = torch.compile(self.function, dynamic=False)
        return self._compiled(tensor, *others)
