"""Types of a program: its record, the command of a job, and what a profile must give."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import ScaleFields
from orchestrator.catalog.library import Entry
from orchestrator.config.model import Text, required
from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.axes import MEGATRON
from orchestrator.megatron.case import TrainingCase, training_case, training_view
from orchestrator.megatron.logs.alpa import RowKey, row_pattern
from orchestrator.megatron.memory import MemoryEstimate, MemoryFacts, estimate_memory
from orchestrator.megatron.model import Layout, ModelShape, Training
from orchestrator.megatron.programs.flags import fixed_argument
from orchestrator.megatron.rules import Dialect
from orchestrator.programs.axes import ProgramNames
from orchestrator.programs.command import BoundProgram, read_flags, without_flags
from orchestrator.programs.program import Processes
from orchestrator.programs.record import JobContext, Program, ProgramSite, PublicFile, Site

if TYPE_CHECKING:
    from orchestrator.config.model import Hardware
    from orchestrator.job_spec import JobSpec
    from orchestrator.launch.run_options import CanaryJob
    from orchestrator.results.cases import CaseMetric

USABLE_SHARE = 0.925
"""Share of a GPU's memory that tensors can use; the rest is the context, NCCL's buffers and fragments. Fitted to rows
of Alpa's search (docs/explanation/predictions.md). ATC'24's figure 7 brackets it: 0.905 of 80 GB fit, 0.972 do not."""

_LAST_ITERATION = "iteration +{iterations}/ *{iterations} "
_PLANNED = "iteration +[0-9]+/ *{iterations} "
_WORLD = (
    "using world size: {gpus}, .*tensor-model-parallel size: {tensor_parallel}[^0-9]"
    ".*pipeline-model-parallel size: {pipeline_parallel}([^0-9]|$)"
)
_NOT_FINITE = "number of nan iterations: *[1-9]|(lm loss|grad norm): *[-+]?([nN][aA][nN]|[iI][nN][fF])"

ASSUMED_START_UP_S = 60.0
"""Seconds from the start of a job until its first iteration has ended, with container, process groups and data index:
assumed, not measured."""


GPT2_TOKENS = 50257
"""Entries of GPT-2's vocabulary, which --vocab-file and --merge-file name."""

LLAMA_TOKENS = 32000
"""Entries of Llama's vocabulary. Programs with NullTokenizer are given at least as many."""


# OpenAI's addresses. Size and checksum were computed from copies of both files, and tiktoken publishes the same
# checksums for these addresses (tiktoken_ext/openai_public.py, `gpt2`).
_OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"

VOCABULARY = PublicFile(
    field="vocab_file",
    name="gpt2-vocab.json",
    url=f"{_OPENAI}/encoder.json",
    sha256="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    bytes=1_042_301,
)
MERGES = PublicFile(
    field="merge_file",
    name="gpt2-merges.txt",
    url=f"{_OPENAI}/vocab.bpe",
    sha256="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    bytes=456_318,
)
GPT2_FILES = (VOCABULARY, MERGES)


class CheckoutSite(ProgramSite):
    """Path of a checkout of Megatron-LM, as jobs see it."""

    checkout: Text = required(
        "Folder of the checkout, at the commit that the paper or the program names.", "/shared/Megatron-LM"
    )


class MegatronSite(CheckoutSite):
    """A checkout of Megatron-LM and the training data."""

    data_path: Text = required(
        "Tokenised data: the path of the .bin and .idx files, without the ending.", "/shared/data/gpt2_text_document"
    )


class VocabularySite(MegatronSite):
    """A checkout of Megatron-LM, the training data and the two files of GPT-2's vocabulary."""

    vocab_file: Text = required("The file gpt2-vocab.json.", "/shared/data/gpt2-vocab.json")
    merge_file: Text = required("The file gpt2-merges.txt.", "/shared/data/gpt2-merges.txt")


Checkout = TypeVar("Checkout", bound=CheckoutSite)


Fit = Literal["A100", "H800", "H100", "GH100", "pretrain H100"]
"""Which constants a prediction uses: SC21's program on A100, ATC'24's on H800, that of the tutorials on H100, or
`pretrain` on H200 (GH100) and on H100."""

ONE_NODE = "one node"
"""Site of jobs in one node whose GPUs are connected by NVLink: times on several such machines were measured."""


