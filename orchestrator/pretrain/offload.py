"""Offloading of a share of each model chunk's activations to host memory between the passes (ATC'24).

After a chunk's forward pass, its largest saved tensors are copied to the host while the next chunk runs, up to the
share. Their device memory is freed when the next chunk has ended. They are copied back when the chunk's backward pass
starts, or one chunk earlier once the order of an iteration is known. A chunk whose own backward pass comes next stays
on the device. So only ranks with several microbatches in flight save memory: all pipeline stages except the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

# Pinned memory is allocated in powers of two; pieces of this size waste little.
_PIECE_BYTES = 2**25


def shares_of(sizes: Sequence[int], ratio: float) -> list[int]:
    """Return the bytes to offload of each tensor: largest first, up to `ratio` of the sum, the last one in part."""
    left = round(ratio * sum(sizes))
    shares = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        shares[i] = min(sizes[i], left)
        left -= shares[i]
    return shares


class Transfers:
    """Copies of one rank between device and host, over all its chunks. A GPU has a stream per direction."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._outward = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._inward = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._leaving: list[_Storage] = []
        self._staying: list[_Storage] = []
        self._in_flight: dict[int, _Kept] = {}
        self._passes = 0
        self._order: list[int] = []
        self._order_before: list[int] = []

    def send(self, kept: _Kept, storages: list[_Storage]) -> None:
        """Start to copy a chunk's storages to the host, and free those of the previous chunk."""
        self._free_left()
        self._in_flight[self._passes] = kept
        self._passes += 1
        with _beside(self._outward):
            for storage in storages:
                storage.send(_event(self._outward))
        self._leaving = storages

    def _free_left(self) -> None:
        """Free the device memory of sent storages after their copies have ended."""
        for storage in self._leaving:
            storage.leave()
        for storage in self._staying:
            storage.wait_until_sent()
        self._leaving, self._staying = [], []

    def fetch(self, kept: _Kept) -> None:
        """Copy back the chunk whose backward pass starts, and the one that came next in the previous iteration."""
        number = next(number for number, other in self._in_flight.items() if other is kept)
        del self._in_flight[number]
        self._bring(kept)
        place = len(self._order)
        self._order.append(number)
        if place + 1 < len(self._order_before) and self._order_before[place] == number:
            following = self._in_flight.get(self._order_before[place + 1])
            if following:
                self._bring(following)
        if not self._in_flight:  # all passes of the iteration have ended
            self._order_before, self._order, self._passes = self._order, [], 0

    def _bring(self, kept: _Kept) -> None:
        storages, kept.away = kept.away, []
        if storages and storages[0] in self._leaving:
            # Still on the device: usable now, but its memory must not be freed before the copy has ended.
            self._staying, self._leaving = self._staying + self._leaving, []
            return
        for storage in storages:
            storage.make_room()
        with _beside(self._inward):
            for storage in reversed(storages):  # as the backward pass needs them
                storage.fetch(_event(self._inward))


