"""Two sides against one another: which word is which side, which attempts are on it, and what is more than noise."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator.errors import ReproError
from orchestrator.ledger.attempts import job_rows, run_summaries
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.ledger.rows import JobRow
from orchestrator.ledger.tables import Attempt, Run
from orchestrator.results.cases import in_order_of_runs
from orchestrator.results.comparison import (
    CaseDiff,
    Side,
    compare_sides,
    rows_of_side,
    side_of,
)
from orchestrator.results.evidence import ONE_JOB
from tests.recorded_jobs import job_row, new_ledger, new_run, record_jobs

pytestmark = pytest.mark.slow

DAY = datetime(2026, 11, 20)


def run_summary(run_id: str, cluster: str, git_commit: str) -> Run:
    return Run(
        id=run_id,
        experiment="sc21/figure-13",
        scale="cpu",
        cluster=cluster,
        created_at=DAY,
        git_commit=git_commit,
    )


RUNS = [
    run_summary("20261120-101500-abcd", cluster="selene", git_commit="6985e58938"),
    run_summary("20261121-101500-abce", cluster="eos", git_commit="6985aaaaaa"),
]
CODES = {"pretrain-0123456789ab", "c0ffee1234"}


@pytest.mark.parametrize(
    ("word", "side"),
    [
        ("selene", Side("cluster", "selene")),
        ("2026-11-20", Side("date", "2026-11-20")),
        ("c0ff", Side("commit", "c0ffee1234")),
        ("6985e5", Side("commit", "6985e58938")),
        ("pretrain-0123", Side("commit", "pretrain-0123456789ab")),
        ("0123456", Side("commit", "pretrain-0123456789ab")),
        ("20261120-101500-abcd", Side("run", "20261120-101500-abcd")),
        ("20261121", Side("run", "20261121-101500-abce")),
    ],
)
def test_a_word_is_told_apart_by_what_it_is(word: str, side: Side) -> None:
    assert side_of(word, RUNS, CODES) == side


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("selne", 'selne: neither a cluster with jobs, nor a date, a commit or a run. Did you mean "selene"?'),
        (
            "c0f",
            "c0f: neither a cluster with jobs, nor a date, a commit or a run. Hint: clusters with jobs: selene, eos",
        ),
        ("2026-13-40", "2026-13-40: no such date. Hint: write year-month-day, for example 2026-11-20"),
        ("6985", "6985: could be the commit 6985aaaaaa, the commit 6985e58938. Hint: type more characters of the name"),
        (
            "2026112",
            "2026112: could be the run 20261120-101500-abcd, the run 20261121-101500-abce. Hint: type more characters",
        ),
    ],
)
def test_a_word_that_is_nothing_or_several_things_is_refused_with_what_it_could_be(word: str, complaint: str) -> None:
    with pytest.raises(ReproError) as refused:
        side_of(word, RUNS, CODES)
    assert str(refused.value).startswith(complaint)


def test_a_commit_in_full_is_no_other_that_begins_with_it() -> None:
    assert side_of("6985e58938", RUNS, {"6985e58938abc"}) == Side("commit", "6985e58938")


def test_a_cluster_that_is_called_like_a_commit_is_both() -> None:
    runs = [run_summary(RUNS[0].id, cluster="c0ffee", git_commit="6985e58938")]
    with pytest.raises(ReproError, match="could be the cluster c0ffee, the commit c0ffee1234"):
        side_of("c0ffee", runs, CODES)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def a_run(ledger: Ledger, name: str, day: int, *jobs: str, cluster: str = "local", commit: str = "aaaa1111") -> None:
    """A run of that day in January whose new attempts ended a day later, all of them failed."""
    run = replace(new_run(), id=name, cluster=cluster, git_commit=commit)
    record_jobs(ledger, *jobs, run=run, token=name)
    ended = {"ended_at": datetime(2026, 1, day + 1), "phase": "ended", "state": "FAILED", "verdict": "failed"}
    with ledger.writing() as session:
        session.execute(sa.update(Run).where(Run.id == name).values(created_at=datetime(2026, 1, day)))
        session.execute(sa.update(Attempt).where(Attempt.run_id == name).values(**ended))


def on(ledger: Ledger, kind: str, name: str) -> list[tuple[str, int]]:
    """The jobs of a side, with the number of the attempt."""
    side = Side(kind, name)  # type: ignore[arg-type]  # a literal that mypy does not follow
    return [(row.job_id, row.number) for row in rows_of_side(ledger, side, job_rows(ledger), run_summaries(ledger))]


def test_a_date_means_the_latest_attempts_that_had_ended_by_its_end(ledger: Ledger) -> None:
    a_run(ledger, "first", 10, "a", "b")
    a_run(ledger, "second", 20, "a")
    assert on(ledger, "date", "2026-01-10") == []
    assert on(ledger, "date", "2026-01-11") == [("a-id", 1), ("b-id", 1)]
    assert on(ledger, "date", "2026-01-20") == [("a-id", 1), ("b-id", 1)]
    assert on(ledger, "date", "2026-01-21") == [("b-id", 1), ("a-id", 2)]


def test_a_run_means_what_it_submitted_and_what_it_found(ledger: Ledger) -> None:
    a_run(ledger, "first", 10, "a", "b")
    a_run(ledger, "second", 20, "a")
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(verdict="verified"))
    a_run(ledger, "third", 25, "a", "b")
    assert on(ledger, "run", "first") == [("a-id", 1), ("b-id", 1)]
    assert on(ledger, "run", "second") == [("a-id", 2)]
    assert sorted(on(ledger, "run", "third")) == [("a-id", 2), ("b-id", 1)]


def test_a_commit_means_the_jobs_code_or_that_of_the_runs_checkout(ledger: Ledger) -> None:
    a_run(ledger, "first", 10, "a", "b", commit="aaaa1111")
    a_run(ledger, "second", 20, "a", commit="bbbb2222")
    assert on(ledger, "commit", "aaaa1111") == [("a-id", 1), ("b-id", 1)]
    assert on(ledger, "commit", "bbbb2222") == [("a-id", 2)]
    assert sorted(on(ledger, "commit", "code")) == [("a-id", 2), ("b-id", 1)]


def test_a_cluster_means_its_latest_attempts(ledger: Ledger) -> None:
    a_run(ledger, "first", 10, "a", cluster="selene")
    a_run(ledger, "second", 20, "a", cluster="selene")
    a_run(ledger, "third", 25, "b", cluster="eos")
    assert on(ledger, "cluster", "selene") == [("a-id", 2)]


def test_of_two_runs_at_once_the_order_of_their_ids_decides(ledger: Ledger) -> None:
    for name in ("20260101-000000-bbbb", "20260101-000000-aaaa", "20251231-235959-cccc"):
        a_run(ledger, name, 1 if name.startswith("2026") else 2, name)
    order = [run.id for run in run_summaries(ledger)]
    assert order == ["20260101-000000-aaaa", "20260101-000000-bbbb", "20251231-235959-cccc"]
    assert [row.run_id for row in in_order_of_runs(job_rows(ledger), run_summaries(ledger))] == order


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> JobRow:
    return job_row(tmp_path_factory.mktemp("row"))


def against(base: JobRow, a: list[float | None], b: list[float | None], spread: float = 0.0, **how: Any) -> CaseDiff:
    """One case with these times on either side, of one job each or of repeats; None for a job that failed."""
    metric = how.get("metric", "iteration_ms")
    sides: list[list[JobRow]] = []
    metrics: dict[int, dict[str, MeasuredMetric]] = {}
    for times in (a, b):
        side: list[JobRow] = []
        for value in times:
            number = len(metrics) + 1
            row = replace(base, job_id=f"j{number}", attempt_id=number, repeat=len(side) + 1)
            if value is None:
                row = replace(row, verdict="failed", verdict_reason="exit 1", state="FAILED")
            side.append(row)
            found = {metric: MeasuredMetric(metric, value or 1.0, "", spread * (value or 1.0), 6)}
            metrics[number] = {"iteration_ms": MeasuredMetric("iteration_ms", 1.0, "ms", 0.0, 6), **found}
        sides.append(side)
    (found_row,) = compare_sides(sides[0], sides[1], metrics, lambda _: metric, by_cluster=False)
    return found_row


@pytest.mark.parametrize(
    ("a", "b", "spread", "change"),
    [
        ([100.0], [104.0], 0.02, "regression"),  # 2 % on either side is 2.8 % together
        ([100.0], [102.5], 0.02, "same within noise"),
        ([100.0], [96.0], 0.02, "improvement"),
        ([100.0], [102.0], 0.0, "same within noise"),  # two jobs differ by more than the iterations of one
        ([100.0], [103.5], 0.0, "regression"),
        ([100.0, 100.1, 99.9], [101.0, 101.1, 100.9], 0.0, "regression"),  # repeats say how far: 0.35 % together
        ([100.0, 110.0], [112.0, 102.0], 0.0, "same within noise"),
        ([100.0], [None], 0.0, "now fails"),
        ([100.0], [], 0.0, "only in A"),
        ([], [100.0], 0.0, "only in B"),
        ([None], [100.0], 0.0, "only in B"),
        ([None], [None], 0.0, "no number in either"),
    ],
)
def test_only_what_is_more_than_noise_is_a_change(
    base: JobRow, a: list[float | None], b: list[float | None], spread: float, change: str
) -> None:
    assert against(base, a, b, spread).change == change


def test_more_is_better_where_the_metric_is_a_rate(base: JobRow) -> None:
    assert against(base, [100.0], [90.0], metric="tflops_per_gpu").change == "regression"
    assert against(base, [100.0], [110.0], metric="tflops_per_gpu").change == "improvement"
    assert against(base, [100.0], [110.0], metric="max_memory_allocated_bytes").change == "regression"


def test_a_row_has_the_ratio_the_noise_and_what_makes_it_doubtful(base: JobRow) -> None:
    row = against(base, [100.0], [104.0], 0.02)
    assert row.ratio == pytest.approx(1.04) and row.noise == pytest.approx(0.02 * 2**0.5)
    assert (row.a_job, row.b_job, row.because) == ("j1", "j2", None)
    assert against(base, [100.0], [100.0]).noise == pytest.approx(ONE_JOB * 2**0.5)
    noisy = against(base, [100.0], [104.0], 0.12)
    assert noisy.because == "too noisy in A: spread 12 % of the median; too noisy in B: spread 12 % of the median"
    assert against(base, [100.0], [None]).because == "in B: exit 1"


@pytest.mark.parametrize(
    ("modes", "waits", "metric", "because"),
    [
        (("graph", "graph"), (10.0, 0.0), "iteration_ms", None),
        ((None, None), (None, None), "iteration_ms", None),
        (
            ("graph", "eager"),
            (None, None),
            "iteration_ms",
            "not comparable: the execution mode is graph in A, eager in B",
        ),
        (
            (None, "graph"),
            (None, None),
            "max_memory_allocated_bytes",
            "not comparable: the execution mode is unknown in A, graph in B",
        ),
        (
            ("eager", "eager"),
            (5.0, 31.0),
            "iteration_ms",
            "host-bound in B: its GPUs waited 31 % of the time for the host",
        ),
        (("eager", "eager"), (31.0, 31.0), "max_memory_allocated_bytes", None),
    ],
)
def test_sides_that_are_not_like_with_like_say_so_next_to_the_number(
    base: JobRow,
    modes: tuple[str | None, str | None],
    waits: tuple[float | None, float | None],
    metric: str,
    because: str | None,
) -> None:
    sides: list[list[JobRow]] = []
    metrics: dict[int, dict[str, MeasuredMetric]] = {}
    for number, (mode, wait) in enumerate(zip(modes, waits, strict=True), 1):
        sides.append([replace(base, job_id=f"j{number}", attempt_id=number, execution=mode)])
        names = {"iteration_ms": 100.0, metric: 100.0} | ({} if wait is None else {"host_wait_percent": wait})
        metrics[number] = {name: MeasuredMetric(name, value, "", 0.0, 6) for name, value in names.items()}
    (row,) = compare_sides(sides[0], sides[1], metrics, lambda _: metric, by_cluster=False)
    assert (row.change, row.ratio, row.because) == ("same within noise", 1.0, because)


def test_cases_are_matched_by_experiment_scale_name_and_program_and_by_cluster_where_asked(base: JobRow) -> None:
    metrics = {number: {"iteration_ms": MeasuredMetric("iteration_ms", 1.0, "ms", 0.0, 6)} for number in (1, 2)}
    one = replace(base, attempt_id=1, cluster="selene")

    def matched(other: dict[str, Any], by_cluster: bool = False) -> int:
        second = replace(base, attempt_id=2, cluster="eos", **other)
        found = compare_sides([one], [second], metrics, lambda _: "iteration_ms", by_cluster)
        return sum(row.a is not None and row.b is not None for row in found)

    assert matched({}) == 1 and matched({}, by_cluster=True) == 0
    for other in ({"experiment": "sc21/x"}, {"scale": "x"}, {"case_name": "x"}, {"program": "megatron-2021"}):
        assert matched(other) == 0, other
    (same,) = compare_sides([one], [one], metrics, lambda _: "iteration_ms", by_cluster=True)
    assert (same.change, same.because) == ("same within noise", "the same attempt")
