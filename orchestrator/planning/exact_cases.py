"""Cases -> the real model's plan of them: in the arguments of our own program, with the habits of the case's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.planning.exact import ExactJob, RankMemory, exact_memory
from orchestrator.workloads import pretrain
from orchestrator.workloads.traits import traits_of


@dataclass(frozen=True, slots=True)
class ExactCase:
    """What the GPU that needs most of a case holds. `parameters` are its own, of pipeline stage `stage`."""

    parameters: int
    stage: int
    total_bytes: int


def plan_exactly(cases: Sequence[Case]) -> list[ExactCase | str]:
    """Each case by the real model; in place of one that cannot be planned stands the reason, in one line."""
    results: list[ExactCase | str] = [_not_ours(case) or "" for case in cases]
    planned = [i for i, reason in enumerate(results) if not reason]
    for i, found in zip(planned, exact_memory([exact_job(cases[i]) for i in planned]), strict=True):
        if isinstance(found, str):
            results[i] = found
            continue
        facts = traits_of(cases[i].workload).memory_of(cases[i])
        worst = max(found.ranks, key=lambda rank: _total_bytes(rank, facts))
        results[i] = ExactCase(worst.parameters, worst.pipeline_rank, _total_bytes(worst, facts))
    return results


def exact_job(case: Case) -> ExactJob:
    """The case as our program would run it, less what the case's own program does not do."""
    facts = traits_of(case.workload).memory_of(case)
    arguments = [argument for argument in pretrain.arguments(case) if argument not in case.arguments]
    if not facts.shards_optimizer and "--use-distributed-optimizer" in arguments:
        arguments.remove("--use-distributed-optimizer")
    if not facts.fuses_weight_gradients:  # as Megatron-LM of 2021, which fuses neither this nor the loss
        arguments += ["--no-gradient-accumulation-fusion", "--no-cross-entropy-fusion"]
    if facts.microbatch_slots is None:
        arguments += ["--cuda-graph-impl", "none"]
    return ExactJob(tuple(arguments), case.layout.gpus, facts.attention, facts.frees_outputs)


def _not_ours(case: Case) -> str | None:
    if case.model.experts:
        return "the exact planner builds no experts"
    if case.device == "cpu":
        return "planned for GPUs only"
    return None


def _total_bytes(rank: RankMemory, facts: MemoryFacts) -> int:
    """Megatron-Core keeps gradients of four bytes. Where the program's have two, it is that much less, and the
    optimizer's step makes fp32 copies of them while there are no activations."""
    narrower = (4 - facts.gradient_bytes) * rank.parameters
    states = rank.weights_and_gradients_bytes - narrower + rank.optimizer_bytes
    step = 4 * rank.parameters if narrower and not facts.shards_optimizer else 0
    return states + max(rank.activations_peak_bytes, step)
