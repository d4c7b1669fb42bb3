"""One rank of a run: checks before training, patches of Megatron-Core, imports, process group, training.

Megatron-Core has no CPU device: it names "cuda" in some 60 places. Without a GPU the patches send these calls to the
CPU, permanently for the process. A TorchFunctionMode is no alternative: autograd disables modes in a backward pass, and
activation recomputation runs forward code inside a backward pass.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import cache, wraps
from importlib import import_module
from types import ModuleType

import torch
import torch.distributed as dist
import torch.utils._device

from orchestrator.pretrain.arguments import TrainingArguments, refusals
from orchestrator.pretrain.environment import Place, missing_gpu_reason

EXIT_REFUSED = 2

_TIMEOUT = timedelta(minutes=10)

# Warnings that Megatron-Core causes in each process of every run.
_EXPECTED_WARNINGS = (
    "Transformer Engine and Apex are not installed",
    "Apex is not installed",
    "full scope is deprecated",
    r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed",
    r"`torch\.distributed\.\w+` is deprecated",
)


def is_refused(arguments: TrainingArguments, place: Place, *, prints: bool) -> bool:
    """Return whether the run cannot work in this place. With `prints`, print every reason to stderr.

    A missing GPU is always printed: it may be missing on one node only.
    """
    reasons = refusals(arguments, place.world_size, on_gpu=torch.cuda.is_available())
    printed = reasons if prints else []
    if not reasons:
        reason = missing_gpu_reason(place, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        reasons = printed = [reason] if reason else []
    for reason in printed:
        print(f"pretrain: error: {reason}", file=sys.stderr, flush=True)
    return bool(reasons)


def import_megatron() -> None:
    """Import Megatron-Core, the training loop and torch's compiler. CUDA is not initialised.

    torch uses the compiler even if nothing is compiled: in its checkpoints and optimizers.
    """
    prepare_megatron(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    import_module("torch._dynamo")
    import_module("orchestrator.pretrain.train")


def train_rank(arguments: TrainingArguments, place: Place, store_port: int | None = None) -> None:
    """Join the process group, train, and wait for all ranks. `store_port` is the port of the launcher's store.

    The process must then end by `os._exit`: its communicators still exist.
    """
    device = start_processes(place, store_port)
    prepare_megatron(device)
    from orchestrator.pretrain.train import pretrain

    pretrain(arguments, device)
    stop_processes(device)


def start_processes(place: Place, store_port: int | None = None) -> torch.device:
    """Join the process group (NCCL on GPUs, gloo on CPU) and return this rank's device.

    The ranks meet at the launcher's store on this host if `store_port` is given, else at MASTER_ADDR.
    """
    if torch.cuda.is_available():
        # A task bound to one GPU sees only that GPU, whatever its local rank.
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        device = torch.device("cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    if store_port is None:
        dist.init_process_group(backend, timeout=_TIMEOUT)
    else:
        store = dist.TCPStore("127.0.0.1", store_port, is_master=False, timeout=_TIMEOUT)  # type: ignore[attr-defined]
        dist.init_process_group(backend, timeout=_TIMEOUT, store=store, rank=place.rank, world_size=place.world_size)
    return device


def stop_processes(device: torch.device) -> None:
    """Wait until no rank needs another one. Then a process can end without destroying its communicators.

    NCCL takes 0.2 s to destroy one of them. After the barrier a GPU may still write into the memory of another, so the
    ranks also meet at the store. Its host may be rank 0, which therefore leaves last.
    """
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    store, ranks = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    if store.add("ranks without work", 1) == ranks:
        store.set("no rank has work", "")
    store.wait(["no rank has work"])
    if dist.get_rank() == 0 and ranks > 1:
        store.wait(["the others have left"])
    elif store.add("ranks that left", 1) == ranks - 1:
        store.set("the others have left", "")


@cache
def prepare_megatron(device: torch.device) -> None:
    """Install the patches that Megatron-Core needs on this device. Must run before Megatron-Core is imported.

    A forked rank inherits the patches of the launcher.
    """
    for message in _EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    if device.type == "cuda":
        fuse_weight_gradient()
    else:
        # torch's CUDA build logs in each process that there is no GPU.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        redirect_cuda()


_FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange", "rand", "randn", "randint")
_EXTENSION = "fused_weight_gradient_mlp_cuda"


def redirect_cuda(device: torch.device | None = None) -> None:
    """Send Megatron-Core's CUDA calls to `device`, the CPU by default. Raise RuntimeError if a GPU is usable."""
    if torch.cuda.is_available():
        raise RuntimeError("only machines without a GPU redirect CUDA calls to the CPU")
    target = device or torch.device("cpu")
    _set(torch.cuda, "current_device", lambda: target)
    for name in ("synchronize", "empty_cache", "current_stream"):
        _set(torch.cuda, name, lambda *_, **__: None)
    _replace_factories(target)
    _import_uncompiled()
    _replace_random_state()
    _replace_type_names()


