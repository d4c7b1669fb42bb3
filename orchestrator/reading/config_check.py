"""Comparison of the planned configuration with the one in the log. Megatron-LM changes some settings silently."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import NewJob
from orchestrator.megatron.logs.alpa import RowKey
from orchestrator.megatron.model import Layout, ModelShape, padded_vocabulary, parameters_of_rank
from orchestrator.megatron.rules import read_flags
from orchestrator.reading.parse import LogReport
from orchestrator.workloads import workloads
from orchestrator.workloads.base import AnyWorkload
from orchestrator.workloads.needs import GPT2_TOKENS

_DEFAULT_DIVISOR = 128  # of --make-vocab-size-divisible-by, in every version
_POSITIONS = "--position-embedding-type"
_LLAMAS = {"--swiglu", "--normalization", _POSITIONS, "--disable-bias-linear", "--untie-embeddings-and-output-weights"}
_DTYPES = {
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float": "fp32",
}
_ON_CPU = " | device cpu"  # end of the software line of `orchestrator.pretrain`
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_PRETRAIN = re.compile(r"pretrain-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Expected:
    """Planned configuration of a job. A value that the plan does not determine is None, and not compared.

    `padded_vocabulary` is the number of rows of the embedding, `parameters` the number of parameters of a rank by
    pipeline stage, `commit` the commit of the checkout, `program` the version of `orchestrator.pretrain`. `device` is
    gpu or cpu.

    `result_row` identifies the row that the program prints in place of iteration lines; None for all other programs.
    `settings` are arguments that the log must list with exactly these values, beside the sizes.
    """

    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    iterations: int
    warmup_iterations: int = 0
    context_parallel: int | None = None
    data_parallel: int | None = None
    virtual_stages: int | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    seq: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    padded_vocabulary: int | None = None
    dtype: str | None = None
    parameters: tuple[int | None, ...] = field(default=())
    commit: str | None = None
    program: str | None = None
    device: str | None = None
    result_row: RowKey | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


# Name in messages, field of `Expected`, name in the dump of arguments of every version.
_SIZES = (
    ("world size", "gpus", "world_size"),
    ("tensor-parallel size", "tensor_parallel", "tensor_model_parallel_size"),
    ("pipeline-parallel size", "pipeline_parallel", "pipeline_model_parallel_size"),
    ("context-parallel size", "context_parallel", "context_parallel_size"),
    ("data-parallel size", "data_parallel", "data_parallel_size"),
    ("virtual stages", "virtual_stages", "virtual_pipeline_model_parallel_size"),
    ("layers", "layers", "num_layers"),
    ("hidden size", "hidden", "hidden_size"),
    ("attention heads", "heads", "num_attention_heads"),
    ("sequence length", "seq", "seq_length"),
    ("microbatch", "micro_batch_size", "micro_batch_size"),
    ("global batch", "global_batch_size", "global_batch_size"),
)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between the plan and the log. `is_of_world`: the log's line of the world size shows it."""

    reason: str
    is_of_world: bool = False


def expected_of(row: JobRow | NewJob) -> Expected:
    """Return the planned configuration of a job. Jobs of older versions of repro may lack some values."""
    layout, model, training = row.spec.layout, row.spec.model, row.spec.training
    flags = read_flags(row.spec.arguments)
    tensor = layout.tensor_parallel if layout else 1
    data = row.gpus // layout.model_parallel if layout else None
    workload = workloads().get(row.workload)
    if data and layout and workload is not None and workload.counts_context_as_data:
        data *= layout.context_parallel
    vocabulary = _vocabulary(flags, tensor)
    result_row: RowKey | None = None
    settings: Mapping[str, str] = {}
    if workload and workload.result_row and model and layout and training:
        vocabulary = model.vocab  # the program takes it from the case, and does not pad it
        result_row, settings = workload.result_row(model, layout), workload.printed_settings(model, training)
    return Expected(
        gpus=row.gpus,
        tensor_parallel=tensor,
        pipeline_parallel=layout.pipeline_parallel if layout else 1,
        iterations=row.iterations,
        warmup_iterations=row.spec.warmup_iterations,
        context_parallel=layout.context_parallel if layout else None,
        data_parallel=data,
        virtual_stages=layout.virtual_stages if layout else None,
        layers=model.layers if model else None,
        hidden=model.hidden if model else None,
        heads=model.heads if model else None,
        seq=model.seq if model else None,
        micro_batch_size=layout.micro_batch_size if layout else None,
        global_batch_size=layout.global_batch_size if layout else None,
        padded_vocabulary=vocabulary,
        dtype=training.dtype if training else None,
        parameters=_parameters(workload, model, layout, flags, vocabulary),
        commit=row.code if _COMMIT.fullmatch(row.code) else None,
        program=row.code if _PRETRAIN.fullmatch(row.code) else None,
        device=row.spec.device,
        result_row=result_row,
        settings=settings,
    )


def mismatches(report: LogReport, expected: Expected, commit: str | None = None) -> list[Mismatch]:
    """Return all differences between the plan and the log. Values that the log does not contain are not compared.

    `commit` is the commit of the checkout in the job's own record.
    """
    differences = [*_sizes(report, expected), *_others(report, expected, commit)]
    return list({mismatch.reason: mismatch for mismatch in reversed(differences)}.values())[::-1]


def unlisted_settings(report: LogReport, expected: Expected) -> list[str]:
    """Return the arguments that prove the planned configuration and that the log does not list."""
    sizes = [setting for _, planned_as, setting in _SIZES if planned_as != "context_parallel"]  # newer than 2021
    return [name for name in (*sizes, "params_dtype", *expected.settings) if name not in report.facts.settings]


