"""Flags of a training run: a subset of Megatron-LM's flags, and four flags that Megatron-LM lacks.

The four are `--record`, and the ATC'24 artifact's `--kaimm-...` features: `--recompute-norm`,
`--recompute-activation-func` and `--offload-activation-ratio`.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Recompute = Literal["full", "selective"]
RecomputeMethod = Literal["uniform", "block"]
AttentionBackend = Literal["auto", "flash", "fused", "unfused"]
Precision = Literal["fp32", "bf16", "fp16"]
CudaGraphs = Literal["none", "local"]
Normalization = Literal["LayerNorm", "RMSNorm"]
PositionEmbedding = Literal["learned_absolute", "rope"]
RecomputeModule = Literal["core_attn", "layernorm", "mlp"]

# Megatron-LM's default for --make-vocab-size-divisible-by, used if the flag has no number.
VOCABULARY_MULTIPLE = 128


@dataclass(frozen=True)
class TrainingArguments:
    """Arguments of one training run, with Megatron-LM's names. Lengths in tokens, batch sizes in sequences."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    seq_length: int
    vocab_size: int
    micro_batch_size: int
    global_batch_size: int
    train_iters: int
    ffn_hidden_size: int | None = None
    make_vocab_size_divisible_by: int | None = None
    untie_embeddings_and_output_weights: bool = False
    group_query_attention: bool = False
    num_query_groups: int | None = None
    swiglu: bool = False
    normalization: Normalization = "LayerNorm"
    position_embedding_type: PositionEmbedding = "learned_absolute"
    disable_bias_linear: bool = False
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    attention_backend: AttentionBackend = "auto"
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    num_virtual_stages_per_pipeline_rank: int | None = None
    context_parallel_size: int = 1
    sequence_parallel: bool = False
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    recompute_granularity: Recompute | None = None
    recompute_method: RecomputeMethod | None = None
    recompute_num_layers: int | None = None
    recompute_modules: Sequence[RecomputeModule] | None = None
    recompute_norm: bool = False
    recompute_activation_func: bool = False
    offload_activation_ratio: float = 0.0
    bf16: bool = False
    fp16: bool = False
    loss_scale: float | None = None
    lr: float = 1e-4
    clip_grad: float = 1.0
    seed: int = 1234
    no_bias_gelu_fusion: bool = False
    no_bias_swiglu_fusion: bool = False
    no_bias_dropout_fusion: bool = False
    no_cross_entropy_fusion: bool = False
    no_gradient_accumulation_fusion: bool = False
    cuda_graph_impl: CudaGraphs = "local"
    log_interval: int = 1
    record: Path | None = None

    @property
    def precision(self) -> Precision:
        """Return the type of weights and activations. Gradients are always accumulated in fp32."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"

    @property
    def virtual_stages(self) -> int:
        """Return the number of model chunks per pipeline rank. More than one selects the interleaved schedule."""
        return self.num_virtual_stages_per_pipeline_rank or 1

    @property
    def query_groups(self) -> int:
        """Return the number of key and value heads per layer."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def selected_modules(self) -> frozenset[RecomputeModule]:
        """Return the modules of selective recomputation. Megatron-LM's default is the core attention."""
        if self.recompute_granularity != "selective":
            return frozenset()
        return frozenset(self.recompute_modules or ("core_attn",))

    @property
    def recomputes_norms(self) -> bool:
        """Return whether norm outputs are recomputed (`--recompute-norm` or Megatron-LM's module `layernorm`)."""
        return self.recompute_norm or "layernorm" in self.selected_modules

    @property
    def padded_vocab_size(self) -> int:
        """Return the rows of the embedding over all tensor-parallel ranks, with padding if the flag is set."""
        if self.make_vocab_size_divisible_by is None:
            return self.vocab_size
        multiple = self.make_vocab_size_divisible_by * self.tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple


