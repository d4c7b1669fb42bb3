"""A job whose time is predicted, with the sizes that one of its GPUs holds, computes and sends."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.training import Training
from orchestrator.planning.time_constants import Habits, Rates


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A job, the habits of its program and the rates of its machine: everything that a formula of its time needs."""

    model: ModelShape
    layout: Layout
    training: Training
    habits: Habits
    machine: Rates

    @property
    def tokens(self) -> float:
        """Tokens of one microbatch on one GPU."""
        return self.layout.micro_batch_size * self.model.seq / self.layout.context_parallel

    @property
    def word(self) -> int:
        """Bytes of an activation or a weight."""
        return 4 if self.training.dtype == "fp32" else 2

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one layer's output."""
        return self.word * self.tokens * self.model.hidden

    @property
    def recomputes_all(self) -> bool:
        return self.training.recompute == "full"

    @property
    def graphed(self) -> bool:
        """Return whether kernels are started by CUDA graphs: of an iteration, or of the passes of a pipeline."""
        return self.habits.records_graph and not self.training.offload and not self.training.dropout

    @property
    def layers(self) -> float:
        """Layers of one pipeline stage."""
        return self.model.layers / self.layout.pipeline_parallel

    @property
    def parameters(self) -> float:
        """Parameters of the GPU that holds most: those of a stage's layers and of one embedding."""
        return self.layers * self.layer_weights + self.embedding_weights

    @property
    def layer_weights(self) -> float:
        """Weights of one layer that one GPU holds."""
        layout = self.layout
        expert_split = (layout.expert_tensor_parallel or layout.tensor_parallel) * layout.expert_parallel
        ffn_split = expert_split if self.model.experts else layout.tensor_parallel
        return self.model.attention_weights() / layout.tensor_parallel + self.model.ffn_weights() / ffn_split

    @property
    def embedding_weights(self) -> float:
        """Weights of the embedding, or of the output layer, that one GPU holds."""
        return self.model.vocab * self.model.hidden / self.layout.tensor_parallel

    @property
    def layer_flops(self) -> float:
        """FLOPs of one layer's weight matrices for one microbatch on one GPU, forward; of the experts a token meets."""
        model = self.model
        matrices = 3 if model.family == "llama" else 2
        experts = max(1, model.experts_per_token) * matrices * model.hidden * model.ffn_hidden
        active = experts if model.experts else model.ffn_weights()
        return 2 * self.tokens * (model.attention_weights() + active) / self.layout.tensor_parallel

    @property
    def gathered_key_bytes(self) -> float:
        """Bytes of the keys and values of whole sequences on one GPU."""
        layout = self.layout
        return 2 * self.word * self.tokens * layout.context_parallel * self.model.kv_hidden / layout.tensor_parallel

    @property
    def shards_optimizer(self) -> bool:
        """Return whether the data-parallel GPUs share the optimizer's state."""
        asked = self.training.distributed_optimizer
        return self.habits.distributed_optimizer if asked is None else asked
