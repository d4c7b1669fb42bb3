"""Problems of a log of Megatron-LM, `orchestrator.pretrain` or Alpa's benchmark, and the verdict from them.

An attempt is verified if the job ended well, ran as planned, its last planned iteration was read, no number is NaN, and
not most iterations were skipped. The scheduler's state alone verifies nothing. An attempt that reached its time limit
is partial if it has enough samples (`has_enough`), and nothing else is wrong.
`templates/gate.sh.j2` has the same rules, as far as a job can check them.

The planned configuration is compared with the one in the log, because Megatron-LM changes some settings silently.

Alpa's benchmark prints no iteration. Its result row counts in place of the last one. The row does not contain the batch
size and the layout, so the log must also list the arguments, and the program's table must end with the same row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.runs import NewJob
from orchestrator.ledger.tables import ENDED
from orchestrator.megatron.logs.alpa import TABLE, RowKey
from orchestrator.megatron.logs.iteration_lines import implausible_number
from orchestrator.megatron.logs.parse import LogReport
from orchestrator.megatron.logs.statistics import has_enough, mostly_skipped
from orchestrator.megatron.model import Layout, ModelShape, padded_vocabulary, parameters_of_rank
from orchestrator.megatron.programs import megatron_named
from orchestrator.megatron.programs.base import GPT2_TOKENS, AnyMegatronProgram
from orchestrator.megatron.spec import training_spec
from orchestrator.programs.command import read_flags
from orchestrator.reading.causes import Cause
from orchestrator.reading.failure import (
    DECIDES_ANY_END,
    Ending,
    Judgement,
    LogFindings,
    Mismatch,
    judgement_of,
    other_commit,
)
from orchestrator.text import counted

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
    """Planned configuration of a job. A value that the plan does not determine is None or absent, and not compared.

    `sizes` are by the names in `_SIZES`. `padded_vocabulary` is the number of rows of the embedding, `parameters` the
    number of parameters of a rank by pipeline stage, `commit` the commit of the checkout, `program` the version of
    `orchestrator.pretrain`. `device` is gpu or cpu.

    `result_row` identifies the row that the program prints in place of iteration lines; None for all other programs.
    `settings` are arguments that the log must list with exactly these values, beside the sizes.
    """

    iterations: int
    sizes: Mapping[str, int]
    padded_vocabulary: int | None = None
    dtype: str | None = None
    parameters: tuple[int | None, ...] = field(default=())
    commit: str | None = None
    program: str | None = None
    device: str | None = None
    result_row: RowKey | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


# Name in messages, field of the planned layout or model, name in the dump of arguments of every version.
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


def expected_of(row: JobRow | NewJob) -> Expected:
    """Return the planned configuration of a job. Jobs of older versions of repro may lack some values."""
    own = training_spec(row.spec)
    layout, model, training = own.layout, own.model, own.training
    flags = read_flags(row.spec.arguments)
    data = row.gpus // layout.model_parallel if layout else None
    program = megatron_named(row.program)
    if data and layout and program is not None and program.counts_context_as_data:
        data *= layout.context_parallel
    vocabulary = _vocabulary(flags, layout.tensor_parallel if layout else 1)
    result_row: RowKey | None = None
    settings: Mapping[str, str] = {}
    if program and program.result_row and model and layout and training:
        vocabulary = model.vocab  # the program takes it from the case, and does not pad it
        result_row, settings = program.result_row(model, layout), program.printed_settings(model, training)
    sizes: dict[str, int] = {"tensor_parallel": 1, "pipeline_parallel": 1}
    sizes |= {name: getattr(part, name) for part in (layout, model) for _, name, _ in _SIZES if hasattr(part, name)}
    sizes |= {"gpus": row.gpus} | ({"data_parallel": data} if data is not None else {})
    return Expected(
        iterations=row.iterations,
        sizes=sizes,
        padded_vocabulary=vocabulary,
        dtype=training.dtype if training else None,
        parameters=_parameters(program, model, layout, flags, vocabulary),
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
    return report.facts.world.world_size if report.facts.world else _count(report.facts.settings.get("world_size"))


def _sizes(report: LogReport, expected: Expected) -> Iterator[Mismatch]:
    world, settings = report.facts.world, report.facts.settings
    printed = {field.name: getattr(world, field.name) for field in fields(world)} if world else {}
    printed["gpus"] = printed.get("world_size")
    for name, planned_as, setting in _SIZES:
        planned = expected.sizes.get(planned_as)
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
    yield from other_commit(facts.code_commit or commit, expected.commit)


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
    program: AnyMegatronProgram | None,
    model: ModelShape | None,
    layout: Layout | None,
    flags: Mapping[str, tuple[str, ...]],
    vocabulary: int | None,
) -> tuple[int | None, ...]:
    """Return the parameters of a rank by pipeline stage if the program's are known exactly.

    They are not known if a case sets arguments that shape its layers.
    """
    if model is None or layout is None:
        return ()
    given = _LLAMAS if model.family == "llama" else {_POSITIONS} if model.has_rotary_positions else set()
    if program is None or not program.exact_parameters or vocabulary is None:
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


def judge(
    report: LogReport, expected: Expected, ending: Ending, find_cause: Callable[[], Cause | None]
) -> Judgement | None:
    """Return the judgement; None if the job has not ended.

    The lines of the report are those of `with_used`. `find_cause` searches the log for errors. It is called only if the
    attempt is not verified by the other checks.
    """
    if ending.phase != ENDED:
        return None
    not_finite = _not_finite(report)
    has_result = bool(report.iterations) or report.facts.alpa is not None
    unknown = ["the log has no world size"] if has_result and world_size_of(report) is None else []
    lacking = _lacking(report, expected)
    findings = LogFindings(
        differs=mismatches(report, expected, ending.commit),
        reasons=[*unknown, *not_finite],
        lacking=[lacking] if lacking is not None else [],
        is_finite=not not_finite,
        at_limit=lambda cause: _result_at_limit(report, expected, cause),
    )
    return judgement_of(findings, ending, find_cause)


def _lacking(report: LogReport, expected: Expected) -> str | None:
    """Return what the log of a complete run has and this log does not; None if it is complete."""
    if expected.result_row is not None:
        return _lacking_of_row(report, expected)
    if report.last_iteration is None:
        return "the log has no iteration"
    if report.last_iteration < expected.iterations:
        return f"the log ends at iteration {report.last_iteration} of {expected.iterations}"
    return None


def _lacking_of_row(report: LogReport, expected: Expected) -> str | None:
    row, unlisted = report.facts.alpa, unlisted_settings(report, expected)
    if row is None:
        return "the log has no result row"
    if row.tflops is None:
        return "its result row has no throughput"
    if not report.facts.settings:
        return "the log has no list of arguments"
    if unlisted:
        return f"its list of arguments lacks {', '.join(unlisted)}"
    if report.table_row is None:
        return f"{TABLE} in its folder has no row"
    if report.table_row != row:
        return f"the last row of {TABLE} is not the one in the log"
    return None


def _result_at_limit(report: LogReport, expected: Expected, cause: Cause | None) -> str | None:
    """Return how far a job came until its time limit; None if that is not a result.

    A program without iteration lines has none. A failed rank may be why the others waited until the limit.
    """
    last = report.last_iteration
    if last is None:
        return None
    is_whole = last >= expected.iterations
    if is_whole and report.facts.says_done:
        return "reached its time limit after its training was done"
    if cause is not None and cause.kind in DECIDES_ANY_END:
        return None
    if not has_enough(report.iterations, expected.iterations):
        return None
    samples = sum(line.used for line in report.iterations)
    return f"reached its time limit at iteration {last} of {expected.iterations}, with {counted(samples, 'sample')}"


def _not_finite(report: LogReport) -> list[str]:
    line = next((line for line in report.iterations if not line.is_finite), None)
    row, skipped = report.facts.alpa, mostly_skipped(report.iterations)
    if line is None and row is not None and not math.isfinite(row.tflops or 0):
        return [f"the throughput in its result row is {row.tflops}"]
    if line is None:
        return [skipped] if skipped else []
    number = implausible_number(line.iteration, line.iteration, line.elapsed_ms, line.loss, line.grad_norm)
    if number is None or "nan" in number or "inf" in number:  # the ledger keeps no number that is NaN
        return [f"NaN, infinite or missing numbers at iteration {line.iteration}"]
    return [f"impossible number at iteration {line.iteration}: {number}"]