def parse_arguments(argv: Sequence[str] | None = None, *, prints: bool = True) -> TrainingArguments:
    """Parse the command line (`sys.argv` if `argv` is None). A wrong argument ends the process with exit code 2.

    All ranks parse the same arguments; the one with `prints` prints the errors.
    """
    with nullcontext() if prints else redirect_stderr(io.StringIO()):
        return TrainingArguments(**vars(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.pretrain",
        description="Train a GPT on mock data with Megatron-Core.",
        allow_abbrev=False,  # an abbreviation would change its meaning when a longer flag is added
        argument_default=argparse.SUPPRESS,  # the defaults are those of TrainingArguments
    )
    _add_model(parser.add_argument_group("model"))
    _add_layout(parser.add_argument_group("layout"))
    _add_memory(parser.add_argument_group("recomputation and offloading"))
    _add_training(parser.add_argument_group("training"))
    _add_kernels(parser.add_argument_group("kernels"))
    logging = parser.add_argument_group("logging")
    logging.add_argument("--log-interval", type=_positive, help="iterations per printed line")
    logging.add_argument("--record", type=Path, help="file for a JSON line per interval, with unrounded numbers")
    return parser


def _add_model(group: argparse._ArgumentGroup) -> None:
    for flag in ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--vocab-size"):
        group.add_argument(flag, type=_positive, required=True)
    group.add_argument("--ffn-hidden-size", type=_positive, help="default: 4 times the hidden size")
    group.add_argument(
        "--make-vocab-size-divisible-by",
        type=_positive,
        nargs="?",
        const=VOCABULARY_MULTIPLE,
        help="pad the vocabulary to a multiple of this times the tensor-parallel size; default: no padding",
    )
    group.add_argument("--untie-embeddings-and-output-weights", action="store_true")
    group.add_argument("--group-query-attention", action="store_true", help="query heads share keys and values")
    group.add_argument("--num-query-groups", type=_positive, help="key and value heads, with --group-query-attention")
    group.add_argument("--swiglu", action="store_true", help="gated linear unit with SiLU in place of GELU")
    group.add_argument("--normalization", choices=get_args(Normalization))
    group.add_argument("--position-embedding-type", choices=get_args(PositionEmbedding))
    group.add_argument("--disable-bias-linear", action="store_true", help="no biases in the linear layers")
    group.add_argument("--hidden-dropout", type=_probability)
    group.add_argument("--attention-dropout", type=_probability)


def _add_layout(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tensor-model-parallel-size", type=_positive)
    group.add_argument("--pipeline-model-parallel-size", type=_positive)
    group.add_argument("--num-virtual-stages-per-pipeline-rank", type=_positive, help="interleaved schedule if over 1")
    group.add_argument("--context-parallel-size", type=_positive)
    group.add_argument("--sequence-parallel", action="store_true", help="no effect without tensor parallelism")
    group.add_argument("--use-distributed-optimizer", action="store_true")
    group.add_argument("--overlap-grad-reduce", action="store_true")
    group.add_argument("--overlap-param-gather", action="store_true")


def _add_memory(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--recompute-granularity", choices=get_args(Recompute), help="default: no recomputation")
    group.add_argument("--recompute-method", choices=get_args(RecomputeMethod), help="with full; default: uniform")
    group.add_argument("--recompute-num-layers", type=_positive, help="with full; default: 1")
    group.add_argument(
        "--recompute-modules",
        nargs="+",
        choices=get_args(RecomputeModule),
        help="with selective; default: core_attn",
    )
    group.add_argument("--recompute-norm", action="store_true", help="ATC'24: recompute the outputs of norms")
    group.add_argument(
        "--recompute-activation-func", action="store_true", help="ATC'24: recompute the outputs of activation functions"
    )
    group.add_argument(
        "--offload-activation-ratio",
        type=_share,
        metavar="ALPHA",
        help="ATC'24: share of the activations that is offloaded to host memory",
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    for flag in ("--micro-batch-size", "--global-batch-size", "--train-iters"):
        group.add_argument(flag, type=_positive, required=True)
    precision = group.add_mutually_exclusive_group()
    precision.add_argument("--bf16", action="store_true")
    precision.add_argument("--fp16", action="store_true")
    group.add_argument("--loss-scale", type=float, help="static loss scale of --fp16")
    group.add_argument("--lr", type=float, help="constant learning rate")
    group.add_argument("--clip-grad", type=float, help="largest gradient norm; 0 turns clipping off")
    group.add_argument("--seed", type=int)


def _add_kernels(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--attention-backend", choices=get_args(AttentionBackend))
    for operation in ("bias-gelu", "bias-swiglu", "bias-dropout", "cross-entropy", "gradient-accumulation"):
        group.add_argument(f"--no-{operation}-fusion", action="store_true", help="for GPUs; a CPU never fuses")
    group.add_argument(
        "--cuda-graph-impl",
        choices=get_args(CudaGraphs),
        help="local: CUDA graphs of an iteration or of a pipeline's passes (on GPUs, without dropout and offloading)",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a probability below 1")
    return value
