"""The GPT or Llama of a run as Megatron-Core modules: its configuration, its layers and its chunks on this rank."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import silu

from orchestrator.pretrain.activation import use_activation
from orchestrator.pretrain.arguments import TrainingArguments
from orchestrator.pretrain.attention import CausalAttention
from orchestrator.pretrain.checkpoint import recompute_layers
from orchestrator.pretrain.initial_weights import fill_weights
from orchestrator.pretrain.layout import Layout
from orchestrator.pretrain.linear import BiasedColumnParallelLinear, SkippableRowParallelLinear
from orchestrator.pretrain.loss import cross_entropy
from orchestrator.pretrain.norms import NORMS
from orchestrator.pretrain.offload import Offload, Transfers
from orchestrator.pretrain.pipeline import communication_options
from orchestrator.pretrain.recompute import recompute_activations, recompute_norms

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_chunks(
    arguments: TrainingArguments, layout: Layout, config: Any, device: torch.device
) -> list[torch.nn.Module]:
    """This rank's chunks of the model, one for each virtual stage, on `device` with their initial weights."""
    chunks = []
    transfers = Transfers(device) if arguments.offload_activation_ratio else None
    for stage in range(layout.virtual_stages):
        chunk = _build_chunk(arguments, config, stage if layout.virtual_stages > 1 else None).to(device)
        fill_weights(chunk, arguments)
        _adapt_layers(chunk, arguments, transfers)
        chunks.append(chunk if arguments.precision == "fp32" else Float16Module(config, chunk))
    return chunks


def transformer_config(arguments: TrainingArguments, layout: Layout, device: torch.device) -> Any:
    """Megatron-Core's TransformerConfig, which holds the layout and the choice of kernels beside the model's sizes."""
    dtype = _DTYPES[arguments.precision]
    return TransformerConfig(
        num_layers=arguments.num_layers,
        hidden_size=arguments.hidden_size,
        num_attention_heads=arguments.num_attention_heads,
        num_query_groups=arguments.query_groups,
        ffn_hidden_size=arguments.ffn_hidden_size or 4 * arguments.hidden_size,
        normalization=arguments.normalization,
        add_bias_linear=not arguments.disable_bias_linear,
        **_activation_options(arguments),
        hidden_dropout=arguments.hidden_dropout,
        attention_dropout=arguments.attention_dropout,
        bf16=arguments.bf16,
        fp16=arguments.fp16,
        params_dtype=dtype,
        autocast_dtype=dtype,
        # fill_weights overwrites the weights, but only the initialization marks the sharded ones, without which
        # gradient norms count wrongly.
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


def _activation_options(arguments: TrainingArguments) -> dict[str, Any]:
    return {"activation_func": silu, "gated_linear_unit": True} if arguments.swiglu else {}


def _fusion_options(arguments: TrainingArguments, device: torch.device) -> dict[str, Any]:
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


def _recompute_options(arguments: TrainingArguments) -> dict[str, Any]:
    if arguments.recompute_granularity == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": arguments.recompute_method or "uniform",
            "recompute_num_layers": arguments.recompute_num_layers or 1,
        }
    if arguments.recompute_granularity == "selective":
        modules = sorted(arguments.selected_modules - {"layernorm"})  # which we recompute ourselves
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    return {}


def _build_chunk(arguments: TrainingArguments, config: Any, virtual_stage: int | None) -> torch.nn.Module:
    where = {} if virtual_stage is None else {"ignore_virtual": False, "vp_stage": virtual_stage}
    model: torch.nn.Module = GPTModel(
        config,
        _block_spec(arguments, config, virtual_stage),
        vocab_size=arguments.padded_vocab_size,
        max_sequence_length=arguments.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**where),
        post_process=parallel_state.is_pipeline_last_stage(**where),
        share_embeddings_and_output_weights=not arguments.untie_embeddings_and_output_weights,
        position_embedding_type=arguments.position_embedding_type,
        vp_stage=virtual_stage,
    )
    if config.cross_entropy_loss_fusion:
        model.compute_language_model_loss = _token_losses  # type: ignore[assignment]
    return model


def _token_losses(labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Losses [b, s] from labels [b, s] and this rank's logits [s, b, vocabulary / t]."""
    group = parallel_state.get_tensor_model_parallel_group()
    return cross_entropy(logits, labels.t().contiguous(), group).t().contiguous()


def _block_spec(arguments: TrainingArguments, config: Any, virtual_stage: int | None) -> Any:
    """The layers of one chunk: Megatron-Core's own spec without Transformer Engine, with our norm and attention."""
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


def _adapt_layers(chunk: Any, arguments: TrainingArguments, transfers: Transfers | None) -> None:
    """Have the chunk's layers use our activation, and recompute and offload what the arguments ask for."""
    use_activation(chunk.decoder)
    if arguments.recompute_granularity == "full":
        recompute_layers(chunk.decoder, arguments.recompute_method or "uniform", arguments.recompute_num_layers or 1)
    if arguments.recomputes_norms:
        recompute_norms(chunk.decoder)
    if arguments.recompute_activation_func:
        recompute_activations(chunk.decoder)
    if transfers:
        chunk.decoder.offload = Offload(chunk.decoder, arguments.offload_activation_ratio, transfers)
