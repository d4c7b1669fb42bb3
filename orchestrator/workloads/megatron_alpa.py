"""A case for Alpa's benchmark of Megatron-LM: osdi22_artifact/megatron of alpa-projects/alpa at e0ae8bf849.

benchmark_gpt_one_case.py takes a tuple and the name of a table, makes Megatron-LM's arguments itself, and times two
steps after one. Its launcher, torch.distributed.launch, gives each rank what our scripts give it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from orchestrator.catalog.case import Case
from orchestrator.workloads.base import refuse
from orchestrator.workloads.megatron_2021 import DROPOUT

SCRIPT = "benchmark_gpt_one_case.py"
TABLE = "megatron_results_e2e"
"""As benchmark_gpt.py calls it; the line that rank 0 adds to TABLE.tsv, where it was started, it prints as well."""

UNVERIFIABLE = "its program prints the mean of two steps and no more: neither which iterations were trained nor a loss"
"""Why no run of it can be verified. Its one line (`exp_name: e2e  instance: p3.16  ...  value: {'tflops': ...}`) also
says p3.16 and 0 devices for 8 GPUs, whatever it ran on."""

_LOSS_SCALE = 8


def arguments(case: Case) -> list[str]:
    """What follows the script's name; ReproError for what the script does not ask Megatron-LM for.

    What a case types itself comes first: the script reads its own two from the end, and hands on the rest.
    """
    refuse(case, f"the script of {case.workload} has no", _unknown(case))
    return [*case.arguments, repr(case_tuple(case)), TABLE]


def case_tuple(case: Case) -> tuple[object, ...]:
    """(model, B, S, H, L, heads, V, LD0, LD1, PD0, PD1, PP, NB, FM, Remat, RS, stages, overwrite), as in
    suite_paper_manual_gpt.py: LD are data- and tensor-parallel sizes, PD the mesh that only Alpa itself reads.
    """
    model, layout = case.model, case.layout
    return (
        *("gpt", layout.global_batch_size, model.seq, model.hidden, model.layers, model.heads, model.vocab),
        *(layout.data_parallel, layout.tensor_parallel, 1, layout.tensor_parallel, layout.pipeline_parallel),
        *(layout.microbatches, False, case.training.recompute == "full", True, "uniform_layer_gpipe", None),
    )


def import_root(benchmark: str) -> str:
    """The checkout of alpa-projects/alpa, from which the script imports `benchmark.util`."""
    return str(PurePosixPath(benchmark).parents[1])


def _unknown(case: Case) -> Iterator[str]:
    model, layout, training = case.model, case.layout, case.training
    if model.family != "gpt" or model.experts or model.kv_groups is not None or model.ffn is not None:
        yield "models but dense GPT with a feed-forward layer of 4 x hidden"
    if training.recompute not in ("none", "full"):
        yield f"recomputation {training.recompute}, only none, full"
    if training.offload:
        yield "offloading"
    if layout.context_parallel > 1:
        yield "context parallelism"
    if layout.sequence_parallel and layout.tensor_parallel > 1:
        yield "sequence parallelism"
    if layout.virtual_stages > 1:
        yield "virtual stages"
    if training.distributed_optimizer:
        yield "distributed optimizer"
    if (training.dtype, training.loss_scale) != ("fp16", _LOSS_SCALE):
        yield f"arithmetic but fp16 with a loss scale of {_LOSS_SCALE}"
    if training.dropout != DROPOUT:
        yield f"dropout but {DROPOUT}"
    if training.attention == "flash":
        yield "flash attention"
    if training.ddp != "local":
        yield f"DDP of {training.ddp}"
    if not training.scatter_gather:
        yield "switch for scatter/gather"