def world_size_of(report: LogReport) -> int | None:
    """Return the world size from its own line of the log, else from the dump of arguments."""
    return report.world.world_size if report.world else _count(report.facts.settings.get("world_size"))


def _sizes(report: LogReport, expected: Expected) -> Iterator[Mismatch]:
    world, settings = report.world, report.facts.settings
    printed = {field.name: getattr(world, field.name) for field in fields(world)} if world else {}
    printed["gpus"] = printed.get("world_size")
    for name, planned_as, setting in _SIZES:
        planned = getattr(expected, planned_as)
        ran = printed.get(planned_as)
        is_of_world = ran is not None
        if ran is None:
            ran = _count(settings.get(setting))
        if ran is None and planned_as == "virtual_stages" and settings.get(setting) == "None":
            ran = 1
        if planned is not None and ran is not None and ran != planned:
            yield Mismatch(f"ran with {name} {ran}, not {planned}", is_of_world)


def _others(report: LogReport, expected: Expected, commit: str | None) -> Iterator[Mismatch]:
    facts = report.facts
    dtype = _dtype(facts.settings)
    if dtype and expected.dtype and dtype != expected.dtype:
        yield Mismatch(f"ran in {dtype}, not {expected.dtype}")
    vocabulary = expected.padded_vocabulary
    if facts.padded_vocab is not None and vocabulary is not None and facts.padded_vocab != vocabulary:
        yield Mismatch(f"ran with padded vocabulary {facts.padded_vocab}, not {vocabulary}")
    yield from _parameter_counts(facts.parameters, expected.parameters)
    for name, planned in expected.settings.items():
        if facts.settings.get(name, planned) != planned:
            yield Mismatch(f"ran with {name} {facts.settings[name]}, not {planned}")
    if facts.alpa is not None and expected.result_row is not None:
        for difference in facts.alpa.differences(expected.result_row):
            yield Mismatch(f"its result row has {difference}")
    if expected.device == "gpu" and (facts.software or "").endswith(_ON_CPU):  # torch found no GPU, and used the CPU
        yield Mismatch("ran on the CPU, not on GPUs")
    for version, folder in facts.programs.items():
        if expected.program and version != expected.program:
            yield Mismatch(f"ran {version} in {folder}, not {expected.program}")
    ran = facts.code_commit or commit
    if ran and expected.commit and _COMMIT.fullmatch(ran) and not _same_commit(ran, expected.commit):
        yield Mismatch(f"ran commit {ran[:12]}, not {expected.commit[:12]}")


def _parameter_counts(ran: Mapping[tuple[int, int], int], planned: Sequence[int | None]) -> Iterator[Mismatch]:
    """Yield the first rank whose number of parameters differs. Ranks of stages outside the plan are ignored."""
    for (tensor, stage), count in sorted(ran.items()):
        expected = planned[stage] if stage < len(planned) else None
        if expected is not None and count != expected:
            rank = f"tensor-parallel rank {tensor} of stage {stage}"
            yield Mismatch(f"ran with {count} parameters on {rank}, not {expected}")
            return


def _vocabulary(flags: Mapping[str, tuple[str, ...]], tensor_parallel: int) -> int | None:
    """Return the rows of the embedding that follow from the arguments; None if they do not determine the vocabulary.

    NullTokenizer adds one entry to its argument, until core 0.17. For no argument list of ours does that matter later.
    """

    def number(flag: str) -> int | None:
        return _count((flags.get(flag) or ("",))[0])

    given, divisor = number("--vocab-size"), number("--make-vocab-size-divisible-by")
    if number("--padded-vocab-size") is not None:
        return number("--padded-vocab-size")
    tokenizer = (flags.get("--tokenizer-type") or ("",))[0]
    if tokenizer == "NullTokenizer" and given is not None:
        tokens = given + 1
    elif tokenizer in ("", "GPT2BPETokenizer") and "--vocab-file" in flags:
        tokens = GPT2_TOKENS
    elif not tokenizer and given is not None:  # `orchestrator.pretrain` pads only with the argument for it
        if "--make-vocab-size-divisible-by" not in flags:
            return given
        tokens = given
    else:
        return None
    return padded_vocabulary(tokens, tensor_parallel, divisor or _DEFAULT_DIVISOR)


def _parameters(
    workload: AnyWorkload | None,
    model: ModelShape | None,
    layout: Layout | None,
    flags: Mapping[str, tuple[str, ...]],
    vocabulary: int | None,
) -> tuple[int | None, ...]:
    """Return the parameters of a rank by pipeline stage if the workload's are known exactly.

    They are not known if a case sets arguments that shape its layers.
    """
    if model is None or layout is None:
        return ()
    given = _LLAMAS if model.family == "llama" else {_POSITIONS} if model.has_rotary_positions else set()
    if workload is None or not workload.exact_parameters or vocabulary is None:
        return ()
    if _LLAMAS & set(flags) != given:
        return ()
    return tuple(parameters_of_rank(model, layout, stage, vocabulary) for stage in range(layout.pipeline_parallel))


def _dtype(settings: Mapping[str, str]) -> str | None:
    dtype = _DTYPES.get(settings.get("params_dtype", ""))
    if dtype:
        return dtype
    switched_on = [name for name in ("fp16", "bf16") if settings.get(name) == "True"]
    return switched_on[0] if len(switched_on) == 1 else None


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None


def _same_commit(first: str, second: str) -> bool:
    """Return whether two commits are the same. Either may be abbreviated."""
    return first.startswith(second) or second.startswith(first)
