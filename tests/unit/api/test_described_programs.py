"""Results of programs that an experiment describes: rows as cases, claims, exports, pictures and comparisons."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator import api
from orchestrator.catalog.library import Entry
from orchestrator.cli.job_table import job_lines
from orchestrator.errors import ReproError
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.measurements import metrics_of, rows_of_output
from orchestrator.results.claims import judge_claims
from tests.described_results import LOSS, SIZES, SWEEP, record_described, sweep, write_described
from tests.recorded_jobs import START
from tests.unit.api.project import Project
from tests.unit.results.drawing import words

NAME = "figure"
FOUR, EIGHT = sweep(360), sweep(475)


def swept(project: Project, text: str = SWEEP, **outputs: Any) -> Entry:
    """Record the sweep of both cases, or of these `four` and `eight` GPUs, and return its experiment."""
    entry = write_described(project.folder, text)
    given = {"gpus=4": outputs.get("four", FOUR), "gpus=8": outputs.get("eight", EIGHT)}
    record_described(project.ledger, entry, given)
    return entry


def loss(project: Project) -> Entry:
    entry = write_described(project.folder, LOSS)
    widths = ("width=64", 2.5), ("width=128", 2.25), ("width=256", 2.0)
    record_described(project.ledger, entry, {name: {"loss": value} for name, value in widths})
    return entry


def verdicts(project: Project, name: str = NAME) -> dict[str, tuple[str, str]]:
    (figure,) = api.claims(name, session=project.session).outcomes
    return {claim.claim.id: (claim.verdict, claim.because) for claim in figure.claims}


def collected(project: Project, **selection: Any) -> api.Collected:
    return api.collect(NAME, session=project.session, **selection)


# ---- rows ----------------------------------------------------------------------------------------------------


def test_each_row_of_an_output_is_a_case_with_the_axis_that_names_it(project: Project) -> None:
    swept(project)
    cases = collected(project).cases
    assert len(cases) == 2 * len(SIZES)
    last = cases[-1]
    assert (last.case, last["size"], last["gpus"]) == ("gpus=8,size=17179869184", 2**34, 8)
    assert (last["busbw"], last["time_us"], last.verdict) == (
        EIGHT[-1][1]["busbw"],
        EIGHT[-1][1]["time_us"],
        "verified",
    )
    assert last.published == 480 and last.ratio_to_published == pytest.approx(last["busbw"] / 480)


def test_a_filter_selects_rows_by_the_type_of_the_axis(project: Project) -> None:
    swept(project)
    assert [row.case for row in collected(project, where="size=1G").cases] == [
        "gpus=4,size=1073741824",
        "gpus=8,size=1073741824",
    ]
    assert len(collected(project, where="gpus=8").cases) == len(SIZES)
    compared = api.compare(NAME, where="gpus=8,size=16G", session=project.session)
    assert [(row.published, row.within) for row in compared.rows] == [(480, True)]
    with pytest.raises(ReproError, match="--where size=3: no such case"):
        collected(project, where="size=3")
    with pytest.raises(ReproError, match="--where sise=8: no such axis"):
        collected(project, where="sise=8")


def test_a_job_without_a_verdict_has_one_case_without_the_key(project: Project) -> None:
    swept(project, four=None)
    figure = collected(project)
    assert [(row.case, row["size"], row.verdict) for row in figure.cases][:2] == [
        ("gpus=4", None, "failed"),
        ("gpus=8,size=8", 8, "verified"),
    ]
    assert len(figure.outcome.failures) == 1
    assert verdicts(project)["rises"] == ("not judged", f"1 of {len(SIZES) + 1} cases not verified")
    api.plot(NAME, project.folder / "a.svg", session=project.session)  # the failed job has no place on the axis


def test_repeats_are_combined_row_by_row(project: Project) -> None:
    entry = swept(project, four=sweep(350))
    for repeat, largest in ((2, 360), (3, 370)):
        at = START + timedelta(hours=repeat)
        record_described(project.ledger, entry, {"gpus=4": sweep(largest)}, repeat=repeat, at=at)
    rows = [row for row in collected(project).cases if row["gpus"] == 4]
    assert len(rows) == len(SIZES) and {row.repeats for row in rows} == {3}
    numbers = [dict(sweep(largest))[2.0**34]["busbw"] for largest in (350, 360, 370)]
    assert rows[-1]["busbw"] == pytest.approx(sum(numbers) / 3) and rows[-1].repeat == 2  # the middle one
    assert rows[-1].figure_low is not None and rows[-1].figure_low < rows[-1]["busbw"]


# ---- claims --------------------------------------------------------------------------------------------------


def test_claims_of_each_kind_are_judged_over_rows(project: Project) -> None:
    swept(project, eight=sweep(475, SIZES[3:]), four=sweep(360, SIZES[3:]))
    found = verdicts(project)
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "rises": "holds",
        "largest-is-best": "not judged",  # the largest sizes differ by less than noise
        "wide": "holds",
        "gain": "holds",
        "eight": "holds",
        "pairs": "holds",
        "closes": "fails",
        "as-published": "holds",
        "ends": "holds",
    }
    assert found["eight"][1] == "gpus=8 over gpus=4 is 1.319; at least 0.500 asked"
    assert " at size=17179869184" in found["pairs"][1]  # a pair has one size


def test_a_trend_from_zero_rises(project: Project) -> None:
    swept(project, four=[(8, {"busbw": 0.0}), (16, {"busbw": 1.0})], eight=[(8, {"busbw": 0.0}), (16, {"busbw": 2.0})])
    assert verdicts(project)["rises"][0] == "holds"


def test_a_published_row_that_the_output_lacks_leaves_the_claim_open(project: Project) -> None:
    swept(project, eight=sweep(475, SIZES[:-1]))
    why = "the output has no row of gpus=8,size=17179869184, which has a published number"
    assert verdicts(project)["as-published"] == ("not judged", why)


def test_the_direction_of_a_loss_is_judged_to_the_digit(project: Project) -> None:
    entry = write_described(project.folder, LOSS)
    losses = {"width=64": {"loss": 2.001}, "width=128": {"loss": 2.0005}, "width=256": {"loss": 2.0}}
    record_described(project.ledger, entry, losses)
    assert verdicts(project)["wider-is-better"][0] == "holds"
    record_described(project.ledger, entry, {"width=256": {"loss": 2.1}}, at=START + timedelta(days=1), repeat=2)
    assert verdicts(project)["wider-is-better"][0] != "holds"


TWO = """\
claims:
  - {id: pair, kind: ratio, says: s, source: s, stated: derived, judged_at: [paper], of: {gpus: 8}, over: {gpus: 8},
     experiment: other, at_least: 0.5, where: {size: 16G}}
