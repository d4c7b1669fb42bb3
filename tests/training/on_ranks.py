"""Comparison of parts of a model with Megatron-Core's or torch's.

Run `python -m tests.training.on_ranks FOLDER` on each rank. Each part is a function in CHECKS, called on every rank
of one or two. FOLDER/RANK.json has its error under its name, or None. A part communicates before its first assertion,
so that no rank waits for a rank that has failed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks

from orchestrator.pretrain import rank
from orchestrator.pretrain.arguments import RunLayout, TrainingArguments, parse_arguments
from orchestrator.pretrain.environment import find_place, set_environment
from orchestrator.pretrain.rank import prepare_megatron, start_processes, stop_processes
from tests.training.launching import SMALL_MODEL

LENGTH, BATCH, HIDDEN, WIDE, VOCABULARY = 8, 3, 16, 24, 64
CPU = torch.device("cpu")


def losses_and_gradients_equal_torchs(dtype: torch.dtype = torch.float32) -> None:
    """Each rank has a part of the vocabulary, and every rank has labels in the other's part."""
    from orchestrator.pretrain.layers import cross_entropy

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = 30 * torch.randn(LENGTH, BATCH, VOCABULARY).to(dtype).requires_grad_()  # exp() of some overflows
    labels = torch.randint(VOCABULARY, (LENGTH, BATCH))
    labels[0, :2] = torch.tensor([0, VOCABULARY - 1])
    weights = torch.rand(LENGTH, BATCH)
    expected = torch.nn.functional.cross_entropy(whole.float().flatten(0, 1), labels.flatten(), reduction="none")
    (expected_gradient,) = torch.autograd.grad((expected * weights.flatten()).sum(), whole)

    part = whole.detach().chunk(ranks, -1)[rank].clone().requires_grad_()
    logits = part * 1  # in the layout of a product's result
    place = logits.data_ptr()
    seen: list[int] = []
    logits.register_hook(lambda gradient: seen.append(gradient.data_ptr()))  # type: ignore[no-untyped-call]
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = cross_entropy(logits, labels, dist.group.WORLD)  # type: ignore[arg-type]
    torch.autograd.backward((losses * weights).sum())

    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses.flatten(), expected)
    torch.testing.assert_close(part.grad, expected_gradient.chunk(ranks, -1)[rank])
    # The only stored array of the logits' size is that of the logits; the gradient overwrites it.
    assert [tensor.data_ptr() for tensor in kept if tensor.numel() >= logits.numel()] == [place]
    assert seen == [place]


def losses_of_16_bit_logits_equal_torchs_in_fp32() -> None:
    losses_and_gradients_equal_torchs(torch.bfloat16)


def bias_in_the_product_equals_bias_added_after_it() -> None:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    from orchestrator.pretrain.layers import BiasedColumnParallelLinear

    for fuses in (False, True):
        ours, theirs = (
            _trained(kind, (HIDDEN, WIDE), {"gather_output": False}, fuses=fuses)
            for kind in (BiasedColumnParallelLinear, ColumnParallelLinear)
        )
        _assert_same(ours, theirs)
        assert ours["bias"].abs().sum() > 0 and ours["weight"].abs().sum() > 0


def a_skipped_product_changes_no_gradient() -> None:
    from orchestrator.pretrain.layers import SkippableRowParallelLinear

    for fuses in (False, True):
        options = {"input_is_parallel": True, "skip_bias_add": True}
        computed, skipped = (
            _trained(SkippableRowParallelLinear, (WIDE, HIDDEN), options, fuses=fuses, computes=computes)
            for computes in (True, False)
        )
        values, nothing = computed.pop("output"), skipped.pop("output")
        _assert_same(skipped, computed)
        assert computed["weight"].abs().sum() > 0
        assert (values.shape, values.dtype) == (nothing.shape, nothing.dtype)


