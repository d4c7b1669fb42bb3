"""What was planned, held against what the log says ran: a clamped layout or a lone rank trains without complaint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from orchestrator.ledger.rows import JobRow
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape, padded_vocabulary, parameters_of_rank
from orchestrator.megatron.rules.rule_context import read_flags
from orchestrator.reading.parse import LogReport
from orchestrator.workloads import workloads
from orchestrator.workloads.base import GPT2_TOKENS, AnyWorkload

_USUAL_DIVISOR = 128  # of --make-vocab-size-divisible-by, in every version
_LLAMAS = {"--swiglu", "--normalization", "--position-embedding-type", "--disable-bias-linear"} | {
    "--untie-embeddings-and-output-weights"
}
_DTYPES = {
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float": "fp32",
}
_ON_CPU = " | device cpu"  # as our own program ends that line
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class Expected:
    """What the plan says a job runs as; what it cannot say is None, and not judged.

    `padded_vocabulary` is rows of the embedding, `parameters` how many a rank of each pipeline stage has, `commit` the
    checkout's, `device` is gpu or cpu.
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
    device: str | None = None


# What it is called in words, its field above, its name in the dump of arguments of every version.
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


def expected_of(row: JobRow) -> Expected:
    """What was planned, as the ledger has it. What an older repro recorded may lack some of it."""
    layout, model, training = row.spec.layout, row.spec.model, row.spec.training
    flags = read_flags(row.spec.arguments)
    tensor = layout.tensor_parallel if layout else 1
    data = row.gpus // layout.model_parallel if layout else None
    workload = workloads().get(row.workload)
    if data and layout and workload is not None and workload.counts_context_as_data:
        data *= layout.context_parallel
    vocabulary = _vocabulary(flags, tensor)
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
        device=row.spec.device,
    )


def mismatches(report: LogReport, expected: Expected, commit: str | None = None) -> list[Mismatch]:
    """Everything that ran otherwise than planned. What a log does not say is none of it; `commit` is what the job's
    own record says of its checkout.
    """
    found = [*_sizes(report, expected), *_rest(report, expected, commit)]
    return list({mismatch.reason: mismatch for mismatch in reversed(found)}.values())[::-1]


def world_size_of(report: LogReport) -> int | None:
    """What the log says, in the line of its own or among its arguments."""
    return report.world.world_size if report.world else _whole(report.facts.settings.get("world_size"))


def _sizes(report: LogReport, expected: Expected) -> Iterator[Mismatch]:
    world, settings = report.world, report.facts.settings
    told = {field.name: getattr(world, field.name) for field in fields(world)} if world else {}
    told["gpus"] = told.get("world_size")
    for name, planned_as, setting in _SIZES:
        planned = getattr(expected, planned_as)
        ran = told.get(planned_as)
        is_of_world = ran is not None
        if ran is None:
            ran = _whole(settings.get(setting))
        if ran is None and planned_as == "virtual_stages" and settings.get(setting) == "None":
            ran = 1
        if planned is not None and ran is not None and ran != planned:
            yield Mismatch(f"ran with {name} {ran}, not {planned}", is_of_world)


def _rest(report: LogReport, expected: Expected, commit: str | None) -> Iterator[Mismatch]:
    facts = report.facts
    dtype = _dtype(facts.settings)
    if dtype and expected.dtype and dtype != expected.dtype:
        yield Mismatch(f"ran in {dtype}, not {expected.dtype}")
    vocabulary = expected.padded_vocabulary
    if facts.padded_vocab is not None and vocabulary is not None and facts.padded_vocab != vocabulary:
        yield Mismatch(f"ran with padded vocabulary {facts.padded_vocab}, not {vocabulary}")
    yield from _counts(facts.parameters, expected.parameters)
    if expected.device == "gpu" and (facts.software or "").endswith(_ON_CPU):  # torch saw none, and went on without
        yield Mismatch("ran on the CPU, not on GPUs")
    ran = facts.code_commit or commit
    if ran and expected.commit and _COMMIT.fullmatch(ran) and not _same_commit(ran, expected.commit):
        yield Mismatch(f"ran commit {ran[:12]}, not {expected.commit[:12]}")


def _counts(ran: Mapping[tuple[int, int], int], planned: Sequence[int | None]) -> Iterator[Mismatch]:
    """Of the ranks that differ the first; a rank of a stage that was not planned is another matter."""
    for (tensor, stage), count in sorted(ran.items()):
        wanted = planned[stage] if stage < len(planned) else None
        if wanted is not None and count != wanted:
            where = f"tensor-parallel rank {tensor} of stage {stage}"
            yield Mismatch(f"ran with {count} parameters on {where}, not {wanted}")
            return


def _vocabulary(flags: Mapping[str, tuple[str, ...]], tensor_parallel: int) -> int | None:
    """Rows of the embedding that the program makes of its arguments; None where they do not say how many entries it
    has. NullTokenizer has one more than it is told, until core 0.17, and no argument list of ours tells it one with
    which that makes a difference later.
    """

    def number(flag: str) -> int | None:
        return _whole((flags.get(flag) or ("",))[0])

    given, divisor = number("--vocab-size"), number("--make-vocab-size-divisible-by")
    if number("--padded-vocab-size") is not None:
        return number("--padded-vocab-size")
    tokenizer = (flags.get("--tokenizer-type") or ("",))[0]
    if tokenizer == "NullTokenizer" and given is not None:
        tokens = given + 1
    elif tokenizer in ("", "GPT2BPETokenizer") and "--vocab-file" in flags:
        tokens = GPT2_TOKENS
    elif not tokenizer and given is not None:  # our own program, which pads only where it is told to
        if "--make-vocab-size-divisible-by" not in flags:
            return given
        tokens = given
    else:
        return None
    return padded_vocabulary(tokens, tensor_parallel, divisor or _USUAL_DIVISOR)


def _parameters(
    workload: AnyWorkload | None,
    model: ModelShape | None,
    layout: Layout | None,
    flags: Mapping[str, tuple[str, ...]],
    vocabulary: int | None,
) -> tuple[int | None, ...]:
    """By pipeline stage. Of our own program alone: it prints no arguments, and its count is known to the last one,
    unless a case types itself what shapes its layers.
    """
    if model is None or layout is None:
        return ()
    is_llama = model.family == "llama"
    if workload is None or not workload.is_own or vocabulary is None:
        return ()
    if _LLAMAS & set(flags) != (_LLAMAS if is_llama else set()):
        return ()
    return tuple(parameters_of_rank(model, layout, stage, vocabulary) for stage in range(layout.pipeline_parallel))


def _dtype(settings: Mapping[str, str]) -> str | None:
    named = _DTYPES.get(settings.get("params_dtype", ""))
    if named:
        return named
    given = [name for name in ("fp16", "bf16") if settings.get(name) == "True"]
    return given[0] if len(given) == 1 else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None


def _same_commit(one: str, other: str) -> bool:
    """Either may be abbreviated."""
    return one.startswith(other) or other.startswith(one)
