"""Alpa's benchmark of Megatron-LM: osdi22_artifact/megatron of alpa-projects/alpa at e0ae8bf849.

benchmark_gpt_one_case.py takes a tuple and the name of a table, makes Megatron-LM's arguments itself, and times two
steps after a first one. It prints no iteration lines and no loss, but a result row, which it adds to the table in its
working folder. Its launcher, torch.distributed.launch, sets the same variables for each rank as our scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from orchestrator.catalog.case import Case
from orchestrator.config.model import Text
from orchestrator.megatron.logs import ALPA_PROGRAM
from orchestrator.megatron.logs.alpa import TABLE, RowKey, key_of_case
from orchestrator.megatron.model import Layout, ModelShape, Training
from orchestrator.megatron.rules.rule_context import read_flags
from orchestrator.text import counted
from orchestrator.workloads.base import JobContext, Program, Workload
from orchestrator.workloads.kernels import compile_command
from orchestrator.workloads.megatron_2021 import COMPILED, DROPOUT, MEMORY, TIME
from orchestrator.workloads.needs import Repository
from orchestrator.workloads.site_fields import CheckoutSite

SCRIPT = "benchmark_gpt_one_case.py"
ITERATIONS, WARM_UP = 3, 1
"""Steps that the script runs, and those of them that it does not time."""

_LOSS_SCALE = 8

SET_BY_SCRIPT = (
    *("--micro-batch-size", "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--global-batch-size"),
    *("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--max-position-embeddings"),
    *("--optimizer", "--train-iters", "--lr", "--bert-no-binary-head", "--DDP-impl", "--fp16", "--loss-scale"),
    "--checkpoint-activations",
)
"""Flags that the script appends to those of a case. Of a flag that is given twice, Megatron-LM uses the last value."""


BENCHMARKS = Repository(
    "benchmark", "alpa-projects/alpa", "e0ae8bf849ead61e65197cbeb24ce6435712e170", "osdi22_artifact/megatron"
)


def _benchmark(value: str) -> str:
    if not value.startswith("<") and not value.endswith(f"/{BENCHMARKS.subfolder}"):
        raise ValueError(f"must be the folder .../{BENCHMARKS.subfolder} in a checkout of {BENCHMARKS.name}")
    return value


class BenchmarkSite(CheckoutSite):
    """A checkout of Alpa's fork of Megatron-LM, and the folder of Alpa's benchmark scripts in their own checkout."""

    checkout: Text = Field(
        description="Folder of the checkout, at the commit that the paper names. An absolute path.",
        examples=["/shared/Megatron-LM-alpa"],
    )
    benchmark: Annotated[Text, AfterValidator(_benchmark)] = Field(
        description=f"Folder {BENCHMARKS.subfolder} in a checkout of {BENCHMARKS.name}. An absolute path.",
        examples=[f"/shared/alpa/{BENCHMARKS.subfolder}"],
    )


def arguments(case: Case, _site: BenchmarkSite | None = None) -> list[str]:
    """Return the last two arguments of the script, which passes all others to Megatron-LM."""
    return [repr(case_tuple(case)), TABLE.removesuffix(".tsv")]


def case_tuple(case: Case) -> tuple[object, ...]:
    """Return the tuple of a case as in suite_paper_manual_gpt.py.

    (model, B, S, H, L, heads, V, LD0, LD1, PD0, PD1, PP, NB, FM, Remat, RS, stages, overwrite): LD are data- and
    tensor-parallel sizes, PD the mesh that only Alpa itself reads.
    """
    model, layout = case.model, case.layout
    return (
        "gpt",
        layout.global_batch_size,
        model.seq,
        model.hidden,
        model.layers,
        model.heads,
        model.vocab,
        layout.data_parallel,
        layout.tensor_parallel,
        1,
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.microbatches,
        False,
        case.training.recompute == "full",
        True,
        "uniform_layer_gpipe",
        None,
    )


def _result_row(model: ModelShape, layout: Layout) -> RowKey:
    return key_of_case(model, layout.gpus)


def _printed_settings(model: ModelShape, training: Training) -> Mapping[str, str]:
    """Return arguments as Megatron-LM at b31e129635 lists them; --checkpoint-activations selects the uniform method."""
    return {
        "activations_checkpoint_method": "uniform" if training.recompute == "full" else "None",
        "attention_dropout": str(training.dropout),
        "DDP_impl": training.ddp,
        "hidden_dropout": str(training.dropout),
        "loss_scale": str(float(_LOSS_SCALE)),
        "max_position_embeddings": str(model.seq),
        "scatter_gather_tensors_in_pipeline": str(training.scatter_gather),
    }


def import_root(benchmark: str) -> str:
    """Return the checkout of alpa-projects/alpa, from which the script imports `benchmark.util`."""
    return str(PurePosixPath(benchmark).parents[1])


def _unsupported(case: Case, _site: BenchmarkSite | None) -> Iterator[str]:
    model, layout, training = case.model, case.layout, case.training
    if model.family != "gpt" or model.experts or model.kv_groups is not None or model.ffn is not None:
        yield "models other than dense GPT with a feed-forward layer of 4 x hidden"
    if model.positions != "learned":
        yield "rotary positions"
    if training.recompute not in ("none", "full"):
        yield f"recomputation {training.recompute} (only none, full)"
    if training.offload:
        yield "offloading"
    if layout.context_parallel > 1:
        yield "context parallelism"
    if layout.sequence_parallel and layout.tensor_parallel > 1:
        yield "sequence parallelism"
    if layout.virtual_stages > 1:
        yield "virtual stages"
    if training.distributed_optimizer:
        yield "the distributed optimizer"
    if (training.dtype, training.loss_scale) != ("fp16", _LOSS_SCALE):
        yield f"arithmetic other than fp16 with a loss scale of {_LOSS_SCALE}"
    if training.dropout != DROPOUT:
        yield f"dropout other than {DROPOUT}"
    if training.attention == "flash":
        yield "flash attention"
    if training.ddp != "local":
        yield f"DDP {training.ddp}"
    if not training.scatter_gather:
        yield "disabling scatter/gather"
    if (training.iterations, training.warmup_iterations) != (ITERATIONS, WARM_UP):
        planned = f"{counted(training.iterations, 'iteration')} with {training.warmup_iterations} of warm-up"
        yield f"{planned} (only {ITERATIONS} with {WARM_UP}, because its script sets them)"
    if training.evaluation_iterations:
        yield "evaluation"
    for flag in read_flags(case.arguments):
        if flag in SET_BY_SCRIPT:
            yield f"the argument {flag} (its script sets it from the case; leave it out)"


def _program(job: JobContext[BenchmarkSite], arguments: Sequence[str]) -> Program:
    site, root = job.site, import_root(job.site.benchmark)
    script = f"{site.benchmark}/{SCRIPT}"
    benchmark = job.field("benchmark")
    return Program(
        workload=job.case.workload,
        python="python",
        target=(script,),
        arguments=tuple(arguments),
        code=job.commit(),
        image=job.image.name,
        image_path=job.image.path,
        image_digest=job.image.digest,
        python_path=f"{site.checkout}:{root}",
        mounts=(site.checkout, root),
        compiles_in=site.checkout,
        warm_up=compile_command(site.checkout, COMPILED),
        site_values=((script, benchmark), (site.checkout, job.field("checkout")), (root, benchmark)),
    )


def _no_padding(_model: ModelShape, _tensor_parallel: int) -> None:
    return None


WORKLOAD = Workload(
    name=ALPA_PROGRAM,
    about="Alpa's fork of Megatron-LM, and its benchmark script",
    site=BenchmarkSite,
    dialect="2021",
    memory=replace(MEMORY, keeps_gradient_buffers=True),  # the default since October 2021 (arguments.py)
    arguments=arguments,
    unsupported=_unsupported,
    program=_program,
    case_arguments_first=True,
    tokens=_no_padding,
    result_row=_result_row,
    printed_settings=_printed_settings,
    exact_parameters=True,
    time=replace(TIME, fitted_on={}, sites={}),
    needs=(Repository(), BENCHMARKS),
)
