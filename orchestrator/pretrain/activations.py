"""Activations of a model chunk between its passes: recomputation, and offloading to host memory (both as in ATC'24).

Megatron-Core's checkpoint recomputes a whole layer, including the last product, whose result nothing reads. Here the
recomputation stops before it: equal gradients, and one of twelve parts of a layer's products saved. Megatron-Core's
CheckpointWithoutOutput needs Transformer Engine in layers, and holds its inputs on the device even if offloaded.

After a chunk's forward pass, its largest saved tensors are copied to the host while the next chunk runs, up to the
share. Their device memory is freed when the next chunk has ended. They are copied back when the chunk's backward pass
starts, or one chunk earlier once the order of an iteration is known. A chunk whose own backward pass comes next stays
on the device. So only ranks with several microbatches in flight save memory: all pipeline stages except the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from megatron.core.tensor_parallel import random as megatron_random
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from orchestrator.pretrain.arguments import RecomputeMethod
from orchestrator.pretrain.layers import SkippableRowParallelLinear, activate

if TYPE_CHECKING:
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.transformer_block import TransformerBlock
    from megatron.core.transformer.transformer_layer import TransformerLayer
    from torch.autograd.function import FunctionCtx
    from torch.autograd.graph import GradientEdge

    class _RecomputationContext(FunctionCtx):
        saved_tensors: tuple[torch.Tensor | None, ...]
        recomputation: Recomputation

        def save_for_backward(self, *tensors: torch.Tensor | None) -> None: ...


class Recomputation:
    """One call of a deterministic function whose output is recomputed in the backward pass.

    Call it with the inputs to get the output. Code that uses the output must run under `for_user`. The backward pass of
    that code comes first and recomputes the output. Parameters of the function get gradients too.
    """

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function
        self.context: _RecomputationContext | None = None
        self._output_key = 0
        self._inputs: list[torch.Tensor | None] = []
        self._edge: GradientEdge | None = None

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
        assert self._edge is not None
        torch.autograd.backward([self._edge], [gradient])
        inputs, self._inputs, self._edge = self._inputs, [], None
        return [None if x is None else x.grad for x in inputs]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return None if _key(tensor) == self._output_key else tensor

    def _unpack(self, packed: torch.Tensor | None) -> torch.Tensor:
        return self._recompute() if packed is None else packed

    def _recompute(self) -> torch.Tensor:
        """Recompute the output. Its graph stays for `gradients`."""
        assert self.context is not None
        self._inputs = [None if x is None else x.detach().requires_grad_() for x in self.context.saved_tensors]
        self.context = None  # it refers to this object
        with torch.enable_grad():
            output = self.function(*self._inputs)
        self._edge = get_gradient_edge(output)
        return output.detach()


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _RecomputationContext, recomputation: Recomputation, *inputs: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        ctx.recomputation, recomputation.context = recomputation, ctx
        return recomputation.function(*inputs)

    @staticmethod
    def backward(ctx: _RecomputationContext, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
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


def _recompute_between(norm: torch.nn.Module, linear: torch.nn.Module) -> None:
    """Make the linear layer after a norm not keep its input."""
    normalize, project = norm.forward, linear.forward
    last: list[Recomputation] = []

    def forward_norm(x: torch.Tensor) -> torch.Tensor:
        last.append(Recomputation(normalize))
        return last[0](x)

    def forward_linear(*args: object, **kwargs: object) -> object:
        with last.pop().for_user():
            return project(*args, **kwargs)

    norm.forward, linear.forward = forward_norm, forward_linear


def _feed_forward(mlp: MLP, hidden_states: torch.Tensor, **_: object) -> object:
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
    segments: list[list[TransformerLayer]], recomputed: int, *, hidden_states: torch.Tensor, **options: object
) -> torch.Tensor:
    """Run the layers in place of Megatron-Core's `_checkpointed_forward`."""
    options = {name: options[name] for name in ("attention_mask", "rotary_pos_emb", "attention_bias")}
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


