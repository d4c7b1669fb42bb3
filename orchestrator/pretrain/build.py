"""Model and optimizer of a run: model chunks inside Megatron-Core's data parallelism, and Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.pretrain import model
from orchestrator.pretrain.arguments import TrainingArguments
from orchestrator.pretrain.layout import Layout


@dataclass(frozen=True)
class ModelAndOptimizer:
    """The model's chunks on this rank (Megatron-Core DistributedDataParallel), their optimizer and configuration."""

    chunks: list[DistributedDataParallel]
    optimizer: MegatronOptimizer
    config: TransformerConfig

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters on this rank, over all its chunks."""
        return sum(parameter.numel() for chunk in self.chunks for parameter in chunk.parameters())


def start_model_parallel(layout: Layout, seed: int, *, recordable: bool = False) -> None:
    """Create the process groups and seed this rank's random states. `recordable` states work in a CUDA graph."""
    parallel_state.initialize_model_parallel(
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.virtual_stages if layout.virtual_stages > 1 else None,
        context_parallel_size=layout.context_parallel,
        create_gloo_process_groups=False,
    )
    torch.manual_seed(seed)
    # Dropout differs between pipeline stages, as Megatron-LM seeds it.
    model_parallel_cuda_manual_seed(
        seed + 100 * parallel_state.get_pipeline_model_parallel_rank(), use_cudagraphable_rng=recordable
    )


def build(arguments: TrainingArguments, layout: Layout, device: torch.device) -> ModelAndOptimizer:
    """Build model, data parallelism and optimizer in the process groups of `start_model_parallel`."""
    config = model.transformer_config(arguments, layout, device)
    chunks = wrap_chunks(arguments, config, model.build_chunks(arguments, layout, config, device))
    optimizer = _build_optimizer(arguments, config, chunks, device)
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    connect_overlap(arguments, config, chunks)
    return ModelAndOptimizer(chunks=chunks, optimizer=optimizer, config=config)


def wrap_chunks(
    arguments: TrainingArguments, config: TransformerConfig, chunks: list[torch.nn.Module]
) -> list[DistributedDataParallel]:
    """Wrap each chunk in Megatron-Core's DistributedDataParallel."""
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=arguments.use_distributed_optimizer,
        overlap_grad_reduce=arguments.overlap_grad_reduce,
        overlap_param_gather=arguments.overlap_param_gather,
    )
    # Only the first chunk needs buckets: the reductions of the others end before its backward pass.
    wrapped = [
        DistributedDataParallel(config, ddp_config, chunk, disable_bucketing=i > 0) for i, chunk in enumerate(chunks)
    ]
    for chunk in wrapped:
        chunk.train()
    return wrapped


def _build_optimizer(
    arguments: TrainingArguments, config: TransformerConfig, chunks: list[DistributedDataParallel], device: torch.device
) -> MegatronOptimizer:
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=arguments.lr,
            clip_grad=arguments.clip_grad,
            bf16=arguments.bf16,
            fp16=arguments.fp16,
            loss_scale=arguments.loss_scale,
            params_dtype=config.params_dtype,
            use_distributed_optimizer=arguments.use_distributed_optimizer,
            overlap_param_gather=arguments.overlap_param_gather,
        ),
        chunks,
        use_gloo_process_groups=False,
    )
    if device.type == "cuda":
        _fuse_adam(optimizer)
    return optimizer


def _fuse_adam(optimizer: MegatronOptimizer) -> None:
    """Update each parameter group in one kernel, as apex's Adam does. torch reads the flag from the groups."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if isinstance(part.optimizer, torch.optim.AdamW):
            for group in part.optimizer.param_groups:
                group["fused"], group["foreach"] = True, False


def connect_overlap(
    arguments: TrainingArguments, config: TransformerConfig, chunks: list[DistributedDataParallel]
) -> None:
    """Give the pipeline schedule the functions that delay and start each chunk's communication."""
    if arguments.overlap_grad_reduce:
        config.no_sync_func = _one_or_all([chunk.no_sync for chunk in chunks])
        config.grad_sync_func = _one_or_all([chunk.start_grad_sync for chunk in chunks])
    if arguments.overlap_param_gather:
        config.param_sync_func = _one_or_all([chunk.start_param_sync for chunk in chunks])


def _one_or_all(functions: list[Any]) -> Any:
    """Return the list for the interleaved schedule, and the single function for the others."""
    return functions if len(functions) > 1 else functions[0]
