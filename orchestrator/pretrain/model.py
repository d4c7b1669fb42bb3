"""Model and optimizer of a run: Megatron-Core modules with initial weights, data parallelism, and Adam."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import silu

from orchestrator.pretrain.activations import (
    Offload,
    Transfers,
    recompute_activations,
    recompute_layers,
    recompute_norms,
)
from orchestrator.pretrain.arguments import RunLayout, TrainingArguments, communication_options
from orchestrator.pretrain.layers import (
    NORMS,
    BiasedColumnParallelLinear,
    CausalAttention,
    SkippableRowParallelLinear,
    cross_entropy,
    use_activation,
)

Function = TypeVar("Function")

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_chunks(
    arguments: TrainingArguments, layout: RunLayout, config: TransformerConfig, device: torch.device
) -> list[torch.nn.Module]:
    """Build this rank's chunks of the model, one per virtual stage, on `device` with their initial weights."""
    chunks = []
    transfers = Transfers(device) if arguments.offload_activation_ratio else None
    for stage in range(layout.virtual_stages):
        chunk = _build_chunk(arguments, config, stage if layout.virtual_stages > 1 else None).to(device)
        fill_weights(chunk, arguments)
        _adapt_layers(chunk, arguments, transfers)
        chunks.append(chunk if arguments.precision == "fp32" else Float16Module(config, chunk))
    return chunks


def transformer_config(arguments: TrainingArguments, layout: RunLayout, device: torch.device) -> TransformerConfig:
    """Return Megatron-Core's TransformerConfig: model sizes, layout and choice of kernels."""
    dtype = _DTYPES[arguments.precision]
    return TransformerConfig(
        num_layers=arguments.num_layers,
        hidden_size=arguments.hidden_size,
        num_attention_heads=arguments.num_attention_heads,
        num_query_groups=arguments.query_groups,
        ffn_hidden_size=arguments.ffn_hidden_size or 4 * arguments.hidden_size,
        normalization=arguments.normalization,
        add_bias_linear=not arguments.disable_bias_linear,
        **({"activation_func": silu, "gated_linear_unit": True} if arguments.swiglu else {}),
        hidden_dropout=arguments.hidden_dropout,
        attention_dropout=arguments.attention_dropout,
        bf16=arguments.bf16,
        fp16=arguments.fp16,
        params_dtype=dtype,
        autocast_dtype=dtype,
        # fill_weights overwrites the weights, but only the initialization marks the sharded ones. Gradient norms need
        # these marks.
        perform_initialization=True,
        tensor_model_parallel_size=layout.tensor_parallel,
        context_parallel_size=layout.context_parallel,
        sequence_parallel=layout.sequence_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        virtual_pipeline_model_parallel_size=layout.virtual_stages if layout.virtual_stages > 1 else None,
        pipeline_dtype=dtype,
        **communication_options(layout, on_gpu=device.type == "cuda"),
        **_fusion_options(arguments, device),
        **_recompute_options(arguments),
    )


def _fusion_options(arguments: TrainingArguments, device: torch.device) -> dict[str, object]:
    on_gpu = device.type == "cuda"
    if arguments.swiglu:
        activation = not arguments.no_bias_swiglu_fusion
    else:  # Megatron-Core has no fused GELU without a bias
        activation = not arguments.no_bias_gelu_fusion and not arguments.disable_bias_linear
    return {
        "bias_activation_fusion": on_gpu and activation,
        "bias_dropout_fusion": on_gpu and not arguments.no_bias_dropout_fusion,
        "cross_entropy_loss_fusion": on_gpu and not arguments.no_cross_entropy_fusion,
        "gradient_accumulation_fusion": on_gpu and not arguments.no_gradient_accumulation_fusion,
        "masked_softmax_fusion": False,  # CausalAttention has no separate softmax
    }


def _recompute_options(arguments: TrainingArguments) -> dict[str, object]:
    if arguments.recompute_granularity == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": arguments.recompute_method or "uniform",
            "recompute_num_layers": arguments.recompute_num_layers or 1,
        }
    if arguments.recompute_granularity == "selective":
        modules = sorted(arguments.selected_modules - {"layernorm"})  # norms: see recompute_norms
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    return {}


def _build_chunk(arguments: TrainingArguments, config: TransformerConfig, virtual_stage: int | None) -> torch.nn.Module:
    stage_options = {} if virtual_stage is None else {"ignore_virtual": False, "vp_stage": virtual_stage}
    model: torch.nn.Module = GPTModel(
        config,
        _block_spec(arguments, config, virtual_stage),
        vocab_size=arguments.padded_vocab_size,
        max_sequence_length=arguments.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**stage_options),
        post_process=parallel_state.is_pipeline_last_stage(**stage_options),
        share_embeddings_and_output_weights=not arguments.untie_embeddings_and_output_weights,
        position_embedding_type=arguments.position_embedding_type,
        vp_stage=virtual_stage,
    )
    if config.cross_entropy_loss_fusion:
        model.compute_language_model_loss = _token_losses  # type: ignore[assignment]
    return model


