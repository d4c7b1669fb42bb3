"""Memory of one pipeline stage of Megatron-LM of 2021, measured on one GPU and compared with the closed form.

    python -m benchmarks.unfused_stage

One process allocates and frees the tensors of one rank of a published case in the order of Megatron-LM at 6985e58938
(SC21) or of Alpa's fork, with the kernels' tensors but not their arithmetic, and without communication. Three
iterations run. The output has the largest number of bytes that torch's tensors had, what the allocator reserved, and
the smallest cap on the reserved bytes, in steps of 1 % of the tensors, with which the iterations end.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.library import find_experiment
from orchestrator.megatron.axes import MEGATRON
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import estimate_stage
from orchestrator.megatron.model import padded_vocabulary
from orchestrator.megatron.programs import find_megatron
from orchestrator.paths import find_folders
from tests.cases import expand

CASES = (
    ("figure-17", "recompute=none,gbs=8", 0),
    ("figure-17", "recompute=none,gbs=32", 0),
    ("figure-17", "recompute=none,gbs=32", 7),
    ("figure-17", "recompute=none,gbs=32", 15),
    ("figure-17", "recompute=full,gbs=256", 0),
    ("figure-13", "pp=32,tp=2,gbs=128", 0),
    ("figure-14", "pp=4,dp=16,gbs=512", 3),
    ("table-1", "case=1.7B", 0),
    ("table-1", "case=39B", 0),
    ("table-1", "case=1T", 0),
    ("alpa-search", "case=L191", 0),
    ("alpa-search", "case=L195", 0),
    ("alpa-search", "case=L202", 3),
    ("alpa-search", "case=L205", 3),
    ("alpa-search", "case=L586", 0),
    ("alpa-search", "case=L658", 0),
    ("alpa-gpt", "gpus=4", 0),
    ("alpa-gpt", "gpus=64", 0),
)
"""Experiment, case and stage."""

_MOST_MICROBATCHES = 4
"""Microbatches of the steady phase; more repeat the same allocations."""
_STEP = 0.01
_LARGEST_CAP = 1.4


class _Softmax(torch.autograd.Function):
    """The masked softmax: keeps its result, and its gradient overwrites that of the result."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        result = torch.empty_like(scores)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _Gelu(torch.autograd.Function):
    """The fused bias and GELU: keeps its input."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(value, bias)
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        _, bias = ctx.saved_tensors
        return torch.empty_like(gradients[0]), torch.zeros_like(bias)


class _DropoutAdd(torch.autograd.Function):
    """The fused bias, dropout and residual addition: keeps a mask of one byte."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(value, dtype=torch.bool), bias)
        return torch.empty_like(residual)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, bias = ctx.saved_tensors
        return torch.empty_like(gradients[0]), torch.zeros_like(bias), gradients[0]


