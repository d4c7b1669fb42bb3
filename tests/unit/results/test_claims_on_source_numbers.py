"""Claims judged by the numbers of their own sources: those that do not hold say so in their file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.case import Case
from orchestrator.catalog.claims import Claim, ClosesClaim, GainClaim, PeakClaim, RatioClaim, SpreadClaim, TrendClaim
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.ledger.rows import JobRow
from orchestrator.paths import Folders
from orchestrator.results.cases import CaseMetric, Result
from orchestrator.results.claims import ClaimVerdict, judge_claims
from tests.cases import megatron_names
from tests.recorded_jobs import GPU_OOM, job_row
from tests.unit.catalog.entries import CHECKOUT, shipped

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home")
ABOUT_NUMBERS = (PeakClaim, SpreadClaim, GainClaim, TrendClaim, RatioClaim, ClosesClaim)
WITHOUT_NUMBERS = {
    "alpa/alpa-gpt throughput-grows": "the source has rates per GPU",
    "alpa/alpa-search best-on-4": "the source has the best layouts, and not their rates",
    "alpa/alpa-search best-on-8": "the source has the best layouts, and not their rates",
    "alpa/alpa-search best-on-16": "the source has the best layouts, and not their rates",
    "alpa/alpa-search best-on-32": "the source has the best layouts, and not their rates",
    "atc24/atc-demo ours-needs-less-memory": "the source has an estimate of its memory model",
    "caraml/llm-800m large-batches-save-energy": "the energies of the source are unconfirmed",
    "sc21/figure-12 memory-footprint-is-comparable": "the source has no numbers of memory",
}


def with_source_numbers(base: JobRow, entry: Entry) -> list[Result]:
    """Return all cases of the paper with its confirmed numbers; their errors are the uncertainty."""
    return [_result(base, case) for case in expand(entry)]


def _result(base: JobRow, case: Case) -> Result:
    expects_oom = case.expected is not None and case.expected.outcome == "oom"
    row = replace(base, case_name=case.name, **(GPU_OOM if expects_oom else {}))
    metrics: dict[str, CaseMetric] = {}
    for point in case.published:
        if point.confirmed:
            ends = (point.value - (point.error or 0.0), point.value + (point.error or 0.0))
            metrics[point.metric] = CaseMetric(point.metric, point.value, "", None, None, *ends, repeats=2)
    return Result(case=case, row=row, metrics=metrics, rows=(row,))


def verdicts(base: JobRow) -> dict[str, ClaimVerdict]:
    found = {}
    for name in megatron_names(FOLDERS):
        entry = shipped(name)
        others = {other: with_source_numbers(base, beside) for other, beside in entry.others.items()}
        for verdict in judge_claims(entry, "paper", with_source_numbers(base, entry), 8, others):
            if isinstance(verdict.claim, ABOUT_NUMBERS) and "paper" in verdict.claim.judged_at:
                found[f"{entry.name} {verdict.claim.id}"] = verdict
    return found


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClaimVerdict]:
    return verdicts(job_row(tmp_path_factory.mktemp("ledger")))


def test_a_claim_that_its_source_does_not_satisfy_says_so(judged: dict[str, ClaimVerdict]) -> None:
    wrong = [
        f"{name}: {one.verdict}, {one.because} ({one.margin}); not_met_by_source: {one.claim.not_met_by_source}"
        for name, one in judged.items()
        if (one.verdict == "fails") is not (one.claim.not_met_by_source is not None)
    ]
    assert len(judged) > 50 and not wrong, "\n".join(wrong)


def test_every_claim_about_numbers_can_be_judged_by_the_source(judged: dict[str, ClaimVerdict]) -> None:
    open_claims = {name: one.because for name, one in judged.items() if one.verdict == "not judged"}
    assert sorted(open_claims) == sorted(WITHOUT_NUMBERS), open_claims


def _has_a_number(claim: Claim) -> bool:
    if isinstance(claim, RatioClaim):
        return {claim.at_least, claim.at_most} - {None, 1.0} != set()
    return claim.kind in ("spread", "published", "loss curves") or claim.tolerance > 0


def test_every_number_of_a_claim_has_a_reason_for_its_tolerance() -> None:
    without = [
        f"{name} {claim.id}"
        for name in megatron_names(FOLDERS)
        for claim in shipped(name).experiment.claims
        if _has_a_number(claim) and claim.tolerance_because is None
    ]
    assert without == []


def test_the_reason_why_a_source_fails_its_own_claim_is_in_the_verdict(tmp_path: Path) -> None:
    entry = shipped("figure-13")
    results = with_source_numbers(job_row(tmp_path), entry)
    (found,) = (one for one in judge_claims(entry, "paper", results, 8) if one.claim.id == "poor-layouts-cost-2x")
    assert found.verdict == "fails"
    assert found.because.endswith(f"the source does not reach it either: {found.claim.not_met_by_source}")
