"""Results as files: the same rows in every format, read back as they were written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.results.claims import judge_claims
from orchestrator.results.compare import Result, published_for
from orchestrator.results.export import as_csv, as_json, export_rows
from tests.unit.catalog.entries import entry_of
from tests.unit.results.making import ROWS, claiming, figure_13, measured

VERIFIED, FAILED, ABSENT = "pp=1,tp=4,gbs=4", "pp=2,tp=2,gbs=4", "pp=4,tp=1,gbs=16"


@pytest.fixture
def found(tmp_path: Path) -> list[Result]:
    return measured(tmp_path, figure_13(), "cpu", {VERIFIED: 12.5, FAILED: 99.0}, failed=(FAILED,))


def test_a_csv_reads_back_as_what_was_measured(found: list[Result]) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(export_rows(figure_13(), found)))))
    assert [row["case"] for row in rows] == [case.name for case in expand(figure_13(), "cpu")]
    (good,) = [row for row in rows if row["case"] == VERIFIED]
    assert (float(good["tflops_per_gpu"]), float(good["iteration_ms"])) == (12.5, 80.0)
    assert (good["pp"], good["tp"], good["gbs"], good["gpus"], good["microbatches"]) == ("1", "4", "4", "4", "4")
    assert (good["job"], good["verdict"], good["nodes"], good["iterations_used"]) == ("job1", "verified", "n1", "5")


def test_a_number_of_a_job_that_was_not_verified_is_not_given_out(found: list[Result]) -> None:
    (bad,) = [row for row in export_rows(figure_13(), found) if row["case"] == FAILED]
    assert (bad["verdict"], bad["verdict_reason"]) == ("failed", 'exit 1, "oom"')
    assert {bad[name] for name in ("tflops_per_gpu", "iteration_ms", "iteration_ms_spread", "iterations_used")} == {
        None
    }


def test_what_is_not_there_is_an_empty_field_and_quotes_and_commas_survive(found: list[Result]) -> None:
    rows = {row["case"]: row for row in csv.DictReader(io.StringIO(as_csv(export_rows(figure_13(), found))))}
    assert {rows[ABSENT][name] for name in ("job", "state", "verdict", "tflops_per_gpu", "published")} == {""}
    assert rows[FAILED]["verdict_reason"] == 'exit 1, "oom"'


def test_json_has_the_same_rows_and_the_claims(found: list[Result]) -> None:
    entry = figure_13()
    rows = export_rows(entry, found)
    read = json.loads(as_json(rows, judge_claims(entry, "cpu", found, 8)))
    assert read["cases"] == rows
    assert [claim["claim"] for claim in read["claims"]] == [claim.id for claim in entry.experiment.claims]
    assert list(read["cases"][0]) == as_csv(rows).splitlines()[0].split(",")


def test_published_numbers_belong_to_the_published_scale() -> None:
    entry = figure_13()
    paper = {case.name: published_for(entry, case) for case in expand(entry, "paper")}
    shown = {name: point.value for name, point in paper.items() if point is not None}
    assert shown["pp=8,tp=8,gbs=32"] == 142 and len(shown) == len(entry.experiment.published)
    assert [published_for(entry, case) for case in expand(entry, "cpu")] == [None] * 6


FIGURE_13 = (
    "experiment,scale,case,pp,tp,gbs,gpus,microbatches,cluster,job,run,attempt,scheduler_id,state,verdict,"
    "verdict_reason,nodes,iteration_ms,tflops_per_gpu,percent_of_peak,sequences_per_s,iteration_ms_spread,"
    "iterations_used,published,published_how,published_confirmed"
)


def test_the_columns_of_a_figure_stay_where_they_were(found: list[Result]) -> None:
    assert as_csv(export_rows(figure_13(), found)).splitlines()[0] == FIGURE_13


def test_a_rows_own_label_does_not_take_the_place_of_the_cases_name(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, ROWS)
    rows = export_rows(entry, measured(tmp_path, entry, "paper", {"case=ours": 130.0}, metric="tokens_per_s"))
    assert [(row["case"], row["row"]) for row in rows] == [
        ("case=plain", "plain"),
        ("case=theirs", "theirs"),
        ("case=ours", "ours"),
    ]
    columns = as_csv(rows).splitlines()[0].split(",")
    assert len(set(columns)) == len(columns)


def test_what_the_figure_shows_and_its_claims_compare_has_columns(tmp_path: Path) -> None:
    entry = claiming(
        entry_of(tmp_path, ROWS),
        {"kind": "published", "metrics": ["mfu_percent", "tflops_per_gpu"]},
        {"kind": "spread", "at_least": 2, "metric": "gpu_memory_used_gb"},
    )
    rows = export_rows(entry, measured(tmp_path, entry, "paper", {"case=ours": 130.0}, metric="tokens_per_s"))
    columns = list(rows[0])
    after = columns.index("sequences_per_s")
    assert columns[after + 1 : after + 4] == ["tokens_per_s", "mfu_percent", "gpu_memory_used_gb"]
    assert [row["tokens_per_s"] for row in rows] == [None, None, 130.0]


@pytest.mark.parametrize(("gpu", "published"), [("NVIDIA H800", 130), ("NVIDIA H200", None), (None, None)])
def test_a_number_of_another_gpu_is_not_put_beside_ours(tmp_path: Path, gpu: str | None, published: int | None) -> None:
    entry = entry_of(tmp_path, ROWS)
    found = measured(tmp_path, entry, "paper", {"case=ours": 1.0}, metric="tokens_per_s", gpu=gpu)
    assert export_rows(entry, found)[-1]["published"] == published


def test_nothing_exports_to_nothing() -> None:
    assert as_csv([]).strip() == ""
    assert json.loads(as_json([], [])) == {"cases": [], "claims": []}
