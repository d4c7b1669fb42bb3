"""Megatron-LM of 2021: SC21's scripts, and Alpa's benchmark of its fork.

SC21's program is Megatron-LM at 6985e58938 (2021-08-18), with arguments in the order of the scripts' CONFIG.sh.

Alpa's is osdi22_artifact/megatron of alpa-projects/alpa at e0ae8bf849. benchmark_gpt_one_case.py takes a tuple and the
name of a table, makes Megatron-LM's arguments itself, and times two steps after a first one. It prints no iteration
lines and no loss, but a result row, which it adds to the table in its working folder. Its launcher,
torch.distributed.launch, sets the same variables for each rank as our scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

from orchestrator.config.model import Text, required
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.logs.alpa import ALPA_PROGRAM, TABLE, key_of_case
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.megatron.model import ModelShape, Training
from orchestrator.megatron.predictions import PlannedProgram
from orchestrator.megatron.programs.base import (
    GPT2_FILES,
    GPT2_TOKENS,
    CheckoutSite,
    TimeFacts,
    VocabularySite,
    megatron_program,
)
from orchestrator.megatron.programs.flags import DROPOUT, flag_arguments, lacking, script_flags, site_flags
from orchestrator.megatron.token_data import MegatronTokens
from orchestrator.programs.command import SYNTHETIC, BoundProgram, read_flags
from orchestrator.programs.record import JobContext, Repository
from orchestrator.text import counted

SIZES = (
    "--tensor-model-parallel-size --pipeline-model-parallel-size --micro-batch-size --global-batch-size "
    "--num-layers --hidden-size --num-attention-heads "
)
"""Flags that SC21's scripts take from their run_*.sh."""

SCHEDULE = (
    "--lr-decay-iters 320 --lr 0.0001 --min-lr 0.00001 --lr-decay-style cosine --lr-warmup-fraction 0.01 "
    "--split 969,30,1 "
)

_SCRIPT = (
    # MEGATRON_EXTRA_PARAMS, which come first in the scripts
    "--activations-checkpoint-method --num-layers-per-virtual-pipeline-stage --no-scatter-gather-tensors-in-pipeline "
    + SIZES
    + "--DDP-impl --data-path --vocab-file --merge-file --log-interval --seq-length --max-position-embeddings "
    "--train-iters " + SCHEDULE + "--eval-iters --eval-interval 1000 --clip-grad 1.0 --fp16 --bf16 --loss-scale "
    # The scripts use the defaults of the program here.
    "--ffn-hidden-size --hidden-dropout --attention-dropout"
)

_RECOMPUTATION = ("none", "full")
_ALWAYS_LACKING = ("rotary positions", "recomputation", "offloading", "context parallelism", "sequence parallelism")

# The compilation at each start (initialize.py, _compile_dependencies), with all values that load() reads. It needs no
# data and no layout: a run on one GPU would not compile Kwai's kernels for context parallelism.
_COMPILE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from argparse import Namespace; from megatron import fused_kernels; "
    "from megatron.data.dataset_utils import compile_helper; compile_helper(); fused_kernels.load(Namespace(rank=0, "
)


def compile_command(checkout: str, options: str = "masked_softmax_fusion=True") -> tuple[str, ...]:
    """Return the command that compiles the kernels of a Megatron-LM with these options of its fused_kernels.load."""
    return ("python", "-c", f"{_COMPILE}{options}))", checkout)


# At 6985e58938: attention keeps its scores (model/transformer.py). The loss copies the 16-bit logits to fp32 and
# overwrites this copy (mpu/cross_entropy.py). Gradients have the 16 bits of the weights (arguments.py), and one buffer
# only with --use-contiguous-buffers-in-ddp, which no script sets (model/distributed.py). Every rank holds the whole
# optimizer (optimizer/optimizer.py). Stages keep the outputs that they have sent, and an interleaved schedule can start
# with all forward passes (schedules.py).
MEMORY = MemoryFacts(
    "unfused",
    shards_optimizer=False,
    gradient_bytes=2,
    keeps_gradient_buffers=False,
    logit_bytes=6,
    frees_outputs=False,
    fills_pipeline_first=True,
    fuses_weight_gradients=False,
)
TIME = TimeFacts(
    "unfused",
    distributed_optimizer=False,
    fp32_gradients=False,
    hides_interleaved_transfers=False,
    synchronizes_transfers=True,  # p2p_communication.py: torch.cuda.synchronize after batch_isend_irecv
    ring_uses_one_card=True,  # inferred from figure 15, where rings have 4 of 8 GPUs of a node
    limited_by_host=False,  # layers of 4 ms are not (figure 15)
    fitted_on={"A100": "A100"},
    sites={"A100": ("sc21", "selene")},
)


def arguments(case: TrainingCase, site: VocabularySite) -> list[str]:
    """Return the arguments of the published scripts, except for the numbers of iterations.

    There is no --exit-interval: at this commit it requires --save, and without a folder it fails to save a checkpoint.
    """
    values = {**site_flags(site), "--loss-scale": case.training.loss_scale}
    return flag_arguments(script_flags(_SCRIPT, case, values))


