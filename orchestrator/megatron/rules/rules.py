"""Rules of Megatron-LM, checked before a job is submitted, with messages in the paper's terms.

Numbers and sources are those of Megatron-LM at d98e8a64dd (2026-08-22); where an older one, Megatron-Kwai or our own
program asks for something else, a check says so. Rules 8, 9, 13 and 16 surface there only once the job runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.megatron.rules import argument_rules, layout_rules
from orchestrator.megatron.rules.rule_context import Dialect, RuleContext

__all__ = ["KWAI_RULES", "RULES", "Dialect", "Rule", "RuleContext", "broken_rules", "layout_warnings"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `check` yields a message for each violation; `source` is the code that enforces the rule."""

    number: int
    name: str
    source: str
    check: Callable[[RuleContext], Iterator[str]]


RULES = (
    Rule(1, "replicas fill the GPUs", "arguments.py:432, parallel_state.py:822", layout_rules.gpus),
    Rule(2, "positive batches", "arguments.py:694-706", layout_rules.batches_positive),
    Rule(3, "whole microbatches", "arguments.py:715, num_microbatches_calculator.py:381-391", layout_rules.batch),
    Rule(4, "layers per stage", "arguments.py:968,997, transformer_config.py:2382", layout_rules.layers_per_stage),
    Rule(5, "layers per virtual stage", "arguments.py:972-976", layout_rules.layers_per_virtual_stage),
    Rule(6, "one virtual-stage argument", "arguments.py:929", layout_rules.one_virtual_argument),
    Rule(7, "stages to interleave", "arguments.py:1000-1010", layout_rules.interleaved_stages),
    Rule(8, "microbatch group", "schedules.py:1160-1168", layout_rules.microbatch_group),
    Rule(9, "microbatches to interleave", "schedules.py:1172-1180", layout_rules.interleaved_microbatches),
    Rule(10, "heads per tensor rank", "transformer_config.py:1446", layout_rules.heads),
    Rule(11, "width of a head", "arguments.py:1332", layout_rules.head_width),
    Rule(12, "key-value groups per tensor rank", "transformer_config.py:1461", layout_rules.key_value_groups),
    Rule(13, "sharded widths", "tensor_parallel/layers.py:1038,1408", layout_rules.sharded_widths),
    Rule(14, "positions", "arguments.py:1354", layout_rules.positions),
    Rule(15, "sequence per context rank", "arguments.py:582,1335", layout_rules.context_parallel),
    Rule(16, "sequence per tensor rank", "tensor_parallel/mappings.py:74,178", layout_rules.sequence),
    Rule(17, "overlapped tensor communication", "arguments.py:1441", argument_rules.communication_overlap),
    Rule(18, "CUDA_DEVICE_MAX_CONNECTIONS", "arguments.py:1454-1479", argument_rules.connections),
    Rule(19, "experts", "arguments.py:1655-1658, parallel_state.py:881", layout_rules.experts),
    Rule(20, "recomputation", "arguments.py:1425, transformer_config.py:1905-1932", argument_rules.recomputation),
    Rule(21, "distributed activations", "arguments.py:1410", argument_rules.distributed_activations),
    Rule(22, "length and learning rate", "arguments.py:1275-1287,1360", argument_rules.length),
    Rule(23, "one arithmetic", "arguments.py:1195", argument_rules.arithmetic),
    Rule(24, "one source of data", "arguments.py:1679", argument_rules.data),
    Rule(25, "intervals", "arguments.py:1361,1370", argument_rules.intervals),
    Rule(26, "overlapped parameter gather", "arguments.py:1024-1029", argument_rules.parameter_gather),
)
"""Rules in the order of a start of Megatron-LM: sizes, then switches."""

KWAI_RULES = (
    Rule(27, "stages to offload", "Megatron-Kwai", argument_rules.offload_stages),
    Rule(28, "share to offload", "Megatron-Kwai", argument_rules.offload_share),
    Rule(29, "channels of context parallelism", "Megatron-Kwai, parallel_state.py:67-73", argument_rules.channels),
)
"""Further rules of ATC'24's implementation (arguments.py at b2646e4d9f)."""


def broken_rules(context: RuleContext) -> list[tuple[Rule, str]]:
    """Return every violation with its rule."""
    rules = RULES + KWAI_RULES if context.dialect == "kwai" else RULES
    return [(rule, reason) for rule in rules for reason in rule.check(context)]


def layout_warnings(context: RuleContext) -> Iterator[str]:
    """Yield warnings that nothing enforces.

    They are SC21's takeaway 1 (tensor parallelism inside a node), a vocabulary that differs from the case's, and
    settings that today's Megatron-LM changes or warns of (rules 16, 19 and 23).
    """
    layout, nodes_of = context.layout, context.gpus_per_node
    if nodes_of and layout.tensor_parallel > nodes_of:
        yield f"tensor-parallel {layout.tensor_parallel} spans nodes of {nodes_of} GPUs"
    if layout.sequence_parallel and not context.sequence_parallel:
        yield "sequence parallelism is switched off with tensor-parallel 1"
    if layout.expert_parallel > 1 and layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield "tensor-parallel with expert-parallel should use sequence parallelism"
    if context.vocabulary != context.model.vocab:
        yield f"the program makes the vocabulary {context.vocabulary:,}, the case has {context.model.vocab:,}"
    scaled = context.training.loss_scale or context.number("--loss-scale")
    if context.dialect == "now" and context.training.dtype == "fp16" and not scaled:
        yield "a dynamic loss scale switches the check for NaN off"
