"""Rules of Megatron-LM, checked before a job is submitted, with messages in the paper's terms.

Line numbers of sources are those of Megatron-LM at d98e8a64dd (2026-08-22). Some checks have other conditions for older
versions, Megatron-Kwai and `pretrain`. Megatron-LM itself checks rules 8, 9, 13 and 16 only when the job runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.megatron.rules import argument_rules, layout_rules
from orchestrator.megatron.rules.argument_rules import KWAI_RULES
from orchestrator.megatron.rules.rule_context import Dialect, Rule, RuleContext

__all__ = ["KWAI_RULES", "RULES", "Dialect", "Rule", "RuleContext", "broken_rules", "layout_warnings"]


_ALL = (part for module in (layout_rules, argument_rules) for part in vars(module).values() if isinstance(part, Rule))
RULES = tuple(sorted(set(_ALL) - set(KWAI_RULES), key=lambda rule: rule.number))
"""Rules in the order of a start of Megatron-LM: sizes, then switches."""


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
        yield f"tensor-parallel {layout.tensor_parallel} spans nodes of {nodes_of} GPU{'' if nodes_of == 1 else 's'}"
    if layout.sequence_parallel and not context.sequence_parallel:
        yield "sequence parallelism is switched off with tensor-parallel 1"
    if layout.expert_parallel > 1 and layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield "tensor-parallel with expert-parallel should use sequence parallelism"
    if context.vocabulary != context.model.vocab:
        yield f"the program makes the vocabulary {context.vocabulary:,}, the case has {context.model.vocab:,}"
    scaled = context.training.loss_scale or context.number("--loss-scale")
    if context.dialect == "now" and context.training.dtype == "fp16" and not scaled:
        yield "a dynamic loss scale switches the check for NaN off"