"""


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (("unit: GB/s", "unit: MB/s"), "busbw is in GB/s, higher is better, and in MB/s, higher is better in other"),
        (("{unit: GB/s, better: higher", "{unit: GB/s, better: lower"), "lower is better in other"),
        (("busbw", "bandwidth"), "busbw: the program of other has no such metric"),
    ],
)
def test_claims_over_two_programs_need_one_unit_and_one_direction(
    project: Project, change: tuple[str, str], because: str
) -> None:
    base, _, _ = SWEEP.partition("published:")
    write_described(project.folder, base, "other")
    swept(project, base + TWO)
    figure = collected(project).outcome
    other = write_described(project.folder, base.replace(*change), "other")
    entry = replace(figure.entry, others={"other": other})
    (claim,) = judge_claims(entry, "paper", figure.results, 8, {"other": figure.results})
    assert claim.verdict == "not judged" and because in claim.because


def test_numbers_of_two_units_are_not_compared(project: Project) -> None:
    entry = swept(project)
    changed = write_described(project.folder, SWEEP.replace("unit: GB/s", "unit: MB/s"))
    record_described(project.ledger, changed, {"gpus=4": FOUR}, at=START + timedelta(days=1), repeat=2)
    assert entry.metrics["busbw"].unit == "GB/s"
    assert verdicts(project)["pairs"] == ("not judged", "it compares busbw in GB/s and MB/s")


# ---- exports, pictures and comparisons -----------------------------------------------------------------------


def numbers_of_ledger(project: Project) -> set[float]:
    ids = [row.attempt_id for row in job_rows(project.ledger)]
    metrics = [metric for of_job in metrics_of(project.ledger, ids).values() for metric in of_job.values()]
    metrics += [
        metric for rows in rows_of_output(project.ledger, ids).values() for row in rows for metric in row.metrics
    ]
    return {metric.value for metric in metrics}


@pytest.mark.parametrize("record", [swept, loss])
def test_every_number_of_an_export_is_one_of_the_ledger(project: Project, record: Callable[[Project], Entry]) -> None:
    entry = record(project)
    known, figure = numbers_of_ledger(project), collected(project)
    read = csv.DictReader(io.StringIO(b"".join(figure.export("csv")).decode()))
    cells = [row[name] for row in read for name in (*entry.metrics, "figure_value") if row[name]]
    assert cells and {float(cell) for cell in cells} <= known
    document = json.loads(b"".join(figure.export("json")))
    assert {row["figure_value"] for row in document["cases"]} <= known


def test_the_columns_are_the_axes_and_metrics_of_the_program(project: Project) -> None:
    loss(project)
    figure = collected(project)
    columns = {column.name: column for column in figure.columns()}
    assert {"width", "steps", "loss", "loss_spread", "figure_value"} <= columns.keys()
    assert not {"tensor_parallel", "tflops_per_gpu", "iteration_ms", "seq", "dtype"} & columns.keys()
    assert "loss" in [column.name for column in figure.columns("main")]
    table = b"".join(figure.export("md")).decode()
    assert "| Case | Verdict | Loss |" in table and "| width=64 | verified | 2.5 |" in table


def test_iterations_of_a_described_program_are_refused(project: Project) -> None:
    loss(project)
    with pytest.raises(ReproError, match="--iterations: those of train_toy.py are not stored"):
        list(collected(project).export("csv", iterations=True))


def test_an_axis_or_a_metric_with_the_name_of_a_column_has_another_column(project: Project) -> None:
    text = LOSS.replace("width", "cost").replace("loss", "noise")
    entry = write_described(project.folder, text)
    record_described(project.ledger, entry, {"cost=64": {"noise": 2.5}})
    figure = collected(project)
    names = [column.name for column in figure.columns()]
    assert len(names) == len(set(names))
    first = figure.cases[0]
    assert (first["cost_axis"], first["noise_metric"], first["cost"]) == (64, 2.5, None)
    assert "| cost=64 | verified | 2.5 |" in b"".join(figure.export("md")).decode()


def test_a_picture_has_sizes_at_its_ticks_and_a_panel_for_each_metric(project: Project) -> None:
    swept(project)
    file = project.folder / "figure.svg"
    api.plot(NAME, file, session=project.session)
    shown = words(file.read_text())
    assert {"16", "4K", "1M", "4G", "0.01", "100", "GPUs = 8", "Message size", "Time (us)"} <= set(shown)


def test_the_report_has_a_line_for_each_row_and_no_floating_point_operations(project: Project) -> None:
    swept(project)
    page = api.report(project.folder / "page", session=project.session).file.read_text()
    assert "Measured numbers are those of a verified job." in page
    assert "gpus=8,size=17179869184" in page and "TFLOP" not in page and "Iteration, ms" not in page
    assert all(row.flops is None and not row.beside for row in api.compare(NAME, session=project.session).rows)


def test_two_runs_are_compared_row_by_row(project: Project) -> None:
    entry = swept(project)
    record_described(project.ledger, entry, {"gpus=4": sweep(250)}, cluster="there", at=START + timedelta(days=1))
    compared = api.compare_runs("here", "there", session=project.session)
    changes = {row.case: row.change for row in compared.cases}
    assert changes["gpus=4,size=17179869184"] == "regression" and changes["gpus=4,size=32768"] == "same within noise"
    assert changes["gpus=4,size=8"] == "not comparable"  # 0 on both sides
    assert changes["gpus=8,size=8"] == "only in A"
    chosen = api.compare_runs("here", "there", NAME, where="gpus=4,size=1G", session=project.session)
    assert [row.case for row in chosen.cases] == ["gpus=4,size=1073741824"]


# ---- selections, status and texts of described programs --------------------------------------------------------


def test_a_program_of_a_job_is_a_known_program(project: Project) -> None:
    loss(project)
    (job,) = api.status(program="train_toy.py", where="width=64", session=project.session).jobs
    assert job.program == "train_toy.py"
    assert verdicts(project)["wider-is-better"][0] == "holds"
    assert api.claims(NAME, program="train_toy.py", session=project.session).outcomes
    for select in (api.status, lambda **given: api.claims(NAME, **given)):
        with pytest.raises(ReproError, match=r'train_to.py: no such program. Did you mean "train_toy.py"\?'):
            select(program="train_to.py", session=project.session)


def test_an_axis_that_no_job_has_is_refused(project: Project) -> None:
    loss(project)
    assert len(api.status(where="width=64", session=project.session).jobs) == 1
    assert not api.status(where="pp=3", session=project.session).jobs  # an axis of other programs
    with pytest.raises(ReproError, match=r'--where widht=64: no such axis. Did you mean "width"\?'):
        api.status(where="steps=10,widht=64", session=project.session)


def test_the_status_of_a_job_has_its_first_metric_with_one_number(project: Project) -> None:
    loss(project)
    entry = write_described(project.folder, SWEEP, "sweep")
    record_described(project.ledger, entry, {"gpus=4": FOUR}, cluster="there", at=START + timedelta(days=1))
    jobs = {job.case: job for job in api.status(session=project.session).jobs}
    first = jobs["width=64"]
    assert (first.metric, first.metric_value, first.metric_unit, first.tflops_per_gpu) == ("loss", 2.5, None, None)
    assert (jobs["gpus=4"].metric, jobs["gpus=4"].metric_value) == ("busbw", None)  # its rows have the numbers
    (table,) = [line for line in job_lines(list(jobs.values()), 200) if line.startswith("JOB")]
    assert "METRIC" in table and "TFLOPS" not in table


def test_a_number_of_a_verdict_has_its_unit(project: Project) -> None:
    swept(project)
    assert "busbw 68.95 against 72 GB/s at gpus=8,size=1048576" in verdicts(project)["as-published"][1]
    assert (
        " GB/s at size=8, then " in verdicts(project)["rises"][1]
        or " GB/s at size=8 to " in verdicts(project)["rises"][1]
    )


def test_an_experiment_without_a_paper_has_no_venue(project: Project) -> None:
    entry = loss(project)
    assert (entry.paper.title, entry.paper.venue, entry.source) == ("own", None, "Figure 1")
    (listed,) = [row for row in api.experiments(project.session).rows if row.experiment == entry.name]
    assert listed.venue is None
    api.program_needs(project.session)  # reads the papers of all experiments
    page = api.report(project.folder / "page", session=project.session).file.read_text()
    assert "<title>Figure 1 · repro report</title>" in page and "None" not in page


def test_an_experiment_shows_the_published_numbers_of_its_rows(project: Project) -> None:
    write_described(project.folder, SWEEP)
    assert [(point.where["size"], point.value) for point in api.show(NAME).numbers_of_rows] == [
        (2**34, 480),
        (2**20, 72),
    ]
    assert not api.show(NAME, where="gpus=4").numbers_of_rows


CPU = LOSS.replace("title:", "device: cpu\ntitle:").replace(", rate: false", "")


def test_claims_about_rates_of_cpu_cores_are_judged_if_the_published_machine_has_no_gpu(project: Project) -> None:
    entry = write_described(project.folder, CPU)
    outputs = {f"width={width}": {"loss": value} for width, value in ((64, 3.0), (128, 2.0), (256, 1.0))}
    record_described(project.ledger, entry, outputs, gpu=None)
    assert verdicts(project)["wider-is-better"][0] == "holds"
