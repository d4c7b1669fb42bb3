"""Tests of the budget of a search."""

from __future__ import annotations

import pytest

from orchestrator.errors import ReproError
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.search.answer import EndedTrial
from orchestrator.megatron.search.api import SearchOptions, affordable
from orchestrator.megatron.search.candidates import Budget, Corrected, read_search_budget
from tests.unit.megatron.search.test_policy import candidate

START_UP_S = find_megatron("pretrain").time.start_up_s


def corrected(name: str, iteration_ms: float) -> Corrected:
    return Corrected(candidate(name, iteration_ms), iteration_ms, iteration_ms)


def trial(job_s: float) -> EndedTrial:
    return EndedTrial("done", "0123", 8, 100.0, None, None, job_s, 16 * job_s / 3600)


def test_jobs_fit_the_rest_of_the_budget_with_start_up_and_the_corrected_time_of_all_gpus() -> None:
    job_s = START_UP_S + 10 * 2.0  # 10 iterations of 2 s
    order = [corrected("a", 2000), corrected("b", 2000), corrected("c", 2000)]
    for jobs in range(4):
        hours = 16 * (100 + jobs * job_s) / 3600  # 100 s were used
        options = SearchOptions(Budget(gpu_hours=hours + 1e-9))
        assert [one.candidate.name for one in affordable(order, [trial(100)], options, 10)] == ["a", "b", "c"][:jobs]
        options = SearchOptions(Budget(job_s=100 + jobs * job_s))
        assert len(affordable(order, [trial(100)], options, 10)) == jobs


def test_on_cpu_cores_the_last_job_is_the_prediction() -> None:
    order = [Corrected(candidate("a", 1.0, gpu_hours=None), 1.0, 1.0)]
    assert affordable(order, [], SearchOptions(Budget(job_s=1)), 10) == order, "nothing is known before the first job"
    assert affordable(order, [trial(30)], SearchOptions(Budget(job_s=59)), 10) == []
    assert affordable(order, [trial(30)], SearchOptions(Budget(job_s=60)), 10) == order


def test_a_budget_is_gpu_hours_or_the_time_of_all_jobs() -> None:
    assert read_search_budget("6gpu-hours") == Budget(gpu_hours=6)
    assert read_search_budget("0.5 gpu-hours") == Budget(gpu_hours=0.5)
    assert read_search_budget("30m") == read_search_budget("0:30:00") == Budget(job_s=1800)
    for text in ("6", "0gpu-hours", "-1gpu-hours", "6 hours", ""):
        with pytest.raises(ReproError, match="not a budget"):
            read_search_budget(text)