def _set(owner: object, name: str, value: object) -> None:
    """Replace an attribute of a module or class."""
    setattr(owner, name, value)


def _replace_factories(device: torch.device) -> None:
    """Send `device="cuda"` and `.cuda()` to the device."""
    torch.utils._device._device_constructors()  # caches the list of factories, which must be the plain ones
    for name in _FACTORIES:
        factory = getattr(torch, name)
        if not hasattr(factory, "__wrapped__"):
            _set(torch, name, _on_device(factory, device))
    _set(torch.Tensor, "cuda", lambda self, *_, **__: self)


def _on_device(factory: Callable[..., torch.Tensor], target: torch.device) -> Callable[..., torch.Tensor]:
    @wraps(factory)
    def make(*args: object, **kwargs: object) -> torch.Tensor:
        device = kwargs.get("device")
        if (isinstance(device, str) and device.startswith("cuda")) or getattr(device, "type", None) == "cuda":
            kwargs["device"] = target
        kwargs.pop("pin_memory", None)  # pinning needs a GPU
        return factory(*args, **kwargs)

    return make


def _import_uncompiled() -> None:
    """Import Megatron-Core without compiling the functions that it decorates with torch.compile.

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


def _replace_random_state() -> None:
    """Use one CPU generator for both the CPU and the GPU. Megatron's tracker still forks it per region."""
    import megatron.core.tensor_parallel.random as megatron_random

    # Megatron-Core would print this warning in every region that draws random numbers.
    logging.getLogger(megatron_random.__name__).addFilter(
        lambda record: "CPU RNG state changed within GPU RNG context" not in record.getMessage()
    )
    _set(torch.cuda, "manual_seed", torch.manual_seed)
    _set(torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state())
    _set(megatron_random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state())
    _set(megatron_random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state))


def _replace_type_names() -> None:
    """Report tensor types as torch.cuda.*Tensor: Megatron's optimizers accept no other parameters."""
    plain_type: Callable[..., object] = torch._C.TensorBase.type

    def type_name(self: torch.Tensor, *args: object, **kwargs: object) -> object:
        if args or kwargs:
            return plain_type(self, *args, **kwargs)
        return str(plain_type(self)).replace("torch.", "torch.cuda.", 1)

    _set(torch.Tensor, "type", type_name)


def fuse_weight_gradient() -> None:
    """Provide apex's weight-gradient extension if it is missing. Must run before Megatron-Core's layers are imported.

    The extension adds weight gradients to the fp32 gradient buffer inside the GEMM.
    """
    try:
        __import__(_EXTENSION)
    except ImportError:
        module = ModuleType(_EXTENSION)
        for name in ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"):
            _set(module, name, accumulate_weight_gradient)
        sys.modules[_EXTENSION] = module


def accumulate_weight_gradient(inputs: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
    """Add grad_output^T x inputs to `main_grad` in place.

    inputs [..., in] and grad_output [..., out] have the model's precision; main_grad [out, in] is fp32. On a GPU the
    product of 16-bit factors is summed in fp32 without a temporary (torch >= 2.8); elsewhere it is a product and a sum.
    """
    inputs = inputs.reshape(-1, inputs.shape[-1])
    grad_output = grad_output.reshape(-1, grad_output.shape[-1])
    if inputs.is_cuda and inputs.dtype != torch.float32 and hasattr(torch.ops.aten.addmm, "dtype_out"):
        torch.ops.aten.addmm.dtype_out(main_grad, grad_output.t(), inputs, torch.float32, out=main_grad)
    else:
        main_grad.add_(grad_output.t() @ inputs)
