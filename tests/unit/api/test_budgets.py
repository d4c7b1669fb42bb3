"""Time budgets: fewer iterations, the same number in plan, submission, retry and results."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from orchestrator import api
from tests.unit.api.project import Project, counts
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def four_gpus(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project on a machine with four H200."""
    program = project.folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "$i, GPU-a$i, NVIDIA H200, 143771"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return project


def tight_s() -> int:
    """Return the seconds for one iteration less of each case."""
    return int(api.plan("figure-13", "here", scale="quad", time_budget="1h").totals.run_s or 0) - 1


def run(project: Project, budget: str | None = None, **options: Any) -> api.Submission:
    return project.run(None, scale="quad", time_budget=budget, **options)


def test_the_same_budget_finds_the_same_jobs_and_the_latest_run_counts(
    four_gpus: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The later of two runs is the one of the later second, here without waiting for the next one.
    ids = (f"20260101-0000{number:02d}-0000" for number in itertools.count())
    monkeypatch.setattr("orchestrator.launch.submit.new_run_id", lambda: next(ids))
    budget_s = tight_s()
    assert counts(run(four_gpus, f"{budget_s}s")) == {"submitted": 6}
    assert any(text.startswith("note: 7 iterations instead of 8: 6 jobs, ") for text in four_gpus.messages)
    assert {(job.iteration, job.iterations) for job in four_gpus.jobs().values()} == {(7, 7)}
    assert counts(run(four_gpus)) == {"submitted": 6} and len(four_gpus.site.started()) == 12
    for budget, iterations in ((f"0:{budget_s // 60:02}:{budget_s % 60:02}", 7), (None, 8)):
        assert counts(run(four_gpus, budget)) == {"done": 6}
        rows = api.collect("figure-13", session=four_gpus.session).rows
        assert {(row["iterations"], row["verdict"]) for row in rows} == {(iterations, "verified")}


@pytest.mark.usefixtures("four_gpus")
def test_repeats_share_the_budget_equally() -> None:
    def jobs(budget_s: int, repeat: int) -> tuple[dict[tuple[str, int], str], list[str]]:
        (planned,) = api.plan_runs("figure-13", "here", scale="quad", time_budget=f"{budget_s}s", repeat=repeat)
        return {(plan.case.name, plan.repeat): plan.identity for plan in planned.plans}, [*planned.notes]

    budget_s = tight_s()
    (once, _), (twice, notes) = jobs(budget_s, 1), jobs(2 * budget_s + 1, 2)
    assert f"each of the 2 repeats has {budget_s}s of --time-budget {2 * budget_s + 1}s" in notes
    assert len(twice) == 12 and once.items() <= twice.items()


def test_a_retry_keeps_the_iterations_that_a_budget_left(four_gpus: Project) -> None:
    four_gpus.site.behave("fail", "pp1-gbs32")
    run(four_gpus, f"{tight_s()}s")
    four_gpus.site.behave("well", "pp1-gbs32")
    assert four_gpus.retry(classes="gpu-oom") == 1
    wait_until(lambda: four_gpus.verdicts() == ["verified"] * 6)
    assert {job.iteration for job in four_gpus.jobs().values()} == {7}
