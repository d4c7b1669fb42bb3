"""Activations of a model chunk between its passes: recomputation, and offloading to host memory (both as in ATC'24).

Recomputation. Megatron-Core's checkpoint recomputes a whole layer, including the last product, whose result nothing
reads. Here the recomputation stops before it. Gradients are equal, and one of twelve parts of a layer's products is
saved. Megatron-Core 0.16's CheckpointWithoutOutput does the same for norms as ATC'24. But its layers need Transformer
Engine for it, and it holds its inputs on the device even if they were offloaded.

Offloading. After a chunk's forward pass, its largest saved tensors are copied to the host while the next chunk runs, up
to the share. Their device memory is freed when the next chunk has ended. They are copied back when the chunk's backward
pass starts, or one chunk earlier once the order of an iteration is known. A chunk whose own backward pass comes next
stays on the device. So only ranks with several microbatches in flight save memory: all pipeline stages except the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.transformer_block import TransformerBlock
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from orchestrator.pretrain.arguments import RecomputeMethod
from orchestrator.pretrain.layers import activate


class Recomputation:
    """One call of a deterministic function whose output is recomputed in the backward pass.

    Call it with the inputs to get the output. Code that uses the output must run under `for_user`. The backward pass of
    that code comes first and recomputes the output. Parameters of the function get gradients too.
    """

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function
        self.context: Any = None
        self._output_key = 0
        self._inputs: list[torch.Tensor | None] = []
        self._edge: Any = None

    def __call__(self, *inputs: torch.Tensor | None) -> torch.Tensor:
        """Return the output."""
        output: torch.Tensor = _Recomputed.apply(self, *inputs)  # type: ignore[no-untyped-call]
        self._output_key = _key(output)
        return output

    def for_user(self) -> saved_tensors_hooks:
        """Return the context in which the output may be used without being kept."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients of the inputs from the gradient of the output."""
        if self._edge is None:
            self._recompute()
        torch.autograd.backward([self._edge], [gradient])
        inputs, self._inputs, self._edge = self._inputs, [], None
        return [None if x is None else x.grad for x in inputs]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return None if _key(tensor) == self._output_key else tensor

    def _unpack(self, packed: torch.Tensor | None) -> torch.Tensor:
        return self._recompute() if packed is None else packed

    def _recompute(self) -> torch.Tensor:
        """Recompute the output. Its graph stays for `gradients`."""
        self._inputs = [None if x is None else x.detach().requires_grad_() for x in self.context.saved_tensors]
        self.context = None  # it refers to this object
        with torch.enable_grad():
            output = self.function(*self._inputs)
        self._edge = get_gradient_edge(output)
        return output.detach()


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recomputation: Recomputation, *inputs: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        ctx.recomputation, recomputation.context = recomputation, ctx
        return recomputation.function(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *ctx.recomputation.gradients(*gradients))


def recompute_norms(block: TransformerBlock) -> None:
    """Recompute the outputs of all norms in the layers of a Megatron-Core TransformerBlock."""
    for layer in block.layers:
        _recompute_between(layer.input_layernorm, layer.self_attention.linear_qkv)
        _recompute_between(layer.pre_mlp_layernorm, layer.mlp.linear_fc1)


def recompute_activations(block: TransformerBlock) -> None:
    """Recompute the outputs of all activation functions in the layers of a Megatron-Core TransformerBlock."""
    for layer in block.layers:
        layer.mlp.forward = partial(_feed_forward, layer.mlp)


def _recompute_between(norm: Any, linear: Any) -> None:
    """Make the linear layer after a norm not keep its input."""
    normalize, project = norm.forward, linear.forward
    last: list[Recomputation] = []

    def forward_norm(x: torch.Tensor) -> torch.Tensor:
        last.append(Recomputation(normalize))
        return last[0](x)

    def forward_linear(*args: Any, **kwargs: Any) -> Any:
        with last.pop().for_user():
            return project(*args, **kwargs)

    norm.forward, linear.forward = forward_norm, forward_linear


def _feed_forward(mlp: Any, hidden_states: torch.Tensor, **_: Any) -> Any:
    """Return the output, and the bias that the caller must add to it."""
    intermediate, bias = mlp.linear_fc1(hidden_states)
    recomputation = Recomputation(partial(activate, mlp.config))
    activated = recomputation(intermediate, bias)
    with recomputation.for_user():
        return mlp.linear_fc2(activated)


def recompute_layers(block: TransformerBlock, method: RecomputeMethod, num_layers: int) -> None:
    """Make a Megatron-Core TransformerBlock keep only the inputs of its layers.

    `uniform` keeps one input per `num_layers` layers. `block` recomputes the first `num_layers` layers one by one.
    """
    layers = list(block.layers)
    each = num_layers if method == "uniform" else 1
    segments = [layers[i : i + each] for i in range(0, len(layers), each)]
    recomputed = len(segments) if method == "uniform" else num_layers
    block._checkpointed_forward = partial(_forward_segments, segments, recomputed)


def _forward_segments(
    segments: list[list[Any]], recomputed: int, *, hidden_states: torch.Tensor, **options: Any
) -> Any:
    """Run the layers in place of Megatron-Core's `_checkpointed_forward`."""
    for i, segment in enumerate(segments):
        run = partial(_run_segment, segment, options)
        if i < recomputed:
            contexts = partial(_contexts, segment)
            # The contexts restore the random states, including those of Megatron-Core.
            hidden_states = checkpoint(
                run, hidden_states, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
            )
        else:
            hidden_states = run(hidden_states)
    return hidden_states


def _run_segment(segment: list[Any], options: dict[str, Any], hidden_states: torch.Tensor) -> torch.Tensor:
    for layer in segment:
        hidden_states, _ = layer(
            hidden_states=hidden_states,
            attention_mask=options["attention_mask"],
            rotary_pos_emb=options["rotary_pos_emb"],
            attention_bias=options["attention_bias"],
        )
    return hidden_states


def _contexts(segment: list[Any]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation (same random numbers, no last product)."""
    config = segment[-1].config
    draws = config.hidden_dropout > 0 or config.attention_dropout > 0
    states = megatron_random._get_all_rng_states() if draws else None
    return nullcontext(), _recompute_context(segment[-1].mlp.linear_fc2, states)


@contextmanager
def _recompute_context(last: Any, states: Any) -> Iterator[None]:
    with ExitStack() as stack:
        if states is not None:
            stack.enter_context(megatron_random._fork_rng())
            megatron_random._set_all_rng_states(*states)
        last.computes = False
        stack.callback(setattr, last, "computes", True)
        yield


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
