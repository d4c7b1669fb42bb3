"""Initial weights that do not depend on the layout, so that two layouts of one model can be compared."""

from __future__ import annotations

import hashlib
import math

import torch
from megatron.core import parallel_state

from orchestrator.pretrain.arguments import TrainingArguments

_STANDARD_DEVIATION = 0.02
# The projections that add to the residual stream start smaller, by sqrt(2 * layers), as in GPT-2.
_INTO_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")


@torch.no_grad()
def fill_weights(chunk: torch.nn.Module, arguments: TrainingArguments) -> None:
    """Give each matrix its slice of one full matrix drawn from its name in the whole model; same device, same draw.

    Biases and norms keep the zeros and ones that they are built with.
    """
    for local_name, parameter in chunk.named_parameters():
        if parameter.ndim < 2:
            continue
        name = _name_in_model(chunk, local_name, tied=not arguments.untie_embeddings_and_output_weights)
        scale = math.sqrt(2.0 * arguments.num_layers) if name.endswith(_INTO_RESIDUAL) else 1.0
        parameter.copy_(_draw(name, parameter, arguments.seed).mul_(_STANDARD_DEVIATION / scale))


def _name_in_model(chunk: torch.nn.Module, local_name: str, *, tied: bool) -> str:
    """The parameter's name in a model on one rank: layers counted over all stages, one name for tied matrices."""
    if tied and local_name == "output_layer.weight":
        return "embedding.word_embeddings.weight"
    if not local_name.startswith("decoder.layers."):
        return local_name
    _, _, index, rest = local_name.split(".", 3)
    layer = chunk.get_submodule(f"decoder.layers.{index}")
    return f"decoder.layers.{int(layer.layer_number) - 1}.{rest}"  # type: ignore[arg-type]


def _draw(name: str, parameter: torch.Tensor, seed: int) -> torch.Tensor:
    """This tensor-parallel rank's slice of the full matrix, standard normal, in fp32."""
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
    # A gated linear unit has two matrices in one, its gate and its linear part, and each rank a slice of either.
    parts = full.chunk(int(getattr(parameter, "partition_stride", 1)), partition_dim)
    return torch.cat([part.chunk(ranks, partition_dim)[rank] for part in parts], partition_dim)