class Offload:
    """Offloading of one chunk's Megatron-Core TransformerBlock. Byte counts are those of the last microbatch."""

    def __init__(self, block: Any, ratio: float, transfers: Transfers) -> None:
        self.kept_bytes = self.offloaded_bytes = 0
        self._block, self._ratio, self._transfers = block, ratio, transfers
        self._forward, block.forward = block.forward, self.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block and choose the saved tensors to offload."""
        kept = _Kept(self._transfers, _keys(self._block.parameters()))
        with saved_tensors_hooks(kept.pack, kept.unpack):
            output = self._forward(*args, **kwargs)
        self._choose(kept, kwargs)
        return output

    def _choose(self, kept: _Kept, kwargs: dict[str, Any]) -> None:
        # The schedule holds the block's input until its gradient is sent. Megatron-Core always holds the rotary angles.
        not_ours = [self._block.input_tensor, *(value for name, value in kwargs.items() if name != "hidden_states")]
        stays = _keys(value for value in not_ours if isinstance(value, torch.Tensor))
        movable = [storage for key, storage in kept.storages.items() if key not in stays]
        self.kept_bytes = sum(storage.size_bytes for storage in kept.storages.values())
        ratio = self._ratio * self.kept_bytes / max(1, sum(storage.size_bytes for storage in movable))
        for storage, share in zip(movable, shares_of([s.size_bytes for s in movable], ratio), strict=True):
            storage.share_bytes = share
        kept.storages = {}  # from here on only autograd holds the storages
        kept.away = [storage for storage in movable if storage.share_bytes]
        self.offloaded_bytes = sum(storage.share_bytes for storage in kept.away)
        self._transfers.send(kept, list(kept.away))


class _Kept:
    """Tensors that autograd saves in one forward pass of one chunk, as views of storages."""

    def __init__(self, transfers: Transfers, parameters: set[int]) -> None:
        self.storages: dict[int, _Storage] = {}
        self.away: list[_Storage] = []
        self._transfers, self._parameters = transfers, parameters
        self._started = False

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _View:
        key = _key(tensor)
        if key in self._parameters:
            return tensor
        storage = self.storages.setdefault(key, _Storage(tensor.untyped_storage()))
        return _View(storage, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())

    def unpack(self, packed: torch.Tensor | _View) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        if not self._started:
            self._started = True
            self._transfers.fetch(self)
        return packed.tensor()


class _View:
    """Saved tensor without its data."""

    def __init__(
        self, storage: _Storage, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: Any
    ) -> None:
        self._storage, self._dtype = storage, dtype
        self._size, self._stride, self._offset = size, stride, offset

    def tensor(self) -> torch.Tensor:
        data = self._storage.data()
        return torch.empty(0, dtype=self._dtype, device=data.device).set_(data, self._offset, self._size, self._stride)


class _Storage:
    """Memory of saved tensors. Its first `share_bytes` may be on the host."""

    def __init__(self, data: torch.UntypedStorage) -> None:
        self.size_bytes = data.nbytes()
        self.share_bytes = 0
        self._data: torch.UntypedStorage | None = data
        self._device = data.device
        self._rest: torch.Tensor | None = None
        self._host: list[torch.Tensor] = []
        self._sent: torch.cuda.Event | None = None
        self._fetched: torch.cuda.Event | None = None

    def data(self) -> torch.UntypedStorage:
        """Return the memory for later work on the device's current stream."""
        if self._fetched is not None:
            self._fetched.wait()
        assert self._data is not None
        return self._data

    def send(self, done: torch.cuda.Event | None) -> None:
        """Copy the share to the host on the current stream."""
        pinned = self._device.type == "cuda"
        for piece in self._pieces():
            self._host.append(torch.empty(piece.numel(), dtype=torch.uint8, pin_memory=pinned))
            copy_bytes(self._host[-1], piece)
        if done is not None:
            done.record()
        self._sent = done

    def wait_until_sent(self) -> None:
        """Make the current stream wait for the copy to the host, so that it may reuse the memory."""
        if self._sent is not None:
            self._sent.wait()

    def leave(self) -> None:
        """Free the device memory, except the part that is not on the host."""
        self.wait_until_sent()
        if self.share_bytes < self.size_bytes:
            self._rest = _bytes_of(self.data())[self.share_bytes :].clone()
        self._data = None

    def make_room(self) -> None:
        """Allocate device memory again and restore the part that was not offloaded."""
        whole = torch.empty(self.size_bytes, dtype=torch.uint8, device=self._device)
        if self._rest is not None:
            whole[self.share_bytes :].copy_(self._rest)
        self._data, self._rest = whole.untyped_storage(), None

    def fetch(self, done: torch.cuda.Event | None) -> None:
        """Copy the share back from the host on the current stream."""
        for piece, host in zip(self._pieces(), self._host, strict=True):
            copy_bytes(piece, host)
        if done is not None:
            done.record()
        self._host, self._fetched = [], done

    def _pieces(self) -> Sequence[torch.Tensor]:
        return torch.split(_bytes_of(self.data())[: self.share_bytes], _PIECE_BYTES)


def _beside(stream: torch.cuda.Stream | None) -> Any:
    """Return a context whose work runs on `stream`, after all earlier work of the current stream."""
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
    return torch.cuda.stream(stream)


def _event(stream: torch.cuda.Stream | None) -> torch.cuda.Event | None:
    return None if stream is None else torch.cuda.Event()  # type: ignore[no-untyped-call]


def copy_bytes(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between device and host on the current stream, without waiting for the copy."""
    to.copy_(source, non_blocking=True)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _key(tensor: torch.Tensor) -> int:
    """Return the identity of the tensor's memory, valid while the memory exists."""
    return int(tensor.untyped_storage()._cdata)


def _keys(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {_key(tensor) for tensor in tensors}
