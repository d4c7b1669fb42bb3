"""Layout of a model over GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes and batch sizes of one job.

    `virtual_stages` is the number of model chunks per pipeline stage (SC21's v); 1 is the plain 1F1B schedule.
    `expert_tensor_parallel` is `tensor_parallel` unless given. Batch sizes count sequences.
    """

    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    micro_batch_size: int
    global_batch_size: int
    virtual_stages: int = 1
    context_parallel: int = 1
    sequence_parallel: bool = False
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None

    @property
    def model_parallel(self) -> int:
        """GPUs of one replica of the model."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel(self) -> int:
        """Data-parallel size; 0 if a replica needs more GPUs than there are."""
        return self.gpus // self.model_parallel

    @property
    def microbatches(self) -> int:
        """Microbatches per pipeline and iteration (SC21's m)."""
        return self.global_batch_size // max(1, self.micro_batch_size * self.data_parallel)

    def bubble(self) -> float:
        """Return the pipeline bubble as a fraction of the ideal time: SC21 2.2, `(p - 1) / (v m)`."""
        return (self.pipeline_parallel - 1) / (self.virtual_stages * max(1, self.microbatches))