def _unsupported(case: TrainingCase, _site: VocabularySite | None) -> Iterator[str]:
    model = case.model
    if model.family != "gpt" or model.experts or model.kv_groups is not None:
        yield "models other than dense GPT with separate keys for each head"
    settings = *_ALWAYS_LACKING, "the distributed optimizer", "flash attention"
    yield from lacking(case, *settings, recomputation=_RECOMPUTATION)


def _program(job: JobContext[VocabularySite], arguments: Sequence[str]) -> BoundProgram:
    warm_up = compile_command(job.site.checkout)
    return megatron_program(job, arguments, data=job.site.data_path, imports_checkout=False, warm_up=warm_up)


PROGRAM = PlannedProgram(
    name="megatron-2021",
    about="Megatron-LM at the commit of SC21's scripts",
    site=VocabularySite,
    dialect="2021",
    memory=MEMORY,
    arguments=arguments,
    unsupported=_unsupported,
    program=_program,
    time=TIME,
    needs=(
        Repository(),
        *GPT2_FILES,
        MegatronTokens(GPT2_TOKENS, "GPT-2 tokens; the published scripts name no data set"),
    ),
)

_BENCHMARK = "benchmark_gpt_one_case.py"
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

    checkout: Text = required(
        "Folder of the checkout, at the commit that the paper names. An absolute path.", "/shared/Megatron-LM-alpa"
    )
    benchmark: Annotated[Text, AfterValidator(_benchmark)] = required(
        f"Folder {BENCHMARKS.subfolder} in a checkout of {BENCHMARKS.name}. An absolute path.",
        f"/shared/alpa/{BENCHMARKS.subfolder}",
    )


def _case_tuple(case: TrainingCase) -> tuple[object, ...]:
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


def _unsupported_by_alpa(case: TrainingCase, _site: BenchmarkSite | None) -> Iterator[str]:
    model, training = case.model, case.training
    if model.family != "gpt" or model.experts or model.kv_groups is not None or model.ffn is not None:
        yield "models other than dense GPT with a feed-forward layer of 4 x hidden"
    settings = *_ALWAYS_LACKING, "virtual stages", "the distributed optimizer"
    yield from lacking(case, *settings, recomputation=_RECOMPUTATION)
    if (training.dtype, training.loss_scale) != ("fp16", _LOSS_SCALE):
        yield f"arithmetic other than fp16 with a loss scale of {_LOSS_SCALE}"
    if training.dropout != DROPOUT:
        yield f"dropout other than {DROPOUT}"
    yield from lacking(case, "flash attention", "DDP torch", "disabling scatter/gather")
    if (training.iterations, training.warmup_iterations) != (ITERATIONS, WARM_UP):
        planned = f"{counted(training.iterations, 'iteration')} with {training.warmup_iterations} of warm-up"
        yield f"{planned} (only {ITERATIONS} with {WARM_UP}, because its script sets them)"
    if training.evaluation_iterations:
        yield "evaluation"
    for flag in read_flags(case.arguments):
        if flag in SET_BY_SCRIPT:
            yield f"the argument {flag} (its script sets it from the case; leave it out)"


def _alpa_program(job: JobContext[BenchmarkSite], arguments: Sequence[str]) -> BoundProgram:
    site, root = job.site, import_root(job.site.benchmark)
    script = f"{site.benchmark}/{_BENCHMARK}"
    benchmark = job.field("benchmark")
    program = megatron_program(job, arguments, data=SYNTHETIC, warm_up=compile_command(site.checkout))
    return replace(
        program,
        command=("python", "-u", script),
        python_path=f"{site.checkout}:{root}",
        mounts=(site.checkout, root),
        site_values=((script, benchmark), (site.checkout, job.field("checkout")), (root, benchmark)),
    )


ALPA = PlannedProgram(
    name=ALPA_PROGRAM,
    about="Alpa's fork of Megatron-LM, and its benchmark script",
    site=BenchmarkSite,
    dialect="2021",
    memory=replace(MEMORY, keeps_gradient_buffers=True),  # the default since October 2021 (arguments.py)
    # The last two arguments of the script, which passes all others to Megatron-LM.
    arguments=lambda case, _site: [repr(_case_tuple(case)), TABLE.removesuffix(".tsv")],
    unsupported=_unsupported_by_alpa,
    program=_alpa_program,
    case_arguments_first=True,
    output_files=(TABLE,),
    prints_iterations=False,
    tokens=lambda _model, _tensor_parallel: None,  # it does not pad
    result_row=lambda model, layout: key_of_case(model, layout.gpus),
    printed_settings=_printed_settings,
    exact_parameters=True,
    time=replace(TIME, fitted_on={}, sites={}),
    needs=(Repository(), BENCHMARKS),
)