@dataclass(frozen=True, slots=True)
class TimeFacts:
    """Defaults and costs of a program that the time model uses.

    Bytes are those moved through a GPU's memory. `logit_bytes` of a logit, from the product that writes it to those
    that read its gradient: 16-bit written 2, made fp32 6; maximum 4, shifted 8, exponential 8, sum 4, normalised 8; the
    gradient 8, made 16-bit 6, and read by both its products 2. `sharded_logit_bytes` are added if the vocabulary is
    split. `accumulated_bytes` of adding a weight's gradient of one microbatch to the sum; the product hides a part.
    `rotary_bytes` of rotating an element of queries and keys, forward and backward. `optimizer_bytes` of
    mixed-precision Adam, for a parameter: gradient unscaled 6 and its norm 4, four fp32 read 16 and three written 12,
    the 16-bit copy 6, the gradient zeroed 4.

    `skips_last_product`: full recomputation of a layer omits its last product, whose result is not read. `keeps_keys`:
    the keys and values that context parallelism gathers are not gathered again, and are copied into the order of the
    sequence. `sums_shared_embedding`: the cost of weights that embedding and output layer share is counted.
    `overlaps_backward_communication`: the backward pass of a layer whose output is split (queries, keys and values, and
    the first of the feed-forward layer) communicates during its products. `starts_step_by_host`: kernels of the
    optimizer step are started one by one. `synchronizes_transfers`: the host waits for every transfer between pipeline
    stages. `ring_uses_one_card`: a ring over nodes uses one network card of each node, unless the ring has all GPUs of
    its nodes. `limited_by_host`: the host may need longer to start the kernels of a layer than the GPU to run them.
    `stages_cost_host`: the host needs time for each virtual stage and microbatch of a pipeline, too.

    `start_up_s` is the time of a job beside its iterations. It includes the first iteration, which is counted twice.
    `fitted_on` are the kinds of GPU on which constants of the time model were fitted for this program, or that have the
    chip, dense peak, power limit and memory of such a GPU; each with the constants to use. `sites` are the sites of
    these times by kind of GPU: names of clusters, folders of papers, or ONE_NODE. `is_of_family`: times of other
    programs of the family are comparable with those of this one.
    """

    attention: str = "flash"
    distributed_optimizer: bool = True
    fp32_gradients: bool = True
    hides_layer_communication: bool = False
    hides_interleaved_transfers: bool = True
    records_graph: bool = False
    skips_last_product: bool = False
    keeps_keys: bool = False
    sums_shared_embedding: bool = False
    overlaps_backward_communication: bool = False
    starts_step_by_host: bool = False
    synchronizes_transfers: bool = False
    ring_uses_one_card: bool = False
    limited_by_host: bool = True
    stages_cost_host: bool = False
    rotary_bytes: tuple[int, int] = (0, 0)
    logit_bytes: int = 56
    sharded_logit_bytes: int = 0
    accumulated_bytes: int = 0
    optimizer_bytes: int = 48
    start_up_s: float = ASSUMED_START_UP_S
    fitted_on: Mapping[str, Fit] = field(default_factory=dict)
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_of_family: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class MegatronProgram(Program, Generic[Site]):
    """A program of the Megatron family.

    `arguments` returns the arguments of a case without those that the case itself gives, and `unsupported` the settings
    that the program lacks, for a site or (None) for any site. `program` builds the command from the whole list.
    `case_arguments_first`: the program expects the case's own arguments before all others.

    `memory` applies if a case sets nothing else; `memory_measured`: its closed form was compared with measured bytes.
    `memory_formula` returns an estimate that replaces it, None where it does not apply. `tokens` returns the number of
    vocabulary entries that the program pads (of a model and a tensor-parallel size), None if it does not pad.

    `result_row` returns the row that the program prints in place of iteration lines, without its numbers; it is None
    for all programs that print iteration lines. `printed_settings` returns the arguments that such a program must list
    with exactly these values, beside its sizes.

    `counts_context_as_data`: the program's data-parallel size includes context parallelism. `exact_parameters`: a rank
    has exactly the parameters of `megatron.model.parameters_of_rank`. `is_own`: the program is `orchestrator.pretrain`.
    `costly_arguments` returns the arguments of a site that change the memory or the time of a case.
    """

    family: str = "megatron"
    processes: Processes | None = None
    names: ProgramNames = MEGATRON
    reader: str | None = "orchestrator.megatron.logs.reader:MegatronReader"
    search_picture: str | None = "orchestrator.megatron.search.picture:search_drawn"
    dialect: Dialect
    memory: MemoryFacts
    arguments: Callable[[TrainingCase, Site], list[str]]
    unsupported: Callable[[TrainingCase, Site | None], Iterable[str]]
    program: Callable[[JobContext[Site], Sequence[str]], BoundProgram]
    case_arguments_first: bool = False
    memory_measured: bool = False
    memory_formula: Callable[[TrainingCase], MemoryEstimate | None] = lambda _case: None
    usable_share: float = USABLE_SHARE
    tokens: Callable[[ModelShape, int], int | None] = lambda _model, _tensor_parallel: GPT2_TOKENS
    time: TimeFacts = field(default_factory=TimeFacts)
    result_row: Callable[[ModelShape, Layout], RowKey] | None = None
    printed_settings: Callable[[ModelShape, Training], Mapping[str, str]] = lambda _model, _training: {}
    counts_context_as_data: bool = False
    exact_parameters: bool = False
    is_own: bool = False
    costly_arguments: Callable[[Site], Sequence[str]] = lambda _site: ()

    def with_derived(self, case: Case, metrics: Mapping[str, CaseMetric]) -> Mapping[str, CaseMetric]:
        """Return the metrics, and the days of the whole training if the case has them.

        No job measures the days: experiments share jobs, and each may train for another number of tokens.
        """
        rate, days_of = metrics.get("tflops_per_gpu"), training_case(case).training_days
        if rate is None or (value := days_of(rate.value)) is None:
            return metrics
        low, high = (end and days_of(end) for end in (rate.interval_high, rate.interval_low))
        spread = None if rate.spread is None else value * rate.spread / rate.value
        days = replace(rate, name="training_days", value=value, unit="days", spread=spread)
        return {**metrics, days.name: replace(days, interval_low=low, interval_high=high)}

    def fixed_argument(self, flag: str) -> Problem | None:
        """Return why `--arg` cannot change this flag: the case or the profile sets it. None if `--arg` can."""
        return fixed_argument(flag)

    def flags_of(self, case: Case) -> Mapping[str, tuple[str, ...]]:
        """Return the flags of a case; only those of the case itself if the program lacks a setting of it."""
        if not isinstance(case, TrainingCase) or self.unsupported_settings(case):
            return super().flags_of(case)
        fields = self.site.model_fields.items()
        required: dict[str, Any] = {name: name for name, field in fields if field.is_required()}
        site = cast("Site", self.site.model_construct(**required))
        return read_flags([*self.arguments(case, site), *case.arguments])

    def case(self, case: Case, entry: Entry, fields: ScaleFields) -> TrainingCase:
        """Return the case with model, layout and training."""
        return training_view(case, entry, fields)

    def unsupported_settings(self, case: Case, site: Site | None = None) -> str | None:
        """Return a sentence with all settings of the case that the program lacks; None if there are none."""
        settings = list(self.unsupported(training_case(case), site))
        return f"{self.name} does not support {', '.join(settings)}" if settings else None

    def bind(self, job: JobContext[Site]) -> BoundProgram:
        """Return the program of a case on a cluster; ReproError if it does not support a setting of the case."""
        return self.program(job, self.all_arguments(training_case(job.case), job.site))

    def rank_environment(self) -> Mapping[str, str]:
        """Return the variable that Megatron-LM wants with tensor parallelism before Blackwell.

        It first uses the variable in October 2022, so the programs of 2021 run without it.
        """
        return {} if self.dialect == "2021" else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}

    def canary(self, case: Case, job: CanaryJob) -> CanaryJob:
        """Return the canary with what the log of this case must show."""
        of_case = training_case(case)
        layout = of_case.layout
        row = None if self.result_row is None else self.result_row(of_case.model, layout)
        return with_log_checks(job, case.iterations, layout, row)

    def spec_values(self, case: Case, program: BoundProgram, hardware: Hardware) -> Mapping[str, object]:
        """Return model, layout, training, and what the rates of a job need."""
        from orchestrator.megatron.spec import ComputedProducts, TrainingSpec

        of_case = training_case(case)
        computes = ComputedProducts(
            causal_attention=self.causal_attention(of_case.training, program.arguments),
            skips_last_product=self.time.skips_last_product,
        )
        peak = hardware.peak(of_case.training.dtype) if case.device == "gpu" else None
        return TrainingSpec(of_case.model, of_case.layout, of_case.training, computes, peak).to_json()

    def exported_settings(self, case: Case, spec: JobSpec | None) -> Mapping[str, object]:
        """Return the settings of model, layout and training."""
        from orchestrator.megatron.spec import exported_settings

        return exported_settings(training_case(case), spec)

    def all_arguments(self, case: TrainingCase, site: Site) -> list[str]:
        """Return the arguments of a case; ReproError if the program lacks a setting of it."""
        lacking = self.unsupported_settings(case, site)
        if lacking is not None:
            raise ReproError(Problem(f"{case.name}: {lacking}"))
        own = without_flags(self.arguments(case, site), case.argument_changes)
        return [*case.arguments, *own] if self.case_arguments_first else [*own, *case.arguments]

    def memory_of(self, case: TrainingCase) -> MemoryFacts:
        """Return how the program uses memory with the options of a case.

        With `--grad-reduce-in-bf16` the gradients of 16-bit weights are a buffer of bf16 (grad_dtype in megatron-core's
        distributed/param_and_grad_buffer.py). Megatron-LM's own layers keep the scores of attention.
        """
        attention, shards = case.training.attention, case.training.distributed_optimizer
        own_attention = "unfused" if has_local_layers(case.arguments) else self.memory.attention
        sums_bf16 = case.training.dtype == "bf16" and "--grad-reduce-in-bf16" in case.arguments
        return replace(
            self.memory,
            attention=own_attention if attention is None else attention,
            gradient_bytes=2 if sums_bf16 else self.memory.gradient_bytes,
            shards_optimizer=self.memory.shards_optimizer if shards is None else shards,
            microbatch_slots=self.memory.microbatch_slots if _may_record(case.arguments) else None,
        )

    def estimate_memory(self, case: TrainingCase) -> MemoryEstimate:
        """Return the memory of a case by the program's closed form."""
        special = self.memory_formula(case)
        if special is not None:
            return special
        estimate = estimate_memory(case.model, case.layout, case.training, self.memory_of(case))
        return replace(estimate, calibrated=self.memory_measured)

    def causal_attention(self, training: Training, arguments: Sequence[str]) -> bool:
        """Return whether attention computes only the causal half of the scores.

        Flash attention does. Unfused attention computes all scores, as do Megatron-LM's own layers, which the argument
        `--transformer-impl local` requests.
        """
        return (training.attention or self.memory.attention) == "flash" and not has_local_layers(arguments)


