"""Tensors without data (torch's meta device): count of their bytes, and results by the shapes of the arguments."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

import torch
from torch._C._distributed_c10d import FakeWork
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

META = torch.device("meta")
_BLOCK_BYTES = 512  # torch's CUDA allocator rounds the size of a tensor up to this


@dataclass
class Pool:
    """Bytes of a pool's live storages, and their peak."""

    now: int = 0
    peak: int = 0


class LiveBytes(TorchDispatchMode):
    """Counter of the bytes of all live storages that operations made, and of their peak.

    Storages made while a CUDA graph would be recorded count for the pool of that graph, which keeps its peak.
    """

    counting: ClassVar[LiveBytes | None] = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ordinary = Pool()
        self._graphs: dict[int | None, Pool] = {}
        self._current = self._ordinary
        self.compiled_depth = 0
        self._sizes: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()
        self._results: dict[Hashable, object] = {}  # by operation and arguments

    def __enter__(self) -> LiveBytes:
        LiveBytes.counting = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        LiveBytes.counting = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @property
    def now(self) -> int:
        """Live bytes."""
        return self._ordinary.now + sum(pool.peak for pool in self._graphs.values())

    @property
    def peak(self) -> int:
        """Peak of the live bytes."""
        return max(self._ordinary.peak, self.now)

    def restart(self) -> None:
        """Reset the peak to the live bytes."""
        self._ordinary.peak = self._ordinary.now

    def record(self, run: Callable[[], None], *, slot: int | None = None) -> Callable[[], None]:
        """Run a function that a GPU would record as a graph, and count its memory for the graph's pool."""
        self._current = self._graphs.setdefault(slot, Pool())
        run()
        self._current = self._ordinary
        return run

    def note_peak(self) -> None:
        """Raise the peak to the live bytes, except inside a compiled function, whose intermediates a GPU frees."""
        if not self.compiled_depth:
            self._current.peak = max(self._current.peak, self._current.now)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func.namespace == "c10d":
            return _communicated(func, args)
        if func is torch.ops.aten.copy_.default and _is_meta(args[1]) and not _is_meta(args[0]):
            return args[0]  # a copy to the host, whose memory is not planned
        out = self._run(func, args, kwargs or {})
        for tensor in tree_iter(out):
            if _is_meta(tensor):
                self._count(tensor.untyped_storage())
        self.note_peak()
        return out

    def _run(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Run an operation, or return new tensors like those of an equal operation before.

        torch computes the shapes of most results in Python, which takes a tenth of a millisecond.
        """
        if not _makes_new_tensors(func):
            return func(*args, **kwargs)
        try:
            key = func, _key(args), _key([*kwargs.items()])
        except _Unrepeatable:
            return func(*args, **kwargs)
        if key in self._results:
            return _made(self._results[key])
        out = func(*args, **kwargs)
        if not _share_storage(args, out):
            with suppress(_Unrepeatable):
                self._results[key] = _template(out)
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._sizes:
            size = -(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES
            self._sizes[storage] = size
            self._current.now += size
            weakref.finalize(storage, _free, self._current, size)


@dataclass(frozen=True, slots=True)
class _NewTensor:
    """Shape of a tensor without data that fills its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Unrepeatable(Exception):
    """An operation whose results do not follow from the shapes of its arguments."""


@functools.cache
def _makes_new_tensors(func: OpOverload) -> bool:
    """Return whether an operation neither writes into its arguments nor returns views of them, by its schema."""
    return not any(value.alias_info for value in (*func._schema.arguments, *func._schema.returns))


def _key(argument: object) -> Hashable:
    """Return a key that is equal for arguments with equal results."""
    if _is_meta(argument):
        return tuple(argument.size()), argument.stride(), argument.dtype
    if isinstance(argument, (tuple, list)):
        return tuple([_key(item) for item in argument])
    if isinstance(argument, torch.Tensor):
        raise _Unrepeatable
    return type(argument), argument  # 1, 1.0 and True are equal


def _share_storage(arguments: object, results: object) -> bool:
    """Return whether results are views of arguments or of each other. Some schemas do not declare this."""
    inputs, outputs = (
        [tensor.untyped_storage()._cdata for tensor in tree_iter(values) if _is_meta(tensor)]
        for values in (arguments, results)
    )
    return len({*inputs, *outputs}) < len({*inputs}) + len(outputs)


def _template(result: object) -> object:
    """Return the description of a result from which `_made` makes an equal one."""
    if isinstance(result, tuple):
        return tuple([_template(item) for item in result])
    if _is_meta(result):
        is_whole = result.untyped_storage().nbytes() == result.numel() * result.element_size()
        if is_whole and result.storage_offset() == 0:
            return _NewTensor(tuple(result.size()), result.stride(), result.dtype)
    elif result is None or isinstance(result, int):
        return result
    raise _Unrepeatable


def _made(template: object) -> object:
    if isinstance(template, tuple):
        return tuple([_made(item) for item in template])
    if isinstance(template, _NewTensor):
        return torch.empty_strided(template.size, template.stride, dtype=template.dtype, device=META)
    return template


def _free(pool: Pool, size: int) -> None:
    pool.now -= size


def _is_meta(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_meta


def _communicated(func: OpOverload, args: Sequence[object]) -> object:
    """Return the results of a collective, which has no kernel for meta tensors: first argument, handle or both."""
    results = [FakeWork().boxed() if "Work" in str(result.type) else args[0] for result in func._schema.returns]
    return results[0] if len(results) == 1 else tuple(results)
