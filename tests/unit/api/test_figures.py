"""Results of figures: claims, comparisons, and the attempts and runs that count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator import api
from orchestrator.catalog.library import find_experiment
from tests.recorded_jobs import CRASHED, START, Outcome, record_results
from tests.unit.api.project import Project
from tests.unit.catalog.entries import shipped

QUAD = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 32 + 4.0 / pp for pp in (1, 2, 4) for gbs in (32, 128)}
FLAT = dict.fromkeys(QUAD, 5.0) | {"pp=4,tp=1,gbs=128": 4.0}
"""Rates with which the claims of figure 13 about rates hold at scale quad, and with which they fail."""
TABLE_1 = {"case=1.7B": 137.0, "case=3.6B": 138.0, "case=7.5B": 142.0}
"""Rates of SC21 table 1 as printed."""
NEXT_DAY = START + timedelta(days=1)


def record(
    project: Project,
    outcomes: dict[str, Any],
    day: int = 0,
    figure: str = "figure-13",
    scale: str = "cpu",
    **options: Any,
) -> str:
    """Record a run of these cases; columns of an attempt are an outcome without numbers."""
    shown = {case: Outcome(columns=one) if isinstance(one, dict) else one for case, one in outcomes.items()}
    at = START + timedelta(days=day)
    return record_results(project.ledger, shipped(figure), scale, shown, at=at, **options)


def claims(project: Project, *names: str, **selection: Any) -> api.JudgedClaims:
    return api.claims(names, session=project.session, **selection)


def verdicts(judged: api.JudgedClaims) -> dict[str, str]:
    return {claim.claim.id: claim.verdict for figure in judged.outcomes for claim in figure.claims}


# ---- claims --------------------------------------------------------------------------------------------------


def test_a_verdict_has_the_numbers_behind_it_and_its_margin(project: Project) -> None:
    record(project, QUAD, scale="quad")
    judged = claims(project, "figure-13")
    assert sorted(verdicts(judged).values()) == ["holds"] + ["not judged"] * 5 and not judged.failed
    (figure,) = judged.outcomes
    gain = next(claim for claim in figure.claims if claim.claim.id == "deep-pipeline-needs-batch")
    assert (figure.entry.name, figure.scale, figure.cluster) == ("sc21/figure-13", "quad", "selene")
    assert (gain.verdict, gain.claim.kind) == ("holds", "gain")
    assert [(one.metric, one.value) for one in gain.used] == [("tflops_per_gpu", rate) for rate in QUAD.values()]
    assert all(one.job and one.spread for one in gain.used)
    margin = gain.margin
    assert margin is not None and (margin.number, margin.bound) == pytest.approx((2.5, 1.0))
    assert margin.low is not None and margin.high is not None and margin.low < margin.number < margin.high


def test_a_claim_that_fails_and_a_job_that_failed_are_failures_and_noise_is_none(project: Project) -> None:
    record(project, FLAT, scale="quad")
    assert claims(project).failed and "fails" in verdicts(claims(project)).values()
    record(project, QUAD | {"pp=1,tp=4,gbs=32": CRASHED}, 1, scale="quad", cluster="eos")
    judged = claims(project, cluster="eos")
    assert judged.failed and set(verdicts(judged).values()) == {"not judged"}
    noisy = {case: Outcome(rate, spread=rate / 2) for case, rate in FLAT.items()}
    record(project, noisy, 2, scale="quad", cluster="third")
    judged = claims(project, cluster="third")
    assert not judged.failed and set(verdicts(judged).values()) == {"not judged"}


def test_without_a_name_everything_submitted_is_judged_each_as_it_ran_last(project: Project) -> None:
    record(project, FLAT, scale="quad", id="20261101-120000-ffff")
    record(project, QUAD, 1, scale="quad", cluster="eos", id="20261101-120000-0000")  # the time counts, not the id
    record(project, {"case=1.7B": 137.0, "case=1T": 163.0}, 2, "table-1", "paper")
    judged = claims(project)
    shown = [(figure.entry.short_name, figure.scale, figure.cluster) for figure in judged.outcomes]
    assert shown == [("figure-13", "quad", "eos"), ("table-1", "paper", "selene")] and not judged.failed
    assert claims(project, cluster="selene").failed
    assert len(claims(project, scale="paper").outcomes) == 1


def test_an_experiment_whose_file_is_gone_does_not_keep_the_others_from_being_judged(project: Project) -> None:
    record(project, FLAT, scale="quad")
    own = project.folder / "experiments" / "own"
    own.mkdir(parents=True)
    for name in ("paper.yaml", "figure-14.yaml"):
        text = (project.session.folders.shipped / "experiments" / "sc21" / name).read_text()
        (own / name).write_text(text)
    entry = find_experiment(project.session.folders, "own/figure-14")
    record_results(project.ledger, entry, "paper", {"pp=2,dp=32,gbs=32": 1.0}, at=NEXT_DAY)
    (own / "figure-14.yaml").unlink()
    judged = claims(project)
    assert [figure.entry.short_name for figure in judged.outcomes] == ["figure-13"]
    (problem,) = judged.problems
    assert str(problem).startswith("own/figure-14: no such experiment")


# ---- comparison ----------------------------------------------------------------------------------------------


def test_measured_numbers_are_compared_with_the_published_ones(project: Project) -> None:
    record(project, TABLE_1, figure="table-1", scale="paper")
    compared = api.compare("table-1", session=project.session)
    rows = {(row.case, row.metric): row for row in compared.rows}
    rate = rows["case=1.7B", "tflops_per_gpu"]
    assert not compared.failed and (rate.measured, rate.published, rate.ratio) == (137, 137, 1)
    assert (rate.within, rate.tolerance, rate.flops, rate.repeats) == (True, 0.1, "SC21 eq. 3", 1)
    assert (rate.published_how, rate.published_source, rate.published_gpu) == ("printed", "table 1", "A100")
    assert rows["case=1.7B", "parameters_billion"].missing == "not measured"
    assert rows["case=1.7B", "aggregate_pflops"].missing == "not measured"
    assert rows["case=18B", "tflops_per_gpu"].missing == "not submitted"


def test_a_number_outside_its_tolerance_or_a_failed_job_is_a_failure_of_its_case(project: Project) -> None:
    record(project, TABLE_1 | {"case=3.6B": 100.0, "case=7.5B": CRASHED}, figure="table-1", scale="paper")
    compared = api.compare("table-1", session=project.session)
    assert compared.failed and [row.case_name for row in compared.failures] == ["case=7.5B"]
    assert [row.case for row in compared.rows if row.within is False] == ["case=3.6B"]
    for case, failed in (("1.7B", False), ("3.6B", True), ("7.5B", True)):
        assert api.compare("table-1", where=f"case={case}", session=project.session).failed is failed


def test_another_gpu_and_a_host_bound_case_are_not_judged(project: Project) -> None:
    slow = Outcome(50.0, host_wait_percent=31.0, execution="eager")
    record(project, {"case=1.7B": slow}, figure="table-1", scale="paper")
    record(project, {"case=1.7B": 400.0}, figure="table-1", scale="paper", gpu="H100", cluster="eos")
    here, there = (
        next(row for row in api.compare("table-1", cluster=cluster, session=project.session).rows if row.measured)
        for cluster in ("selene", "eos")
    )
    assert (here.within, here.execution, here.host_bound) == (None, "eager", True)
    assert there.within is None and there.ratio == pytest.approx(2.92, abs=0.01)
    whys = [job.why for job in project.jobs("table-1", cluster="selene").values()]
    assert whys == ["host-bound: its GPUs waited 31 % of the time for the host"]


BEFORE = {"pp=1,tp=4,gbs=4": 10.0, "pp=2,tp=2,gbs=4": 10.0, "pp=4,tp=1,gbs=4": 10.0, "pp=1,tp=4,gbs=16": 10.0}


def changes(project: Project, a: str, b: str, **selection: Any) -> dict[str, str]:
    compared = api.compare_runs(a, b, "figure-13", session=project.session, **selection)
    return {case.case: case.change for case in compared.cases}


def test_two_clusters_are_compared_by_case(project: Project) -> None:
    record(project, BEFORE)
    after = {"pp=1,tp=4,gbs=4": 10.1, "pp=2,tp=2,gbs=4": 9.0, "pp=4,tp=1,gbs=4": CRASHED, "pp=2,tp=2,gbs=16": 10.0}
    record(project, after, cluster="eos")
    assert changes(project, "selene", "eos") == {
        "pp=1,tp=4,gbs=4": "same within noise",
        "pp=2,tp=2,gbs=4": "regression",
        "pp=4,tp=1,gbs=4": "now fails",
        "pp=1,tp=4,gbs=16": "only in A",
        "pp=2,tp=2,gbs=16": "only in B",
    }
    back = api.compare_runs("eos", "selene", where="pp=2", scale="cpu", session=project.session)
    assert back.regressions == [] and "improvement" in {case.change for case in back.cases}


def test_two_dates_runs_or_commits_are_compared(project: Project) -> None:
    first = record(project, BEFORE, git_commit="aaaa1111", code="pretrain-old1")
    second = record(project, dict.fromkeys(BEFORE, 8.0), 10, git_commit="bbbb2222", code="pretrain-new2")
    for a, b in (
        ("2026-01-05", "2026-01-12"),
        (first, second),
        ("aaaa", "bbbb"),
        ("pretrain-old1", "pretrain-new2"),
        ("2026-01-05", "selene"),
        (first, "2026-01-20"),
    ):
        assert set(changes(project, a, b).values()) == {"regression"}, (a, b)
    same = api.compare_runs("2026-01-12", "2026-01-20", "figure-13", session=project.session)
    assert same.regressions == [] and {case.because for case in same.cases} == {"the same attempt"}


def test_the_noise_of_a_comparison_comes_from_repeats_and_modes_do_not_compare(project: Project) -> None:
    case = "pp=2,tp=2,gbs=4"
    for repeat, rate in enumerate((10.0, 10.01, 9.99), 1):
        record(project, {case: rate}, repeat=repeat)
        record(project, {case: rate - 0.1}, repeat=repeat, cluster="eos")
    (row,) = api.compare_runs("selene", "eos", session=project.session).cases
    assert (row.change, row.a_repeats) == ("regression", 3) and row.ratio == pytest.approx(0.99)
    assert row.noise is not None and row.noise < 0.005
    for cluster, rate, mode in (("a", 137.0, "graph"), ("b", 100.0, "eager")):
        record(project, {"case=1.7B": Outcome(rate, execution=mode)}, figure="table-1", scale="paper", cluster=cluster)
    (row,) = api.compare_runs("a", "b", session=project.session).cases
    assert "the execution mode is graph in A, eager in B" in str(row.because)