AnyMegatronProgram = MegatronProgram[Any]


def with_log_checks(job: CanaryJob, iterations: int, layout: Layout, row: RowKey | None = None) -> CanaryJob:
    """Return the canary with the patterns of a complete log. `row` identifies the row of a program without iterations.

    The verdict (`megatron.logs.verdict`) also compares the other settings of the configuration that ran.
    """
    from orchestrator.launch.run_options import FileCheck

    sizes = {name: getattr(layout, name) for name in ("gpus", "tensor_parallel", "pipeline_parallel")}
    last, planned = (pattern.format(iterations=iterations) for pattern in (_LAST_ITERATION, _PLANNED))
    patterns = (_WORLD.format(**sizes),) if row is not None else (planned, _WORLD.format(**sizes))
    checks = (FileCheck("log.txt", pattern) for pattern in patterns)
    return replace(
        job,
        checks=(*job.checks, *checks, FileCheck("log.txt", _NOT_FINITE, must_match=False)),
        whole=last if row is None else row_pattern(row),
        has_samples=row is None,
    )


def _may_record(arguments: Sequence[str]) -> bool:
    """Return whether a pipeline of `pretrain` records CUDA graphs with these options (pretrain/graph.py)."""
    return not {"--overlap-grad-reduce", "--overlap-param-gather"}.intersection(arguments) and (
        ("--cuda-graph-impl", "none") not in pairwise(arguments)
    )


