"""Whether a program can be told a case at all, wherever it is to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.catalog.case import Case
from orchestrator.errors import ReproError
from orchestrator.workloads import (
    megatron_2021,
    megatron_2026,
    megatron_alpa,
    megatron_core,
    megatron_kwai,
    pretrain,
)

_PATH = "/"
"""Where a site keeps data changes no answer here."""

_TELL: Mapping[str, Callable[[Case], object]] = {
    "pretrain": pretrain.job_arguments,
    "megatron-2021": lambda case: megatron_2021.arguments(case, _PATH, _PATH, _PATH),
    "megatron-2026": lambda case: megatron_2026.arguments(case, None),
    "megatron-kwai": lambda case: megatron_kwai.kwai_arguments(case, _PATH),
    "megatron-jan-2024": lambda case: megatron_kwai.origin_arguments(case, _PATH),
    "megatron-core-0.14": lambda case: megatron_core.arguments(case, _PATH, _PATH, _PATH),
    "megatron-tutorial-fork": lambda case: megatron_core.arguments(case, _PATH, _PATH, _PATH),
    "megatron-alpa": megatron_alpa.arguments,
}


def unsupported(case: Case) -> list[str]:
    """What of the case its program has no words for."""
    tell = _TELL.get(case.workload)
    if tell is None:
        return []
    try:
        tell(case)
    except ReproError as error:
        return [str(problem).removeprefix(f"{case.name}: ") for problem in error.problems]
    return []