def _run_segment(
    segment: list[TransformerLayer], options: Mapping[str, object], hidden_states: torch.Tensor
) -> torch.Tensor:
    for layer in segment:
        hidden_states, _ = layer(hidden_states=hidden_states, **options)
    return hidden_states


def _contexts(segment: list[TransformerLayer]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation (same random numbers, no last product)."""
    config = segment[-1].config
    draws = config.hidden_dropout > 0 or config.attention_dropout > 0
    states = megatron_random._get_all_rng_states() if draws else None
    return nullcontext(), _recompute_context(segment[-1].mlp.linear_fc2, states)


@contextmanager
def _recompute_context(last: SkippableRowParallelLinear, states: tuple[torch.Tensor, ...] | None) -> Iterator[None]:
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
        self._to_host, self._to_device = _stream(device), _stream(device)
        self._copied: list[_Storage] = []  # storages whose device memory is freed when the next chunk has ended
        self._kept: list[_Storage] = []  # copied storages whose device memory stays in use
        self._in_flight: dict[int, _SavedTensors] = {}
        self._passes = 0
        self._order: list[int] = []
        self._previous_order: list[int] = []

    def offload(self, saved: _SavedTensors, storages: list[_Storage]) -> None:
        """Start to copy a chunk's storages to the host, and free those of the previous chunk."""
        for storage in self._copied:
            storage.free()
        for storage in self._kept:
            storage.wait_for_copy()
        self._in_flight[self._passes] = saved
        self._passes += 1
        with _after_current_stream(self._to_host):
            for storage in storages:
                storage.copy_to_host(self._to_host)
        self._copied, self._kept = storages, []

    def fetch(self, saved: _SavedTensors) -> None:
        """Copy back the chunk whose backward pass starts, and the one that came next in the previous iteration."""
        number = next(number for number, other in self._in_flight.items() if other is saved)
        del self._in_flight[number]
        self._copy_back(saved)
        index = len(self._order)
        self._order.append(number)
        if index + 1 < len(self._previous_order) and self._previous_order[index] == number:
            following = self._in_flight.get(self._previous_order[index + 1])
            if following:
                self._copy_back(following)
        if not self._in_flight:  # all passes of the iteration have ended
            self._previous_order, self._order, self._passes = self._order, [], 0

    def _copy_back(self, saved: _SavedTensors) -> None:
        storages, saved.offloaded = saved.offloaded, []
        if storages and storages[0] in self._copied:
            # Still on the device: usable now, but its memory must not be freed before the copy has ended.
            self._kept, self._copied = self._kept + self._copied, []
            return
        for storage in storages:
            storage.allocate()
        with _after_current_stream(self._to_device):
            for storage in reversed(storages):  # as the backward pass needs them
                storage.copy_to_device(self._to_device)


class Offload:
    """Offloading of one chunk's Megatron-Core TransformerBlock. Byte counts are those of the last microbatch."""

    def __init__(self, block: TransformerBlock, ratio: float, transfers: Transfers) -> None:
        self.kept_bytes = self.offloaded_bytes = 0
        self._block, self._ratio, self._transfers = block, ratio, transfers
        self._forward, block.forward = block.forward, self.forward

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the block and choose the saved tensors to offload."""
        saved = _SavedTensors(self._transfers, {_key(parameter) for parameter in self._block.parameters()})
        with saved_tensors_hooks(saved.pack, saved.unpack):
            output: object = self._forward(*args, **kwargs)
        # The schedule holds the block's input until its gradient is sent. Megatron-Core always holds the rotary angles.
        others = [self._block.input_tensor, *(value for name, value in kwargs.items() if name != "hidden_states")]
        fixed = {_key(value) for value in others if isinstance(value, torch.Tensor)}
        movable = [storage for key, storage in saved.storages.items() if key not in fixed]
        self.kept_bytes = sum(storage.size_bytes for storage in saved.storages.values())
        ratio = self._ratio * self.kept_bytes / max(1, sum(storage.size_bytes for storage in movable))
        for storage, share in zip(movable, shares_of([s.size_bytes for s in movable], ratio), strict=True):
            storage.share_bytes = share
        saved.storages = {}  # from here on only autograd holds the storages
        saved.offloaded = [storage for storage in movable if storage.share_bytes]
        self.offloaded_bytes = sum(storage.share_bytes for storage in saved.offloaded)
        self._transfers.offload(saved, list(saved.offloaded))
        return output


class _SavedTensors:
    """Tensors that autograd saves in one forward pass of one chunk, as views of storages."""

    def __init__(self, transfers: Transfers, parameters: set[int]) -> None:
        self.storages: dict[int, _Storage] = {}
        self.offloaded: list[_Storage] = []
        self._transfers, self._parameters = transfers, parameters
        self._is_fetched = False

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
        key = _key(tensor)
        if key in self._parameters:
            return tensor
        storage = self.storages.setdefault(key, _Storage(tensor.untyped_storage()))
        return partial(_view, storage, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())

    def unpack(self, packed: torch.Tensor | Callable[[], torch.Tensor]) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        if not self._is_fetched:
            self._is_fetched = True
            self._transfers.fetch(self)
        return packed()


def _view(
    storage: _Storage, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int | torch.SymInt
) -> torch.Tensor:
    data = storage.data()
    return torch.empty(0, dtype=dtype, device=data.device).set_(data, offset, size, stride)


class _Storage:
    """Memory of saved tensors. Its first `share_bytes` may be on the host."""

    def __init__(self, data: torch.UntypedStorage) -> None:
        self.size_bytes = data.nbytes()
        self.share_bytes = 0
        self._data: torch.UntypedStorage | None = data
        self._device = data.device
        self._rest: torch.Tensor | None = None
        self._host: list[torch.Tensor] = []
        self._on_host: torch.cuda.Event | None = None
        self._on_device: torch.cuda.Event | None = None

    def data(self) -> torch.UntypedStorage:
        """Return the memory for later work on the device's current stream."""
        if self._on_device is not None:
            self._on_device.wait()
        assert self._data is not None
        return self._data

    def copy_to_host(self, stream: torch.cuda.Stream | None) -> None:
        """Copy the share to the host on the current stream, without waiting for the copy."""
        for piece in self._pieces():
            self._host.append(torch.empty(piece.numel(), dtype=torch.uint8, pin_memory=stream is not None))
            self._host[-1].copy_(piece, non_blocking=True)
        self._on_host = None if stream is None else stream.record_event()

    def wait_for_copy(self) -> None:
        """Make the current stream wait for the copy to the host, so that it may reuse the memory."""
        if self._on_host is not None:
            self._on_host.wait()

    def free(self) -> None:
        """Free the device memory, except the part that is not on the host."""
        self.wait_for_copy()
        if self.share_bytes < self.size_bytes:
            self._rest = _bytes_of(self.data())[self.share_bytes :].clone()
        self._data = None

    def allocate(self) -> None:
        """Allocate device memory again and restore the part that was not offloaded."""
        whole = torch.empty(self.size_bytes, dtype=torch.uint8, device=self._device)
        if self._rest is not None:
            whole[self.share_bytes :].copy_(self._rest)
        self._data, self._rest = whole.untyped_storage(), None

    def copy_to_device(self, stream: torch.cuda.Stream | None) -> None:
        """Copy the share back from the host on the current stream, without waiting for the copy."""
        for piece, host in zip(self._pieces(), self._host, strict=True):
            piece.copy_(host, non_blocking=True)
        self._host, self._on_device = [], None if stream is None else stream.record_event()

    def _pieces(self) -> Sequence[torch.Tensor]:
        return torch.split(_bytes_of(self.data())[: self.share_bytes], _PIECE_BYTES)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _after_current_stream(stream: torch.cuda.Stream | None) -> torch.cuda.StreamContext:
    """Return a context whose work runs on `stream`, after all earlier work of the current stream."""
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
    return torch.cuda.stream(stream)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _key(tensor: torch.Tensor) -> int:
    """Return the identity of the tensor's memory, valid while the memory exists."""
    return int(tensor.untyped_storage()._cdata)