def has_local_layers(arguments: Collection[str]) -> bool:
    """Return whether the arguments select Megatron-LM's own layers, without transformer-engine."""
    return "--transformer-impl=local" in arguments or {"--transformer-impl", "local"} <= set(arguments)


def megatron_program(
    job: JobContext[Checkout],
    arguments: Sequence[str],
    *,
    data: str,
    default_commit: str | None = None,
    imports_checkout: bool = True,
    environment: tuple[tuple[str, str], ...] = (),
    needs_mpi: bool = False,
    warm_up: tuple[str, ...] = (),
    site_values: Iterable[tuple[str, tuple[str, ...]]] = (),
) -> BoundProgram:
    """Return the command that runs pretrain_gpt.py of the site's checkout.

    `imports_checkout`: the checkout is in PYTHONPATH. `site_values` are further arguments that come from the profile.
    """
    site = job.site
    script = f"{site.checkout}/pretrain_gpt.py"
    values = [(value, job.field(name)) for name, value in site.model_dump().items() if isinstance(value, str)]
    return BoundProgram(
        name=job.case.program,
        command=("python", "-u", script),
        arguments=tuple(arguments),
        python="python",
        code=job.commit(default_commit),
        image=job.image.name,
        image_path=job.image.path,
        image_digest=job.image.digest,
        python_path=site.checkout if imports_checkout else None,
        mounts=(site.checkout,),
        environment=environment,
        data=data,
        needs_mpi=needs_mpi,
        compiles_in=site.checkout if warm_up else None,
        warm_up=warm_up,
        site_values=((script, job.field("checkout")), *values, *site_values),
    )
