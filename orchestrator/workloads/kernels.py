"""Command that compiles the kernels of a Megatron-LM into its checkout."""

from __future__ import annotations

# The compilation at each start (initialize.py, _compile_dependencies), with all values that load() reads. It needs no
# data and no layout: a run on one GPU would not compile Kwai's kernels for context parallelism.
_COMPILE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from argparse import Namespace; from megatron import fused_kernels; "
    "from megatron.data.dataset_utils import compile_helper; compile_helper(); fused_kernels.load(Namespace(rank=0, "
)


def compile_command(checkout: str, options: str) -> tuple[str, ...]:
    """Return the command that compiles the kernels of a Megatron-LM with these options of its fused_kernels.load."""
    return ("python", "-c", f"{_COMPILE}{options}))", checkout)
