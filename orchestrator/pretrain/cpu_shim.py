"""Run Megatron-Core 0.16 on CPU: what it asks of torch.cuda goes to the CPU.

Megatron-Core has no CPU device of its own; it names "cuda" in some 60 places. The replacements are permanent for the
process. A TorchFunctionMode would be tidier, but autograd switches modes off in a backward pass, and activation
recomputation runs forward code inside one.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

CPU = torch.device("cpu")
_FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange", "rand", "randn", "randint")


def install() -> None:
    """Replace the torch.cuda calls. Raises RuntimeError where a GPU is there to be used."""
    if torch.cuda.is_available():
        raise RuntimeError("the CPU shim is for machines without a GPU")
    _replace_queries()
    _replace_factories()
    _import_uncompiled()
    _replace_random_state()
    _replace_type_names()


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _import_uncompiled() -> None:
    """Import Megatron-Core, leaving the functions that it decorates with torch.compile as they are.

    They are not used on CPU, and the decorator alone costs each process seconds.
    """
    compile_before = torch.compile
    _set(torch, "compile", lambda model=None, **_: model if model is not None else lambda function: function)
    try:
        import megatron.core.distributed
        import megatron.core.models.gpt
        import megatron.core.optimizer
        import megatron.core.pipeline_parallel  # noqa: F401
    finally:
        _set(torch, "compile", compile_before)


def _replace_queries() -> None:
    _set(torch.cuda, "current_device", lambda: CPU)
    for name in ("synchronize", "empty_cache", "current_stream"):
        _set(torch.cuda, name, lambda *_, **__: None)


def _replace_factories() -> None:
    """Send `device="cuda"` and `.cuda()` to the CPU."""
    torch.utils._device._device_constructors()  # it caches the list of factories, which must be the plain ones
    for name in _FACTORIES:
        factory = getattr(torch, name)
        if not hasattr(factory, "__wrapped__"):
            _set(torch, name, _on_cpu(factory))
    _set(torch.Tensor, "cuda", lambda self, *_, **__: self)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if (isinstance(device, str) and device.startswith("cuda")) or getattr(device, "type", None) == "cuda":
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)  # which takes a GPU to pin it for
        return factory(*args, **kwargs)

    return make


def _replace_random_state() -> None:
    """One CPU generator plays both the CPU's and the GPU's part; Megatron's tracker still forks it per region."""
    import megatron.core.tensor_parallel.random as megatron_random

    # It would say so in every region that draws.
    logging.getLogger(megatron_random.__name__).addFilter(
        lambda record: "CPU RNG state changed within GPU RNG context" not in record.getMessage()
    )
    _set(torch.cuda, "manual_seed", torch.manual_seed)
    _set(torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state())
    _set(megatron_random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state())
    _set(megatron_random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state))


def _replace_type_names() -> None:
    """Megatron's optimizers accept only parameters whose type is called torch.cuda.*Tensor."""
    plain_type = torch._C.TensorBase.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return plain_type(self, *args, **kwargs)
        return str(plain_type(self)).replace("torch.", "torch.cuda.", 1)

    _set(torch.Tensor, "type", type_name)