def _token_losses(labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return losses [b, s] from labels [b, s] and this rank's logits [s, b, vocabulary / t]."""
    group = parallel_state.get_tensor_model_parallel_group()
    return cross_entropy(logits, labels.t().contiguous(), group).t().contiguous()


def _block_spec(
    arguments: TrainingArguments, config: TransformerConfig, virtual_stage: int | None
) -> TransformerBlockSubmodules:
    """Return the layers of one chunk: Megatron-Core's local spec with our norms, linear layers and attention."""
    layer, norm = get_gpt_layer_local_spec(), NORMS[arguments.normalization]
    layer.submodules.input_layernorm = norm
    layer.submodules.pre_mlp_layernorm = norm
    layer.submodules.self_attention.submodules.linear_qkv = BiasedColumnParallelLinear
    layer.submodules.mlp.submodules.linear_fc2 = SkippableRowParallelLinear
    layer.submodules.self_attention.submodules.core_attention = ModuleSpec(
        module=CausalAttention,
        params={
            "backend": arguments.attention_backend,
            "copies_value": arguments.position_embedding_type == "rope",
        },
    )
    num_layers = get_num_layers_to_build(config, vp_stage=virtual_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=norm)


def _adapt_layers(chunk: GPTModel, arguments: TrainingArguments, transfers: Transfers | None) -> None:
    """Make the chunk's layers use our activation, and recompute and offload as the arguments require."""
    use_activation(chunk.decoder)
    if arguments.recompute_granularity == "full":
        recompute_layers(chunk.decoder, arguments.recompute_method or "uniform", arguments.recompute_num_layers or 1)
    if arguments.recomputes_norms:
        recompute_norms(chunk.decoder)
    if arguments.recompute_activation_func:
        recompute_activations(chunk.decoder)
    if transfers:
        chunk.decoder.offload = Offload(chunk.decoder, arguments.offload_activation_ratio, transfers)


_STANDARD_DEVIATION = 0.02
# The projections that add to the residual stream start smaller, by sqrt(2 * layers), as in GPT-2.
_INTO_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")


@torch.no_grad()
def fill_weights(chunk: torch.nn.Module, arguments: TrainingArguments) -> None:
    """Fill each matrix with this rank's slice of a full random matrix, seeded by the matrix's name in the whole model.

    The weights do not depend on the layout, so runs of different layouts on the same kind of device are comparable.
    Biases and norms keep the zeros and ones of their construction.
    """
    for local_name, parameter in chunk.named_parameters():
        if parameter.ndim < 2:
            continue
        name = _name_in_model(chunk, local_name, tied=not arguments.untie_embeddings_and_output_weights)
        scale = math.sqrt(2.0 * arguments.num_layers) if name.endswith(_INTO_RESIDUAL) else 1.0
        parameter.copy_(_draw(name, parameter, arguments.seed).mul_(_STANDARD_DEVIATION / scale))


def _name_in_model(chunk: torch.nn.Module, local_name: str, *, tied: bool) -> str:
    """Return the parameter's name in an unsplit model: layers counted over all stages, one name for tied matrices."""
    if tied and local_name == "output_layer.weight":
        return "embedding.word_embeddings.weight"
    if not local_name.startswith("decoder.layers."):
        return local_name
    _, _, index, rest = local_name.split(".", 3)
    layer = chunk.get_submodule(f"decoder.layers.{index}")
    return f"decoder.layers.{int(layer.layer_number) - 1}.{rest}"  # type: ignore[arg-type]


def _draw(name: str, parameter: torch.Tensor, seed: int) -> torch.Tensor:
    """Return this tensor-parallel rank's slice of the full matrix, standard normal, in fp32."""
    shape, partition_dim, ranks = list(parameter.shape), int(getattr(parameter, "partition_dim", -1)), 1
    if getattr(parameter, "tensor_model_parallel", False) and partition_dim >= 0:
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        shape[partition_dim] *= ranks
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:6], "big"))
    full = torch.randn(shape, generator=generator, device=parameter.device)
    if ranks == 1:
        return full
    rank = int(parallel_state.get_tensor_model_parallel_rank())
    # A gated linear unit stacks two matrices, gate and linear part. Each rank has a slice of both.
    parts = full.chunk(int(getattr(parameter, "partition_stride", 1)), partition_dim)
    return torch.cat([part.chunk(ranks, partition_dim)[rank] for part in parts], partition_dim)


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


def start_model_parallel(layout: RunLayout, seed: int, *, recordable: bool = False) -> None:
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


def build(arguments: TrainingArguments, layout: RunLayout, device: torch.device) -> ModelAndOptimizer:
    """Build model, data parallelism and optimizer in the process groups of `start_model_parallel`."""
    config = transformer_config(arguments, layout, device)
    chunks = wrap_chunks(arguments, config, build_chunks(arguments, layout, config, device))
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


def _one_or_all(functions: list[Function]) -> list[Function] | Function:
    """Return the list for the interleaved schedule, and the single function for the others."""
    return functions if len(functions) > 1 else functions[0]