class _Loss(torch.autograd.Function):
    """The vocabulary-parallel cross entropy: overwrites and keeps the fp32 logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return logits.new_zeros(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Tensor:
        softmax: Tensor = ctx.saved_tensors[0]
        return softmax


@dataclass(frozen=True)
class Stage:
    """A rank of a pipeline stage of a case."""

    case: TrainingCase
    stage: int
    keeps_buffers: bool
    device: str = "cuda"

    def sizes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters, embedding first."""
        model, layout = self.case.model, self.case.layout
        h, f, t = model.hidden, model.ffn_hidden, layout.tensor_parallel
        table = (padded_vocabulary(model.vocab, t) // t, h)
        layer = [(h,), (h,), (3 * h // t, h), (3 * h // t,), (h, h // t), (h,)]
        layer += [(h,), (h,), (f // t, h), (f // t,), (h, f // t), (h,)]
        shapes: list[tuple[int, ...]] = [table, (model.seq, h)] if self.stage == 0 else []
        shapes += layer * (model.layers // layout.pipeline_parallel)
        if self.is_last:
            shapes += [(h,), (h,)] + ([] if self.stage == 0 else [table])
        return shapes

    @property
    def is_last(self) -> bool:
        """Return whether the stage has the loss."""
        return self.stage == self.case.layout.pipeline_parallel - 1

    def run(self, iterations: int = 3) -> None:
        """Run iterations; torch.cuda.OutOfMemoryError if the memory does not suffice."""
        parameters = [torch.nn.Parameter(torch.zeros(s, dtype=torch.half, device=self.device)) for s in self.sizes()]
        kept = _buffers(parameters) if self.keeps_buffers else None
        if self.case.training.ddp == "torch":  # its buckets
            kept = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        main = [parameter.detach().clone().float() for parameter in parameters]
        moments: list[Tensor] = []
        for _ in range(iterations):
            for parameter in parameters:
                parameter.grad = None
            self._schedule(parameters)
            self._step(parameters, main, moments)
        del kept

    def _step(self, parameters: list[torch.nn.Parameter], main: list[Tensor], moments: list[Tensor]) -> None:
        in_buckets = [p.grad for p in parameters if p.grad is not None]
        if not self.keeps_buffers and self.case.training.ddp == "local":  # the all-reduce flattens them
            flat = torch.cat([gradient.reshape(-1) for gradient in in_buckets])
            del flat
        in_buckets.clear()
        copies = []
        for parameter in parameters:
            gradient: Tensor | None = getattr(parameter, "main_grad", parameter.grad)
            assert gradient is not None
            copies.append(gradient.float())
            parameter.grad = gradient = None
        if not moments:
            moments += [torch.zeros_like(value) for value in (*main, *main)]

    def _schedule(self, parameters: list[torch.nn.Parameter]) -> None:
        """Run the plain 1F1B schedule (schedules.py): the outputs that were sent stay until their backward pass."""
        layout = self.case.layout
        microbatches = min(layout.microbatches, layout.pipeline_parallel - self.stage + _MOST_MICROBATCHES)
        warm_up = min(layout.pipeline_parallel - self.stage - 1, microbatches)
        inputs: list[Tensor | None] = []
        outputs: list[Tensor] = []
        for number in range(microbatches + warm_up):
            if number < microbatches:
                inputs.append(self._receive() if self.stage else None)
                outputs.append(self._forward(parameters, inputs[-1]))
            if number >= warm_up:
                received, output = inputs.pop(0), outputs.pop(0)
                if received is not None:
                    received.retain_grad()
                gradient = None if self.is_last else self._receive().detach()
                torch.autograd.backward(output, gradient)
                del received, output, gradient

    def _receive(self) -> Tensor:
        model, layout = self.case.model, self.case.layout
        shape = (model.seq, layout.micro_batch_size, model.hidden)
        elements = model.seq * layout.micro_batch_size * model.hidden
        part = torch.empty(elements // layout.tensor_parallel, dtype=torch.half, device=self.device)
        whole = torch.empty(shape, dtype=torch.half, device=self.device)
        del part
        return whole.requires_grad_()

    def _forward(self, parameters: list[torch.nn.Parameter], received: Tensor | None) -> Tensor:
        model, layout, training = self.case.model, self.case.layout, self.case.training
        left = list(parameters)
        if received is None:
            table, positions = left.pop(0), left.pop(0)
            tokens = torch.zeros((layout.micro_batch_size, model.seq), dtype=torch.long, device=self.device)
            embedded = functional.embedding(tokens, table) + positions
            hidden = functional.dropout(embedded, training.dropout).transpose(0, 1).contiguous()
            del embedded
        else:
            table, hidden = left[-1], received
        for _ in range(model.layers // layout.pipeline_parallel):
            own = [left.pop(0) for _ in range(12)]
            if training.recompute == "full":
                layer = partial(self._layer, weights=own)
                hidden = checkpoint(layer, hidden, use_reentrant=True, preserve_rng_state=False)
            else:
                hidden = self._layer(hidden, own)
        if not self.is_last:
            return hidden
        turned = hidden.transpose(0, 1).contiguous()
        normed = functional.layer_norm(turned, (model.hidden,), left[0], left[1])
        logits = functional.linear(normed, table)
        losses: Tensor = _Loss.apply(logits.float())  # type: ignore[no-untyped-call]
        return losses.mean()

    def _layer(self, hidden: Tensor, weights: Sequence[Tensor]) -> Tensor:
        model, layout = self.case.model, self.case.layout
        heads, width = model.heads // layout.tensor_parallel, model.hidden // model.heads
        normed = functional.layer_norm(hidden, (model.hidden,), weights[0], weights[1])
        mixed = functional.linear(normed, weights[2], weights[3])
        s, b = mixed.shape[:2]
        query, key, value = (part.reshape(s, b * heads, width) for part in mixed.view(s, b, heads, -1).chunk(3, dim=-1))
        scores = torch.empty((b * heads, s, s), dtype=torch.half, device=self.device)
        scores = torch.baddbmm(scores, query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0)
        shares: Tensor = _Softmax.apply(scores)  # type: ignore[no-untyped-call]
        shares = functional.dropout(shares, self.case.training.dropout)
        context = torch.bmm(shares, value.transpose(0, 1))
        context = context.view(b, heads, s, width).permute(2, 0, 1, 3).contiguous().view(s, b, heads * width)
        attended = functional.linear(context, weights[4])
        middle: Tensor = _DropoutAdd.apply(attended, weights[5], hidden)  # type: ignore[no-untyped-call]
        del scores, shares, context, attended, query, key, value, mixed, normed
        normed = functional.layer_norm(middle, (model.hidden,), weights[6], weights[7])
        wide: Tensor = _Gelu.apply(functional.linear(normed, weights[8]), weights[9])  # type: ignore[no-untyped-call]
        narrow = functional.linear(wide, weights[10])
        result: Tensor = _DropoutAdd.apply(narrow, weights[11], middle)  # type: ignore[no-untyped-call]
        return result


def _buffers(parameters: list[torch.nn.Parameter]) -> Tensor:
    """Allocate one buffer of gradients, to which the gradient of each parameter is added."""
    buffer = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.half, device=parameters[0].device)
    start = 0
    for parameter in parameters:
        parameter.main_grad = buffer[start : start + parameter.numel()].view(parameter.shape)  # type: ignore[attr-defined]
        start += parameter.numel()
        parameter.register_post_accumulate_grad_hook(_add_to_buffer)  # type: ignore[no-untyped-call]
    return buffer


def _add_to_buffer(parameter: Any) -> None:
    parameter.main_grad.add_(parameter.grad)
    parameter.grad = None


def _runs(stage: Stage, cap_bytes: float | None) -> bool:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if cap_bytes is None else min(1.0, cap_bytes / total))
    try:
        stage.run()
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def main() -> int:
    """Print a line for each case."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    folders = find_folders()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    print("| case | stage | predicted (GB) | tensors (GB) | ratio | reserved (GB) | smallest cap |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, where, number in CASES:
        (case,) = select(expand(find_experiment(folders, name)), parse_where(where, MEGATRON.axes))
        facts = find_megatron(case.program).memory
        stage = Stage(case, number, facts.keeps_gradient_buffers)
        predicted = estimate_stage(number, case.model, case.layout, case.training, facts).total_bytes
        ended = _runs(stage, None)
        tensors, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        cap = _smallest_cap(stage, tensors) if ended else "out of memory"
        numbers = f"{predicted / 1e9:.2f} | {tensors / 1e9:.2f} | {predicted / tensors:.3f} | {reserved / 1e9:.2f}"
        print(f"| {name} {case.name} | {number} | {numbers} | {cap} |", flush=True)
    return 0


def _smallest_cap(stage: Stage, tensors: int) -> float | None:
    """Return the smallest cap with which the stage runs, as a multiple of the tensors; None above the largest."""
    share = 1.0
    while share < _LARGEST_CAP:
        if _runs(stage, share * tensors):
            return round(share, 2)
        share += _STEP
    return None


if __name__ == "__main__":
    sys.exit(main())
