"""Settings of a run: which belong to the profile and which to the cases, and how a retry changes them."""

from __future__ import annotations

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.errors import ReproError
from orchestrator.planning.batch_plan import over, read_settings
from tests.cases import cases_to_run
from tests.unit.catalog.entries import shipped


def test_settings_of_cases_change_each_case_and_leave_the_profile_alone() -> None:
    settings = read_settings(["slurm.qos=high", "training.iterations=50", "time_limit=0:10:00"])
    assert [setting.text for setting in settings.of_profile] == ["slurm.qos=high"]
    cases = settings.applied(cases_to_run(shipped("figure-13"), "cpu"))
    assert {(case.training.iterations, case.time_limit) for case in cases} == {(50, "0:10:00")}


def test_iterations_of_a_program_that_plans_none_are_refused_and_not_ignored() -> None:
    settings = read_settings(["training.iterations=5"])
    with pytest.raises(ReproError, match=r"training\.iterations=5: train_toy\.py has no such setting"):
        settings.applied(expand(shipped("loss")))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("slrum.qos=x", '--set slrum.qos=x: slrum: no such field. Did you mean "slurm"?'),
        (
            "model.layers=2",
            "--set model.layers=2: model.layers can be changed in a file only. Hint: write an experiment",
        ),
        ("extends=selene", "--set extends=selene: extends can be changed in a file only. Hint: write a profile"),
        ("training.iterations=0", "--set training.iterations=0: training.iterations: must be 1 or more"),
        ("training.dtype=bf16", "--set training.dtype=bf16: dtype: unknown field"),
        ("time_limit=soon", '--set time_limit=soon: time_limit: must be a time such as "4:00:00" or "1-00:00:00", got'),
    ],
)
def test_a_setting_that_no_run_can_have_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(ReproError) as caught:
        read_settings([text])
    assert str(caught.value).startswith(problem)


def test_a_retry_keeps_settings_that_it_does_not_replace() -> None:
    recorded = ["slurm.qos=high", "slurm.sbatch+=--a", "environment.A=1"]
    assert over(recorded, []) == tuple(recorded)
    assert over(recorded, ["slurm.qos=low", "environment={B: 2}"]) == (
        "slurm.sbatch+=--a",
        "slurm.qos=low",
        "environment={B: 2}",
    )
