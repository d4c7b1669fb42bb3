"""`plan` shows the cases that `submit` would submit."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.catalog.library import experiment_names
from orchestrator.errors import ReproError
from orchestrator.paths import Folders
from tests.stand_in_site import CHECKOUT

NAMES = sorted(experiment_names(Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home")))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def equal_in_both(names: list[str], **options: str) -> list[api.Plan]:
    """Return the cases that would be submitted, which are those of the plan."""
    chosen = api.CaseOptions(example=True, **options)  # type: ignore[typeddict-item]
    shown, runs = api.plan(names, "selene", **chosen), api.plan_runs(names, "selene", **chosen)
    plans = [plan for run in runs for plan in run.plans]
    planned = [(one.case, one.checked.resources, one.checked.cost) for one in shown.batch.planned]
    assert planned == [(plan.case, plan.resources, plan.cost) for plan in plans]
    assert [row.case for row in shown.rows.values()] == [plan.case.name for plan in plans]
    notes = {note for note in shown.notes if not note.startswith("no prediction for")}
    assert notes <= {*runs[0].notes}
    return plans


@pytest.mark.parametrize("name", NAMES)
def test_cases_iterations_resources_and_predicted_times_of_a_plan_are_those_of_its_submission(name: str) -> None:
    for scale in ("pair", "cpu"):
        if scale in api.show(name).entry.experiment.scales:
            assert equal_in_both([name], scale=scale)


def test_the_experiments_of_a_paper_share_a_budget_in_a_plan_as_in_a_submission() -> None:
    names = ["figure-13", "figure-16"]
    least = api.plan(names, "selene", scale="pair", time_budget="99h", example=True).totals.run_s
    plans = equal_in_both(names, scale="pair", time_budget=f"{int(least or 0) - 1}s")
    assert len({plan.case.experiment for plan in plans}) == 2
    assert {plan.case.iterations for plan in plans} == {5}


def test_an_experiment_of_a_paper_without_such_cases_is_left_out_of_both_with_a_note() -> None:
    equal_in_both(["sc21"], scale="pair", where="pp=1")
    assert any("is left out: --where pp=1" in note for note in api.plan("sc21", scale="pair", where="pp=1").notes)
    with pytest.raises(ReproError, match="--where fields=1|no such axis"):
        api.plan("sc21", where="fields=1")
