"""The GPT of `orchestrator.pretrain` in plain PyTorch, without Megatron-Core: a peer for time measurements.

    python -m benchmarks.plain_gpt --layers 24 --hidden 2304 --heads 24 --seq 2048 --vocab 51200 --recompute

Weights and Adam in fp32 and autocast to bf16, scaled_dot_product_attention, torch.compile of a layer and of the loss,
torch's own checkpoint and its fused AdamW. Initial weights and tokens are those of `pretrain`, generated independently,
so that the losses can be compared. Prints one JSON line per iteration.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Sizes:
    """Settings of a run; lengths in tokens, batch sizes in sequences. Other settings are the defaults of `pretrain`."""

    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int
    micro_batch_size: int
    global_batch_size: int
    iterations: int
    recompute: bool = False
    dtype: str = "bf16"
    compiled: bool = True
    lr: float = 1e-4
    seed: int = 1234


class Layer(nn.Module):
    """Layer of norm, attention, norm and feed-forward with residual additions, from and to [batch, seq, hidden]."""

    def __init__(self, sizes: Sizes, gelu: str) -> None:
        super().__init__()
        self.heads, self.gelu = sizes.heads, gelu
        self.attention_norm = nn.LayerNorm(sizes.hidden)
        self.qkv = nn.Linear(sizes.hidden, 3 * sizes.hidden)
        self.projection = nn.Linear(sizes.hidden, sizes.hidden)
        self.feed_forward_norm = nn.LayerNorm(sizes.hidden)
        self.up = nn.Linear(sizes.hidden, 4 * sizes.hidden)
        self.down = nn.Linear(4 * sizes.hidden, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        # A head's query, key and value lie beside one another, as in Megatron's matrix, which is drawn in one.
        qkv = self.qkv(self.attention_norm(x)).view(batch, seq, self.heads, -1).transpose(1, 2)
        query, key, value = qkv.chunk(3, -1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, seq, hidden))
        wide = functional.gelu(self.up(self.feed_forward_norm(x)), approximate=self.gelu)
        out: torch.Tensor = x + self.down(wide)
        return out


class Head(nn.Module):
    """Final norm and mean loss, with the matrix of the embedding."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.hidden)

    def forward(self, x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = functional.linear(self.norm(x), weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class PlainGPT(nn.Module):
    """GPT with learned positions and a shared matrix of embedding and output; `forward` returns the mean loss."""

    def __init__(self, sizes: Sizes, gelu: str) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.vocab, sizes.hidden)
        self.positions = nn.Embedding(sizes.seq, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes, gelu) for _ in range(sizes.layers))
        self.head = Head(sizes)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions.weight
        if self.sizes.dtype == "bf16":  # what goes from layer to layer; autocast alone would leave it in fp32
            x = x.bfloat16()
        for layer in self.layers:
            if self.sizes.recompute:  # nothing in a layer is drawn at random
                x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x)
        loss: torch.Tensor = self.head(x, self.words.weight, labels)
        return loss


def build(sizes: Sizes, device: torch.device) -> PlainGPT:
    """Return the model with the initial weights of `pretrain` on this kind of device."""
    # Megatron's fused GELU, which a GPU has, is the tanh approximation; without it the function is the exact one.
    with device:
        model = PlainGPT(sizes, "tanh" if device.type == "cuda" else "none")
    draw_weights(model, sizes)
    if sizes.compiled:
        for part in (*model.layers, model.head):
            part.compile()
    return model


_NAMES = {
    "words.weight": "embedding.word_embeddings.weight",
    "positions.weight": "embedding.position_embeddings.weight",
    "qkv.weight": "self_attention.linear_qkv.weight",
    "projection.weight": "self_attention.linear_proj.weight",
    "up.weight": "mlp.linear_fc1.weight",
    "down.weight": "mlp.linear_fc2.weight",
}
"""End of a parameter's name here -> in Megatron-Core, from which `pretrain` derives its initial weights."""


@torch.no_grad()
def draw_weights(model: PlainGPT, sizes: Sizes) -> None:
    """Fill each matrix from its name in Megatron-Core, as orchestrator/pretrain/model.py does; biases are zero."""
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        index, part = name.split(".", 2)[1:] if name.startswith("layers.") else ("", name)
        named = f"decoder.layers.{index}.{_NAMES[part]}" if index else _NAMES[part]
        digest = hashlib.sha256(f"{sizes.seed}/{named}".encode()).digest()
        generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:6], "big"))
        drawn = torch.randn(parameter.shape, generator=generator, device=parameter.device)
        into_residual = part in ("projection.weight", "down.weight")
        drawn *= 0.02 / (math.sqrt(2.0 * sizes.layers) if into_residual else 1.0)
        parameter.copy_(drawn.bfloat16() if sizes.dtype == "bf16" else drawn)  # there they are stored in 16 bits


def sequences(sizes: Sizes, iteration: int) -> torch.Tensor:
    """Return the tokens [global batch, seq + 1] of an iteration (from 0), as orchestrator/pretrain/train.py does."""
    generator = torch.Generator().manual_seed(sizes.seed * 1_000_003 + iteration)
    column = (sizes.global_batch_size, 1)
    start = torch.randint(0, sizes.vocab, column, generator=generator)
    stride = torch.randint(1, 4, column, generator=generator)
    return (start + stride * torch.arange(sizes.seq + 1)) % sizes.vocab


def train(sizes: Sizes, device: torch.device) -> None:
    """Train, and print time in ms, mean loss and gradient norm of each iteration."""
    torch.manual_seed(sizes.seed)
    model = build(sizes, device)
    # `pretrain` has no schedule, and without one Megatron-Core's weight decay of 0.01 is that of all parameters.
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.lr, weight_decay=0.01, fused=device.type == "cuda")
    microbatches = sizes.global_batch_size // sizes.micro_batch_size
    for iteration in range(sizes.iterations):
        _wait(device)
        start = time.perf_counter()
        loss = torch.zeros((), device=device)
        for rows in sequences(sizes, iteration).to(device).chunk(microbatches):
            with torch.autocast(device.type, torch.bfloat16, enabled=sizes.dtype == "bf16"):
                part = model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) / microbatches
            part.backward()
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step = {"iteration": iteration + 1, "loss": loss.item(), "grad_norm": norm.item()}
        _wait(device)
        print(json.dumps({**step, "elapsed_ms": (time.perf_counter() - start) * 1e3}), flush=True)
    if device.type == "cuda":
        print(json.dumps({"most_memory_gb": torch.cuda.max_memory_allocated() / 1e9}), flush=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def parse_sizes(words: Sequence[str] | None = None) -> Sizes:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "hidden", "heads", "seq", "vocab"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int, default=16)
    parser.add_argument("--global-batch-size", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--recompute", action="store_true", help="keep the input of each layer only")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--no-compile", action="store_false", dest="compiled")
    return Sizes(**vars(parser.parse_args(words)))


if __name__ == "__main__":
    train(parse_sizes(), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
