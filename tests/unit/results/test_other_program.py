"""A figure that another program ran: its shape is judged, what was published is beside it and judges nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.catalog.case import with_program
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.results.cases import Result, case_results
from orchestrator.results.claims import judge_claims
from orchestrator.results.export.rows import export_rows
from tests.recorded_jobs import job_row
from tests.unit.catalog.entries import shipped, with_claims


def table_1(folder: Path, program: str) -> tuple[Entry, list[Result]]:
    """Table 1 run by this program: every job verified, nothing measured."""
    entry = with_claims(
        shipped("table-1"),
        {"kind": "published", "metrics": ["tflops_per_gpu"]},
        {"kind": "outcome", "outcome": "ok"},
        {"kind": "trend", "along": "gpus", "direction": "rises", "where": {"tp": 1}},
    )
    folder.mkdir(exist_ok=True)
    cases, base = with_program(expand(entry), program), job_row(folder)
    base = replace(base, program=program, spec=replace(base.spec, gpu="A100-SXM4-80GB"))
    rows = [replace(base, case_name=case.name, attempt_id=i) for i, case in enumerate(cases)]
    return entry, case_results(entry, cases, rows, {})


def test_published_numbers_and_what_fits_are_judged_of_the_papers_program_only(tmp_path: Path) -> None:
    entry, found = table_1(tmp_path, "pretrain")
    said = {
        verdict.claim.kind: (verdict.verdict, verdict.because) for verdict in judge_claims(entry, "paper", found, 8)
    }
    why = "it is about megatron-2021, and pretrain ran"
    assert said["published"] == said["outcome"] == ("not judged", why)
    assert why not in said["trend"][1]
    entry, own = table_1(tmp_path / "own", "megatron-2021")
    verdicts = {verdict.claim.kind: verdict for verdict in judge_claims(entry, "paper", own, 8)}
    assert verdicts["outcome"].verdict == "holds" and why not in verdicts["published"].because


def test_an_exported_row_says_which_program_ran_and_whose_number_stands_beside_it(tmp_path: Path) -> None:
    (row, *_) = export_rows(*table_1(tmp_path, "pretrain"))
    assert (row["program"], row["published"], row["published_program"]) == ("pretrain", 137, "megatron-2021")
    assert (row["published_gpu"], row["gpu"]) == ("A100", "A100-SXM4-80GB")
    (row, *_) = export_rows(*table_1(tmp_path / "own", "megatron-2021"))
    assert (row["program"], row["published_program"]) == ("megatron-2021", None)