def _trained(
    kind: Any, sizes: tuple[int, int], options: dict[str, bool], *, fuses: bool, computes: bool = True
) -> dict[str, torch.Tensor]:
    """Return output and gradients of one layer, sequence-parallel on two ranks. `fuses`: into an fp32 buffer."""
    torch.manual_seed(1 + dist.get_rank())
    config = _config("--sequence-parallel")
    config.gradient_accumulation_fusion = fuses
    layer = kind(*sizes, config=config, init_method=lambda _: None, bias=True, **{"skip_bias_add": False} | options)
    layer.computes = computes
    for parameter in layer.parameters():
        parameter.data.normal_()
        parameter.main_grad = torch.ones_like(parameter)
    is_column = options.get("gather_output") is False
    length, width = (LENGTH // dist.get_world_size(), sizes[0]) if is_column else (LENGTH, layer.weight.size(1))
    x = torch.randn(length, BATCH, width).requires_grad_()
    output, _ = layer(x)
    torch.autograd.backward(output, torch.randn(output.shape))
    results = {
        "output": output.detach(),
        "input": x.grad,
        "weight": layer.weight.main_grad if fuses else layer.weight.grad,
    }
    if layer.bias.grad is not None:
        results["bias"] = layer.bias.grad
    return results


def _assert_same(results: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert results.keys() == expected.keys()
    for name, value in results.items():
        torch.testing.assert_close(value, expected[name], msg=partial("{}: {}".format, name))


# Products that each kind of full recomputation computes again in 4 layers: those of the second feed-forward matrix, and
# those of the attention's output.
RECOMPUTED = {
    "": (0, 0),
    "--recompute-granularity full": (0, 4),
    "--recompute-granularity full --recompute-num-layers 2": (2, 4),
    "--recompute-granularity full --recompute-num-layers 4": (3, 4),
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2": (0, 2),
}


def recomputation_skips_the_last_product_of_a_segment() -> None:
    from megatron.core.tensor_parallel.layers import RowParallelLinear

    results = {}
    for flags in RECOMPUTED:
        counted: dict[int, int] = {}
        plain = RowParallelLinear._forward_impl

        def count(self: Any, *args: Any, counted: dict[int, int] = counted, plain: Any = plain, **options: Any) -> Any:
            counted[id(self)] = counted.get(id(self), 0) + 1
            return plain(self, *args, **options)

        with mock.patch.object(RowParallelLinear, "_forward_impl", count):
            chunk = _chunk(flags)
            torch.autograd.backward(_losses(chunk).sum())
        layers = chunk.decoder.layers
        results[flags] = tuple(
            sum(counted[id(linear)] - 1 for linear in linears)
            for linears in (
                [layer.mlp.linear_fc2 for layer in layers],
                [layer.self_attention.linear_proj for layer in layers],
            )
        )
        assert all(layer.mlp.linear_fc2.computes for layer in layers), "a forward pass would have no result after it"
    assert results == RECOMPUTED


def the_skipped_product_is_never_read() -> None:
    from orchestrator.pretrain import layers

    results = []
    for flags in ("", "--recompute-granularity full", "--recompute-granularity full --recompute-num-layers 2"):
        with _not_a_number(layers._NoProduct):
            chunk = _chunk(flags)
            torch.autograd.backward(_losses(chunk).sum())
        results.append([parameter.grad for parameter in chunk.parameters()])
    for gradients in results[1:]:
        assert all(torch.equal(gradient, expected) for gradient, expected in zip(gradients, results[0], strict=True))


@contextmanager
def _not_a_number(no_product: Any) -> Iterator[None]:
    plain = no_product.forward

    def forward(*args: Any) -> torch.Tensor:
        output: torch.Tensor = plain(*args)
        return output.fill_(torch.nan)

    with mock.patch.object(no_product, "forward", staticmethod(forward)):
        yield


def recomputed_layers_keep_no_activations() -> None:
    """Each kind of recomputation keeps the wide activations of the right layers."""
    alive = {}
    for flags in RECOMPUTED:
        chunk = _chunk(flags)
        kept: list[Any] = []
        for layer in chunk.decoder.layers:
            layer.mlp.linear_fc2.register_forward_pre_hook(
                lambda _, inputs, kept=kept: kept.append(weakref.ref(inputs[0].untyped_storage()))
            )
        losses = _losses(chunk)
        alive[flags] = [reference() is not None for reference in kept]
        torch.autograd.backward(losses.sum())
    assert list(alive.values()) == [[True] * 4, *[[False] * 4] * 3, [False, False, True, True]]


def _config(flags: str) -> Any:
    from orchestrator.pretrain import model

    arguments = _arguments(flags)
    return model.transformer_config(arguments, RunLayout.of(arguments, dist.get_world_size()), CPU)


def _chunk(flags: str) -> Any:
    """Return the small model, sequence-parallel on two ranks."""
    from orchestrator.pretrain import model

    arguments = _arguments(flags + " --sequence-parallel")
    layout = RunLayout.of(arguments, dist.get_world_size())
    (chunk,) = model.build_chunks(arguments, layout, model.transformer_config(arguments, layout, CPU), CPU)
    return chunk.train()


def _arguments(flags: str) -> TrainingArguments:
    return parse_arguments([*SMALL_MODEL, *flags.split(), "--tensor-model-parallel-size", str(dist.get_world_size())])


def _losses(chunk: Any) -> torch.Tensor:
    tokens = torch.arange(16).unsqueeze(0)
    losses: torch.Tensor = chunk(tokens, tokens, None, labels=tokens + 1)
    return losses


CHECKS: list[Callable[[], None]] = [
    losses_and_gradients_equal_torchs,
    losses_of_16_bit_logits_equal_torchs_in_fp32,
    bias_in_the_product_equals_bias_added_after_it,
    a_skipped_product_changes_no_gradient,
    recomputation_skips_the_last_product_of_a_segment,
    the_skipped_product_is_never_read,
    recomputed_layers_keep_no_activations,
]


def _fuse_weight_gradient() -> None:
    """Let Megatron-Core's layers add weight gradients in the GEMM, as on a GPU.

    They look for the extension when they are imported, which the fork server has done without it.
    """
    from megatron.core.tensor_parallel import layers

    rank.fuse_weight_gradient()
    layers.fused_weight_gradient_mlp_cuda = sys.modules["fused_weight_gradient_mlp_cuda"]
    layers._grad_accum_fusion_available = True


def main(folder: str) -> None:
    place = find_place(os.environ)
    set_environment(os.environ, place)
    device = start_processes(place)
    prepare_megatron(device)
    _fuse_weight_gradient()
    from orchestrator.pretrain.model import start_model_parallel

    arguments = _arguments("")
    start_model_parallel(RunLayout.of(arguments, place.world_size), arguments.seed)
    results: dict[str, str | None] = {}
    for check in CHECKS:
        torch.manual_seed(1)
        try:
            check()
        except Exception:
            results[check.__name__] = traceback.format_exc()
        else:
            results[check.__name__] = None
    (Path(folder) / f"{place.rank}.json").write_text(json.dumps(results))
    stop_processes(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
